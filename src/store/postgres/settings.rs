//! The settings of the server that decide whether an acknowledged commit survives.

use tokio_postgres::Client;

use crate::store::Setting;

/// The settings that decide whether an acknowledged commit survives.
pub(super) async fn read(client: &Client) -> Result<Vec<Setting>, tokio_postgres::Error> {
    let rows = client
        .query_typed(
            "SELECT name, setting FROM pg_settings WHERE name IN
             ('synchronous_commit', 'fsync', 'full_page_writes', 'synchronous_standby_names',
              'default_transaction_isolation', 'default_transaction_read_only')
             ORDER BY name",
            &[],
        )
        .await?;
    let values: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let standbys =
        values.iter().any(|(name, value)| name == "synchronous_standby_names" && !value.is_empty());
    Ok(values
        .into_iter()
        .map(|(name, value)| Setting { problem: problem(&name, &value, standbys), name, value })
        .collect())
}

fn problem(name: &str, value: &str, standbys: bool) -> Option<String> {
    let lost = match (name, value) {
        ("fsync" | "full_page_writes", "off") => "a crash of the machine can lose commits",
        ("synchronous_commit", "off") => "a crash loses acknowledged commits",
        ("synchronous_commit", "local" | "remote_write") if standbys => {
            "a failover to the standby loses acknowledged commits"
        }
        ("default_transaction_isolation", "repeatable read" | "serializable") => {
            "writes that meet each other fail instead of waiting"
        }
        ("default_transaction_read_only", "on") => "nothing can be written",
        _ => return None,
    };
    Some(format!("{name} is {value}: {lost}"))
}
