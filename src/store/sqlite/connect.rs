//! A connection to the file, with the settings that keep what was acknowledged.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use super::{OpenError, StoreError};

/// How long another process on the same file is waited for.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) fn connect(path: &str) -> Result<Connection, OpenError> {
    settle(file(path, OpenFlags::SQLITE_OPEN_CREATE)?)
}

pub(super) fn unavailable(error: rusqlite::Error) -> OpenError {
    OpenError::Store(StoreError::Unavailable(error.into()))
}

pub(super) fn file(path: &str, more: OpenFlags) -> Result<Connection, OpenError> {
    if path.is_empty() || path.contains('\0') {
        return Err(OpenError::Address(format!("sqlite:{path}")));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(Path::new(path), flags).map_err(unavailable)?;
    connection.busy_timeout(BUSY_WAIT_MAX).map_err(unavailable)?;
    Ok(connection)
}

pub(super) fn settle(connection: Connection) -> Result<Connection, OpenError> {
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(unavailable)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}
