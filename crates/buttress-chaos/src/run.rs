//! A run: the candidates, and who breaks things for them.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use buttress_core::{BoxError, LeaseId, edge};
use buttress_leadership::BootTime;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    arena::{Arena, CANDIDATES, Ground},
    candidate::{Decides, LEASE},
    faults::{Deck, Kind},
    history::{Line, Pen, Reader, What, now},
    process::Process,
    register,
    verdict::Verdict,
};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Where.
    pub arena: Arena,
    /// What is broken: some of what can be [there](Arena::faults).
    pub faults: Vec<Kind>,
    /// For how long things are broken.
    pub lasts: Duration,
    /// Where chance begins.
    pub seed: u64,
    /// The program of a candidate.
    pub leadctl: PathBuf,
    /// A fault that is to be found.
    pub plant: Option<Plant>,
}

/// A fault of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Candidates believe in their leases for three times as long as they are.
    Generous,
    /// The register takes what former leaders write.
    Unfenced,
}

/// A leader is there by then, or will never be.
const LONGEST: Duration = Duration::from_secs(30);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(10);

/// Who breaks things.
struct Nemesis<'a> {
    run: &'a Run,
    ground: &'a mut Ground,
    register: String,
    /// They serve the register, as long as they are there.
    _serving: JoinSet<()>,
    history: PathBuf,
    pen: Pen,
    seen: Seen,
    /// None while it is dead.
    candidates: [Option<Process>; CANDIDATES],
    born: usize,
}

/// Who leads, as far as the history is written.
struct Seen {
    reader: Reader,
    /// When each said last that it leads, and until when it believes to.
    until: BTreeMap<String, (BootTime, BootTime)>,
}

impl Run {
    /// Runs it to its end, and judges it. The history is left where it is if there is something wrong.
    ///
    /// # Errors
    ///
    /// If it cannot be run: something cannot be started, a candidate ends by itself, or nobody leads for half a minute.
    ///
    /// # Panics
    ///
    /// If a server does not start.
    pub async fn judged(&self) -> Result<Verdict, BoxError> {
        edge::seed(self.seed);
        let mut ground = Ground::build(self.arena).await?;
        let history = ground.folder().join("history.jsonl");
        let played = self.played(&mut ground, &history).await;
        if played.as_ref().is_ok_and(|verdict| verdict.is_sound() && !verdict.is_late()) {
            return played;
        }
        let kept = ground.keep().join("history.jsonl");
        match played {
            Ok(verdict) => Ok(Verdict { history: Some(kept), ..verdict }),
            Err(error) => {
                let (arena, seed, kept) = (self.arena.name(), self.seed, kept.display());
                Err(format!("{arena}, seed {seed}: {error} (history: {kept})").into())
            }
        }
    }

    async fn played(&self, ground: &mut Ground, history: &Path) -> Result<Verdict, BoxError> {
        Nemesis::new(self, ground, history).await?.plays().await?;
        Ok(Verdict::of(self, &Reader::all(history)?))
    }
}

// === impl Nemesis ===

impl<'a> Nemesis<'a> {
    async fn new(run: &'a Run, ground: &'a mut Ground, history: &Path) -> io::Result<Self> {
        let pen = Pen::new(history, "nemesis")?;
        let of_register = Pen::new(history, "register")?;
        let fenced = run.plant != Some(Plant::Unfenced);
        let (register, serving) = register::serve(LeaseId::of(LEASE), of_register, fenced).await?;
        Ok(Self {
            run,
            ground,
            register: register.to_string(),
            _serving: serving,
            history: history.to_owned(),
            pen,
            seen: Seen { reader: Reader::new(history)?, until: BTreeMap::new() },
            candidates: [const { None }; CANDIDATES],
            born: 0,
        })
    }

    async fn plays(&mut self) -> Result<(), BoxError> {
        for candidate in 0..CANDIDATES {
            self.start(candidate)?;
        }
        let mut leader = self.until_led().await?;
        let mut elections = self.ground.elections().await?;
        let mut deck = Deck::new(self.run.faults.clone());
        let end = now() + self.run.lasts;
        while now() < end {
            let kind = deck.deal();
            self.strike(kind, leader).await?;
            self.until_led().await?;
            let before = elections;
            elections = self.ground.elections().await?;
            if elections != before {
                self.pen.note(What::Elected);
            }
            sleep(kind.rests()).await;
            leader = self.until_led().await?;
        }
        self.all_end().await
    }

    /// Breaks something, and makes it well again.
    async fn strike(&mut self, kind: Kind, leader: usize) -> Result<(), BoxError> {
        // Mostly the leader, and sometimes one who is none.
        let any = (edge::unit() * 4.0 * CANDIDATES as f64) as usize;
        let candidate = if any < CANDIDATES { any } else { leader };
        let hits_leader = !kind.is_of_process() || candidate == leader;
        let breaks = What::Breaks { kind, hits_leader };
        let gone = || io::Error::other("it is dead already");
        match kind {
            Kind::Crash => {
                let process = self.candidates[candidate].take().ok_or_else(gone)?;
                let name = process.name().to_owned();
                self.pen.note(breaks);
                process.kill().await?;
                self.pen.note_at(now(), &name, What::Gone);
                sleep(kind.lasts()).await;
                self.start(candidate)?;
            }
            Kind::Resignation => {
                self.pen.note(breaks);
                self.candidates[candidate].as_mut().ok_or_else(gone)?.resign().await?;
                // Whoever leads does not any more, soon.
                sleep(LOOK * 10).await;
            }
            Kind::Pause => {
                self.pen.note(breaks);
                self.candidates[candidate].as_ref().ok_or_else(gone)?.stand_still(true)?;
                sleep(kind.lasts()).await;
                self.candidates[candidate].as_ref().ok_or_else(gone)?.stand_still(false)?;
            }
            _ => {
                self.pen.note(breaks);
                self.ground.breaks(kind, candidate).await?;
                sleep(kind.lasts()).await;
                self.ground.heals(kind).await;
            }
        }
        self.pen.note(What::Heals);
        self.check()
    }

    fn start(&mut self, candidate: usize) -> io::Result<()> {
        self.born += 1;
        let name = format!("{}.{}", (b'A' + candidate as u8) as char, self.born);
        let arena = self.run.arena;
        let decides = match arena.decides() {
            Decides::Server => "server",
            Decides::Observed => "observed",
        };
        let history = self.history.display().to_string();
        let url = self.ground.url(candidate);
        let mut args: Vec<_> = ["candidate", "--store", arena.store().name(), "--url", &url]
            .into_iter()
            .chain(["--expiry", decides, "--name", &name, "--history", &history])
            .chain(["--register", &self.register])
            .map(str::to_owned)
            .collect();
        if self.run.plant == Some(Plant::Generous) {
            args.push("--generous".to_owned());
        }
        self.candidates[candidate] = Some(Process::spawn(&self.run.leadctl, name, &args)?);
        Ok(())
    }

    /// Waits until somebody leads who has heard of that from now on, and says who. Else what was broken before might
    /// show later.
    async fn until_led(&mut self) -> Result<usize, BoxError> {
        let start = now();
        loop {
            self.seen.look()?;
            if let Some(leader) = self.leader(start) {
                return Ok(leader);
            }
            if now().since(start) > LONGEST {
                return Err(format!("nobody leads for {LONGEST:?}").into());
            }
            self.check()?;
            sleep(LOOK).await;
        }
    }

    fn leader(&self, since: BootTime) -> Option<usize> {
        let name = self.seen.leader(since, now())?;
        let is_it = |process: &Option<Process>| {
            process.as_ref().is_some_and(|process| process.name() == name)
        };
        self.candidates.iter().position(is_it)
    }

    fn check(&mut self) -> Result<(), BoxError> {
        for process in self.candidates.iter_mut().flatten() {
            process.check()?;
        }
        Ok(())
    }

    /// All at once, or the next one would lead for a moment.
    async fn all_end(&mut self) -> Result<(), BoxError> {
        self.candidates.iter_mut().flatten().for_each(Process::end);
        for process in self.candidates.iter_mut().filter_map(Option::take) {
            process.ended().await?;
        }
        Ok(())
    }
}

// === impl Seen ===

impl Seen {
    fn look(&mut self) -> io::Result<()> {
        for Line { at, who, what } in self.reader.more()? {
            match what {
                What::Believes { until, .. } => {
                    self.until.insert(who, (BootTime::from_nanos(at), BootTime::from_nanos(until)));
                }
                What::Leaves { .. } | What::Ended { .. } | What::Gone => {
                    self.until.remove(&who);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The one who said so last, if that was since.
    fn leader(&self, since: BootTime, now: BootTime) -> Option<&str> {
        let leading = self.until.iter().filter(|(_, (at, until))| since <= *at && now < *until);
        leading.max_by_key(|(_, (at, _))| *at).map(|(who, _)| &**who)
    }
}
