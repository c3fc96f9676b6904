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
    /// The server over Postgres.
    Postgres(Road),
    /// The server over the embedded store.
    Embedded(Road),
    /// Begins of what is completed already: calls, not effects.
    Replay,
}

/// How calls travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Road {
    /// Unary calls over four connections.
    Unary,
    /// One `Session`.
    Session,
}

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
        }));
    };
    add("table", "hand-rolled table", Target::Table, &[1, 16, 64, 256]);
    add("batched-1", "bare batches, 1 connection", Target::Batched(1), &[64, 256]);
    add("batched-2", "bare batches, 2 connections", Target::Batched(2), &[64, 256]);
    add("echo-unary", "echo, unary", Target::Echo(Unary), &[1, 16, 64, 256, 1024]);
    add("echo-session", "echo, session", Target::Echo(Session), &[16, 256, 1024]);
    add("unary", "unary", Target::Postgres(Unary), &[1, 16, 64, 256, 1024, 2048]);
    add("session", "session", Target::Postgres(Session), &[1, 16, 64, 256, 1024]);
    add("embedded-unary", "unary, embedded", Target::Embedded(Unary), &[1, 16, 64, 256, 1024]);
    add(
        "embedded-session",
        "session, embedded",
        Target::Embedded(Session),
        &[1, 16, 64, 256, 1024],
    );
    add("replay", "replay, calls/s", Target::Replay, &[256]);
    lines
}
