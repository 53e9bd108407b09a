//! Where a run takes place: a store, the servers of it, and the roads that lead there.

use std::{
    env, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use buttress_core::{BoxError, edge};
use buttress_lease_etcd::{EtcdOptions, EtcdStore, etcd_client::Client};
use buttress_servers::{FakeKubernetes, Proxy, Server, Way, soon};
use clap::ValueEnum;
use futures_util::future::join_all;
use rusqlite::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::NoTls;

use crate::{
    candidate::{Decides, LEASE, TTL, config},
    faults::{Kind, STEP},
    stores::Store,
};

/// So many candidates.
pub const CANDIDATES: usize = 5;

/// A store, and who decides there that a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[non_exhaustive]
pub enum Arena {
    /// A file.
    Sqlite,
    /// PostgreSQL, and each candidate decides.
    Postgres,
    /// PostgreSQL, and the server decides by its wall clock.
    PostgresServer,
    /// Redis, and each candidate decides.
    Redis,
    /// Redis, and the server decides by its wall clock.
    RedisServer,
    /// An etcd of three members.
    Etcd,
    /// What stands for the API server of Kubernetes.
    Kubernetes,
}

/// So often does etcd look for leases that are over.
const NOTICES: Duration = Duration::from_millis(500);

/// The members of etcd wait for one second to two before they elect another leader, and may have to do so again.
const ELECTION: Duration = Duration::from_secs(4);

/// It, built.
#[derive(Debug)]
pub struct Ground {
    arena: Arena,
    folder: Folder,
    servers: Vec<Server>,
    kubernetes: Option<FakeKubernetes>,
    /// The member that stands still.
    paused: Option<usize>,
    /// For each candidate, a road to each server.
    roads: Vec<Vec<Proxy>>,
    /// Who holds the lock on the file.
    holder: Option<Connection>,
}

/// A folder of this run, gone when it is dropped unless somebody is to look at it.
#[derive(Debug)]
pub struct Folder(Option<PathBuf>);

// === impl Arena ===

impl Arena {
    /// All of them.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_name().to_owned()
    }

    /// The store.
    #[must_use]
    pub const fn store(self) -> Store {
        match self {
            Self::Sqlite => Store::Sqlite,
            Self::Postgres | Self::PostgresServer => Store::Postgres,
            Self::Redis | Self::RedisServer => Store::Redis,
            Self::Etcd => Store::Etcd,
            Self::Kubernetes => Store::Kubernetes,
        }
    }

    /// Who decides that a lease is over.
    #[must_use]
    pub const fn decides(self) -> Decides {
        match self {
            Self::Sqlite | Self::PostgresServer | Self::RedisServer | Self::Etcd => Decides::Server,
            Self::Postgres | Self::Redis | Self::Kubernetes => Decides::Observed,
        }
    }

    /// What can be broken there, in the order of [`Kind`].
    #[must_use]
    pub fn faults(self) -> Vec<Kind> {
        let mut kinds = Kind::value_variants().to_vec();
        kinds.retain(|kind| self.has(*kind));
        kinds
    }

    /// Whether that can be broken there. Only Redis is started without its data: the others do not bear that, and say
    /// so.
    fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Crash | Kind::Resignation | Kind::Pause | Kind::StorePause | Kind::Removal => {
                true
            }
            Kind::Partition
            | Kind::LostRequests
            | Kind::LostAnswers
            | Kind::ResetAnswers
            | Kind::Stranded
            | Kind::Slow
            | Kind::StoreCut
            | Kind::StoreRestart => self.store() != Store::Sqlite,
            Kind::StoreLoss => self.store() == Store::Redis,
            Kind::MemberPause => self.store() == Store::Etcd,
            Kind::ClockAhead | Kind::ClockBehind => {
                matches!(self.store(), Store::Postgres | Store::Redis)
            }
        }
    }

    /// How long it may take until somebody leads again, once anybody can: a lease and 2.4 retry periods. Where members of
    /// the store elect a leader of their own, that takes its time, and each lease begins anew then.
    #[must_use]
    pub fn allows(self, kind: Kind) -> Duration {
        let config = config();
        let once = config.lease_duration + config.retry_period.mul_f64(2.4);
        if self != Self::Etcd {
            return once;
        }
        let elects = matches!(kind, Kind::StorePause | Kind::StoreRestart | Kind::MemberPause);
        once + NOTICES + if elects { config.lease_duration + ELECTION } else { Duration::ZERO }
    }

    /// Whether that ends a lease whose holder cannot know: it is taken away by hand, or the clock by which it ends is
    /// set. (Members of etcd that [elect](crate::history::What::Elected) a leader may do so as well.) There may be two
    /// leaders then, until the first one asks, whom only their tokens tell apart.
    #[must_use]
    pub fn ends_leases(self, kind: Kind) -> bool {
        kind == Kind::Removal || self.decides() == Decides::Server && kind.sets_clock()
    }
}

// === impl Ground ===

impl Ground {
    /// Starts what is needed.
    ///
    /// # Errors
    ///
    /// If there is no folder, or no port.
    ///
    /// # Panics
    ///
    /// If a server does not start.
    pub async fn build(arena: Arena) -> io::Result<Self> {
        let mut kubernetes = None;
        let servers = match arena.store() {
            Store::Sqlite => vec![],
            Store::Postgres => vec![Server::postgres_with_clock().await],
            Store::Redis => vec![Server::redis_with_clock().await],
            Store::Etcd => Server::etcd_cluster().await.into(),
            Store::Kubernetes => {
                kubernetes = Some(FakeKubernetes::new().await);
                vec![]
            }
        };
        if arena.faults().iter().any(|kind| kind.sets_clock()) {
            // It can be set back as well then.
            servers.iter().for_each(|server| server.set_ahead(STEP));
        }
        let mut ends: Vec<_> = servers.iter().map(Server::addr).collect();
        ends.extend(kubernetes.iter().map(FakeKubernetes::addr));
        let mut roads = Vec::new();
        for _ in 0..CANDIDATES {
            roads.push(join_all(ends.iter().map(|end| Proxy::to(*end))).await);
        }
        let (folder, paused, holder) = (Folder::new()?, None, None);
        Ok(Self { arena, folder, servers, kubernetes, paused, roads, holder })
    }

    /// Where files of this run go.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How a candidate calls the store.
    #[must_use]
    pub fn url(&self, candidate: usize) -> String {
        let roads = self.roads[candidate].iter().map(Proxy::addr);
        match self.arena.store() {
            Store::Sqlite => self.file().display().to_string(),
            Store::Postgres | Store::Redis => {
                let (server, road) = (&self.servers[0], &self.roads[candidate][0]);
                server.url().replace(&server.addr().to_string(), &road.addr().to_string())
            }
            Store::Etcd | Store::Kubernetes => {
                roads.map(|road| format!("http://{road}")).collect::<Vec<_>>().join(",")
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.folder().join("leases.db")
    }

    /// Breaks it, for one candidate if it is of a process.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub async fn breaks(&mut self, kind: Kind, candidate: usize) -> Result<(), BoxError> {
        let roads = &self.roads[candidate];
        match kind {
            Kind::Crash | Kind::Resignation | Kind::Pause => unreachable!("its process is broken"),
            Kind::Partition => roads.iter().for_each(|road| road.set_both(Way::Blackhole)),
            Kind::LostRequests => roads.iter().for_each(|road| road.set_there(Way::Blackhole)),
            Kind::LostAnswers => roads.iter().for_each(|road| road.set_back(Way::Blackhole)),
            Kind::ResetAnswers => roads.iter().for_each(|road| road.set_back(Way::Reset)),
            Kind::Stranded => roads.iter().for_each(Proxy::strand),
            Kind::Slow => {
                // From what nobody notices to more than a call may take.
                let delay = Way::Delay(TTL.mul_f64(0.02 + 0.1 * edge::unit()));
                roads.iter().for_each(|road| road.set_both(delay));
            }
            Kind::StoreCut => self.all_roads(Way::Blackhole),
            Kind::StorePause => {
                if self.arena.store() == Store::Sqlite {
                    let holder = self.connection()?;
                    holder.execute_batch("BEGIN EXCLUSIVE")?;
                    self.holder = Some(holder);
                }
                self.servers.iter().for_each(Server::pause);
                self.kubernetes.iter().for_each(FakeKubernetes::pause);
            }
            Kind::StoreRestart | Kind::StoreLoss => {
                self.servers.iter_mut().for_each(Server::kill);
                self.kubernetes.iter_mut().for_each(FakeKubernetes::kill);
                if kind == Kind::StoreLoss {
                    self.servers.iter_mut().for_each(Server::forget);
                }
            }
            Kind::MemberPause => {
                let leader = self.member_that_leads().await?;
                self.servers[leader].pause();
                self.paused = Some(leader);
            }
            Kind::Removal => self.remove().await?,
            Kind::ClockAhead => self.servers.iter().for_each(|server| server.set_ahead(2 * STEP)),
            Kind::ClockBehind => {
                self.servers.iter().for_each(|server| server.set_ahead(Duration::ZERO));
            }
        }
        Ok(())
    }

    /// Makes it well again.
    ///
    /// # Panics
    ///
    /// If a server does not start.
    pub async fn heals(&mut self, kind: Kind) {
        match kind {
            Kind::StorePause => {
                self.holder = None;
                self.servers.iter().for_each(Server::resume);
                self.kubernetes.iter().for_each(FakeKubernetes::resume);
            }
            Kind::StoreRestart | Kind::StoreLoss => {
                // At the same time, as no member answers alone.
                join_all(self.servers.iter_mut().map(Server::start)).await;
                if let Some(kubernetes) = &mut self.kubernetes {
                    kubernetes.start().await;
                }
            }
            Kind::MemberPause => {
                self.paused.take().into_iter().for_each(|member| self.servers[member].resume());
            }
            Kind::ClockAhead | Kind::ClockBehind => {
                self.servers.iter().for_each(|server| server.set_ahead(STEP));
            }
            _ => self.all_roads(Way::Open),
        }
    }

    fn all_roads(&self, way: Way) {
        self.roads.iter().flatten().for_each(|road| road.set_both(way));
    }

    /// Takes the lease away, as the store's docs tell to.
    async fn remove(&self) -> Result<(), BoxError> {
        match self.arena.store() {
            Store::Sqlite => {
                let update = "UPDATE buttress_leases SET holder = NULL, revision = revision + 1 WHERE name = ?1";
                self.connection()?.execute(update, [LEASE])?;
            }
            Store::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(&self.servers[0].url(), NoTls).await?;
                let removal = format!(
                    "UPDATE buttress_leases SET holder = NULL, revision = revision + 1 WHERE name = '{LEASE}'; \
                     SELECT pg_notify('buttress_leases', '{LEASE}')"
                );
                tokio::select! {
                    done = client.batch_execute(&removal) => done?,
                    ended = connection => ended?,
                }
            }
            Store::Redis => {
                let removal = format!(
                    "DEL buttress:{{{LEASE}}}:lease\r\n\
                     PUBLISH buttress:{{{LEASE}}}:released \"\"\r\n\
                     QUIT\r\n"
                );
                let said = said(self.servers[0].addr(), &removal).await?;
                if !said.ends_with("+OK\r\n") {
                    return Err(format!("the lease is not removed: {said}").into());
                }
            }
            Store::Etcd => {
                let key = EtcdStore::key(&EtcdOptions::parse("etcd")?.open_later(), &config().name);
                let mut etcd = Client::connect([self.servers[0].url()], None).await?;
                etcd.delete(key, None).await?;
            }
            Store::Kubernetes => self.kubernetes.iter().for_each(|server| server.delete(LEASE)),
        }
        Ok(())
    }

    /// How many elections etcd's members have held among themselves.
    ///
    /// # Errors
    ///
    /// If none answers.
    pub async fn elections(&self) -> Result<Option<u64>, BoxError> {
        if self.arena.store() != Store::Etcd {
            return Ok(None);
        }
        let mut etcd = Client::connect([self.servers[0].url()], None).await?;
        Ok(Some(soon(etcd.status()).await?.raft_term()))
    }

    /// Which of etcd's members leads them.
    async fn member_that_leads(&self) -> Result<usize, BoxError> {
        for (member, server) in self.servers.iter().enumerate() {
            let mut etcd = Client::connect([server.url()], None).await?;
            let status = etcd.status().await?;
            if status.header().is_some_and(|header| header.member_id() == status.leader()) {
                return Ok(member);
            }
        }
        Err("no member leads".into())
    }

    /// A way of our own to the file.
    fn connection(&self) -> rusqlite::Result<Connection> {
        let connection = Connection::open(self.file())?;
        connection.busy_timeout(TTL)?;
        Ok(connection)
    }

    /// Leaves the folder for somebody to look at.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.0.take().expect("it was not kept before")
    }
}

/// Asks, and reads to the end.
async fn said(addr: SocketAddr, question: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(question.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        // As with the servers, no write waits for the disk: none of it is of use after the power was cut, and a disk that is
        // busy with something else would be one more fault.
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { env::temp_dir() };
        let folder = root.join(format!("buttress-chaos-{}-{count}", process::id()));
        // A process with our number was here before.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        Ok(Self(Some(folder)))
    }

    fn path(&self) -> &Path {
        self.0.as_deref().expect("it is kept when all is over")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
