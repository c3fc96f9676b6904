//! kill -9, of the server and of Postgres: what was acknowledged is there afterwards.

use std::time::Duration;

use intent_ledger::{
    proto::v1::{Decision, IntentState, Reason},
    store::{self, StoreOptions},
};

use crate::{
    on_both_stores,
    support::{
        calls::{by_key, charge, completion, expect, key_of},
        cluster::PgCluster,
        load::{Load, PATIENT_POLICY, merge, verify},
        process::ServerProcess,
        server::{Kind, TestStore},
    },
};

on_both_stores! {
    /// Case 20, of one process: the effect may have happened, so the restart gives it to nobody.
    async fn a_server_killed_between_begin_and_complete_holds_then_replays(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
        let request = charge("o-17", 1200, "invoice 17");
        let granted = expect(
            &server.client().await, request.clone(), Decision::Execute, Reason::New,
        ).await;
        server.kill9();

        server.restart().await;
        let agent = server.client().await;
        let other = charge("o-17", 1200, "invoice 17");
        expect(&agent, other.clone(), Decision::Hold, Reason::InFlight).await;
        // The caller's own retry of the lost answer would still be good.
        expect(&agent, request, Decision::Execute, Reason::Resent).await;
        store.age(Duration::from_secs(3600)).await;
        let held = expect(&agent, other.clone(), Decision::Hold, Reason::NeedsAttention).await;
        assert_eq!(held.intent.unwrap().state(), IntentState::Started);
        agent.clone().complete(completion(&granted, b"{\"id\":\"ch_1\"}")).await.unwrap();
        server.kill9();

        server.restart().await;
        let agent = server.client().await;
        let replay = expect(&agent, other, Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.intent.unwrap().result.unwrap(), b"{\"id\":\"ch_1\"}");
        server.terminate().await;
    }

    /// Killed three times under load: nothing acknowledged is lost, nobody executes twice.
    async fn a_server_killed_under_load_loses_nothing_that_it_acknowledged(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
        let load = Load::start(server.client().await, 16);
        for _ in 0..3 {
            load.progress(60).await;
            server.kill9();
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
}

/// Case 20, of two processes: one that starts leaves alone what another has in flight, and one
/// that was killed leaves its own STARTED.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_leaves_the_others_intents_alone() {
    let store = TestStore::new(Kind::Postgres).await;
    let start = || ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]);
    let mut a = start().await;
    let agent_a = a.client().await;
    let one = charge("o-1", 1200, "a");
    let granted = expect(&agent_a, one.clone(), Decision::Execute, Reason::New).await;
    let before = agent_a.clone().lookup(by_key(&key_of(&granted))).await.unwrap().into_inner();

    let mut b = start().await;
    let agent_b = b.client().await;
    let after = agent_b.clone().lookup(by_key(&key_of(&granted))).await.unwrap().into_inner();
    assert_eq!(after, before);
    expect(&agent_b, charge("o-1", 1200, "b"), Decision::Hold, Reason::InFlight).await;
    agent_a.clone().complete(completion(&granted, b"{}")).await.unwrap();
    expect(&agent_b, charge("o-1", 1200, "b"), Decision::Replay, Reason::Completed).await;

    let granted = expect(&agent_a, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
    a.kill9();
    expect(&agent_b, charge("o-2", 1, "b"), Decision::Hold, Reason::InFlight).await;
    b.kill9();
    a.restart().await;
    b.restart().await;
    let (agent_a, agent_b) = (a.client().await, b.client().await);
    for agent in [&agent_a, &agent_b] {
        let found = agent.clone().lookup(by_key(&key_of(&granted))).await.unwrap().into_inner();
        assert_eq!(found.intent.unwrap().state(), IntentState::Started);
    }
    // Due for a look once its lease is over, and still neither failed nor free.
    store.age(Duration::from_secs(24 * 3600)).await;
    for agent in [&agent_a, &agent_b] {
        let held =
            expect(agent, charge("o-2", 1, "b"), Decision::Hold, Reason::NeedsAttention).await;
        assert_eq!(held.intent.unwrap().state(), IntentState::Started);
    }
    agent_b.clone().complete(completion(&granted, b"{}")).await.unwrap();
    expect(&agent_a, charge("o-2", 1, "b"), Decision::Replay, Reason::Completed).await;
    a.terminate().await;
    b.terminate().await;
}

/// Postgres dies twice under two servers; both recover by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_killed_under_load_loses_nothing_that_was_acknowledged() {
    let mut cluster = tokio::task::spawn_blocking(PgCluster::start).await.unwrap();
    let url = cluster.url();
    store::migrate(&StoreOptions::new(&url)).await.unwrap();
    let start = || ServerProcess::start(&url, Some(PATIENT_POLICY), &[]);
    let (mut a, mut b) = tokio::join!(start(), start());
    let (agent_a, agent_b) = (a.client().await, b.client().await);
    let load_a = Load::start(agent_a.clone(), 8);
    // The other server's callers ask for the same keys.
    let load_b = Load::start(agent_b.clone(), 8);
    for _ in 0..2 {
        tokio::join!(load_a.progress(60), load_b.progress(60));
        cluster = tokio::task::spawn_blocking(move || {
            cluster.kill9();
            cluster
        })
        .await
        .unwrap();
        tokio::join!(load_a.error(), load_b.error());
        cluster = tokio::task::spawn_blocking(move || {
            cluster.restart();
            cluster
        })
        .await
        .unwrap();
    }
    tokio::join!(load_a.progress(60), load_b.progress(60));
    let effects = merge([load_a.finish().await, load_b.finish().await]);
    verify(&agent_a, &effects).await;
    verify(&agent_b, &effects).await;
    a.terminate().await;
    b.terminate().await;
    drop(cluster);
}
