//! Repeats and counters in Postgres.

use std::{collections::BTreeSet, time::SystemTime};

use async_trait::async_trait;
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use super::{
    PostgresStore,
    connect::{Busy, Parameter, run, within},
    fault::is_conflict,
    parameters::{micros, time},
    signed, unsigned,
    write::{WRITE_WAIT_MAX, answered},
};
use crate::{
    domain::{
        attempt::Layer,
        identity::Key,
        repeat::{LayerCounts, REPEATS_KEPT_MAX, Repeat},
        time::Timestamp,
    },
    store::{
        Store, StoreError,
        codes::{
            answered_from_code, answered_to_code, counted_from_code, counted_to_code,
            layer_from_code, layer_to_code,
        },
        history::{
            History, KeepFrom, KeptRepeats, OPEN_MAX, OpenNow, Repeated, RunCount, ToolCount,
        },
    },
};

/// How often a statement that met others' is tried again.
const TRIES_MAX: usize = 5;

/// `store.history.remember`: the sum of a row's counts, which whoever adds to it holds until the commit,
/// numbers its repeats.
const REMEMBER: &str = "
    WITH c AS (
        SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[])
            AS c(id, transport, orchestrator, model, resumed_run, unknown_layer)),
    counted AS (
        INSERT INTO repeat_counts AS r
            (id, transport, orchestrator, model, resumed_run, unknown_layer)
        SELECT * FROM c ORDER BY id
        ON CONFLICT (id) DO UPDATE SET
            transport = r.transport + excluded.transport,
            orchestrator = r.orchestrator + excluded.orchestrator,
            model = r.model + excluded.model,
            resumed_run = r.resumed_run + excluded.resumed_run,
            unknown_layer = r.unknown_layer + excluded.unknown_layer
        RETURNING r.id, r.transport + r.orchestrator + r.model + r.resumed_run + r.unknown_layer AS total),
    before AS (
        SELECT id, counted.total
            - (c.transport + c.orchestrator + c.model + c.resumed_run + c.unknown_layer) AS total
        FROM counted JOIN c USING (id))
    INSERT INTO repeats (id, ordinal, at, answered, layer, free_text_changed, attempt_id, trace_id,
        caller, tool_call_id, run_id, step_id, changed)
    SELECT n.id, before.total + n.nth, n.at, n.answered, n.layer, n.free_text_changed, n.attempt_id,
        n.trace_id, n.caller, n.tool_call_id, n.run_id, n.step_id, n.changed
    FROM unnest($7::uuid[], $8::int4[], $9::timestamptz[], $10::int2[], $11::int2[], $12::bool[],
        $13::uuid[], $14::uuid[], $15::text[], $16::text[], $17::text[], $18::text[], $20::text[])
        AS n(id, nth, at, answered, layer, free_text_changed, attempt_id, trace_id, caller,
            tool_call_id, run_id, step_id, changed)
    JOIN before USING (id) WHERE before.total + n.nth <= $19
    ON CONFLICT (id, ordinal) DO NOTHING";

/// `store.history.repeats`: the counts, then the records beside them.
const REPEATS: &str = "
    SELECT c.transport, c.orchestrator, c.model, c.resumed_run, c.unknown_layer,
        (SELECT count(*) FROM repeats k WHERE k.id = $1) AS kept,
        r.ordinal, r.at, r.answered, r.layer, r.free_text_changed, r.attempt_id, r.trace_id, r.caller,
        r.tool_call_id, r.run_id, r.step_id, r.changed
    FROM repeat_counts c LEFT JOIN (
        SELECT * FROM repeats WHERE id = $1 AND ordinal > $2 ORDER BY ordinal LIMIT $3) r USING (id)
    WHERE c.id = $1 ORDER BY r.ordinal";

/// `store.history.count`: tools by the minute of the write, and runs.
const COUNT: &str = "
    WITH runs AS (
        INSERT INTO run_counts AS r (id, namespace, tool, run_id, count, last_at)
        SELECT id, namespace, tool, run_id, count, now()
        FROM unnest($6::uuid[], $7::text[], $8::text[], $9::text[], $10::int8[])
            AS n(id, namespace, tool, run_id, count) ORDER BY id
        ON CONFLICT (id) DO UPDATE
        SET count = r.count + excluded.count, last_at = excluded.last_at)
    INSERT INTO begin_counts AS b (id, minutes, span_at, counted, namespace, tool, count)
    SELECT id, 1, date_trunc('minute', now(), 'UTC'), counted, namespace, tool, count
    FROM unnest($1::uuid[], $2::int2[], $3::text[], $4::text[], $5::int8[])
        AS n(id, counted, namespace, tool, count) ORDER BY id, counted
    ON CONFLICT (id, minutes, span_at, counted) DO UPDATE SET count = b.count + excluded.count";

/// `store.history.counts`.
const COUNTS: &str = "
    SELECT tool, counted, sum(count)::int8 FROM begin_counts
    WHERE namespace = $1 AND span_at >= $2 AND ($3::text IS NULL OR tool = $3)
    GROUP BY tool, counted ORDER BY tool, counted";

/// `store.history.run_counts`.
const RUN_COUNTS: &str = "
    SELECT tool, run_id, count FROM run_counts
    WHERE namespace = $1 AND last_at >= $2 AND ($3::text IS NULL OR tool = $3) AND count > 1
    ORDER BY count DESC, last_at DESC, id LIMIT $4";

/// `store.history.roll_counts`: of several that roll at once each minute is deleted by one, and only that
/// one adds it to its hour.
const ROLL: &str = "
    WITH minutes AS (
        DELETE FROM begin_counts WHERE minutes = 1 AND span_at < $1
        RETURNING id, span_at, counted, namespace, tool, count),
    hours AS (
        DELETE FROM begin_counts WHERE minutes = 60 AND span_at < $2),
    runs AS (
        DELETE FROM run_counts WHERE last_at < $3)
    INSERT INTO begin_counts AS b (id, minutes, span_at, counted, namespace, tool, count)
    SELECT id, 60, date_trunc('hour', span_at, 'UTC') AS hour, counted, namespace, tool, sum(count)::int8
    FROM minutes WHERE span_at >= $2 GROUP BY id, hour, counted, namespace, tool ORDER BY id, hour, counted
    ON CONFLICT (id, minutes, span_at, counted) DO UPDATE SET count = b.count + excluded.count";

/// `store.history.perhaps_open`: what the agenda has, proposals by themselves so that neither hides the
/// other, and what needs a person.
const PERHAPS_OPEN: [&str; 3] = [
    "SELECT id FROM open_intents
    WHERE NOT proposal AND ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR tool = $2)
    ORDER BY due_at LIMIT $3",
    "SELECT id FROM open_intents
    WHERE proposal AND ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR tool = $2)
    ORDER BY due_at LIMIT $3",
    "SELECT id FROM intents
    WHERE needs_attention AND ($1::text IS NULL OR namespace = $1) AND ($2::text IS NULL OR tool = $2)
    LIMIT $3",
];

/// `store.history.granted`: from both ends. A batch that is at both is told once.
const GRANTED: &str = "
    (SELECT due_at, id, intents FROM granted_batches ORDER BY due_at, id LIMIT $1)
    UNION
    (SELECT due_at, id, intents FROM granted_batches ORDER BY due_at DESC, id DESC LIMIT $1)";

/// `store.history.open_of`: what is open among these rows. By an array of ids, which is looked up by the
/// primary key whatever the planner believes of its length; joined to a subquery it might scan the table.
const OPEN_OF: &str = "
    WITH found AS MATERIALIZED (
        SELECT state, needs_attention, key, created_at FROM intents
        WHERE id = ANY($1::uuid[]) AND (state IN (1, 3, 4) OR needs_attention)
            AND ($2::text IS NULL OR namespace = $2) AND ($3::text IS NULL OR tool = $3)),
    oldest AS (
        SELECT key, created_at FROM found WHERE state IN (3, 4) ORDER BY created_at LIMIT 1)
    SELECT now(), c.unsettled, c.needs_attention, c.awaiting, oldest.key, oldest.created_at
    FROM (SELECT count(*) FILTER (WHERE state IN (3, 4)) AS unsettled,
            count(*) FILTER (WHERE needs_attention) AS needs_attention,
            count(*) FILTER (WHERE state = 1) AS awaiting FROM found) c
    LEFT JOIN oldest ON true";

/// How many rows one statement looks up.
const LOOKED_UP_MAX: usize = 5000;

#[async_trait]
impl History for PostgresStore {
    async fn remember(&self, repeats: &[Repeated]) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = repeats.iter().map(|it| it.id).collect();
        let of = |layer: Layer| -> Vec<i64> {
            repeats.iter().map(|it| int8(it.layers.of(layer))).collect()
        };
        let counts = Layer::ALL.map(of);
        let records: Vec<(Uuid, i32, &Repeat)> = repeats
            .iter()
            .flat_map(|it| (1..).zip(&it.records).map(|(nth, record)| (it.id, nth, record)))
            .collect();
        let record_ids: Vec<Uuid> = records.iter().map(|(id, ..)| *id).collect();
        let nth: Vec<i32> = records.iter().map(|(_, nth, _)| *nth).collect();
        let records: Vec<&Repeat> = records.iter().map(|(.., record)| *record).collect();
        let at: Vec<SystemTime> = records.iter().map(|it| time(it.at)).collect();
        let answered: Vec<i16> = records.iter().map(|it| answered_to_code(it.answered)).collect();
        let layers: Vec<i16> = records.iter().map(|it| layer_to_code(it.layer)).collect();
        let changed: Vec<bool> = records.iter().map(|it| it.free_text_changed).collect();
        let attempts: Vec<Option<Uuid>> = records.iter().map(|it| it.attempt_id).collect();
        let traces: Vec<Option<Uuid>> =
            records.iter().map(|it| it.trace_id.map(Uuid::from_bytes)).collect();
        let callers: Vec<&str> = records.iter().map(|it| it.caller.as_str()).collect();
        let calls: Vec<&str> = records.iter().map(|it| it.tool_call_id.as_str()).collect();
        let runs: Vec<&str> = records.iter().map(|it| it.run_id.as_str()).collect();
        let steps: Vec<&str> = records.iter().map(|it| it.step_id.as_str()).collect();
        let pointers: Vec<String> = records.iter().map(|it| it.changed.join("\n")).collect();
        let kept_max = i64::from(REPEATS_KEPT_MAX);
        self.add_again(
            REMEMBER,
            &[
                (&ids, Type::UUID_ARRAY),
                (&counts[0], Type::INT8_ARRAY),
                (&counts[1], Type::INT8_ARRAY),
                (&counts[2], Type::INT8_ARRAY),
                (&counts[3], Type::INT8_ARRAY),
                (&counts[4], Type::INT8_ARRAY),
                (&record_ids, Type::UUID_ARRAY),
                (&nth, Type::INT4_ARRAY),
                (&at, Type::TIMESTAMPTZ_ARRAY),
                (&answered, Type::INT2_ARRAY),
                (&layers, Type::INT2_ARRAY),
                (&changed, Type::BOOL_ARRAY),
                (&attempts, Type::UUID_ARRAY),
                (&traces, Type::UUID_ARRAY),
                (&callers, Type::TEXT_ARRAY),
                (&calls, Type::TEXT_ARRAY),
                (&runs, Type::TEXT_ARRAY),
                (&steps, Type::TEXT_ARRAY),
                (&kept_max, Type::INT8),
                (&pointers, Type::TEXT_ARRAY),
            ],
        )
        .await
    }

    async fn repeats(
        &self,
        id: Uuid,
        after: u32,
        records_max: usize,
    ) -> Result<KeptRepeats, StoreError> {
        let records_max = i64::try_from(records_max).unwrap_or(i64::MAX);
        let rows = self
            .query(
                REPEATS,
                &[(&id, Type::UUID), (&signed(after), Type::INT4), (&records_max, Type::INT8)],
            )
            .await?;
        let Some(first) = rows.first() else { return Ok(KeptRepeats::default()) };
        let mut layers = LayerCounts::default();
        for (column, layer) in Layer::ALL.into_iter().enumerate() {
            layers.add(layer, first.get::<_, i64>(column).unsigned_abs());
        }
        let numbered = rows.iter().filter(|row| row.get::<_, Option<i32>>(6).is_some());
        Ok(KeptRepeats {
            layers,
            kept: first.get::<_, i64>(5).unsigned_abs(),
            records: numbered.map(record).collect::<Result<_, _>>()?,
        })
    }

    async fn count(&self, tools: &[ToolCount], runs: &[RunCount]) -> Result<(), StoreError> {
        let tool_ids: Vec<Uuid> = tools.iter().map(ToolCount::id).collect();
        let counted: Vec<i16> = tools.iter().map(|it| counted_to_code(it.counted)).collect();
        let tool_namespaces: Vec<&str> = tools.iter().map(|it| it.namespace.as_str()).collect();
        let tool_names: Vec<&str> = tools.iter().map(|it| it.tool.as_str()).collect();
        let tool_counts: Vec<i64> = tools.iter().map(|it| int8(it.count)).collect();
        let run_row_ids: Vec<Uuid> = runs.iter().map(RunCount::id).collect();
        let run_namespaces: Vec<&str> = runs.iter().map(|it| it.namespace.as_str()).collect();
        let run_tools: Vec<&str> = runs.iter().map(|it| it.tool.as_str()).collect();
        let run_ids: Vec<&str> = runs.iter().map(|it| it.run_id.as_str()).collect();
        let run_counts: Vec<i64> = runs.iter().map(|it| int8(it.count)).collect();
        self.add_again(
            COUNT,
            &[
                (&tool_ids, Type::UUID_ARRAY),
                (&counted, Type::INT2_ARRAY),
                (&tool_namespaces, Type::TEXT_ARRAY),
                (&tool_names, Type::TEXT_ARRAY),
                (&tool_counts, Type::INT8_ARRAY),
                (&run_row_ids, Type::UUID_ARRAY),
                (&run_namespaces, Type::TEXT_ARRAY),
                (&run_tools, Type::TEXT_ARRAY),
                (&run_ids, Type::TEXT_ARRAY),
                (&run_counts, Type::INT8_ARRAY),
            ],
        )
        .await
    }

    async fn counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError> {
        let parameters: [Parameter<'_>; 3] =
            [(&namespace, Type::TEXT), (&time(since), Type::TIMESTAMPTZ), (&tool, Type::TEXT)];
        let rows = self.query_all(COUNTS, &parameters).await?;
        let counts = rows.iter().map(|row| {
            Ok(ToolCount {
                namespace: namespace.to_owned(),
                tool: row.get(0),
                counted: counted_from_code(row.get(1))?,
                count: row.get::<_, i64>(2).unsigned_abs(),
            })
        });
        counts.collect()
    }

    async fn run_counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
        rows_max: usize,
    ) -> Result<Vec<RunCount>, StoreError> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 4] = [
            (&namespace, Type::TEXT),
            (&time(since), Type::TIMESTAMPTZ),
            (&tool, Type::TEXT),
            (&rows_max, Type::INT8),
        ];
        let rows = self.query_all(RUN_COUNTS, &parameters).await?;
        let counts = rows.iter().map(|row| RunCount {
            namespace: namespace.to_owned(),
            tool: row.get(0),
            run_id: row.get(1),
            count: row.get::<_, i64>(2).unsigned_abs(),
        });
        Ok(counts.collect())
    }

    async fn roll_counts(&self, keep_from: KeepFrom) -> Result<(), StoreError> {
        self.add_again(
            ROLL,
            &[
                (&time(keep_from.minutes), Type::TIMESTAMPTZ),
                (&time(keep_from.hours), Type::TIMESTAMPTZ),
                (&time(keep_from.runs), Type::TIMESTAMPTZ),
            ],
        )
        .await
    }

    async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        ends_max: usize,
    ) -> Result<OpenNow, StoreError> {
        let most = i64::try_from(OPEN_MAX).unwrap_or(i64::MAX);
        let ends = i64::try_from(ends_max).unwrap_or(i64::MAX);
        let named: [Parameter<'_>; 3] =
            [(&namespace, Type::TEXT), (&tool, Type::TEXT), (&most, Type::INT8)];
        let mut open = OpenNow { now: self.now().await?, ..OpenNow::default() };
        let mut ids: BTreeSet<Uuid> = BTreeSet::new();
        for statement in PERHAPS_OPEN {
            let rows = self.query_all(statement, &named).await?;
            open.bounded |= rows.len() >= OPEN_MAX;
            ids.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)));
        }
        let batches = self.query_all(GRANTED, &[(&ends, Type::INT8)]).await?;
        open.bounded |= batches.len() >= 2 * ends_max;
        ids.extend(batches.iter().flat_map(|row| row.get::<_, Vec<Uuid>>(2)));

        let ids: Vec<Uuid> = ids.into_iter().collect();
        for ids in ids.chunks(LOOKED_UP_MAX) {
            let parameters: [Parameter<'_>; 3] =
                [(&ids, Type::UUID_ARRAY), (&namespace, Type::TEXT), (&tool, Type::TEXT)];
            for row in self.query_all(OPEN_OF, &parameters).await? {
                add_open(&row, &mut open);
            }
        }
        Ok(open)
    }
}

impl PostgresStore {
    /// Writes, and again where others' transactions threw it out: replicas add to the same counters.
    async fn add_again(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<(), StoreError> {
        let mut tries = 0;
        loop {
            match self.add_once(statement, parameters).await {
                Err(StoreError::Unavailable(error)) if is_conflict(&error) && tries < TRIES_MAX => {
                }
                Err(StoreError::Locked(_)) if tries < TRIES_MAX => {}
                other => return other,
            }
            tries += 1;
        }
    }

    /// A statement that commits by itself: where no answer comes, it may have.
    async fn add_once(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<(), StoreError> {
        let client = Busy::new(self.client().await?);
        let answer = run(&client, self.statements, statement, parameters);
        let answer = within(WRITE_WAIT_MAX, answer).await;
        answered(client.done(), answer).map(|_| ())
    }
}

fn add_open(row: &Row, open: &mut OpenNow) {
    let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
    open.now = micros(row.get(0));
    open.unsettled += count(1);
    open.needs_attention += count(2);
    open.awaiting_approval += count(3);
    let key: Option<Vec<u8>> = row.get(4);
    let begun_at: Option<SystemTime> = row.get(5);
    let oldest = key
        .and_then(|key| key.try_into().ok())
        .zip(begun_at)
        .map(|(key, at)| (Key::from_bytes(key), micros(at)));
    open.oldest = open.oldest.into_iter().chain(oldest).min_by_key(|(_, at)| *at);
}

fn int8(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn record(row: &Row) -> Result<(u32, Repeat), StoreError> {
    let repeat = Repeat {
        at: micros(row.get(7)),
        answered: answered_from_code(row.get(8))?,
        layer: layer_from_code(row.get(9))?,
        free_text_changed: row.get(10),
        attempt_id: row.get(11),
        trace_id: row.get::<_, Option<Uuid>>(12).map(Uuid::into_bytes),
        caller: row.get(13),
        tool_call_id: row.get(14),
        run_id: row.get(15),
        step_id: row.get(16),
        changed: row.get::<_, &str>(17).lines().map(str::to_owned).collect(),
    };
    Ok((unsigned(row.get(6)), repeat))
}
