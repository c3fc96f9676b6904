//! Repeats and counters in SQLite.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{SqliteStore, clock, nothing_written, signed, unsigned};
use crate::{
    domain::{
        attempt::Layer,
        identity::Key,
        intent::State,
        repeat::{LayerCounts, REPEATS_KEPT_MAX, Repeat},
        time::Timestamp,
    },
    store::{
        StoreError,
        codes::{
            answered_from_code, answered_to_code, counted_from_code, counted_to_code,
            layer_from_code, layer_to_code, state_to_code,
        },
        history::{
            History, KeepFrom, KeptRepeats, OPEN_MAX, OpenNow, Repeated, RunCount, ToolCount,
        },
    },
};

const MINUTE_MICROS: i64 = 60 * 1_000_000;

const HOUR_MICROS: i64 = 60 * MINUTE_MICROS;

/// How many rows are looked up before others get their turn: some milliseconds.
const LOOKED_UP_MAX: usize = 1000;

#[async_trait]
impl History for SqliteStore {
    async fn remember(&self, repeats: &[Repeated]) -> Result<(), StoreError> {
        let repeats = repeats.to_vec();
        self.in_transaction(move |transaction| {
            repeats.iter().try_for_each(|repeated| remember(transaction, repeated))
        })
        .await
    }

    async fn repeats(
        &self,
        id: Uuid,
        after: u32,
        records_max: usize,
    ) -> Result<KeptRepeats, StoreError> {
        let records_max = i64::try_from(records_max).unwrap_or(i64::MAX);
        self.run(move |connection| {
            let (layers, kept) = layer_counts(connection, id).map_err(nothing_written)?;
            let rows = connection
                .prepare_cached(
                    "SELECT ordinal, at, answered, layer, free_text_changed, attempt_id, trace_id,
                         caller, tool_call_id, run_id, step_id, changed
                     FROM repeats WHERE id = ?1 AND ordinal > ?2 ORDER BY ordinal LIMIT ?3",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(params![id, signed(after), records_max], record)?
                        .collect::<rusqlite::Result<Vec<_>>>()
                })
                .map_err(nothing_written)?;
            let records = rows.into_iter().collect::<Result<_, _>>()?;
            Ok(KeptRepeats { layers, kept, records })
        })
        .await
    }

    async fn count(&self, tools: &[ToolCount], runs: &[RunCount]) -> Result<(), StoreError> {
        let (tools, runs) = (tools.to_vec(), runs.to_vec());
        self.in_transaction(move |transaction| {
            let now = clock().micros();
            let minute = now - now.rem_euclid(MINUTE_MICROS);
            tools.iter().try_for_each(|tool| count_tool(transaction, tool, minute))?;
            runs.iter().try_for_each(|run| count_run(transaction, run, now))
        })
        .await
    }

    async fn counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
    ) -> Result<Vec<ToolCount>, StoreError> {
        let (namespace, tool) = (namespace.to_owned(), tool.map(str::to_owned));
        self.run(move |connection| {
            let rows: Vec<(String, i16, i64)> = connection
                .prepare_cached(
                    "SELECT tool, counted, sum(count) FROM begin_counts
                     WHERE namespace = ?1 AND span_at >= ?2 AND (?3 IS NULL OR tool = ?3)
                     GROUP BY tool, counted ORDER BY tool, counted",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(params![namespace, since.micros(), tool], |row| {
                            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                        })?
                        .collect()
                })
                .map_err(nothing_written)?;
            let counts = rows.into_iter().map(|(tool, counted, count)| {
                let counted = counted_from_code(counted)?;
                let namespace = namespace.clone();
                Ok(ToolCount { namespace, tool, counted, count: count.unsigned_abs() })
            });
            counts.collect()
        })
        .await
    }

    async fn run_counts(
        &self,
        namespace: &str,
        tool: Option<&str>,
        since: Timestamp,
        rows_max: usize,
    ) -> Result<Vec<RunCount>, StoreError> {
        let (namespace, tool) = (namespace.to_owned(), tool.map(str::to_owned));
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "SELECT tool, run_id, count FROM run_counts
                     WHERE namespace = ?1 AND last_at >= ?2 AND (?3 IS NULL OR tool = ?3) AND count > 1
                     ORDER BY count DESC, last_at DESC, id LIMIT ?4",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(params![namespace, since.micros(), tool, rows_max], |row| {
                            Ok(RunCount {
                                namespace: namespace.clone(),
                                tool: row.get(0)?,
                                run_id: row.get(1)?,
                                count: row.get::<_, i64>(2)?.unsigned_abs(),
                            })
                        })?
                        .collect()
                })
                .map_err(nothing_written)
        })
        .await
    }

    async fn roll_counts(&self, keep_from: KeepFrom) -> Result<(), StoreError> {
        self.in_transaction(move |transaction| {
            let (minutes, hours) = (keep_from.minutes.micros(), keep_from.hours.micros());
            transaction
                .prepare_cached(
                    "INSERT INTO begin_counts (id, minutes, span_at, counted, namespace, tool, count)
                     SELECT id, 60, span_at - span_at % ?3 AS hour, counted, namespace, tool, sum(count)
                     FROM begin_counts WHERE minutes = 1 AND span_at < ?1 AND span_at >= ?2
                     GROUP BY id, hour, counted, namespace, tool
                     ON CONFLICT (id, minutes, span_at, counted)
                         DO UPDATE SET count = count + excluded.count",
                )?
                .execute(params![minutes, hours, HOUR_MICROS])?;
            transaction
                .prepare_cached("DELETE FROM begin_counts WHERE minutes = ?1 AND span_at < ?2")
                .and_then(|mut statement| {
                    statement.execute(params![1, minutes])?;
                    statement.execute(params![60, hours])
                })?;
            transaction
                .prepare_cached("DELETE FROM run_counts WHERE last_at < ?1")?
                .execute([keep_from.runs.micros()])?;
            Ok(())
        })
        .await
    }

    async fn open_now(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        ends_max: usize,
    ) -> Result<OpenNow, StoreError> {
        let whose =
            Whose { namespace: namespace.map(str::to_owned), tool: tool.map(str::to_owned) };
        let of = whose.clone();
        let (ids, mut open) = self
            .run(move |connection| perhaps_open(connection, &of, ends_max).map_err(nothing_written))
            .await?;
        // A slice at a time, for writes wait for whatever runs here.
        for ids in ids.chunks(LOOKED_UP_MAX) {
            let (ids, of) = (ids.to_vec(), whose.clone());
            let look = move |connection: &mut Connection| {
                for id in ids {
                    add_if_open(connection, id, &of, &mut open).map_err(nothing_written)?;
                }
                Ok(open)
            };
            open = self.run(look).await?;
        }
        Ok(open)
    }
}

/// Of which tenant and tool; of all where it says nothing.
#[derive(Debug, Clone)]
struct Whose {
    namespace: Option<String>,
    tool: Option<String>,
}

/// The sum of a row's counts numbers its repeats.
fn remember(connection: &Connection, repeated: &Repeated) -> rusqlite::Result<()> {
    let of = |layer| int8(repeated.layers.of(layer));
    let total: i64 = connection
        .prepare_cached(
            "INSERT INTO repeat_counts
                 (id, transport, orchestrator, model, resumed_run, unknown_layer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id) DO UPDATE SET
                 transport = transport + excluded.transport,
                 orchestrator = orchestrator + excluded.orchestrator,
                 model = model + excluded.model,
                 resumed_run = resumed_run + excluded.resumed_run,
                 unknown_layer = unknown_layer + excluded.unknown_layer
             RETURNING transport + orchestrator + model + resumed_run + unknown_layer",
        )?
        .query_row(
            params![
                repeated.id,
                of(Layer::Transport),
                of(Layer::Orchestrator),
                of(Layer::Model),
                of(Layer::ResumedRun),
                of(Layer::UnknownLayer)
            ],
            |row| row.get(0),
        )?;
    let before = total - int8(repeated.layers.total());
    for (ordinal, record) in (before + 1..=i64::from(REPEATS_KEPT_MAX)).zip(&repeated.records) {
        connection
            .prepare_cached(
                "INSERT INTO repeats (id, ordinal, at, answered, layer, free_text_changed,
                     attempt_id, trace_id, caller, tool_call_id, run_id, step_id, changed)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                repeated.id,
                ordinal,
                record.at.micros(),
                answered_to_code(record.answered),
                layer_to_code(record.layer),
                record.free_text_changed,
                record.attempt_id,
                record.trace_id,
                record.caller,
                record.tool_call_id,
                record.run_id,
                record.step_id,
                record.changed.join("\n")
            ])?;
    }
    Ok(())
}

fn layer_counts(connection: &Connection, id: Uuid) -> rusqlite::Result<(LayerCounts, u64)> {
    let counts = connection
        .prepare_cached(
            "SELECT transport, orchestrator, model, resumed_run, unknown_layer,
                 (SELECT count(*) FROM repeats WHERE id = ?1)
             FROM repeat_counts WHERE id = ?1",
        )?
        .query_row([id], |row| {
            let mut layers = LayerCounts::default();
            for (column, layer) in Layer::ALL.into_iter().enumerate() {
                layers.add(layer, row.get::<_, i64>(column)?.unsigned_abs());
            }
            Ok((layers, row.get::<_, i64>(5)?.unsigned_abs()))
        })
        .optional()?;
    Ok(counts.unwrap_or_default())
}

fn count_tool(connection: &Connection, tool: &ToolCount, minute: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO begin_counts (id, minutes, span_at, counted, namespace, tool, count)
             VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id, minutes, span_at, counted)
                 DO UPDATE SET count = count + excluded.count",
        )?
        .execute(params![
            tool.id(),
            minute,
            counted_to_code(tool.counted),
            tool.namespace,
            tool.tool,
            int8(tool.count)
        ])?;
    Ok(())
}

fn count_run(connection: &Connection, run: &RunCount, now: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO run_counts (id, namespace, tool, run_id, count, last_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id) DO UPDATE SET count = count + excluded.count, last_at = excluded.last_at",
        )?
        .execute(params![run.id(), run.namespace, run.tool, run.run_id, int8(run.count), now])?;
    Ok(())
}

/// The rows that may be open: on the agenda, granted lately, or marked for a person.
fn perhaps_open(
    connection: &Connection,
    Whose { namespace, tool }: &Whose,
    ends_max: usize,
) -> rusqlite::Result<(Vec<Uuid>, OpenNow)> {
    let most = i64::try_from(OPEN_MAX).unwrap_or(i64::MAX);
    let ends = i64::try_from(ends_max).unwrap_or(i64::MAX);
    let mut open = OpenNow { now: clock(), ..OpenNow::default() };
    let mut ids = BTreeSet::new();
    let named = [
        "SELECT id FROM open_intents
         WHERE proposal = 0 AND (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR tool = ?2)
         ORDER BY due_at LIMIT ?3",
        // By themselves, so that neither hides the other.
        "SELECT id FROM open_intents
         WHERE proposal = 1 AND (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR tool = ?2)
         ORDER BY due_at LIMIT ?3",
        "SELECT id FROM intents
         WHERE needs_attention = 1 AND (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR tool = ?2)
         LIMIT ?3",
    ];
    for statement in named {
        let mut statement = connection.prepare_cached(statement)?;
        let found = statement.query_map(params![namespace, tool, most], |row| row.get(0))?;
        let found: Vec<Uuid> = found.collect::<rusqlite::Result<_>>()?;
        open.bounded |= found.len() >= OPEN_MAX;
        ids.extend(found);
    }
    // From both ends; a batch that is at both is told once.
    let mut statement = connection.prepare_cached(
        "SELECT * FROM (SELECT due_at, id, intents FROM granted_batches
             ORDER BY due_at, id LIMIT ?1)
         UNION
         SELECT * FROM (SELECT due_at, id, intents FROM granted_batches
             ORDER BY due_at DESC, id DESC LIMIT ?1)",
    )?;
    let mut batches = 0;
    for batch in statement.query_map([ends], |row| row.get::<_, Vec<u8>>(2))? {
        ids.extend(batch?.as_chunks::<16>().0.iter().map(|id| Uuid::from_bytes(*id)));
        batches += 1;
    }
    open.bounded |= batches >= 2 * ends_max;
    Ok((ids.into_iter().collect(), open))
}

fn add_if_open(
    connection: &Connection,
    id: Uuid,
    Whose { namespace, tool }: &Whose,
    open: &mut OpenNow,
) -> rusqlite::Result<()> {
    let found = connection
        .prepare_cached(
            "SELECT state, needs_attention, key, created_at FROM intents
             WHERE id = ?1 AND (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR tool = ?3)",
        )?
        .query_row(params![id, namespace, tool], |row| {
            let created_at = Timestamp::from_micros(row.get(3)?);
            Ok((row.get::<_, i16>(0)?, row.get::<_, bool>(1)?, row.get(2)?, created_at))
        })
        .optional()?;
    let Some((state, needs_attention, key, created_at)) = found else { return Ok(()) };
    open.needs_attention += u64::from(needs_attention);
    open.awaiting_approval += u64::from(state == state_to_code(State::AwaitingApproval));
    if [State::Started, State::Unknown].map(state_to_code).contains(&state) {
        open.unsettled += 1;
        if open.oldest.is_none_or(|(_, oldest)| created_at < oldest) {
            open.oldest = Some((Key::from_bytes(key), created_at));
        }
    }
    Ok(())
}

fn int8(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

type Record = Result<(u32, Repeat), StoreError>;

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let (answered, layer) = (answered_from_code(row.get(2)?), layer_from_code(row.get(3)?));
    let (answered, layer) = match (answered, layer) {
        (Ok(answered), Ok(layer)) => (answered, layer),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let repeat = Repeat {
        at: Timestamp::from_micros(row.get(1)?),
        answered,
        layer,
        free_text_changed: row.get(4)?,
        attempt_id: row.get(5)?,
        trace_id: row.get(6)?,
        caller: row.get(7)?,
        tool_call_id: row.get(8)?,
        run_id: row.get(9)?,
        step_id: row.get(10)?,
        changed: row.get_ref(11)?.as_str()?.lines().map(str::to_owned).collect(),
    };
    Ok(Ok((unsigned(row.get(0)?), repeat)))
}
