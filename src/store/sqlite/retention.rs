//! Retention in SQLite.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{SqliteStore, active_version, clock, nothing_written, signed, state_to_code, unsigned};
use crate::{
    domain::{intent::State, retention::Term, time::Timestamp},
    ids,
    store::{
        StoreError, Version,
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

#[async_trait]
impl Retention for SqliteStore {
    async fn claim_filed(
        &self,
        entries_max: usize,
        span: Duration,
    ) -> Result<(Timestamp, Vec<Filed>), StoreError> {
        let entries_max = i64::try_from(entries_max).unwrap_or(i64::MAX);
        self.in_transaction(move |transaction| {
            let now = clock();
            let until = now + span;
            let due: Vec<(i64, Uuid, Vec<u8>)> = transaction
                .prepare_cached(
                    "SELECT due_at, id, intents FROM retention_batches WHERE due_at <= ?1
                     ORDER BY due_at, id LIMIT ?2",
                )?
                .query_map(params![now.micros(), entries_max], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect::<rusqlite::Result<_>>()?;
            let mut claimed = Vec::with_capacity(due.len());
            for (due_at, id, intents) in due {
                transaction
                    .prepare_cached(
                        "UPDATE retention_batches SET due_at = ?3 WHERE due_at = ?1 AND id = ?2",
                    )?
                    .execute(params![due_at, id, until.micros()])?;
                let rows = intents.as_chunks().0.iter().map(|id| Uuid::from_bytes(*id)).collect();
                claimed.push(Filed { id, due_at: until, rows });
            }
            Ok((now, claimed))
        })
        .await
    }

    async fn kept(&self, ids: &[Uuid]) -> Result<Vec<Option<Kept>>, StoreError> {
        let ids = ids.to_vec();
        self.run(move |connection| {
            let mut statement = connection
                .prepare_cached(
                    "SELECT namespace, tool, version, state, settled_at,
                            CASE WHEN pruned = 1 THEN coalesce(pruned_at, settled_at) END,
                            needs_attention, coalesce(length(result), 0)
                     FROM intents WHERE id = ?1",
                )
                .map_err(nothing_written)?;
            ids.iter()
                .map(|id| {
                    let found = statement.query_row([id], read).optional();
                    found.map_err(nothing_written)?.map(kept).transpose()
                })
                .collect()
        })
        .await
    }

    async fn prune(&self, tombstones: &[Tombstone], policy: u32) -> Result<Vec<bool>, StoreError> {
        let tombstones = tombstones.to_vec();
        self.in_transaction(move |transaction| {
            let holds = active_version(transaction)? == policy;
            let at = clock();
            tombstones.iter().map(|left| Ok(holds && prune(transaction, left, at)?)).collect()
        })
        .await
    }

    async fn purge(&self, rows: &[(Uuid, Version)], policy: u32) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.in_transaction(move |transaction| {
            let holds = active_version(transaction)? == policy;
            let purge =
                |(id, version): &(Uuid, Version)| Ok(holds && purge(transaction, *id, *version)?);
            rows.iter().map(purge).collect()
        })
        .await
    }

    async fn file(&self, claimed: &[Filed], looks: &[NextLook]) -> Result<(), StoreError> {
        let (claimed, looks) = (claimed.to_vec(), looks.to_vec());
        self.in_transaction(move |transaction| {
            let mut gone = HashSet::new();
            for entry in claimed {
                let taken = transaction
                    .prepare_cached("DELETE FROM retention_batches WHERE due_at = ?1 AND id = ?2")?
                    .execute(params![entry.due_at.micros(), entry.id])?;
                if taken == 1 {
                    gone.insert(entry.id);
                }
            }
            for look in looks {
                let rows = look.rows.iter().filter(|(_, entry)| gone.contains(entry));
                let ids: Vec<u8> = rows.flat_map(|(row, _)| row.into_bytes()).collect();
                file_ids(transaction, look.due_at, &ids)?;
            }
            Ok(())
        })
        .await
    }
}

/// Files ids, one after the other, in the calendar.
pub(super) fn file_ids(
    connection: &Connection,
    due_at: Timestamp,
    ids: &[u8],
) -> rusqlite::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    connection
        .prepare_cached("INSERT INTO retention_batches (due_at, id, intents) VALUES (?1, ?2, ?3)")?
        .execute(params![due_at.micros(), ids::random(), ids])?;
    Ok(())
}

fn prune(connection: &Connection, left: &Tombstone, at: Timestamp) -> rusqlite::Result<bool> {
    let row = Columns::of(&left.intent, left.version);
    let changed = connection
        .prepare_cached(
            "UPDATE intents SET version = ?3, result = NULL, result_sha256 = ?4, result_size = ?5,
                 details = ?6, pruned = 1, pruned_at = ?7
             WHERE id = ?1 AND version = ?2 AND state IN (?8, ?9, ?10)",
        )?
        .execute(params![
            row.id,
            signed(left.expected),
            signed(left.version),
            row.result_sha256,
            row.result_size,
            row.details,
            at.micros(),
            state_to_code(State::Completed),
            state_to_code(State::Failed),
            state_to_code(State::Denied),
        ])?;
    if changed == 1 {
        delete_from(connection, &BELONGINGS_OF_RESULTS, row.id)?;
    }
    Ok(changed == 1)
}

fn purge(connection: &Connection, id: Uuid, version: Version) -> rusqlite::Result<bool> {
    let namespace: Option<String> = connection
        .prepare_cached(
            "DELETE FROM intents WHERE id = ?1 AND version = ?2 AND pruned = 1 RETURNING namespace",
        )?
        .query_row(params![id, signed(version)], |row| row.get(0))
        .optional()?;
    let Some(namespace) = namespace else { return Ok(false) };
    // Orphan facts are a tenant's own, and another's stay.
    connection
        .prepare_cached("DELETE FROM orphan_facts WHERE id = ?1 AND namespace = ?2")?
        .execute(params![id, namespace])?;
    delete_from(connection, &BELONGINGS, id)?;
    Ok(true)
}

fn delete_from(connection: &Connection, tables: &[(&str, &str)], id: Uuid) -> rusqlite::Result<()> {
    for (table, column) in tables {
        let statement = format!("DELETE FROM {table} WHERE {column} = ?1");
        connection.prepare_cached(&statement)?.execute([id])?;
    }
    Ok(())
}

/// What is read of a row; its state is a code still.
type Read = (i16, Kept);

fn read(row: &Row<'_>) -> rusqlite::Result<Read> {
    let time = |at: Option<i64>| at.map(Timestamp::from_micros);
    let kept = Kept {
        namespace: row.get(0)?,
        tool: row.get(1)?,
        version: unsigned(row.get(2)?),
        term: Term {
            state: State::Unknown,
            settled_at: time(row.get(4)?),
            pruned_at: time(row.get(5)?),
            needs_attention: row.get(6)?,
        },
        result_bytes: row.get::<_, i64>(7)?.unsigned_abs(),
    };
    Ok((row.get(3)?, kept))
}

fn kept((code, mut kept): Read) -> Result<Kept, StoreError> {
    kept.term.state = state_from_code(code)?;
    Ok(kept)
}
