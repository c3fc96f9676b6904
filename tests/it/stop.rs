//! SIGTERM: what is under way is answered, nothing that was acknowledged is lost, exit status 0.

use std::time::Duration;

use intent_ledger::{
    clock::monotonic,
    proto::v1::{Decision, IntentState, LookupRequest, Reason},
};

use crate::{
    on_both_stores,
    support::{
        calls::{begin, by_key, charge, expect, key_of},
        load::{Load, PATIENT_POLICY, verify, wait_until},
        process::ServerProcess,
        server::{Kind, TestStore},
    },
};

on_both_stores! {
    async fn a_stop_under_load_loses_nothing(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
        let load = Load::start(server.client().await, 16);
        for _ in 0..2 {
            load.progress(60).await;
            server.terminate().await;
            load.error().await;
            server.restart().await;
            load.move_to(server.client().await);
        }
        load.progress(60).await;
        let effects = load.finish().await;
        verify(&server.client().await, &effects).await;
        assert_eq!(store.count_intents().await, effects.len() as i64);
        server.terminate().await;
    }

    /// A Lookup that would wait for a minute does not hold the stop up, and gets its answer.
    async fn waiting_lookups_are_answered_by_a_stop(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
        let agent = server.client().await;
        let granted = begin(&agent, charge("o-17", 1200, "a")).await;
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let mut agent = agent.clone();
                let lookup = LookupRequest {
                    wait: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
                    ..by_key(&key_of(&granted))
                };
                tokio::spawn(async move { agent.lookup(lookup).await })
            })
            .collect();
        // A call on the same connection, answered after they were read.
        expect(&agent, charge("o-17", 1200, "b"), Decision::Hold, Reason::InFlight).await;
        let began = monotonic();
        server.terminate().await;
        // Less than the ten seconds of grace: nobody had to be cut off.
        let took = monotonic().duration_since(began);
        assert!(took < Duration::from_secs(8), "{took:?}");
        for lookup in waiting {
            let found = lookup.await.unwrap().expect("an answer").into_inner();
            assert_eq!(found.intent.unwrap().state(), IntentState::Started);
        }
    }
}

/// A Begin that waits inside the store when the signal comes still gets its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_under_way_is_answered_by_a_stop() {
    let store = TestStore::new(Kind::Postgres).await;
    let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
    let agent = server.client().await;
    let rival = store.postgres().await;
    // The first inserter's transaction, held open.
    begin(&agent, charge("o-17", 1200, "a")).await;
    rival
        .batch_execute("CREATE TABLE held AS SELECT * FROM intents; DELETE FROM intents;")
        .await
        .unwrap();
    rival.batch_execute("BEGIN; INSERT INTO intents SELECT * FROM held").await.unwrap();
    let request = charge("o-17", 1200, "b");
    let mut caller = agent.clone();
    let waiting = tokio::spawn(async move { caller.begin(request).await });
    let observer = store.postgres().await;
    wait_until("the Begin waits in the store", async || {
        let blocked = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event = 'transactionid'";
        observer.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;

    server.send("TERM");
    let address = server.grpc.strip_prefix("http://").unwrap().to_owned();
    wait_until("it takes no new connections", async || {
        tokio::net::TcpStream::connect(&address).await.is_err()
    })
    .await;
    assert!(!waiting.is_finished());
    rival.batch_execute("ROLLBACK").await.unwrap();
    let answer = waiting.await.unwrap().expect("an answer").into_inner();
    assert_eq!((answer.decision(), answer.reason()), (Decision::Execute, Reason::New));
    let status = server.ended().await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert_eq!(store.count_intents().await, 1);
}
