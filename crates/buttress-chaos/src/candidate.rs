//! A candidate: an elector on a thread of its own, and a writer that does what a leader does.
//!
//! It writes under a term that has let it in, and writes whatever has become of the term meanwhile, as a process does
//! that was stopped between its look at the clock and its write. No lease helps against that: it is for the register
//! to refuse it.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buttress_core::{BoxError, edge};
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Elector, ElectorThread, ErasedStore, Event, Expiry,
    Leadership, LeaseConfig, LeaseName, LeaseRecord, LeaseStore, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, StoreCapabilities, StoreError,
};
use clap::{Args, ValueEnum};
use tokio::{
    io::{AsyncBufReadExt, BufReader, stdin},
    task::JoinSet,
    time::sleep,
};

use crate::{
    history::{Pen, What, now},
    register::Writer,
    stores::Store,
};

/// What is led.
pub const LEASE: &str = "chaos";

/// How long leases are, short so that a minute has many terms. It is the shortest that etcd grants.
pub const TTL: Duration = Duration::from_secs(2);

/// So many write at the same time: one of them is always in the middle of it.
const WRITERS: usize = 3;

/// Between two writes of one.
const EVERY: Duration = Duration::from_millis(5);

/// What a leader does between its look at the clock and its write, at least: up to twice as long.
const WORK: Duration = Duration::from_millis(30);

/// Stands for election until its standard input ends. A line `resign` there has it leave.
#[derive(Args, Clone, Debug)]
pub struct Candidate {
    /// Where leases are kept.
    #[arg(long)]
    pub store: Store,

    /// Where that is: a path, or a URL.
    #[arg(long)]
    pub url: String,

    /// Who decides that a lease is over, where the store leaves the choice.
    #[arg(long, default_value = "observed")]
    pub expiry: Decides,

    /// Who it is in the history.
    #[arg(long)]
    pub name: String,

    /// Where the history is written.
    #[arg(long)]
    pub history: PathBuf,

    /// Where the register is that it writes to.
    #[arg(long)]
    pub register: SocketAddr,

    /// Believe in leases for three times as long as they are: a fault that is to be found.
    #[arg(long, hide = true)]
    pub generous: bool,
}

/// Who decides that a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Decides {
    /// The server, by its clock.
    Server,
    /// Each candidate, by its own.
    Observed,
}

/// Its settings.
#[must_use]
pub fn config() -> LeaseConfig {
    LeaseConfig::new(LeaseName::new(LEASE).expect("it is a name"))
        .scaled_to(TTL)
        .drain(TTL / 4, TTL / 20)
        .cooldown(TTL, TTL * 2)
}

impl Candidate {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened, the register is gone, or the history cannot be written.
    pub async fn run(self) -> Result<(), BoxError> {
        let config = config();
        let thread = ElectorThread::new()?;
        let store = thread.make(self.clone().open(config.clone())).await?;
        let pen = Pen::new(&self.history, &self.name)?;
        let told = Told::default();
        let elector = Elector::new(store, config)?.observe(observer(pen, told.clone()));
        let running = thread.spawn(elector);
        let leadership = running.leadership().clone();
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let pen = Pen::new(&self.history, &self.name)?;
            let writer = Writer::connect(self.register, &self.name).await?;
            writers.spawn(writes(leadership.clone(), writer, pen, told.clone()));
        }
        tokio::select! {
            Some(lost) = writers.join_next() => return lost?,
            () = obeys(leadership) => {}
        }
        running.stop().await;
        Ok(())
    }

    /// Tries again while others are in its way.
    async fn open(self, config: LeaseConfig) -> Result<ErasedStore, StoreError> {
        loop {
            match self.store.open(&self.url, self.expiry.into(), &config).await {
                Err(StoreError::NotApplied(_)) => sleep(config.retry_period).await,
                Ok(store) if self.generous => return Ok(ErasedStore::new(Generous(store))),
                opened => return opened,
            }
        }
    }
}

/// The term that the history knows of.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU64>);

/// Writes down what an elector tells.
fn observer(pen: Pen, told: Told) -> impl FnMut(&Event) + Send + 'static {
    move |event| {
        let what = match event {
            Event::TermStarted { fence, valid_until } | Event::Renewed { fence, valid_until } => {
                What::Believes { fence: *fence, until: valid_until.as_nanos() }
            }
            Event::Resigning { fence, reason } => {
                What::Leaves { fence: *fence, why: reason.to_string() }
            }
            Event::TermEnded { fence, end } => What::Ended { fence: *fence, how: end.to_string() },
            Event::Released { fence } => What::Released { fence: *fence },
            Event::StoreFailed { operation, error } => {
                let why = error.as_ref().map_or_else(|| "too slow".to_owned(), ToString::to_string);
                What::Failed { operation: format!("{operation:?}"), why }
            }
            Event::FenceRegression { fence, .. } => What::WentBack { fence: *fence },
            _ => return,
        };
        pen.note(what);
        if let Event::TermStarted { fence, .. } = event {
            told.0.store(fence.get(), SeqCst);
        }
    }
}

/// Writes while it leads, for ever.
async fn writes(
    leadership: Leadership,
    mut writer: Writer,
    pen: Pen,
    told: Told,
) -> Result<(), BoxError> {
    loop {
        sleep(EVERY).await;
        let known = told.0.load(SeqCst);
        let before = now();
        let Ok(permit) = leadership.admit(Duration::ZERO) else { continue };
        let fence = permit.fence();
        // A term that it were killed in before it is told of would be missing.
        if fence.get() != known {
            continue;
        }
        pen.note_at(before, pen.who(), What::Admitted { fence });
        sleep(WORK.mul_f64(1.0 + edge::unit())).await;
        if !writer.write(fence).await? && permit.check(Duration::ZERO).is_ok() {
            leadership.resign_because("refused by the register");
        }
    }
}

/// Does what it is told, until nobody is there who tells it.
async fn obeys(leadership: Leadership) {
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "resign" {
            leadership.resign();
        }
    }
}

impl From<Decides> for Expiry {
    fn from(decides: Decides) -> Self {
        match decides {
            Decides::Server => Self::Server,
            Decides::Observed => Self::Observed,
        }
    }
}

/// Says that leases are three times as long as they are.
struct Generous(ErasedStore);

fn longer(mut record: LeaseRecord) -> LeaseRecord {
    record.granted_ttl *= 3;
    record
}

impl LeaseStore for Generous {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        Ok(match self.0.acquire(request).await? {
            AcquireOutcome::Acquired(record) => AcquireOutcome::Acquired(longer(record)),
            held => held,
        })
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        Ok(match self.0.renew(request).await? {
            RenewOutcome::Renewed(record) => RenewOutcome::Renewed(longer(record)),
            lost => lost,
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.0.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.0.inspect(name).await
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        self.0.changes(name)
    }
}
