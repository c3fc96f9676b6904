//! The story of one intent, for a person who wants to know in a minute why it was repeated.

use std::time::{Duration, SystemTime};

use super::{
    explain::Explained,
    json,
    output::{Paint, plain, span},
};
use crate::proto::v1::{self, Decision, EventKind, IntentState, Layer, Reason};

/// The column in which what happened begins: as wide as a time.
const INDENT: &str = "                      ";

/// So many repeats of one kind in a row are told one by one; what follows is told together.
const ALIKE_TOLD: usize = 2;

/// Something that happened.
struct Entry {
    at: Duration,
    /// What; its first word may have a colour.
    words: String,
    /// More about it, a line each.
    details: Vec<String>,
}

/// The whole story.
pub(super) fn text(explained: &Explained, paint: Paint) -> String {
    let Explained { intent, attempts } = explained;
    let mut entries = begins(&attempts.attempts);
    entries.extend(granted_unseen(intent, &attempts.attempts));
    entries.extend(intent.events.iter().map(event));
    entries.extend(settlement(intent));
    // A stable sort: what was written at one time stays in the order of cause and effect.
    entries.sort_by_key(|entry| entry.at);

    let place = [("run", &intent.run_id), ("step", &intent.step_id)];
    let place = place.iter().filter(|(_, name)| !name.is_empty());
    let place: String = place.map(|(what, name)| format!(", {what} {}", plain(name))).collect();
    let state = json::state(intent.state).unwrap_or_default();
    let mut text = format!("{}{place}: {}\n", plain(&intent.tool), paint.word(&state));
    text += &format!("{}\n\n", plain(&intent.key));
    let begun = entries.first().map_or(Duration::ZERO, |entry| entry.at);
    for (place, entry) in entries.iter().enumerate() {
        let when = if place == 0 {
            moment(entry.at)
        } else {
            format!("+{}", span(entry.at.saturating_sub(begun)))
        };
        text += &format!("{when:>20}  {}\n", plain(&entry.words));
        for detail in &entry.details {
            text += &format!("{INDENT}  {}\n", plain(detail));
        }
    }
    text += &format!("\n{}\n{}\n", stands(explained), asked(attempts));
    text
}

/// Where the intent stands now, in one sentence.
pub(super) fn stands(explained: &Explained) -> String {
    let Explained { intent, attempts } = explained;
    let now = since_epoch(attempts.read_time.as_ref()).unwrap_or_default();
    let lease = since_epoch(intent.lease_expire_time.as_ref());
    let mut words = match intent.state() {
        IntentState::AwaitingApproval => {
            "Nothing has happened: a person must decide first".to_owned()
        }
        IntentState::Approved => {
            "Nothing has happened: a person said yes, and the next caller may execute".to_owned()
        }
        IntentState::Started if lease.is_some_and(|lease| now < lease) => {
            let left = lease.map_or(Duration::ZERO, |lease| lease.saturating_sub(now));
            format!("It is under way: its attempt has the lease for another {}", span(left))
        }
        IntentState::Started => {
            "Nobody has reported on it, and its lease is over: it may have happened or not"
                .to_owned()
        }
        IntentState::Unknown => {
            "Somebody tried, and nobody knows whether it happened; only Begin may say to repeat it"
                .to_owned()
        }
        IntentState::Completed if intent.result.is_none() && !intent.result_sha256.is_empty() => {
            "It happened; its result is no longer kept, and repeats are told so".to_owned()
        }
        IntentState::Completed if intent.conflict => {
            "It happened; whoever asks again is given the first result".to_owned()
        }
        IntentState::Completed => {
            "It happened once; whoever asks again is given the first result".to_owned()
        }
        IntentState::Failed => {
            "It did not happen; Begin says whether the policy has an attempt left".to_owned()
        }
        IntentState::Denied => "It did not happen: a person said no, or nobody decided".to_owned(),
        IntentState::Unspecified => "This program does not know its state".to_owned(),
    };
    if intent.conflict {
        words += "; reports contradict each other, so it may have happened twice";
    }
    if intent.needs_attention {
        words += "; only a person can move it on (`intent-ledger resolve`)";
    }
    words + "."
}

/// How often it was begun, and by whom.
fn asked(attempts: &v1::ListAttemptsResponse) -> String {
    let by: Vec<String> = attempts
        .layer_counts
        .iter()
        .map(|it| format!("{} {}", json::layer(it.layer).unwrap_or_default(), it.count))
        .collect();
    let mut words = match (attempts.total_count, by.is_empty()) {
        (1, _) => "Begun once, and never repeated".to_owned(),
        (total, true) => format!("Begun {total} times"),
        (total, false) => format!("Begun {total} times; repeats by layer: {}", by.join(", ")),
    };
    if attempts.not_kept_count > 0 {
        words += &format!("; {} of them are counted only", attempts.not_kept_count);
    }
    words + "."
}

/// The grant of the attempt that the row tells of, where the Begin that got it is counted only.
fn granted_unseen(intent: &v1::Intent, attempts: &[v1::Attempt]) -> Option<Entry> {
    let seen = attempts.iter().any(|attempt| {
        attempt.decision() == Decision::Execute
            && (attempt.attempt_id == intent.attempt_id || attempt.time == intent.start_time)
    });
    let at = since_epoch(intent.start_time.as_ref()).filter(|_| !seen)?;
    let words =
        format!("attempt {} may execute; its Begin is one of those counted only", intent.attempt);
    let details = vec![format!("attempt {}", intent.attempt_id)];
    Some(Entry { at, words, details })
}

fn begins(attempts: &[v1::Attempt]) -> Vec<Entry> {
    let Some((first, repeats)) = attempts.split_first() else { return Vec::new() };
    let mut entries = vec![begin(first, None)];
    for alike in repeats.chunk_by(is_alike) {
        let told = if alike.len() > ALIKE_TOLD + 1 { ALIKE_TOLD } else { alike.len() };
        entries.extend(alike[..told].iter().map(|repeat| begin(repeat, Some(first))));
        if let Some(last) = alike[told..].last() {
            entries.push(Entry {
                at: since_epoch(last.time.as_ref()).unwrap_or_default(),
                words: format!("… and {} more like these until here", alike.len() - told),
                details: Vec::new(),
            });
        }
    }
    entries
}

/// Whether a repeat tells nothing that the one before did not.
fn is_alike(one: &v1::Attempt, other: &v1::Attempt) -> bool {
    let same = |attempt: &v1::Attempt| {
        let v1::Attempt { layer, decision, reason, free_text_changed, .. } = *attempt;
        (layer, decision, reason, free_text_changed)
    };
    // Each right to execute is told.
    one.decision() != Decision::Execute
        && same(one) == same(other)
        && one.changed_pointers == other.changed_pointers
        && (&one.caller, &one.run_id, &one.step_id)
            == (&other.caller, &other.run_id, &other.step_id)
}

/// One Begin; `first` is the one that it repeats.
fn begin(attempt: &v1::Attempt, first: Option<&v1::Attempt>) -> Entry {
    let who = if attempt.caller.is_empty() { "somebody" } else { &attempt.caller };
    let decision = json::decision(attempt.decision).unwrap_or_default();
    let reason = json::reason(attempt.reason).unwrap_or_default();
    let told = match attempt.decision() {
        Decision::Execute => "may execute",
        Decision::Replay if attempt.reason() == Reason::ResultPruned => {
            "is told that it happened, without the result"
        }
        Decision::Replay => "is given the first result",
        Decision::Hold => "must wait",
        Decision::AwaitApproval => "must wait for a person",
        Decision::Refuse => "is refused",
        Decision::Unspecified => "is answered",
    };
    let how = match (first, attempt.layer()) {
        (None, _) => "begins it".to_owned(),
        (Some(_), layer) => format!("repeats it, {}", of_layer(layer)),
    };
    let mut details = Vec::new();
    let named = |what: &str, name: &str| (!name.is_empty()).then(|| format!("{what} {name}"));
    match first {
        None => details.extend(named("tool call", &attempt.tool_call_id)),
        Some(first) => {
            let same_caller = differs("caller", &first.caller, &attempt.caller);
            let differing = [
                same_caller,
                differs("tool call", &first.tool_call_id, &attempt.tool_call_id),
                differs("run", &first.run_id, &attempt.run_id),
                differs("step", &first.step_id, &attempt.step_id),
                attempt.free_text_changed.then(|| "other free text".to_owned()),
                (!attempt.changed_pointers.is_empty())
                    .then(|| format!("other values at {}", attempt.changed_pointers.join(", "))),
            ];
            let differing: Vec<String> = differing.into_iter().flatten().collect();
            if !differing.is_empty() {
                details.push(format!("differs: {}", differing.join(", ")));
            }
        }
    }
    details.extend(named("attempt", &attempt.attempt_id));
    details.extend(named("trace", &attempt.trace_id));
    Entry {
        at: since_epoch(attempt.time.as_ref()).unwrap_or_default(),
        words: format!("{who} {how}, and {told}: {decision} {reason}"),
        details,
    }
}

fn of_layer(layer: Layer) -> &'static str {
    match layer {
        Layer::Transport => "as its client sent the same attempt again (TRANSPORT)",
        Layer::Orchestrator => "as the same tool call was run again (ORCHESTRATOR)",
        Layer::Model => "as the model asked again (MODEL)",
        Layer::ResumedRun => "as another process took the run up (RESUMED_RUN)",
        Layer::UnknownLayer | Layer::Unspecified => "and nothing tells why (UNKNOWN_LAYER)",
    }
}

fn differs(what: &str, first: &str, now: &str) -> Option<String> {
    let name = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    (first != now).then(|| format!("{what} {}, not {}", name(now), name(first)))
}

fn event(event: &v1::Event) -> Entry {
    let kind = json::event_kind(event.kind).unwrap_or_default();
    let before = json::state(event.state_before).unwrap_or_default();
    let after = json::state(event.state_after).unwrap_or_default();
    let moved = if before == after { String::new() } else { format!(", {before} → {after}") };
    let by = match json::provenance(event.provenance) {
        Some(by) if event.actor.is_empty() => by,
        Some(by) => format!("{by} {}", event.actor),
        None => event.actor.clone(),
    };
    let said = [&event.code, &event.note, &event.downstream_ref];
    let said: Vec<&str> =
        said.iter().map(|text| text.as_str()).filter(|text| !text.is_empty()).collect();
    Entry {
        at: since_epoch(event.time.as_ref()).unwrap_or_default(),
        words: format!("{kind} by {by}{moved}: {}", means(event.kind())),
        details: if said.is_empty() { Vec::new() } else { vec![said.join("; ")] },
    }
}

/// What an event says, in a few words.
pub(super) fn means(kind: EventKind) -> &'static str {
    match kind {
        EventKind::LeftUnknown => "evidence told what had become of it",
        EventKind::LateComplete => {
            "a success was reported after a newer attempt was granted, or after another settlement"
        }
        EventKind::Unproven => "a success was reported without evidence",
        EventKind::LateFail => "a failure was reported against an earlier report",
        EventKind::Contradiction => {
            "a report contradicts what was believed; it may have happened twice"
        }
        EventKind::NotGranted => "an attempt reported that had never been granted",
        EventKind::NotStarted => "a report came of what nobody had approved",
        EventKind::LeaseLost => "a heartbeat came from one who no longer held the lease",
        EventKind::Superseded => "a new attempt was granted while an earlier one was unsettled",
        EventKind::OrphanFact => "a report came for a key that had never been begun",
        EventKind::Reconciled => "the downstream was asked, and its answer settled it",
        EventKind::Probed => "the downstream was asked, and its answer settled nothing",
        EventKind::Resolved => "a person settled it",
        EventKind::Acknowledged => "a person saw it, with nothing to settle",
        EventKind::Proposed => "it was put before a person",
        EventKind::Approved => "a person said yes",
        EventKind::Denied => "a person said no",
        EventKind::ApprovalExpired => "nobody decided in time, or nobody began it",
        EventKind::Unspecified => "this program does not know the word",
    }
}

/// The settlement, which the row itself tells.
fn settlement(intent: &v1::Intent) -> Option<Entry> {
    let at = since_epoch(intent.settle_time.as_ref())?;
    let state = json::state(intent.state).unwrap_or_default();
    let by = json::provenance(intent.provenance).unwrap_or_default();
    let by = if intent.settled_by.is_empty() { by } else { format!("{by} {}", intent.settled_by) };
    let mut details = Vec::new();
    if !intent.settle_note.is_empty() {
        details.push(intent.settle_note.clone());
    }
    if let Some(failure) = intent.failure.as_ref().filter(|_| intent.state() == IntentState::Failed)
    {
        details.push([failure.code.as_str(), failure.message.as_str()].join(" ").trim().to_owned());
    }
    if !intent.downstream_ref.is_empty() {
        details.push(format!("downstream reference {}", intent.downstream_ref));
    }
    details.retain(|detail| !detail.is_empty());
    Some(Entry { at, words: format!("settled by {by}: {state}"), details })
}

fn since_epoch(time: Option<&prost_types::Timestamp>) -> Option<Duration> {
    let time = SystemTime::try_from(*time?).ok()?;
    time.duration_since(SystemTime::UNIX_EPOCH).ok()
}

fn moment(at: Duration) -> String {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: i64 = 1_796_030_100;

    fn time(after: i64) -> Option<prost_types::Timestamp> {
        let (seconds, nanos) =
            (BEGUN + after / 1000, i32::try_from(after % 1000).unwrap() * 1_000_000);
        Some(prost_types::Timestamp { seconds, nanos })
    }

    fn attempt(after: i64, call: &str, layer: Layer, reason: v1::Reason) -> v1::Attempt {
        let decision = match reason {
            v1::Reason::Completed => Decision::Replay,
            v1::Reason::InFlight => Decision::Hold,
            _ => Decision::Execute,
        };
        v1::Attempt {
            time: time(after),
            caller: "worker-1".into(),
            tool_call_id: call.into(),
            run_id: "r1".into(),
            step_id: "s4".into(),
            decision: decision.into(),
            reason: reason.into(),
            layer: layer.into(),
            ..v1::Attempt::default()
        }
    }

    /// A call that was held, lost, settled by the reconciler and repeated by everybody.
    fn story() -> Explained {
        use v1::Reason;
        let mut attempts = vec![
            v1::Attempt {
                attempt_id: "11111111-1111-4111-8111-111111111111".into(),
                ..attempt(0, "call_1", Layer::Unspecified, Reason::New)
            },
            attempt(2_100, "call_1", Layer::Orchestrator, Reason::InFlight),
            v1::Attempt {
                caller: "worker-2".into(),
                trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".into(),
                ..attempt(185_000, "call_3", Layer::ResumedRun, Reason::Completed)
            },
        ];
        attempts.extend((0..9).map(|n| v1::Attempt {
            free_text_changed: true,
            ..attempt(
                200_000 + n * 1000,
                &format!("call_{}", n + 4),
                Layer::Model,
                Reason::Completed,
            )
        }));
        let event = v1::Event {
            time: time(61_500),
            kind: v1::EventKind::Reconciled.into(),
            provenance: v1::Provenance::Reconciler.into(),
            state_before: IntentState::Started.into(),
            state_after: IntentState::Completed.into(),
            note: "the downstream says that it happened".into(),
            ..v1::Event::default()
        };
        let count = |layer: Layer, count| v1::LayerCount { layer: layer.into(), count };
        Explained {
            intent: v1::Intent {
                tool: "send_email".into(),
                run_id: "r1".into(),
                step_id: "s4".into(),
                key: "9c".repeat(32),
                state: IntentState::Completed.into(),
                create_time: time(0),
                settle_time: time(61_500),
                provenance: v1::Provenance::Reconciler.into(),
                downstream_ref: "msg_17\u{1b}[2J".into(),
                result: Some(b"1".to_vec()),
                events: vec![event],
                ..v1::Intent::default()
            },
            attempts: v1::ListAttemptsResponse {
                attempts,
                total_count: 112,
                not_kept_count: 100,
                read_time: time(300_000),
                layer_counts: vec![
                    count(Layer::Orchestrator, 1),
                    count(Layer::Model, 109),
                    count(Layer::ResumedRun, 1),
                ],
                ..v1::ListAttemptsResponse::default()
            },
        }
    }

    #[test]
    fn a_story_is_told_as_the_golden_file_has_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/cli/explain.txt");
        let told = text(&story(), Paint::never());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &told).unwrap();
        }
        assert_eq!(told, std::fs::read_to_string(path).unwrap());
    }

    /// After a hundred repeats only the row knows who may execute.
    #[test]
    fn a_grant_whose_begin_is_counted_only_has_its_line_all_the_same() {
        let mut explained = story();
        let id = "22222222-2222-4222-8222-222222222222";
        explained.intent.attempt = 2;
        explained.intent.attempt_id = id.into();
        explained.intent.start_time = time(250_000);
        let line = "attempt 2 may execute; its Begin is one of those counted only";
        assert!(text(&explained, Paint::never()).contains(line));
        for (attempt_id, start) in [(id, time(250_001)), ("", time(250_000))] {
            let mut seen = story();
            seen.intent = explained.intent.clone();
            let granted = attempt(250_000, "call_9", Layer::Model, Reason::Retry);
            seen.attempts.attempts.push(v1::Attempt {
                attempt_id: attempt_id.into(),
                time: start,
                ..granted
            });
            assert!(!text(&seen, Paint::never()).contains("counted only;"), "{attempt_id}");
            assert!(!text(&seen, Paint::never()).contains(line), "{attempt_id}");
        }
    }

    #[test]
    fn each_right_to_execute_has_a_line_of_its_own() {
        let mut explained = story();
        explained.attempts.attempts.truncate(1);
        explained.attempts.attempts.extend(
            (1..=6).map(|n| attempt(n * 1000, "call_1", Layer::Orchestrator, Reason::Retry)),
        );
        let told = text(&explained, Paint::never());
        assert_eq!(told.matches("EXECUTE RETRY").count(), 6, "{told}");
    }

    #[test]
    fn a_pruned_result_is_given_to_nobody() {
        let mut explained = story();
        let last = attempt(210_000, "call_9", Layer::Model, Reason::ResultPruned);
        explained.attempts.attempts.push(v1::Attempt { decision: Decision::Replay.into(), ..last });
        let told = text(&explained, Paint::never());
        assert!(
            told.contains("is told that it happened, without the result: REPLAY RESULT_PRUNED")
        );
    }

    #[test]
    fn every_event_has_its_clause() {
        // Their numbers leave no gap.
        let kinds: Vec<EventKind> =
            (1..).map_while(|code| EventKind::try_from(code).ok()).collect();
        assert_eq!(kinds.last(), Some(&EventKind::ApprovalExpired), "a new kind stands here too");
        let mut clauses: Vec<&str> = kinds.iter().map(|kind| means(*kind)).collect();
        clauses.sort_unstable();
        clauses.dedup();
        assert_eq!(clauses.len(), kinds.len());
        for clause in clauses {
            assert!(clause.len() < 90 && !clause.ends_with('.'), "{clause}");
        }
    }

    #[test]
    fn every_state_has_its_sentence() {
        let of = |state: IntentState, change: fn(&mut v1::Intent)| {
            let mut explained = story();
            explained.intent.state = state.into();
            change(&mut explained.intent);
            stands(&explained)
        };
        let rows = [
            (of(IntentState::Started, |it| it.lease_expire_time = time(310_000)), "another 10s"),
            (of(IntentState::Started, |it| it.lease_expire_time = time(60_000)), "lease is over"),
            (of(IntentState::Unknown, |it| it.needs_attention = true), "only a person"),
            (of(IntentState::Completed, |it| it.conflict = true), "happened twice"),
            (of(IntentState::Failed, |_| {}), "did not happen"),
            (of(IntentState::Denied, |_| {}), "said no"),
            (of(IntentState::AwaitingApproval, |_| {}), "must decide"),
            (of(IntentState::Approved, |_| {}), "said yes"),
            (
                of(IntentState::Completed, |it| {
                    it.result = None;
                    it.result_sha256 = "ab".into();
                }),
                "no longer kept",
            ),
        ];
        for (sentence, part) in rows {
            assert!(sentence.contains(part), "{part:?} is not in {sentence:?}");
            assert_eq!(sentence.matches(". ").count(), 0, "one sentence: {sentence}");
        }
    }
}
