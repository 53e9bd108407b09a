//! A store by its name and its URL, for programs that leave the choice to who starts them.

use buttress_leadership::{ErasedStore, Expiry, LeaseConfig, StoreError};
use buttress_lease_etcd::EtcdOptions;
use buttress_lease_kubernetes::KubernetesOptions;
use buttress_lease_postgres::PostgresOptions;
use buttress_lease_redis::RedisOptions;
use buttress_lease_sqlite::SqliteOptions;
use clap::ValueEnum;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// A file, whose path is the URL.
    Sqlite,
    /// A table.
    Postgres,
    /// Keys of Redis or Valkey.
    Redis,
    /// Keys of etcd: the URL is a member's, or those of several with commas between.
    Etcd,
    /// Objects of Kubernetes, in the namespace `default` of the API server there.
    Kubernetes,
}

impl Store {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Opens it, for electors with those settings. What is not there is made. One with a server need not be reached
    /// yet.
    ///
    /// # Errors
    ///
    /// As the store's own `open`.
    pub async fn open(
        self,
        url: &str,
        expiry: Expiry,
        config: &LeaseConfig,
    ) -> Result<ErasedStore, StoreError> {
        Ok(match self {
            Self::Sqlite => {
                // A call waits twice at most, and is to fail before it is given up.
                let busy = config.operation_timeout.mul_f64(0.4);
                let options = SqliteOptions::new(url).create(true).busy_timeout(busy);
                ErasedStore::new(options.open().await?)
            }
            Self::Postgres => {
                let options = PostgresOptions::parse(url)?.expiry(expiry).create_table(true);
                ErasedStore::new(options.open_later())
            }
            Self::Redis => ErasedStore::new(RedisOptions::parse(url)?.expiry(expiry).open_later()),
            Self::Etcd => ErasedStore::new(EtcdOptions::parse(url)?.open_later()),
            Self::Kubernetes => ErasedStore::new(KubernetesOptions::parse(url)?.open_later()),
        })
    }
}
