//! The keys, and the scripts that read and write them. Each is one step on the server.

use std::time::Duration;

use buttress_leadership::{
    AcquireRequest, BootTime, FencingToken, Identity, LeaseName, LeaseRecord, Observation,
    ReleaseRequest, RenewRequest, StoreTime,
};
use redis::{Cmd, ToRedisArgs};

use crate::{
    error::{Failure, Why},
    line::Line,
};

/// What is kept of a lease, as it was read or written.
pub(crate) struct Row {
    pub(crate) fence: FencingToken,
    pub(crate) revision: u64,
    pub(crate) held: Option<Held>,
    now: Micros,
    memo: Vec<u8>,
}

/// What there is while it is somebody's.
pub(crate) struct Held {
    holder: Identity,
    ttl: Duration,
    acquired: Micros,
    renewed: Micros,
    expires: Micros,
    payload: Vec<u8>,
}

/// Since 1970, by the server's clock.
type Micros = u64;

/// Whether it was done, and how it is now. There is no row if nobody ever had the lease.
type Done = (bool, Option<Row>);

macro_rules! script {
    ($file:literal) => {
        concat!(include_str!("lua/read.lua"), include_str!($file))
    };
}

const INSPECT: &str = script!("lua/inspect.lua");
const ACQUIRE: &str = script!("lua/acquire.lua");
const RENEW: &str = script!("lua/renew.lua");
const RELEASE: &str = script!("lua/release.lua");

/// A century: what is longer has no end that Redis can count to, sooner or later.
const LONGEST_MS: u64 = 100 * 366 * 86_400_000;

// === Keys ===

/// The part in braces decides on which server of a cluster a key is: it is the same for both, whatever the name.
fn key(name: &LeaseName, what: &str) -> String {
    let name = name.as_str().replace('%', "%25").replace('}', "%7D");
    format!("buttress:{{{name}}}:{what}")
}

pub(crate) fn channel(name: &LeaseName) -> String {
    key(name, "released")
}

// === Scripts ===

pub(crate) async fn inspect(line: &mut Line<'_>, name: &LeaseName) -> Result<Option<Row>, Failure> {
    let done = run(line, &script(INSPECT, name)).await;
    // It was a question only.
    Ok(done.map_err(Failure::without_effect)?.1)
}

/// Takes what nobody holds, and what is over: by the server's clock, or if it is still in the state `observed`,
/// fence and revision.
pub(crate) async fn acquire(
    line: &mut Line<'_>,
    request: &AcquireRequest<'_>,
    observed: Option<(u64, u64)>,
) -> Result<Done, Failure> {
    let mut script = script(ACQUIRE, request.name);
    script.arg(request.identity.as_str()).arg(millis(request.ttl)).arg(&request.payload[..]);
    match observed {
        Some((fence, revision)) => script.arg(fence).arg(revision),
        None => script.arg("").arg(""),
    };
    script.arg(request.after.map_or(0, FencingToken::get));
    run(line, &script).await
}

/// `even_late`: whatever the server's clock says.
pub(crate) async fn renew(
    line: &mut Line<'_>,
    request: &RenewRequest<'_>,
    even_late: bool,
) -> Result<Done, Failure> {
    let mut script = script(RENEW, request.name);
    script.arg(request.identity.as_str()).arg(request.fence.get()).arg(millis(request.ttl));
    script.arg(u8::from(even_late));
    may_be(&mut script, request.payload.map(|payload| &payload[..]));
    may_be(&mut script, request.memo.map(|memo| &memo[..]));
    run(line, &script).await
}

pub(crate) async fn release(
    line: &mut Line<'_>,
    request: &ReleaseRequest<'_>,
) -> Result<Done, Failure> {
    let mut script = script(RELEASE, request.name);
    script.arg(request.identity.as_str()).arg(request.fence.get()).arg(channel(request.name));
    may_be(&mut script, request.memo.map(|memo| &memo[..]));
    run(line, &script).await
}

/// The whole text each time: a server that was started anew knows none by its digest, and a second attempt would
/// be one of which the elector knows nothing.
fn script(text: &str, name: &LeaseName) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(2).arg(key(name, "lease")).arg(key(name, "fence"));
    command
}

fn may_be(script: &mut Cmd, what: Option<impl ToRedisArgs>) {
    script.arg(u8::from(what.is_some()));
    match what {
        Some(what) => script.arg(what),
        None => script.arg(""),
    };
}

async fn run(line: &mut Line<'_>, script: &Cmd) -> Result<Done, Failure> {
    let cells = line.query(script).await?;
    Ok(Row::of(cells)?)
}

// === impl Row ===

impl Row {
    fn of(cells: Vec<Option<Vec<u8>>>) -> Result<(bool, Option<Self>), Why> {
        let garbage = || Why::from("what it answers is no lease");
        let cells = <[_; 11]>::try_from(cells).map_err(|_| garbage())?;
        let [done, now, fence, revision, memo, holder, ttl, acquired, renewed, expires, payload] =
            cells;
        let text = |cell: Option<Vec<u8>>| {
            cell.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(garbage)
        };
        let number = |cell| text(cell)?.parse::<u64>().map_err(|_| garbage());
        let is_done = number(done)? == 1;
        if fence.is_none() {
            return Ok((is_done, None));
        }
        let held = match holder {
            None => None,
            holder => Some(Held {
                holder: Identity::new(text(holder)?)
                    .map_err(|error| format!("a holder that is none: {error}"))?,
                ttl: Duration::from_millis(number(ttl)?),
                acquired: number(acquired)?,
                renewed: number(renewed)?,
                expires: number(expires)?,
                payload: payload.unwrap_or_default(),
            }),
        };
        let row = Self {
            fence: FencingToken::new(number(fence)?).ok_or("a token that is none")?,
            revision: number(revision)?,
            held,
            now: number(now)?,
            memo: memo.unwrap_or_default(),
        };
        Ok((is_done, Some(row)))
    }

    /// Whether it was over: by the server's clock when it was read, or by that of who has seen that nothing has
    /// changed.
    pub(crate) fn is_over(&self, seen: Option<Observation>) -> bool {
        self.held.as_ref().is_none_or(|held| match seen {
            Some(seen) => held.ttl <= seen.now.since(seen.since),
            None => held.expires <= self.now,
        })
    }

    /// With the server's times, or those of who observes.
    pub(crate) fn record(self, name: &LeaseName, seen: Option<Observation>) -> LeaseRecord {
        let server = |micros: Micros| StoreTime::from_nanos(micros.saturating_mul(1000));
        let ours = |time: BootTime| StoreTime::from_nanos(time.as_nanos());
        let now = seen.map_or(server(self.now), |seen| ours(seen.now));
        let mut record = LeaseRecord::vacant(name.clone(), self.fence, now);
        record.revision = self.revision;
        record.memo = self.memo.into();
        if let Some(held) = self.held {
            record.acquired_at = seen.map_or(server(held.acquired), |seen| ours(seen.term_since));
            record.renewed_at = seen.map_or(server(held.renewed), |seen| ours(seen.since));
            record.expires_at =
                seen.map_or(server(held.expires), |seen| ours(seen.since + held.ttl));
            record.granted_ttl = held.ttl;
            record.payload = held.payload.into();
            record.holder = Some(held.holder);
        }
        record
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).min(LONGEST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the specification of Redis Cluster has it: CRC-16/XMODEM of what is between the first brace and the next
    /// closing one, if that is anything, else of the whole.
    fn slot(key: &str) -> u16 {
        let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let hashed = inner.map(|(inner, _)| inner).filter(|inner| !inner.is_empty());
        let crc = hashed.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            })
        });
        crc % 16_384
    }

    #[test]
    fn both_keys_of_a_lease_are_on_one_server_and_those_of_two_leases_are_two() {
        assert_eq!(slot("123456789"), 0x31C3, "the example of the specification");
        let names = ["a", "}", "}a", "{}", "{a}", "{", "%", "%7D", "a}{b", "billing/nightly"];
        let keys = names.map(|name| {
            let name = LeaseName::new(name).unwrap();
            let [lease, fence] = [key(&name, "lease"), key(&name, "fence")];
            assert!(slot(&lease) == slot(&fence) && lease != fence, "{lease}");
            lease
        });
        let all: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(all.len(), names.len());
    }
}
