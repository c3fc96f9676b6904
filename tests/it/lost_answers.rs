//! Cases 11 to 13, and what else follows from an answer that never arrived.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use intent_ledger::{
    ledger::LedgerOptions,
    proto::v1::{BeginRequest, Decision, FailureKind, IntentState, Reason},
    store::Store,
};
use tonic::{Code, Request};
use tonic_types::StatusExt;

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, attempt, begin, by_key, charge, complete, completion, error_of, expect,
            extend, fail, failure, key_of, look, lookup, metadata, reason, with_attempt,
        },
        faulty::{Fault, FaultyStore},
        server::{TestServer, TestStore},
    },
};

on_both_stores! {
    /// Case 11. The caller's own retry was refused by its own claim: a lost effect.
    async fn a_lost_execute_is_sent_again_to_the_same_attempt_only(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = |id: &str| with_attempt(charge("o-17", 1200, "a"), id);
        let (a1, a2) = (attempt(), attempt());
        let first = expect(&server.agent, k1(&a1), Decision::Execute, Reason::New).await;
        let again = expect(&server.agent, k1(&a1), Decision::Execute, Reason::Resent).await;
        assert_eq!(again.attempt_id, a1);
        assert_eq!(again.downstream_key, first.downstream_key);
        let (lease, left) = (first.lease.unwrap(), again.lease.unwrap());
        assert!((left.seconds, left.nanos) <= (lease.seconds, lease.nanos), "{left:?}");
        let intent = again.intent.as_ref().unwrap();
        assert_eq!((intent.attempt, intent.attempt_id.as_str()), (1, a1.as_str()));
        assert_eq!(server.store.count_intents().await, 1);

        let held = expect(&server.agent, k1(&a2), Decision::Hold, Reason::InFlight).await;
        assert!(held.retry_after.is_some_and(|after| after.seconds <= 60), "{held:?}");
        complete(&server.agent, completion(&again, b"1")).await.unwrap();
        let replay = expect(&server.agent, k1(&a1), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.attempt_id, "");
        server.stop().await;
    }

    /// Section 4: an EXECUTE is sent again only while that is certainly safe.
    async fn a_resend_is_answered_only_while_it_is_safe(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let same = |request: &BeginRequest| request.clone();
        let superseded = |request: BeginRequest| {
            expect(&server.agent, request, Decision::Hold, Reason::Superseded)
        };

        // Another caller that has got hold of the id.
        let mine = BeginRequest { caller: "worker-1".into(), ..charge("o-1", 1, "a") };
        expect(&server.agent, same(&mine), Decision::Execute, Reason::New).await;
        let theirs = BeginRequest { caller: "worker-2".into(), ..same(&mine) };
        let held = superseded(theirs).await;
        assert_eq!((held.attempt_id.as_str(), held.intent.unwrap().attempt_id.as_str()), ("", ""));
        expect(&server.agent, same(&mine), Decision::Execute, Reason::Resent).await;

        // After a heartbeat the answer has arrived.
        let beating = charge("o-2", 1, "a");
        let granted = expect(&server.agent, same(&beating), Decision::Execute, Reason::New).await;
        extend(&server.agent, &granted, 60, "").await.unwrap();
        superseded(beating).await;

        // In UNKNOWN and in FAILED.
        for (order, kind) in [("o-3", FailureKind::OutcomeUnknown), ("o-4", FailureKind::NotExecuted)] {
            let call = charge(order, 1, "a");
            let granted = expect(&server.agent, same(&call), Decision::Execute, Reason::New).await;
            fail(&server.agent, failure(&granted, kind, "x")).await.unwrap();
            superseded(call).await;
        }

        // After the window of ten seconds, though the lease still runs.
        server.store.age(Duration::from_secs(11)).await;
        superseded(same(&mine)).await;
        // After the lease.
        server.store.age(Duration::from_secs(60)).await;
        superseded(mine).await;
        server.stop().await;
    }

    /// Case 12.
    async fn the_same_complete_again_is_ok_and_another_result_is_told(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-17", 1200, "a"), Decision::Execute, Reason::New).await;
        let first = complete(&server.agent, completion(&granted, b"{\"id\":1}")).await.unwrap();
        let again = complete(&server.agent, completion(&granted, b"{\"id\":1}")).await.unwrap();
        assert_eq!(first, again);
        let other = complete(&server.agent, completion(&granted, b"{\"id\": 1}")).await;
        let error = other.unwrap_err();
        assert_eq!(reason(&error), "ALREADY_SETTLED");
        assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        let stored = look(&server.agent, &first.key).await;
        assert_eq!(stored.result.unwrap(), b"{\"id\":1}");
        let third = complete(&server.agent, completion(&granted, b"{\"id\":1}")).await.unwrap();
        assert_eq!(first, third);
        server.stop().await;
    }

    /// Case 13.
    async fn a_complete_that_comes_a_day_late_is_still_taken(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let granted =
            expect(&server.agent, charge("o-17", 1200, "a"), Decision::Execute, Reason::New).await;
        store.next_writes(&[Fault::Refused; 3]);
        for _ in 0..3 {
            let error = complete(&server.agent, completion(&granted, b"1")).await.unwrap_err();
            assert_eq!((error.code(), reason(&error).as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
            assert!(error.get_details_retry_info().is_some_and(|info| info.retry_delay.is_some()));
            assert_eq!(metadata(&error, "nextAction"), "RETRY_SAME_ATTEMPT");
        }
        server.store.age(Duration::from_secs(25 * 60 * 60)).await;
        let settled = complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        let replay =
            expect(&server.agent, charge("o-17", 1200, "a"), Decision::Replay, Reason::Completed)
                .await;
        assert_eq!(replay.intent.unwrap().result.unwrap(), b"1");
        server.stop().await;
    }

    /// Case 14, as far as the store's word goes: in doubt is said as such, and resolved by the
    /// attempt's id.
    async fn a_commit_in_doubt_is_resolved_by_the_attempt_id(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        for (fault, order, found) in [
            (Fault::ReplyLost, "o-1", Reason::Resent),
            (Fault::RequestLost, "o-2", Reason::New),
        ] {
            let call = charge(order, 1, "a");
            store.next_writes(&[fault]);
            let error = server.agent.clone().begin(call.clone()).await.unwrap_err();
            assert_eq!((error.code(), reason(&error).as_str()), (Code::Unavailable, "COMMIT_IN_DOUBT"));
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
            let truth = expect(&server.agent, call, Decision::Execute, found).await;
            // The same for a settlement: whatever became of the first, the second is the answer.
            store.next_writes(&[fault]);
            let lost = complete(&server.agent, completion(&truth, b"1")).await;
            assert_eq!(error_of(lost), "COMMIT_IN_DOUBT");
            complete(&server.agent, completion(&truth, b"1")).await.unwrap();
        }
        assert_eq!(server.store.count_intents().await, 2);
        server.stop().await;
    }

    /// P7: a ledger that cannot see is never a reason to execute.
    async fn without_its_store_the_ledger_says_nothing(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        store.set_down(true);
        let key = key_of(&granted);
        let blind = [
            server.agent.clone().begin(charge("o-2", 1, "a")).await.map(drop).unwrap_err(),
            server.agent.clone().begin(charge("o-1", 1, "a")).await.map(drop).unwrap_err(),
            complete(&server.agent, completion(&granted, b"1")).await.map(drop).unwrap_err(),
            fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x"))
                .await
                .map(drop)
                .unwrap_err(),
            extend(&server.agent, &granted, 60, "").await.map(drop).unwrap_err(),
            lookup(&server.agent, by_key(&key)).await.map(drop).unwrap_err(),
        ];
        for error in blind {
            assert_eq!((error.code(), reason(&error).as_str()), (Code::Unavailable, "STORE_UNAVAILABLE"));
            assert!(error.get_details_retry_info().is_some());
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
            assert!(!error.message().contains("switched"), "inside stays inside: {error:?}");
        }
        store.set_down(false);
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert_eq!(server.store.count_intents().await, 1);
        server.stop().await;
    }

    /// Section 10: a deadline that has passed before the write means that nothing is written.
    async fn a_deadline_that_passes_in_the_queue_writes_nothing(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        store.hold();
        let agent = server.agent.clone();
        let first = tokio::spawn(async move { begin(&agent, charge("o-1", 1, "a")).await });
        store.held_writes(1).await;
        let mut late = Request::new(charge("o-2", 1, "a"));
        late.set_timeout(Duration::from_millis(50));
        let error = server.agent.clone().begin(late).await.unwrap_err();
        assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled), "{error:?}");
        // The server counts from when it heard of the call, a little later than the client; of the
        // end of that span there is no event.
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.release();
        assert_eq!(first.await.unwrap().reason(), Reason::New);
        // Written behind the late one, so the queue is past it.
        expect(&server.agent, charge("o-3", 1, "a"), Decision::Execute, Reason::New).await;
        assert_eq!(server.store.count_intents().await, 2);
        server.stop().await;
    }

    /// A deadline that passes during the write undoes nothing: the same attempt finds its EXECUTE.
    async fn a_deadline_that_passes_in_the_write_leaves_a_row_to_be_found(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        for number in 0.. {
            store.hold();
            let call = charge(&format!("o-{number}"), 1, "a");
            let mut hurried = Request::new(call.clone());
            hurried.set_timeout(Duration::from_millis(300));
            let mut agent = server.agent.clone();
            let hurried = tokio::spawn(async move { agent.begin(hurried).await });
            let arrived = tokio::select! {
                () = store.held_writes(1) => true,
                () = async { while !hurried.is_finished() { tokio::task::yield_now().await } } => false,
            };
            let error = hurried.await.unwrap().unwrap_err();
            assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled), "{error:?}");
            store.release();
            if arrived {
                // Behind the write that was held: one writer has them both.
                expect(&server.agent, call, Decision::Execute, Reason::Resent).await;
                break;
            }
            // The machine was so busy that the deadline passed on the way: once more.
        }
        server.stop().await;
    }

    /// A full queue is told at once, and nothing of it is written.
    async fn a_full_queue_is_told_at_once(kind) {
        let store = TestStore::new(kind).await;
        let faulty = FaultyStore::over(store.open().await);
        let opened: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let server =
            TestServer::over(store, opened, Some(CHARGE_POLICY), LedgerOptions::default(), |config| {
                config.queue_max = 1;
                config.batch_rows_max = 1;
            })
            .await;
        faulty.hold();
        let call = |order: &'static str| {
            let agent = server.agent.clone();
            tokio::spawn(async move { agent.clone().begin(charge(order, 1, "a")).await })
        };
        let held = call("o-1");
        faulty.held_writes(1).await;
        // One of them finds the place in the queue, and only that one.
        let mut others: FuturesUnordered<_> =
            [call("o-2"), call("o-3"), call("o-4")].into_iter().collect();
        for _ in 0..2 {
            let error = others.next().await.unwrap().unwrap().unwrap_err();
            assert_eq!((error.code(), reason(&error).as_str()), (Code::Unavailable, "QUEUE_FULL"));
            assert!(error.get_details_retry_info().is_some());
        }
        faulty.release();
        assert_eq!(held.await.unwrap().unwrap().into_inner().reason(), Reason::New);
        let queued = others.next().await.unwrap().unwrap().unwrap();
        assert_eq!(queued.into_inner().reason(), Reason::New);
        assert_eq!(server.store.count_intents().await, 2);
        server.stop().await;
    }
}
