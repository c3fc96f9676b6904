//! What really happened, beside what the callers were told and what the ledger keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use intent_ledger::{
    downstream::SentEffect,
    proto::v1::{
        EventKind, Intent, IntentState, IntentView, ListIntentsRequest,
        intent_operations_service_client::IntentOperationsServiceClient,
    },
};

use crate::{
    callers::Minutes,
    plan::{TOOLS, tool_of},
};

/// The downstreams' logs and the ledger's rows.
pub(crate) struct Truth {
    /// The effects of each action.
    effects: BTreeMap<String, Vec<SentEffect>>,
    /// The intents of each action.
    intents: BTreeMap<String, Vec<Intent>>,
}

impl Truth {
    /// Reads the logs of the downstreams, which are at rest, and asks a server for its rows.
    pub(crate) async fn read(logs: &[&Path], server: &str) -> Self {
        let mut effects: BTreeMap<String, Vec<SentEffect>> = BTreeMap::new();
        for log in logs {
            for line in fs::read_to_string(log).unwrap_or_default().lines() {
                let effect: SentEffect = serde_json::from_str(line).expect("a whole line");
                effects.entry(effect.action.clone().unwrap_or_default()).or_default().push(effect);
            }
        }
        let mut intents: BTreeMap<String, Vec<Intent>> = BTreeMap::new();
        for intent in all_intents(server).await {
            let action = intent.labels.get("action").cloned().unwrap_or_default();
            intents.entry(action).or_default().push(intent);
        }
        Self { effects, intents }
    }

    /// What is not as it should be, an action and its faults.
    pub(crate) fn faults(&self, actions: &[String], told: &Minutes) -> Vec<(String, String)> {
        let intended: BTreeSet<&String> = actions.iter().collect();
        let known = self.effects.keys().chain(self.intents.keys());
        let mut faults: Vec<(String, String)> = known
            .filter(|action| !intended.contains(action))
            .map(|action| (action.clone(), "nobody intended it".to_owned()))
            .collect();
        for action in actions {
            for fault in self.faults_of(action, told) {
                faults.push((action.clone(), fault));
            }
        }
        faults
    }

    fn faults_of(&self, action: &str, told: &Minutes) -> Vec<String> {
        let mut faults = Vec::new();
        let effects = self.effects.get(action).map_or(&[][..], Vec::as_slice);
        let [effect] = effects else {
            faults.push(format!("it happened {} times", effects.len()));
            return faults;
        };
        let key = effect.idempotency_key.clone().unwrap_or_default();
        let receipt = receipt(effect, action);
        let expected: BTreeSet<String> = [receipt.clone()].into();
        match told.replayed.get(action) {
            Some(results) if *results == expected => {}
            other => faults.push(format!("callers were told {other:?} instead of {receipt}")),
        }
        let intents = self.intents.get(action).map_or(&[][..], Vec::as_slice);
        let [intent] = intents else {
            faults.push(format!("it has {} intents", intents.len()));
            return faults;
        };
        if intent.state() != IntentState::Completed || intent.conflict || intent.needs_attention {
            faults.push("its intent is not completed, or not in peace".to_owned());
        }
        if intent.downstream_key != key || intent.downstream_ref != effect.id {
            faults.push("its intent names another effect".to_owned());
        }
        if intent.result.as_deref() != Some(receipt.as_bytes()) {
            faults.push("its intent keeps another result".to_owned());
        }
        faults
    }

    /// What an action went through: the effects, the intent with its events, what its callers noted.
    pub(crate) fn history(&self, action: &str, home: &Path) -> String {
        let mut text = String::new();
        for effect in self.effects.get(action).into_iter().flatten() {
            writeln!(text, "  effect {}", serde_json::to_string(effect).unwrap_or_default()).ok();
        }
        for intent in self.intents.get(action).into_iter().flatten() {
            writeln!(text, "  {intent:?}").ok();
        }
        for entry in fs::read_dir(home).into_iter().flatten().flatten() {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let start = format!("{action} ");
            for line in log.lines().filter(|line| line.starts_with(&start)) {
                writeln!(text, "  {line}").ok();
            }
        }
        text
    }

    /// The figures of a run, for people.
    pub(crate) fn figures(&self) -> String {
        let mut text = String::new();
        for tool in &TOOLS {
            let of_tool = |action: &&String| tool_of(action) == tool.name;
            let actions = self.intents.keys().filter(of_tool);
            let intents: Vec<&Intent> = actions.flat_map(|action| &self.intents[action]).collect();
            let attempts: i64 = intents.iter().map(|intent| i64::from(intent.attempt)).sum();
            let repeats: i64 = intents.iter().map(|intent| intent.replay_count).sum();
            let absences = (intents.iter().flat_map(|intent| &intent.events))
                .filter(|event| event.kind() == EventKind::Reconciled && event.note == "absent")
                .count();
            let mut settled: BTreeMap<&str, u32> = BTreeMap::new();
            for intent in &intents {
                let by = intent.provenance().as_str_name().trim_start_matches("PROVENANCE_");
                *settled.entry(by).or_default() += 1;
            }
            writeln!(
                text,
                "  {}: {} intents, {attempts} attempts, {repeats} replays; settled by {settled:?}; \
                 {absences} times the reconciler found that nothing had happened",
                tool.name,
                intents.len(),
            )
            .ok();
        }
        text
    }
}

/// What the simulator answers about an effect that has happened.
fn receipt(effect: &SentEffect, action: &str) -> String {
    let (id, key) = (&effect.id, effect.idempotency_key.as_deref().unwrap_or_default());
    format!(r#"{{"id":"{id}","state":"done","idempotency_key":"{key}","action":"{action}"}}"#)
}

async fn all_intents(server: &str) -> Vec<Intent> {
    let client = IntentOperationsServiceClient::connect(server.to_owned()).await;
    let mut client = client.expect("the server runs").max_decoding_message_size(64 << 20);
    let view = IntentView::Full.into();
    let mut request = ListIntentsRequest { page_size: 100, view, ..ListIntentsRequest::default() };
    let mut intents = Vec::new();
    loop {
        let page = client.list_intents(request.clone()).await.expect("a page").into_inner();
        intents.extend(page.intents);
        if page.next_page_token.is_empty() {
            return intents;
        }
        request.page_token = page.next_page_token;
    }
}
