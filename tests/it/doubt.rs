//! Case 14: a COMMIT whose answer is lost. The caller is told that it is in doubt, and the same
//! attempt finds the truth.

use std::time::Duration;

use intent_ledger::{
    clock::monotonic,
    proto::v1::{BeginRequest, Decision, Reason},
};
use tokio_postgres::Client;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::support::{
    calls::{begin, charge, completion, expect, metadata, reason},
    load::{PATIENT_POLICY, wait_until},
    proxy::{Fault, Proxy},
    server::{Kind, TestServer, TestStore},
};

/// Makes every insert wait in its COMMIT for an advisory lock of the test.
const STALL_IN_COMMIT: &str = "
    CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON intents
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stall();";

fn assert_in_doubt(error: &Status) {
    assert_eq!((error.code(), reason(error).as_str()), (Code::Unavailable, "COMMIT_IN_DOUBT"));
    assert_eq!(metadata(error, "effectMayHaveHappened"), "true");
    assert_eq!(metadata(error, "nextAction"), "RETRY_SAME_ATTEMPT");
    assert!(error.get_error_details().retry_info().is_some(), "{error:?}");
}

/// The session is killed while it commits: nothing was written, but nobody can know that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_killed_in_its_commit_leaves_the_begin_in_doubt() {
    let server = TestServer::with_policy(Kind::Postgres, PATIENT_POLICY).await;
    // The server's first session, so that the connection is proven before.
    expect(&server.agent, charge("before", 1, "a"), Decision::Execute, Reason::New).await;
    let session = server.store.postgres().await;
    session.batch_execute(STALL_IN_COMMIT).await.unwrap();
    session.batch_execute("SELECT pg_advisory_lock(77)").await.unwrap();

    let request = charge("o-17", 1200, "invoice 17");
    let (mut agent, sent) = (server.agent.clone(), request.clone());
    let call = tokio::spawn(async move { agent.begin(sent).await });
    let committing = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()
                      AND (query = 'COMMIT' OR query LIKE 'SELECT * FROM pg_temp.write%')
                      AND state = 'active' AND wait_event_type = 'Lock'";
    let mut pid = 0_i32;
    wait_until("the session commits", async || {
        let rows = session.query(committing, &[]).await.unwrap();
        pid = rows.first().map_or(0, |row| row.get(0));
        pid != 0
    })
    .await;
    session.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    assert_in_doubt(&call.await.unwrap().unwrap_err());

    session.batch_execute("SELECT pg_advisory_unlock(77)").await.unwrap();
    assert_eq!(server.store.count_intents().await, 1);
    let granted = expect(&server.agent, request.clone(), Decision::Execute, Reason::New).await;
    expect(&server.agent, request, Decision::Execute, Reason::Resent).await;
    assert_eq!(server.store.count_intents().await, 2);
    server.agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
    server.stop().await;
}

/// A cancelled or timed-out COMMIT is no doubt: Postgres itself says that it did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_postgres_gave_up_is_told_as_not_written() {
    let server = TestServer::with_policy(Kind::Postgres, PATIENT_POLICY).await;
    let session = server.store.postgres().await;
    session.batch_execute(STALL_IN_COMMIT).await.unwrap();
    session.batch_execute("SELECT pg_advisory_lock(77)").await.unwrap();
    let request = charge("o-17", 1200, "invoice 17");
    let (mut agent, sent) = (server.agent.clone(), request.clone());
    let call = tokio::spawn(async move { agent.begin(sent).await });
    wait_until("the commit is cancelled", async || {
        let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                      WHERE datname = current_database()
                      AND (query = 'COMMIT' OR query LIKE 'SELECT * FROM pg_temp.write%')
                      AND state = 'active' AND wait_event_type = 'Lock'";
        !session.query(cancel, &[]).await.unwrap().is_empty()
    })
    .await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.code(), reason(&error).as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
    session.batch_execute("SELECT pg_advisory_unlock(77)").await.unwrap();
    assert_eq!(server.store.count_intents().await, 0);
    expect(&server.agent, request, Decision::Execute, Reason::New).await;
    server.stop().await;
}

/// A server whose road to Postgres is the proxy.
async fn behind_a_proxy() -> (TestServer, Proxy) {
    let store = TestStore::new(Kind::Postgres).await;
    let proxy = Proxy::start(&store.address).await;
    let server = TestServer::on(store.through(proxy.url.clone()), Some(PATIENT_POLICY)).await;
    (server, proxy)
}

/// Begins behind a fault. Whatever the answer, it is true, and the same attempt finds the truth.
async fn begin_with(
    server: &TestServer,
    proxy: &Proxy,
    session: &Client,
    fault: Fault,
) -> (BeginRequest, Status) {
    let count = async || -> i64 {
        session.query_one("SELECT count(*) FROM intents", &[]).await.unwrap().get(0)
    };
    let rows_before = count().await;
    proxy.arm(fault);
    let request = charge(&format!("{fault:?}"), 1200, "invoice 17");
    let error = server.agent.clone().begin(request.clone()).await.unwrap_err();
    assert!(proxy.is_spent(), "{fault:?}: {error:?}");
    assert_eq!(error.code(), Code::Unavailable, "{fault:?}: {error:?}");
    if reason(&error) == "COMMIT_IN_DOUBT" {
        assert_in_doubt(&error);
    } else {
        // "Nothing was written" must be true for good, not only now.
        assert_eq!(reason(&error), "STORE_UNAVAILABLE", "{fault:?}");
        assert_eq!(count().await, rows_before, "{fault:?}");
    }
    let found = begin(&server.agent, request.clone()).await;
    assert_eq!(found.decision(), Decision::Execute, "{fault:?}: {found:?}");
    assert!(matches!(found.reason(), Reason::New | Reason::Resent), "{fault:?}: {found:?}");
    assert_eq!(count().await, rows_before + 1, "{fault:?}");
    expect(
        &server.agent,
        charge(&format!("{fault:?}"), 1200, "x"),
        Decision::Hold,
        Reason::InFlight,
    )
    .await;
    (request, error)
}

/// The row is durable, its answer is lost: the same attempt gets its EXECUTE again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_commit_answer_is_found_by_the_same_attempt() {
    let (server, proxy) = behind_a_proxy().await;
    proxy.arm(Fault::SwallowCommit);
    let request = charge("o-17", 1200, "invoice 17");
    let error = server.agent.clone().begin(request.clone()).await.unwrap_err();
    assert_in_doubt(&error);
    assert_eq!(server.store.count_intents().await, 1, "the proxy lost the answer, not the commit");
    let other = charge("o-17", 1200, "invoice 17");
    expect(&server.agent, other, Decision::Hold, Reason::InFlight).await;
    let granted = expect(&server.agent, request, Decision::Execute, Reason::Resent).await;
    assert_eq!(server.store.count_intents().await, 1);

    // The same for the answer to a Complete: its repeat is OK, and another result is not.
    proxy.arm(Fault::SwallowCommit);
    let report = completion(&granted, b"first");
    let error = server.agent.clone().complete(report.clone()).await.unwrap_err();
    assert_in_doubt(&error);
    server.agent.clone().complete(report).await.unwrap();
    let error = server.agent.clone().complete(completion(&granted, b"second")).await.unwrap_err();
    assert_eq!(reason(&error), "ALREADY_SETTLED");
    let replay = charge("o-17", 1200, "invoice 17");
    let replay = expect(&server.agent, replay, Decision::Replay, Reason::Completed).await;
    assert_eq!(replay.intent.unwrap().result.unwrap(), b"first");
    server.stop().await;
}

/// The connection breaks at every seam of the transaction and a byte before it, on the way there
/// and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_the_connection_breaks_the_same_attempt_finds_the_truth() {
    let (server, proxy) = behind_a_proxy().await;
    let session = server.store.postgres().await;
    begin(&server.agent, charge("before", 1, "a")).await;
    let seams = proxy.seams();
    let around = |seams: &[usize]| -> Vec<usize> {
        let mut bytes: Vec<usize> = seams.iter().flat_map(|seam| [seam - 1, *seam]).collect();
        bytes.insert(0, 0);
        bytes.sort_unstable();
        bytes.dedup();
        bytes
    };
    let request_bytes = *seams.request.last().unwrap();
    for after in around(&seams.request).into_iter().filter(|after| *after <= request_bytes) {
        begin_with(&server, &proxy, &session, Fault::CutRequest(after)).await;
    }
    // The last message says that the session is ready again; with it, the answer has arrived.
    let answer_bytes = *seams.answer.last().unwrap();
    for after in around(&seams.answer).into_iter().filter(|after| *after < answer_bytes) {
        let (_, error) = begin_with(&server, &proxy, &session, Fault::CutAnswer(after)).await;
        assert_in_doubt(&error);
    }
    server.stop().await;
}

/// A store that takes everything and says nothing holds nobody up for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_falls_silent_is_given_up() {
    let (server, proxy) = behind_a_proxy().await;
    let session = server.store.postgres().await;
    begin(&server.agent, charge("before", 1, "a")).await;
    let began = monotonic();
    let (_, error) = begin_with(&server, &proxy, &session, Fault::Silence).await;
    assert_in_doubt(&error);
    assert!(monotonic().duration_since(began) < Duration::from_secs(30));
    server.stop().await;
}
