//! The agenda in SQLite.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use uuid::Uuid;

use super::{
    SqliteStore, clock, commit, nothing_written, retention::file_ids, signed, state_to_code,
    unsigned,
};
use crate::{
    domain::{intent::State, time::Timestamp},
    store::{
        StoreError, Write,
        agenda::{Agenda, Entry, Next, Release, ToolKey, WAITING_MAX},
        retention::FILED_TOGETHER_MAX,
    },
};

const ENTRY: &str = "id, namespace, tool, due_at, probes, asked_at, claimed_until, version";

#[async_trait]
impl Agenda for SqliteStore {
    async fn gather(&self, batches_max: usize, kept_for: Duration) -> Result<usize, StoreError> {
        let batches_max = i64::try_from(batches_max).unwrap_or(i64::MAX);
        self.in_transaction(move |transaction| {
            let mut gathered = Vec::new();
            let batches: Vec<(i64, Uuid, Vec<u8>)> = transaction
                .prepare_cached(
                    "SELECT due_at, id, intents FROM granted_batches WHERE due_at <= ?1
                     ORDER BY due_at LIMIT ?2",
                )?
                .query_map(params![clock().micros(), batches_max], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect::<rusqlite::Result<_>>()?;
            for (due_at, id, intents) in &batches {
                for intent in intents.chunks_exact(16) {
                    put_if_open(transaction, intent)?;
                }
                gathered.extend(intents.as_chunks::<16>().0.iter().map(|id| (*due_at, *id)));
                transaction
                    .prepare_cached("DELETE FROM granted_batches WHERE due_at = ?1 AND id = ?2")?
                    .execute(params![due_at, id])?;
            }
            // Those of many small batches together.
            for together in gathered.chunks(FILED_TOGETHER_MAX) {
                let first = Timestamp::from_micros(together[0].0);
                let ids: Vec<u8> = together.iter().flat_map(|(_, id)| *id).collect();
                file_ids(transaction, first + kept_for, &ids)?;
            }
            Ok(batches.len())
        })
        .await
    }

    async fn due_tools(&self, namespace: Option<&str>) -> Result<Vec<ToolKey>, StoreError> {
        let namespace = namespace.map(str::to_owned);
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "SELECT DISTINCT namespace, tool FROM open_intents
                     WHERE due_at <= ?1 AND proposal = 0 AND (?2 IS NULL OR namespace = ?2)",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(params![clock().micros(), namespace], |row| {
                            Ok(ToolKey { namespace: row.get(0)?, tool: row.get(1)? })
                        })?
                        .collect()
                })
                .map_err(nothing_written)
        })
        .await
    }

    async fn due(
        &self,
        tool: &ToolKey,
        rows_max: usize,
    ) -> Result<(Timestamp, Vec<Entry>), StoreError> {
        let tool = tool.clone();
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.run(move |connection| {
            let now = clock();
            let entries = connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY} FROM open_intents
                     WHERE namespace = ?1 AND tool = ?2 AND due_at <= ?3 AND proposal = 0
                     ORDER BY due_at LIMIT ?4"
                ))
                .and_then(|mut statement| {
                    let parameters = params![tool.namespace, tool.tool, now.micros(), rows_max];
                    statement.query_map(parameters, entry)?.collect()
                })
                .map_err(nothing_written)?;
            Ok((now, entries))
        })
        .await
    }

    async fn due_proposals(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
        rows_max: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let (namespace, tool) = (namespace.map(str::to_owned), tool.map(str::to_owned));
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.run(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY} FROM open_intents
                     WHERE proposal = 1 AND due_at <= ?1
                         AND (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR tool = ?3)
                     ORDER BY due_at LIMIT ?4"
                ))
                .and_then(|mut statement| {
                    let parameters = params![clock().micros(), namespace, tool, rows_max];
                    statement.query_map(parameters, entry)?.collect()
                })
                .map_err(nothing_written)
        })
        .await
    }

    async fn entry(&self, id: Uuid) -> Result<(Timestamp, Option<Entry>), StoreError> {
        self.run(move |connection| {
            let found = connection
                .prepare_cached(&format!("SELECT {ENTRY} FROM open_intents WHERE id = ?1"))
                .and_then(|mut statement| statement.query_row([id], entry).optional())
                .map_err(nothing_written)?;
            Ok((clock(), found))
        })
        .await
    }

    async fn claim(
        &self,
        entries: &[Entry],
        span: Duration,
    ) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let entries = entries.to_vec();
        self.in_transaction(move |transaction| {
            let until = clock() + span;
            let claim = |entry| {
                let mine = claim(transaction, entry, until.micros())?;
                Ok(mine.then_some(until))
            };
            entries.iter().map(claim).collect()
        })
        .await
    }

    async fn waiting_for_people(
        &self,
        namespace: Option<&str>,
        tool: Option<&str>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let (namespace, tool) = (namespace.map(str::to_owned), tool.map(str::to_owned));
        let most = i64::try_from(WAITING_MAX).unwrap_or(i64::MAX);
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "SELECT namespace, count(*) FROM (
                         SELECT namespace FROM intents WHERE needs_attention = 1
                             AND (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR tool = ?2)
                         LIMIT ?3)
                     GROUP BY namespace",
                )
                .and_then(|mut statement| {
                    let count =
                        |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
                    statement.query_map(params![namespace, tool, most], count)?.collect()
                })
                .map_err(nothing_written)
        })
        .await
    }

    async fn release(&self, releases: &[Release]) -> Result<(), StoreError> {
        let releases = releases.to_vec();
        self.in_transaction(move |transaction| {
            releases.iter().try_for_each(|it| release(transaction, it))
        })
        .await
    }
}

impl SqliteStore {
    pub(super) async fn in_transaction<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(nothing_written)?;
            let done = job(&transaction).map_err(nothing_written)?;
            commit(transaction)?;
            Ok(done)
        })
        .await
    }
}

/// Remembers the new rows of a batch, to be looked at once the first of their leases is over; at once where
/// nobody was granted one.
pub(super) fn remember_grants<'a>(
    connection: &Connection,
    written: impl Iterator<Item = &'a Write>,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let mut intents = Vec::new();
    let mut due_at = None;
    for write in written.filter(|write| write.is_new()) {
        intents.extend_from_slice(write.row_id().as_bytes());
        if let Some(end) = write.first_lease_end() {
            due_at = Some(due_at.map_or(end, |due: Timestamp| due.min(end)));
        }
    }
    if intents.is_empty() {
        return Ok(());
    }
    let due_at = due_at.unwrap_or(at);
    connection
        .prepare_cached("INSERT INTO granted_batches (due_at, id, intents) VALUES (?1, ?2, ?3)")?
        .execute(params![due_at.micros(), &intents[..16], intents])?;
    Ok(())
}

/// Puts an intent on the agenda, or moves it there.
pub(super) fn put(
    connection: &Connection,
    write: &Write,
    due_at: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO open_intents (id, namespace, tool, due_at, proposal)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (id) DO UPDATE SET due_at = excluded.due_at, probes = 0, asked_at = NULL,
                 claimed_until = NULL, proposal = excluded.proposal, version = version + 1",
        )?
        .execute(params![
            write.row_id(),
            write.intent.namespace,
            write.intent.tool,
            due_at.micros(),
            matches!(write.intent.state, State::AwaitingApproval | State::Approved)
        ])?;
    Ok(())
}

fn put_if_open(connection: &Connection, id: &[u8]) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO open_intents (id, namespace, tool, due_at)
             SELECT id, namespace, tool, coalesce(lease_expires_at, created_at) FROM intents
             WHERE id = ?1 AND state IN (?2, ?3) AND needs_attention = 0
             ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![id, state_to_code(State::Started), state_to_code(State::Unknown)])?;
    Ok(())
}

fn claim(connection: &Connection, entry: &Entry, until: i64) -> rusqlite::Result<bool> {
    let changed = if entry.version == 0 {
        connection
            .prepare_cached(
                "INSERT INTO open_intents (id, namespace, tool, due_at, claimed_until)
                 VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![entry.id, entry.namespace, entry.tool, until])?
    } else {
        connection
            .prepare_cached(
                "UPDATE open_intents SET due_at = ?3, claimed_until = ?3, version = version + 1
                 WHERE id = ?1 AND version = ?2",
            )?
            .execute(params![entry.id, signed(entry.version), until])?
    };
    Ok(changed == 1)
}

fn release(connection: &Connection, release: &Release) -> rusqlite::Result<()> {
    let (id, version) = (release.id, signed(release.version));
    let claimed_until = release.claimed_until.micros();
    match release.next {
        None => connection
            .prepare_cached(
                "DELETE FROM open_intents WHERE id = ?1 AND version = ?2 AND claimed_until = ?3",
            )?
            .execute(params![id, version, claimed_until])?,
        Some(Next { due_at, probes, asked_at }) => connection
            .prepare_cached(
                "UPDATE open_intents SET due_at = ?4, probes = ?5, asked_at = ?6,
                     claimed_until = NULL, version = version + 1
                 WHERE id = ?1 AND version = ?2 AND claimed_until = ?3",
            )?
            .execute(params![
                id,
                version,
                claimed_until,
                due_at.micros(),
                signed(probes),
                asked_at.map(Timestamp::micros)
            ])?,
    };
    Ok(())
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        id: row.get(0)?,
        namespace: row.get(1)?,
        tool: row.get(2)?,
        due_at: Timestamp::from_micros(row.get(3)?),
        probes: unsigned(row.get(4)?),
        asked_at: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros),
        claimed_until: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_micros),
        version: unsigned(row.get(7)?),
    })
}
