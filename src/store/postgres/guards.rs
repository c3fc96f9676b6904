//! The guards in Postgres: what a batch that has some is sent with, and what they are decided on.
//!
//! Several servers may want the last slot of a run at once, and none of their statements sees what the
//! others are writing. So a batch takes the locks of its runs and subjects first, in a statement of its
//! own: the snapshot of the one that looks and writes is taken once nobody else is between the two.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{
    PostgresStore,
    parameters::{micros, time},
};
use crate::{
    domain::{identity::Key, time::Timestamp},
    store::{
        StoreError, Write,
        codes::state_from_code,
        columns::corrupt,
        guards::{Guarded, LOOK_ALIKES_MAX, LookAlike},
    },
};

/// Takes the locks that a parameter names, in their order: by their numbers, so that no two batches wait for
/// each other. The first number is one of ours: such locks meet none but each other.
pub(super) fn locks_of(parameter: usize) -> String {
    format!("pg_advisory_xact_lock(7897, k) FROM unnest(${parameter}::int4[]) AS k")
}

/// `store.guards.lock`.
pub(super) fn lock() -> String {
    format!("SELECT {}", locks_of(1))
}

/// The locks of a batch. Two runs may share one: they then wait for each other, and no more.
pub(super) fn locks(writes: &[&Write]) -> Vec<i32> {
    let guards = writes.iter().filter_map(|write| write.guards());
    let ids = guards.flat_map(|guards| {
        let run = guards.limited().map(|(run, _)| run);
        run.into_iter().chain(guards.alone().map(|(subject, _)| subject))
    });
    let number = |id: Uuid| {
        let [a, b, c, d, ..] = id.into_bytes();
        i32::from_be_bytes([a, b, c, d])
    };
    ids.map(number).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The writes of a batch that are refused: those that find no slot left, or others under their subject.
/// Within the batch the first come first, whether or not they come about.
pub(super) const BLOCKED: &str = "turns AS (
            SELECT g.*, row_number() OVER (PARTITION BY g.takes ORDER BY g.id) AS turn_in_run,
                row_number() OVER (PARTITION BY g.subject ORDER BY g.id) AS turn_in_subject
            FROM g),
        blocked AS (
            SELECT t.id FROM turns t
            WHERE (t.slots_max IS NOT NULL AND t.slots_max < t.turn_in_run
                    + (SELECT count(*) FROM run_slots s WHERE s.id = t.takes))
               OR (t.alone_since IS NOT NULL AND (t.turn_in_subject > 1 OR EXISTS (
                    SELECT FROM look_alikes l JOIN intents i ON i.id = l.intent
                    WHERE l.id = t.subject AND l.created_at > t.alone_since AND l.intent <> t.id))))";

/// What is kept with the writes that happened.
pub(super) const KEEP: &str = "held AS (
            INSERT INTO run_slots (id, intent)
            SELECT g.takes, g.id FROM g JOIN written USING (id) WHERE g.takes IS NOT NULL
            ON CONFLICT (id, intent) DO NOTHING),
        given_back AS (
            DELETE FROM run_slots s USING g JOIN written USING (id)
            WHERE s.id = g.gives_back AND s.intent = g.id),
        remembered AS (
            INSERT INTO look_alikes (id, created_at, intent, expires_at)
            SELECT g.subject, clock.at, g.id, clock.at + g.window_span * interval '1 microsecond'
            FROM g JOIN written USING (id), clock WHERE g.subject IS NOT NULL
            ON CONFLICT (id, created_at, intent) DO NOTHING)";

/// New rows that nobody was granted, to be looked at when they run out.
pub(super) const PUT_PROPOSALS: &str = "proposed AS (
            INSERT INTO open_intents (id, namespace, tool, due_at, proposal)
            SELECT n.id, n.namespace, n.tool, g.due_at, true
            FROM g JOIN written USING (id) JOIN n USING (id) WHERE g.due_at IS NOT NULL ORDER BY n.id
            ON CONFLICT (id) DO NOTHING)";

#[async_trait]
impl Guarded for PostgresStore {
    async fn slots_held(&self, run: Uuid) -> Result<u64, StoreError> {
        let rows = self
            .query("SELECT count(*) FROM run_slots WHERE id = $1", &[(&run, Type::UUID)])
            .await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn look_alikes(
        &self,
        subject: Uuid,
        since: Timestamp,
    ) -> Result<Vec<LookAlike>, StoreError> {
        let most = i64::try_from(LOOK_ALIKES_MAX).unwrap_or(i64::MAX);
        let rows = self
            .query(
                "SELECT i.key, i.state, i.run_id, i.created_at
                 FROM look_alikes l JOIN intents i ON i.id = l.intent
                 WHERE l.id = $1 AND l.created_at > $2
                 ORDER BY l.created_at DESC, l.intent LIMIT $3",
                &[(&subject, Type::UUID), (&time(since), Type::TIMESTAMPTZ), (&most, Type::INT8)],
            )
            .await?;
        let look_alike = |row: &tokio_postgres::Row| {
            let key: [u8; 32] = row
                .get::<_, &[u8]>(0)
                .try_into()
                .map_err(|_| corrupt("key", "is not 32 bytes long"))?;
            Ok(LookAlike {
                key: Key::from_bytes(key),
                state: state_from_code(row.get(1))?,
                run_id: row.get(2),
                created_at: micros(row.get(3)),
            })
        };
        rows.iter().map(look_alike).collect()
    }

    async fn forget_look_alikes(&self, rows_max: usize) -> Result<usize, StoreError> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        let rows = self
            .query_again(
                "WITH old AS (
                     SELECT id, created_at, intent FROM look_alikes WHERE expires_at <= now()
                     ORDER BY expires_at LIMIT $1),
                 gone AS (
                     DELETE FROM look_alikes l USING old
                     WHERE l.id = old.id AND l.created_at = old.created_at AND l.intent = old.intent
                     RETURNING 1)
                 SELECT count(*) FROM gone",
                &[(&rows_max, Type::INT8)],
            )
            .await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }
}
