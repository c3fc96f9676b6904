//! The schema's migrations, embedded in the binary.

use refinery::{Migration, Runner};
use rusqlite::Connection;

use super::{OpenError, StoreError};

const MIGRATIONS: [(&str, &str); 7] = [
    ("create_ledger", include_str!("../../../migrations/sqlite/0001_create_ledger.sql")),
    ("watch_open_intents", include_str!("../../../migrations/sqlite/0002_watch_open_intents.sql")),
    ("remember_attempts", include_str!("../../../migrations/sqlite/0003_remember_attempts.sql")),
    (
        "guard_runs_and_subjects",
        include_str!("../../../migrations/sqlite/0004_guard_runs_and_subjects.sql"),
    ),
    ("schedule_retention", include_str!("../../../migrations/sqlite/0005_schedule_retention.sql")),
    (
        "complete_in_transaction",
        include_str!("../../../migrations/sqlite/0006_complete_in_transaction.sql"),
    ),
    (
        "find_references_and_changes",
        include_str!("../../../migrations/sqlite/0007_find_references_and_changes.sql"),
    ),
];

const HISTORY: &str = "intent_ledger_migrations";

/// Brings the schema up; says from which version to which.
pub(super) fn migrate(connection: &mut Connection) -> Result<(u32, u32), OpenError> {
    let unreadable =
        |error: rusqlite::Error| OpenError::Store(StoreError::Unavailable(error.into()));
    let before = version(connection).map_err(unreadable)?;
    let needed = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    if before > needed {
        return Err(OpenError::Schema {
            found: before,
            needed,
            remedy: "run the newer version of intent-ledger that migrated it",
        });
    }
    if before < needed {
        let migrations = MIGRATIONS
            .iter()
            .zip(1..)
            .map(|((name, sql), number)| Migration::unapplied(&format!("V{number}__{name}"), sql))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| OpenError::Migrate(error.into()))?;
        let mut runner = Runner::new(&migrations);
        runner.set_migration_table_name(HISTORY);
        runner.run(connection).map_err(|error| OpenError::Migrate(error.into()))?;
    }
    Ok((before, version(connection).map_err(unreadable)?))
}

/// Refuses a schema that is older or newer than this program.
pub(super) fn check(connection: &Connection) -> Result<(), OpenError> {
    let found = version(connection)
        .map_err(|error| OpenError::Store(StoreError::Unavailable(error.into())))?;
    let needed = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    let remedy = if found < needed {
        "run `intent-ledger migrate --store URL`, or let `intent-ledger serve` do it"
    } else {
        "run the newer version of intent-ledger that migrated it"
    };
    if found == needed { Ok(()) } else { Err(OpenError::Schema { found, needed, remedy }) }
}

fn version(connection: &Connection) -> rusqlite::Result<u32> {
    let there = connection
        .prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1")?
        .exists([HISTORY])?;
    if !there {
        return Ok(0);
    }
    connection.query_row(&format!("SELECT coalesce(max(version), 0) FROM {HISTORY}"), [], |row| {
        row.get(0)
    })
}
