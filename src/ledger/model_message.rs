//! What a tool may hand to the model, in words that keep it from repeating.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::domain::{
    decision::{Decision, HoldReason, RefuseReason},
    intent::{Intent, ResultBody},
    tool::ToolPolicy,
};

/// Results over this stay out of the message: a model reads it, and the intent carries them whole.
const RESULT_BYTES_MAX: usize = 64 * 1024;

#[derive(Serialize)]
struct Message<'a> {
    status: &'static str,
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check_with: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ResultText<'a> {
    /// JSON, byte for byte as it was reported.
    Json(&'a RawValue),
    /// Any other text.
    Text(&'a str),
}

/// A short JSON object: `status`, `note`, on replay `result`, and `check_with` from the policy.
pub fn model_message(
    decision: &Decision,
    row: Option<&Intent>,
    policy: &ToolPolicy,
    tool: &str,
) -> String {
    let replayed = matches!(decision, Decision::Replay { pruned: false });
    let result = row.filter(|_| replayed).and_then(|row| row.result.as_ref()).and_then(result_text);
    let (status, note) = match decision {
        Decision::Execute { .. } | Decision::NotRecorded => {
            ("execute", format!("{tool} may run now"))
        }
        Decision::Replay { pruned: false } if result.is_some() => (
            "already_done",
            "already done; do not do it again; this is the first result".to_owned(),
        ),
        Decision::Replay { pruned: false } => {
            ("already_done", "already done; do not do it again".to_owned())
        }
        Decision::Replay { pruned: true } => (
            "already_done",
            "already done; do not do it again; its result is no longer kept".to_owned(),
        ),
        Decision::Hold { reason: HoldReason::InFlight, .. } => {
            ("in_progress", "already in progress; do not repeat; wait for its result".to_owned())
        }
        Decision::Hold { reason: HoldReason::Superseded, .. } => (
            "in_progress",
            "this try is no longer good; do not repeat the effect; ask the ledger again".to_owned(),
        ),
        Decision::Hold { reason: HoldReason::OutcomeUnknown, .. } => {
            ("outcome_unknown", unknown("it will be found out", policy))
        }
        Decision::Hold { reason: HoldReason::NeedsAttention, .. } => {
            ("outcome_unknown", unknown("a person will find out", policy))
        }
        Decision::AwaitApproval { .. } => {
            let note = "a person must decide first; do not repeat it and do not try another way";
            ("awaiting_approval", note.to_owned())
        }
        Decision::Refuse { reason } => ("refused", refusal(*reason).to_owned()),
        Decision::ParametersChanged { .. } => (
            "parameters_changed",
            "this action was begun before with other parameters; nothing was done now".to_owned(),
        ),
        Decision::WeakKey | Decision::BusinessIdRequired { .. } | Decision::RunRequired => {
            ("refused", "the call does not say what it is about".to_owned())
        }
    };
    let uncertain = matches!(decision, Decision::Hold { .. });
    let message = Message {
        status,
        note,
        result,
        check_with: policy.check_with.as_deref().filter(|_| uncertain),
    };
    serde_json::to_string(&message).expect("a message is plain data")
}

fn unknown(otherwise: &str, policy: &ToolPolicy) -> String {
    match &policy.check_with {
        Some(tool) => format!("outcome unknown; do not repeat; check with {tool}"),
        None => format!("outcome unknown; do not repeat; {otherwise}"),
    }
}

fn refusal(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::FailedFinal => "it did not happen, and no further try is allowed",
        RefuseReason::Denied => "a person said no; do not try another way",
        RefuseReason::ToolNotListed => "this tool is not allowed",
        RefuseReason::ToolHalted => "this tool is switched off for now; do not try another way",
        RefuseReason::RunLimit => "this run has used up its limit for the tool; do not repeat it",
        RefuseReason::LookAlikeLimit => "almost the same was done a moment ago; not done again",
    }
}

fn result_text(result: &ResultBody) -> Option<ResultText<'_>> {
    let bytes = result.bytes.as_deref()?;
    if bytes.len() > RESULT_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    match serde_json::from_str::<&RawValue>(text) {
        Ok(json) if !result.truncated => Some(ResultText::Json(json)),
        _ => Some(ResultText::Text(text)),
    }
}
