//! The guards in SQLite, whose one writer needs no lock for them.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::{SqliteStore, clock, nothing_written, state_from_code};
use crate::{
    domain::{identity::Key, time::Timestamp},
    store::{
        StoreError, Write,
        guards::{Guarded, LOOK_ALIKES_MAX, LookAlike, SlotMove},
    },
};

#[async_trait]
impl Guarded for SqliteStore {
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError> {
        self.run(move |connection| slots_held(connection, run).map_err(nothing_written)).await
    }

    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError> {
        let most = i64::try_from(LOOK_ALIKES_MAX).unwrap_or(i64::MAX);
        let rows: Vec<(_, i16, _, i64)> = self
            .run(move |connection| {
                connection
                    .prepare_cached(
                        "SELECT i.key, i.state, i.run_id, i.created_at
                         FROM look_alikes l JOIN intents i ON i.id = l.intent
                         WHERE l.id = ?1 AND l.created_at > ?2
                         ORDER BY l.created_at DESC, l.intent LIMIT ?3",
                    )
                    .and_then(|mut statement| {
                        let row = |row: &rusqlite::Row<'_>| {
                            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                        };
                        statement.query_map(params![subject, since.micros(), most], row)?.collect()
                    })
                    .map_err(nothing_written)
            })
            .await?;
        let look_alike = |(key, state, run_id, created_at)| {
            Ok(LookAlike {
                key: Key::from_bytes(key),
                state: state_from_code(state)?,
                run_id,
                created_at: Timestamp::from_micros(created_at),
            })
        };
        rows.into_iter().map(look_alike).collect()
    }

    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.in_transaction(move |transaction| {
            transaction
                .prepare_cached(
                    "DELETE FROM look_alikes WHERE (id, created_at, intent) IN (
                         SELECT id, created_at, intent FROM look_alikes WHERE expires_at <= ?1
                         ORDER BY expires_at LIMIT ?2)",
                )?
                .execute(params![clock().micros(), rows_max])
        })
        .await
    }
}

fn slots_held(connection: &Connection, run: Uuid) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT count(*) FROM run_slots WHERE id = ?1")?
        .query_row([run], |row| row.get::<_, i64>(0))
        .map(i64::unsigned_abs)
}

/// Whether a write's guards refuse it.
pub(super) fn refuse(connection: &Connection, write: &Write) -> rusqlite::Result<bool> {
    let Some(guards) = write.guards() else { return Ok(false) };
    if let Some((run, limit)) = guards.limited()
        && slots_held(connection, run)? >= u64::from(limit)
    {
        return Ok(true);
    }
    let Some((subject, since)) = guards.alone() else { return Ok(false) };
    connection
        .prepare_cached(
            "SELECT 1 FROM look_alikes l JOIN intents i ON i.id = l.intent
             WHERE l.id = ?1 AND l.created_at > ?2 AND l.intent <> ?3",
        )?
        .exists(params![subject, since.micros(), write.row_id()])
}

/// Keeps what a write that has happened at `at` takes beside its row.
pub(super) fn keep(connection: &Connection, write: &Write, at: Timestamp) -> rusqlite::Result<()> {
    let Some(guards) = write.guards() else { return Ok(()) };
    match guards.slot {
        Some(SlotMove::Take { run, .. }) => {
            connection
                .prepare_cached(
                    "INSERT INTO run_slots (id, intent) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                )?
                .execute(params![run, write.row_id()])?;
        }
        Some(SlotMove::GiveBack { run }) => {
            connection
                .prepare_cached("DELETE FROM run_slots WHERE id = ?1 AND intent = ?2")?
                .execute(params![run, write.row_id()])?;
        }
        None => {}
    }
    if let Some(subject) = guards.subject {
        connection
            .prepare_cached(
                "INSERT INTO look_alikes (id, created_at, intent, expires_at)
                 VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                subject.id,
                at.micros(),
                write.row_id(),
                (at + subject.window).micros()
            ])?;
    }
    Ok(())
}
