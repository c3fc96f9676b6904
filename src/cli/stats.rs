//! `stats`: what was asked, what repeated it, what is open?

use std::time::{Duration, SystemTime};

use clap::Args;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    answer::Answer,
    client::{CallError, ClientFlags},
    input,
    json::{self, Json},
    output::{Paint, plain, span},
    table,
};
use crate::proto::v1;

const EXAMPLE: &str = "\
Counters of all servers on one store, by the minute for three hours and by the hour for 90 days: a longer
window begins with a whole hour. A server's own are exact; those of others may lack their last second.

BEGINS counts every Begin that was answered, INTENTS those that made a new intent. REPEATED is Begins per
intent: 1.00 is no repeat at all. Repeats of an intent from before the window count as repeats only, so a
short window makes it larger.

RUNS counts intents, whatever their attempts, in runs that executed one tool more than once. Servers count
by themselves: what each saw but once of a run is not in it.

Examples:
  $ intent-ledger stats
  $ intent-ledger stats --window 1h --tool send_email
  $ intent-ledger stats --json | jq '.tools[] | {tool, retry_amplification}'";

/// Flags of `stats`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct StatsFlags {
    /// Only this tool
    #[arg(long, value_name = "TOOL", default_value = "", hide_default_value = true)]
    tool: String,

    /// How far back from now, such as 1h or 7days
    #[arg(long, value_name = "SPAN", default_value = "24h",
          value_parser = humantime::parse_duration)]
    window: Duration,

    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(flags: &StatsFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let request = v1::GetStatsRequest {
        namespace: client.namespace.clone(),
        tool: flags.tool.clone(),
        window: Some(input::span(flags.window)?),
    };
    client.run(async |server| {
        let answer = server.operations.get_stats(client.request(request)).await;
        client.print(&Stats(answer.map_err(CallError::from)?.into_inner()))
    })
}

struct Stats(v1::GetStatsResponse);

impl Answer for Stats {
    fn text(&self, _: Paint) -> String {
        let it = &self.0;
        let mut text = format!("{} to {}\n", time(it.start_time), time(it.end_time));
        if it.tools.is_empty() {
            text += "\nnothing was begun\n";
        } else {
            let headings = ["TOOL", "BEGINS", "INTENTS", "EXECUTED", "REPEATED", "BY LAYER"];
            let rows = it.tools.iter().map(|stats| {
                let layers = stats.repeats.iter().map(|it| (json::layer(it.layer), it.count));
                [
                    plain(&stats.tool),
                    stats.begin_count.to_string(),
                    stats.intent_count.to_string(),
                    stats.execution_count.to_string(),
                    amplification(stats),
                    counted(layers),
                ]
            });
            text += &format!("\n{}", table::aligned(headings, rows));
            let rows = it.tools.iter().map(|stats| {
                let words = stats.decisions.iter().map(|it| {
                    let decision = json::decision(it.decision).unwrap_or_default();
                    let reason = json::reason(it.reason).unwrap_or_default();
                    (Some(format!("{decision} {reason}")), it.count)
                });
                [plain(&stats.tool), counted(words)]
            });
            text += &format!("\n{}", table::aligned(["TOOL", "DECISIONS"], rows));
        }
        if !it.runs_over_one.is_empty() {
            let rows = it
                .runs_over_one
                .iter()
                .map(|run| [plain(&run.run_id), plain(&run.tool), run.execution_count.to_string()]);
            text += &format!("\n{}", table::aligned(["RUNS", "TOOL", "EXECUTED"], rows));
        }
        let at_least = if it.open_is_lower_bound { "at least " } else { "" };
        text += &format!("\nopen now: {at_least}{} unsettled", it.unsettled_count);
        if let Some(age) = it.oldest_unsettled_age.and_then(|age| Duration::try_from(age).ok()) {
            text +=
                &format!(", the oldest for {} ({})", span(age), plain(&it.oldest_unsettled_key));
        }
        text += &format!(
            "; {} need a person; {} await approval\n",
            it.needs_attention_count, it.approvals_waiting_count
        );
        text
    }
}

/// Begins per intent; what leaves no intent repeats nothing.
fn amplification(stats: &v1::ToolStats) -> String {
    if stats.intent_count == 0 {
        return "-".to_owned();
    }
    format!("{:.2}", stats.retry_amplification)
}

fn time(time: Option<prost_types::Timestamp>) -> String {
    time.and_then(|time| SystemTime::try_from(time).ok())
        .map(|time| humantime::format_rfc3339_seconds(time).to_string())
        .unwrap_or_default()
}

/// Words with their counts, the most frequent first.
fn counted(words: impl Iterator<Item = (Option<String>, i64)>) -> String {
    let mut words: Vec<(Option<String>, i64)> = words.collect();
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words =
        words.into_iter().map(|(word, count)| format!("{} {count}", word.unwrap_or_default()));
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = &self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("start_time", &json::time(it.start_time.as_ref()))?;
        map.serialize_entry("end_time", &json::time(it.end_time.as_ref()))?;
        map.serialize_entry("tools", &it.tools.iter().map(Json).collect::<Vec<_>>())?;
        map.serialize_entry(
            "runs_over_one",
            &it.runs_over_one.iter().map(Json).collect::<Vec<_>>(),
        )?;
        map.serialize_entry("unsettled_count", &it.unsettled_count)?;
        map.serialize_entry("oldest_unsettled_age", &json::span(it.oldest_unsettled_age.as_ref()))?;
        map.serialize_entry("oldest_unsettled_key", &it.oldest_unsettled_key)?;
        map.serialize_entry("needs_attention_count", &it.needs_attention_count)?;
        map.serialize_entry("approvals_waiting_count", &it.approvals_waiting_count)?;
        map.serialize_entry("open_is_lower_bound", &it.open_is_lower_bound)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_as_the_golden_file_has_them() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let decision = |decision: v1::Decision, reason: v1::Reason, count| v1::DecisionCount {
            decision: decision.into(),
            reason: reason.into(),
            count,
        };
        let repeats = |layer: v1::Layer, count| v1::LayerCount { layer: layer.into(), count };
        let stats = Stats(v1::GetStatsResponse {
            start_time: at(1_796_030_100 - 86_400),
            end_time: at(1_796_030_110),
            tools: vec![
                v1::ToolStats {
                    tool: "refund".into(),
                    decisions: vec![
                        decision(v1::Decision::Execute, v1::Reason::New, 3),
                        decision(v1::Decision::Replay, v1::Reason::Completed, 12),
                    ],
                    repeats: vec![repeats(v1::Layer::Transport, 2), repeats(v1::Layer::Model, 10)],
                    begin_count: 15,
                    intent_count: 3,
                    execution_count: 3,
                    retry_amplification: 5.0,
                },
                v1::ToolStats {
                    tool: "search_the_knowledge_base".into(),
                    decisions: vec![decision(v1::Decision::Execute, v1::Reason::NotRecorded, 1204)],
                    begin_count: 1204,
                    execution_count: 1204,
                    ..v1::ToolStats::default()
                },
            ],
            runs_over_one: vec![v1::RunExecutions {
                run_id: "r1".into(),
                tool: "refund".into(),
                execution_count: 2,
            }],
            unsettled_count: 1,
            oldest_unsettled_age: Some(prost_types::Duration { seconds: 4000, nanos: 0 }),
            oldest_unsettled_key: "9c".repeat(32),
            needs_attention_count: 1,
            approvals_waiting_count: 2,
            open_is_lower_bound: false,
        });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/cli/stats.txt");
        let told = stats.text(Paint::never());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &told).unwrap();
        }
        assert_eq!(told, std::fs::read_to_string(path).unwrap());
    }
}
