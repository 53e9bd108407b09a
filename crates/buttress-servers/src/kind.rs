//! What is different from server to server.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::{Signal, geteuid};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::home::Home;

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Etcd {
        /// The address that it has for the other members.
        peer: SocketAddr,
        /// All members, as etcd wants to be told.
        cluster: String,
    },
    Postgres {
        /// Whether it has a wall clock of its own.
        has_clock: bool,
    },
    Redis {
        /// Whether it has one.
        has_clock: bool,
    },
}

/// A question is answered within that, or asked again.
const ANSWER: Duration = Duration::from_secs(3);

impl Kind {
    /// The Debian package that it comes in.
    pub(crate) const fn package(&self) -> &'static str {
        match self {
            Self::Etcd { .. } => "etcd-server",
            Self::Postgres { .. } => "postgresql",
            Self::Redis { .. } => "redis-server",
        }
    }

    pub(crate) fn url(&self, addr: SocketAddr) -> String {
        match self {
            Self::Etcd { .. } => format!("http://{addr}"),
            Self::Postgres { .. } => format!("postgres://postgres@{addr}/postgres"),
            Self::Redis { .. } => format!("redis://{addr}"),
        }
    }

    /// Asks it to end in order.
    pub(crate) const fn stops_by(&self) -> Signal {
        match self {
            Self::Etcd { .. } | Self::Redis { .. } => Signal::TERM,
            // It would wait for its clients at the other one.
            Self::Postgres { .. } => Signal::INT,
        }
    }

    /// Makes what is there before the first start.
    pub(crate) fn prepare(&self, home: &Home) {
        let data = home.path("data");
        if data.exists() {
            return;
        }
        fs::create_dir(&data).expect("the folder is ours");
        if self.has_clock() && !home.path("clock").exists() {
            make_clock(home);
        }
        if !matches!(self, Self::Postgres { .. }) {
            return;
        }
        if geteuid().is_root() {
            // PostgreSQL refuses to be root. Its package has made a user.
            chown_to_postgres(&data);
        }
        let mut initdb = self.command("initdb");
        initdb.arg("--pgdata").arg(&data).args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]);
        let done = initdb.output().expect("the package `postgresql` is installed");
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        // One who may do everything and needs no password, and others who need theirs.
        let who = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), who).expect("the folder is ours");
    }

    /// What starts it. It does not wait for the disk: no test here cuts the power.
    pub(crate) fn start(&self, home: &Home, addr: SocketAddr) -> Command {
        let data = home.path("data");
        let port = addr.port();
        match self {
            Self::Etcd { peer, cluster } => {
                let mut etcd = self.command("etcd");
                etcd.arg("--data-dir").arg(&data).args([
                    format!("--name={}", home.name()),
                    format!("--listen-client-urls=http://{addr}"),
                    format!("--advertise-client-urls=http://{addr}"),
                    format!("--listen-peer-urls=http://{peer}"),
                    format!("--initial-advertise-peer-urls=http://{peer}"),
                    format!("--initial-cluster={cluster}"),
                    "--initial-cluster-state=new".to_owned(),
                    "--logger=zap".to_owned(),
                ]);
                etcd
            }
            Self::Postgres { .. } => {
                let mut postgres = self.command("postgres");
                if self.has_clock() {
                    postgres = self.command("env");
                    postgres.args(by_clock(home)).arg(program_of_postgres("postgres"));
                }
                postgres.arg("-D").arg(&data).args(["-p", &port.to_string()]);
                for set in [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "shared_buffers=16MB",
                    "fsync=off",
                ] {
                    postgres.args(["-c", set]);
                }
                postgres
            }
            Self::Redis { .. } => {
                let mut redis = self.command("redis-server");
                if self.has_clock() {
                    redis = self.command("env");
                    redis.args(by_clock(home)).arg("redis-server");
                }
                redis.arg("--dir").arg(&data).args(["--port", &port.to_string()]);
                redis.args(["--bind", "127.0.0.1", "--save", ""]);
                // All that it has answered is there after a start.
                redis.args(["--appendonly", "yes", "--appendfsync", "always"]);
                redis
            }
        }
    }

    /// Whether it is this very server that answers, and not another one that has taken the port.
    pub(crate) async fn answers(&self, home: &Home, addr: SocketAddr, pid: u32) -> bool {
        match self {
            Self::Etcd { .. } => {
                let members =
                    "POST /v3/cluster/member/list HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}";
                let health = "GET /health HTTP/1.0\r\n\r\n";
                said(addr, members.as_bytes()).await.contains(&format!("\"{}\"", home.name()))
                    && said(addr, health.as_bytes()).await.contains(r#""health":"true""#)
            }
            Self::Postgres { .. } => {
                let noted = fs::read_to_string(home.path("data").join("postmaster.pid"));
                let is_ready = noted.is_ok_and(|noted| {
                    let mut lines = noted.lines();
                    lines.next() == Some(&*pid.to_string())
                        && lines.last().is_some_and(|status| status.trim() == "ready")
                });
                // It asks whether TLS is spoken here.
                is_ready && first_byte(addr, &[0, 0, 0, 8, 4, 210, 22, 47]).await == Some(b'N')
            }
            Self::Redis { .. } => {
                // It says who it is while it still reads its data, and does nothing else.
                let said = said(addr, b"INFO server\r\nPING\r\nQUIT\r\n").await;
                said.contains(&format!("process_id:{pid}\r\n")) && said.contains("+PONG")
            }
        }
    }

    /// Whether it has a wall clock of its own.
    pub(crate) const fn has_clock(&self) -> bool {
        matches!(self, Self::Postgres { has_clock: true } | Self::Redis { has_clock: true })
    }

    /// `program`, as somebody whom it gets on with.
    fn command(&self, program: &str) -> Command {
        let Self::Postgres { .. } = self else { return Command::new(program) };
        let program = program_of_postgres(program);
        if !geteuid().is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
        command
    }
}

/// Debian keeps the programs of each version in a folder of its own, and out of the path.
fn program_of_postgres(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = versions.map(|version| version.path());
    let there = versions.filter(|version| version.join("bin").join(program).exists());
    let newest = there.max_by_key(|version| number(version));
    newest.map_or_else(|| program.into(), |version| version.join("bin").join(program))
}

/// Compiles what stands between a server and its wall clock, and sets that to the host's.
fn make_clock(home: &Home) {
    let source = home.path("clock.c");
    fs::write(&source, include_str!("clock.c")).expect("the folder is ours");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(home.path("clock.so")).arg(source);
    let done = cc.output().expect("a C compiler is there, as it links Rust's programs");
    assert!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
    set_clock(home, Duration::ZERO);
}

/// What has a server that `env` starts go by it.
fn by_clock(home: &Home) -> [String; 2] {
    let [clock, program] = [home.path("clock"), home.path("clock.so")];
    [format!("BUTTRESS_CLOCK={}", clock.display()), format!("LD_PRELOAD={}", program.display())]
}

/// In place, since the server has it in its memory.
pub(crate) fn set_clock(home: &Home, ahead: Duration) {
    let micros = i64::try_from(ahead.as_micros()).expect("it is less than an age");
    let mut how = fs::File::options();
    let file = how.write(true).create(true).truncate(false).open(home.path("clock"));
    let file = file.expect("the folder is ours");
    file.write_all_at(&micros.to_ne_bytes(), 0).expect("the folder is ours");
}

fn chown_to_postgres(data: &Path) {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = users.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let (user, group) = user.expect("the package `postgresql` has made its user");
    std::os::unix::fs::chown(data, Some(user), Some(group)).expect("root may");
}

/// Asks, and reads to the end. What fails says nothing.
async fn said(addr: SocketAddr, question: &[u8]) -> String {
    let ask = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(question).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(ANSWER, ask).await.ok().and_then(Result::ok).unwrap_or_default();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn first_byte(addr: SocketAddr, question: &[u8]) -> Option<u8> {
    let ask = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(question).await?;
        stream.read_u8().await
    };
    timeout(ANSWER, ask).await.ok()?.ok()
}
