//! Section 4, settling: reports settle attempts, the intent follows.

use std::time::Duration;

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, CompleteRequest, Decision, EventKind, FailRequest, FailureKind,
    IntentState, ListIntentsRequest, Provenance, Reason, Resolution, ResolveIntentRequest,
};
use tonic::Code;

use crate::{
    on_both_stores,
    support::{
        calls::{
            attempt, begin, charge, complete, completion, error_of, expect, extend, fail, failure,
            key_of, kinds, look, metadata, reason, resolution, resolve, span,
        },
        server::TestServer,
    },
};

const MINUTE: Duration = Duration::from_secs(60);

/// The downstream honours our key for an hour.
const DEDUPLICATES: &str = r#"
[defaults]
scope = "namespace"
[tools.charge]
identity = ["/order"]
[tools.charge.downstream]
deduplicates = true
window = "1h"
"#;

/// An attempt whose lease has run out, and the newer one that the downstream's promise allowed.
async fn superseded(server: &TestServer, order: &str) -> (BeginResponse, BeginResponse) {
    let call = |caller: &str| BeginRequest { caller: caller.into(), ..charge(order, 1, "a") };
    let first = expect(&server.agent, call("old"), Decision::Execute, Reason::New).await;
    server.store.age(MINUTE + Duration::from_secs(1)).await;
    let second =
        expect(&server.agent, call("new"), Decision::Execute, Reason::DownstreamDedupes).await;
    (first, second)
}

on_both_stores! {
    /// A further attempt while the downstream still deduplicates, and none after.
    async fn while_the_downstream_deduplicates_a_stale_attempt_is_followed_by_another(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let (first, second) = superseded(&server, "o-1").await;
        assert_eq!(first.downstream_key, second.downstream_key);
        let intent = second.intent.as_ref().unwrap();
        assert_eq!((intent.attempt, &intent.attempt_id), (2, &second.attempt_id));
        assert_eq!(kinds(&look(&server.agent, &key_of(&first)).await), [EventKind::Superseded]);
        // Its own lease is a lease like any other.
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Hold, Reason::InFlight).await;

        // Two minutes before the end of the window, counted from the first grant, another minute
        // still fits; a minute later it does not, and never again.
        server.store.age(56 * MINUTE).await;
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::DownstreamDedupes)
            .await;
        server.store.age(2 * MINUTE).await;
        let held = begin(&server.agent, charge("o-1", 1, "a")).await;
        assert_eq!(held.decision(), Decision::Hold, "{held:?}");
        server.store.age(60 * MINUTE).await;
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Hold, Reason::NeedsAttention).await;
        server.stop().await;
    }

    /// The same from UNKNOWN, at once: nobody is still at it.
    async fn an_unknown_outcome_may_be_tried_again_where_the_downstream_deduplicates(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let call = || charge("o-1", 1, "a");
        let first = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&first, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let long = BeginRequest { lease: Some(span(2 * 60 * 60)), ..call() };
        let held = begin(&server.agent, long).await;
        assert_eq!(held.decision(), Decision::Hold, "the lease would outlast the window: {held:?}");
        let second =
            expect(&server.agent, call(), Decision::Execute, Reason::DownstreamDedupes).await;
        complete(&server.agent, completion(&second, b"1")).await.unwrap();
        expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        server.stop().await;
    }

    /// Complete by a superseded attempt: the effect happened.
    async fn a_superseded_attempt_that_succeeded_completes_the_intent(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let (first, second) = superseded(&server, "o-1").await;
        let settled = complete(&server.agent, completion(&first, b"1")).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert_eq!(settled.settled_by, "old");
        assert_eq!(settled.attempt_id, "", "the newer attempt's id is not the older one's to see");
        assert!(!settled.conflict && !settled.needs_attention, "one key, one effect: {settled:?}");
        // Both report success: the same result is OK, another one is told; the first stays.
        complete(&server.agent, completion(&second, b"1")).await.unwrap();
        let intent = look(&server.agent, &key_of(&first)).await;
        assert_eq!(intent.result.as_deref(), Some(&b"1"[..]));
        assert!(!intent.conflict);
        let late = kinds(&intent).iter().filter(|kind| **kind == EventKind::LateComplete).count();
        assert_eq!(late, 2, "both are events: {:?}", intent.events);

        let (first, second) = superseded(&server, "o-2").await;
        complete(&server.agent, completion(&second, b"1")).await.unwrap();
        let other = completion(&first, b"2");
        for _ in 0..2 {
            assert_eq!(error_of(complete(&server.agent, other.clone()).await), "ALREADY_SETTLED");
        }
        let intent = look(&server.agent, &key_of(&first)).await;
        assert_eq!(intent.result.as_deref(), Some(&b"1"[..]));
        assert_eq!(kinds(&intent), [EventKind::Superseded, EventKind::LateComplete]);
        server.stop().await;
    }

    /// Complete by a superseded attempt after a newer one was granted on "did not happen".
    async fn a_success_that_was_believed_impossible_is_a_conflict(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let call = || charge("o-1", 1, "a");
        let first = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&first, FailureKind::NotExecuted, "http 422")).await.unwrap();
        let second = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        let settled = complete(&server.agent, completion(&first, b"1")).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        assert!(settled.conflict && settled.needs_attention);
        // The newer one reports as well: money may have moved twice.
        complete(&server.agent, completion(&second, b"1")).await.unwrap();
        let intent = look(&server.agent, &key_of(&first)).await;
        assert!(intent.conflict && intent.needs_attention);
        assert!(kinds(&intent).contains(&EventKind::Contradiction));
        expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        server.stop().await;
    }

    /// A new Fail by a superseded attempt settles that attempt only.
    async fn a_superseded_attempt_that_failed_settles_itself_only(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let (first, second) = superseded(&server, "o-1").await;
        let report = failure(&first, FailureKind::NotExecuted, "http 422");
        let error = fail(&server.agent, report.clone()).await.unwrap_err();
        assert_eq!(
            (error.code(), reason(&error).as_str()),
            (Code::FailedPrecondition, "ATTEMPT_SUPERSEDED")
        );
        assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        assert_eq!(error_of(fail(&server.agent, report).await), "ATTEMPT_SUPERSEDED", "the same again");
        let intent = look(&server.agent, &key_of(&first)).await;
        assert_eq!(intent.state(), IntentState::Started);
        // Now that the newer one has not executed either, nobody has.
        let intent =
            fail(&server.agent, failure(&second, FailureKind::NotExecuted, "x")).await.unwrap();
        assert_eq!(intent.state(), IntentState::Failed);
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::Retry).await;
        server.stop().await;
    }

    /// Section 3: one attempt of unknown fate keeps the intent UNKNOWN, whatever a later one says.
    async fn one_attempt_of_unknown_fate_keeps_the_intent_unknown(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let (first, second) = superseded(&server, "o-1").await;
        let intent =
            fail(&server.agent, failure(&second, FailureKind::NotExecuted, "x")).await.unwrap();
        assert_eq!(intent.state(), IntentState::Unknown);
        // It speaks at last, and so is known.
        let error = fail(&server.agent, failure(&first, FailureKind::NotExecuted, "y")).await;
        assert_eq!(error_of(error), "ATTEMPT_SUPERSEDED");
        let intent = look(&server.agent, &key_of(&first)).await;
        assert_eq!(intent.state(), IntentState::Failed);
        assert!(kinds(&intent).contains(&EventKind::LeftUnknown), "{:?}", intent.events);
        server.stop().await;
    }

    /// The same report again is OK with the same answer, even if superseded since.
    async fn the_same_report_again_is_ok_even_after_a_newer_attempt(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let call = || charge("o-1", 1, "a");
        let first = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        let report = failure(&first, FailureKind::NotExecuted, "http 422");
        fail(&server.agent, report.clone()).await.unwrap();
        let second = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        let before = server.store.rows().await;
        fail(&server.agent, report).await.unwrap();
        assert_eq!(server.store.rows().await, before);
        complete(&server.agent, completion(&second, b"1")).await.unwrap();
        server.stop().await;
    }

    /// Fail first unknown, then known: knowledge grows, it does not shrink.
    async fn an_attempt_may_learn_that_it_did_not_execute(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let intent =
            fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "y")).await.unwrap();
        assert_eq!(intent.state(), IntentState::Failed);
        let weaker = fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "z")).await;
        assert_eq!(error_of(weaker), "ALREADY_SETTLED");
        server.stop().await;
    }

    /// Complete by a granted attempt after a person settled COMPLETED.
    async fn a_late_success_after_a_persons_word_is_ok_with_what_is_stored(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let request = ResolveIntentRequest {
            result: Some(b"by ada".to_vec()),
            ..resolution(&server.agent, &key_of(&granted), Resolution::Executed).await
        };
        resolve(&server.operator, request).await.unwrap();
        let settled = complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert_eq!(settled.result.as_deref(), Some(&b"by ada"[..]));
        assert_eq!(settled.provenance(), Provenance::Operator);
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(kinds(&intent), [EventKind::Resolved, EventKind::LateComplete]);
        server.stop().await;
    }

    /// NOT_GRANTED, and what it leaves untouched.
    async fn an_attempt_that_was_never_granted_settles_nothing(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let before = server.store.rows().await;
        let stranger = BeginResponse { attempt_id: attempt(), ..granted.clone() };
        let error = complete(&server.agent, completion(&stranger, b"2")).await.unwrap_err();
        assert_eq!((error.code(), reason(&error).as_str()), (Code::FailedPrecondition, "NOT_GRANTED"));
        let report = fail(&server.agent, failure(&stranger, FailureKind::NotExecuted, "x")).await;
        assert_eq!(error_of(report), "NOT_GRANTED");
        assert_eq!(error_of(extend(&server.agent, &stranger, 60, "").await), "NOT_GRANTED");
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.state(), IntentState::Started);
        assert_eq!(intent.events.len(), 3, "{:?}", intent.events);
        assert!(kinds(&intent).iter().all(|kind| *kind == EventKind::NotGranted));
        let changed_only_in_version = server.store.rows().await;
        assert_eq!(changed_only_in_version.len(), before.len());
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        server.stop().await;
    }

    /// Extend: a heartbeat, clamped to what may be held.
    async fn a_heartbeat_prolongs_the_lease_within_its_limits(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            lease_max = "10m"
            [tools.charge]
            identity = ["/order"]
            [tools.short]
            identity = ["/order"]
            lease = "10s"
            [tools.short.downstream]
            deduplicates = true
            window = "2m"
        "#).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let answer = extend(&server.agent, &granted, 300, "job-7").await.unwrap();
        assert!(answer.warnings.is_empty());
        let left = answer.lease.unwrap().seconds;
        assert!((290..=300).contains(&left), "{left}");
        let intent = answer.intent.unwrap();
        assert_eq!(intent.downstream_ref, "job-7");
        assert_eq!(intent.attempt_id, granted.attempt_id);
        // Not past lease_max after the grant.
        let answer = extend(&server.agent, &granted, 3600, "").await.unwrap();
        assert_eq!(answer.warnings, ["lease_clamped"]);
        let left = answer.lease.unwrap().seconds;
        assert!((590..=600).contains(&left), "{left}");
        // A shorter wish takes nothing away, and the reference stays.
        let answer = extend(&server.agent, &granted, 1, "").await.unwrap();
        assert!(answer.lease.unwrap().seconds > 580);
        assert_eq!(answer.intent.unwrap().downstream_ref, "job-7");
        // A second reference does not hide the first.
        extend(&server.agent, &granted, 1, "job-8").await.unwrap();
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.downstream_ref, "job-8");
        assert!(intent.events.iter().any(|event| event.downstream_ref == "job-7"));

        // A Begin's own lease is clamped the same way, and to the deduplication window.
        let long = BeginRequest { lease: Some(span(3600)), ..charge("o-2", 1, "a") };
        let answer = expect(&server.agent, long, Decision::Execute, Reason::New).await;
        assert_eq!(answer.warnings, ["lease_clamped"]);
        assert!((590..=600).contains(&answer.lease.unwrap().seconds));
        let mut short = charge("o-3", 1, "a");
        short.identity.as_mut().unwrap().tool = "short".into();
        let long = BeginRequest { lease: Some(span(300)), ..short };
        let granted = expect(&server.agent, long, Decision::Execute, Reason::New).await;
        assert_eq!(granted.warnings, ["lease_clamped"]);
        assert!((110..=120).contains(&granted.lease.unwrap().seconds));
        let answer = extend(&server.agent, &granted, 300, "").await.unwrap();
        assert_eq!(answer.warnings, ["lease_clamped"]);
        assert!(answer.lease.unwrap().seconds <= 120);
        server.stop().await;
    }

    /// LEASE_LOST, with the cause; what the downstream had answered is kept.
    async fn a_lost_lease_is_told_with_its_cause_and_the_reference_is_kept(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let expired =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        server.store.age(MINUTE).await;
        let (superseded, _) = superseded(&server, "o-2").await;
        let settled =
            expect(&server.agent, charge("o-3", 1, "a"), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&settled, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        for (granted, cause) in
            [(expired, "EXPIRED"), (superseded, "SUPERSEDED"), (settled, "SETTLED")]
        {
            let reference = format!("job-{cause}");
            let error = extend(&server.agent, &granted, 60, &reference).await.unwrap_err();
            assert_eq!(
                (error.code(), reason(&error).as_str()),
                (Code::FailedPrecondition, "LEASE_LOST")
            );
            assert_eq!(metadata(&error, "cause"), cause);
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
            let intent = look(&server.agent, &key_of(&granted)).await;
            assert_eq!(intent.downstream_ref, reference);
            let lost = intent.events.iter().find(|event| event.kind() == EventKind::LeaseLost);
            assert_eq!(lost.unwrap().downstream_ref, reference);
        }
        server.stop().await;
    }

    /// Complete and Fail are heard after the lease as before it.
    async fn reports_are_heard_long_after_the_lease(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let done =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let not =
            expect(&server.agent, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
        server.store.age(Duration::from_secs(40 * 24 * 60 * 60)).await;
        let settled = complete(&server.agent, completion(&done, b"1")).await.unwrap();
        assert!(settled.settle_time.unwrap().seconds > settled.lease_expire_time.unwrap().seconds);
        let intent = fail(&server.agent, failure(&not, FailureKind::NotExecuted, "x")).await.unwrap();
        assert_eq!(intent.state(), IntentState::Failed);
        server.stop().await;
    }

    /// A long message must not cost the report.
    async fn a_long_failure_message_is_cut_and_the_report_taken(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let report = FailRequest {
            message: "tr\u{e4}ce\0".repeat(2000),
            ..failure(&granted, FailureKind::NotExecuted, "x")
        };
        let answer = server.agent.clone().fail(report).await.unwrap().into_inner();
        assert_eq!(answer.warnings, ["message_truncated"]);
        let kept = answer.intent.unwrap().failure.unwrap().message;
        assert!(kept.len() <= 4096 && kept.starts_with("tr\u{e4}ce\0tr"), "{} bytes", kept.len());
        server.stop().await;
    }

    /// Section 4: an attempt's id is its caller's, and an operator's.
    async fn an_attempt_id_is_shown_to_its_own_caller_only(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let id = granted.attempt_id.clone();
        let held =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Hold, Reason::InFlight).await;
        assert!(!format!("{held:?}").contains(&id), "{held:?}");
        let stranger = BeginResponse { attempt_id: attempt(), ..granted.clone() };
        let error = complete(&server.agent, completion(&stranger, b"1")).await.unwrap_err();
        assert!(!format!("{:?}", error.details()).contains(&format!("{:?}", id.as_bytes())));
        extend(&server.agent, &granted, 60, "j1").await.unwrap();
        extend(&server.agent, &granted, 60, "j2").await.unwrap();
        let seen = look(&server.agent, &key_of(&granted)).await;
        assert!(seen.events.len() >= 2 && !format!("{seen:?}").contains(&id), "{seen:?}");
        let own = complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert_eq!(own.attempt_id, id);
        let replay =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Replay, Reason::Completed).await;
        assert!(!format!("{replay:?}").contains(&id), "{replay:?}");
        let list = server.operator.clone().list_intents(ListIntentsRequest::default()).await.unwrap();
        assert_eq!(list.into_inner().intents[0].attempt_id, id);
        server.stop().await;
    }

    /// A Complete that brings another reference along is still the same report, and is kept.
    async fn a_repeated_success_with_a_new_reference_is_a_fact_to_keep(kind) {
        let server = TestServer::with_policy(kind, DEDUPLICATES).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let report = |reference: &str| CompleteRequest {
            downstream_ref: reference.into(),
            ..completion(&granted, b"1")
        };
        complete(&server.agent, report("ch_1")).await.unwrap();
        let again = complete(&server.agent, report("ch_2")).await.unwrap();
        assert_eq!(again.downstream_ref, "ch_1");
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.events[0].downstream_ref, "ch_2");
        server.stop().await;
    }
}
