//! Retention in Postgres.

use std::{collections::HashSet, sync::LazyLock, time::Duration};

use async_trait::async_trait;
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use super::{
    DEADLOCK_RETRIES_MAX, Parameter, PostgresStore,
    fault::is_conflict,
    parameters::{micros, time},
    signed, unsigned,
};
use crate::{
    domain::{retention::Term, time::Timestamp},
    store::{
        LOCK_WAIT, StoreError, Version,
        codes::state_from_code,
        columns::Columns,
        retention::{Filed, Kept, NextLook, Retention, Tombstone},
    },
};

/// The tables that hold more of a row, and the column of its id; nothing of them is left of a purged one. A
/// look-alike goes by itself, once its window is over.
const BELONGINGS: [(&str, &str); 5] = [
    ("events", "id"),
    ("open_intents", "id"),
    ("run_slots", "intent"),
    ("repeats", "id"),
    ("repeat_counts", "id"),
];

/// Those of them that a tombstone does without.
const BELONGINGS_OF_RESULTS: [(&str, &str); 1] = [("events", "id")];

/// `store.retention.claim`: a claim moves the time to its own end, so that what is claimed is not due. Whoever comes
/// second waits for the row and finds that it is no longer the one that was due.
const CLAIM: &str = "
    WITH clock AS (SELECT now() + $2::int8 * interval '1 microsecond' AS until),
    due AS (
        SELECT due_at, id FROM retention_batches WHERE due_at <= now() ORDER BY due_at, id LIMIT $1),
    claimed AS (
        UPDATE retention_batches b SET due_at = clock.until FROM due, clock
        WHERE b.due_at = due.due_at AND b.id = due.id
        RETURNING b.due_at, b.id, b.intents)
    SELECT now(), claimed.due_at, claimed.id, claimed.intents
    FROM (SELECT now()) one LEFT JOIN claimed ON true";

/// `store.retention.kept`: a result is measured, not read.
const KEPT: &str = "
    SELECT i.id, i.namespace, i.tool, i.version, i.state, i.settled_at,
           CASE WHEN i.pruned THEN coalesce(i.pruned_at, i.settled_at) END, i.needs_attention,
           coalesce(octet_length(i.result), 0)::int8
    FROM unnest($1::uuid[]) WITH ORDINALITY AS k(id, ordinal)
    LEFT JOIN intents i USING (id) ORDER BY k.ordinal";

/// `store.retention.file`: what an entry holds is filed anew by whoever takes the entry out.
const FILE: &str = "
    WITH c AS (SELECT * FROM unnest($1::timestamptz[], $2::uuid[]) AS c(due_at, id)),
    gone AS (
        DELETE FROM retention_batches b USING c WHERE b.due_at = c.due_at AND b.id = c.id
        RETURNING b.id)
    INSERT INTO retention_batches (due_at, id, intents)
    SELECT l.due_at, gen_random_uuid(), array_agg(l.intent)
    FROM unnest($3::int4[], $4::timestamptz[], $5::uuid[], $6::uuid[]) AS l(part, due_at, intent, claimed)
    JOIN gone ON gone.id = l.claimed
    GROUP BY l.part, l.due_at";

/// `store.retention.prune`. The rows are few and named by their keys.
static PRUNE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH clock AS (SELECT now() AS at),
    policy AS (SELECT version FROM active_policy),
    p AS (SELECT * FROM unnest($1::uuid[], $2::int4[], $3::int4[], $4::bytea[], $5::int8[], $6::text[])
        AS p(id, expected, version, result_sha256, result_size, details)),
    left_over AS (
        UPDATE intents i
        SET version = p.version, result = NULL, result_sha256 = p.result_sha256,
            result_size = p.result_size, details = p.details, pruned = true, pruned_at = clock.at
        FROM p, clock, policy
        WHERE i.id = p.id AND i.version = p.expected AND i.state IN (5, 6, 7) AND policy.version = $7
        RETURNING i.id){}
    SELECT id FROM left_over",
        without(&BELONGINGS_OF_RESULTS, "left_over")
    )
});

/// `store.retention.purge`: orphan facts are a tenant's own, and another's stay.
static PURGE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH policy AS (SELECT version FROM active_policy),
    p AS (SELECT * FROM unnest($1::uuid[], $2::int4[]) AS p(id, version)),
    purged AS (
        DELETE FROM intents i USING p, policy
        WHERE i.id = p.id AND i.version = p.version AND i.pruned AND policy.version = $3
        RETURNING i.id, i.namespace),
    orphans AS (
        DELETE FROM orphan_facts o USING purged
        WHERE o.id = purged.id AND o.namespace = purged.namespace){}
    SELECT id FROM purged",
        without(&BELONGINGS, "purged")
    )
});

/// What else goes with the rows of `gone`.
fn without(tables: &[(&str, &str)], gone: &str) -> String {
    let delete = |(table, column): &(&str, &str)| {
        format!(
            ",\n    of_{table} AS (DELETE FROM {table} b USING {gone} WHERE b.{column} = {gone}.id)"
        )
    };
    tables.iter().map(delete).collect()
}

#[async_trait]
impl Retention for PostgresStore {
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError> {
        let entries_max = i64::try_from(entries_max).unwrap_or(i64::MAX);
        let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 2] = [(&entries_max, Type::INT8), (&span, Type::INT8)];
        let rows = self.query_again(CLAIM, &parameters).await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get(0)));
        let filed = rows.iter().filter_map(|row| {
            let due_at = micros(row.get::<_, Option<_>>(1)?);
            Some(Filed { due_at, id: row.get(2), rows: row.get(3) })
        });
        Ok((now, filed.collect()))
    }

    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError> {
        let rows = self.query(KEPT, &[(&ids, Type::UUID_ARRAY)]).await?;
        rows.iter().map(kept).collect()
    }

    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError> {
        let mut columns: Vec<(&Tombstone, Columns<'_>)> =
            tombstones.iter().map(|left| (left, Columns::of(&left.intent, left.version))).collect();
        // In the order of their ids, so that nobody waits for another in turn.
        columns.sort_unstable_by_key(|(_, columns)| columns.id);
        let ids: Vec<Uuid> = columns.iter().map(|(_, it)| it.id).collect();
        let expected: Vec<i32> = columns.iter().map(|(it, _)| signed(it.expected)).collect();
        let versions: Vec<i32> = columns.iter().map(|(it, _)| signed(it.version)).collect();
        let hashes: Vec<Option<&[u8]>> =
            columns.iter().map(|(_, it)| it.result_sha256.as_ref().map(|hash| &hash[..])).collect();
        let sizes: Vec<Option<i64>> = columns.iter().map(|(_, it)| it.result_size).collect();
        let details: Vec<Option<&str>> =
            columns.iter().map(|(_, it)| it.details.as_deref()).collect();
        let policy = signed(policy);
        let parameters: [Parameter<'_>; 7] = [
            (&ids, Type::UUID_ARRAY),
            (&expected, Type::INT4_ARRAY),
            (&versions, Type::INT4_ARRAY),
            (&hashes, Type::BYTEA_ARRAY),
            (&sizes, Type::INT8_ARRAY),
            (&details, Type::TEXT_ARRAY),
            (&policy, Type::INT4),
        ];
        let rows = self.write_again(&PRUNE, &parameters).await?;
        Ok(told(&rows, tombstones.iter().map(|left| left.intent.id())))
    }

    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError> {
        let mut sorted = rows.to_vec();
        sorted.sort_unstable();
        let (ids, versions): (Vec<Uuid>, Vec<i32>) =
            sorted.iter().map(|(id, version)| (*id, signed(*version))).unzip();
        let policy = signed(policy);
        let parameters: [Parameter<'_>; 3] =
            [(&ids, Type::UUID_ARRAY), (&versions, Type::INT4_ARRAY), (&policy, Type::INT4)];
        let purged = self.write_again(&PURGE, &parameters).await?;
        Ok(told(&purged, rows.iter().map(|(id, _)| *id)))
    }

    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError> {
        let mut sorted: Vec<&Filed> = claimed.iter().collect();
        sorted.sort_unstable_by_key(|filed| (filed.due_at, filed.id));
        let due: Vec<_> = sorted.iter().map(|filed| time(filed.due_at)).collect();
        let ids: Vec<Uuid> = sorted.iter().map(|filed| filed.id).collect();
        let flat = || {
            looks.iter().zip(0_i32..).flat_map(|(look, part)| {
                look.rows.iter().map(move |(row, entry)| (part, look.due_at, *row, *entry))
            })
        };
        let parts: Vec<i32> = flat().map(|(part, ..)| part).collect();
        let times: Vec<_> = flat().map(|(_, due_at, ..)| time(due_at)).collect();
        let rows: Vec<Uuid> = flat().map(|(_, _, row, _)| row).collect();
        let entries: Vec<Uuid> = flat().map(|(.., entry)| entry).collect();
        let parameters: [Parameter<'_>; 6] = [
            (&due, Type::TIMESTAMPTZ_ARRAY),
            (&ids, Type::UUID_ARRAY),
            (&parts, Type::INT4_ARRAY),
            (&times, Type::TIMESTAMPTZ_ARRAY),
            (&rows, Type::UUID_ARRAY),
            (&entries, Type::UUID_ARRAY),
        ];
        self.write_again(FILE, &parameters).await?;
        Ok(())
    }
}

impl PostgresStore {
    /// As `write_one`, and again where a deadlock threw it out.
    async fn write_again(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut retries = 0;
        loop {
            match self.write_one(statement, parameters, &[], LOCK_WAIT).await {
                Err(StoreError::Unavailable(error))
                    if is_conflict(&error) && retries < DEADLOCK_RETRIES_MAX =>
                {
                    retries += 1;
                }
                other => return other,
            }
        }
    }
}

fn kept(row: &Row) -> Result<Option<Kept>, StoreError> {
    if row.get::<_, Option<Uuid>>(0).is_none() {
        return Ok(None);
    }
    Ok(Some(Kept {
        namespace: row.get(1),
        tool: row.get(2),
        version: unsigned(row.get(3)),
        term: Term {
            state: state_from_code(row.get(4))?,
            settled_at: row.get::<_, Option<_>>(5).map(micros),
            pruned_at: row.get::<_, Option<_>>(6).map(micros),
            needs_attention: row.get(7),
        },
        result_bytes: row.get::<_, i64>(8).unsigned_abs(),
    }))
}

/// Which of `ids` a statement has named.
fn told(rows: &[Row], ids: impl Iterator<Item = Uuid>) -> Vec<bool> {
    let done: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    ids.map(|id| done.contains(&id)).collect()
}
