//! Case 39: a store that is down. The ledger says so at once, never EXECUTE, and comes back by
//! itself.

use std::time::Duration;

use intent_ledger::{
    clock::monotonic,
    proto::v1::{Decision, Reason},
    store::{self, StoreOptions},
};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_types::StatusExt;

use crate::support::{
    calls::{by_key, charge, completion, expect, key_of, metadata, reason},
    cluster::PgCluster,
    http::get,
    load::{PATIENT_POLICY, wait_until},
    process::ServerProcess,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_store_is_told_at_once_and_found_again_without_a_restart() {
    let mut cluster = tokio::task::spawn_blocking(PgCluster::start).await.unwrap();
    let url = cluster.url();
    store::migrate(&StoreOptions::new(&url)).await.unwrap();
    let mut server = ServerProcess::start(&url, Some(PATIENT_POLICY), &[]).await;
    let agent = server.client().await;
    let ready = format!("{}/readyz", server.http);
    let alive = format!("{}/healthz", server.http);
    let granted = expect(&agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
    assert_eq!((get(&ready).await.0, get(&alive).await.0), (200, 200));
    let service = "intent_ledger.v1.IntentLedgerService".to_owned();
    let mut health = HealthClient::new(server.channel().await)
        .watch(HealthCheckRequest { service })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

    cluster.kill9();
    let request = charge("o-2", 1, "a");
    for round in 0..3 {
        let began = monotonic();
        let error = agent.clone().begin(request.clone()).await.unwrap_err();
        let took = monotonic().duration_since(began);
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        // A connection that died under the first write cannot tell whether it arrived.
        let allowed = ["STORE_UNAVAILABLE", "COMMIT_IN_DOUBT"];
        assert!(allowed[..2 - usize::from(round == 2)].contains(&reason(&error).as_str()));
        assert_eq!(metadata(&error, "nextAction"), "RETRY_SAME_ATTEMPT");
        assert!(error.get_error_details().retry_info().is_some(), "{error:?}");
    }
    let error = agent.clone().lookup(by_key(&key_of(&granted))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "blind is not NOT_FOUND: {error:?}");
    let error = agent.clone().complete(completion(&granted, b"{}")).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert_eq!((get(&ready).await.0, get(&alive).await.0), (503, 200));
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);

    cluster.restart();
    expect(&agent, request, Decision::Execute, Reason::New).await;
    agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
    expect(&agent, charge("o-1", 1, "b"), Decision::Replay, Reason::Completed).await;
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    wait_until("ready again", async || get(&ready).await.0 == 200).await;
    drop(health);
    server.terminate().await;
}
