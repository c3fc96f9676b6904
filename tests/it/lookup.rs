//! Lookup: by every name, in every view, and waiting.

use std::{sync::Arc, time::Duration};

use intent_ledger::{
    ledger::LedgerOptions,
    proto::v1::{
        BeginRequest, CompleteRequest, Decision, FailureKind, Identity, IntentState, IntentView,
        LookupRequest, Reason, lookup_request::By,
    },
    store::Store,
};
use tokio::time::timeout;
use tonic::{Code, Request};

use crate::{
    on_both_stores,
    support::{
        calls::{
            BeginResponseExt as _, CHARGE_POLICY, about, attempt, by_key, charge, complete,
            completion, error_of, expect, extend, fail, failure, key_of, keyed, lookup, metadata,
            reason, span, step,
        },
        faulty::FaultyStore,
        server::{Kind, TestServer, TestStore},
    },
};

/// Far beyond what a wake takes, far below what a wait would last.
const SOON: Duration = Duration::from_secs(5);

fn by(by: By) -> LookupRequest {
    LookupRequest { by: Some(by), ..LookupRequest::default() }
}

on_both_stores! {
    /// Section 4: key, identity, downstream key, downstream reference, tool call.
    async fn an_intent_is_found_by_each_of_its_names(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.charge]
            identity = ["/order"]
            free_text = ["/memo"]
            [tools.uuid]
            identity = ["/order"]
            [tools.uuid.downstream]
            key_format = "uuid"
        "#).await;
        let call = BeginRequest { tool_call_id: "call_1".into(), ..charge("o-1", 1, "a") };
        let granted = expect(&server.agent, call, Decision::Execute, Reason::New).await;
        let report = CompleteRequest { downstream_ref: "ch_1".into(), ..completion(&granted, b"1") };
        complete(&server.agent, report).await.unwrap();
        let key = key_of(&granted);
        let uuid_tool = || BeginRequest {
            identity: Some(Identity { tool: "uuid".into(), ..Identity::default() }),
            arguments_json: r#"{"order":"o-1"}"#.into(),
            attempt_id: attempt(),
            ..BeginRequest::default()
        };
        let other = expect(&server.agent, uuid_tool(), Decision::Execute, Reason::New).await;
        assert_eq!(other.downstream_key.len(), 36);

        let identity = |tool: &str| Identity { tool: tool.into(), ..Identity::default() };
        let with_arguments = |by: By, arguments: &str| LookupRequest {
            by: Some(by),
            arguments_json: arguments.into(),
            ..LookupRequest::default()
        };
        let found = [
            (by_key(&key), &key),
            (with_arguments(By::Identity(identity("charge")), r#"{"order":"o-1"}"#), &key),
            (with_arguments(By::Identity(identity("charge")), r#"{"order":"o-1","x":9}"#), &key),
            (by(By::DownstreamKey(granted.downstream_key.clone())), &key),
            (by(By::DownstreamRef("ch_1".into())), &key),
            (by(By::ToolCallId("call_1".into())), &key),
            (by(By::DownstreamKey(other.downstream_key.clone())), &key_of(&other)),
            (by(By::DownstreamKey(other.downstream_key.to_uppercase())), &key_of(&other)),
        ];
        for (request, key) in found {
            let intent = lookup(&server.agent, request.clone()).await;
            assert_eq!(&intent.unwrap_or_else(|error| panic!("{request:?}: {error}")).key, key);
        }
        let absent = [
            by_key(&"ab".repeat(32)),
            by_key(&granted.downstream_key),
            with_arguments(By::Identity(identity("charge")), r#"{"order":"o-2"}"#),
            by(By::DownstreamKey(key.clone())),
            by(By::DownstreamKey("ab".repeat(32))),
            by(By::DownstreamKey(attempt())),
            by(By::DownstreamRef("ch_2".into())),
            by(By::ToolCallId("call_2".into())),
        ];
        for request in absent {
            let error = lookup(&server.agent, request.clone()).await.unwrap_err();
            assert_eq!(
                (error.code(), reason(&error).as_str()),
                (Code::NotFound, "INTENT_NOT_FOUND"),
                "{request:?}"
            );
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "false");
        }
        assert_eq!(server.store.count_intents().await, 2, "a Lookup records nothing");
        server.stop().await;
    }

    /// By identity on every basis.
    async fn an_identity_is_looked_up_as_it_was_begun(kind) {
        let server = TestServer::start(kind).await;
        for request in [
            keyed("t", "k", r#"{"a":1}"#),
            about("t", "r", &[("order", "1")], r#"{"a":1}"#),
            step("t", "r", "s", r#"{"a":1}"#),
        ] {
            let granted =
                expect(&server.agent, request.clone(), Decision::Execute, Reason::New).await;
            let request = LookupRequest {
                by: request.identity.map(By::Identity),
                arguments_json: request.arguments_json,
                ..LookupRequest::default()
            };
            let intent = lookup(&server.agent, request).await.unwrap();
            assert_eq!(intent.key, key_of(&granted));
        }
        server.stop().await;
    }

    /// An attempt that has a downstream key of its own is found by it, in both forms.
    async fn a_downstream_key_of_a_single_attempt_is_found(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.hex]
            identity = ["/order"]
            [tools.hex.downstream]
            new_key_after_failed = true
            [tools.uuid]
            identity = ["/order"]
            [tools.uuid.downstream]
            new_key_after_failed = true
            key_format = "uuid"
        "#).await;
        for tool in ["hex", "uuid"] {
            let call = || BeginRequest {
                identity: Some(Identity { tool: tool.into(), ..Identity::default() }),
                arguments_json: r#"{"order":1}"#.into(),
                attempt_id: attempt(),
                ..BeginRequest::default()
            };
            let first = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
            fail(&server.agent, failure(&first, FailureKind::NotExecuted, "x")).await.unwrap();
            let second = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
            assert_ne!(first.downstream_key, second.downstream_key);
            for granted in [&first, &second] {
                let request = by(By::DownstreamKey(granted.downstream_key.clone()));
                let intent = lookup(&server.agent, request).await;
                assert_eq!(intent.unwrap_or_else(|e| panic!("{tool}: {e}")).key, key_of(&first));
            }
        }
        server.stop().await;
    }

    /// A reference that fits several intents means the newest.
    async fn the_newest_of_several_is_meant(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let mut newest = String::new();
        for order in ["o-1", "o-2", "o-3"] {
            let call = BeginRequest { tool_call_id: "call_1".into(), ..charge(order, 1, "a") };
            let granted = expect(&server.agent, call, Decision::Execute, Reason::New).await;
            extend(&server.agent, &granted, 60, "job-1").await.unwrap();
            newest = key_of(&granted);
        }
        for request in [by(By::ToolCallId("call_1".into())), by(By::DownstreamRef("job-1".into()))] {
            assert_eq!(lookup(&server.agent, request).await.unwrap().key, newest);
        }
        server.stop().await;
    }

    /// BASIC has all but the events, FULL has them too.
    async fn a_view_says_how_much_is_answered(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        let view = |view: IntentView| LookupRequest { view: view.into(), ..by_key(&key_of(&granted)) };
        let full = lookup(&server.agent, view(IntentView::Full)).await.unwrap();
        assert_eq!(full.events.len(), 1);
        let basic = lookup(&server.agent, view(IntentView::Basic)).await.unwrap();
        assert_eq!(basic.result.as_deref(), Some(&b"1"[..]));
        assert_eq!(lookup(&server.agent, by_key(&full.key)).await.unwrap(), basic);
        let mut without_events = full.clone();
        without_events.events.clear();
        assert_eq!(without_events, basic);
        // Every time that there is, in its order.
        let times = [full.create_time, full.start_time, full.settle_time, full.expire_time];
        let seconds: Vec<i64> = times.iter().map(|time| time.as_ref().unwrap().seconds).collect();
        assert!(seconds.is_sorted(), "{seconds:?}");
        assert_eq!(seconds[3] - seconds[2], 30 * 24 * 60 * 60, "retention");
        server.stop().await;
    }

    /// Section 4: `wait` is answered as soon as the state changes, and by nothing less.
    async fn a_wait_is_woken_by_a_change_of_state(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let waiting = store.waiting_lookup(&server.agent, &key_of(&granted)).await;
        // A heartbeat changes the row, not the state.
        extend(&server.agent, &granted, 60, "job-1").await.unwrap();
        assert!(!waiting.is_finished());
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        let intent = timeout(SOON, waiting).await.expect("woken").unwrap().unwrap();
        assert_eq!(intent.state(), IntentState::Completed);
        assert_eq!(intent.result.as_deref(), Some(&b"1"[..]));
        server.stop().await;
    }

    /// Section 4: bounded by `wait` itself and by the caller's deadline; then it is answered as it
    /// stands.
    async fn a_wait_ends_with_its_own_time_or_the_callers_deadline(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let key = key_of(&granted);
        let short = LookupRequest {
            wait: Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 }),
            ..by_key(&key)
        };
        let intent = timeout(SOON, lookup(&server.agent, short)).await.expect("its own time");
        assert_eq!(intent.unwrap().state(), IntentState::Started);
        let mut request = Request::new(LookupRequest { wait: Some(span(300)), ..by_key(&key) });
        request.set_timeout(Duration::from_millis(600));
        let mut agent = server.agent.clone();
        let answer = timeout(SOON, agent.lookup(request)).await.expect("the deadline");
        let intent = answer.expect("an answer, not a time-out").into_inner().intent.unwrap();
        assert_eq!(intent.state(), IntentState::Started);
        // For what is not there, there is nothing to wait for.
        let absent = LookupRequest { wait: Some(span(300)), ..by_key(&"ab".repeat(32)) };
        let answer = timeout(SOON, lookup(&server.agent, absent)).await.expect("at once");
        assert_eq!(error_of(answer), "INTENT_NOT_FOUND");
        server.stop().await;
    }

    /// A server that stops answers those who wait.
    async fn a_stop_answers_whoever_waits(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let waiting = store.waiting_lookup(&server.agent, &key_of(&granted)).await;
        timeout(SOON, server.stop()).await.expect("a wait does not hold up the stop");
        let intent = timeout(SOON, waiting).await.expect("answered").unwrap().unwrap();
        assert_eq!(intent.state(), IntentState::Started);
    }
}

/// Across replicas a waiter is woken by the poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_woken_by_another_replica() {
    let store = TestStore::new(Kind::Postgres).await;
    let one = TestServer::on(store.clone(), Some(CHARGE_POLICY)).await;
    let faulty = FaultyStore::over(store.open().await);
    let opened: Arc<dyn Store> = Arc::clone(&faulty) as _;
    let options = LedgerOptions::default();
    let two = TestServer::over(store, opened, Some(CHARGE_POLICY), options, |_| {}).await;
    let granted = expect(&one.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
    let waiting = faulty.waiting_lookup(&two.agent, &key_of(&granted)).await;
    complete(&one.agent, completion(&granted, b"1")).await.unwrap();
    let intent = timeout(SOON, waiting).await.expect("woken").unwrap().unwrap();
    assert_eq!(intent.state(), IntentState::Completed);
    let held = expect(&two.agent, charge("o-1", 1, "a"), Decision::Replay, Reason::Completed).await;
    assert_eq!(held.recorded().result.as_deref(), Some(&b"1"[..]));
    one.stop().await;
    two.stop().await;
}
