//! Who and what takes part, and how the script gets hold of it.

use std::{
    env, fs, io,
    path::PathBuf,
    process,
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress::{
    BoxError, LeaseName,
    leadership::{BootTime, LeaseClock},
};
use tokio::{io::AsyncBufReadExt, task::JoinHandle, time::sleep};

use crate::{
    asking::{self, Fronts},
    history::{CANDIDATES, Fault, History, Kind, name},
    ledger::Ledger,
    process::Process,
    said::{Said, What},
    settings,
    store::Leases,
};

pub(crate) type Shared = Arc<Mutex<History>>;

pub(crate) struct Stage {
    pub(crate) history: Shared,
    ledger: Ledger,
    fronts: Fronts,
    /// None while it is dead.
    candidates: [Option<Process>; CANDIDATES],
    asking: JoinHandle<()>,
    /// Who listens to candidates, of now and of before.
    listening: Vec<JoinHandle<()>>,
    leases: Leases,
    /// Where they are, unless they are somewhere else.
    _folder: Folder,
}

/// A folder for a file with the leases, gone when this is dropped.
struct Folder(PathBuf);

/// Far longer than anything takes; what hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

/// The time by the clock that all processes share.
pub(crate) fn now() -> BootTime {
    LeaseClock::system().now()
}

// === impl Stage ===

impl Stage {
    /// Starts everything.
    pub(crate) async fn open(leases: Leases) -> Result<Self, BoxError> {
        let folder = Folder::new()?;
        let leases = leases.or_in(&folder.0.join("leases.db"));
        leases.check(&LeaseName::new(settings::NAME)?).await?;
        let history: Shared = Arc::new(Mutex::new(History::new(now())));
        let ledger = Ledger::open(&history).await?;
        let fronts = Fronts::default();
        let asking = asking::ask(fronts.clone(), history.clone());
        let asking = tokio::spawn(asking);
        let (candidates, listening) = ([const { None }; CANDIDATES], Vec::new());
        let mut stage = Self {
            history,
            ledger,
            fronts,
            candidates,
            asking,
            listening,
            leases,
            _folder: folder,
        };
        for candidate in 0..CANDIDATES {
            stage.start(candidate)?;
        }
        Ok(stage)
    }

    /// Starts a candidate. What it says goes into the history.
    pub(crate) fn start(&mut self, candidate: usize) -> io::Result<()> {
        let (process, says) = Process::spawn(&self.leases, self.ledger.addr(candidate))?;
        self.candidates[candidate] = Some(process);
        let (history, fronts) = (self.history.clone(), self.fronts.clone());
        self.listening.push(tokio::spawn(async move {
            let mut lines = says.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match line.parse() {
                    Ok(Said { what: What::Listens(front), .. }) => {
                        fronts.lock().unwrap()[candidate] = Some(front);
                    }
                    Ok(Said { at, what }) => history.lock().unwrap().hear(candidate, at, what),
                    Err(why) => history.lock().unwrap().note(now(), format_args!("{why}")),
                }
            }
        }));
        Ok(())
    }

    /// Does something bad to the leader, at the worst of times: it has just renewed its lease, and is at work.
    pub(crate) async fn break_leader(&mut self, kind: Kind) -> Result<Fault, BoxError> {
        let asked = now();
        let fresh = move |history: &History| {
            let term = history.leading(now())?;
            let is_worst = term.renewed > asked && history.under_way() > 2;
            is_worst.then_some((term.candidate, term.fence))
        };
        let (candidate, fence) = self.until("a leader that renews its lease", fresh).await?;
        let fault = Fault { kind, candidate, fence, at: now(), healed: None };
        self.history.lock().unwrap().strike(fault.clone());
        match kind {
            Kind::Cut => self.ledger.cut(candidate, true),
            Kind::Killed => {
                if let Some(process) = self.candidates[candidate].take() {
                    process.kill().await?;
                }
            }
            Kind::Stopped => self.stand_still(candidate, true)?,
        }
        Ok(fault)
    }

    /// Makes it good again.
    pub(crate) fn heal(&mut self, fault: &Fault) -> io::Result<()> {
        self.history.lock().unwrap().heal(fault, now());
        match fault.kind {
            Kind::Cut => self.ledger.cut(fault.candidate, false),
            Kind::Killed => self.start(fault.candidate)?,
            Kind::Stopped => self.stand_still(fault.candidate, false)?,
        }
        Ok(())
    }

    fn stand_still(&self, candidate: usize, still: bool) -> io::Result<()> {
        self.candidates[candidate].as_ref().map_or(Ok(()), |process| process.stand_still(still))
    }

    /// Waits until `seen` has seen it.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        seen: impl Fn(&History) -> Option<T>,
    ) -> Result<T, BoxError> {
        let start = now();
        loop {
            if let Some(seen) = seen(&self.history.lock().unwrap()) {
                return Ok(seen);
            }
            if now().since(start) > PATIENCE {
                return Err(format!("there was to be {what}, and for {PATIENCE:?} was not").into());
            }
            for (candidate, process) in self.candidates.iter_mut().enumerate() {
                if let Some(Err(error)) = process.as_mut().map(Process::check) {
                    return Err(format!("candidate {}: {error}", name(candidate)).into());
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Ends everything: in its own way if all went well.
    pub(crate) async fn close(mut self, is_well: bool) -> History {
        self.asking.abort();
        if is_well {
            let line = format_args!("the end: all are told to stop");
            self.history.lock().unwrap().note(now(), line);
        }
        let mut candidates: Vec<_> = self.candidates.iter_mut().filter_map(Option::take).collect();
        // All at once, or the next one would lead for a moment.
        candidates.iter_mut().for_each(Process::end);
        for process in candidates {
            // An error means that it is gone already.
            let _ = if is_well { process.ended().await } else { process.kill().await };
        }
        // What they said last is on its way.
        for listening in self.listening {
            let _ = listening.await;
        }
        self.history.lock().unwrap().clone()
    }
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Self> {
        let folder = env::temp_dir().join(format!("buttress-leader-{}", process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
