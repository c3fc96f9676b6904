//! The statements, each with its name.

/// `store.intent.begin`: what a write's transaction starts with.
///
/// The bound on lock waits is set for this transaction only, since a pooler lends the session to
/// others. A wait for a rival's commit is a matter of milliseconds; past the bound Postgres rolls
/// the batch back and says so, while a caller that merely went away would leave a session waiting.
pub(super) fn begin() -> String {
    format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS_MAX}s'; \
         SELECT pg_advisory_xact_lock_shared({POLICY_LOCK})"
    )
}

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
    let inserted = COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    let insert_values = COLUMNS
        .iter()
        .map(|column| match column.stamp {
            Some(stamp) => stamped(column.name, stamp),
            None => format!("w.{}", column.name),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let assignments = COLUMNS
        .iter()
        .filter(|column| column.changes)
        .map(|column| match column.stamp {
            Some(stamp) => format!("{} = {}", column.name, stamped(column.name, stamp)),
            None => format!("{0} = w.{0}", column.name),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let arrays = COLUMNS
        .iter()
        .map(|column| column.sql_type)
        .chain(GUARDS.iter().map(|(_, sql_type)| *sql_type))
        .enumerate()
        .map(|(index, sql_type)| format!("${}::{sql_type}[]", index + 1))
        .collect::<Vec<_>>()
        .join(", ");
    let names = COLUMNS
        .iter()
        .map(|column| column.name)
        .chain(GUARDS.iter().map(|(name, _)| *name))
        .collect::<Vec<_>>()
        .join(", ");
    let events = COLUMNS.len() + GUARDS.len();
    format!(
        "WITH policy AS (SELECT version FROM active_policy),
        w AS (SELECT * FROM unnest({arrays}) AS w({names})),
        e AS (SELECT * FROM unnest(${}::uuid[], ${}::bytea[], ${}::text[]) AS e(id, digest, fact)),
        inserted AS (
            INSERT INTO intents ({inserted})
            SELECT {insert_values} FROM w, policy
            WHERE w.expected IS NULL AND w.policy = policy.version
              AND (w.orphans_seen OR NOT EXISTS (
                  SELECT FROM orphan_facts o WHERE o.id = w.id AND o.namespace = w.namespace))
            ORDER BY w.id
            ON CONFLICT (id) DO NOTHING
            RETURNING id),
        replaced AS (
            UPDATE intents i SET {assignments}
            FROM w, policy
            WHERE i.id = w.id AND i.version = w.expected
              AND (w.policy IS NULL OR w.policy = policy.version)
            RETURNING i.id),
        written AS (SELECT id FROM inserted UNION ALL SELECT id FROM replaced),
        kept AS (
            INSERT INTO events (id, digest, at, fact)
            SELECT e.id, e.digest, now(), e.fact FROM e JOIN written USING (id)
            ON CONFLICT (id, digest) DO NOTHING)
        SELECT now(), policy.version, array(SELECT id FROM written) FROM policy",
        events + 1,
        events + 2,
        events + 3,
    )
}

/// A time that the decision set is shifted to the clock of the write.
fn stamped(name: &str, stamp: &str) -> String {
    format!("w.{name} + CASE WHEN w.{stamp} THEN now() - w.decided_at ELSE interval '0' END")
}

/// The columns that a row is read from.
pub(super) fn select(condition: &str) -> String {
    let names = COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    format!("SELECT {names}, replay_count, last_seen_at FROM intents WHERE {condition}")
}

/// One column of `intents`.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) sql_type: &'static str,
    /// Whether a replacement may change it.
    changes: bool,
    /// The flag that says whether its time is the write's.
    stamp: Option<&'static str>,
}

const fn fixed(name: &'static str, sql_type: &'static str) -> Column {
    Column { name, sql_type, changes: false, stamp: None }
}

const fn changing(name: &'static str, sql_type: &'static str) -> Column {
    Column { name, sql_type, changes: true, stamp: None }
}

/// In the order of the parameters; `parameters.rs` has the same order.
pub(super) const COLUMNS: [Column; 37] = [
    fixed("id", "uuid"),
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
    Column { name: "created_at", sql_type: "timestamptz", changes: false, stamp: Some("created") },
    changing("state", "int2"),
    changing("attempt", "int4"),
    changing("attempt_id", "uuid"),
    changing("caller", "text"),
    changing("granted_on", "int2"),
    Column { name: "granted_at", sql_type: "timestamptz", changes: true, stamp: Some("granted") },
    Column {
        name: "lease_expires_at",
        sql_type: "timestamptz",
        changes: true,
        stamp: Some("leased"),
    },
    changing("extended", "bool"),
    changing("fate", "int2"),
    changing("reports", "bytea"),
    changing("result", "bytea"),
    changing("result_content_type", "text"),
    changing("result_sha256", "bytea"),
    changing("result_size", "int8"),
    changing("result_truncated", "bool"),
    changing("pruned", "bool"),
    changing("provenance", "int2"),
    Column { name: "settled_at", sql_type: "timestamptz", changes: true, stamp: Some("settled") },
    changing("downstream_ref", "text"),
    changing("downstream_key", "bytea"),
    changing("needs_attention", "bool"),
    changing("conflict", "bool"),
    changing("details", "text"),
];

/// What travels beside the columns: what must hold, and which times are the write's.
pub(super) const GUARDS: [(&str, &str); 8] = [
    ("expected", "int4"),
    ("orphans_seen", "bool"),
    ("policy", "int4"),
    ("decided_at", "timestamptz"),
    ("created", "bool"),
    ("granted", "bool"),
    ("leased", "bool"),
    ("settled", "bool"),
];

/// Held shared by every write and exclusively by a policy's activation. The number is arbitrary,
/// one of ours.
pub(super) const POLICY_LOCK: i64 = 0x1e_d9e4_0001;
