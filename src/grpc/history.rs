//! Who repeated a call, and statistics, as generated types.

use std::time::Duration;

use super::convert::{duration, reason_of, span, time};
use crate::{
    domain::{
        attempt::Layer,
        repeat::{LayerCounts, Repeat},
    },
    ledger::{
        AttemptsAnswer, AttemptsRequest, FirstBegin, StatsAnswer, StatsRequest, ToolStats,
        Violation,
    },
    proto::v1,
};

pub(super) fn attempts_request(request: v1::ListAttemptsRequest) -> AttemptsRequest {
    AttemptsRequest {
        namespace: request.namespace,
        key: request.key,
        page_size: request.page_size,
        page_token: request.page_token,
    }
}

pub(super) fn attempts_response(answer: AttemptsAnswer) -> v1::ListAttemptsResponse {
    let first = answer.first.map(first_begin);
    v1::ListAttemptsResponse {
        attempts: first.into_iter().chain(answer.repeats.into_iter().map(repeat)).collect(),
        next_page_token: answer.next_page_token,
        total_count: count(answer.layers.total() + 1),
        not_kept_count: count(answer.not_kept),
        layer_counts: layer_counts(&answer.layers),
        read_time: Some(time(answer.now)),
    }
}

fn first_begin(first: FirstBegin) -> v1::Attempt {
    let (decision, reason) = reason_of(first.answered);
    v1::Attempt {
        time: Some(time(first.at)),
        caller: first.caller,
        attempt_id: first.attempt_id.map_or_else(String::new, |id| id.to_string()),
        tool_call_id: first.tool_call_id,
        run_id: first.run_id,
        step_id: first.step_id,
        decision: decision.into(),
        reason: reason.into(),
        layer: v1::Layer::Unspecified.into(),
        free_text_changed: false,
        changed_pointers: Vec::new(),
        trace_id: String::new(),
    }
}

/// As people see it: without credentials whoever reaches this service is an operator.
fn repeat(repeat: Repeat) -> v1::Attempt {
    let (decision, reason) = reason_of(repeat.answered);
    v1::Attempt {
        time: Some(time(repeat.at)),
        caller: repeat.caller,
        attempt_id: repeat.attempt_id.map_or_else(String::new, |id| id.to_string()),
        tool_call_id: repeat.tool_call_id,
        run_id: repeat.run_id,
        step_id: repeat.step_id,
        decision: decision.into(),
        reason: reason.into(),
        layer: layer(repeat.layer).into(),
        free_text_changed: repeat.free_text_changed,
        changed_pointers: repeat.changed,
        trace_id: repeat.trace_id.map_or_else(String::new, const_hex::encode),
    }
}

fn layer(layer: Layer) -> v1::Layer {
    match layer {
        Layer::Transport => v1::Layer::Transport,
        Layer::Orchestrator => v1::Layer::Orchestrator,
        Layer::Model => v1::Layer::Model,
        Layer::ResumedRun => v1::Layer::ResumedRun,
        Layer::UnknownLayer => v1::Layer::UnknownLayer,
    }
}

fn layer_counts(counts: &LayerCounts) -> Vec<v1::LayerCount> {
    let counted = counts.iter().filter(|(_, repeats)| *repeats > 0);
    counted
        .map(|(of, repeats)| v1::LayerCount { layer: layer(of).into(), count: count(repeats) })
        .collect()
}

pub(super) fn stats_request(request: v1::GetStatsRequest) -> Result<StatsRequest, Violation> {
    Ok(StatsRequest {
        namespace: request.namespace,
        tool: request.tool,
        window: duration("window", request.window)?,
    })
}

pub(super) fn stats_response(answer: StatsAnswer) -> v1::GetStatsResponse {
    let StatsAnswer { start, tools, runs, open } = answer;
    let age: Option<Duration> = open.oldest.map(|(_, begun_at)| open.now.since(begun_at));
    v1::GetStatsResponse {
        start_time: Some(time(start)),
        end_time: Some(time(open.now)),
        tools: tools.into_iter().map(tool_stats).collect(),
        runs_over_one: runs
            .into_iter()
            .map(|run| v1::RunExecutions {
                run_id: run.run_id,
                tool: run.tool,
                execution_count: count(run.count),
            })
            .collect(),
        unsettled_count: count(open.unsettled),
        oldest_unsettled_age: age.map(span),
        oldest_unsettled_key: open.oldest.map_or_else(String::new, |(key, _)| key.to_string()),
        needs_attention_count: count(open.needs_attention),
        approvals_waiting_count: count(open.awaiting_approval),
        open_is_lower_bound: open.bounded,
    }
}

fn tool_stats(stats: ToolStats) -> v1::ToolStats {
    let decisions = stats.answered.iter().map(|(answered, times)| {
        let (decision, reason) = reason_of(*answered);
        v1::DecisionCount { decision: decision.into(), reason: reason.into(), count: count(*times) }
    });
    v1::ToolStats {
        decisions: decisions.collect(),
        repeats: layer_counts(&stats.layers),
        begin_count: count(stats.begins()),
        intent_count: count(stats.intents),
        execution_count: count(stats.executions()),
        retry_amplification: stats.amplification(),
        tool: stats.tool,
    }
}

fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
