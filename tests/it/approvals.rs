//! Approvals: cases 2, 7 and 36, and what can go wrong around a person's decision.

use std::{collections::BTreeSet, time::Duration};

use intent_ledger::proto::v1::{
    BeginRequest, Decision, EventKind, FailureKind, IntentState, IntentView, ListIntentsRequest,
    LookupRequest, Provenance, Reason, ReconcileRequest, ReconcileResponse, Resolution, Verdict,
};
use tokio::task::JoinSet;
use tonic::Code;

use crate::{
    on_both_stores,
    support::{
        calls::{
            Agent, BeginResponseExt as _, Operator, approval, approve, begin, by_key, charge,
            completed, completion, denial, deny, error_of, expect, fail, failure, key_of, keyed,
            kinds, look, metadata, reason, refused, resolution, resolve, span, with_attempt,
        },
        process::ServerProcess,
        server::{TestServer, TestStore},
    },
};

const HOUR: Duration = Duration::from_secs(3600);

const POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
[tools.charge]
identity = ["/order"]
free_text = ["/memo"]
approval = { when = "args.amount > 100", expires = "72h", valid_for = "1h" }
downstream.key_format = "uuid"
"#;

/// A call that needs a person, by a caller with a name.
fn large(order: &str) -> BeginRequest {
    BeginRequest { caller: "worker-1".into(), ..charge(order, 1200, "memo") }
}

async fn proposed(agent: &Agent, request: BeginRequest) -> String {
    let answer = expect(agent, request, Decision::AwaitApproval, Reason::ApprovalRequired).await;
    assert_eq!(answer.recorded().state(), IntentState::AwaitingApproval);
    assert!(answer.attempt_id.is_empty() && answer.approved_arguments_json.is_empty());
    // Its form is not settled before the grant.
    let first = answer.recorded().attempt == 0;
    assert_eq!(answer.downstream_key.is_empty(), first);
    assert_eq!(answer.recorded().downstream_key, answer.downstream_key);
    assert!(answer.model_message.contains("a person must decide"), "{}", answer.model_message);
    key_of(&answer)
}

async fn pass(agent: &Agent, request: ReconcileRequest) -> Vec<ReconcileResponse> {
    let mut stream = agent.clone().reconcile(request).await.unwrap().into_inner();
    let mut told = Vec::new();
    while let Some(one) = stream.message().await.unwrap() {
        told.push(one);
    }
    told
}

on_both_stores! {
    /// Only what the expression claims, or cannot judge, waits for a person.
    async fn the_expression_says_who_waits(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        expect(agent, charge("small", 100, "m"), Decision::Execute, Reason::New).await;
        proposed(agent, large("large")).await;
        for (n, arguments) in [
            r#"{"order":"u1"}"#,
            r#"{"order":"u2","amount":"5"}"#,
            r#"{"order":"u3","amount":18446744073709551616}"#,
            r#"{"order":"u4","amount":100.00000000000000000001}"#,
        ].into_iter().enumerate() {
            let request = keyed("charge", "", arguments);
            let answer = begin(agent, request).await;
            assert_eq!(answer.decision(), Decision::AwaitApproval, "{n}");
        }
        server.stop().await;
    }

    /// Case 36, and the whole way: proposed, seen, approved, executed once with what was seen.
    async fn what_the_approver_saw_is_executed_once(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        // Spelled in a way of its own: the approver sees these bytes and the caller gets them back.
        let spelled = r#"{ "order":"o-17", "amount":1200.0,  "memo":"caf\u00e9" }"#;
        let call = || BeginRequest { caller: "worker-1".into(), ..keyed("charge", "", spelled) };
        let key = proposed(agent, call()).await;
        proposed(agent, call()).await;
        let shown = look(agent, &key).await;
        assert_eq!(shown.arguments_json, spelled);
        assert_eq!(kinds(&shown), [EventKind::Proposed]);
        assert!(shown.expire_time.is_some());
        let basic = agent.clone().lookup(by_key(&key)).await.unwrap().into_inner().intent.unwrap();
        assert_eq!(basic.arguments_json, "", "only in the full view");

        let request = approval(&shown, "ada");
        let approved = approve(&server.operator, request.clone()).await.unwrap();
        assert_eq!((approved.state(), approved.attempt), (IntentState::Approved, 0));
        let at = |time: Option<prost_types::Timestamp>| time.unwrap().seconds;
        let (until, asked) = (at(approved.expire_time), at(shown.create_time));
        assert!((3600..3660).contains(&(until - asked)), "{until} {asked}");
        // The same decision again is OK though its etag is stale by now; the opposite is too late.
        approve(&server.operator, request).await.unwrap();
        assert_eq!(error_of(deny(&server.operator, denial(&shown, "ada")).await), "ALREADY_DECIDED");

        // Case 36: another amount is not what was approved, and does not spend it.
        let other = BeginRequest { arguments_json: r#"{"order":"o-17","amount":1201}"#.into(), ..call() };
        let error = refused(agent, other, "PARAMETERS_CHANGED").await;
        assert_eq!(metadata(&error, "pointers"), "/amount");
        // The model has reworded the memo meanwhile.
        let reworded =
            BeginRequest { arguments_json: r#"{"order":"o-17","amount":1200,"memo":"tea"}"#.into(), ..call() };
        let granted = expect(agent, reworded.clone(), Decision::Execute, Reason::Approved).await;
        assert_eq!(granted.approved_arguments_json, spelled);
        assert_eq!(granted.downstream_key.len(), 36);
        assert_eq!(granted.warnings, ["free_text_changed"]);
        expect(agent, call(), Decision::Hold, Reason::InFlight).await;
        let resent = with_attempt(reworded, &granted.attempt_id);
        let resent = expect(agent, resent, Decision::Execute, Reason::Resent).await;
        assert_eq!(resent.approved_arguments_json, spelled, "the same answer again");
        agent.clone().complete(completion(&granted, b"1")).await.unwrap();
        expect(agent, call(), Decision::Replay, Reason::Completed).await;
        let done = look(agent, &key).await;
        assert_eq!(done.arguments_json, "", "nobody needs them any more");
        let people: Vec<_> = done.events.iter().map(|it| (it.kind(), it.actor.as_str(), it.note.as_str())).collect();
        assert_eq!(people, [
            (EventKind::Proposed, "worker-1", ""),
            (EventKind::Approved, "ada", "it is right"),
        ]);
        server.stop().await;
    }

    /// Case 36: the proposer never approves. Without credentials, by the name that it gave.
    async fn whoever_proposed_it_does_not_approve_it(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let key = proposed(&server.agent, large("o-1")).await;
        let shown = look(&server.agent, &key).await;
        for own in ["worker-1", " Worker-1"] {
            let error = approve(&server.operator, approval(&shown, own)).await.unwrap_err();
            assert_eq!((error.code(), reason(&error).as_str()), (Code::PermissionDenied, "PERMISSION_DENIED"));
            assert_eq!(metadata(&error, "effectMayHaveHappened"), "false");
        }
        assert_eq!(look(&server.agent, &key).await, shown);
        // It may well take it back.
        deny(&server.operator, denial(&shown, "worker-1")).await.unwrap();
        server.stop().await;
    }

    /// Case 36: a yes is good for as long as the policy says; then a person is asked anew.
    async fn a_yes_runs_out(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let key = proposed(agent, large("o-1")).await;
        approve(&server.operator, approval(&look(agent, &key).await, "ada")).await.unwrap();
        server.store.age(HOUR + Duration::from_secs(1)).await;
        proposed(agent, large("o-1")).await;
        let shown = look(agent, &key).await;
        assert_eq!(kinds(&shown), [EventKind::Proposed, EventKind::Approved, EventKind::Proposed]);
        approve(&server.operator, approval(&shown, "ada")).await.unwrap();
        let granted = expect(agent, large("o-1"), Decision::Execute, Reason::Approved).await;
        // A retry inside its validity rests on it, with the same arguments; after it a person is asked anew.
        fail(agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        let again = expect(agent, large("o-1"), Decision::Execute, Reason::Retry).await;
        assert_eq!(again.approved_arguments_json, large("o-1").arguments_json);
        fail(agent, failure(&again, FailureKind::NotExecuted, "y")).await.unwrap();
        server.store.age(HOUR + Duration::from_secs(1)).await;
        proposed(agent, large("o-1")).await;
        server.stop().await;
    }

    async fn a_no_is_final_until_a_person_reopens_it(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let key = proposed(agent, large("o-1")).await;
        let shown = look(agent, &key).await;
        let denied = deny(&server.operator, denial(&shown, "ada")).await.unwrap();
        assert_eq!((denied.state(), denied.provenance()), (IntentState::Denied, Provenance::Operator));
        assert_eq!((denied.settled_by.as_str(), denied.settle_note.as_str()), ("ada", "it is wrong"));
        deny(&server.operator, denial(&shown, "bob")).await.unwrap();
        assert_eq!(error_of(approve(&server.operator, approval(&shown, "ada")).await), "ALREADY_DECIDED");
        let answer = expect(agent, large("o-1"), Decision::Refuse, Reason::Denied).await;
        assert!(answer.model_message.contains("a person said no"), "{}", answer.model_message);
        server.store.age(100 * 24 * HOUR).await;
        expect(agent, large("o-1"), Decision::Refuse, Reason::Denied).await;
        let word = resolution(agent, &key, Resolution::NotExecuted).await;
        let reopened = resolve(&server.operator, word).await.unwrap();
        assert_eq!(reopened.state(), IntentState::AwaitingApproval);
        let shown = look(agent, &key).await;
        assert_eq!(shown.arguments_json, large("o-1").arguments_json, "there is something to decide on");
        approve(&server.operator, approval(&shown, "ada")).await.unwrap();
        expect(agent, large("o-1"), Decision::Execute, Reason::Approved).await;
        server.stop().await;
    }

    /// One wins, the other is told; the row says which.
    async fn of_a_yes_and_a_no_at_once_one_wins(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(POLICY)).await;
        let b = TestServer::on(store.clone(), Some(POLICY)).await;
        for round in 0..25 {
            let key = proposed(&a.agent, large(&format!("o-{round}"))).await;
            let shown = look(&a.agent, &key).await;
            let mut people = JoinSet::new();
            for person in 0..6_usize {
                let operator = [&a, &b][person / 2 % 2].operator.clone();
                let shown = shown.clone();
                people.spawn(async move {
                    let name = format!("person-{person}");
                    let yes = person % 2 == 0;
                    let said = if yes {
                        approve(&operator, approval(&shown, &name)).await
                    } else {
                        deny(&operator, denial(&shown, &name)).await
                    };
                    (yes, said)
                });
            }
            let said = people.join_all().await;
            let state = look(&b.agent, &key).await.state();
            let won = state == IntentState::Approved;
            assert!(won || state == IntentState::Denied, "{state:?}");
            for (yes, said) in said {
                match said {
                    Ok(intent) => assert_eq!((intent.state(), yes), (state, won)),
                    Err(error) => {
                        assert_eq!((reason(&error).as_str(), yes), ("ALREADY_DECIDED", !won));
                    }
                }
            }
        }
        a.stop().await;
        b.stop().await;
    }

    /// Whoever looked at an older version looks again.
    async fn a_stale_etag_decides_nothing(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let key = proposed(agent, large("o-1")).await;
        let first = look(agent, &key).await;
        server.store.age(73 * HOUR).await;
        proposed(agent, large("o-1")).await;
        let error = approve(&server.operator, approval(&first, "ada")).await.unwrap_err();
        let second = look(agent, &key).await;
        assert_eq!((reason(&error).as_str(), metadata(&error, "etag")), ("ETAG_MISMATCH", second.etag.clone()));
        for (field, request) in [
            ("etag", { let mut it = approval(&second, "ada"); it.etag.clear(); it }),
            ("reason", { let mut it = approval(&second, "ada"); it.reason.clear(); it }),
            ("actor", approval(&second, "")),
        ] {
            let error = approve(&server.operator, request).await.unwrap_err();
            assert!(error.message().starts_with(&format!("{field}: ")), "{}", error.message());
        }
        approve(&server.operator, approval(&second, "ada")).await.unwrap();
        // What never awaited anybody has nothing to decide; what is not there is not found.
        let plain = completed(agent, charge("small", 1, "m"), b"1").await;
        assert_eq!(error_of(approve(&server.operator, approval(&plain, "ada")).await), "NOT_STARTED");
        let mut absent = approval(&second, "ada");
        absent.key = "ab".repeat(32);
        assert_eq!(error_of(approve(&server.operator, absent).await), "INTENT_NOT_FOUND");
        server.stop().await;
    }

    /// Exactly one of many gets the EXECUTE that a yes is good for.
    async fn a_yes_is_good_for_one(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(POLICY)).await;
        let b = TestServer::on(store.clone(), Some(POLICY)).await;
        let key = proposed(&a.agent, large("o-1")).await;
        approve(&a.operator, approval(&look(&a.agent, &key).await, "ada")).await.unwrap();
        let mut callers = JoinSet::new();
        for caller in 0..60_usize {
            let agent = [&a, &b][caller % 2].agent.clone();
            callers.spawn(async move { begin(&agent, large("o-1")).await });
        }
        let answers = callers.join_all().await;
        let executed: Vec<_> = answers.iter().filter(|it| it.decision() == Decision::Execute).collect();
        assert_eq!(executed.len(), 1);
        assert_eq!(executed[0].reason(), Reason::Approved);
        assert_eq!(executed[0].approved_arguments_json, large("o-1").arguments_json);
        for held in answers.iter().filter(|it| it.decision() != Decision::Execute) {
            assert_eq!((held.decision(), held.reason()), (Decision::Hold, Reason::InFlight));
        }
        a.stop().await;
        b.stop().await;
    }

    /// Case 7: a resume of the run replays; a fork asks a person anew although its twin was approved.
    async fn nothing_is_inherited_by_another_key(kind) {
        let policy = POLICY.replace("scope = \"namespace\"", "scope = \"run\"");
        let server = TestServer::with_policy(kind, &policy).await;
        let agent = &server.agent;
        let in_run = |run: &str| {
            let mut request = large("o-1");
            request.identity.as_mut().unwrap().run_id = run.into();
            request
        };
        let key = proposed(agent, in_run("r1")).await;
        approve(&server.operator, approval(&look(agent, &key).await, "ada")).await.unwrap();
        let granted = expect(agent, in_run("r1"), Decision::Execute, Reason::Approved).await;
        agent.clone().complete(completion(&granted, b"1")).await.unwrap();
        expect(agent, in_run("r1"), Decision::Replay, Reason::Completed).await;
        let fork = proposed(agent, in_run("r2")).await;
        assert_ne!(fork, key);
        // Nor by a weak key, which the next rewording would evade.
        let mut weak = keyed("charge", "", r#"{"amount":5}"#);
        let identity = weak.identity.as_mut().unwrap();
        (identity.run_id, identity.step_id) = ("r3".into(), "s".into());
        let bare = policy.replace("identity = [\"/order\"]\n", "").replace("version = 1", "version = 2");
        server.offer(&bare).await;
        refused(agent, weak, "WEAK_KEY").await;
        server.stop().await;
    }

    /// Case 2: a batch of two, the one done, the other waiting for a person; the resume repeats both.
    async fn a_resume_replays_what_is_done_and_waits_for_the_rest(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        completed(agent, charge("mail", 1, "m"), b"sent").await;
        let key = proposed(agent, large("ask")).await;
        for _ in 0..3 {
            let mail = expect(agent, charge("mail", 1, "m"), Decision::Replay, Reason::Completed).await;
            assert_eq!(mail.recorded().result.as_deref(), Some(&b"sent"[..]));
            assert_eq!(proposed(agent, large("ask")).await, key);
        }
        assert_eq!(server.store.count_intents().await, 2);
        server.stop().await;
    }

    /// The orchestrator waits with Lookup; the decision comes at another replica.
    async fn a_waiting_lookup_hears_of_the_decision(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(POLICY)).await;
        let b = TestServer::on(store.clone(), Some(POLICY)).await;
        for (order, yes) in [("o-1", true), ("o-2", false)] {
            let key = proposed(&a.agent, large(order)).await;
            let waits = LookupRequest { wait: Some(span(60)), ..by_key(&key) };
            let waiting = tokio::spawn({
                let mut agent = a.agent.clone();
                async move { agent.lookup(waits).await.unwrap().into_inner().intent.unwrap() }
            });
            let shown = look(&b.agent, &key).await;
            let state = if yes {
                approve(&b.operator, approval(&shown, "ada")).await.unwrap().state()
            } else {
                deny(&b.operator, denial(&shown, "ada")).await.unwrap().state()
            };
            let heard = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
            assert_eq!(heard.state(), state);
        }
        a.stop().await;
        b.stop().await;
    }

    /// Nobody decides: the sweep says so, without asking anybody, and tells it as the policy's word.
    async fn a_proposal_runs_out_by_the_sweep(kind) {
        // One tool that can be asked about and one that cannot.
        let policy = format!(
            "{POLICY}[tools.wire]\nidentity = [\"/order\"]\napproval = {{ expires = \"1h\" }}\n\
             [tools.wire.downstream.status]\ngrpc.target = \"http://127.0.0.1:9\"\nvisibility = \"1m\"\n"
        );
        let server = TestServer::with_policy(kind, &policy).await;
        let agent = &server.agent;
        let charge = proposed(agent, large("o-1")).await;
        let wire = proposed(agent, keyed("wire", "", r#"{"order":"o-2"}"#)).await;
        let decided = proposed(agent, large("o-3")).await;
        approve(&server.operator, approval(&look(agent, &decided).await, "ada")).await.unwrap();
        let told = pass(agent, ReconcileRequest::default()).await;
        assert_eq!(told.len(), 1, "nothing is due: {told:?}");

        server.store.age(2 * HOUR).await;
        let dry = ReconcileRequest { dry_run: true, ..ReconcileRequest::default() };
        assert_eq!(pass(agent, dry).await[0].state_after(), IntentState::Denied);
        assert_eq!(look(agent, &wire).await.state(), IntentState::AwaitingApproval);
        let told = pass(agent, ReconcileRequest::default()).await;
        let expired: BTreeSet<&str> = told[..2].iter().map(|it| it.key.as_str()).collect();
        assert_eq!(expired, BTreeSet::from([wire.as_str(), decided.as_str()]));
        assert!(told[..2].iter().all(|it| it.verdict() == Verdict::Expired), "{told:?}");
        assert_eq!(told[2].totals.as_ref().unwrap().expired_count, 2);
        assert_eq!(look(agent, &decided).await.state(), IntentState::Denied, "a yes that nobody used");
        assert_eq!(look(agent, &charge).await.state(), IntentState::AwaitingApproval);

        server.store.age(71 * HOUR).await;
        let told = pass(agent, ReconcileRequest::default()).await;
        assert_eq!(told[0].verdict(), Verdict::Expired);
        let over = look(agent, &charge).await;
        assert_eq!((over.state(), over.provenance()), (IntentState::Denied, Provenance::Policy));
        assert_eq!(kinds(&over), [EventKind::Proposed, EventKind::ApprovalExpired]);
        assert_eq!(pass(agent, ReconcileRequest::default()).await.len(), 1, "it is off the agenda");
        // A decision comes too late; the next call asks anew.
        assert_eq!(error_of(approve(&server.operator, approval(&over, "ada")).await), "ALREADY_DECIDED");
        proposed(agent, large("o-1")).await;
        server.store.age(73 * HOUR).await;
        let told = pass(agent, ReconcileRequest { key: charge.clone(), ..ReconcileRequest::default() }).await;
        assert_eq!(told[0].verdict(), Verdict::Expired, "the second proposal too");
        server.stop().await;
    }

    /// An endpoint that answers nothing for hours holds up no proposal of its tool.
    async fn a_proposal_runs_out_whatever_ails_the_downstream(kind) {
        let policy = format!(
            "{POLICY}[tools.wire]\nidentity = [\"/order\"]\n\
             approval = {{ when = \"args.big\", expires = \"1h\" }}\n\
             [tools.wire.downstream.status]\ngrpc.target = \"http://127.0.0.1:9\"\nvisibility = \"1m\"\n"
        );
        let server = TestServer::with_policy(kind, &policy).await;
        let agent = &server.agent;
        let wire = |n: usize, big: bool| keyed("wire", "", &format!(r#"{{"order":"{n}","big":{big}}}"#));
        for n in 0..30 {
            expect(agent, wire(n, false), Decision::Execute, Reason::New).await;
        }
        let key = proposed(agent, wire(30, true)).await;
        server.store.age(Duration::from_secs(600)).await;
        let told = pass(agent, ReconcileRequest::default()).await;
        assert!(told.iter().filter(|it| it.verdict() == Verdict::Unreachable).count() >= 10, "{told:?}");
        server.store.age(HOUR).await;
        let told = pass(agent, ReconcileRequest::default()).await;
        let expired = told.iter().find(|it| it.key == key).expect("it is not held up");
        assert_eq!(expired.verdict(), Verdict::Expired);
        server.stop().await;
    }

    /// Unswept, a late decision and the next Begin both find out by themselves.
    async fn a_proposal_runs_out_without_a_sweep(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let key = proposed(agent, large("o-1")).await;
        let shown = look(agent, &key).await;
        server.store.age(73 * HOUR).await;
        let aged = look(agent, &key).await;
        assert_eq!(error_of(approve(&server.operator, approval(&shown, "ada")).await), "ETAG_MISMATCH");
        assert_eq!(error_of(approve(&server.operator, approval(&aged, "ada")).await), "ALREADY_DECIDED");
        assert_eq!(look(agent, &key).await.state(), IntentState::Denied);
        proposed(agent, large("o-1")).await;
        server.store.age(73 * HOUR).await;
        proposed(agent, large("o-1")).await;
        let shown = look(agent, &key).await;
        approve(&server.operator, approval(&shown, "ada")).await.unwrap();
        server.stop().await;
    }

    /// Two servers sweep, a person decides and callers ask, all at the very end of a proposal.
    async fn whoever_comes_first_at_the_end_of_a_proposal_decides(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(POLICY)).await;
        let b = TestServer::on(store.clone(), Some(POLICY)).await;
        for round in 0..8 {
            let order = format!("o-{round}");
            let key = proposed(&a.agent, large(&order)).await;
            store.age(73 * HOUR).await;
            let shown = look(&a.agent, &key).await;
            let all = ReconcileRequest::default;
            let (.., said, asked) = tokio::join!(
                pass(&a.agent, all()),
                pass(&b.agent, all()),
                approve(&b.operator, approval(&shown, "ada")),
                begin(&a.agent, large(&order)),
            );
            let late = error_of(said);
            assert!(["ALREADY_DECIDED", "ETAG_MISMATCH"].contains(&late.as_str()), "{late}");
            assert_eq!(asked.decision(), Decision::AwaitApproval);
            assert_eq!(look(&b.agent, &key).await.state(), IntentState::AwaitingApproval, "asked anew");
        }
        a.stop().await;
        b.stop().await;
    }

    /// Proposal and yes survive kill -9, and with them what was seen.
    async fn a_decision_survives_a_restart(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(POLICY), &[]).await;
        let key = proposed(&server.client().await, large("o-1")).await;
        server.kill9();
        server.restart().await;
        let shown = look(&server.client().await, &key).await;
        assert_eq!(shown.arguments_json, large("o-1").arguments_json);
        let operator = Operator::new(server.channel().await);
        approve(&operator, approval(&shown, "ada")).await.unwrap();
        server.kill9();
        server.restart().await;
        let agent = server.client().await;
        let granted = expect(&agent, large("o-1"), Decision::Execute, Reason::Approved).await;
        assert_eq!(granted.approved_arguments_json, large("o-1").arguments_json);
        server.terminate().await;
    }

    /// A report of what nobody had approved: recorded, and no yes can follow.
    async fn acting_without_approval_is_for_a_person(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let asked = begin(agent, large("o-1")).await;
        let shown = look(agent, &key_of(&asked)).await;
        let mut report = completion(&asked, b"1");
        report.attempt_id = crate::support::calls::attempt();
        assert_eq!(error_of(agent.clone().complete(report).await), "NOT_STARTED");
        let after = look(agent, &key_of(&asked)).await;
        assert_eq!((after.state(), after.needs_attention), (IntentState::Unknown, true));
        assert_eq!(error_of(approve(&server.operator, approval(&shown, "ada")).await), "ALREADY_DECIDED");
        assert_eq!(error_of(approve(&server.operator, approval(&after, "ada")).await), "ALREADY_DECIDED");
        expect(agent, large("o-1"), Decision::Hold, Reason::NeedsAttention).await;
        server.stop().await;
    }

    async fn what_awaits_a_person_is_listed_with_what_there_is_to_see(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let key = proposed(&server.agent, large("o-1")).await;
        begin(&server.agent, charge("small", 1, "m")).await;
        for (view, arguments) in [
            (IntentView::Basic, String::new()),
            (IntentView::Full, large("o-1").arguments_json),
        ] {
            let request = ListIntentsRequest {
                states: vec![IntentState::AwaitingApproval.into()],
                view: view.into(),
                ..ListIntentsRequest::default()
            };
            let listed = server.operator.clone().list_intents(request).await.unwrap().into_inner().intents;
            assert_eq!((listed.len(), listed[0].key.as_str()), (1, key.as_str()));
            assert_eq!(listed[0].arguments_json, arguments);
        }
        // A page of large arguments is cut before it is too much for a client.
        let memo = "m".repeat(200 * 1024);
        for n in 0..40 {
            let request = charge(&format!("big-{n}"), 1200, &memo);
            proposed(&server.agent, request).await;
        }
        let request = ListIntentsRequest {
            states: vec![IntentState::AwaitingApproval.into()],
            view: IntentView::Full.into(),
            ..ListIntentsRequest::default()
        };
        let page = server.operator.clone().list_intents(request).await.unwrap().into_inner();
        assert!((1..40).contains(&page.intents.len()) && !page.next_page_token.is_empty());
        server.stop().await;
    }
}
