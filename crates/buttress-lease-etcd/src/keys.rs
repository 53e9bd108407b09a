//! The keys, and the transactions that read and write them. Each is one step on the server, and none reads what is
//! old.

use buttress_leadership::{
    AcquireRequest, FencingToken, Identity, LeaseName, LeaseRecord, ReleaseRequest, RenewRequest,
    StoreTime,
};
use etcd_client::{
    Compare, CompareOp, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::{
    error::{Failure, Why},
    line::Line,
    times::Times,
};

/// Where the parts of a lease are.
pub(crate) struct Keys {
    /// There while it is held: who does, and what it says of itself. The revision that it was made at is the token.
    pub(crate) lease: String,
    /// Written together with the former, and stays: so that the last token is known.
    fence: String,
    /// What holders leave.
    memo: String,
}

/// What is kept of a lease, as it was at one instant.
pub(crate) struct Row {
    pub(crate) fence: FencingToken,
    pub(crate) held: Option<Held>,
    memo: Part,
    /// Of the latest write.
    revision: i64,
}

/// What there is while it is somebody's.
pub(crate) struct Held {
    pub(crate) holder: Identity,
    /// The lease of etcd that the key goes with.
    pub(crate) lease: i64,
    payload: Vec<u8>,
    modified: i64,
}

/// One key's value, and the revision of its latest write: zero if there is none.
#[derive(Default)]
struct Part {
    value: Vec<u8>,
    modified: i64,
}

/// How it is now, and the term of the cluster's leader that vouches for it. There is no row if nobody ever had the
/// lease.
pub(crate) struct Seen {
    pub(crate) row: Option<Row>,
    pub(crate) raft_term: u64,
}

// === Keys ===

impl Keys {
    pub(crate) fn of(prefix: &str, name: &LeaseName) -> Self {
        let key = |what: &str| format!("{prefix}{what}/{name}");
        Self { lease: key("lease"), fence: key("fence"), memo: key("memo") }
    }

    fn reads(&self) -> [TxnOp; 3] {
        [&self.lease, &self.fence, &self.memo].map(|key| TxnOp::get(key.as_str(), None))
    }
}

// === Transactions ===

pub(crate) async fn look(line: &mut Line<'_>, keys: &Keys) -> Result<Seen, Failure> {
    let done = line.txn(Txn::new().and_then(keys.reads())).await;
    // It was a question only.
    Ok(Seen::of(keys, &done.map_err(Failure::without_effect)?)?)
}

/// Takes what nobody holds, with a lease of etcd. Says whether it was done.
pub(crate) async fn take(
    line: &mut Line<'_>,
    keys: &Keys,
    request: &AcquireRequest<'_>,
    lease: i64,
) -> Result<(bool, Seen), Failure> {
    let with_lease = PutOptions::new().with_lease(lease);
    let value = value(request.identity, request.payload);
    let mut writes = vec![
        TxnOp::put(keys.lease.as_str(), value, Some(with_lease)),
        TxnOp::put(keys.fence.as_str(), "", None),
    ];
    writes.extend(keys.reads());
    let nobody = Compare::create_revision(keys.lease.as_str(), CompareOp::Equal, 0);
    let txn = Txn::new().when([nobody]).and_then(writes).or_else(keys.reads());
    let done = line.txn(txn).await?;
    let seen = Seen::of(keys, &done).map_err(Failure::from).map_err(Failure::after_effect)?;
    Ok((done.succeeded(), seen))
}

/// Changes what is to be changed of what was seen, if it still is so. Says whether it was done.
pub(crate) async fn change(
    line: &mut Line<'_>,
    keys: &Keys,
    request: &RenewRequest<'_>,
    before: &Row,
) -> Result<(bool, Seen), Failure> {
    let is_at = |key: &str, revision| Compare::mod_revision(key, CompareOp::Equal, revision);
    let modified = before.held.as_ref().map_or(0, |held| held.modified);
    let mut same = vec![is_of(keys, before.fence)?, is_at(&keys.lease, modified)];
    let mut writes = Vec::new();
    if let Some(payload) = request.payload {
        let with_same_lease = PutOptions::new().with_ignore_lease();
        let value = value(request.identity, payload);
        writes.push(TxnOp::put(keys.lease.as_str(), value, Some(with_same_lease)));
    }
    if let Some(memo) = request.memo {
        // What an earlier call sent comes later, if at all, and is older.
        same.push(is_at(&keys.memo, before.memo.modified));
        writes.push(TxnOp::put(keys.memo.as_str(), &memo[..], None));
    }
    writes.extend(keys.reads());
    let txn = Txn::new().when(same).and_then(writes).or_else(keys.reads());
    let done = line.txn(txn).await?;
    Ok((done.succeeded(), Seen::of(keys, &done)?))
}

/// Gives back what is of that token. Says whether it was done.
pub(crate) async fn free(
    line: &mut Line<'_>,
    keys: &Keys,
    request: &ReleaseRequest<'_>,
) -> Result<(bool, Seen), Failure> {
    let mut writes = vec![TxnOp::delete(keys.lease.as_str(), None)];
    if let Some(memo) = request.memo {
        writes.push(TxnOp::put(keys.memo.as_str(), &memo[..], None));
    }
    writes.extend(keys.reads());
    let of_this_term = is_of(keys, request.fence)?;
    let txn = Txn::new().when([of_this_term]).and_then(writes).or_else(keys.reads());
    let done = line.txn(txn).await?;
    let seen = Seen::of(keys, &done).map_err(Failure::from).map_err(Failure::after_effect)?;
    Ok((done.succeeded(), seen))
}

fn is_of(keys: &Keys, fence: FencingToken) -> Result<Compare, Why> {
    let fence = i64::try_from(fence.get()).map_err(|_| "a token that is none of ours")?;
    Ok(Compare::create_revision(keys.lease.as_str(), CompareOp::Equal, fence))
}

/// Who holds it, a line, and then what it says of itself. Identities have no ends of lines in them.
fn value(holder: &Identity, payload: &[u8]) -> Vec<u8> {
    [holder.as_str().as_bytes(), b"\n", payload].concat()
}

// === impl Seen, Row ===

impl Seen {
    fn of(keys: &Keys, done: &TxnResponse) -> Result<Self, Why> {
        let garbage = || Why::from("what it answers is no lease");
        let gets = done.op_responses().into_iter().filter_map(|of| match of {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        });
        let [lease, fence, memo] =
            <[GetResponse; 3]>::try_from(gets.collect::<Vec<_>>()).map_err(|_| garbage())?;
        let raft_term = done.header().ok_or_else(garbage)?.raft_term();
        let row = Row::of(keys, lease.kvs().first(), fence.kvs().first(), memo.kvs().first())?;
        Ok(Self { row, raft_term })
    }
}

impl Row {
    fn of(
        keys: &Keys,
        lease: Option<&KeyValue>,
        fence: Option<&KeyValue>,
        memo: Option<&KeyValue>,
    ) -> Result<Option<Self>, Why> {
        let all = [lease, fence, memo];
        let Some(revision) = all.iter().flatten().map(|of| of.mod_revision()).max() else {
            return Ok(None);
        };
        // Without both of the others the last token is not known. It was not greater than the memo's revision.
        let token = lease.map(KeyValue::create_revision);
        let token = token.or(fence.map(KeyValue::mod_revision)).unwrap_or(revision);
        let fence = u64::try_from(token).ok().and_then(FencingToken::new);
        Ok(Some(Self {
            fence: fence.ok_or("a token that is none")?,
            held: lease.map(|of| Held::of(keys, of)).transpose()?,
            memo: memo.map_or_else(Part::default, Part::of),
            revision,
        }))
    }

    /// If that is its holder, by that token: what it holds.
    pub(crate) fn held_by(&self, who: &Identity, fence: FencingToken) -> Option<&Held> {
        self.held.as_ref().filter(|held| held.holder == *who && self.fence == fence)
    }

    /// With times of the process that has seen it: none if it is over.
    pub(crate) fn record(
        self,
        name: &LeaseName,
        now: StoreTime,
        times: Option<Times>,
    ) -> LeaseRecord {
        let mut record = LeaseRecord::vacant(name.clone(), self.fence, now);
        record.revision = self.revision.cast_unsigned();
        record.memo = self.memo.value.into();
        if let (Some(held), Some(times)) = (self.held, times) {
            record.acquired_at = times.began;
            record.renewed_at = times.renewed;
            record.expires_at = times.ends;
            record.granted_ttl = times.granted;
            record.payload = held.payload.into();
            record.holder = Some(held.holder);
        }
        record
    }
}

impl Held {
    fn of(keys: &Keys, of: &KeyValue) -> Result<Self, Why> {
        let wrong = |what: &str| Why::from(format!("the key `{}` {what}", keys.lease));
        if of.lease() == 0 {
            return Err(wrong("is bound to no lease of etcd, and so would never end"));
        }
        let end = of.value().iter().position(|byte| *byte == b'\n');
        let (holder, payload) =
            end.map_or((of.value(), &[][..]), |end| (&of.value()[..end], &of.value()[end + 1..]));
        let holder = std::str::from_utf8(holder).ok().and_then(|text| Identity::new(text).ok());
        Ok(Self {
            holder: holder.filter(|_| end.is_some()).ok_or_else(|| wrong("names no holder"))?,
            lease: of.lease(),
            payload: payload.to_vec(),
            modified: of.mod_revision(),
        })
    }
}

impl Part {
    fn of(of: &KeyValue) -> Self {
        Self { value: of.value().to_vec(), modified: of.mod_revision() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_key_is_two_leases_whatever_they_are_called() {
        let names = ["a", "lease/a", "fence/a", "memo/a", "/a", "a/", "a/lease", "lease/lease/a"];
        let prefixes = ["", "buttress/", "lease/"];
        let mut all = HashSet::new();
        for prefix in prefixes {
            all.clear();
            for name in names {
                let keys = Keys::of(prefix, &LeaseName::new(name).unwrap());
                all.extend([keys.lease, keys.fence, keys.memo]);
            }
            assert_eq!(all.len(), 3 * names.len(), "{prefix}");
        }
    }
}
