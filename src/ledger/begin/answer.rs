//! From a decision to the answer of a Begin.

use super::{BeginAnswer, Checked};
use crate::{
    domain::{
        decision::{Candidate, Decision},
        identity::{KeyBasis, pointed_texts},
        intent::Intent,
        key_lint::{Lint, lint},
        time::Timestamp,
        tool::ToolPolicy,
    },
    ledger::{LedgerError, Reading, Violation, history::Notes, model_message},
};

/// A decision that leaves no row behind.
pub(super) fn without_row(
    decision: Decision,
    checked: &Checked,
    policy: &ToolPolicy,
) -> Result<BeginAnswer, LedgerError> {
    if decision == Decision::WeakKey {
        let weak = Violation::new(
            "identity",
            "WEAK_KEY",
            "the tool needs approval, so the call must be named by a key, business ids or the \
             policy's pointers",
        );
        return Err(weak.into());
    }
    if let Decision::BusinessIdRequired { name } = &decision {
        let problem = format!("must have {name:?}, by which the tool's policy asks the downstream");
        return Err(Violation::new("identity.business_ids", "BUSINESS_ID_REQUIRED", problem).into());
    }
    if decision == Decision::RunRequired {
        let problem = "must be given: the tool's policy limits how often a run may call it";
        return Err(Violation::new("identity.run_id", "RUN_REQUIRED", problem).into());
    }
    let model_message = model_message(&decision, None, policy, &checked.call.tool);
    Ok(BeginAnswer {
        decision,
        row: None,
        attempt_id: None,
        lease: None,
        downstream_key: String::new(),
        approved_arguments_json: String::new(),
        model_message,
        warnings: Vec::new(),
        similar: Vec::new(),
        listed_tool: listed_tool(checked, policy),
    })
}

/// A decision about a row, as the row is once the decision has been written.
pub(super) fn with_row(
    decision: Decision,
    reading: Reading,
    candidate: &Candidate,
    checked: &Checked,
    policy: &ToolPolicy,
    notes: &Notes,
) -> BeginAnswer {
    let Reading { now, stored } = reading;
    let intent = &stored.intent;
    let granted = intent.current().filter(|_| matches!(decision, Decision::Execute { .. }));
    BeginAnswer {
        attempt_id: granted.map(|attempt| attempt.id),
        lease: granted.map(|attempt| attempt.lease_expires_at.since(now)),
        downstream_key: intent.announced_key(),
        approved_arguments_json: intent
            .approval
            .as_ref()
            // Whatever the grant rests on: what the person saw is what is executed.
            .filter(|_| granted.is_some())
            .map_or_else(String::new, |approval| approval.arguments_json.clone()),
        model_message: model_message(&decision, Some(intent), policy, &checked.call.tool),
        warnings: warnings(&decision, intent, candidate, checked, policy, (now, notes)),
        similar: Vec::new(),
        listed_tool: listed_tool(checked, policy),
        row: Some(stored),
        decision,
    }
}

fn listed_tool(checked: &Checked, policy: &ToolPolicy) -> Option<String> {
    policy.listed.then(|| checked.call.tool.clone())
}

fn warnings(
    decision: &Decision,
    intent: &Intent,
    candidate: &Candidate,
    checked: &Checked,
    policy: &ToolPolicy,
    (now, notes): (Timestamp, &Notes),
) -> Vec<&'static str> {
    let sent = &checked.identity;
    let overridden = intent.key_basis == KeyBasis::Policy
        && !(sent.idempotency_key.is_empty() && sent.business_ids.is_empty());
    let clamped = matches!(decision, Decision::Execute { lease_clamped: true, .. });
    let reworded = intent.digests.free_text_differs(&candidate.print.digests);
    // A policy's pointers make one key for each thing, whatever the call: several are no mistake.
    let another_key = intent.key_basis != KeyBasis::Policy
        && notes.has_another_key(&checked.call, &candidate.print.fingerprint, intent.id());
    let lints = match intent.key_basis {
        KeyBasis::IdempotencyKey => lint([sent.idempotency_key.as_str()], now),
        KeyBasis::BusinessIds => lint(sent.business_ids.values().map(String::as_str), now),
        KeyBasis::Policy => {
            let values = pointed_texts(&policy.recipe, &checked.arguments);
            lint(values, now)
        }
        KeyBasis::StepArguments => Vec::new(),
    };
    let said = [
        (overridden, "identity_overridden"),
        (intent.key_basis == KeyBasis::StepArguments, "weak_key"),
        (reworded, "free_text_changed"),
        (clamped, "lease_clamped"),
        (another_key, "new_key_each_attempt"),
    ];
    let said = said.into_iter().filter_map(|(holds, warning)| holds.then_some(warning));
    said.chain(lints.into_iter().map(Lint::as_str)).collect()
}
