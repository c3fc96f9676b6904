//! The schema's migrations, embedded in the binary.

use refinery::{Migration, Runner};
use tokio_postgres::{Client, NoTls};

use super::{OpenError, StoreError};

const MIGRATIONS: [(&str, &str); 1] =
    [("create_ledger", include_str!("../../../migrations/postgres/0001_create_ledger.sql"))];

/// Held while a schema is migrated, so that of several pods one does it. One of ours.
const MIGRATION_LOCK: i64 = 0x1e_d9e4_0000;

const HISTORY: &str = "intent_ledger_migrations";

/// Brings the schema up; says from which version to which.
pub async fn migrate(address: &str) -> Result<(u32, u32), OpenError> {
    let unreachable =
        |error: tokio_postgres::Error| OpenError::Store(StoreError::Unavailable(error.into()));
    let (mut client, connection) =
        tokio_postgres::connect(address, NoTls).await.map_err(unreachable)?;
    let driver = tokio::spawn(connection);
    client.execute("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await.map_err(unreachable)?;
    let before = version(&client).await.map_err(unreachable)?;
    if before <= newest() {
        runner()?.run_async(&mut client).await.map_err(|error| OpenError::Migrate(error.into()))?;
    }
    let after = version(&client).await.map_err(unreachable)?;
    drop(client);
    // The lock ends with the session.
    driver.await.ok();
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
    let there = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&HISTORY]).await?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    let row = client
        .query_one(&format!("SELECT coalesce(max(version), 0)::int4 FROM {HISTORY}"), &[])
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
