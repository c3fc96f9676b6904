//! A batch of rows as arrays of columns, and a row back from its columns.

use std::{
    borrow::Cow,
    error::Error,
    fmt,
    num::TryFromIntError,
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use bytes::{BufMut, BytesMut};
use postgres_protocol::{
    IsNull as Nullness,
    types::{ArrayDimension, array_to_sql},
};
use tokio_postgres::{
    Client, Row as Read,
    types::{FromSql, IsNull, Kind as TypeKind, ToSql, Type, to_sql_checked},
};
use uuid::Uuid;

use super::{EPOCH, Shape, StoreError, fault::nothing_written, sql::element};
use crate::{
    domain::time::Timestamp,
    store::{
        Change, Expected, Write,
        columns::{COLUMNS, Columns, EventColumns, Kind, Line, Part, Value, signed},
        guards::{Guards, SlotMove, Subject},
    },
};

/// Postgres counts microseconds from the year 2000.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A time as the driver takes it.
pub(super) fn time(at: Timestamp) -> SystemTime {
    let span = Duration::from_micros(at.micros().unsigned_abs());
    if at.micros() < 0 { EPOCH - span } else { EPOCH + span }
}

/// A time as the driver gives it.
pub(super) fn micros(at: SystemTime) -> Timestamp {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(match at.duration_since(EPOCH) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    })
}

/// A row to be written, as its columns and what must hold.
pub(super) struct Row<'a> {
    columns: Columns<'a>,
    write: &'a Write,
}

impl Row<'_> {
    fn expected(&self) -> i32 {
        match self.write.expected {
            Expected::Version(version) => signed(version),
            Expected::Absent { .. } => 0,
        }
    }

    fn guards(&self) -> Option<&Guards> {
        self.write.guards()
    }

    fn subject(&self) -> Option<Subject> {
        self.guards()?.subject
    }

    fn orphans_seen(&self) -> bool {
        matches!(self.write.expected, Expected::Absent { orphans_seen: true })
    }

    fn lease_micros(&self) -> Value<'static> {
        match (self.columns.granted_at, self.columns.lease_expires_at) {
            (Some(granted_at), Some(end)) => Value::Int8(end.saturating_sub(granted_at)),
            _ => Value::Null,
        }
    }
}

/// One field of the rows that a statement takes.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    of: Of,
}

/// Where a field's value comes from.
enum Of {
    Column(for<'a> fn(&'a Columns<'_>) -> Value<'a>),
    Guard(for<'a> fn(&'a Row<'_>) -> Value<'a>),
}

impl Field {
    fn of<'a>(&self, row: &'a Row<'_>) -> Value<'a> {
        match self.of {
            Of::Column(of) => of(&row.columns),
            Of::Guard(of) => of(row),
        }
    }

    fn guard(name: &'static str, kind: Kind, of: for<'a> fn(&'a Row<'_>) -> Value<'a>) -> Self {
        Self { name, kind, of: Of::Guard(of) }
    }
}

fn columns(takes: impl Fn(Part, &str) -> bool) -> impl Iterator<Item = Field> {
    let columns = COLUMNS.iter().filter(move |column| takes(column.part, column.name));
    columns.map(|column| Field { name: column.name, kind: column.kind, of: Of::Column(column.of) })
}

/// Of new rows: what the write does not know by itself.
pub(super) static NEW: LazyLock<Vec<Field>> = LazyLock::new(|| {
    const GIVEN: [&str; 5] = ["state", "attempt_id", "caller", "needs_attention", "details"];
    columns(|part, name| part == Part::Identity && name != "created_at" || GIVEN.contains(&name))
        .chain([
            Field::guard("lease", Kind::Int8, |row| row.lease_micros()),
            Field::guard("orphans_seen", Kind::Bool, |row| Value::Bool(row.orphans_seen())),
        ])
        .collect()
});

/// Of ordinary settlements.
pub(super) static SETTLED: LazyLock<Vec<Field>> = LazyLock::new(|| {
    columns(|part, name| name == "id" || part == Part::Settlement && name != "settled_at")
        .chain([Field::guard("expected", Kind::Int4, |row| Value::Int4(row.expected()))])
        .collect()
});

/// Of other changes: all that can change, and what must hold.
pub(super) static CHANGED: LazyLock<Vec<Field>> = LazyLock::new(|| {
    columns(|part, name| name == "id" || part != Part::Identity)
        .chain([
            Field::guard("expected", Kind::Int4, |row| Value::Int4(row.expected())),
            Field::guard("policy", Kind::Int4, |row| {
                row.write.policy.map_or(Value::Null, |version| Value::Int4(signed(version)))
            }),
            Field::guard("settles", Kind::Bool, |row| {
                Value::Bool(row.write.change == Change::Other { settles: true })
            }),
            Field::guard("due_at", Kind::Time, |row| {
                row.write.look_at.map_or(Value::Null, |at| Value::Time(at.micros()))
            }),
        ])
        .collect()
});

/// Of what is taken beside the rows.
pub(super) static GUARDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    vec![
        Field::guard("id", Kind::Uuid, |row| Value::Uuid(row.columns.id)),
        Field::guard("takes", Kind::Uuid, |row| match row.guards().and_then(|it| it.slot) {
            Some(SlotMove::Take { run, .. }) => Value::Uuid(run),
            _ => Value::Null,
        }),
        Field::guard("slots_max", Kind::Int4, |row| {
            let limited = row.guards().and_then(Guards::limited);
            limited.map_or(Value::Null, |(_, limit)| Value::Int4(signed(limit)))
        }),
        Field::guard("gives_back", Kind::Uuid, |row| match row.guards().and_then(|it| it.slot) {
            Some(SlotMove::GiveBack { run }) => Value::Uuid(run),
            _ => Value::Null,
        }),
        Field::guard("subject", Kind::Uuid, |row| {
            row.subject().map_or(Value::Null, |subject| Value::Uuid(subject.id))
        }),
        Field::guard("window_span", Kind::Int8, |row| {
            let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            row.subject().map_or(Value::Null, |subject| Value::Int8(micros(subject.window)))
        }),
        Field::guard("alone_since", Kind::Time, |row| {
            let alone = row.guards().and_then(Guards::alone);
            alone.map_or(Value::Null, |(_, since)| Value::Time(since.micros()))
        }),
        Field::guard("due_at", Kind::Time, |row| {
            let due_at = row.write.look_at.filter(|_| row.write.change == Change::New);
            due_at.map_or(Value::Null, |at| Value::Time(at.micros()))
        }),
    ]
});

/// What the write statement takes: new rows, settled and otherwise changed ones, and the facts of
/// all.
pub(super) struct Batch<'a> {
    new: Vec<Row<'a>>,
    settled: Vec<Row<'a>>,
    changed: Vec<Row<'a>>,
    events: Vec<Fact>,
    guards: Vec<Row<'a>>,
}

/// A fact to be kept beside a row.
pub(super) struct Fact {
    id: Uuid,
    columns: EventColumns,
}

/// Its fields.
const FACT: [(&str, Kind); 3] = [("id", Kind::Uuid), ("digest", Kind::Bytes), ("fact", Kind::Text)];

impl<'a> Batch<'a> {
    pub(super) fn of(writes: &[&'a Write]) -> Self {
        let mut batch = Self {
            new: Vec::new(),
            settled: Vec::new(),
            changed: Vec::new(),
            events: Vec::new(),
            guards: Vec::new(),
        };
        for write in writes {
            batch.push(write);
        }
        batch
    }

    fn push(&mut self, write: &'a Write) {
        for event in &write.events {
            let columns = EventColumns::of(event, write.version_after());
            self.events.push(Fact { id: write.row_id(), columns });
        }
        let row = Row { columns: Columns::of(&write.intent, write.version_after()), write };
        // A grant is remembered with its batch, and what is changed brings its own time to look.
        let is_proposal = write.change == Change::New && write.look_at.is_some();
        if write.guards.is_some() || is_proposal {
            self.guards.push(Row { columns: row.columns.clone(), write });
        }
        match write.change {
            Change::New => self.new.push(row),
            Change::Settlement => self.settled.push(row),
            Change::Other { .. } => self.changed.push(row),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape {
            new: !self.new.is_empty(),
            settled: !self.settled.is_empty(),
            changed: !self.changed.is_empty(),
            events: !self.events.is_empty(),
            guards: !self.guards.is_empty(),
        }
    }

    /// The parameters, in the order of `sql::write`.
    pub(super) fn parameters<'b>(&'b self, types: &RecordTypes) -> Vec<(Records<'b>, Type)> {
        [
            (&self.guards, &GUARDS, &types.guard),
            (&self.new, &NEW, &types.new),
            (&self.settled, &SETTLED, &types.settled),
            (&self.changed, &CHANGED, &types.changed),
        ]
        .into_iter()
        .filter(|(rows, ..)| !rows.is_empty())
        .map(|(rows, fields, of)| (Records::Rows(rows, fields), of.clone()))
        .chain(
            (!self.events.is_empty()).then(|| (Records::Facts(&self.events), types.fact.clone())),
        )
        .collect()
    }
}

/// The types of the arrays that a write takes, as the database numbers them.
pub(super) struct RecordTypes {
    new: Type,
    settled: Type,
    changed: Type,
    fact: Type,
    guard: Type,
}

impl RecordTypes {
    /// Reads them, and refuses a schema whose records have other fields than ours.
    pub(super) async fn read(client: &Client) -> Result<Self, StoreError> {
        let names = |fields: &[Field]| fields.iter().map(|field| field.name).collect::<Vec<_>>();
        Ok(Self {
            new: record(client, "new_intent", &names(&NEW)).await?,
            settled: record(client, "settled_intent", &names(&SETTLED)).await?,
            changed: record(client, "changed_intent", &names(&CHANGED)).await?,
            guard: record(client, "intent_guard", &names(&GUARDS)).await?,
            fact: record(client, "intent_fact", &FACT.map(|(name, _)| name)).await?,
        })
    }
}

async fn record(client: &Client, name: &str, fields: &[&str]) -> Result<Type, StoreError> {
    let rows = client
        .query_typed(
            "SELECT t.typarray, t.oid, array_agg(a.attname::text ORDER BY a.attnum)
             FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
             WHERE t.oid = to_regtype($1) GROUP BY t.typarray, t.oid",
            &[(&name, Type::TEXT)],
        )
        .await
        .map_err(nothing_written)?;
    let found = rows.first().filter(|row| row.get::<_, Vec<String>>(2) == fields);
    let row = found.ok_or_else(|| {
        StoreError::Corrupt(format!("the type {name} is not the one of this schema version"))
    })?;
    let element = Type::new(name.to_owned(), row.get(1), TypeKind::Pseudo, String::new());
    let array = TypeKind::Array(element);
    Ok(Type::new(format!("_{name}"), row.get(0), array, String::new()))
}

/// Rows as an array of records: one array for each column would be read by a function each, which
/// costs a lone caller more than the write.
#[derive(Clone, Copy)]
pub(super) enum Records<'a> {
    Rows(&'a [Row<'a>], &'static [Field]),
    Facts(&'a [Fact]),
}

impl fmt::Debug for Records<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows, _) => write!(f, "{} rows", rows.len()),
            Self::Facts(facts) => write!(f, "{} facts", facts.len()),
        }
    }
}

impl ToSql for Records<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let TypeKind::Array(element) = of.kind() else { return Err("is no array".into()) };
        let dimension = |len| {
            Ok::<_, TryFromIntError>(ArrayDimension { len: i32::try_from(len)?, lower_bound: 1 })
        };
        match *self {
            Self::Rows(rows, fields) => {
                let dimensions = Some(dimension(rows.len())?);
                array_to_sql(
                    dimensions,
                    element.oid(),
                    rows,
                    |row, out| {
                        put_record(fields.iter().map(|field| (field.kind, field.of(row))), out)
                    },
                    out,
                )?;
            }
            Self::Facts(facts) => {
                let dimensions = Some(dimension(facts.len())?);
                array_to_sql(
                    dimensions,
                    element.oid(),
                    facts,
                    |fact, out| {
                        let values = [
                            Value::Uuid(fact.id),
                            Value::Bytes(&fact.columns.digest),
                            Value::Text(&fact.columns.fact),
                        ];
                        put_record(FACT.iter().map(|(_, kind)| *kind).zip(values), out)
                    },
                    out,
                )?;
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        matches!(of.kind(), TypeKind::Array(_))
    }

    to_sql_checked!();
}

fn put_record<'a>(
    values: impl ExactSizeIterator<Item = (Kind, Value<'a>)>,
    out: &mut BytesMut,
) -> Result<Nullness, Box<dyn Error + Sync + Send>> {
    out.put_i32(i32::try_from(values.len())?);
    for (kind, value) in values {
        out.put_u32(element(kind).oid());
        let at = out.len();
        out.put_i32(-1); // null, unless it turns out otherwise
        if matches!(put(value, out), Nullness::No) {
            let length = i32::try_from(out.len() - at - 4)?;
            out[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
    }
    Ok(Nullness::No)
}

fn put(value: Value<'_>, out: &mut BytesMut) -> Nullness {
    match value {
        Value::Null => return Nullness::Yes,
        Value::Bool(value) => out.put_u8(u8::from(value)),
        Value::Int2(value) => out.put_i16(value),
        Value::Int4(value) => out.put_i32(value),
        Value::Int8(value) => out.put_i64(value),
        Value::Time(micros) => out.put_i64(micros - POSTGRES_EPOCH_MICROS),
        Value::Uuid(value) => out.put_slice(value.as_bytes()),
        Value::Bytes(value) => out.put_slice(value),
        Value::Text(value) => out.put_slice(value.as_bytes()),
    }
    Nullness::No
}

/// A SHA-256, no shorter and no longer.
struct Hash([u8; 32]);

impl FromSql<'_> for Hash {
    fn from_sql(_: &Type, bytes: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(bytes.try_into().map_err(|_| "is not 32 bytes long")?))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::BYTEA
    }
}

/// By position: by name, each column would be searched for.
struct Reader<'a> {
    row: &'a Read,
    next: usize,
}

impl<'a> Reader<'a> {
    fn take<T: FromSql<'a>>(&mut self) -> Result<T, tokio_postgres::Error> {
        let value = self.row.try_get(self.next);
        self.next += 1;
        value
    }
}

impl<'a> Line<'a> for Reader<'a> {
    type Error = tokio_postgres::Error;

    fn bool(&mut self) -> Result<bool, Self::Error> {
        self.take()
    }

    fn int2(&mut self) -> Result<Option<i16>, Self::Error> {
        self.take()
    }

    fn int4(&mut self) -> Result<i32, Self::Error> {
        self.take()
    }

    fn int8(&mut self) -> Result<Option<i64>, Self::Error> {
        self.take()
    }

    fn time(&mut self) -> Result<Option<i64>, Self::Error> {
        Ok(self.take::<Option<SystemTime>>()?.map(|at| micros(at).micros()))
    }

    fn uuid(&mut self) -> Result<Option<Uuid>, Self::Error> {
        self.take()
    }

    fn hash(&mut self) -> Result<Option<[u8; 32]>, Self::Error> {
        Ok(self.take::<Option<Hash>>()?.map(|Hash(hash)| hash))
    }

    fn bytes(&mut self) -> Result<Option<Cow<'a, [u8]>>, Self::Error> {
        Ok(self.take::<Option<&[u8]>>()?.map(Cow::Borrowed))
    }

    fn text(&mut self) -> Result<Option<Cow<'a, str>>, Self::Error> {
        Ok(self.take::<Option<&str>>()?.map(Cow::Borrowed))
    }
}

/// The columns of a row that `sql::select` read.
pub(super) fn read(row: &Read) -> Result<Columns<'_>, tokio_postgres::Error> {
    Columns::read(&mut Reader { row, next: 0 })
}
