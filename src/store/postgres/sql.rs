//! The statements, each with its name.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::{guards, parameters::NEW};
use crate::{
    domain::intent::State,
    store::{
        codes::state_to_code,
        columns::{COLUMNS, Kind, Part, names},
    },
};

/// `store.intent.begin`: what a transaction of several messages starts with.
///
/// The bound is set for this transaction only. Past it Postgres rolls the batch back and says so,
/// while a caller that merely went away would leave a session waiting.
pub(super) fn begin(lock_wait: Duration) -> String {
    let millis = lock_wait.as_millis().max(1);
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL jit = off; SET LOCAL lock_timeout = '{millis}ms'; \
         SELECT pg_advisory_xact_lock_shared({POLICY_LOCK})"
    )
}

/// Its end.
pub(super) const COMMIT: &str = "COMMIT";

/// `store.policy.lock`: the lock of an activation, within a transaction.
pub(super) fn lock_alone() -> String {
    format!(
        "SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS_MAX}s'; \
         SELECT pg_advisory_xact_lock({POLICY_LOCK})"
    )
}

/// How long an activation waits for the writes in flight.
const LOCK_WAIT_SECONDS_MAX: u32 = 5;

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

/// What a batch holds: a statement reads only the arrays that it needs, since each costs a lone
/// caller some microseconds even when it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows for keys that have none.
    pub(super) new: bool,
    /// Ordinary settlements.
    pub(super) settled: bool,
    /// Other changes.
    pub(super) changed: bool,
    /// Facts beside the rows.
    pub(super) events: bool,
    /// What is taken beside the rows.
    pub(super) guards: bool,
}

impl Shape {
    /// How many there are.
    pub(super) const COUNT: usize = 32;

    /// Its number among all shapes.
    pub(super) fn index(self) -> usize {
        [self.guards, self.new, self.settled, self.changed, self.events]
            .into_iter()
            .fold(0, |index, bit| index * 2 + usize::from(bit))
    }

    /// Every shape, in the order of their numbers.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|index| Self {
            new: index & 8 != 0,
            settled: index & 4 != 0,
            changed: index & 2 != 0,
            events: index & 1 != 0,
            guards: index & 16 != 0,
        })
    }
}

/// `store.intent.write`: inserts what is absent, replaces what is unchanged, and keeps the facts
/// of both.
///
/// One statement, so that a batch is one round trip. It runs under the shared policy lock and in a
/// transaction of its own at READ COMMITTED: its snapshot is taken after the lock is held, so the
/// active policy that it reads cannot change before it commits. A row that a rival is inserting is
/// waited for and then counts as present; it is read by a statement of its own, since this one's
/// snapshot cannot see it. Times are read once, at the start of the transaction.
pub(super) fn write(shape: Shape) -> String {
    write_into(shape, "").0
}

/// [`write`], with what follows the columns of its answer; and the types of the records that it takes, in
/// the order of its parameters.
fn write_into(shape: Shape, into: &str) -> (String, Vec<&'static str>) {
    let mut parameters = Vec::new();
    let mut parts = vec![
        "clock AS (SELECT now() AS at)".to_owned(),
        "policy AS (SELECT version FROM active_policy)".to_owned(),
    ];
    let mut written = Vec::new();
    if shape.guards {
        parts.push(source("g", "intent_guard", &mut parameters));
        parts.push(guards::BLOCKED.to_owned());
    }
    if shape.new {
        parts.push(source("n", "new_intent", &mut parameters));
        // Nobody's report is waiting for any key, most of the time.
        parts.push("orphans AS (SELECT EXISTS (SELECT FROM orphan_facts) AS there)".to_owned());
        parts.push(insert(shape.guards));
        parts.push(REMEMBER_GRANTS.to_owned());
        written.push("SELECT id FROM inserted");
    }
    if shape.settled {
        parts.push(source("s", "settled_intent", &mut parameters));
        parts.push(settle());
        written.push("SELECT id FROM settled");
    }
    if shape.changed {
        parts.push(source("c", "changed_intent", &mut parameters));
        parts.push(replace(shape.guards));
        parts.push(put_on_agenda());
        written.push("SELECT id FROM replaced");
    }
    if written.is_empty() {
        written.push("SELECT NULL::uuid AS id WHERE false");
    }
    parts.push(format!("written AS ({})", written.join(" UNION ALL ")));
    if shape.guards {
        parts.push(guards::KEEP.to_owned());
        if shape.new {
            parts.push(guards::PUT_PROPOSALS.to_owned());
        }
    }
    if shape.events {
        parts.push(source("e", "intent_fact", &mut parameters));
        parts.push(
            "kept AS (
            INSERT INTO events (id, digest, at, fact)
            SELECT e.id, e.digest, clock.at, e.fact FROM e JOIN written USING (id), clock
            ON CONFLICT (id, digest) DO NOTHING)"
                .to_owned(),
        );
    }
    let blocked = if shape.guards { ", array(SELECT id FROM blocked)" } else { "" };
    let statement = format!(
        "WITH {}
        SELECT clock.at, policy.version, array(SELECT id FROM written){blocked}{into} FROM clock, policy",
        parts.join(",\n        ")
    );
    (statement, parameters)
}

/// A whole transaction as one message: the locks, the statement and the commit.
///
/// Each statement of a function has a snapshot of its own at READ COMMITTED, so the one that writes still
/// sees what was committed while the locks were waited for. The function belongs to the session, so that
/// there is nothing to migrate, and replicas of different versions do not meet.
pub(super) struct WriteFunction {
    /// Makes it, once a session.
    pub(super) create: String,
    /// Calls it.
    pub(super) call: String,
}

/// [`write`] as a function.
pub(super) fn write_function(shape: Shape) -> WriteFunction {
    let mut answer =
        vec!["written_at timestamptz", "active_policy_version int4", "written_ids uuid[]"];
    let mut into = " INTO written_at, active_policy_version, written_ids".to_owned();
    if shape.guards {
        answer.push("blocked_ids uuid[]");
        into.push_str(", blocked_ids");
    }
    let (statement, records) = write_into(shape, &into);
    let mut types: Vec<String> = records.iter().map(|record| format!("{record}[]")).collect();
    let mut guard = String::new();
    if shape.guards {
        types.push("int4[]".to_owned());
        guard = format!("PERFORM {};", guards::locks_of(types.len()));
    }
    let name = format!("pg_temp.write_{}", shape.index());
    let takes = types.join(", ");
    let gives = join(&answer, |column| format!("OUT {column}"));
    let values = join(&(1..=types.len()).collect::<Vec<_>>(), |number| format!("${number}"));
    WriteFunction {
        create: format!(
            "CREATE OR REPLACE FUNCTION {name}({takes}, {gives}) LANGUAGE plpgsql AS $function$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({POLICY_LOCK});
                {guard}
                {statement};
            END $function$"
        ),
        call: format!("SELECT * FROM {name}({values})"),
    }
}

/// Rows that arrive as an array of records.
fn source(name: &str, record: &'static str, parameters: &mut Vec<&'static str>) -> String {
    parameters.push(record);
    format!("{name} AS (SELECT * FROM unnest(${}::{record}[]))", parameters.len())
}

/// Where there are guards: a row of theirs that is not refused.
fn unblocked(guarded: bool, row: &str) -> String {
    match guarded {
        true => {
            format!("\n              AND NOT EXISTS (SELECT FROM blocked b WHERE b.id = {row}.id)")
        }
        false => String::new(),
    }
}

/// A new row is created by its write, and granted by it if it has an attempt.
fn insert(guarded: bool) -> String {
    let columns: Vec<(&str, String)> = COLUMNS
        .iter()
        .filter(|column| column.part != Part::Extra)
        .filter_map(|column| {
            let granted =
                |value: &str| format!("CASE WHEN n.attempt_id IS NOT NULL THEN {value} END");
            let value = match column.name {
                "version" => "1".to_owned(),
                "created_at" => "clock.at".to_owned(),
                "attempt" => "(n.attempt_id IS NOT NULL)::int4".to_owned(),
                "granted_on" | "fate" => granted("1::int2"),
                "granted_at" => granted("clock.at"),
                "lease_expires_at" => granted("clock.at + n.lease * interval '1 microsecond'"),
                name if NEW.iter().any(|field| field.name == name) => format!("n.{name}"),
                _ => return None,
            };
            Some((column.name, value))
        })
        .collect();
    format!(
        "inserted AS (
            INSERT INTO intents ({})
            SELECT {} FROM n, clock, policy, orphans
            WHERE n.policy_version = policy.version
              AND (n.orphans_seen OR NOT orphans.there OR NOT EXISTS (
                  SELECT FROM orphan_facts o WHERE o.id = n.id AND o.namespace = n.namespace)){}
            ON CONFLICT (id) DO NOTHING
            RETURNING id, lease_expires_at)",
        join(&columns, |(name, _)| (*name).to_owned()),
        join(&columns, |(_, value)| value.clone()),
        unblocked(guarded, "n"),
    )
}

/// An ordinary settlement: what it does not change is left alone.
fn settle() -> String {
    let columns = COLUMNS.iter().filter(|column| column.part == Part::Settlement);
    let assignments = join(&columns.collect::<Vec<_>>(), |column| match column.name {
        "settled_at" => "settled_at = clock.at".to_owned(),
        name => format!("{name} = s.{name}"),
    });
    format!(
        "settled AS (
            UPDATE intents i SET version = s.expected + 1, {assignments}
            FROM s, clock
            WHERE i.id = s.id AND i.version = s.expected
            RETURNING i.id)"
    )
}

/// Any other change.
fn replace(guarded: bool) -> String {
    let columns = COLUMNS.iter().filter(|column| column.part != Part::Identity);
    let assignments = join(&columns.collect::<Vec<_>>(), |column| match column.name {
        "settled_at" => {
            "settled_at = CASE WHEN c.settles THEN clock.at ELSE c.settled_at END".to_owned()
        }
        name => format!("{name} = c.{name}"),
    });
    format!(
        "replaced AS (
            UPDATE intents i SET {assignments}
            FROM c, clock, policy
            WHERE i.id = c.id AND i.version = c.expected
              AND (c.policy IS NULL OR c.policy = policy.version){}
            RETURNING i.id, i.namespace, i.tool, i.state, c.due_at)",
        unblocked(guarded, "c")
    )
}

/// The new rows of a batch, to be looked at once the first of their leases is over; at once where nobody
/// was granted one.
const REMEMBER_GRANTS: &str = "granted AS (
            INSERT INTO granted_batches (id, due_at, intents)
            SELECT (array_agg(id))[1], coalesce(min(lease_expires_at), now()), array_agg(id)
            FROM inserted HAVING count(*) > 0)";

/// What an unusual change leaves open: unsettled, or proposed anew.
fn put_on_agenda() -> String {
    let proposed = [State::AwaitingApproval, State::Approved].map(state_to_code);
    let [asked, approved] = proposed;
    format!(
        "put AS (
            INSERT INTO open_intents (id, namespace, tool, due_at, proposal)
            SELECT id, namespace, tool, due_at, state IN ({asked}, {approved})
            FROM replaced WHERE due_at IS NOT NULL ORDER BY id
            ON CONFLICT (id) DO UPDATE SET due_at = excluded.due_at, probes = 0, asked_at = NULL,
                claimed_until = NULL, proposal = excluded.proposal,
                version = open_intents.version + 1)"
    )
}

fn join<T>(items: &[T], text: impl FnMut(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The columns that a row is read from.
pub(super) fn select(condition: &str) -> String {
    format!("SELECT {} FROM intents WHERE {condition}", names())
}

/// `store.intent.find`: one line for each key that is asked for, in their order; after a row's
/// columns, the time.
pub(super) fn find() -> String {
    format!(
        "SELECT i.*, clock_timestamp()
         FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS k(id, namespace, ordinal)
         LEFT JOIN ({}) i ON i.id = k.id AND i.namespace = k.namespace
         ORDER BY k.ordinal",
        select("true")
    )
}

/// `store.intent.others_with_references`: one line for each object, in their order. A row has one
/// reference; further ones stand in its events.
pub(super) const OTHERS_WITH_REFERENCES: &str = "
    SELECT coalesce(
        (SELECT i.key FROM intents i
        WHERE i.downstream_ref = o.downstream_ref AND i.namespace = o.namespace AND i.tool = o.tool
            AND i.id <> o.id LIMIT 1),
        (SELECT i.key FROM events e JOIN intents i ON i.id = e.id
        WHERE e.fact::jsonb ->> 'downstream_ref' = o.downstream_ref AND i.namespace = o.namespace
            AND i.tool = o.tool AND i.id <> o.id LIMIT 1))
    FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) WITH ORDINALITY
        AS o(downstream_ref, namespace, tool, id, ordinal)
    ORDER BY o.ordinal";

/// `store.intent.touch`.
pub(super) const TOUCH: &str = "
    WITH clock AS (SELECT now() AS at)
    UPDATE intents i SET replay_count = replay_count + t.replays, last_seen_at = clock.at
    FROM unnest($1::uuid[], $2::int8[]) AS t(id, replays), clock WHERE i.id = t.id";

/// The type of a value.
pub(super) fn element(kind: Kind) -> Type {
    match kind {
        Kind::Bool => Type::BOOL,
        Kind::Int2 => Type::INT2,
        Kind::Int4 => Type::INT4,
        Kind::Int8 => Type::INT8,
        Kind::Time => Type::TIMESTAMPTZ,
        Kind::Uuid => Type::UUID,
        Kind::Bytes => Type::BYTEA,
        Kind::Text => Type::TEXT,
    }
}

/// Held shared by every write and exclusively by a policy's activation. The number is arbitrary,
/// one of ours.
pub(super) const POLICY_LOCK: i64 = 0x1e_d9e4_0001;
