//! The statements, each with its name.

use tokio_postgres::types::Type;

/// `store.intent.begin`: what a write's transaction starts with.
///
/// The bound on lock waits is set for this transaction only, since a pooler lends the session to
/// others. A wait for a rival's commit is a matter of milliseconds; past the bound Postgres rolls
/// the batch back and says so, while a caller that merely went away would leave a session waiting.
pub(super) fn begin() -> String {
    format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS_MAX}s'; SET LOCAL jit = off; \
         SELECT pg_advisory_xact_lock_shared({POLICY_LOCK})"
    )
}

/// `store.orphans.begin`: the lock of an activation, within a transaction.
pub(super) fn begin_alone() -> String {
    format!(
        "SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS_MAX}s'; \
         SELECT pg_advisory_xact_lock({POLICY_LOCK})"
    )
}

/// `store.orphans.keep`: keeps a fact unless its namespace has reached its bound; whether it is kept.
pub(super) const KEEP_ORPHAN: &str = "
    WITH known AS (
        SELECT FROM orphan_facts WHERE id = $1 AND namespace = $2 AND digest = $3),
    kept AS (
        INSERT INTO orphan_facts (id, namespace, digest, at, fact)
        SELECT $1, $2, $3, now(), $4
        WHERE (SELECT count(*) FROM (
            SELECT FROM orphan_facts WHERE namespace = $2 LIMIT $5) bounded) < $5
        ON CONFLICT (id, namespace, digest) DO NOTHING
        RETURNING 1)
    SELECT EXISTS (SELECT FROM known) OR EXISTS (SELECT FROM kept)";

/// How long a batch waits for rows that somebody else has locked, or for a policy's activation.
const LOCK_WAIT_SECONDS_MAX: u32 = 5;

/// `store.intent.write`: inserts what is absent, replaces what is unchanged, and keeps the facts
/// of both.
///
/// One statement, so that a batch is one round trip. It runs under the shared policy lock and in a
/// transaction of its own at READ COMMITTED: its snapshot is taken after the lock is held, so the
/// active policy that it reads cannot change before it commits. A row that a rival is inserting is
/// waited for and then counts as present; it is read by a statement of its own, since this one's
/// snapshot cannot see it.
pub(super) fn write() -> String {
    let new = Source::new("n", 1, &NEW_GUARDS, |column| column.inserted);
    let changed = Source::new("c", new.next, &CHANGE_GUARDS, |column| column.replaced);
    let inserted = join(new.columns(), |column| column.name.to_owned());
    let values = join(new.columns(), |column| column.value("n"));
    let assignments = join(changed.columns().filter(|column| column.name != "id"), |column| {
        format!("{} = {}", column.name, column.value("c"))
    });
    let event = changed.next;
    format!(
        "WITH policy AS (SELECT version FROM active_policy),
        n AS (SELECT * FROM {}),
        c AS (SELECT * FROM {}),
        e AS (SELECT * FROM unnest(${}::uuid[], ${}::bytea[], ${}::text[]) AS e(id, digest, fact)),
        inserted AS (
            INSERT INTO intents ({inserted})
            SELECT {values} FROM n, policy
            WHERE n.policy = policy.version
              AND (n.orphans_seen OR NOT EXISTS (
                  SELECT FROM orphan_facts o WHERE o.id = n.id AND o.namespace = n.namespace))
            ORDER BY n.id
            ON CONFLICT (id) DO NOTHING
            RETURNING id),
        replaced AS (
            UPDATE intents i SET {assignments}
            FROM c, policy
            WHERE i.id = c.id AND i.version = c.expected
              AND (c.policy IS NULL OR c.policy = policy.version)
            RETURNING i.id),
        written AS (SELECT id FROM inserted UNION ALL SELECT id FROM replaced),
        kept AS (
            INSERT INTO events (id, digest, at, fact)
            SELECT e.id, e.digest, now(), e.fact FROM e JOIN written USING (id)
            ON CONFLICT (id, digest) DO NOTHING)
        SELECT now(), policy.version, array(SELECT id FROM written) FROM policy",
        new.unnest,
        changed.unnest,
        event,
        event + 1,
        event + 2,
    )
}

/// Rows that arrive as arrays, one for each column and guard.
struct Source {
    unnest: String,
    /// The number of the first parameter after these.
    next: usize,
    takes: fn(&Column) -> bool,
}

impl Source {
    fn new(
        name: &str,
        first: usize,
        guards: &[(&'static str, &'static str)],
        takes: fn(&Column) -> bool,
    ) -> Self {
        let columns = COLUMNS.iter().filter(|column| takes(column));
        let fields: Vec<(&str, &str)> = columns
            .map(|column| (column.name, column.sql_type))
            .chain(guards.iter().copied())
            .collect();
        let arrays = join(fields.iter().zip(first..), |((_, sql_type), number)| {
            format!("${number}::{sql_type}[]")
        });
        let names = join(fields.iter(), |(name, _)| (*name).to_owned());
        let unnest = format!("unnest({arrays}) AS {name}({names})");
        Self { unnest, next: first + fields.len(), takes }
    }

    fn columns(&self) -> impl Iterator<Item = &'static Column> {
        COLUMNS.iter().filter(|column| (self.takes)(column))
    }
}

fn join<T>(items: impl Iterator<Item = T>, text: impl Fn(T) -> String) -> String {
    items.map(text).collect::<Vec<_>>().join(", ")
}

/// The columns that a row is read from.
pub(super) fn select(condition: &str) -> String {
    let names = COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    format!("SELECT {names}, replay_count, last_seen_at FROM intents WHERE {condition}")
}

/// `store.intent.find`: one line for each key that is asked for, in their order.
pub(super) fn find() -> String {
    format!(
        "SELECT clock_timestamp() AS now, k.ordinal, i.*
         FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS k(id, namespace, ordinal)
         LEFT JOIN ({}) i ON i.id = k.id AND i.namespace = k.namespace
         ORDER BY k.ordinal",
        select("true")
    )
}

/// One column of `intents`.
pub(super) struct Column {
    pub(super) name: &'static str,
    sql_type: &'static str,
    /// Whether a new row brings it; if not, it has the table's default.
    pub(super) inserted: bool,
    /// Whether a replacement brings it.
    pub(super) replaced: bool,
    /// The flag that says whether its time is the write's.
    stamp: Option<&'static str>,
}

impl Column {
    /// Its value from `source`; a time that the decision set is shifted to the clock of the write.
    fn value(&self, source: &str) -> String {
        let name = self.name;
        match self.stamp {
            Some(stamp) => format!(
                "{source}.{name} + CASE WHEN {source}.{stamp} THEN now() - {source}.decided_at \
                 ELSE interval '0' END"
            ),
            None => format!("{source}.{name}"),
        }
    }

    /// The type of an array of it.
    pub(super) fn array(&self) -> Type {
        array(self.sql_type)
    }

    const fn stamped_by(self, stamp: &'static str) -> Self {
        Self { stamp: Some(stamp), ..self }
    }
}

/// Written once, with the row.
const fn fixed(name: &'static str, sql_type: &'static str) -> Column {
    Column { name, sql_type, inserted: true, replaced: false, stamp: None }
}

/// Written with the row and by every change.
const fn changing(name: &'static str, sql_type: &'static str) -> Column {
    Column { name, sql_type, inserted: true, replaced: true, stamp: None }
}

/// Absent, or false, until something has happened to the row.
const fn later(name: &'static str, sql_type: &'static str) -> Column {
    Column { name, sql_type, inserted: false, replaced: true, stamp: None }
}

/// In the order of the parameters; `Batch::column` in `parameters.rs` knows each by its name.
pub(super) const COLUMNS: [Column; 37] = [
    changing("id", "uuid"),
    changing("version", "int4"),
    fixed("key", "bytea"),
    fixed("key_basis", "int2"),
    fixed("policy_version", "int4"),
    fixed("hash_version", "int2"),
    fixed("fingerprint", "bytea"),
    fixed("argument_digests", "bytea"),
    fixed("namespace", "text"),
    fixed("tool", "text"),
    fixed("run_id", "text"),
    fixed("step_id", "text"),
    fixed("tool_call_id", "text"),
    fixed("created_at", "timestamptz").stamped_by("created"),
    changing("state", "int2"),
    changing("attempt", "int4"),
    changing("attempt_id", "uuid"),
    changing("caller", "text"),
    changing("granted_on", "int2"),
    changing("granted_at", "timestamptz").stamped_by("granted"),
    changing("lease_expires_at", "timestamptz").stamped_by("leased"),
    later("extended", "bool"),
    changing("fate", "int2"),
    later("reports", "bytea"),
    later("result", "bytea"),
    later("result_content_type", "text"),
    later("result_sha256", "bytea"),
    later("result_size", "int8"),
    later("result_truncated", "bool"),
    later("pruned", "bool"),
    later("provenance", "int2"),
    later("settled_at", "timestamptz").stamped_by("settled"),
    later("downstream_ref", "text"),
    later("downstream_key", "bytea"),
    changing("needs_attention", "bool"),
    later("conflict", "bool"),
    changing("details", "text"),
];

/// What travels beside new rows: what must hold, and which times are the write's.
pub(super) const NEW_GUARDS: [(&str, &str); 6] = [
    ("orphans_seen", "bool"),
    ("policy", "int4"),
    ("decided_at", "timestamptz"),
    ("created", "bool"),
    ("granted", "bool"),
    ("leased", "bool"),
];

/// What travels beside changed rows.
pub(super) const CHANGE_GUARDS: [(&str, &str); 6] = [
    ("expected", "int4"),
    ("policy", "int4"),
    ("decided_at", "timestamptz"),
    ("granted", "bool"),
    ("leased", "bool"),
    ("settled", "bool"),
];

/// The type of an array of `sql_type`.
pub(super) fn array(sql_type: &str) -> Type {
    match sql_type {
        "uuid" => Type::UUID_ARRAY,
        "int2" => Type::INT2_ARRAY,
        "int4" => Type::INT4_ARRAY,
        "int8" => Type::INT8_ARRAY,
        "bool" => Type::BOOL_ARRAY,
        "bytea" => Type::BYTEA_ARRAY,
        "text" => Type::TEXT_ARRAY,
        "timestamptz" => Type::TIMESTAMPTZ_ARRAY,
        unknown => unreachable!("no column has the type {unknown}"),
    }
}

/// Held shared by every write and exclusively by a policy's activation. The number is arbitrary,
/// one of ours.
pub(super) const POLICY_LOCK: i64 = 0x1e_d9e4_0001;
