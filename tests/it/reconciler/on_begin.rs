//! After a time-out, look before you retry: a Begin that asks first.

use intent_ledger::{
    downstream::{Fault, Faults, Outage, OutageMode},
    proto::v1::FailureKind,
};
use tonic::Request;

use super::*;
use crate::{on_both_stores, support::calls::failure};

const LOOK_FIRST: &str = "probe_on_begin = true";

on_both_stores! {
    async fn a_begin_that_meets_an_effect_replays_it(kind) {
        let world = World::with(kind, LOOK_FIRST).await;
        let granted = world.granted("o-17").await;
        let receipt = world.downstream.send(&granted, "").await.unwrap();
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, (Decision::Hold, Reason::InFlight));
        world.wait(MINUTE).await;
        let replay = expect(world.agent(), charge("o-17", 1200, "b"), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.intent.unwrap().result, Some(receipt.into_bytes()));
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
        assert_eq!(world.pass().await.looked, [], "nothing is left to look at");
        world.stop().await;
    }

    /// Spacing and visibility hold at a Begin as everywhere.
    async fn a_begin_executes_once_the_absence_is_proved(kind) {
        let world = World::with(kind, LOOK_FIRST).await;
        world.granted("o-17").await;
        world.wait(MINUTE).await;
        let held = (Decision::Hold, Reason::OutcomeUnknown);
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, held, "too early");
        world.wait(MINUTE * 2).await;
        world.forget_looks().await;
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, held, "the first that counts");
        world.wait(MINUTE).await;
        world.forget_looks().await;
        let granted = expect(world.agent(), charge("o-17", 1200, "a"), Decision::Execute, Reason::NotExecuted).await;
        assert_eq!(granted.intent.unwrap().attempt, 2);
        world.stop().await;
    }

    /// A crowd of retries is one question.
    async fn concurrent_begins_share_one_question(kind) {
        let world = World::with(kind, LOOK_FIRST).await;
        let other = TestServer::on(world.server.store.clone(), None).await;
        let granted = world.abandoned("o-17", "").await;
        world.wait(MINUTE).await;
        let slow = Fault::list("status_slow=500ms").unwrap();
        world.downstream.running.set_faults(Faults::none().with_key(granted.downstream_key.clone(), slow));
        let callers = (0..20).map(|n| {
            let agent = if n % 2 == 0 { world.agent() } else { &other.agent }.clone();
            tokio::spawn(async move { calls::begin(&agent, charge("o-17", 1200, "a")).await })
        });
        for caller in callers.collect::<Vec<_>>() {
            let answer = caller.await.unwrap();
            assert_eq!((answer.decision(), answer.reason()), (Decision::Replay, Reason::Completed));
        }
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
        other.stop().await;
        world.stop().await;
    }

    /// An unknown outcome is asked about too, other arguments are not, nor is the attempt itself.
    async fn only_an_honest_retry_asks(kind) {
        let world = World::with(kind, LOOK_FIRST).await;
        let request = charge("o-17", 1200, "a");
        let granted = expect(world.agent(), request.clone(), Decision::Execute, Reason::New).await;
        world.downstream.send(&granted, "effect_then_error").await;
        calls::fail(world.agent(), failure(&granted, FailureKind::OutcomeUnknown, "http_500")).await.unwrap();
        calls::refused(world.agent(), charge("o-17", 1300, "a"), "PARAMETERS_CHANGED").await;
        assert_eq!(world.again(request).await, (Decision::Hold, Reason::Superseded));
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 0);
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, (Decision::Replay, Reason::Completed));
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
        world.stop().await;
    }

    /// Where the downstream deduplicates, what it answers goes before a further attempt.
    async fn deduplication_is_used_only_where_the_downstream_does_not_know(kind) {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", &format!("{VISIBILITY}\n{LOOK_FIRST}"));
        let dedup = "[tools.charge.downstream]\ndeduplicates = true\nwindow = \"24h\"";
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, dedup, &status])).await;
        let world = World { server, downstream };
        world.abandoned("o-1", "").await;
        world.granted("o-2").await;
        world.wait(MINUTE).await;
        assert_eq!(world.again(charge("o-1", 1200, "a")).await, (Decision::Replay, Reason::Completed));
        assert_eq!(world.again(charge("o-2", 1200, "a")).await, (Decision::Execute, Reason::DownstreamDedupes));
        world.stop().await;
    }

    /// The caller's deadline and the question's time-out bound the wait.
    async fn a_begin_does_not_wait_longer_than_its_caller(kind) {
        let world = World::with(kind, LOOK_FIRST).await;
        let granted = world.abandoned("o-17", "").await;
        world.wait(MINUTE).await;
        let hang = Outage { mode: OutageMode::Hang, span: None };
        world.downstream.running.set_outage(hang).await;
        let mut request = Request::new(charge("o-17", 1200, "a"));
        request.set_timeout(Duration::from_millis(1200));
        let answer = world.agent().clone().begin(request).await.unwrap().into_inner();
        assert_eq!((answer.decision(), answer.reason()), (Decision::Hold, Reason::OutcomeUnknown));
        // The question goes on without it, and the next caller waits for it.
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, (Decision::Hold, Reason::OutcomeUnknown));
        world.downstream.running.end_outage().await;
        world.wait(MINUTE).await;
        world.forget_looks().await;
        assert_eq!(world.again(charge("o-17", 1200, "a")).await, (Decision::Replay, Reason::Completed));
        assert_eq!(world.state(&granted).await, (IntentState::Completed, false));
        world.stop().await;
    }
}

impl World {
    /// The server does not ask about one intent twice within a second, by its own clock.
    async fn forget_looks(&self) {
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
}
