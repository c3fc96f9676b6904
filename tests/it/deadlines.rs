//! Case 15: callers that give up or vanish leave nothing half done.

use std::time::Duration;

use intent_ledger::{
    clock::monotonic,
    proto::v1::{BeginRequest, Decision, IntentState, LookupRequest, Reason, lookup_request::By},
};
use tokio::{task::JoinSet, time::timeout};
use tonic::{Code, Request};

use crate::support::{
    calls::{begin, charge},
    load::{PATIENT_POLICY, wait_until},
    process::ServerProcess,
    server::{Kind, TestStore},
};

const CALLS: usize = 500;

/// Spreads consecutive numbers: the same calls give up at the same time in every run.
fn spread(number: usize) -> usize {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

fn requests() -> Vec<BeginRequest> {
    (0..CALLS).map(|call| charge(&format!("o-{call}"), 1200, "invoice")).collect()
}

/// Every call has 1 to 20 ms; a third of them are dropped by their client before, and some take
/// their connection with them.
async fn hurry(server: &ServerProcess, requests: &[BeginRequest]) {
    let shared = server.client().await;
    let mut calls = JoinSet::new();
    for (number, request) in requests.iter().enumerate() {
        let own = if number % 10 == 0 { Some(server.client().await) } else { None };
        let mut agent = own.unwrap_or_else(|| shared.clone());
        let mut request = Request::new(request.clone());
        request.set_timeout(Duration::from_millis(1 + spread(number) as u64 % 20));
        let patience = match number % 3 {
            0 => Duration::from_micros(spread(number + 1) as u64 % 10_000),
            _ => Duration::from_secs(60),
        };
        calls.spawn(async move { timeout(patience, agent.begin(request)).await });
    }
    for answer in calls.join_all().await {
        match answer {
            Ok(Ok(answer)) => assert_eq!(answer.into_inner().decision(), Decision::Execute),
            Ok(Err(error)) => {
                let late = matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled);
                assert!(late, "{error:?}");
            }
            Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurried_and_vanished_callers_leave_a_whole_row_or_none_on_postgres() {
    let store = TestStore::new(Kind::Postgres).await;
    let mut server =
        ServerProcess::start(&store.address, Some(PATIENT_POLICY), &["--connections-max", "4"])
            .await;
    whole_or_absent(&server).await;
    let session = store.postgres().await;
    let stuck = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    wait_until("the last write has ended", async || {
        session.query_one(stuck, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    for _ in 0..20 {
        // Nothing writes any more, so a transaction that is open now was left behind.
        assert_eq!(session.query_one(stuck, &[]).await.unwrap().get::<_, i64>(0), 0);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurried_and_vanished_callers_leave_a_whole_row_or_none_on_sqlite() {
    let store = TestStore::new(Kind::Sqlite).await;
    let mut server = ServerProcess::start(&store.address, Some(PATIENT_POLICY), &[]).await;
    whole_or_absent(&server).await;
    server.terminate().await;
}

async fn whole_or_absent(server: &ServerProcess) {
    let requests = requests();
    hurry(server, &requests).await;

    let agent = server.client().await;
    let began = monotonic();
    assert_eq!(begin(&agent, charge("fresh", 1, "a")).await.reason(), Reason::New);
    let took = monotonic().duration_since(began);
    assert!(took < Duration::from_secs(2), "a fresh Begin took {took:?}");

    let mut absent = 0;
    for request in &requests {
        let lookup = LookupRequest {
            by: Some(By::Identity(request.identity.clone().unwrap())),
            arguments_json: request.arguments_json.clone(),
            ..LookupRequest::default()
        };
        match agent.clone().lookup(lookup).await {
            Ok(found) => {
                let intent = found.into_inner().intent.unwrap();
                assert_eq!((intent.state(), intent.attempt), (IntentState::Started, 1));
                assert!(intent.start_time.is_some() && intent.lease_expire_time.is_some());
                assert!(!intent.etag.is_empty() && !intent.downstream_key.is_empty());
            }
            Err(error) => {
                assert_eq!(error.code(), Code::NotFound, "{error:?}");
                absent += 1;
            }
        }
    }
    // Otherwise the deadlines were too long or too short to prove anything.
    assert!(absent > 0 && absent < CALLS, "{absent} of {CALLS} are absent");

    let mut repeats = JoinSet::new();
    for request in requests {
        let agent = agent.clone();
        repeats.spawn(async move { begin(&agent, request).await });
    }
    for answer in repeats.join_all().await {
        assert_eq!(answer.decision(), Decision::Execute, "{answer:?}");
        assert!(matches!(answer.reason(), Reason::New | Reason::Resent), "{answer:?}");
    }
}
