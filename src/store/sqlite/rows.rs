//! A row to and from its columns.

use std::borrow::Cow;

use rusqlite::{
    Connection, Row, params_from_iter,
    types::{FromSql, ToSqlOutput, ValueRef},
};

use super::sql;
use crate::store::{
    Version,
    columns::{COLUMNS, Columns, Part, Value, signed},
};

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Bool(value) => ValueRef::Integer(i64::from(*value)),
            Value::Int2(value) => ValueRef::Integer(i64::from(*value)),
            Value::Int4(value) => ValueRef::Integer(i64::from(*value)),
            Value::Int8(value) | Value::Time(value) => ValueRef::Integer(*value),
            Value::Uuid(value) => ValueRef::Blob(value.as_bytes()),
            Value::Bytes(value) => ValueRef::Blob(value),
            Value::Text(value) => ValueRef::Text(value.as_bytes()),
        }))
    }
}

/// Inserts a row if there is none; says how many were inserted.
pub(super) fn insert(connection: &Connection, row: &Columns<'_>) -> rusqlite::Result<usize> {
    let values = COLUMNS.iter().map(|column| (column.of)(row));
    connection.prepare_cached(&sql::INSERT)?.execute(params_from_iter(values))
}

/// Replaces a row if it has the expected version; says how many were replaced.
pub(super) fn replace(
    connection: &Connection,
    row: &Columns<'_>,
    expected: Version,
) -> rusqlite::Result<usize> {
    let guards = [Value::Uuid(row.id), Value::Int4(signed(expected))];
    let columns = COLUMNS.iter().filter(|column| column.part != Part::Identity);
    let values = guards.into_iter().chain(columns.map(|column| (column.of)(row)));
    connection.prepare_cached(&sql::REPLACE)?.execute(params_from_iter(values))
}

/// Reads a row's columns one after the other.
struct Reader<'a> {
    row: &'a Row<'a>,
    next: usize,
}

impl Reader<'_> {
    fn take<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        let value = self.row.get(self.next);
        self.next += 1;
        value
    }

    fn text(&mut self) -> rusqlite::Result<Cow<'static, str>> {
        self.take().map(Cow::Owned)
    }

    fn some_text(&mut self) -> rusqlite::Result<Option<Cow<'static, str>>> {
        Ok(self.take::<Option<String>>()?.map(Cow::Owned))
    }
}

/// The columns of a row that `sql::select` read.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Columns<'static>> {
    let mut row = Reader { row, next: 0 };
    Ok(Columns {
        id: row.take()?,
        version: row.take()?,
        key: row.take()?,
        key_basis: row.take()?,
        policy_version: row.take()?,
        hash_version: row.take()?,
        fingerprint: row.take()?,
        argument_digests: row.take().map(Cow::Owned)?,
        namespace: row.text()?,
        tool: row.text()?,
        run_id: row.text()?,
        step_id: row.text()?,
        tool_call_id: row.some_text()?,
        created_at: row.take()?,
        state: row.take()?,
        attempt: row.take()?,
        attempt_id: row.take()?,
        caller: row.some_text()?,
        granted_on: row.take()?,
        granted_at: row.take()?,
        lease_expires_at: row.take()?,
        extended: row.take()?,
        fate: row.take()?,
        reports: row.take()?,
        result: row.take::<Option<Vec<u8>>>()?.map(Cow::Owned),
        result_content_type: row.some_text()?,
        result_sha256: row.take()?,
        result_size: row.take()?,
        result_truncated: row.take()?,
        pruned: row.take()?,
        provenance: row.take()?,
        settled_at: row.take()?,
        downstream_ref: row.some_text()?,
        downstream_key: row.take()?,
        needs_attention: row.take()?,
        conflict: row.take()?,
        details: row.take()?,
        replay_count: row.take()?,
        last_seen_at: row.take()?,
    })
}
