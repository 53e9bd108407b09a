//! Who asks the store what, and when; and what follows from the answers.
//!
//! It knows no clock, no dice, no task and no store. It is told the time, what is still running, and what the
//! store said; it tells what to do next, and what has happened. The elector obeys.
//!
//! ```text
//!                  ┌────────────── nobody holds it, or nobody knows ─────────────┐
//!                  │                                                             ▼
//! start ─► Following ◄──────────── held by another ─────────────────────── (a call in flight)
//!            ▲   ▲                                                              │ acquired
//!            │   │                                                              ▼
//!            │   └── lost, expired, clock anomaly (the gate closes first) ─── Leading ◄─┐ renewed
//!            │                                                                  │   └───┘
//!            │                                                 resign, shutdown ▼
//!         Cooling ◄── Releasing ◄─── all is still ────────────────────────── Leaving (closed, renewing)
//!            ▲                                                                  │ something does not end
//!            └───────────── Holding: the lease ends by itself ◄─────────────────┘
//! ```

use std::time::Duration;

use crate::{
    BootTime, FencingToken, Identity, LeaderInfo, LeaseConfig, LeaseRecord, OnDrainTimeout,
    ResignReason, State, TermEnd,
    planted::{Plant, is_planted},
    resign::Candidacy,
};

/// Between the beginnings of two calls there is this share of a retry period at least, whatever happens.
const PACE: (u32, u32) = (4, 5);
/// A release that got no answer is tried so often in all.
const RELEASES: u32 = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    timing: Timing,
    me: Identity,
    phase: Phase,
    call: Option<Call>,
    /// No call begins before, but the first to release.
    paced: BootTime,
    /// An acquire that may have succeeded without our knowing: when the first of them was sent.
    doubt: Option<BootTime>,
    /// Whether the store has been asked since the last of them.
    is_doubt_fresh: bool,
    /// The greatest token that was seen, and the greatest that was led with.
    highest: Option<FencingToken>,
    spent: Option<FencingToken>,
    /// The greatest that is or was ours, and the one of the term that has our name and is not.
    ours: Option<FencingToken>,
    namesake: Option<FencingToken>,
    seen: Option<LeaderInfo>,
    /// Resignations in a row.
    resigned: u32,
    /// Terms in a row whose work returned soon after they began.
    returned: u32,
    running: Running,
    candidacy: Candidacy,
    /// Whether the runtime of the work is not known to run.
    is_stuck: bool,
    is_stopping: bool,
    effects: Vec<Effect>,
}

/// What of the settings is about time, and about what a leader does that leaves.
#[derive(Clone, Copy, Debug)]
struct Timing {
    lease: Duration,
    margin: Duration,
    renew: Duration,
    retry: Duration,
    limit: Duration,
    drain: Duration,
    grace: Duration,
    cooldown: Duration,
    cooldown_max: Duration,
    on_drain_timeout: OnDrainTimeout,
    releases: bool,
    /// Whether the store wakes candidates when the lease is released.
    is_woken: bool,
}

#[derive(Debug)]
enum Phase {
    /// The next call is due then.
    Following {
        next: BootTime,
    },
    Cooling {
        until: BootTime,
        /// When it looks next who leads.
        look: BootTime,
        /// Whether nobody leads is none of its business before: others come first, for a first cool-down's time.
        apart: BootTime,
    },
    Leading(Lead),
    Leaving(Lead, Leave),
    Releasing {
        fence: FencingToken,
        tries: u32,
        next: BootTime,
        until: BootTime,
        then: Then,
    },
    Holding {
        fence: FencingToken,
        until: BootTime,
        cooldown: Duration,
    },
    Stopped,
}

#[derive(Clone, Copy, Debug)]
struct Lead {
    fence: FencingToken,
    started: BootTime,
    valid_until: BootTime,
    renew_at: BootTime,
}

#[derive(Clone, Debug)]
struct Leave {
    reason: ResignReason,
    drained_by: BootTime,
    /// Set once what was not drained has been dropped: until when that may take to be gone.
    gone_by: Option<BootTime>,
}

/// What follows a release.
#[derive(Clone, Copy, Debug)]
enum Then {
    Follow(Duration),
    CoolDown(Duration),
}

/// The one call in flight.
#[derive(Clone, Copy, Debug)]
struct Call {
    op: Op,
    sent: BootTime,
    until: BootTime,
}

/// A call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Acquire,
    Inspect,
    Renew(FencingToken),
    Release(FencingToken),
}

/// What the store said to the call in flight.
#[derive(Debug)]
pub(crate) enum Answer {
    Acquired(LeaseRecord),
    Held(LeaseRecord),
    Inspected(Option<LeaseRecord>),
    Renewed(LeaseRecord),
    Lost(Option<LeaseRecord>),
    Released,
    NotHolder,
    /// Nothing: it failed.
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NotApplied,
    Ambiguous,
    Fatal,
    Panicked,
}

/// What of the term runs still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    /// Its work.
    pub(crate) work: bool,
    /// Requests that were let in by it.
    pub(crate) requests: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Begin a call, and say so.
    Call(Op),
    /// Nothing until then, or until something happens.
    Wait(Option<BootTime>),
    /// Nothing more, ever.
    Stop,
}

/// What has happened, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// A term begins, and is valid until then.
    Start {
        fence: FencingToken,
        valid_until: BootTime,
    },
    /// It is valid for longer.
    Extend {
        fence: FencingToken,
        valid_until: BootTime,
    },
    /// It lets nobody in any more, and its work is asked to end.
    Close {
        fence: FencingToken,
        reason: ResignReason,
    },
    /// What runs still is dropped.
    Cancel,
    /// It is over: closed, dropped, and told of.
    End {
        fence: FencingToken,
        end: TermEnd,
    },
    /// The call in flight took too long, and is dropped.
    Abandon {
        op: Op,
    },
    Released {
        fence: FencingToken,
    },
    Leader(Option<LeaderInfo>),
    Regression {
        fence: FencingToken,
        highest: FencingToken,
    },
    /// The store names us by that token, and nobody here has asked for it.
    Namesake {
        fence: FencingToken,
    },
    ShortGrant {
        granted: Duration,
    },
}

impl Running {
    const fn nothing(self) -> bool {
        !self.work && !self.requests
    }
}

impl Machine {
    pub(crate) fn new(config: &LeaseConfig, is_woken: bool, now: BootTime) -> Self {
        let timing = Timing {
            lease: config.lease_duration,
            margin: config.margin(),
            renew: config.renew_interval,
            retry: config.retry_period,
            limit: config.operation_timeout,
            drain: config.drain_timeout,
            grace: config.cancel_grace,
            cooldown: config.cooldown,
            cooldown_max: config.cooldown_max,
            on_drain_timeout: config.on_drain_timeout,
            releases: config.release_on_stop,
            is_woken,
        };
        Self {
            timing,
            me: config.identity.clone(),
            phase: Phase::Following { next: now },
            call: None,
            paced: now,
            doubt: None,
            is_doubt_fresh: false,
            highest: None,
            spent: None,
            ours: None,
            namesake: None,
            seen: None,
            resigned: 0,
            returned: 0,
            running: Running::default(),
            candidacy: Candidacy::Stands,
            is_stuck: false,
            is_stopping: false,
            effects: Vec::new(),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Following { .. } if self.call.is_some_and(|call| call.op == Op::Acquire) => {
                State::Candidate
            }
            Phase::Following { .. } => State::Follower,
            Phase::Leading(_) => State::Leader,
            Phase::Leaving(..) => State::Resigning,
            Phase::Releasing { then: Then::Follow(_), .. } => State::Follower,
            Phase::Cooling { .. } | Phase::Releasing { .. } | Phase::Holding { .. } => {
                State::CoolDown
            }
            Phase::Stopped => State::Stopped,
        }
    }

    /// The greatest token that was seen.
    pub(crate) const fn highest(&self) -> Option<FencingToken> {
        self.highest
    }

    /// Until when it does not stand, if it cools down and knows.
    pub(crate) const fn cools_until(&self) -> Option<BootTime> {
        match self.phase {
            Phase::Cooling { until, .. } => Some(until),
            _ => None,
        }
    }

    /// What has happened since the last time.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    // === What happens ===

    /// What to do next, now that it is so late, and so much runs still. Asked after everything that happens.
    pub(crate) fn advance(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        running: Running,
    ) -> Step {
        self.running = running;
        if let Some(call) = self.call
            && call.until <= now
        {
            self.effects.push(Effect::Abandon { op: call.op });
            self.answer(now, unit, Answer::Failed(Failure::Ambiguous));
        }
        while self.turn(now, unit) {}
        self.step(now)
    }

    /// The call that was to be begun was: it is sent after this instant, and not before.
    pub(crate) fn began(&mut self, op: Op, now: BootTime) {
        let limit = match (&self.phase, op) {
            (Phase::Leading(lead) | Phase::Leaving(lead, _), Op::Renew(_))
                if !is_planted(Plant::HangKeepsTerm) =>
            {
                self.timing.limit.min(lead.valid_until.since(now))
            }
            _ => self.timing.limit,
        };
        if let (Phase::Releasing { tries, .. }, Op::Release(_)) = (&mut self.phase, op) {
            *tries += 1;
        }
        self.paced = now + self.timing.retry * PACE.0 / PACE.1;
        if is_planted(Plant::NoPause) {
            self.paced = now;
        }
        self.call = Some(Call { op, sent: now, until: now + limit });
    }

    /// The store has said something to the call in flight.
    pub(crate) fn answer(&mut self, now: BootTime, unit: &mut dyn FnMut() -> f64, answer: Answer) {
        let Some(Call { op, sent, .. }) = self.call.take() else { return };
        let sent = if is_planted(Plant::AnchorAtAnswer) { now } else { sent };
        match (op, answer) {
            (Op::Acquire, Answer::Acquired(record)) => self.acquired(now, unit, sent, record),
            (Op::Acquire, Answer::Held(record)) => self.held(now, unit, sent, record),
            (Op::Inspect, Answer::Inspected(record)) => self.inspected(now, unit, record),
            (Op::Renew(fence), Answer::Renewed(record)) => {
                self.renewed(now, unit, sent, fence, record);
            }
            (Op::Renew(fence), Answer::Lost(record)) => self.lost(now, unit, fence, record),
            (Op::Release(fence), Answer::Released) => self.released(now, fence, true),
            (Op::Release(fence), Answer::NotHolder) => self.released(now, fence, false),
            (op, Answer::Failed(failure)) => self.failed(now, unit, sent, op, failure),
            (op, answer) => unreachable!("{answer:?} to {op:?}"),
        }
    }

    /// Whether it has just left, and is not to find that nobody leads.
    pub(crate) fn is_apart(&self, now: BootTime) -> bool {
        matches!(self.phase, Phase::Cooling { apart, .. } if now < apart)
    }

    /// The lease may have changed: look at once.
    pub(crate) fn changed(&mut self, now: BootTime) {
        if let Phase::Following { next: at } | Phase::Cooling { look: at, .. } = &mut self.phase {
            *at = (*at).min(now);
        }
    }

    /// The leader is to leave. Whoever does not lead has nothing to do.
    pub(crate) fn resign(&mut self, now: BootTime, reason: ResignReason) {
        let Phase::Leading(lead) = self.phase else { return };
        self.effects.push(Effect::Close { fence: lead.fence, reason: reason.clone() });
        // What stands still does not end.
        let is_stuck = reason == ResignReason::StuckRuntime;
        let drained_by = if is_stuck { now } else { now + self.timing.drain };
        self.phase = Phase::Leaving(lead, Leave { reason, drained_by, gone_by: None });
    }

    /// Everything is to end.
    pub(crate) fn stop(&mut self, now: BootTime) {
        self.is_stopping = true;
        if let Phase::Leaving(_, leave) = &mut self.phase {
            leave.reason = ResignReason::Shutdown;
        }
        self.resign(now, ResignReason::Shutdown);
    }

    /// Whether it may ask for the lease. Says whether it might before.
    pub(crate) fn candidacy(&mut self, now: BootTime, candidacy: Candidacy) -> Candidacy {
        let was_wanted = self.is_wanted();
        let before = std::mem::replace(&mut self.candidacy, candidacy);
        // It need not wait for its next look to find that nobody leads.
        if !was_wanted && self.is_wanted() && self.seen.is_none() {
            self.changed(now);
        }
        before
    }

    /// Whether the runtime of the work is not known to run. Then nobody is to lead here, whatever else is said.
    pub(crate) const fn stuck(&mut self, is_stuck: bool) {
        self.is_stuck = is_stuck;
    }

    /// The work has seen that its term's time is up, and is gone. A leader that leaves has ended it itself.
    pub(crate) fn over(&mut self, now: BootTime, unit: &mut dyn FnMut() -> f64) {
        if matches!(self.phase, Phase::Leading(_)) {
            self.end(now, unit, TermEnd::ExpiredLocally);
        }
    }

    /// The clocks disagree about how much time has passed.
    pub(crate) fn anomaly(&mut self, now: BootTime, unit: &mut dyn FnMut() -> f64) {
        self.end(now, unit, TermEnd::ClockAnomaly);
        // What was asked for before counts from nobody knows when.
        if let Some(call) = &mut self.call {
            call.sent = BootTime::default();
        }
        self.doubt = self.doubt.map(|_| BootTime::default());
    }

    // === What follows from answers ===

    fn acquired(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        record: LeaseRecord,
    ) {
        (self.doubt, self.is_doubt_fresh) = (None, false);
        let valid_until = self.valid_until(sent, record.granted_ttl);
        self.take(now, unit, sent, record, valid_until);
    }

    /// The lease is ours by what the store says. Whether it is of use is another question.
    fn take(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        record: LeaseRecord,
        valid_until: BootTime,
    ) {
        let fence = record.fence;
        let highest = self.highest;
        self.ours = self.ours.max(Some(fence));
        self.see(&record);
        if let Some(highest) = highest.filter(|highest| fence <= *highest)
            && !is_planted(Plant::AnyFence)
        {
            self.effects.push(Effect::Regression { fence, highest });
            return self.give_back(now, fence, self.timing.renew);
        }
        if self.is_short(record.granted_ttl) {
            self.effects.push(Effect::ShortGrant { granted: record.granted_ttl });
            return self.give_back(now, fence, self.timing.renew);
        }
        // The answer took too long, or nobody is wanted any more.
        if valid_until <= now || !self.is_wanted() {
            return self.give_back(now, fence, self.pause(unit));
        }
        self.spent = Some(fence);
        let renew_at = self.renew_at(sent, unit);
        self.phase = Phase::Leading(Lead { fence, started: now, valid_until, renew_at });
        self.effects.push(Effect::Start { fence, valid_until });
    }

    fn held(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        record: LeaseRecord,
    ) {
        self.is_doubt_fresh = false;
        if record.is_held_by(&self.me) {
            return self.ours(now, unit, sent, record);
        }
        self.see(&record);
        self.phase = Phase::Following { next: now + self.look_again(&record, unit) };
    }

    /// The store names us, and this call did not make it.
    fn ours(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        record: LeaseRecord,
    ) {
        let fence = record.fence;
        if self.is_namesakes(fence) {
            self.phase = Phase::Following { next: now + self.look_again(&record, unit) };
            return;
        }
        match self.doubt.take() {
            // It was an earlier call whose answer did not come. It counts from that one on, and has no more
            // than is left.
            Some(first) if self.spent < Some(fence) && self.is_wanted() => {
                let granted = self.valid_until(first, record.granted_ttl);
                let left = self.valid_until(sent, record.remaining());
                self.take(now, unit, first, record, granted.min(left));
            }
            // A term that is over for us, or one that nobody waits for any more. What is left of it ends
            // first.
            _ if self.running.nothing() => self.give_back(now, fence, self.pause(unit)),
            _ => self.phase = Phase::Following { next: now + self.pause(unit) },
        }
    }

    /// Whether a lease that has our name is another's. It is ours only if we were told so, or if we have asked and heard
    /// nothing: another elector that has this identity leads by it, and nobody else is to give it back.
    fn is_namesakes(&mut self, fence: FencingToken) -> bool {
        if self.namesake != Some(fence) {
            if self.doubt.is_some() || Some(fence) <= self.ours {
                self.ours = self.ours.max(Some(fence));
                return false;
            }
            self.namesake = Some(fence);
            self.effects.push(Effect::Namesake { fence });
        }
        true
    }

    fn inspected(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        record: Option<LeaseRecord>,
    ) {
        self.is_doubt_fresh = false;
        let is_ours = |record: &LeaseRecord| record.is_held_by(&self.me) && !record.is_expired();
        let is_cooling = matches!(self.phase, Phase::Cooling { .. });
        if let Some(record) = record.as_ref().filter(|record| is_ours(record))
            && !is_cooling
            && !self.is_namesakes(record.fence)
        {
            self.doubt = None;
            return self.give_back(now, record.fence, self.pause(unit));
        }
        let again = match &record {
            Some(record) if record.leader().is_some() => self.look_again(record, unit),
            _ => self.pause(unit),
        };
        self.highest = self.highest.max(record.as_ref().map(|record| record.fence));
        // What is ours still, nobody leads with.
        let leader = record.as_ref().and_then(LeaseRecord::leader);
        self.led_by(leader.filter(|leader| leader.identity != self.me));
        match &mut self.phase {
            Phase::Cooling { look, .. } => *look = now + again,
            phase => *phase = Phase::Following { next: now + again },
        }
    }

    fn renewed(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        fence: FencingToken,
        record: LeaseRecord,
    ) {
        if !record.is_held_by(&self.me) || record.fence != fence {
            return self.lost(now, unit, fence, Some(record));
        }
        let renew_at = self.renew_at(sent, unit);
        let until = self.valid_until(sent, record.granted_ttl);
        self.see(&record);
        if self.is_short(record.granted_ttl) {
            self.effects.push(Effect::ShortGrant { granted: record.granted_ttl });
        }
        let Some(lead) = self.lead_of(fence) else { return };
        lead.renew_at = renew_at;
        // What came so late that the term was over is no use to it.
        if now < lead.valid_until && lead.valid_until < until {
            lead.valid_until = until;
            self.effects.push(Effect::Extend { fence, valid_until: until });
        }
    }

    fn lost(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        fence: FencingToken,
        record: Option<LeaseRecord>,
    ) {
        let by = record.as_ref().and_then(LeaseRecord::leader);
        let by = by.filter(|by| by.identity != self.me);
        if self.lead_of(fence).is_some() {
            self.end(now, unit, TermEnd::Lost { by });
        }
        match record {
            Some(record) => self.see(&record),
            None => self.led_by(None),
        }
    }

    fn released(&mut self, now: BootTime, fence: FencingToken, done: bool) {
        if done {
            self.effects.push(Effect::Released { fence });
        }
        let Phase::Releasing { then, .. } = self.phase else { return };
        self.led_by(None);
        self.after(now, then);
    }

    fn failed(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        sent: BootTime,
        op: Op,
        failure: Failure,
    ) {
        if op == Op::Acquire && matches!(failure, Failure::Ambiguous | Failure::Panicked) {
            self.doubt = self.doubt.or(Some(sent));
            self.is_doubt_fresh = true;
        }
        if op == Op::Inspect {
            self.is_doubt_fresh = false;
        }
        if failure == Failure::Panicked {
            self.end(now, unit, TermEnd::StorePanicked);
        }
        let again = now + self.pause(unit);
        match &mut self.phase {
            Phase::Following { next } if failure == Failure::Fatal => {
                *next = again.max(now + self.timing.renew);
            }
            Phase::Following { next } => *next = again,
            Phase::Leading(lead) | Phase::Leaving(lead, _) => {
                if is_planted(Plant::NoAnswerIsLoss) {
                    return self.end(now, unit, TermEnd::Lost { by: None });
                }
                lead.renew_at = again;
            }
            Phase::Releasing { tries, next, until, then, .. } => {
                *next = again;
                if RELEASES <= *tries || *until <= again {
                    let then = *then;
                    self.after(now, then);
                }
            }
            Phase::Cooling { look, .. } => *look = again,
            Phase::Holding { .. } | Phase::Stopped => {}
        }
    }

    // === What follows from time ===

    /// Makes the transition that is due, if one is.
    fn turn(&mut self, now: BootTime, unit: &mut dyn FnMut() -> f64) -> bool {
        let running = self.running;
        match &mut self.phase {
            // ## Leading, Leaving => Following
            Phase::Leading(lead) | Phase::Leaving(lead, _)
                if lead.valid_until <= now
                    && !(self.call.is_some() && is_planted(Plant::HangKeepsTerm)) =>
            {
                self.end(now, unit, TermEnd::ExpiredLocally);
            }
            // ## Leaving => Releasing, once all is still
            Phase::Leaving(lead, leave)
                if running.nothing() || is_planted(Plant::ReleaseBeforeDrain) =>
            {
                let (lead, leave) = (*lead, leave.clone());
                self.leave(now, unit, lead, leave, true);
            }
            Phase::Leaving(lead, leave) => match leave.gone_by {
                // What stands still does not end, whatever the leader leaves for.
                None if leave.drained_by <= now || self.is_stuck => {
                    leave.gone_by = Some(now + self.timing.grace);
                    self.effects.push(Effect::Cancel);
                }
                // ## Leaving => Holding, or Releasing if the user wants it so
                Some(by) if by <= now => {
                    let releases = self.timing.on_drain_timeout == OnDrainTimeout::ReleaseAnyway;
                    let (lead, leave) = (*lead, leave.clone());
                    self.leave(now, unit, lead, leave, releases);
                }
                _ => return false,
            },
            // ## Holding => Releasing, if it is still after all
            Phase::Holding { fence, until, cooldown } if running.nothing() && now < *until => {
                let then = Then::CoolDown(*cooldown);
                self.phase =
                    Phase::Releasing { fence: *fence, tries: 0, next: now, until: *until, then };
            }
            // ## Holding => Cooling
            Phase::Holding { until, cooldown, .. } if *until <= now => {
                let cooldown = *cooldown;
                self.after(now, Then::CoolDown(cooldown));
            }
            // ## Releasing => Cooling, Following: it ends by itself
            Phase::Releasing { until, then, .. } if *until <= now && self.call.is_none() => {
                let then = *then;
                self.after(now, then);
            }
            // ## Cooling => Following
            Phase::Cooling { until, .. }
                if *until <= now || self.is_stopping || self.candidacy == Candidacy::LastResort =>
            {
                self.phase = Phase::Following { next: now };
            }
            // ## Following => Stopped
            Phase::Following { .. }
                if self.is_stopping && self.call.is_none() && !self.is_doubt_fresh =>
            {
                self.led_by(None);
                self.phase = Phase::Stopped;
            }
            _ => return false,
        }
        true
    }

    /// What to do, where no transition is due.
    fn step(&self, now: BootTime) -> Step {
        let due = |op, at: BootTime| if at <= now { Step::Call(op) } else { Step::Wait(Some(at)) };
        let step = match &self.phase {
            Phase::Following { next } => {
                let at = (*next).max(self.paced);
                let may_ask = self.is_wanted()
                    && (!self.running.work || is_planted(Plant::CampaignWhileWorking));
                let looks = self.is_doubt_fresh || !(self.is_stopping || self.is_stuck);
                if self.call.is_none() && !self.is_wanted() && looks {
                    due(Op::Inspect, at)
                } else if may_ask {
                    due(Op::Acquire, at)
                } else {
                    Step::Wait(None)
                }
            }
            Phase::Leading(lead) => {
                let at = lead.renew_at.max(self.paced);
                earlier(due(Op::Renew(lead.fence), at), lead.valid_until)
            }
            Phase::Leaving(lead, leave) => {
                let at = lead.renew_at.max(self.paced);
                let next = leave.gone_by.unwrap_or(leave.drained_by);
                earlier(due(Op::Renew(lead.fence), at), lead.valid_until.min(next))
            }
            Phase::Releasing { fence, next, until, .. } => {
                earlier(due(Op::Release(*fence), *next), *until)
            }
            Phase::Holding { until, .. } => Step::Wait(Some(*until)),
            Phase::Cooling { .. } if is_planted(Plant::RenewAfterRelease) => {
                due(Op::Renew(self.spent.expect("it has led")), self.paced)
            }
            Phase::Cooling { until, look, .. } => {
                let at = (*look).max(self.paced);
                // A look just before its time is up would put off what it asks then.
                let is_late = *until < at.max(now) + self.timing.retry * PACE.0 / PACE.1;
                if is_late { Step::Wait(Some(*until)) } else { due(Op::Inspect, at) }
            }
            Phase::Stopped => Step::Stop,
        };
        match (self.call, step) {
            (Some(_), Step::Stop) | (None, _) => step,
            (Some(call), Step::Call(_)) => earlier(Step::Wait(Some(call.until)), self.bound(call)),
            (Some(call), Step::Wait(_)) => earlier(Step::Wait(Some(call.until)), self.bound(call)),
        }
    }

    /// What comes first while a call is in flight.
    fn bound(&self, call: Call) -> BootTime {
        match &self.phase {
            _ if is_planted(Plant::HangKeepsTerm) => call.until,
            Phase::Leading(lead) => lead.valid_until,
            Phase::Leaving(lead, leave) => {
                lead.valid_until.min(leave.gone_by.unwrap_or(leave.drained_by))
            }
            _ => call.until,
        }
    }

    // === What all of them need ===

    /// Ends the term at once, if there is one, and not by its own will.
    fn end(&mut self, now: BootTime, unit: &mut dyn FnMut() -> f64, end: TermEnd) {
        let (Phase::Leading(lead) | Phase::Leaving(lead, _)) = &self.phase else { return };
        let Lead { fence, started, .. } = *lead;
        self.lasted(now.since(started));
        self.effects.push(Effect::End { fence, end });
        if is_planted(Plant::EndTwice) {
            self.effects.push(Effect::End { fence, end: TermEnd::ExpiredLocally });
        }
        self.phase = Phase::Following { next: now + self.pause(unit) };
        self.nobody_leads();
    }

    /// Ends the term by its own will.
    fn leave(
        &mut self,
        now: BootTime,
        unit: &mut dyn FnMut() -> f64,
        lead: Lead,
        leave: Leave,
        releases: bool,
    ) {
        let end = TermEnd::Resigned(leave.reason.clone());
        self.effects.push(Effect::End { fence: lead.fence, end });
        let is_short = self.lasted(now.since(lead.started));
        let cooldown = match leave.reason {
            ResignReason::WorkReturned => self.rest(unit, is_short),
            _ => self.cooldown(unit),
        };
        // The store's lease ends later than ours. Until then nobody else can lead.
        let until = lead.valid_until + self.timing.margin;
        let (fence, then) = (lead.fence, Then::CoolDown(cooldown));
        self.phase = if self.is_stopping && !self.timing.releases {
            Phase::Following { next: now }
        } else if releases {
            Phase::Releasing { fence, tries: 0, next: now, until, then }
        } else {
            Phase::Holding { fence, until, cooldown }
        };
        self.nobody_leads();
    }

    /// Gives back what is ours and was not led with, or is not any more.
    fn give_back(&mut self, now: BootTime, fence: FencingToken, pause: Duration) {
        // Whoever led before it was ours does not any more.
        self.led_by(None);
        let until = now + self.timing.limit * RELEASES;
        let (next, then) = (self.paced.max(now), Then::Follow(pause));
        self.phase = Phase::Releasing { fence, tries: 0, next, until, then };
    }

    fn after(&mut self, now: BootTime, then: Then) {
        self.phase = match then {
            Then::Follow(pause) => {
                // What it gave back itself wakes it, too.
                self.paced = self.paced.max(now + pause);
                Phase::Following { next: now + pause }
            }
            Then::CoolDown(time) => {
                let apart = now + self.timing.cooldown + self.timing.cooldown / 5;
                Phase::Cooling { until: now + time, look: now + self.timing.retry, apart }
            }
        };
    }

    /// A term is over that lasted so long, however it ended. Whether that was less than a lease: it gave little for
    /// what a change of leaders may cost.
    fn lasted(&mut self, time: Duration) -> bool {
        if self.timing.cooldown_max <= time {
            self.resigned = 0;
        }
        let is_short = time < self.timing.lease;
        if !is_short {
            self.returned = 0;
        }
        is_short
    }

    /// For how long a leader stays away whose work has done what it had to: others may come first. Work that never
    /// has anything to do is not begun again and again for that.
    fn rest(&mut self, unit: &mut dyn FnMut() -> f64, is_short: bool) -> Duration {
        let first = 2 * self.pause(unit);
        let time = doubled(first, self.returned, first.max(self.timing.cooldown_max));
        self.returned = self.returned.saturating_add(is_short.into());
        time
    }

    /// For how long a leader stays away that left for anything else.
    fn cooldown(&mut self, unit: &mut dyn FnMut() -> f64) -> Duration {
        let time = doubled(self.timing.cooldown, self.resigned, self.timing.cooldown_max);
        self.resigned = self.resigned.saturating_add(1);
        // `Duration::MAX` is never, and there is no more than that.
        let time = Duration::try_from_secs_f64(time.as_secs_f64() * (0.8 + 0.4 * unit()));
        time.unwrap_or(Duration::MAX).max(self.timing.retry)
    }

    /// A retry period, and up to a fifth more: drawn each time, from the same.
    fn pause(&self, unit: &mut dyn FnMut() -> f64) -> Duration {
        if is_planted(Plant::NoJitter) {
            return self.timing.retry;
        }
        if is_planted(Plant::NoPause) {
            return self.timing.retry / 10;
        }
        self.timing.retry.mul_f64(1.0 + 0.2 * unit())
    }

    /// How long to wait after having seen that somebody leads.
    fn look_again(&self, record: &LeaseRecord, unit: &mut dyn FnMut() -> f64) -> Duration {
        let pause = self.pause(unit);
        if !self.timing.is_woken {
            return pause;
        }
        // A release wakes us. An end by itself does not.
        let beyond = pause.saturating_sub(self.timing.retry);
        pause.max(record.remaining().min(self.timing.renew) + beyond)
    }

    fn renew_at(&self, sent: BootTime, unit: &mut dyn FnMut() -> f64) -> BootTime {
        sent + self.timing.renew.mul_f64(1.0 - 0.1 * unit())
    }

    fn valid_until(&self, sent: BootTime, time: Duration) -> BootTime {
        if is_planted(Plant::NoMargin) {
            return sent + time;
        }
        sent + time.saturating_sub(self.timing.margin)
    }

    fn is_short(&self, granted: Duration) -> bool {
        granted.saturating_sub(self.timing.margin) <= self.timing.renew
    }

    fn is_wanted(&self) -> bool {
        self.candidacy != Candidacy::Looks && !self.is_stuck && !self.is_stopping
    }

    fn lead_of(&mut self, fence: FencingToken) -> Option<&mut Lead> {
        match &mut self.phase {
            Phase::Leading(lead) | Phase::Leaving(lead, _) if lead.fence == fence => Some(lead),
            _ => None,
        }
    }

    fn see(&mut self, record: &LeaseRecord) {
        self.highest = self.highest.max(Some(record.fence));
        self.led_by(record.leader());
    }

    /// We do not lead any more. Whether the store names us still does not matter.
    fn nobody_leads(&mut self) {
        if self.seen.as_ref().is_some_and(|seen| seen.identity == self.me) {
            self.led_by(None);
        }
    }

    fn led_by(&mut self, leader: Option<LeaderInfo>) {
        if self.seen != leader {
            self.seen.clone_from(&leader);
            self.effects.push(Effect::Leader(leader));
        }
    }
}

/// That time, doubled so often, and no more than the most.
fn doubled(time: Duration, times: u32, most: Duration) -> Duration {
    let doubled = 2_u32.checked_pow(times).and_then(|times| time.checked_mul(times));
    doubled.map_or(most, |time| time.min(most))
}

/// The same, or a wait until `at` if that is sooner.
fn earlier(step: Step, at: BootTime) -> Step {
    match step {
        Step::Wait(Some(until)) => Step::Wait(Some(until.min(at))),
        Step::Wait(None) => Step::Wait(Some(at)),
        step => step,
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests;
