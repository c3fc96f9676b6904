//! `migrate`: brings the schema of a store up to this program's.

use anyhow::anyhow;
use clap::Args;

use super::{
    input::UsageError,
    output::{self, failed_to},
};
use crate::store::{self, OpenError, StoreOptions};

const EXAMPLE: &str = "\
Run it before a new version of `serve` on Postgres: once for all replicas, any number of times. An
embedded store is migrated by `serve` itself.

Example:
  $ intent-ledger migrate --store postgres://ledger@db.internal/ledger
  schema: version 0 → 6";

/// Flags of `migrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct MigrateFlags {
    /// The store: postgres://… or sqlite:PATH, made if absent
    #[arg(long, env = "INTENT_LEDGER_STORE", value_name = "URL", hide_env_values = true)]
    store: String,
}

pub(super) fn run(flags: &MigrateFlags) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let migrated = runtime.block_on(store::migrate(&StoreOptions::new(&flags.store)));
    let (from, to) = migrated.map_err(|error| match error {
        OpenError::Address(_) => UsageError(failed_to(error)).into(),
        other => anyhow!(failed_to(other)),
    })?;
    let text = if from == to {
        format!("schema: version {to}, nothing to do\n")
    } else {
        format!("schema: version {from} → {to}\n")
    };
    output::write(&text)?;
    Ok(0)
}
