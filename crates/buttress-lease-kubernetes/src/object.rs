//! The object, and what is read from it and written to it.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use buttress_core::edge;
use buttress_leadership::{
    AcquireRequest, BootTime, FencingToken, Identity, LeaseName, LeaseRecord, Observation,
    RenewRequest, StoreTime,
};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use crate::{error::Why, text};

/// What is kept of a lease, as it was read or written.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// All of it, to be written again: it has what others keep there, too.
    object: Lease,
    /// Its `resourceVersion`.
    pub(crate) version: u64,
    pub(crate) holder: Option<Identity>,
    pub(crate) ttl: Duration,
    pub(crate) acquired: Micros,
    renewed: Micros,
    /// What the last of us who took it has noted.
    note: Option<Note>,
    payload: Vec<u8>,
    memo: Vec<u8>,
}

/// Of which term a token is: one that began at that time, with that holder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    fence: FencingToken,
    acquired: Micros,
    holder: String,
}

/// Since 1970, by the clock of whoever wrote it; zero for never.
pub(crate) type Micros = i64;

/// The token of the term, when it began, and whose it is. Who knows nothing of it leaves it there, and begins a term
/// with another time.
const TERM: &str = "buttress/term";
/// What the holder says of itself.
const PAYLOAD: &str = "buttress/payload";
/// What holders leave for those who come after them.
const MEMO: &str = "buttress/memo";

/// What a lease that nobody holds lasts, for those who look at nothing else: the shortest that is let in.
const RELEASED_SECONDS: i32 = 1;

/// One that nobody holds, and nobody ever did.
pub(crate) fn vacant(name: &LeaseName) -> Lease {
    let metadata = ObjectMeta { name: Some(name.as_str().to_owned()), ..ObjectMeta::default() };
    Lease { metadata, spec: Some(LeaseSpec::default()) }
}

/// Refuses what would be no object's name, and might be another path.
pub(crate) fn check_name(name: &LeaseName) -> Result<(), Why> {
    if name.as_str().split('.').all(is_label) {
        return Ok(());
    }
    let name = name.as_str();
    Err(format!("Kubernetes takes no name {name:?}: it is {LABEL}, or some with dots between")
        .into())
}

/// The same of a namespace.
pub(crate) fn check_namespace(name: &str) -> Result<(), Why> {
    if is_label(name) {
        return Ok(());
    }
    Err(format!("Kubernetes takes no namespace {name:?}: it is {LABEL}").into())
}

const LABEL: &str = "letters in lower case, digits and `-`, a letter or digit at both ends";

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(is_inner) && text.trim_matches('-') == text
}

// === impl Kept ===

impl Kept {
    pub(crate) fn of(object: Lease) -> Result<Self, Why> {
        let version = object.metadata.resource_version.as_deref().unwrap_or_default();
        let version = version
            .parse()
            .map_err(|_| format!("a resourceVersion that is no number: {version:?}"))?;
        let spec = object.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty()).map(Identity::new);
        let holder =
            holder.transpose().map_err(|error| format!("a holder that is none: {error}"))?;
        let seconds = spec.lease_duration_seconds.unwrap_or_default();
        let ttl = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if holder.is_some() && ttl.is_zero() {
            return Err("it has a holder, and no leaseDurationSeconds".into());
        }
        let noted = |key: &str| object.metadata.annotations.as_ref()?.get(key);
        let wrong = |key: &str| format!("the annotation `{key}` is none of ours");
        let bytes = |key| match noted(key) {
            Some(text) => text::decoded(text).ok_or_else(|| wrong(key)),
            None => Ok(Vec::new()),
        };
        let note = match noted(TERM) {
            Some(text) => Some(Note::parsed(text).ok_or_else(|| wrong(TERM))?),
            None => None,
        };
        let (payload, memo) = (bytes(PAYLOAD)?, bytes(MEMO)?);
        let micros = |time: Option<MicroTime>| time.map_or(0, |time| time.0.as_microsecond());
        let (acquired, renewed) = (micros(spec.acquire_time), micros(spec.renew_time));
        Ok(Self { object, version, holder, ttl, acquired, renewed, note, payload, memo })
    }

    /// Whether anybody ever held it.
    pub(crate) fn was_held(&self) -> bool {
        self.holder.is_some() || self.acquired != 0
    }

    /// The token of the term that it has, or had last, if that is one of ours.
    pub(crate) fn fence(&self) -> Option<FencingToken> {
        let note = self.note.as_ref().filter(|note| note.acquired == self.acquired)?;
        let is_its = self.holder.as_ref().is_none_or(|holder| holder.as_str() == note.holder);
        is_its.then_some(note.fence)
    }

    /// The token of a term that begins by writing over this very state: its number, or one more than that of the last
    /// term, or that has been `seen`, if the object has come from where numbers are greater.
    pub(crate) fn next_fence(&self, seen: Option<FencingToken>) -> Result<FencingToken, Why> {
        let last = self.note.as_ref().map(|note| note.fence).max(seen);
        let last = last.map_or(0, FencingToken::get);
        let next = self.version.max(last.checked_add(1).ok_or("a token that is none of ours")?);
        FencingToken::new(next).ok_or_else(|| "a resourceVersion of zero".into())
    }

    /// A token for a term of somebody who has none, as of a candidate of client-go: what it may have written over.
    pub(crate) fn foreign_fence(&self) -> FencingToken {
        let last = self.note.as_ref().map_or(1, |note| note.fence.get());
        let fence = FencingToken::new((self.version.saturating_sub(1)).max(last));
        fence.expect("it is one at least")
    }

    /// What changes with each renewal, whoever makes it, and with nothing else.
    pub(crate) fn renewal(&self) -> u64 {
        self.renewed.cast_unsigned()
    }

    pub(crate) fn is_of(&self, who: &Identity, fence: FencingToken) -> bool {
        self.holder.as_ref() == Some(who) && self.fence() == Some(fence)
    }

    /// Whether it is over, by the clock of who has seen that nothing has changed.
    pub(crate) fn is_over_for(&self, seen: Observation) -> bool {
        self.holder.is_none() || self.ttl <= seen.now.since(seen.since)
    }

    /// With the times of who observes.
    pub(crate) fn record(self, name: &LeaseName, seen: Observation) -> LeaseRecord {
        let ours = |time: BootTime| StoreTime::from_nanos(time.as_nanos());
        let mut record = LeaseRecord::vacant(name.clone(), seen.fence, ours(seen.now));
        (record.acquired_at, record.renewed_at) = (ours(seen.term_since), ours(seen.since));
        if self.holder.is_some() {
            record.expires_at = ours(seen.since + self.ttl);
        }
        if self.fence().is_some() {
            record.payload = self.payload.into();
        }
        record.holder = self.holder;
        record.granted_ttl = self.ttl;
        record.memo = self.memo.into();
        record.revision = self.version;
        record
    }

    // === What is written over it ===

    pub(crate) fn taken(self, request: &AcquireRequest<'_>, fence: FencingToken) -> Lease {
        let now = self.later();
        let holder = request.identity.as_str().to_owned();
        let note = Note { fence, acquired: now, holder: holder.clone() };
        self.with(|spec, annotations| {
            spec.holder_identity = Some(holder);
            spec.lease_duration_seconds = Some(seconds(request.ttl));
            (spec.acquire_time, spec.renew_time) = (time(now), time(now));
            let transitions = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(transitions.saturating_add(1));
            annotations.insert(TERM.to_owned(), note.to_text());
            set(annotations, PAYLOAD, request.payload);
        })
    }

    pub(crate) fn renewed(self, request: &RenewRequest<'_>) -> Lease {
        let now = self.later();
        self.with(|spec, annotations| {
            spec.lease_duration_seconds = Some(seconds(request.ttl));
            spec.renew_time = time(now);
            if let Some(payload) = request.payload {
                set(annotations, PAYLOAD, payload);
            }
            if let Some(memo) = request.memo {
                set(annotations, MEMO, memo);
            }
        })
    }

    pub(crate) fn released(self, memo: Option<&[u8]>) -> Lease {
        let now = self.later();
        self.with(|spec, annotations| {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(RELEASED_SECONDS);
            spec.renew_time = time(now);
            annotations.remove(PAYLOAD);
            if let Some(memo) = memo {
                set(annotations, MEMO, memo);
            }
        })
    }

    fn with(mut self, change: impl FnOnce(&mut LeaseSpec, &mut BTreeMap<String, String>)) -> Lease {
        let annotations = self.object.metadata.annotations.get_or_insert_default();
        change(self.object.spec.get_or_insert_default(), annotations);
        self.object
    }

    /// Now, or later than what stands there: a clock that is set back, or stands still, renews too.
    fn later(&self) -> Micros {
        let now = edge::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Micros::try_from(now.as_micros()).unwrap_or(Micros::MAX);
        now.max(self.acquired.max(self.renewed).saturating_add(1))
    }
}

// === impl Note ===

impl Note {
    fn parsed(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let fence = FencingToken::new(parts.next()?.parse().ok()?)?;
        let (acquired, holder) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
        Some(Self { fence, acquired, holder })
    }

    fn to_text(&self) -> String {
        format!("{} {} {}", self.fence, self.acquired, self.holder)
    }
}

fn set(annotations: &mut BTreeMap<String, String>, key: &str, bytes: &[u8]) {
    if bytes.is_empty() {
        annotations.remove(key);
    } else {
        annotations.insert(key.to_owned(), text::encoded(bytes));
    }
}

/// Whole ones, and none less than was asked for.
fn seconds(ttl: Duration) -> i32 {
    let whole = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() != 0));
    i32::try_from(whole).unwrap_or(i32::MAX).max(1)
}

fn time(micros: Micros) -> Option<MicroTime> {
    Timestamp::from_microsecond(micros).ok().map(MicroTime)
}
