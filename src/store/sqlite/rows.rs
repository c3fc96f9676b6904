//! A row to and from its columns.

use std::borrow::Cow;

use rusqlite::{
    Connection, Row, params_from_iter,
    types::{FromSql, ToSqlOutput, ValueRef},
};

use uuid::Uuid;

use super::sql;
use crate::store::{
    Version,
    columns::{COLUMNS, Columns, Line, Part, Value, signed},
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
}

impl Line<'static> for Reader<'_> {
    type Error = rusqlite::Error;

    fn bool(&mut self) -> rusqlite::Result<bool> {
        self.take()
    }

    fn int2(&mut self) -> rusqlite::Result<Option<i16>> {
        self.take()
    }

    fn int4(&mut self) -> rusqlite::Result<i32> {
        self.take()
    }

    fn int8(&mut self) -> rusqlite::Result<Option<i64>> {
        self.take()
    }

    fn time(&mut self) -> rusqlite::Result<Option<i64>> {
        self.take()
    }

    fn uuid(&mut self) -> rusqlite::Result<Option<Uuid>> {
        self.take()
    }

    fn hash(&mut self) -> rusqlite::Result<Option<[u8; 32]>> {
        self.take()
    }

    fn bytes(&mut self) -> rusqlite::Result<Option<Cow<'static, [u8]>>> {
        Ok(self.take::<Option<Vec<u8>>>()?.map(Cow::Owned))
    }

    fn text(&mut self) -> rusqlite::Result<Option<Cow<'static, str>>> {
        Ok(self.take::<Option<String>>()?.map(Cow::Owned))
    }
}

/// The columns of a row that `sql::select` read.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Columns<'static>> {
    Columns::read(&mut Reader { row, next: 0 })
}
