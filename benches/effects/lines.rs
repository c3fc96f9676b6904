//! The lines of the table: what each is called and what it measures.

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Unique, for `--only` and the JSON.
    pub(crate) name: String,
    /// For people.
    pub(crate) what: &'static str,
    /// Effects that are under way at once.
    pub(crate) in_flight: usize,
    /// What is measured.
    pub(crate) target: Target,
    /// Whether Postgres's disk takes a millisecond for a flush.
    pub(crate) slow_disk: bool,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The hand-rolled table by pgbench.
    Table,
    /// The same table in batches, over so many connections.
    Batched(usize),
    /// gRPC without a ledger.
    Echo(Road),
    /// So many servers over one Postgres.
    Postgres(Road, usize),
    /// The server over the embedded store.
    Embedded(Road),
    /// Begins of what is completed already: calls, not effects.
    Replay,
    /// Effects with repeats among them, over two servers on one Postgres; every count must be exact.
    Duplicates(Road),
    /// All callers on one key, over three servers on one Postgres.
    OneKey,
}

/// How calls travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Road {
    /// Unary calls over four connections.
    Unary,
    /// One `Session`.
    Session,
}

/// How many effects are under way.
const SIZES: [usize; 5] = [1, 16, 64, 256, 1024];

/// In the order of a round.
pub(crate) fn all() -> Vec<Line> {
    use Road::{Session, Unary};
    let mut lines = Vec::new();
    let mut add = |prefix: &str, what, target, sizes: &[usize]| {
        lines.extend(sizes.iter().map(|&in_flight| Line {
            name: format!("{prefix}-{in_flight}"),
            what,
            in_flight,
            target,
            slow_disk: prefix.starts_with("slow-"),
        }));
    };
    add("table", "hand-rolled table", Target::Table, &[1, 16, 64, 256]);
    add("batched-1", "bare batches, 1 connection", Target::Batched(1), &[64, 256]);
    add("batched-2", "bare batches, 2 connections", Target::Batched(2), &[64, 256]);
    add("echo-unary", "echo, unary", Target::Echo(Unary), &SIZES);
    add("echo-session", "echo, session", Target::Echo(Session), &[16, 256, 1024]);
    add("unary", "unary", Target::Postgres(Unary, 1), &[1, 16, 64, 256, 1024, 2048]);
    add("session", "session", Target::Postgres(Session, 1), &SIZES);
    add("two-servers", "session, 2 servers", Target::Postgres(Session, 2), &[1024]);
    add("embedded-unary", "unary, embedded", Target::Embedded(Unary), &SIZES);
    add("embedded-session", "session, embedded", Target::Embedded(Session), &SIZES);
    add("slow-table", "table, slow disk", Target::Table, &[16]);
    add("slow-unary", "unary, slow disk", Target::Postgres(Unary, 1), &[16]);
    add("slow-session", "session, slow disk", Target::Postgres(Session, 1), &[16]);
    add("replay", "replay, calls/s", Target::Replay, &[256]);
    add("duplicates-unary", "unary, 10 % repeats", Target::Duplicates(Unary), &[256]);
    add("duplicates-session", "session, 10 % repeats", Target::Duplicates(Session), &[256]);
    add("one-key", "one key, 3 servers", Target::OneKey, &[1000]);
    lines
}
