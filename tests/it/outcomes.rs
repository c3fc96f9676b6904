//! Cases 16 to 19: unknown is not failed, failed is not final, and age is no evidence.

use std::time::Duration;

use intent_ledger::proto::v1::{
    BeginRequest, CompleteRequest, Decision, EventKind, FailRequest, FailureKind, IntentState,
    Provenance, Reason,
};
use prost_types::Duration as ProtoDuration;

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, begin, charge, complete, completion, error_of, expect, fail, failure,
            key_of, kinds, look, metadata, reason, refused,
        },
        server::TestServer,
    },
};

on_both_stores! {
    /// Case 16.
    async fn a_time_out_is_unknown_and_a_definite_no_is_failed(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, k1(), Decision::Execute, Reason::New).await;
        let report = FailRequest {
            message: "gateway time-out".into(),
            ..failure(&granted, FailureKind::Unspecified, "http 504")
        };
        let intent = fail(&server.agent, report.clone()).await.unwrap();
        assert_eq!(intent.state(), IntentState::Unknown);
        assert_eq!(intent.settle_time, None);
        let shown = intent.failure.clone().unwrap();
        assert_eq!(shown.kind(), FailureKind::OutcomeUnknown);
        assert_eq!((shown.code.as_str(), shown.message.as_str()), ("http 504", "gateway time-out"));
        let held = begin(&server.agent, k1()).await;
        assert_eq!(held.decision(), Decision::Hold, "{held:?}");
        assert_eq!(fail(&server.agent, report).await.unwrap(), intent, "the same again");

        let k2 = || charge("o-2", 1, "a");
        let granted = expect(&server.agent, k2(), Decision::Execute, Reason::New).await;
        let report = failure(&granted, FailureKind::NotExecuted, "http 422");
        let intent = fail(&server.agent, report).await.unwrap();
        assert_eq!(intent.state(), IntentState::Failed);
        assert_eq!(intent.provenance(), Provenance::Caller);
        assert!(intent.settle_time.is_some());
        let retried = expect(&server.agent, k2(), Decision::Execute, Reason::Retry).await;
        let intent = retried.intent.unwrap();
        assert_eq!((intent.attempt, intent.state()), (2, IntentState::Started));
        assert_eq!((intent.settle_time, intent.provenance()), (None, Provenance::Unspecified));
        assert_ne!(retried.attempt_id, granted.attempt_id);
        assert_eq!(retried.downstream_key, granted.downstream_key);
        server.stop().await;
    }

    /// Case 17.
    async fn no_age_makes_a_started_intent_executable(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, k1(), Decision::Execute, Reason::New).await;
        expect(&server.agent, k1(), Decision::Hold, Reason::InFlight).await;
        for seconds in [60, 60 * 60, 30 * 24 * 60 * 60, 400 * 24 * 60 * 60] {
            server.store.age(Duration::from_secs(seconds)).await;
            let held = begin(&server.agent, k1()).await;
            assert_eq!(held.decision(), Decision::Hold, "{seconds} s: {held:?}");
            let intent = held.intent.unwrap();
            assert_eq!((intent.state(), intent.attempt), (IntentState::Started, 1));
            assert_eq!(intent.expire_time, None);
        }
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        server.stop().await;
    }

    /// Case 17: zero is a mistake, not a wish for the default.
    async fn a_lease_must_be_over_zero(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        for (seconds, nanos) in [
            (0, 0),
            (-5, 0),
            (0, -1),
            (i64::MAX, 0),
            (i64::MIN, 0),
            (1, 1_000_000_000),
        ] {
            let lease = Some(ProtoDuration { seconds, nanos });
            let request = BeginRequest { lease, ..charge("o-1", 1, "a") };
            if (seconds, nanos) == (1, 1_000_000_000) {
                // Not normalised, but two seconds all the same.
                begin(&server.agent, BeginRequest { lease, ..charge("o-2", 1, "a") }).await;
                continue;
            }
            let error = refused(&server.agent, request, "DURATION_INVALID").await;
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
        }
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        server.stop().await;
    }

    /// Case 18.
    async fn unknown_is_left_by_evidence_only(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = charge("o-1", 1, "a");
        let granted = expect(&server.agent, k1, Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let bare = CompleteRequest { result: None, ..completion(&granted, b"") };
        let error = complete(&server.agent, bare.clone()).await.unwrap_err();
        assert_eq!(reason(&error), "EVIDENCE_REQUIRED");
        assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.state(), IntentState::Unknown);
        assert_eq!(kinds(&intent), [EventKind::Unproven], "the report is kept");

        let proven = CompleteRequest { downstream_ref: "ch_1".into(), ..bare };
        let settled = complete(&server.agent, proven).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert_eq!(settled.provenance(), Provenance::Caller);
        assert_eq!(settled.downstream_ref, "ch_1");
        assert_eq!(settled.result, None, "none was reported, and none is made up");
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(kinds(&intent), [EventKind::Unproven, EventKind::LeftUnknown]);
        let left = &intent.events[1];
        assert_eq!(left.state_before(), IntentState::Unknown);
        assert_eq!(left.state_after(), IntentState::Completed);
        assert_eq!(left.downstream_ref, "ch_1");
        assert!(!intent.conflict && !intent.needs_attention);
        server.stop().await;
    }

    /// Case 18: an empty result is a result, and so is evidence.
    async fn an_empty_result_is_evidence(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let settled = complete(&server.agent, completion(&granted, b"")).await.unwrap();
        assert_eq!(settled.result.as_deref(), Some(&b""[..]));
        server.stop().await;
    }

    /// Case 19.
    async fn contradicting_reports_are_believed_on_the_safe_side(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        for kind in [FailureKind::NotExecuted, FailureKind::OutcomeUnknown] {
            let report = fail(&server.agent, failure(&granted, kind, "late")).await;
            assert_eq!(error_of(report), "ALREADY_SETTLED");
        }
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.state(), IntentState::Completed);
        assert_eq!(intent.result.as_deref(), Some(&b"1"[..]));
        assert!(kinds(&intent).contains(&EventKind::LateFail), "{intent:?}");
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Replay, Reason::Completed).await;

        let granted =
            expect(&server.agent, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        let settled = complete(&server.agent, completion(&granted, b"2")).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert!(settled.conflict && settled.needs_attention, "{settled:?}");
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(kinds(&intent), [EventKind::Contradiction]);
        let replay =
            expect(&server.agent, charge("o-2", 1, "a"), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.intent.unwrap().result.unwrap(), b"2");
        server.stop().await;
    }
}
