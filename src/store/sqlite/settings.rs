//! The settings of the file that decide whether an acknowledged commit survives.

use rusqlite::Connection;

use crate::store::Setting;

/// The settings that decide whether an acknowledged commit survives.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<Setting>> {
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    let problem = |bad: bool, what: &str| bad.then(|| what.to_owned());
    Ok(vec![
        Setting {
            problem: problem(mode != "wal", "the journal is not a write-ahead log"),
            name: "journal_mode".to_owned(),
            value: mode,
        },
        Setting {
            problem: problem(synchronous < 2, "a power cut loses acknowledged commits"),
            name: "synchronous".to_owned(),
            value: synchronous.to_string(),
        },
    ])
}
