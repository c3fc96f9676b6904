//! What only a person can move on: case 34.

use intent_ledger::proto::v1::{FailureKind, Provenance, Resolution};

use super::*;
use crate::{
    on_both_stores,
    support::calls::{error_of, failure, resolution, resolve},
};

on_both_stores! {
    /// Case 34: no status endpoint: a person is told once, and settles it.
    async fn without_a_status_endpoint_a_person_decides(kind) {
        let downstream = Downstream::start().await;
        let server = TestServer::with_policy(kind, &policy(&[CHARGE])).await;
        let world = World { server, downstream };
        let (one, two) = (world.granted("o-1").await, world.granted("o-2").await);
        assert_eq!(world.pass().await.looked, []);
        world.wait(MINUTE * 2).await;
        let pass = world.pass().await;
        assert_eq!(pass.verdicts(), [Verdict::NoEndpoint, Verdict::NoEndpoint]);
        assert_eq!((pass.totals.unknown_count, pass.totals.needs_attention_count), (2, 2));
        assert_eq!(world.state(&one).await, (IntentState::Unknown, true));
        // Not every tick.
        world.wait(MINUTE * 60).await;
        let pass = world.pass().await;
        assert_eq!((pass.looked.len(), pass.totals.attention_waiting_count), (0, 2));
        assert_eq!(world.again(charge("o-1", 1200, "a")).await, (Decision::Hold, Reason::NeedsAttention));

        let operator = &world.server.operator;
        let executed = resolution(world.agent(), &key_of(&one), Resolution::Executed).await;
        resolve(operator, executed).await.unwrap();
        let not_executed = resolution(world.agent(), &key_of(&two), Resolution::NotExecuted).await;
        resolve(operator, not_executed).await.unwrap();
        assert_eq!(world.again(charge("o-1", 1200, "a")).await, (Decision::Replay, Reason::Completed));
        assert_eq!(world.again(charge("o-2", 1200, "a")).await, (Decision::Execute, Reason::Retry));
        let settled = world.look(&one).await;
        assert_eq!((settled.provenance(), settled.settled_by.as_str(), settled.settle_note.as_str()), (Provenance::Operator, "ada", "asked the provider"));
        let other_way = resolution(world.agent(), &key_of(&one), Resolution::NotExecuted).await;
        assert_eq!(error_of(resolve(operator, other_way).await), "ALREADY_SETTLED");
        assert_eq!(world.pass().await.totals.attention_waiting_count, 0);
        world.stop().await;
    }

    /// While the downstream takes a repeat for the first call, the next Begin is the way out.
    async fn without_a_status_endpoint_deduplication_is_a_way_out_until_its_window_ends(kind) {
        let text = format!("{CHARGE}[tools.charge.downstream]\ndeduplicates = true\nwindow = \"1h\"");
        let server = TestServer::with_policy(kind, &policy(&[&text])).await;
        let world = World { server, downstream: Downstream::start().await };
        let granted = world.granted("o-1").await;
        world.wait(MINUTE * 10).await;
        assert_eq!(world.pass().await.looked, []);
        assert_eq!(world.state(&granted).await, (IntentState::Started, false));
        world.wait(MINUTE * 50).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::NoEndpoint]);
        assert_eq!(world.state(&granted).await, (IntentState::Unknown, true));
        world.stop().await;
    }

    /// A person may have the downstream asked at once, even for what waits for a person.
    async fn a_person_can_have_it_asked_again(kind) {
        let world = World::new(kind).await;
        let granted = world.granted("o-17").await;
        calls::extend(world.agent(), &granted, 60, "eff-1").await.unwrap();
        world.wait(MINUTE * 10).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Absent]);
        assert_eq!(world.state(&granted).await, (IntentState::Unknown, true));
        // The effect lands after all.
        world.downstream.send(&granted, "").await.unwrap();
        assert_eq!(world.pass().await.looked, []);
        assert_eq!(world.verdict(&granted).await, Verdict::Completed);
        assert_eq!(world.state(&granted).await, (IntentState::Completed, false));
        world.stop().await;
    }

    /// Who has seen it is not told again, and the downstream is still asked.
    async fn what_was_acknowledged_is_asked_about_further_and_not_flagged_again(kind) {
        let world = World::new(kind).await;
        let granted = world.abandoned("o-17", "status_unmapped").await;
        world.wait(MINUTE).await;
        world.pass().await;
        world.wait(MINUTE * 60 * 24).await;
        assert_eq!(world.pass().await.totals.attention_waiting_count, 1);
        let seen = resolution(world.agent(), &key_of(&granted), Resolution::Acknowledged).await;
        resolve(&world.server.operator, seen).await.unwrap();
        let pass = world.pass().await;
        assert_eq!((pass.verdicts(), pass.totals.attention_waiting_count), (vec![Verdict::Unmapped], 0));
        world.downstream.running.clear_faults();
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Completed]);
        world.stop().await;
    }

    /// A caller that says that it does not know, where nobody can be asked, is a person's at once.
    async fn an_unknown_outcome_that_nobody_can_be_asked_about_is_a_persons_at_once(kind) {
        let server = TestServer::with_policy(kind, &policy(&[CHARGE])).await;
        let world = World { server, downstream: Downstream::start().await };
        let granted = world.granted("o-1").await;
        calls::fail(world.agent(), failure(&granted, FailureKind::OutcomeUnknown, "http_504")).await.unwrap();
        assert_eq!(world.state(&granted).await, (IntentState::Unknown, true));
        assert_eq!(world.pass().await.looked, []);
        world.stop().await;
    }
}
