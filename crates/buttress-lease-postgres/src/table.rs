//! The rows, and the statements that read and write them.

use std::{num::NonZero, time::Duration};

use buttress_leadership::{
    AcquireRequest, BootTime, FencingToken, Identity, LeaseName, LeaseRecord, Observation,
    ReleaseRequest, RenewRequest, StoreTime,
};
use tokio_postgres::{
    Row as SqlRow,
    types::{FromSql, Type},
};

use crate::{
    error::{Failure, Why},
    line::Line,
};

/// What is kept of a lease, as it was read or written.
pub(crate) struct Row {
    pub(crate) holder: Option<Identity>,
    pub(crate) fence: FencingToken,
    pub(crate) revision: i64,
    pub(crate) ttl: Duration,
    acquired: Micros,
    renewed: Micros,
    expires: Micros,
    now: Micros,
    payload: Vec<u8>,
    memo: Vec<u8>,
}

/// Since 1970, by the server's clock.
type Micros = i64;

/// A time that the server may take, more than none: that would be no limit to it.
pub(crate) type Millis = NonZero<u32>;

/// For this connection, whatever the role's settings are: what is answered is on the disk, and two that take
/// the same lease wait for each other instead of failing.
pub(crate) fn session(timeout: Millis) -> String {
    format!(
        "{};
        SET default_transaction_isolation = 'read committed';
        SELECT set_config('synchronous_commit', 'on', false)
            WHERE current_setting('synchronous_commit') = 'off';",
        time_out(timeout)
    )
}

/// For this connection, from now on.
pub(crate) fn time_out(timeout: Millis) -> String {
    format!("SET statement_timeout = {timeout}")
}

/// The lock keeps two from making it at the same time, of whom one would fail.
pub(crate) const CREATE: &str = "
DO $do$ BEGIN
PERFORM pg_advisory_xact_lock(hashtext('buttress_leases'));
IF to_regclass('buttress_leases') IS NULL THEN
    CREATE TABLE buttress_leases (
        name text PRIMARY KEY,
        holder text,
        fence bigint NOT NULL CHECK (fence > 0),
        revision bigint NOT NULL,
        ttl_ms bigint NOT NULL,
        acquired_at timestamptz NOT NULL,
        renewed_at timestamptz NOT NULL,
        expires_at timestamptz NOT NULL,
        payload bytea NOT NULL,
        memo bytea NOT NULL
    );
    CREATE OR REPLACE FUNCTION buttress_leases_are_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'a lease is not deleted, as its token would come again: set its holder to NULL';
    END $$;
    CREATE TRIGGER buttress_leases_are_kept BEFORE DELETE OR TRUNCATE ON buttress_leases
        EXECUTE PROCEDURE buttress_leases_are_kept();
END IF;
END $do$;
";

/// Every column's name and type.
const COLUMNS: &[(&str, &str)] = &[
    ("name", "text"),
    ("holder", "text"),
    ("fence", "bigint"),
    ("revision", "bigint"),
    ("ttl_ms", "bigint"),
    ("acquired_at", "timestamp with time zone"),
    ("renewed_at", "timestamp with time zone"),
    ("expires_at", "timestamp with time zone"),
    ("payload", "bytea"),
    ("memo", "bytea"),
];

/// What is read of a row, at the time `$now` of that very statement.
macro_rules! read {
    ($before:literal, $now:literal, $after:literal) => {
        concat!(
            $before,
            " l.holder, l.fence, l.revision, l.ttl_ms,
            (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
            (extract(epoch FROM l.renewed_at) * 1000000)::bigint,
            (extract(epoch FROM l.expires_at) * 1000000)::bigint,
            (extract(epoch FROM ",
            $now,
            ") * 1000000)::bigint, l.payload, l.memo ",
            $after
        )
    };
}

const INSPECT: &str =
    read!("SELECT", "clock_timestamp()", "FROM buttress_leases AS l WHERE l.name = $1");

/// By the server's clock without `$5` and `$6`; with them just what was seen is taken. So the revision begins anywhere:
/// a row that is made anew, after all was lost, is not taken for the one that was there. `$7` is the greatest token
/// that the candidate has seen.
const ACQUIRE: &str = read!(
    "INSERT INTO buttress_leases AS l
        (name, holder, fence, revision, ttl_ms, acquired_at, renewed_at, expires_at, payload, memo)
    SELECT $1, $2, coalesce($7, 0) + 1, (random() * 2 ^ 52)::bigint, $3, at, at, at + $3 * interval '1 ms', $4, ''
    FROM (SELECT clock_timestamp() AS at) AS now
    ON CONFLICT (name) DO UPDATE SET
        holder = excluded.holder, fence = greatest(l.fence, $7) + 1, revision = l.revision + 1,
        ttl_ms = excluded.ttl_ms, acquired_at = excluded.acquired_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at, payload = excluded.payload
    WHERE l.holder IS NULL OR CASE
        WHEN $5 IS NULL THEN l.expires_at <= excluded.acquired_at
        ELSE l.fence = $5 AND l.revision = $6 END
    RETURNING",
    "l.renewed_at",
    ""
);

/// Whatever the time is, if `$7` says so.
const RENEW: &str = read!(
    "UPDATE buttress_leases AS l SET
        revision = l.revision + 1, ttl_ms = $4, renewed_at = at, expires_at = at + $4 * interval '1 ms',
        payload = coalesce($5, l.payload), memo = coalesce($6, l.memo)
    FROM (SELECT clock_timestamp() AS at) AS now
    WHERE l.name = $1 AND l.holder = $2 AND l.fence = $3 AND ($7 OR l.expires_at > at)
    RETURNING",
    "l.renewed_at",
    ""
);

const RELEASE: &str = "
WITH released AS (
    UPDATE buttress_leases SET
        holder = NULL, revision = revision + 1, payload = '', memo = coalesce($4, memo)
    WHERE name = $1 AND holder = $2 AND fence = $3
    RETURNING name
)
SELECT pg_notify('buttress_leases', name)::text FROM released";

/// The table as the server has it. One row for each column.
const DESCRIBE: &str = "
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod),
    EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary
        AND i.indnatts = 1 AND i.indkey[0] = a.attnum),
    c.relkind = 'r' AND c.relpersistence = 'p',
    has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE'),
    current_setting('server_encoding')
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = to_regclass('buttress_leases')";

/// A century: what is longer overflows timestamps sooner or later.
const LONGEST_MS: i64 = 100 * 366 * 86_400_000;

// === Statements ===

/// Refuses a table that is not ours, which would fail at a worse time.
pub(crate) async fn check(line: &mut Line<'_>) -> Result<(), Failure> {
    let columns = line.query(DESCRIBE, &[]).await?;
    let Some(first) = columns.first() else {
        return Err("there is no table `buttress_leases`: open it once with `create_table`".into());
    };
    let encoding: &str = cell(first, 5)?;
    if encoding != "UTF8" {
        return Err(format!("the database is encoded in {encoding}, and names are in UTF8").into());
    }
    if !cell(first, 3)? {
        return Err("`buttress_leases` is a view, or a table that does not outlive a crash".into());
    }
    if !cell(first, 4)? {
        return Err("there is no right to SELECT, INSERT and UPDATE `buttress_leases`".into());
    }
    for (name, kind) in COLUMNS {
        let is_it = |column: &&SqlRow| cell(column, 0).is_ok_and(|is: &str| is == *name);
        let Some(column) = columns.iter().find(is_it) else {
            return Err(format!("the table `buttress_leases` has no column `{name}`").into());
        };
        let has: &str = cell(column, 1)?;
        if has != *kind {
            let what = format!("the column `{name}` of `buttress_leases` is {has}, not {kind}");
            return Err(what.into());
        }
        if cell::<bool>(column, 2)? != (*name == "name") {
            return Err("the primary key of `buttress_leases` is not `name`".into());
        }
    }
    Ok(())
}

pub(crate) async fn inspect(line: &mut Line<'_>, name: &LeaseName) -> Result<Option<Row>, Failure> {
    let rows = line.query(INSPECT, &[(&name.as_str(), Type::TEXT)]).await;
    // It was a question only.
    first(&rows.map_err(Failure::without_effect)?)
}

/// Takes what nobody holds, and what is over: by the server's clock, or if it is still in the state
/// `observed`, fence and revision.
pub(crate) async fn acquire(
    line: &mut Line<'_>,
    request: &AcquireRequest<'_>,
    observed: Option<(i64, i64)>,
) -> Result<Option<Row>, Failure> {
    let rows = line
        .query(
            ACQUIRE,
            &[
                (&request.name.as_str(), Type::TEXT),
                (&request.identity.as_str(), Type::TEXT),
                (&millis(request.ttl), Type::INT8),
                (&&request.payload[..], Type::BYTEA),
                (&observed.map(|(fence, _)| fence), Type::INT8),
                (&observed.map(|(_, revision)| revision), Type::INT8),
                (&request.after.map(number).transpose()?, Type::INT8),
            ],
        )
        .await?;
    first(&rows).map_err(Failure::after_effect)
}

/// `even_late`: whatever the server's clock says.
pub(crate) async fn renew(
    line: &mut Line<'_>,
    request: &RenewRequest<'_>,
    even_late: bool,
) -> Result<Option<Row>, Failure> {
    let rows = line
        .query(
            RENEW,
            &[
                (&request.name.as_str(), Type::TEXT),
                (&request.identity.as_str(), Type::TEXT),
                (&number(request.fence)?, Type::INT8),
                (&millis(request.ttl), Type::INT8),
                (&request.payload.map(|payload| &payload[..]), Type::BYTEA),
                (&request.memo.map(|memo| &memo[..]), Type::BYTEA),
                (&even_late, Type::BOOL),
            ],
        )
        .await?;
    first(&rows).map_err(Failure::after_effect)
}

/// Whether it was there to be given back.
pub(crate) async fn release(
    line: &mut Line<'_>,
    request: &ReleaseRequest<'_>,
) -> Result<bool, Failure> {
    let rows = line
        .query(
            RELEASE,
            &[
                (&request.name.as_str(), Type::TEXT),
                (&request.identity.as_str(), Type::TEXT),
                (&number(request.fence)?, Type::INT8),
                (&request.memo.map(|memo| &memo[..]), Type::BYTEA),
            ],
        )
        .await?;
    Ok(!rows.is_empty())
}

// === impl Row ===

impl Row {
    fn of(row: &SqlRow) -> Result<Self, Why> {
        let holder = cell::<Option<&str>>(row, 0)?.map(Identity::new).transpose();
        let fence = cell::<i64>(row, 1)?;
        let fence = u64::try_from(fence).ok().and_then(FencingToken::new);
        let ttl: i64 = cell(row, 3)?;
        Ok(Self {
            holder: holder.map_err(|error| format!("a holder that is none: {error}"))?,
            fence: fence.ok_or("a token that is none")?,
            revision: cell(row, 2)?,
            ttl: Duration::from_millis(u64::try_from(ttl).unwrap_or_default()),
            acquired: cell(row, 4)?,
            renewed: cell(row, 5)?,
            expires: cell(row, 6)?,
            now: cell(row, 7)?,
            payload: cell(row, 8)?,
            memo: cell(row, 9)?,
        })
    }

    /// Whether it was over when it was read, by the server's clock.
    pub(crate) fn is_over(&self) -> bool {
        self.holder.is_none() || self.expires <= self.now
    }

    /// Whether it was over, by the clock of who has seen that nothing has changed.
    pub(crate) fn is_over_for(&self, seen: Observation) -> bool {
        self.holder.is_none() || self.ttl <= seen.now.since(seen.since)
    }

    /// With the server's times, or those of who observes.
    pub(crate) fn record(self, name: &LeaseName, seen: Option<Observation>) -> LeaseRecord {
        let server = |micros: Micros| {
            StoreTime::from_nanos(u64::try_from(micros).unwrap_or_default().saturating_mul(1000))
        };
        let ours = |time: BootTime| StoreTime::from_nanos(time.as_nanos());
        let now = seen.map_or(server(self.now), |seen| ours(seen.now));
        let mut record = LeaseRecord::vacant(name.clone(), self.fence, now);
        record.acquired_at = seen.map_or(server(self.acquired), |seen| ours(seen.term_since));
        record.renewed_at = seen.map_or(server(self.renewed), |seen| ours(seen.since));
        if self.holder.is_some() {
            record.expires_at =
                seen.map_or(server(self.expires), |seen| ours(seen.since + self.ttl));
        }
        record.holder = self.holder;
        record.granted_ttl = self.ttl;
        record.payload = self.payload.into();
        record.memo = self.memo.into();
        record.revision = u64::try_from(self.revision).unwrap_or_default();
        record
    }
}

fn first(rows: &[SqlRow]) -> Result<Option<Row>, Failure> {
    Ok(rows.first().map(Row::of).transpose()?)
}

fn cell<'a, T: FromSql<'a>>(row: &'a SqlRow, nth: usize) -> Result<T, Why> {
    Ok(row.try_get(nth)?)
}

/// PostgreSQL's numbers have a sign, so that a token has 63 bits here.
fn number(fence: FencingToken) -> Result<i64, Why> {
    i64::try_from(fence.get()).map_err(|_| "a token that is none of ours".into())
}

fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).min(LONGEST_MS)
}
