//! Case 5: many callers begin the same key at once, over two server processes on one Postgres.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use intent_ledger::proto::v1::{BeginRequest, BeginResponse, Decision, Reason};
use tokio::task::JoinSet;

use crate::support::{
    calls::{Agent, CHARGE_POLICY, begin, charge, completion, key_of},
    load::wait_until,
    process::ServerProcess,
    server::{Kind, TestStore},
};

struct TwoServers {
    store: TestStore,
    servers: [ServerProcess; 2],
    /// Two connections to each.
    agents: Vec<Agent>,
}

impl TwoServers {
    async fn start() -> Self {
        let store = TestStore::new(Kind::Postgres).await;
        // At once: both migrate nothing, both offer the same policy.
        let start = || ServerProcess::start(&store.address, Some(CHARGE_POLICY), &[]);
        let (one, two) = tokio::join!(start(), start());
        let mut agents = Vec::new();
        for server in [&one, &two, &one, &two] {
            agents.push(server.client().await);
        }
        Self { store, servers: [one, two], agents }
    }

    fn agent(&self, caller: usize) -> Agent {
        self.agents[caller % self.agents.len()].clone()
    }

    /// The answers to `callers` Begins of one intent, sent at once.
    async fn storm(&self, order: &str, callers: usize) -> Vec<BeginResponse> {
        let calls = (0..callers).map(|caller| {
            let (agent, request) = (self.agent(caller), charge(order, 1200, "invoice 17"));
            tokio::spawn(async move { begin(&agent, request).await })
        });
        join_all(calls).await.into_iter().map(Result::unwrap).collect()
    }

    /// One of `callers` executes, the others hold; after its Complete, all of them replay.
    async fn one_executes(&self, order: &str, callers: usize) {
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

    async fn stop(mut self) {
        for server in &mut self.servers {
            server.terminate().await;
        }
    }
}

/// How often each decision and reason was answered.
fn tally(answers: &[BeginResponse]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for answer in answers {
        let decision = answer.decision().as_str_name().trim_start_matches("DECISION_");
        let reason = answer.reason().as_str_name().trim_start_matches("REASON_");
        *tally.entry(format!("{decision} {reason}")).or_default() += 1;
    }
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_begins_at_once_are_one_execute_and_eight_holds() {
    let two = TwoServers::start().await;
    two.one_executes("o-17", 9).await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_begins_at_once_are_one_execute() {
    let two = TwoServers::start().await;
    two.one_executes("o-17", 200).await;
    assert_eq!(two.store.count_intents().await, 1);
    two.stop().await;
}

/// Each of 100 callers begins the same 20 intents, each in another order; whoever is granted
/// completes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_callers_of_twenty_keys_execute_twenty_times() {
    const CALLERS: usize = 100;
    const KEYS: usize = 20;
    let two = TwoServers::start().await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let agent = two.agent(caller);
        callers.spawn(async move {
            let mut answers = Vec::new();
            for step in 0..KEYS {
                let key = (caller * 7 + step * 3) % KEYS;
                let answer = begin(&agent, charge(&format!("o-{key}"), 1200, "memo")).await;
                if answer.decision() == Decision::Execute {
                    let result = format!("ch-{key}");
                    let report = completion(&answer, result.as_bytes());
                    agent.clone().complete(report).await.unwrap();
                }
                if answer.decision() == Decision::Replay {
                    let result = answer.intent.clone().unwrap().result.unwrap();
                    assert_eq!(result, format!("ch-{key}").into_bytes());
                }
                answers.push(answer);
            }
            answers
        });
    }
    let answers: Vec<BeginResponse> = callers.join_all().await.into_iter().flatten().collect();
    let mut executed: Vec<String> = answers
        .iter()
        .filter(|answer| answer.decision() == Decision::Execute)
        .map(key_of)
        .collect();
    executed.sort_unstable();
    executed.dedup();
    assert_eq!(executed.len(), KEYS);
    let tally = tally(&answers);
    let count = |words: &str| tally.get(words).copied().unwrap_or(0);
    assert_eq!(count("EXECUTE NEW"), KEYS, "{tally:?}");
    assert_eq!(
        count("HOLD IN_FLIGHT") + count("REPLAY COMPLETED"),
        CALLERS * KEYS - KEYS,
        "{tally:?}"
    );
    assert_eq!(two.store.count_intents().await, KEYS as i64);
    two.stop().await;
}

/// Fifty callers meet the open transaction of the key's first inserter, which ends with `ending`.
async fn fifty_callers_meet_an_open_transaction(ending: &str) -> BTreeMap<String, usize> {
    const CALLERS: usize = 50;
    let two = TwoServers::start().await;
    // A row as a server writes it, taken away again for the test to insert.
    begin(&two.agent(0), charge("o-17", 1200, "invoice 17")).await;
    let first = two.store.postgres().await;
    first
        .batch_execute("CREATE TABLE held AS SELECT * FROM intents; DELETE FROM intents;")
        .await
        .unwrap();
    first.batch_execute("BEGIN; INSERT INTO intents SELECT * FROM held").await.unwrap();

    let two = Arc::new(two);
    let waiting = Arc::clone(&two);
    let storm = tokio::spawn(async move { waiting.storm("o-17", CALLERS).await });
    let observer = two.store.postgres().await;
    wait_until("a session of each server waits for the transaction", async || {
        let blocked = "SELECT count(DISTINCT client_port) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event = 'transactionid'";
        observer.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) >= 2
    })
    .await;
    // The two seconds of the case: somebody who does not wait would answer meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!storm.is_finished());
    assert_eq!(two.store.count_intents().await, 0);
    first.batch_execute(ending).await.unwrap();
    let answers = storm.await.unwrap();
    assert_eq!(two.store.count_intents().await, 1);
    Arc::into_inner(two).unwrap().stop().await;
    tally(&answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_callers_wait_for_an_open_transaction_and_hold() {
    let tally = fifty_callers_meet_an_open_transaction("COMMIT").await;
    assert_eq!(tally, [("HOLD IN_FLIGHT".to_owned(), 50)].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_callers_one_executes_after_a_rollback() {
    let tally = fifty_callers_meet_an_open_transaction("ROLLBACK").await;
    let expected = [("EXECUTE NEW".to_owned(), 1), ("HOLD IN_FLIGHT".to_owned(), 49)];
    assert_eq!(tally, expected.into());
}

/// Batches of two servers that hold the same keys in every order never deadlock into an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_cross_each_other_are_all_answered() {
    let two = TwoServers::start().await;
    for round in 0..5 {
        let calls = (0..400).map(|call| {
            let key = if call % 2 == 0 { call / 4 } else { 99 - call / 4 };
            let agent = two.agent(call);
            let request: BeginRequest = charge(&format!("{round}-{key}"), 1, "memo");
            tokio::spawn(async move { begin(&agent, request).await })
        });
        let answers: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        let new = answers.iter().filter(|answer| answer.reason() == Reason::New).count();
        assert_eq!((new, answers.len()), (100, 400));
    }
    two.stop().await;
}
