//! Several server processes on one Postgres, and storms of callers over all of them.

use std::collections::BTreeMap;

use futures::future::join_all;
use intent_ledger::proto::v1::{BeginResponse, Decision};

use super::{
    calls::{Agent, begin, charge, completion},
    process::ServerProcess,
    server::{Kind, TestStore},
};

pub(crate) struct Replicas {
    pub(crate) store: TestStore,
    servers: Vec<ServerProcess>,
    /// Two connections to each.
    agents: Vec<Agent>,
}

impl Replicas {
    pub(crate) async fn start(kind: Kind, count: usize, policy: &str) -> Self {
        let store = TestStore::new(kind).await;
        // At once: they migrate nothing, and offer the same policy.
        let start = || ServerProcess::start(&store.address, Some(policy), store.flags());
        let servers = join_all((0..count).map(|_| start())).await;
        let mut agents = Vec::new();
        for server in servers.iter().chain(&servers) {
            agents.push(server.client().await);
        }
        Self { store, servers, agents }
    }

    pub(crate) fn agent(&self, caller: usize) -> Agent {
        self.agents[caller % self.agents.len()].clone()
    }

    /// The answers to `callers` Begins of one intent, sent at once.
    pub(crate) async fn storm(&self, order: &str, callers: usize) -> Vec<BeginResponse> {
        let calls = (0..callers).map(|caller| {
            let (agent, request) = (self.agent(caller), charge(order, 1200, "invoice 17"));
            tokio::spawn(async move { begin(&agent, request).await })
        });
        join_all(calls).await.into_iter().map(Result::unwrap).collect()
    }

    /// One of `callers` executes, the others hold; after its Complete, all of them replay.
    pub(crate) async fn one_executes(&self, order: &str, callers: usize) {
        let answers = self.storm(order, callers).await;
        let expected = [("EXECUTE NEW", 1), ("HOLD IN_FLIGHT", callers - 1)];
        assert_eq!(tally(&answers), expected.map(|(words, n)| (words.to_owned(), n)).into());
        let granted = answers.iter().find(|it| it.decision() == Decision::Execute).unwrap();
        self.agent(1).complete(completion(granted, b"\"ch_1\"")).await.unwrap();
        let answers = self.storm(order, callers).await;
        assert_eq!(tally(&answers), [("REPLAY COMPLETED".to_owned(), callers)].into());
        for answer in answers {
            assert_eq!(answer.intent.unwrap().result.unwrap(), b"\"ch_1\"");
        }
    }

    pub(crate) async fn stop(mut self) {
        for server in &mut self.servers {
            server.terminate().await;
        }
    }
}

/// How often each decision and reason was answered.
pub(crate) fn tally(answers: &[BeginResponse]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for answer in answers {
        let decision = answer.decision().as_str_name().trim_start_matches("DECISION_");
        let reason = answer.reason().as_str_name().trim_start_matches("REASON_");
        *tally.entry(format!("{decision} {reason}")).or_default() += 1;
    }
    tally
}
