//! Case 34 and section 4: a person settles what nobody else can.

use std::time::Duration;

use intent_ledger::proto::v1::{
    Decision, EventKind, FailureKind, IntentState, Provenance, Reason, Resolution,
    ResolveIntentRequest,
};
use tonic::Code;

use crate::{
    on_both_stores,
    support::{
        calls::{
            BeginResponseExt as _, CHARGE_POLICY, charge, complete, completion, error_of, expect,
            fail, failure, key_of, kinds, look, metadata, reason, resolution, resolve,
        },
        server::TestServer,
    },
};

const MINUTE: Duration = Duration::from_secs(61);

on_both_stores! {
    /// Case 34: executed. Begin replays, Lookup shows who and why.
    async fn a_person_says_that_it_was_executed(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let key = key_of(&granted);
        assert!(look(&server.agent, &key).await.needs_attention, "nobody else can find out");
        expect(&server.agent, call(), Decision::Hold, Reason::NeedsAttention).await;

        let executed = ResolveIntentRequest {
            result: Some(b"{\"id\":\"ch_1\"}".to_vec()),
            result_content_type: "application/json".into(),
            ..resolution(&server.agent, &key, Resolution::Executed).await
        };
        let settled = resolve(&server.operator, executed.clone()).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert!(!settled.needs_attention && !settled.conflict);
        let replay = expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.recorded().result.as_deref(), Some(&b"{\"id\":\"ch_1\"}"[..]));
        let seen = look(&server.agent, &key).await;
        assert_eq!(seen.provenance(), Provenance::Operator);
        assert_eq!((seen.settled_by.as_str(), seen.settle_note.as_str()), ("ada", "asked the provider"));
        let event = seen.events.iter().find(|event| event.kind() == EventKind::Resolved).unwrap();
        assert_eq!((event.actor.as_str(), event.note.as_str()), ("ada", "asked the provider"));
        assert_eq!(event.provenance(), Provenance::Operator);
        assert_eq!(event.state_before(), IntentState::Unknown);
        assert_eq!(event.state_after(), IntentState::Completed);

        // The same again is OK though its etag is stale by now; the other way is too late.
        resolve(&server.operator, executed.clone()).await.unwrap();
        for etag in [executed.etag.clone(), seen.etag] {
            let opposite = ResolveIntentRequest {
                etag,
                resolution: Resolution::NotExecuted.into(),
                result: None,
                ..executed.clone()
            };
            let error = resolve(&server.operator, opposite).await.unwrap_err();
            assert_eq!(
                (error.code(), reason(&error).as_str()),
                (Code::FailedPrecondition, "ALREADY_SETTLED")
            );
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        }
        let other_result = ResolveIntentRequest { result: Some(b"2".to_vec()), ..executed };
        assert_eq!(error_of(resolve(&server.operator, other_result).await), "ALREADY_SETTLED");
        server.stop().await;
    }

    /// Case 34: not executed. Begin executes.
    async fn a_person_says_that_it_was_not_executed(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        server.store.age(MINUTE).await;
        let key = key_of(&granted);
        let request = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        let failed = resolve(&server.operator, request.clone()).await.unwrap();
        assert_eq!(failed.state(), IntentState::Failed);
        assert_eq!((failed.settled_by.as_str(), failed.settle_note.as_str()), ("ada", "asked the provider"));
        resolve(&server.operator, request).await.unwrap();
        let retried = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        assert_eq!(retried.recorded().attempt, 2);
        assert_eq!(kinds(&look(&server.agent, &key).await), [EventKind::Resolved]);
        // The first attempt turns out to have executed after all: a person was wrong, it is told.
        let settled = complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert!(settled.conflict && settled.needs_attention);
        server.stop().await;
    }

    /// NOT_EXECUTED while somebody may still be at it: too early.
    async fn not_executed_waits_for_the_end_of_the_lease(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let key = key_of(&granted);
        let request = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        let error = resolve(&server.operator, request).await.unwrap_err();
        assert_eq!((error.code(), reason(&error).as_str()), (Code::FailedPrecondition, "LEASE_RUNNING"));
        let wait: u64 = metadata(&error, "waitSeconds").parse().unwrap();
        assert!(wait <= 60, "{wait}");
        // Also from UNKNOWN: the caller has given up, its request may still be under way.
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let request = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        assert_eq!(error_of(resolve(&server.operator, request.clone()).await), "LEASE_RUNNING");
        server.store.age(MINUTE).await;
        resolve(&server.operator, request).await.unwrap();
        // Executed needs no such wait.
        let granted =
            expect(&server.agent, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
        let request = resolution(&server.agent, &key_of(&granted), Resolution::Executed).await;
        let settled = resolve(&server.operator, request).await.unwrap();
        assert_eq!((settled.state(), settled.result), (IntentState::Completed, None));
        server.stop().await;
    }

    /// The etag covers state and attempt, not counters.
    async fn an_etag_is_stale_after_a_change_that_matters_only(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        server.store.age(MINUTE).await;
        let key = key_of(&granted);
        let old = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        // Counted, and no reason to look again.
        expect(&server.agent, call(), Decision::Hold, Reason::NeedsAttention).await;
        let store = server.stop().await;
        let server = TestServer::on(store, Some(CHARGE_POLICY)).await;
        assert_eq!(look(&server.agent, &key).await.etag, old.etag);
        let request = ResolveIntentRequest { etag: "stale".into(), ..old.clone() };
        let error = resolve(&server.operator, request).await.unwrap_err();
        assert_eq!((error.code(), reason(&error).as_str()), (Code::FailedPrecondition, "ETAG_MISMATCH"));
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        assert_eq!(error_of(resolve(&server.operator, old.clone()).await), "ETAG_MISMATCH");
        assert_eq!(look(&server.agent, &key).await.state(), IntentState::Unknown);
        let request = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        assert_ne!(request.etag, old.etag);
        resolve(&server.operator, request).await.unwrap();
        // A new attempt is a new etag as well.
        let before = look(&server.agent, &key).await.etag;
        expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        assert_ne!(look(&server.agent, &key).await.etag, before);
        server.stop().await;
    }

    /// ACKNOWLEDGED clears `needs_attention` and settles nothing.
    async fn an_acknowledgement_clears_the_attention_and_nothing_else(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        let key = key_of(&granted);
        let request = resolution(&server.agent, &key, Resolution::Acknowledged).await;
        let stale = ResolveIntentRequest { etag: "stale".into(), ..request.clone() };
        assert_eq!(error_of(resolve(&server.operator, stale).await), "ETAG_MISMATCH");
        let intent = resolve(&server.operator, request.clone()).await.unwrap();
        assert!(!intent.needs_attention && intent.conflict, "a conflict stays one");
        assert_eq!(intent.provenance(), Provenance::Caller);
        resolve(&server.operator, request).await.unwrap();
        let seen = look(&server.agent, &key).await;
        assert_eq!(kinds(&seen), [EventKind::Contradiction, EventKind::Acknowledged]);
        assert_eq!(seen.events[1].actor, "ada");

        // On UNKNOWN: it is off the list, and still not executable.
        let call = || charge("o-2", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let request = resolution(&server.agent, &key_of(&granted), Resolution::Acknowledged).await;
        let intent = resolve(&server.operator, request).await.unwrap();
        assert_eq!((intent.state(), intent.needs_attention), (IntentState::Unknown, false));
        let held = crate::support::calls::begin(&server.agent, call()).await;
        assert_eq!(held.decision(), Decision::Hold);
        server.stop().await;
    }

    /// On a final FAILED it reopens with a fresh attempt budget.
    async fn a_person_reopens_what_had_finally_failed(kind) {
        let server = TestServer::with_policy(kind, r#"
            [tools.charge]
            identity = ["/order"]
            scope = "namespace"
            max_attempts = 2
            retry_failed = false
        "#).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        expect(&server.agent, call(), Decision::Refuse, Reason::FailedFinal).await;
        let key = key_of(&granted);
        let request = resolution(&server.agent, &key, Resolution::NotExecuted).await;
        let reopened = resolve(&server.operator, request).await.unwrap();
        assert_eq!(reopened.state(), IntentState::Failed);
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        assert_eq!(granted.recorded().attempt, 2);
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        expect(&server.agent, call(), Decision::Refuse, Reason::FailedFinal).await;
        server.stop().await;
    }

    /// A person who knows better than a definite failure: a conflict, believed.
    async fn executed_after_a_definite_failure_is_a_conflict(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        let request = resolution(&server.agent, &key_of(&granted), Resolution::Executed).await;
        let settled = resolve(&server.operator, request).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert!(settled.conflict);
        server.stop().await;
    }
}
