//! The agenda in Postgres.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use super::{
    PostgresStore,
    fault::is_conflict,
    parameters::{micros, time},
    signed, unsigned,
};
use crate::{
    domain::time::Timestamp,
    store::{
        StoreError,
        agenda::{Agenda, Entry, Release, ToolKey, WAITING_MAX},
    },
};

/// How often a statement that met others' is tried again.
const TRIES_MAX: usize = 5;

/// `store.agenda.gather`: an entry that is there has its own time already. In the order of their ids, so
/// that two that gather the same do not wait for each other in turn. Whoever takes a batch out files its intents in the
/// calendar of retention, those of many small batches together.
const GATHER: &str = "
    WITH batch AS (
        SELECT due_at, id, intents FROM granted_batches WHERE due_at <= now() ORDER BY due_at, id LIMIT $1),
    open AS (
        SELECT i.id, i.namespace, i.tool, coalesce(i.lease_expires_at, i.created_at) AS due_at
        FROM batch, unnest(batch.intents) AS b(id) JOIN intents i ON i.id = b.id
        WHERE i.state IN (3, 4) AND NOT i.needs_attention),
    put AS (
        INSERT INTO open_intents (id, namespace, tool, due_at)
        SELECT id, namespace, tool, due_at FROM open ORDER BY id
        ON CONFLICT (id) DO NOTHING),
    gone AS (
        DELETE FROM granted_batches g USING batch
        WHERE g.due_at = batch.due_at AND g.id = batch.id
        RETURNING g.due_at, g.intents),
    filed AS (
        INSERT INTO retention_batches (due_at, id, intents)
        SELECT min(due_at) + $2::int8 * interval '1 microsecond', gen_random_uuid(), array_agg(id)
        FROM (SELECT b.id, gone.due_at, (row_number() OVER (ORDER BY gone.due_at) - 1) / 256 AS part
              FROM gone, unnest(gone.intents) AS b(id)) numbered
        GROUP BY part)
    SELECT count(*) FROM batch";

/// `store.agenda.due_tools`.
const DUE_TOOLS: &str = "
    SELECT DISTINCT namespace, tool FROM open_intents
    WHERE due_at <= now() AND NOT proposal AND ($1::text IS NULL OR namespace = $1)";

/// `store.agenda.due`: a claim moves the time to its own end, so that what is claimed is not due.
const DUE: &str = "
    SELECT now(), id, namespace, tool, due_at, probes, asked_at, claimed_until, version
    FROM open_intents WHERE namespace = $1 AND tool = $2 AND due_at <= now() AND NOT proposal
    ORDER BY due_at LIMIT $3";

/// `store.agenda.due_proposals`.
const DUE_PROPOSALS: &str = "
    SELECT now(), id, namespace, tool, due_at, probes, asked_at, claimed_until, version
    FROM open_intents WHERE proposal AND due_at <= now()
        AND ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR tool = $2)
    ORDER BY due_at LIMIT $3";

/// `store.agenda.entry`.
const ENTRY: &str = "
    SELECT now(), o.id, namespace, tool, due_at, probes, asked_at, claimed_until, version
    FROM (SELECT $1::uuid AS id) k LEFT JOIN open_intents o USING (id)";

/// `store.agenda.claim`.
const CLAIM: &str = "
    WITH clock AS (SELECT now() + $5::int8 * interval '1 microsecond' AS until),
    c AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int4[])
        AS c(id, namespace, tool, version)),
    put AS (
        INSERT INTO open_intents (id, namespace, tool, due_at, claimed_until)
        SELECT c.id, c.namespace, c.tool, clock.until, clock.until FROM c, clock
        WHERE c.version = 0 ORDER BY c.id
        ON CONFLICT (id) DO NOTHING RETURNING id, claimed_until),
    taken AS (
        UPDATE open_intents o
        SET due_at = clock.until, claimed_until = clock.until, version = o.version + 1
        FROM c, clock WHERE o.id = c.id AND o.version = c.version
        RETURNING o.id, o.claimed_until)
    SELECT id, claimed_until FROM put UNION ALL SELECT id, claimed_until FROM taken";

/// `store.agenda.release`.
const RELEASE: &str = "
    WITH r AS (SELECT * FROM unnest($1::uuid[], $2::int4[], $3::timestamptz[], $4::int4[],
        $5::timestamptz[], $6::timestamptz[]) AS r(id, version, due_at, probes, asked_at, claimed_until)),
    gone AS (
        DELETE FROM open_intents o USING r
        WHERE o.id = r.id AND o.version = r.version AND o.claimed_until = r.claimed_until
            AND r.due_at IS NULL)
    UPDATE open_intents o
    SET due_at = r.due_at, probes = r.probes, asked_at = r.asked_at, claimed_until = NULL,
        version = o.version + 1
    FROM r WHERE o.id = r.id AND o.version = r.version AND o.claimed_until = r.claimed_until
        AND r.due_at IS NOT NULL";

#[async_trait]
impl Agenda for PostgresStore {
    async fn gather(&self, batches_max: usize, kept_for: Duration) -> Result<usize, StoreError> {
        let rows_max = i64::try_from(batches_max).unwrap_or(i64::MAX);
        let kept_for = i64::try_from(kept_for.as_micros()).unwrap_or(i64::MAX);
        let parameters: [super::Parameter<'_>; 2] =
            [(&rows_max, Type::INT8), (&kept_for, Type::INT8)];
        let rows = self.query_again(GATHER, &parameters).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }

    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError> {
        let rows = self.query_all(DUE_TOOLS, &[(&namespace, Type::TEXT)]).await?;
        Ok(rows.iter().map(|row| ToolKey { namespace: row.get(0), tool: row.get(1) }).collect())
    }

    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        let parameters: [super::Parameter<'_>; 3] =
            [(&tool.namespace, Type::TEXT), (&tool.tool, Type::TEXT), (&rows_max, Type::INT8)];
        let rows = self.query(DUE, &parameters).await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get(0)));
        Ok((now, rows.iter().map(entry).collect()))
    }

    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        let parameters: [super::Parameter<'_>; 3] =
            [(&namespace, Type::TEXT), (&tool, Type::TEXT), (&rows_max, Type::INT8)];
        Ok(self.query(DUE_PROPOSALS, &parameters).await?.iter().map(entry).collect())
    }

    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError> {
        let rows = self.query(ENTRY, &[(&id, Type::UUID)]).await?;
        let now = rows.first().map_or(Timestamp::default(), |row| micros(row.get(0)));
        let found = rows.first().filter(|row| row.get::<_, Option<Uuid>>(1).is_some());
        Ok((now, found.map(entry)))
    }

    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let mut sorted: Vec<&Entry> = entries.iter().collect();
        sorted.sort_unstable_by_key(|entry| entry.id);
        let ids: Vec<Uuid> = sorted.iter().map(|entry| entry.id).collect();
        let namespaces: Vec<&str> = sorted.iter().map(|entry| entry.namespace.as_str()).collect();
        let tools: Vec<&str> = sorted.iter().map(|entry| entry.tool.as_str()).collect();
        let versions: Vec<i32> = sorted.iter().map(|entry| signed(entry.version)).collect();
        let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        let rows = self
            .query_again(
                CLAIM,
                &[
                    (&ids, Type::UUID_ARRAY),
                    (&namespaces, Type::TEXT_ARRAY),
                    (&tools, Type::TEXT_ARRAY),
                    (&versions, Type::INT4_ARRAY),
                    (&span, Type::INT8),
                ],
            )
            .await?;
        let claimed: HashMap<Uuid, Timestamp> =
            rows.iter().map(|row| (row.get(0), micros(row.get(1)))).collect();
        Ok(entries.iter().map(|entry| claimed.get(&entry.id).copied()).collect())
    }

    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let most = i64::try_from(WAITING_MAX).unwrap_or(i64::MAX);
        let rows = self
            .query_all(
                "SELECT namespace, count(*) FROM (
                     SELECT namespace FROM intents WHERE needs_attention
                         AND ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR tool = $2)
                     LIMIT $3) bounded
                 GROUP BY namespace",
                &[(&namespace, Type::TEXT), (&tool, Type::TEXT), (&most, Type::INT8)],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).unsigned_abs())).collect())
    }

    async fn release(&self, releases: &[Release]) -> Result<(), StoreError> {
        let mut sorted: Vec<&Release> = releases.iter().collect();
        sorted.sort_unstable_by_key(|release| release.id);
        let next = |release: &&Release| release.next;
        let ids: Vec<Uuid> = sorted.iter().map(|release| release.id).collect();
        let versions: Vec<i32> = sorted.iter().map(|release| signed(release.version)).collect();
        let due: Vec<Option<SystemTime>> =
            sorted.iter().map(|it| next(it).map(|next| time(next.due_at))).collect();
        let probes: Vec<i32> =
            sorted.iter().map(|it| next(it).map_or(0, |next| signed(next.probes))).collect();
        let asked: Vec<Option<SystemTime>> =
            sorted.iter().map(|it| next(it).and_then(|next| next.asked_at).map(time)).collect();
        let claimed: Vec<SystemTime> = sorted.iter().map(|it| time(it.claimed_until)).collect();
        self.query_again(
            RELEASE,
            &[
                (&ids, Type::UUID_ARRAY),
                (&versions, Type::INT4_ARRAY),
                (&due, Type::TIMESTAMPTZ_ARRAY),
                (&probes, Type::INT4_ARRAY),
                (&asked, Type::TIMESTAMPTZ_ARRAY),
                (&claimed, Type::TIMESTAMPTZ_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }
}

impl PostgresStore {
    /// As `query`, and again where others' transactions threw it out: several servers look through the same
    /// batches and meet the same entries.
    pub(super) async fn query_again(
        &self,
        statement: &str,
        parameters: &[super::Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut tries = 0;
        loop {
            match self.query(statement, parameters).await {
                Err(StoreError::Unavailable(error)) if is_conflict(&error) && tries < TRIES_MAX => {
                }
                Err(StoreError::Locked(_)) if tries < TRIES_MAX => {}
                other => return other,
            }
            tries += 1;
        }
    }
}

fn entry(row: &Row) -> Entry {
    Entry {
        id: row.get(1),
        namespace: row.get(2),
        tool: row.get(3),
        due_at: micros(row.get(4)),
        probes: unsigned(row.get(5)),
        asked_at: row.get::<_, Option<SystemTime>>(6).map(micros),
        claimed_until: row.get::<_, Option<SystemTime>>(7).map(micros),
        version: unsigned(row.get(8)),
    }
}
