//! The rows: what each call reads and writes, at an instant that is given.

use std::time::Duration;

use buttress_leadership::{FencingToken, Identity, LeaseName, LeaseRecord, StoreTime};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use crate::error::Why;

/// What acquires, renews and releases, owned, so that it can go to the store's thread.
#[derive(Debug)]
pub(crate) struct Acquire {
    pub(crate) name: LeaseName,
    pub(crate) identity: Identity,
    pub(crate) ttl: Duration,
    pub(crate) payload: Bytes,
    pub(crate) after: Option<FencingToken>,
}

#[derive(Debug)]
pub(crate) struct Renew {
    pub(crate) name: LeaseName,
    pub(crate) identity: Identity,
    pub(crate) fence: FencingToken,
    pub(crate) ttl: Duration,
    pub(crate) payload: Option<Bytes>,
    pub(crate) memo: Option<Bytes>,
}

#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) name: LeaseName,
    pub(crate) identity: Identity,
    pub(crate) fence: FencingToken,
    pub(crate) memo: Option<Bytes>,
}

/// When a call is done: nanoseconds since that start of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant<'a> {
    pub(crate) boot: &'a str,
    pub(crate) now: i64,
}

/// What a call makes of a row: the record that it answers with.
pub(crate) struct Done {
    pub(crate) is_done: bool,
    pub(crate) record: Option<LeaseRecord>,
}

struct Row {
    holder: Option<Identity>,
    fence: FencingToken,
    revision: i64,
    boot: String,
    acquired: i64,
    renewed: i64,
    expires: i64,
    payload: Vec<u8>,
    memo: Vec<u8>,
}

/// SQLite would take a text for a number: `STRICT` makes it refuse.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS buttress_leases (
    name TEXT NOT NULL PRIMARY KEY,
    holder TEXT,
    fence INTEGER NOT NULL CHECK (fence > 0),
    revision INTEGER NOT NULL,
    boot TEXT NOT NULL,
    acquired_ns INTEGER NOT NULL,
    renewed_ns INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL,
    payload BLOB NOT NULL,
    memo BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS buttress_leases_are_kept BEFORE DELETE ON buttress_leases BEGIN
    SELECT RAISE(ABORT, 'a lease is not deleted, as its token would come again: set its holder to NULL');
END;
";

/// Every column's name and type, in order.
const COLUMNS: &[(&str, &str)] = &[
    ("name", "TEXT"),
    ("holder", "TEXT"),
    ("fence", "INTEGER"),
    ("revision", "INTEGER"),
    ("boot", "TEXT"),
    ("acquired_ns", "INTEGER"),
    ("renewed_ns", "INTEGER"),
    ("expires_ns", "INTEGER"),
    ("payload", "BLOB"),
    ("memo", "BLOB"),
];

/// Makes the table, if there is none.
pub(crate) fn create(db: &Connection) -> Result<(), Why> {
    Ok(db.execute_batch(SCHEMA)?)
}

/// Refuses a table that is not ours, which would fail at a worse time.
pub(crate) fn check(db: &Connection) -> Result<(), Why> {
    let mut query =
        db.prepare("SELECT name, type, pk FROM pragma_table_info('buttress_leases')")?;
    let columns = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let columns: Vec<(String, String, i64)> = columns.collect::<Result<_, _>>()?;
    if columns.is_empty() {
        return Err("it has no table `buttress_leases`: open it once with `create`".into());
    }
    for (name, kind) in COLUMNS {
        let Some((_, has, pk)) = columns.iter().find(|(column, ..)| column == name) else {
            return Err(format!("the table `buttress_leases` has no column `{name}`").into());
        };
        if has != kind {
            let what = format!("the column `{name}` of `buttress_leases` is {has}, not {kind}");
            return Err(what.into());
        }
        if (*pk > 0) != (*name == "name") {
            return Err("the primary key of `buttress_leases` is not `name`".into());
        }
    }
    Ok(())
}

pub(crate) fn inspect(
    db: &Connection,
    name: &LeaseName,
    at: Instant<'_>,
) -> Result<Option<LeaseRecord>, Why> {
    Ok(Row::read(db, name)?.map(|row| row.record(name, at)))
}

pub(crate) fn acquire(db: &Connection, asked: &Acquire, at: Instant<'_>) -> Result<Done, Why> {
    let before = Row::read(db, &asked.name)?;
    if let Some(row) = before.as_ref().filter(|row| row.is_held(at)) {
        return Ok(Done { is_done: false, record: Some(row.record(&asked.name, at)) });
    }
    let last = before.as_ref().map(|row| row.fence).max(asked.after);
    let last = last.map_or(0, FencingToken::get);
    let row = Row {
        holder: Some(asked.identity.clone()),
        fence: token(last.checked_add(1))?,
        revision: before.as_ref().map_or(0, |row| row.revision).saturating_add(1),
        boot: at.boot.to_owned(),
        acquired: at.now,
        renewed: at.now,
        expires: after(at.now, asked.ttl),
        payload: asked.payload.to_vec(),
        memo: before.map(|row| row.memo).unwrap_or_default(),
    };
    row.write(db, &asked.name)?;
    Ok(Done { is_done: true, record: Some(row.record(&asked.name, at)) })
}

pub(crate) fn renew(db: &Connection, asked: Renew, at: Instant<'_>) -> Result<Done, Why> {
    let Some(mut row) = Row::read(db, &asked.name)? else {
        return Ok(Done { is_done: false, record: None });
    };
    let is_done = row.is_held(at) && row.is_of(&asked.identity, asked.fence);
    if is_done {
        (row.renewed, row.expires) = (at.now, after(at.now, asked.ttl));
        row.revision = row.revision.saturating_add(1);
        if let Some(payload) = asked.payload {
            row.payload = payload.to_vec();
        }
        if let Some(memo) = asked.memo {
            row.memo = memo.to_vec();
        }
        row.write(db, &asked.name)?;
    }
    Ok(Done { is_done, record: Some(row.record(&asked.name, at)) })
}

pub(crate) fn release(db: &Connection, asked: Release, at: Instant<'_>) -> Result<Done, Why> {
    let Some(mut row) = Row::read(db, &asked.name)? else {
        return Ok(Done { is_done: false, record: None });
    };
    if row.is_of(&asked.identity, asked.fence) {
        row.holder = None;
        row.payload = Vec::new();
        row.revision = row.revision.saturating_add(1);
        if let Some(memo) = asked.memo {
            row.memo = memo.to_vec();
        }
        row.write(db, &asked.name)?;
        return Ok(Done { is_done: true, record: None });
    }
    // It was given back before, and the answer was lost.
    let is_done = row.holder.is_none() && row.fence == asked.fence;
    Ok(Done { is_done, record: Some(row.record(&asked.name, at)) })
}

// === impl Row ===

impl Row {
    fn read(db: &Connection, name: &LeaseName) -> Result<Option<Self>, Why> {
        const SELECT: &str = "SELECT holder, fence, revision, boot, acquired_ns, renewed_ns, expires_ns, \
             payload, memo FROM buttress_leases WHERE name = ?1";
        let row = db.query_row(SELECT, [name.as_str()], |row| Ok(Self::of(row))).optional()?;
        row.transpose()
    }

    fn of(row: &SqlRow<'_>) -> Result<Self, Why> {
        let holder: Option<String> = row.get(0)?;
        let holder = holder.map(Identity::new).transpose();
        let fence: i64 = row.get(1)?;
        Ok(Self {
            holder: holder.map_err(|error| format!("a holder that is none: {error}"))?,
            fence: token(u64::try_from(fence).ok())?,
            revision: row.get(2)?,
            boot: row.get(3)?,
            acquired: row.get(4)?,
            renewed: row.get(5)?,
            expires: row.get(6)?,
            payload: row.get(7)?,
            memo: row.get(8)?,
        })
    }

    fn write(&self, db: &Connection, name: &LeaseName) -> Result<(), Why> {
        const WRITE: &str = "INSERT INTO buttress_leases \
             (name, holder, fence, revision, boot, acquired_ns, renewed_ns, expires_ns, payload, memo) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = excluded.fence, \
             revision = excluded.revision, boot = excluded.boot, acquired_ns = excluded.acquired_ns, \
             renewed_ns = excluded.renewed_ns, expires_ns = excluded.expires_ns, \
             payload = excluded.payload, memo = excluded.memo";
        db.execute(
            WRITE,
            params![
                name.as_str(),
                self.holder.as_ref().map(Identity::as_str),
                self.fence.get().cast_signed(),
                self.revision,
                self.boot,
                self.acquired,
                self.renewed,
                self.expires,
                self.payload,
                self.memo,
            ],
        )?;
        Ok(())
    }

    fn is_held(&self, at: Instant<'_>) -> bool {
        self.holder.is_some() && self.boot == at.boot && at.now < self.expires
    }

    fn is_of(&self, identity: &Identity, fence: FencingToken) -> bool {
        self.holder.as_ref() == Some(identity) && self.fence == fence
    }

    fn record(&self, name: &LeaseName, at: Instant<'_>) -> LeaseRecord {
        let time = |nanos: i64| StoreTime::from_nanos(u64::try_from(nanos).unwrap_or_default());
        let mut record = LeaseRecord::vacant(name.clone(), self.fence, time(at.now));
        record.holder.clone_from(&self.holder);
        record.payload = Bytes::copy_from_slice(&self.payload);
        record.memo = Bytes::copy_from_slice(&self.memo);
        record.revision = u64::try_from(self.revision).unwrap_or_default();
        record.granted_ttl = time(self.expires).since(time(self.renewed));
        // The times of an earlier start are of another clock: it was over when this one began.
        if self.boot == at.boot {
            record.acquired_at = time(self.acquired);
            record.renewed_at = time(self.renewed);
            if self.holder.is_some() {
                record.expires_at = time(self.expires);
            }
        }
        record
    }
}

/// SQLite's numbers have a sign, so that a token has 63 bits here: one a nanosecond for three centuries.
fn token(number: Option<u64>) -> Result<FencingToken, Why> {
    let number = number.filter(|&number| i64::try_from(number).is_ok()).and_then(FencingToken::new);
    number.ok_or_else(|| "a token that is none, or the last one".into())
}

fn after(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX))
}
