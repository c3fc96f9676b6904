//! A person who looks, some hours later, at what only a person can decide.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use intent_ledger::{
    clock::Deadline,
    domain::{
        intent::{Intent, State},
        report::Refusal,
        time::Timestamp,
    },
    ledger::{LedgerError, ListRequest, ReportedResult, ResolutionRequest, ResolveRequest},
    store::Filter,
};

use super::{
    oracle::action_of,
    run::{NAMESPACE, World},
};
use crate::dice::Dice;

/// Comes by until there is nobody else left and nothing to do.
pub(crate) async fn live(world: Arc<World>, mut dice: Dice) {
    let mut seen = BTreeSet::new();
    while !world.is_over() {
        let hours = if world.is_calm() { 4 } else { 1 + dice.below(15) };
        world.calendar.sleep(Duration::from_secs(hours * 3600)).await;
        let Some(server) = world.any_server(&mut dice) else { continue };
        let mut asked = vec![Some(true)];
        // What was acknowledged and is still open is not forgotten.
        let reopens = dice.percent(10);
        asked.extend((reopens || !seen.is_empty()).then_some(None));
        for needs_attention in asked {
            let filter =
                Filter { namespace: NAMESPACE.into(), needs_attention, ..Filter::default() };
            let request = ListRequest { filter, page_size: 1000, ..ListRequest::default() };
            let listed = tokio::select! {
                biased;
                () = server.crashed.cancelled() => continue,
                listed = server.ledger.list(request) => listed,
            };
            let Ok(listed) = listed else { continue };
            for intent in listed.intents {
                let failed = reopens && intent.state == State::Failed && dice.percent(30);
                if failed && !world.is_calm() {
                    reopen(&world, &mut dice, &intent).await;
                } else if intent.needs_attention || seen.contains(&intent.id()) {
                    decide(&world, &mut dice, &mut seen, &intent).await;
                }
            }
        }
    }
}

/// When the downstream can tell for certain.
fn certain_from(world: &World, intent: &Intent) -> Option<Timestamp> {
    let visibility = world.oracle.tool(action_of(intent)).visibility;
    let open = intent.attempts.iter().filter(|attempt| !attempt.fate.is_harmless());
    open.map(|attempt| attempt.lease_expires_at + visibility).max()
}

/// Gives what has failed for good a fresh budget of attempts.
async fn reopen(world: &Arc<World>, dice: &mut Dice, intent: &Intent) {
    resolve(world, dice, intent, ResolutionRequest::NotExecuted, None).await;
}

async fn decide(
    world: &Arc<World>,
    dice: &mut Dice,
    seen: &mut BTreeSet<uuid::Uuid>,
    intent: &Intent,
) {
    let action = action_of(intent);
    if intent.state == State::Completed {
        return resolve(world, dice, intent, ResolutionRequest::Acknowledged, None).await;
    }
    if !intent.state.is_unsettled() {
        seen.remove(&intent.id());
        if intent.needs_attention {
            resolve(world, dice, intent, ResolutionRequest::Acknowledged, None).await;
        }
        return;
    }
    if intent.needs_attention && dice.percent(15) {
        seen.insert(intent.id());
        world.taken_over(intent.id());
        return resolve(world, dice, intent, ResolutionRequest::Acknowledged, None).await;
    }
    // The look, and then some time until the answer is written down.
    let visible = world.providers.visible(world.oracle.tool_of(action), action);
    let now = world.calendar.now();
    let certain = certain_from(world, intent).is_none_or(|from| from <= now);
    world.calendar.sleep(Duration::from_secs(dice.below(600))).await;
    match visible {
        Some(effect) => {
            let result = Some(effect.result());
            resolve(world, dice, intent, ResolutionRequest::Executed, result).await;
        }
        None if certain => {
            resolve(world, dice, intent, ResolutionRequest::NotExecuted, None).await;
        }
        None => {}
    }
}

async fn resolve(
    world: &Arc<World>,
    dice: &mut Dice,
    intent: &Intent,
    resolution: ResolutionRequest,
    result: Option<String>,
) {
    let action = action_of(intent);
    let Some(server) = world.any_server(dice) else { return };
    let request = ResolveRequest {
        namespace: NAMESPACE.into(),
        key: intent.key.to_string(),
        etag: intent.etag(),
        resolution: Some(resolution),
        result: ReportedResult {
            bytes: result.map(String::into_bytes),
            content_type: "application/json".into(),
            ..ReportedResult::default()
        },
        reason: "looked".into(),
        actor: "pat".into(),
    };
    let resolved = tokio::select! {
        biased;
        () = server.crashed.cancelled() => return,
        resolved = server.ledger.resolve(request, Deadline::default()) => resolved,
    };
    let name = if resolved.is_ok() { "" } else { " (refused)" };
    world.trace.count(format!("person: {resolution:?}{name}"));
    world.note_of(action, || {
        let answer = resolved.as_ref().map(|row| row.intent.state);
        format!("a person says {resolution:?}: {answer:?}")
    });
    match resolved {
        Ok(_)
        | Err(
            LedgerError::StoreUnavailable(_)
            | LedgerError::CommitInDoubt(_)
            | LedgerError::Stopping
            | LedgerError::Refused {
                refusal:
                    Refusal::EtagMismatch | Refusal::AlreadySettled | Refusal::LeaseRunning { .. },
                ..
            },
        ) => {}
        Err(other) => world.oracle.violated(action, format!("a person is told {other:?}")),
    }
}
