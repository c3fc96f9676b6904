//! Every metric, once: its name, its labels and what it counts.

use std::{sync::OnceLock, time::Duration};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const BEGINS: &str = "intent_ledger_begins_total";
const REPEATS: &str = "intent_ledger_repeats_total";
const EXECUTIONS: &str = "intent_ledger_executions_total";
const EXECUTED_AGAIN: &str = "intent_ledger_executions_beyond_first_in_run_total";
const OLDEST_UNSETTLED: &str = "intent_ledger_oldest_unsettled_seconds";
const DROPPED: &str = "intent_ledger_history_dropped_total";
const SETTLEMENTS: &str = "intent_ledger_settlements_total";
const ERRORS: &str = "intent_ledger_errors_total";
const BATCH_ROWS: &str = "intent_ledger_batch_rows";
const PROBES: &str = "intent_ledger_probes_total";
const PROBE_SECONDS: &str = "intent_ledger_probe_seconds";
const PRUNED: &str = "intent_ledger_pruned_total";
const PURGED: &str = "intent_ledger_purged_total";
const WRITE_SECONDS: &str = "intent_ledger_store_write_seconds";

/// The label of tools that the policy does not list: callers make those names up.
pub const UNLISTED: &str = "(unlisted)";

/// The recorder of this process; the first caller installs it.
pub fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        // Another recorder is there only if a program that uses the library has its own.
        metrics::set_global_recorder(recorder).ok();
        describe_counter!(BEGINS, "Begins, by tool, decision and reason.");
        describe_counter!(REPEATS, "Begins after the first on a key, by tool and repeating layer.");
        describe_counter!(EXECUTIONS, "Rights to execute that were given, by tool.");
        describe_counter!(
            EXECUTED_AGAIN,
            "Intents executed in a run that had executed the tool before, by tool."
        );
        describe_gauge!(
            OLDEST_UNSETTLED,
            Unit::Seconds,
            "Age of the oldest intent in STARTED or UNKNOWN, of all tenants; 0 without one."
        );
        describe_counter!(
            DROPPED,
            "Repeats and counts that were not kept for people, by what they were."
        );
        describe_counter!(
            SETTLEMENTS,
            "Reports and decisions of people that were taken as meant, by kind."
        );
        describe_counter!(ERRORS, "Calls answered with an error, by reason.");
        describe_counter!(PROBES, "Questions to downstreams, by answer.");
        describe_counter!(PRUNED, "Results that were pruned after their retention.");
        describe_counter!(PURGED, "Tombstones that were purged after their time.");
        describe_histogram!(PROBE_SECONDS, Unit::Seconds, "Time of one question to a downstream.");
        describe_histogram!(BATCH_ROWS, "Rows that one statement wrote.");
        describe_histogram!(WRITE_SECONDS, Unit::Seconds, "Time of one batch, commit included.");
        handle
    })
}

/// A Begin was answered. `tool` is a listed one, so that no caller can mint labels.
pub fn begin(tool: &str, decision: &'static str, reason: &'static str) {
    counter!(BEGINS, "tool" => tool.to_owned(), "decision" => decision, "reason" => reason)
        .increment(1);
}

/// Begins were repeated by a layer. `tool` is a listed one.
pub fn repeats(tool: &str, layer: &'static str, count: u64) {
    counter!(REPEATS, "tool" => tool.to_owned(), "layer" => layer).increment(count);
}

/// Rights to execute were given; of `again` intents the run had
/// executed the tool before.
pub fn executions(tool: &str, count: u64, again: u64) {
    counter!(EXECUTIONS, "tool" => tool.to_owned()).increment(count);
    counter!(EXECUTED_AGAIN, "tool" => tool.to_owned()).increment(again);
}

/// How long the oldest open intent has been open.
pub fn oldest_unsettled(age: Duration) {
    gauge!(OLDEST_UNSETTLED).set(age.as_secs_f64());
}

/// Something that is only kept for people was not kept.
pub fn dropped(what: &'static str, count: usize) {
    counter!(DROPPED, "what" => what).increment(u64::try_from(count).unwrap_or(u64::MAX));
}

/// A report was taken as it was meant.
pub fn settlement(kind: &'static str) {
    counter!(SETTLEMENTS, "kind" => kind).increment(1);
}

/// A call was answered with an error.
pub fn error(reason: &'static str) {
    counter!(ERRORS, "reason" => reason).increment(1);
}

/// A batch was written.
pub fn batch(rows: usize, took: Duration) {
    histogram!(BATCH_ROWS).record(u32::try_from(rows).map_or(f64::INFINITY, f64::from));
    histogram!(WRITE_SECONDS).record(took.as_secs_f64());
}

/// A downstream was asked what became of a call.
pub fn probe(answer: &'static str, took: Duration) {
    counter!(PROBES, "answer" => answer).increment(1);
    histogram!(PROBE_SECONDS).record(took.as_secs_f64());
}

/// Results were pruned and tombstones purged.
pub fn forgotten(pruned: usize, purged: usize) {
    counter!(PRUNED).increment(pruned as u64);
    counter!(PURGED).increment(purged as u64);
}
