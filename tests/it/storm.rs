//! Case 5: many callers begin the same key at once, over several server processes on one Postgres.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use intent_ledger::proto::v1::{BeginResponse, Decision};
use tokio::task::JoinSet;

use crate::support::{
    calls::{CHARGE_POLICY, begin, charge, completion, key_of},
    load::wait_until,
    replicas::{Replicas, tally},
    server::Kind,
};

async fn two_servers() -> Replicas {
    Replicas::start(Kind::Postgres, 2, CHARGE_POLICY).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_begins_at_once_are_one_execute_and_eight_holds() {
    let two = two_servers().await;
    two.one_executes("o-17", 9).await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_begins_at_once_are_one_execute() {
    let two = two_servers().await;
    two.one_executes("o-17", 200).await;
    assert_eq!(two.store.count_intents().await, 1);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_begins_over_three_servers_are_one_execute() {
    let three = Replicas::start(Kind::Postgres, 3, CHARGE_POLICY).await;
    three.one_executes("o-17", 1000).await;
    assert_eq!(three.store.count_intents().await, 1);
    three.stop().await;
}

/// Each of 100 callers begins the same 20 intents, each in another order; whoever is granted
/// completes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_callers_of_twenty_keys_execute_twenty_times() {
    const CALLERS: usize = 100;
    const KEYS: usize = 20;
    let two = two_servers().await;
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
    let two = two_servers().await;
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
