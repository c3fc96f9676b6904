//! What the downstream says, and what becomes of the intent.

use intent_ledger::{
    domain::identity::Key,
    downstream::{Outage, OutageMode},
    ids,
    proto::v1::{Provenance, ReconcileRequest},
    store::{DownstreamObject, agenda::ToolKey},
};
use tonic::Code;

use super::*;
use crate::{
    on_both_stores,
    support::{
        calls::{complete, completion, extend, failure, kinds},
        load::wait_until,
    },
};

/// An object has settled one intent; another one, whose downstream names it too, goes to a person.
async fn an_object_is_taken(kind: Kind, faults: &str) {
    let world = World::new(kind).await;
    let one = world.abandoned("o-1", "status_shared_ref").await;
    world.wait(MINUTE).await;
    assert_eq!(world.pass().await.verdicts(), [Verdict::Completed]);
    let two = world.abandoned("o-2", faults).await;
    world.wait(MINUTE).await;
    assert_eq!(world.pass().await.verdicts(), [Verdict::Duplicated]);
    assert_eq!(world.state(&one).await, (IntentState::Completed, false));
    assert_eq!(world.state(&two).await, (IntentState::Unknown, true));
    world.stop().await;
}

on_both_stores! {
    /// The caller dies between the effect and Complete.
    async fn an_effect_that_nobody_reported_is_found_and_replayed(kind) {
        let world = World::new(kind).await;
        let granted = world.granted("o-17").await;
        let receipt = world.downstream.send(&granted, "").await.expect("an answer");
        assert_eq!(world.pass().await.looked, [], "its lease runs");
        world.wait(MINUTE).await;
        let pass = world.pass().await;
        assert_eq!(pass.verdicts(), [Verdict::Completed]);
        let told = &pass.looked[0];
        assert_eq!((told.state_before(), told.state_after()), (IntentState::Started, IntentState::Completed));
        assert_eq!((told.probe_count, told.tool.as_str(), told.namespace.as_str()), (1, "charge", "default"));
        assert_eq!((pass.totals.completed_count, pass.totals.attention_waiting_count), (1, 0));

        let intent = world.look(&granted).await;
        assert_eq!(intent.provenance(), Provenance::Reconciler);
        assert_eq!((intent.result, intent.downstream_ref.as_str()), (Some(receipt.clone().into_bytes()), "eff-1"));
        assert_eq!(intent.result_content_type, "application/json");
        let replay = expect(world.agent(), charge("o-17", 1200, "b"), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.intent.unwrap().result, Some(receipt.into_bytes()));
        assert_eq!(world.downstream.running.sent_count(), 1);
        // It is off the agenda: nothing more is asked.
        world.wait(MINUTE * 60).await;
        assert_eq!(world.pass().await.looked, []);
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
        world.stop().await;
    }

    /// Case 30: absent 5 s after the start proves nothing; past visibility and spaced it does.
    async fn an_absence_is_believed_late_and_twice(kind) {
        let world = World::new(kind).await;
        let granted = world.granted("o-17").await;
        world.wait(SECOND * 5).await;
        assert_eq!(world.verdict(&granted).await, Verdict::NotAsked, "its lease runs");
        world.wait(MINUTE).await;
        for _ in 0..3 {
            assert_eq!(world.verdict(&granted).await, Verdict::Absent);
            assert_eq!(world.state(&granted).await, (IntentState::Started, false));
        }
        world.wait(MINUTE * 2).await;
        assert_eq!(world.verdict(&granted).await, Verdict::Absent, "the first that counts");
        assert_eq!(world.verdict(&granted).await, Verdict::Absent, "too close to it");
        assert_eq!(world.state(&granted).await, (IntentState::Started, false));
        world.wait(MINUTE).await;
        assert_eq!(world.verdict(&granted).await, Verdict::NotExecuted);
        assert_eq!(world.state(&granted).await, (IntentState::Failed, false));
        let again = expect(world.agent(), charge("o-17", 1200, "a"), Decision::Execute, Reason::Retry).await;
        assert_eq!(again.intent.unwrap().attempt, 2);
        world.stop().await;
    }

    /// Case 30: 503, time-outs and refused connections change nothing and count nothing, be it between two
    /// absences. A fresh server each time: the circuit that opens goes by the machine's clock.
    async fn an_outage_changes_and_counts_nothing(kind) {
        for mode in OutageMode::ALL {
            let world = World::hurried(kind, "100ms").await;
            let mut all = Vec::new();
            for n in 0..40 {
                all.push(world.granted(&format!("o-{n}")).await);
            }
            world.wait(MINUTE * 10).await;
            // A question that was answered, so that an absence is on record.
            assert_eq!(world.verdict(&all[0]).await, Verdict::Absent, "{mode:?}");
            let before = world.server.store.rows().await;
            world.downstream.running.set_outage(Outage { mode, span: None }).await;
            let pass = world.pass().await;
            assert!(pass.looked.len() >= 32, "{mode:?}: {} looked at", pass.looked.len());
            assert!(pass.verdicts().iter().all(|it| *it == Verdict::Unreachable), "{mode:?}");
            let totals = pass.totals;
            assert_eq!(totals.unreachable_count, totals.looked_at_count, "{mode:?}");
            assert_eq!((totals.needs_attention_count, totals.attention_waiting_count), (0, 0), "{mode:?}");
            assert_eq!((totals.unchanged_count, totals.failed_look_count), (totals.looked_at_count, 0), "{mode:?}");
            assert_eq!(world.server.store.rows().await, before, "{mode:?}: every column is as it was");
            // The first absence still stands: one more, spaced, and it did not happen.
            world.downstream.running.end_outage().await;
            world.wait(MINUTE * 2).await;
            wait_until("the circuit lets a question through", async || {
                world.verdict(&all[0]).await != Verdict::Unreachable
            })
            .await;
            assert_eq!(world.state(&all[0]).await, (IntentState::Failed, false), "{mode:?}");
            for granted in &all[1..] {
                let intent = world.look(granted).await;
                assert_eq!((intent.state(), intent.needs_attention), (IntentState::Started, false), "{mode:?}");
                assert_eq!(kinds(&intent), [], "{mode:?}");
            }
            world.stop().await;
        }
    }

    /// A dry run asks everything that is due, a few at a time, and changes nothing.
    async fn a_dry_run_asks_all_that_is_due(kind) {
        let world = World::hurried(kind, "1s").await;
        for n in 0..200 {
            world.abandoned(&format!("o-{n}"), "status_slow=300ms").await;
        }
        world.wait(MINUTE).await;
        let before = world.server.store.rows().await;
        let dry = ReconcileRequest { dry_run: true, ..ReconcileRequest::default() };
        let pass = world.pass_with(dry).await;
        assert_eq!(pass.verdicts(), [Verdict::Completed; 200]);
        assert!(!pass.totals.limit_reached);
        assert_eq!(world.server.store.rows().await, before);
        assert_eq!(world.pass().await.totals.completed_count, 200);
        world.stop().await;
    }

    /// Names that no intent can have are refused, and a key's tool must be its own.
    async fn a_pass_checks_its_names(kind) {
        let world = World::new(kind).await;
        let granted = world.granted("o-17").await;
        let refused = async |request: ReconcileRequest| {
            let mut agent = world.agent().clone();
            let answer = agent.reconcile(request).await;
            match answer {
                Ok(stream) => stream.into_inner().message().await.unwrap_err(),
                Err(status) => status,
            }
        };
        let plain = ReconcileRequest::default;
        for (request, field) in [
            (ReconcileRequest { tool: "a\0b".into(), ..plain() }, "tool"),
            (ReconcileRequest { namespace: "n".repeat(256), ..plain() }, "namespace"),
            (ReconcileRequest { limit: -1, ..plain() }, "limit"),
        ] {
            let status = refused(request).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{field}");
            assert!(status.message().starts_with(field), "{}", status.message());
        }
        let other = ReconcileRequest { key: key_of(&granted), tool: "mail".into(), ..plain() };
        assert_eq!(refused(other).await.code(), Code::NotFound);
        world.stop().await;
    }

    /// Case 31: what the policy does not claim changes nothing.
    async fn an_answer_that_fits_no_rule_changes_nothing(kind) {
        let world = World::new(kind).await;
        for (n, fault) in ["status_unmapped", "status_html", "status_other_key", "status_redirect"].iter().enumerate() {
            let granted = world.abandoned(&format!("o-{n}"), fault).await;
            world.wait(MINUTE * 10).await;
            let pass = world.pass().await;
            assert_eq!(pass.verdicts(), [Verdict::Unmapped], "{fault}");
            assert!(!pass.looked[0].note.is_empty(), "{fault}");
            assert_eq!(world.state(&granted).await, (IntentState::Started, false), "{fault}");
            assert_eq!(world.again(charge(&format!("o-{n}"), 1200, "a")).await, (Decision::Hold, Reason::OutcomeUnknown));
            // Until it has been asked for long enough.
            world.wait(MINUTE * 60 * 24).await;
            assert_eq!(world.pass().await.verdicts(), [Verdict::Unmapped], "{fault}");
            assert_eq!(world.state(&granted).await, (IntentState::Unknown, true), "{fault}");
            assert_eq!(world.pass().await.totals.attention_waiting_count, n as i64 + 1);
        }
        world.stop().await;
    }

    /// Case 32: two objects for one key.
    async fn two_objects_for_one_key_are_a_conflict(kind) {
        let world = World::new(kind).await;
        let granted = world.abandoned("o-17", "twice").await;
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Duplicated]);
        let intent = world.look(&granted).await;
        assert_eq!((intent.state(), intent.conflict, intent.needs_attention), (IntentState::Completed, true, true));
        let references: Vec<&str> = intent.events.iter().map(|it| it.downstream_ref.as_str()).collect();
        assert!(references.contains(&"eff-1") && references.contains(&"eff-2"), "{references:?}");
        world.stop().await;
    }

    /// Case 32: one id of the downstream never settles two keys, be they looked at in one pass or not.
    async fn one_object_settles_one_key_only(kind) {
        an_object_is_taken(kind, "status_shared_ref").await;

        let world = World::new(kind).await;
        let one = world.abandoned("o-1", "status_shared_ref").await;
        let two = world.abandoned("o-2", "status_shared_ref").await;
        world.wait(MINUTE).await;
        let mut verdicts = world.pass().await.verdicts();
        verdicts.sort();
        assert_eq!(verdicts, [Verdict::Completed, Verdict::Duplicated]);
        let states = [world.state(&one).await, world.state(&two).await];
        assert!(states.contains(&(IntentState::Completed, false)), "{states:?}");
        assert!(states.contains(&(IntentState::Unknown, true)), "{states:?}");
        world.stop().await;
    }

    /// Nor does an id that stands beside another one, in whichever order they are found.
    async fn each_of_several_objects_settles_one_key_only(kind) {
        let world = World::new(kind).await;
        let both = world.abandoned("o-1", "twice").await;
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Duplicated]);
        // The second of them stands in an event only.
        assert_eq!(world.look(&both).await.downstream_ref, "eff-1");
        let store = world.server.store.open().await;
        let object = |reference: &str| DownstreamObject {
            tool: ToolKey { namespace: "default".into(), tool: "charge".into() },
            downstream_ref: reference.into(),
            row: ids::random(),
        };
        let objects = ["eff-1", "eff-2", "eff-3"].map(object);
        let others = store.others_with_references(&objects).await.unwrap();
        let owner: Key = both.intent.unwrap().key.parse().unwrap();
        assert_eq!(others, [Some(owner), Some(owner), None]);
        world.stop().await;

        an_object_is_taken(kind, "twice,status_shared_ref").await;
    }

    /// Two that were settled by one object are found out even if both askers died before they saw it: what they
    /// left on the agenda tells the next one.
    async fn a_shared_object_is_found_out_after_the_askers_died(kind) {
        let world = World::new(kind).await;
        let one = world.abandoned("o-1", "").await;
        let two = world.abandoned("o-2", "").await;
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Completed, Verdict::Completed]);
        // As it is where two servers are killed between the verdict and what follows.
        let store = &world.server.store;
        store.sql("UPDATE intents SET downstream_ref = 'eff-1'").await;
        store.sql("DELETE FROM events").await;
        let left = "INSERT INTO open_intents (id, namespace, tool, due_at)
            SELECT id, namespace, tool, created_at FROM intents WHERE run_id = ''";
        assert_eq!(store.sql(left).await, 2);
        assert_eq!(world.pass().await.looked, []);
        for granted in [&one, &two] {
            let intent = world.look(granted).await;
            assert_eq!(intent.state(), IntentState::Completed);
            assert!(intent.conflict && intent.needs_attention);
        }
        assert_eq!(store.sql("DELETE FROM open_intents").await, 0, "they are given back");
        world.stop().await;
    }

    async fn what_is_still_running_is_asked_again(kind) {
        let world = World::new(kind).await;
        let granted = world.abandoned("o-17", "late_effect=3s").await;
        world.wait(MINUTE * 10).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Running]);
        assert_eq!(world.state(&granted).await, (IntentState::Started, false));
        world.downstream.running.until(|it| it.sent_count() == 1).await;
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Completed]);
        world.stop().await;
    }

    /// Late visibility is what `visibility` is for: the status first says that it is absent.
    async fn an_effect_that_shows_late_is_found(kind) {
        let world = World::new(kind).await;
        let granted = world.abandoned("o-17", "late_visibility=300ms").await;
        world.wait(MINUTE).await;
        assert_eq!(world.verdict(&granted).await, Verdict::Absent);
        let key = granted.downstream_key.clone();
        // The simulator tells time by the host's clock, which nobody can age.
        loop {
            world.wait(SECOND).await;
            match world.verdict(&granted).await {
                Verdict::Absent => assert_eq!(world.state(&granted).await.0, IntentState::Started),
                verdict => break assert_eq!(verdict, Verdict::Completed),
            }
        }
        assert!(world.downstream.running.questions(&key) >= 2);
        world.stop().await;
    }

    /// Once the downstream gave a reference, its not knowing anything proves nothing.
    async fn an_absence_after_a_reference_needs_a_person(kind) {
        let world = World::new(kind).await;
        let granted = world.granted("o-17").await;
        extend(world.agent(), &granted, 60, "job-7").await.unwrap();
        world.wait(MINUTE * 10).await;
        assert_eq!(world.verdict(&granted).await, Verdict::Absent);
        assert_eq!(world.state(&granted).await, (IntentState::Unknown, true));
        world.stop().await;
    }

    /// Case 35, and its kind: whoever settles while the probe is out wins.
    async fn a_report_that_comes_while_the_question_is_out_wins(kind) {
        let world = World::with(kind, "confirmations = 1").await;
        let granted = world.granted("o-17").await;
        world.wait(MINUTE * 10).await;
        let key = granted.downstream_key.clone();
        world.downstream.running.set_faults(
            intent_ledger::downstream::Faults::none().with_key(
                key.clone(),
                intent_ledger::downstream::Fault::list("status_slow=1s,status_lies_absent").unwrap(),
            ),
        );
        let agent = world.agent().clone();
        let pass = tokio::spawn(async move { pass(&agent, ReconcileRequest::default()).await });
        world.downstream.running.until(|it| it.questions(&key) == 1).await;
        complete(world.agent(), completion(&granted, b"1")).await.unwrap();
        assert_eq!(pass.await.unwrap().verdicts(), [Verdict::Outdated]);
        let intent = world.look(&granted).await;
        assert_eq!((intent.state(), intent.provenance()), (IntentState::Completed, Provenance::Caller));
        assert_eq!((intent.conflict, kinds(&intent)), (false, vec![]));
        world.stop().await;
    }

    /// A dry run asks and tells, and changes nothing.
    async fn a_dry_run_changes_nothing(kind) {
        let world = World::new(kind).await;
        world.abandoned("o-1", "").await;
        world.granted("o-2").await;
        world.abandoned("o-3", "twice").await;
        world.wait(MINUTE * 10).await;
        world.pass_with(ReconcileRequest { limit: 1, tool: "other".into(), ..Default::default() }).await;
        let before = world.server.store.rows().await;
        let request = ReconcileRequest { dry_run: true, ..Default::default() };
        for _ in 0..2 {
            let pass = world.pass_with(request.clone()).await;
            let mut verdicts = pass.verdicts();
            verdicts.sort();
            assert_eq!(verdicts, [Verdict::Completed, Verdict::Absent, Verdict::Duplicated]);
            assert_eq!((pass.totals.completed_count, pass.totals.unchanged_count), (2, 1));
        }
        assert_eq!(world.server.store.rows().await, before);
        // And the real one still finds them.
        assert_eq!(world.pass().await.totals.completed_count, 2);
        world.stop().await;
    }

    async fn a_pass_can_be_of_one_tool_or_bounded(kind) {
        let downstream = Downstream::start().await;
        let sections = [
            CHARGE.to_owned(),
            downstream.over_http("charge", VISIBILITY),
            "[tools.mail]\nidentity = [\"/order\"]\nscope = \"namespace\"".to_owned(),
            downstream.over_http("mail", VISIBILITY),
        ];
        let sections: Vec<&str> = sections.iter().map(String::as_str).collect();
        let server = TestServer::with_policy(kind, &policy(&sections)).await;
        let world = World { server, downstream };
        for n in 0..5 {
            world.abandoned(&format!("o-{n}"), "").await;
        }
        let mut mail = charge("o-1", 1, "a");
        mail.identity.as_mut().unwrap().tool = "mail".into();
        let mail = expect(world.agent(), mail, Decision::Execute, Reason::New).await;
        world.downstream.send(&mail, "").await;
        world.wait(MINUTE).await;
        let pass = world.pass_with(ReconcileRequest { limit: 2, tool: "charge".into(), ..Default::default() }).await;
        assert_eq!((pass.totals.completed_count, pass.totals.limit_reached), (2, true));
        let pass = world.pass_with(ReconcileRequest { tool: "mail".into(), ..Default::default() }).await;
        assert_eq!((pass.totals.completed_count, pass.totals.limit_reached), (1, false));
        let other = ReconcileRequest { namespace: "other".into(), ..Default::default() };
        assert_eq!(world.pass_with(other).await.looked, []);
        assert_eq!(world.pass().await.totals.completed_count, 3);
        let negative = ReconcileRequest { limit: -1, ..Default::default() };
        assert_eq!(world.agent().clone().reconcile(negative).await.unwrap_err().code(), Code::InvalidArgument);
        world.stop().await;
    }

    /// The limit is of the whole pass, and no endpoint takes it away from the others.
    async fn a_limit_is_shared_by_all_endpoints(kind) {
        let downstreams = [Downstream::start().await, Downstream::start().await, Downstream::start().await];
        let tools = ["charge", "mail", "ticket"];
        let sections: Vec<String> = tools.iter().zip(&downstreams).map(|(tool, downstream)| {
            let status = downstream.over_http(tool, VISIBILITY);
            format!("[tools.{tool}]\nidentity = [\"/order\"]\nscope = \"namespace\"\n{status}")
        }).collect();
        let sections: Vec<&str> = sections.iter().map(String::as_str).collect();
        let server = TestServer::with_policy(kind, &policy(&sections)).await;
        for (tool, downstream) in tools.iter().zip(&downstreams) {
            let mut request = charge("o-1", 1, "a");
            request.identity.as_mut().unwrap().tool = (*tool).into();
            let granted = expect(&server.agent, request, Decision::Execute, Reason::New).await;
            downstream.send(&granted, "").await.unwrap();
        }
        server.store.age(MINUTE).await;
        let dry = pass(&server.agent, ReconcileRequest { dry_run: true, ..Default::default() }).await;
        assert_eq!((dry.verdicts(), dry.totals.limit_reached), (vec![Verdict::Completed; 3], false));
        let one = pass(&server.agent, ReconcileRequest { limit: 1, ..Default::default() }).await;
        assert_eq!((one.verdicts(), one.totals.limit_reached), (vec![Verdict::Completed], true));
        let rest = pass(&server.agent, ReconcileRequest { limit: 3, ..Default::default() }).await;
        assert_eq!((rest.verdicts(), rest.totals.limit_reached), (vec![Verdict::Completed; 2], false));
        server.stop().await;
    }

    /// Nor does an endpoint with more than a pass may look at, whatever the order of their names.
    async fn a_long_backlog_leaves_the_other_endpoints_their_share_of_a_limit(kind) {
        let downstreams = [Downstream::start().await, Downstream::start().await];
        let tools = ["charge", "mail"];
        let sections: Vec<String> = tools.iter().zip(&downstreams).map(|(tool, downstream)| {
            let status = downstream.over_http(tool, VISIBILITY);
            format!("[tools.{tool}]\nidentity = [\"/order\"]\nscope = \"namespace\"\n{status}")
        }).collect();
        let sections: Vec<&str> = sections.iter().map(String::as_str).collect();
        let server = TestServer::with_policy(kind, &policy(&sections)).await;
        for (tool, rows) in [("charge", 40), ("mail", 40)] {
            for n in 0..rows {
                let mut request = charge(&format!("o-{n}"), 1, "a");
                request.identity.as_mut().unwrap().tool = tool.into();
                expect(&server.agent, request, Decision::Execute, Reason::New).await;
            }
        }
        server.store.age(MINUTE).await;
        let looked = async |limit| {
            let pass = pass(&server.agent, ReconcileRequest { limit, ..Default::default() }).await;
            let of = |tool| pass.looked.iter().filter(|it| it.tool == tool).count();
            (of("charge"), of("mail"), pass.totals.limit_reached)
        };
        assert_eq!(looked(10).await, (5, 5, true));
        // What one does not need the other has.
        let mail = ReconcileRequest { tool: "mail".into(), limit: 33, ..Default::default() };
        assert_eq!(pass(&server.agent, mail).await.looked.len(), 33);
        assert_eq!(looked(20).await, (18, 2, true));
        assert_eq!(looked(100).await, (17, 0, false));
        server.stop().await;
    }

    async fn a_look_at_an_intent_that_is_not_there_says_so(kind) {
        let world = World::new(kind).await;
        let request = ReconcileRequest { key: "ab".repeat(32), ..Default::default() };
        let mut stream = world.agent().clone().reconcile(request).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap_err().code(), Code::NotFound);
        let request = ReconcileRequest { key: "nonsense".into(), ..Default::default() };
        let mut stream = world.agent().clone().reconcile(request).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap_err().code(), Code::InvalidArgument);
        world.stop().await;
    }

    /// Two servers and a crowd of passes: each row is asked about once a turn.
    async fn any_number_of_passes_at_once_ask_once(kind) {
        let world = World::new(kind).await;
        let other = TestServer::on(world.server.store.clone(), None).await;
        let mut all = Vec::new();
        for n in 0..40 {
            all.push(world.abandoned(&format!("o-{n}"), "").await);
        }
        world.wait(MINUTE).await;
        let passes = (0..8).map(|n| {
            let agent = if n % 2 == 0 { world.agent() } else { &other.agent }.clone();
            tokio::spawn(async move { pass(&agent, ReconcileRequest::default()).await })
        });
        let mut completed = 0;
        for pass in passes.collect::<Vec<_>>() {
            completed += pass.await.unwrap().totals.completed_count;
        }
        assert_eq!(completed, 40);
        for granted in &all {
            assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
            assert_eq!(world.state(granted).await, (IntentState::Completed, false));
        }
        other.stop().await;
        world.stop().await;
    }

    /// In an unknown outcome nobody holds a lease any more, so the downstream is asked at once.
    async fn an_unknown_outcome_is_asked_about_at_once(kind) {
        let world = World::new(kind).await;
        let granted = world.abandoned("o-17", "effect_then_error").await;
        calls::fail(world.agent(), failure(&granted, intent_ledger::proto::v1::FailureKind::OutcomeUnknown, "http_500")).await.unwrap();
        assert_eq!(world.pass().await.verdicts(), [Verdict::Completed]);
        world.stop().await;
    }
}
