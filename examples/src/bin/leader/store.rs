//! Where the leases are: one line for each store, and nothing else here knows which it is.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use buttress::{
    BoxError, LeaseName,
    leadership::{ErasedStore, LeaseStore},
    lease_etcd::EtcdOptions,
    lease_kubernetes::KubernetesOptions,
    lease_postgres::PostgresOptions,
    lease_redis::RedisOptions,
    lease_sqlite::SqliteOptions,
};
use clap::{Args, ValueEnum};

use crate::settings;

/// What the command line says of it, the user's as well as a candidate's.
#[derive(Clone, Debug, Args)]
pub(crate) struct Leases {
    /// Where the leases are
    #[arg(long, value_enum, default_value_t = Store::Sqlite)]
    store: Store,

    /// Which one: 127.0.0.1:2379 for etcd, postgres://me@127.0.0.1/mine, redis://127.0.0.1/, the address of `kubectl
    /// proxy` for Kubernetes; for SQLite a file, or none for one that is gone afterwards
    #[arg(long, required_if_eq_any = Store::SERVERS.map(|store| ("store", store)))]
    url: Option<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    Sqlite,
    Etcd,
    Postgres,
    Redis,
    Kubernetes,
}

// === impl Leases ===

impl Leases {
    /// The same, and in that file if nobody has said in which.
    pub(crate) fn or_in(self, file: &Path) -> Self {
        Self { url: self.url.or_else(|| Some(file.into())), ..self }
    }

    /// What a candidate is to be told.
    pub(crate) fn args(&self) -> [OsString; 4] {
        let store = self.store.to_possible_value().expect("none is skipped");
        ["--store".into(), store.get_name().into(), "--url".into(), self.url().into()]
    }

    /// For the reader.
    pub(crate) const fn place(&self) -> &'static str {
        match self.store {
            Store::Sqlite => "one SQLite file",
            Store::Etcd => "etcd",
            Store::Postgres => "one table in PostgreSQL",
            Store::Redis => "Redis",
            Store::Kubernetes => "one object in Kubernetes",
        }
    }

    /// Opens it. Servers are connected to with the first call, on the thread that makes it.
    pub(crate) async fn open(&self) -> Result<ErasedStore, BoxError> {
        let url = || self.url().to_str().ok_or("the URL is no text");
        Ok(match self.store {
            Store::Sqlite => {
                let options = SqliteOptions::new(self.url()).create(true);
                ErasedStore::new(options.busy_timeout(settings::BUSY).open().await?)
            }
            Store::Etcd => ErasedStore::new(EtcdOptions::parse(url()?)?.open_later()),
            Store::Postgres => {
                let options = PostgresOptions::parse(url()?)?.create_table(true);
                ErasedStore::new(options.open_later())
            }
            Store::Redis => ErasedStore::new(RedisOptions::parse(url()?)?.open_later()),
            Store::Kubernetes => ErasedStore::new(KubernetesOptions::parse(url()?)?.open_later()),
        })
    }

    /// An error if it cannot be opened, or does not answer.
    pub(crate) async fn check(&self, lease: &LeaseName) -> Result<(), BoxError> {
        self.open().await?.inspect(lease).await?;
        Ok(())
    }

    fn url(&self) -> &OsStr {
        self.url.as_deref().expect("there is a file at least")
    }
}

impl Store {
    const SERVERS: [&str; 4] = ["etcd", "postgres", "redis", "kubernetes"];
}
