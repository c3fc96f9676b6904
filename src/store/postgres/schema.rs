//! The schema's migrations, embedded in the binary.

use refinery::{Migration, Runner};
use tokio_postgres::{Client, NoTls, types::Type};

use super::{OpenError, StoreError};

const MIGRATIONS: [(&str, &str); 7] = [
    ("create_ledger", include_str!("../../../migrations/postgres/0001_create_ledger.sql")),
    (
        "watch_open_intents",
        include_str!("../../../migrations/postgres/0002_watch_open_intents.sql"),
    ),
    ("remember_attempts", include_str!("../../../migrations/postgres/0003_remember_attempts.sql")),
    (
        "guard_runs_and_subjects",
        include_str!("../../../migrations/postgres/0004_guard_runs_and_subjects.sql"),
    ),
    (
        "schedule_retention",
        include_str!("../../../migrations/postgres/0005_schedule_retention.sql"),
    ),
    (
        "complete_in_transaction",
        include_str!("../../../migrations/postgres/0006_complete_in_transaction.sql"),
    ),
    (
        "find_references_and_changes",
        include_str!("../../../migrations/postgres/0007_find_references_and_changes.sql"),
    ),
];

/// Held while a schema is migrated, so that of several pods one does it. One of ours.
const MIGRATION_LOCK: i64 = 0x1e_d9e4_0000;

const HISTORY: &str = "intent_ledger_migrations";

/// Brings the schema up; says from which version to which.
pub async fn migrate(address: &str) -> Result<(u32, u32), OpenError> {
    let unreachable =
        |error: tokio_postgres::Error| OpenError::Store(StoreError::Unavailable(error.into()));
    let connect = || tokio_postgres::connect(address, NoTls);
    // The lock is a transaction's, on a connection of its own: a pooler that lends a session for
    // one transaction cannot leave it behind.
    let (guard, guard_connection) = connect().await.map_err(unreachable)?;
    let guard_driver = tokio::spawn(guard_connection);
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
    guard.batch_execute(&lock).await.map_err(unreachable)?;

    let (mut client, connection) = connect().await.map_err(unreachable)?;
    let driver = tokio::spawn(connection);
    let before = version(&client).await.map_err(unreachable)?;
    if before <= newest() {
        runner()?.run_async(&mut client).await.map_err(|error| OpenError::Migrate(error.into()))?;
    }
    let after = version(&client).await.map_err(unreachable)?;
    drop(client);
    driver.await.ok();
    guard.batch_execute("COMMIT").await.map_err(unreachable)?;
    drop(guard);
    guard_driver.await.ok();
    if after > newest() { Err(mismatch(after)) } else { Ok((before, after)) }
}

/// Refuses a schema that is older or newer than this program.
pub(super) async fn check(client: &Client) -> Result<(), OpenError> {
    let found = version(client)
        .await
        .map_err(|error| OpenError::Store(StoreError::Unavailable(error.into())))?;
    if found == newest() { Ok(()) } else { Err(mismatch(found)) }
}

fn mismatch(found: u32) -> OpenError {
    let needed = newest();
    let remedy = if found < needed {
        "run `intent-ledger migrate --store URL`"
    } else {
        "run the newer version of intent-ledger that migrated it"
    };
    OpenError::Schema { found, needed, remedy }
}

async fn version(client: &Client) -> Result<u32, tokio_postgres::Error> {
    let there = client
        .query_typed_one("SELECT to_regclass($1) IS NOT NULL", &[(&HISTORY, Type::TEXT)])
        .await?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    let row = client
        .query_typed_one(&format!("SELECT coalesce(max(version), 0)::int4 FROM {HISTORY}"), &[])
        .await?;
    Ok(super::unsigned(row.get(0)))
}

fn newest() -> u32 {
    MIGRATIONS.len().try_into().unwrap_or(u32::MAX)
}

fn runner() -> Result<Runner, OpenError> {
    let migrations = MIGRATIONS
        .iter()
        .zip(1..)
        .map(|((name, sql), number)| Migration::unapplied(&format!("V{number}__{name}"), sql))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| OpenError::Migrate(error.into()))?;
    let mut runner = Runner::new(&migrations);
    runner.set_migration_table_name(HISTORY);
    Ok(runner)
}
