//! Where a run takes place: a store, the servers of it, and the roads that lead there.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use buttress_core::{BoxError, edge};
use buttress_servers::{Proxy, Server, Way};
use clap::ValueEnum;
use rusqlite::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_postgres::NoTls;

use crate::{
    candidate::{Decides, LEASE, TTL},
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
}

/// It, built.
#[derive(Debug)]
pub struct Ground {
    arena: Arena,
    folder: Folder,
    servers: Vec<Server>,
    /// For each candidate, a road to each server.
    roads: Vec<Vec<Proxy>>,
    /// Who holds the lock on the file.
    holder: Option<Connection>,
}

/// A folder of this run, gone when it is dropped unless somebody is to look at it.
#[derive(Debug)]
pub struct Folder(Option<PathBuf>);

const FILE: &[Kind] =
    &[Kind::Crash, Kind::Resignation, Kind::Pause, Kind::StorePause, Kind::Removal];

const POSTGRES: &[Kind] = &[
    Kind::Crash,
    Kind::Resignation,
    Kind::Pause,
    Kind::Partition,
    Kind::LostRequests,
    Kind::LostAnswers,
    Kind::ResetAnswers,
    Kind::Stranded,
    Kind::Slow,
    Kind::StorePause,
    Kind::StoreCut,
    Kind::StoreRestart,
    Kind::Removal,
];

const REDIS: &[Kind] = &[
    Kind::Crash,
    Kind::Resignation,
    Kind::Pause,
    Kind::Partition,
    Kind::LostRequests,
    Kind::LostAnswers,
    Kind::ResetAnswers,
    Kind::Stranded,
    Kind::Slow,
    Kind::StorePause,
    Kind::StoreCut,
    Kind::StoreRestart,
    Kind::StoreLoss,
    Kind::Removal,
    Kind::ClockAhead,
    Kind::ClockBehind,
];

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
        }
    }

    /// Who decides that a lease is over.
    #[must_use]
    pub const fn decides(self) -> Decides {
        match self {
            Self::Sqlite | Self::PostgresServer | Self::RedisServer => Decides::Server,
            Self::Postgres | Self::Redis => Decides::Observed,
        }
    }

    /// What can be broken there.
    #[must_use]
    pub const fn faults(self) -> &'static [Kind] {
        match self {
            Self::Sqlite => FILE,
            Self::Postgres | Self::PostgresServer => POSTGRES,
            Self::Redis | Self::RedisServer => REDIS,
        }
    }

    /// Whether that ends a lease whose holder cannot know: it is taken away by hand, or the clock by which it ends is
    /// set. There may be two leaders then, until the first one asks, whom only their tokens tell apart.
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
        let servers = match arena.store() {
            Store::Sqlite => vec![],
            Store::Postgres => vec![Server::postgres().await],
            Store::Redis => vec![Server::redis_with_clock().await],
        };
        if arena.faults().iter().any(|kind| kind.sets_clock()) {
            // It can be set back as well then.
            servers.iter().for_each(|server| server.set_ahead(STEP));
        }
        let mut roads = Vec::new();
        for _ in 0..CANDIDATES {
            let mut roads_of = Vec::new();
            for server in &servers {
                roads_of.push(Proxy::to(server.addr()).await);
            }
            roads.push(roads_of);
        }
        Ok(Self { arena, folder: Folder::new()?, servers, roads, holder: None })
    }

    /// Where files of this run go.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How a candidate calls the store.
    #[must_use]
    pub fn url(&self, candidate: usize) -> String {
        if self.servers.is_empty() {
            return self.file().display().to_string();
        }
        let roads = self.servers.iter().zip(&self.roads[candidate]);
        let urls = roads.map(|(server, road)| {
            server.url().replace(&server.addr().to_string(), &road.addr().to_string())
        });
        urls.collect::<Vec<_>>().join(",")
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
            Kind::StorePause if self.servers.is_empty() => {
                let holder = self.connection()?;
                holder.execute_batch("BEGIN EXCLUSIVE")?;
                self.holder = Some(holder);
            }
            Kind::StorePause => self.servers.iter().for_each(Server::pause),
            Kind::StoreRestart => self.servers.iter_mut().for_each(Server::kill),
            Kind::StoreLoss => {
                self.servers.iter_mut().for_each(Server::kill);
                self.servers.iter_mut().for_each(Server::forget);
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
            Kind::StorePause if self.servers.is_empty() => self.holder = None,
            Kind::StorePause => self.servers.iter().for_each(Server::resume),
            Kind::StoreRestart | Kind::StoreLoss => {
                for server in &mut self.servers {
                    server.start().await;
                }
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
                let mut stream = TcpStream::connect(self.servers[0].addr()).await?;
                let removal = format!(
                    "DEL buttress:{{{LEASE}}}:lease\r\n\
                     PUBLISH buttress:{{{LEASE}}}:released \"\"\r\n\
                     QUIT\r\n"
                );
                stream.write_all(removal.as_bytes()).await?;
                let mut said = String::new();
                stream.read_to_string(&mut said).await?;
                if !said.ends_with("+OK\r\n") {
                    return Err(format!("the lease is not removed: {said}").into());
                }
            }
        }
        Ok(())
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

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let folder = env::temp_dir().join(format!("buttress-chaos-{}-{count}", process::id()));
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
