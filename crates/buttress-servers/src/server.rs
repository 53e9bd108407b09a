use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Child,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::{
    home::Home,
    kind::{Kind, set_clock},
};

/// A real server that runs for a test.
///
/// ```no_run
/// use buttress_servers::Server;
///
/// # async fn run() {
/// let mut server = Server::redis().await;
/// println!("it answers at {}", server.url());
/// server.pause();
/// // Now connections are made, and nothing is answered.
/// server.resume();
/// server.kill();
/// server.start().await; // with its data, at the same address
/// # }
/// ```
///
/// Dropped, it is killed, and its folder removed. One that many tests share may live in a static: it goes with
/// the process.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    addr: SocketAddr,
    child: Option<Child>,
    home: Home,
}

/// Whatever is waited for is there by then, or never.
const LONGEST: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);
/// So often another port is tried when somebody was quicker.
const TRIES: usize = 8;

impl Server {
    /// Starts PostgreSQL. The user `postgres` may do everything and needs no password; every other one needs
    /// the password that it is made with.
    ///
    /// # Panics
    ///
    /// If there is none, or it does not start: with what it said. So do all that start a server.
    pub async fn postgres() -> Self {
        one(|_| Kind::Postgres { has_clock: false }).await
    }

    /// Starts PostgreSQL by a wall clock of its own, which [`set_ahead`](Self::set_ahead) sets. That needs a C compiler.
    ///
    /// # Panics
    ///
    /// As [`postgres`](Self::postgres).
    pub async fn postgres_with_clock() -> Self {
        one(|_| Kind::Postgres { has_clock: true }).await
    }

    /// Starts Redis. It keeps what it has answered over a [`kill`](Self::kill).
    ///
    /// # Panics
    ///
    /// As [`postgres`](Self::postgres).
    pub async fn redis() -> Self {
        one(|_| Kind::Redis { has_clock: false }).await
    }

    /// Starts Redis by a wall clock of its own, which [`set_ahead`](Self::set_ahead) sets. That needs a C compiler.
    ///
    /// # Panics
    ///
    /// As [`postgres`](Self::postgres).
    pub async fn redis_with_clock() -> Self {
        one(|_| Kind::Redis { has_clock: true }).await
    }

    /// Starts an etcd of one member.
    ///
    /// # Panics
    ///
    /// As [`postgres`](Self::postgres).
    pub async fn etcd() -> Self {
        one(|home| etcd(&[(home, free_port())]).swap_remove(0)).await
    }

    /// Starts an etcd of three members. It goes on without any one of them.
    ///
    /// # Panics
    ///
    /// As [`postgres`](Self::postgres).
    pub async fn etcd_cluster() -> [Self; 3] {
        some(|homes| {
            let peers: Vec<_> = homes.iter().map(|home| (*home, free_port())).collect();
            etcd(&peers)
        })
        .await
    }

    /// Where it listens, now and after every start.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How its clients call it.
    #[must_use]
    pub fn url(&self) -> String {
        self.kind.url(self.addr)
    }

    /// Has it stop in the middle of whatever it does. Its connections stay, and new ones are made by the
    /// system; nothing is answered.
    pub fn pause(&self) {
        let Some(child) = &self.child else { return };
        let child = Pid::from_child(child);
        // It first, and until it stands: then there are no more children of it.
        signal(child, Signal::STOP);
        wait_for(|| !matches!(state(child), Some(state) if state != 'T'));
        children(child).into_iter().for_each(|one| signal(one, Signal::STOP));
    }

    /// Has it go on.
    pub fn resume(&self) {
        let Some(child) = &self.child else { return };
        let child = Pid::from_child(child);
        children(child).into_iter().chain([child]).for_each(|one| signal(one, Signal::CONT));
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(&mut self) {
        self.pause();
        let Some(mut child) = self.child.take() else { return };
        let all = children(Pid::from_child(&child));
        // It first: it would replace them.
        child.kill().and_then(|()| child.wait()).expect("it is our child");
        self.home.ended();
        all.iter().for_each(|one| signal(*one, Signal::KILL));
        // One that had just been forked has the port still.
        all.into_iter().for_each(|one| wait_for(|| matches!(state(one), None | Some('Z' | 'X'))));
    }

    /// Asks it to end, and waits until it has. Clients lose their connections.
    ///
    /// # Panics
    ///
    /// If it has not after half a minute.
    pub async fn stop(&mut self) {
        let Some(child) = &mut self.child else { return };
        signal(Pid::from_child(child), self.kind.stops_by());
        for _ in 0..steps() {
            if child.try_wait().expect("it is our child").is_some() {
                self.child = None;
                self.home.ended();
                return;
            }
            sleep(STEP).await;
        }
        panic!("the server does not end: {}", self.home.log());
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), with its data, and waits until it
    /// answers.
    ///
    /// # Panics
    ///
    /// If it does not, or runs already.
    pub async fn start(&mut self) {
        self.launch();
        if let Err(why) = self.answers().await {
            panic!("{why}");
        }
    }

    /// Removes its data, as a disk that is lost. A member of a cluster that has forgotten everything is not let
    /// in again.
    ///
    /// # Panics
    ///
    /// If it runs.
    pub fn forget(&mut self) {
        assert!(self.child.is_none(), "it runs: kill it first");
        fs::remove_dir_all(self.home.path("data")).expect("nobody writes there");
    }

    /// Sets its wall clock so far ahead of the host's, from the next time that it looks, and over all its starts.
    ///
    /// # Panics
    ///
    /// If it has none of its own.
    pub fn set_ahead(&self, time: Duration) {
        assert!(self.kind.has_clock(), "its clock is the host's");
        set_clock(&self.home, time);
    }

    fn launch(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.kind.prepare(&self.home);
        self.child = Some(self.home.start(&self.kind.start(&self.home, self.addr)));
    }

    /// Waits until it answers, or ends.
    async fn answers(&mut self) -> Result<(), String> {
        for _ in 0..steps() {
            let child = self.child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("it is our child") {
                self.child = None;
                self.home.ended();
                let (package, log) = (self.kind.package(), self.home.log());
                return Err(format!("the server of `{package}` ended ({status}): {log}"));
            }
            let pid = child.id();
            if self.kind.answers(&self.home, self.addr, pid).await {
                return Ok(());
            }
            sleep(STEP).await;
        }
        Err(format!("the server does not answer: {}", self.home.log()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The guard of its home would do so, but nobody would wait for it then.
        self.kill();
    }
}

// === Starting ===

async fn one(kind: impl Fn(&Home) -> Kind) -> Server {
    let [server] = some(|[home]: [&Home; 1]| vec![kind(home)]).await;
    server
}

/// Starts servers that know of each other. When somebody takes a port between our look and theirs, all of them
/// are started again, with others.
async fn some<const N: usize>(kinds: impl Fn([&Home; N]) -> Vec<Kind>) -> [Server; N] {
    let mut why = String::new();
    for _ in 0..TRIES {
        let homes: [Home; N] = std::array::from_fn(|_| Home::new());
        let kinds = kinds(homes.each_ref());
        let mut servers: Vec<_> = homes.into_iter().zip(kinds).map(server).collect();
        servers.iter_mut().for_each(Server::launch);
        match all_answer(&mut servers).await {
            Ok(()) => return servers.try_into().expect("there are as many"),
            Err(said) => why = said,
        }
    }
    panic!("{why}")
}

async fn all_answer(servers: &mut [Server]) -> Result<(), String> {
    for server in servers {
        server.answers().await?;
    }
    Ok(())
}

fn server((home, kind): (Home, Kind)) -> Server {
    Server { kind, addr: free_port(), child: None, home }
}

fn etcd(members: &[(&Home, SocketAddr)]) -> Vec<Kind> {
    let of = |(home, peer): &(&Home, SocketAddr)| format!("{}=http://{peer}", home.name());
    let cluster = members.iter().map(of).collect::<Vec<_>>().join(",");
    let member = |(_, peer): &(_, SocketAddr)| Kind::Etcd { peer: *peer, cluster: cluster.clone() };
    members.iter().map(member).collect()
}

/// One that nobody listens at, and that the system gives to no client: else somebody's connection could have it
/// when the server is started again.
pub(crate) fn free_port() -> SocketAddr {
    use std::hash::{BuildHasher, RandomState};
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    let (low, high) = (10_000, first.filter(|first| *first > 20_000).unwrap_or(32_768_u64));
    loop {
        let chance = RandomState::new().hash_one(low);
        let port = u16::try_from(low + chance % (high - low)).expect("it is below 2^16");
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(addr).is_ok() {
            return addr;
        }
    }
}

// === Processes ===

fn steps() -> u128 {
    LONGEST.as_millis() / STEP.as_millis()
}

/// Who has gone meanwhile hears nothing.
fn signal(process: Pid, how: Signal) {
    let _ = kill_process(process, how);
}

/// A server that forks one for each connection lives on in them.
fn children(parent: Pid) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|of| Pid::from_raw(of.file_name().to_str()?.parse().ok()?));
    all.filter(|one| stat(*one).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get()))
        .collect()
}

/// What it does: `T` if it stands, `Z` if it is dead and nobody has asked. None if it is gone.
fn state(process: Pid) -> Option<char> {
    stat(process).map(|(state, _)| state)
}

/// What it does, and its parent.
fn stat(process: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // After the name, which is in brackets and may hold anything.
    let mut words = stat.rsplit(") ").next()?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Waits for the kernel.
fn wait_for(is_so: impl Fn() -> bool) {
    for _ in 0..LONGEST.as_millis() {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("a process does not do what it is told");
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_port_that_somebody_was_quicker_to_take_is_left_to_them() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let is_first = Cell::new(true);
        let server = one(|home| {
            let taken = taken.local_addr().unwrap();
            let peer = if is_first.replace(false) { taken } else { free_port() };
            etcd(&[(home, peer)]).swap_remove(0)
        });
        drop(server.await);
        assert!(!is_first.get());
    }
}
