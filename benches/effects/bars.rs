//! The bars that this benchmark is run for, as ratios of its own lines.

use crate::results::Results;

/// One bar.
pub(crate) struct Bar {
    /// The key in the JSON.
    pub(crate) name: &'static str,
    /// What was reached, if its lines were run.
    pub(crate) value: Option<f64>,
    /// What is wanted.
    pub(crate) wanted: Wanted,
}

/// What a value is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(value) => write!(f, "≥ {value}"),
            Self::AtMost(value) => write!(f, "≤ {value}"),
        }
    }
}

impl Bar {
    /// Whether it was reached, if it was run.
    pub(crate) fn met(&self) -> Option<bool> {
        self.value.map(|value| match self.wanted {
            Wanted::AtLeast(least) => value >= least,
            Wanted::AtMost(most) => value <= most,
        })
    }
}

/// All bars, with what was reached.
pub(crate) fn all(results: &Results) -> Vec<Bar> {
    use Wanted::{AtLeast, AtMost};
    let rate = |name: &str| results.get(name).map(|it| it.per_second);
    let p50 = |name: &str| results.get(name).map(|it| it.p50_ms);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let sum = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
    let postgres = |name: &str| results.get(name)?.postgres_micros;
    let rss = |name: &str| results.get(name)?.rss_mib;
    let wal = |name: &str| results.get(name)?.wal_bytes;
    let table_best = results.table_best();
    let bar = |name, value, wanted| Bar { name, value, wanted };
    vec![
        bar("session_1024_vs_table_best", over(rate("session-1024"), table_best), AtLeast(4.0)),
        bar(
            "session_1024_vs_batched",
            over(rate("session-1024"), results.best("batched-")),
            AtLeast(0.60),
        ),
        bar("session_16_vs_table_16", over(rate("session-16"), rate("table-16")), AtLeast(1.3)),
        bar("session_16_p50_ratio", over(p50("session-16"), p50("table-16")), AtMost(0.85)),
        bar("unary_256_vs_table_256", over(rate("unary-256"), rate("table-256")), AtLeast(2.0)),
        bar("unary_256_vs_table_best", over(rate("unary-256"), table_best), AtLeast(1.25)),
        // An effect of the echo is two calls as well.
        bar("unary_256_vs_echo", over(rate("unary-256"), rate("echo-unary-256")), AtLeast(0.55)),
        bar("unary_16_vs_table_16", over(rate("unary-16"), rate("table-16")), AtLeast(0.65)),
        bar(
            "unary_1_p50_ratio",
            over(p50("unary-1"), sum(p50("table-1"), p50("echo-unary-1"))),
            AtMost(1.4),
        ),
        bar(
            "slow_disk_unary_16_p50_ratio",
            over(p50("slow-unary-16"), p50("slow-table-16")),
            AtMost(1.4),
        ),
        bar(
            "slow_disk_session_16_p50_ratio",
            over(p50("slow-session-16"), p50("slow-table-16")),
            AtMost(0.8),
        ),
        bar("pg_cpu_ratio", over(postgres("session-256"), postgres("table-256")), AtMost(0.2)),
        bar("wal_ratio", over(wal("session-256"), wal("table-256")), AtMost(1.1)),
        // A replay is one call.
        bar(
            "replay_vs_echo",
            over(rate("replay-256"), rate("echo-unary-256").map(|effects| effects * 2.0)),
            AtLeast(0.7),
        ),
        // So many callers per second, until the last of a thousand knew.
        bar("storm_ms", rate("one-key-1000").map(|rate| 1000.0 / rate * 1000.0), AtMost(1000.0)),
        bar("session_rss_mib", rss("session-1024"), AtMost(32.0)),
        bar("unary_rss_mib", rss("unary-2048"), AtMost(64.0)),
    ]
}
