//! What the server answered, in words for people; `json.rs` has it for programs.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{
    json,
    output::{Lines, Paint, span},
    timeline,
};
use crate::proto::v1;

/// How much of a result is shown; `--json` has it whole.
const RESULT_CHARS_MAX: usize = 400;

/// An answer, printed for machines by its serialisation and for people by its text.
pub(super) trait Answer: Serialize {
    /// Whole lines.
    fn text(&self, paint: Paint) -> String;
}

/// The answer of Begin.
pub(super) struct Begun(pub(super) v1::BeginResponse);

/// The answer of the calls that answer an intent.
pub(super) struct Settled {
    pub(super) intent: Option<v1::Intent>,
    /// What is left of the lease, where the call is about it.
    pub(super) lease: Option<prost_types::Duration>,
    /// `None` where the call has none to give.
    pub(super) warnings: Option<Vec<String>>,
}

/// A page of a list.
pub(super) struct Page(pub(super) v1::ListIntentsResponse);

fn proto_span(given: Option<&prost_types::Duration>) -> String {
    given.and_then(|given| Duration::try_from(*given).ok()).map(span).unwrap_or_default()
}

fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.and_then(|time| SystemTime::try_from(*time).ok())
        .map(|time| humantime::format_rfc3339_seconds(time).to_string())
        .unwrap_or_default()
}

/// The texts that are not empty, with spaces between.
fn join(texts: &[&str]) -> String {
    texts.iter().copied().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

fn result(intent: &v1::Intent) -> String {
    let Some(bytes) = &intent.result else { return String::new() };
    let size = bytes.len();
    let cut = if intent.result_truncated { ", cut by the ledger" } else { "" };
    match str::from_utf8(bytes) {
        Ok("") => "(empty)".to_owned(),
        Ok(text) if text.chars().count() > RESULT_CHARS_MAX => {
            let shown: String = text.chars().take(RESULT_CHARS_MAX).collect();
            format!("{shown}… ({size} bytes{cut})")
        }
        Ok(text) if cut.is_empty() => text.to_owned(),
        Ok(text) => format!("{text} ({size} bytes{cut})"),
        Err(_) => format!("({size} bytes that are no text{cut}; --json has them)"),
    }
}

fn intent_lines(lines: &mut Lines, it: &v1::Intent) {
    let attention = if it.needs_attention { "(needs attention)" } else { "" };
    let conflict = if it.conflict { "(conflict)" } else { "" };
    let state = json::state(it.state).unwrap_or_default();
    lines.add_word("state", join(&[&state, attention, conflict]));
    lines.add("tool", &it.tool);
    lines.add("run", join(&[&it.run_id, &it.step_id]));
    lines.add("key", &it.key);
    lines.add("attempt", join(&[&it.attempt.to_string(), &it.attempt_id]));
    if it.settle_time.is_none() {
        lines.add("lease ends", time(it.lease_expire_time.as_ref()));
    }
    if matches!(it.state(), v1::IntentState::AwaitingApproval | v1::IntentState::Approved) {
        lines.add("runs out", time(it.expire_time.as_ref()));
    }
    lines.add("downstream key", &it.downstream_key);
    lines.add("downstream ref", &it.downstream_ref);
    lines.add("result", result(it));
    // Of what has happened after all it would only mislead.
    if let Some(failure) = it.failure.as_ref().filter(|_| it.state() != v1::IntentState::Completed)
    {
        let kind = json::failure_kind(failure.kind).unwrap_or_default();
        lines.add("failure", join(&[&kind, &failure.code, &failure.message]));
    }
    let by = json::provenance(it.provenance).unwrap_or_default();
    lines.add(
        "settled",
        join(&[&time(it.settle_time.as_ref()), &by, &it.settled_by, &it.settle_note]),
    );
    if it.replay_count > 0 {
        lines.add("replayed", it.replay_count.to_string());
    }
    let labels: Vec<String> =
        it.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    lines.add("labels", labels.join(" "));
    lines.add("arguments", &it.arguments_json);
    for event in &it.events {
        let kind = json::event_kind(event.kind).unwrap_or_default();
        let means = format!("({})", timeline::means(event.kind()));
        let before = json::state(event.state_before).unwrap_or_default();
        let after = json::state(event.state_after).unwrap_or_default();
        let moved = if before == after { after } else { format!("{before} → {after}") };
        let at = time(event.time.as_ref());
        let said = [
            &at,
            &kind,
            &means,
            &moved,
            &event.actor,
            &event.code,
            &event.note,
            &event.downstream_ref,
        ];
        lines.add("event", join(&said.map(String::as_str)));
    }
}

impl Answer for Begun {
    fn text(&self, paint: Paint) -> String {
        let it = &self.0;
        let mut lines = Lines::default();
        lines.add_word("decision", json::decision(it.decision).unwrap_or_default());
        lines.add("reason", json::reason(it.reason).unwrap_or_default());
        lines.add("lease left", proto_span(it.lease.as_ref()));
        lines.add("ask again after", proto_span(it.retry_after.as_ref()));
        lines.add("approved arguments", &it.approved_arguments_json);
        if let Some(intent) = &it.intent {
            intent_lines(&mut lines, intent);
        }
        lines.add("warnings", it.warnings.join(" "));
        for other in &it.similar {
            let state = json::state(other.state).unwrap_or_default();
            lines.add("similar", join(&[&other.key, &state, &other.run_id]));
        }
        lines.add("for the model", &it.model_message);
        lines.render(paint)
    }
}

impl Answer for Settled {
    fn text(&self, paint: Paint) -> String {
        let mut lines = Lines::default();
        lines.add("lease left", proto_span(self.lease.as_ref()));
        if let Some(intent) = &self.intent {
            intent_lines(&mut lines, intent);
        }
        lines.add("warnings", self.warnings.as_deref().unwrap_or_default().join(" "));
        lines.render(paint)
    }
}

impl Answer for Page {
    fn text(&self, paint: Paint) -> String {
        super::table::intents(&self.0.intents, paint)
    }
}
