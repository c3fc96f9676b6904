//! Reports on keys that nobody began: kept, bounded, and seen by a person.

use intent_ledger::proto::v1::{
    CompleteRequest, Decision, EventKind, FailureKind, IntentState, ListIntentsRequest, Reason,
    Resolution, ResolveIntentRequest,
};
use tonic::Code;

use crate::{
    on_both_stores,
    support::{
        calls::{
            BeginResponseExt as _, CHARGE_POLICY, begin, by_key, charge, complete, completion,
            error_of, expect, extend, fail, failure, key_of, kinds, look, lookup, metadata, reason,
            resolution, resolve,
        },
        server::TestServer,
    },
};

on_both_stores! {
    /// Section 4: NOT_FOUND, the fact is kept, and a later Begin does not execute.
    async fn a_report_on_an_unknown_key_holds_the_later_begin(kind) {
        let elsewhere = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        // A ledger that has lost its rows, say by a restored backup; the caller has its attempt.
        let call = || charge("o-1", 1, "a");
        let granted = expect(&elsewhere.agent, call(), Decision::Execute, Reason::New).await;
        let key = key_of(&granted);
        let report = CompleteRequest { downstream_ref: "ch_1".into(), ..completion(&granted, b"1") };
        for _ in 0..2 {
            let error = complete(&server.agent, report.clone()).await.unwrap_err();
            assert_eq!(
                (error.code(), reason(&error).as_str()),
                (Code::NotFound, "INTENT_NOT_FOUND")
            );
            assert_eq!(metadata(&error, "reportKept"), "true");
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        }
        let report = failure(&granted, FailureKind::NotExecuted, "http 422");
        assert_eq!(error_of(fail(&server.agent, report).await), "INTENT_NOT_FOUND");
        assert_eq!(error_of(extend(&server.agent, &granted, 60, "").await), "INTENT_NOT_FOUND");
        assert_eq!(error_of(lookup(&server.agent, by_key(&key)).await), "INTENT_NOT_FOUND");
        assert_eq!(server.store.count_intents().await, 0);

        for _ in 0..2 {
            let held = expect(&server.agent, call(), Decision::Hold, Reason::NeedsAttention).await;
            assert_eq!(held.recorded().state(), IntentState::Unknown);
            assert_eq!(held.attempt_id, "");
        }
        let intent = look(&server.agent, &key).await;
        assert_eq!((intent.attempt, intent.needs_attention), (0, true));
        assert_eq!(kinds(&intent), [EventKind::OrphanFact; 2], "one of each, repeats once");
        assert!(intent.events.iter().any(|event| event.downstream_ref == "ch_1"));
        let request =
            ListIntentsRequest { needs_attention: Some(true), ..ListIntentsRequest::default() };
        let listed = server.operator.clone().list_intents(request).await.unwrap().into_inner();
        assert_eq!(listed.intents.len(), 1);
        assert_eq!(listed.intents[0].key, key);

        // What the caller reports now is no longer an orphan, and is still not granted.
        let late = complete(&server.agent, completion(&granted, b"1")).await;
        assert_eq!(error_of(late), "NOT_GRANTED");

        // A person settles it, with the evidence at hand.
        let request = ResolveIntentRequest {
            result: Some(b"1".to_vec()),
            ..resolution(&server.agent, &key, Resolution::Executed).await
        };
        resolve(&server.operator, request).await.unwrap();
        let replay = expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.recorded().result.as_deref(), Some(&b"1"[..]));
        elsewhere.stop().await;
        server.stop().await;
    }

    /// The other way: a person says that it did not happen.
    async fn an_orphan_that_did_not_happen_may_be_executed(kind) {
        let elsewhere = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = || charge("o-1", 1, "a");
        let lost = expect(&elsewhere.agent, call(), Decision::Execute, Reason::New).await;
        let report = failure(&lost, FailureKind::OutcomeUnknown, "http 504");
        assert_eq!(error_of(fail(&server.agent, report).await), "INTENT_NOT_FOUND");
        expect(&server.agent, call(), Decision::Hold, Reason::NeedsAttention).await;
        let request = resolution(&server.agent, &key_of(&lost), Resolution::NotExecuted).await;
        let failed = resolve(&server.operator, request).await.unwrap();
        assert_eq!(failed.state(), IntentState::Failed);
        assert!(!failed.needs_attention);
        let granted = begin(&server.agent, call()).await;
        assert_eq!(granted.decision(), Decision::Execute, "{granted:?}");
        assert_eq!(granted.recorded().attempt, 1);
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        elsewhere.stop().await;
        server.stop().await;
    }
}
