//! `limit_per_run` and `halted`: exact, whoever asks and whatever happens meanwhile.

use std::time::Duration;

use intent_ledger::{
    domain::identity::downstream_uuid,
    proto::v1::{
        BeginRequest, BeginResponse, Decision, FailureKind, IntentState, Reason, Resolution,
    },
    store::{RowKey, guards::run_of},
};
use tokio::task::JoinSet;

use crate::{
    on_both_stores,
    support::{
        calls::{
            Agent, approval, approve, begin, charge, complete, completed, completion, expect, fail,
            failure, key_of, keyed, look, refused, resolution, resolve, with_attempt,
        },
        proxy::{Fault, Proxy},
        server::{Kind, TestServer, TestStore},
    },
};

const MINUTE: Duration = Duration::from_secs(61);

fn policy(version: u32, keys: &str) -> String {
    format!(
        "version = {version}\n[defaults]\nscope = \"namespace\"\n[tools.charge]\n\
         identity = [\"/order\"]\nfree_text = [\"/memo\"]\n{keys}\n[tools.look]\n\
         class = \"read_only\"\n"
    )
}

/// Two servers on one store, and who calls them.
async fn two_servers(kind: Kind, policy: &str) -> ([TestServer; 2], [Agent; 2]) {
    let store = TestStore::new(kind).await;
    let servers = [
        TestServer::on(store.clone(), Some(policy)).await,
        TestServer::on(store, Some(policy)).await,
    ];
    let agents = servers.each_ref().map(|server| server.agent.clone());
    (servers, agents)
}

fn in_run(run: &str, order: &str) -> BeginRequest {
    let mut request = charge(order, 1200, "memo");
    request.identity.as_mut().unwrap().run_id = run.into();
    request
}

async fn execute(agent: &Agent, request: BeginRequest, reason: Reason) -> BeginResponse {
    expect(agent, request, Decision::Execute, reason).await
}

async fn no_slot(agent: &Agent, request: BeginRequest) {
    let answer = expect(agent, request, Decision::Refuse, Reason::RunLimit).await;
    assert_eq!(answer.intent, None, "nothing is recorded");
    assert!(answer.model_message.contains("limit"), "{}", answer.model_message);
}

async fn not_executed(agent: &Agent, granted: &BeginResponse) {
    fail(agent, failure(granted, FailureKind::NotExecuted, "x")).await.unwrap();
}

on_both_stores! {
    /// The storm of the issue: exactly five, and no error.
    async fn of_two_hundred_callers_over_two_servers_five_execute(kind) {
        let (two, agents) = two_servers(kind, &policy(1, "limit_per_run = 5")).await;
        let mut callers = JoinSet::new();
        for caller in 0..200 {
            let agent = agents[caller % 2].clone();
            callers.spawn(async move { begin(&agent, in_run("r", &format!("o-{caller}"))).await });
        }
        let answers = callers.join_all().await;
        let (executed, others): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.decision() == Decision::Execute);
        assert_eq!(executed.len(), 5);
        for answer in others {
            assert_eq!((answer.decision(), answer.reason()), (Decision::Refuse, Reason::RunLimit));
        }
        assert_eq!(two[0].store.count_intents().await, 5);
        // One is certain not to have happened: exactly one other gets its place.
        not_executed(&agents[0], &executed[0]).await;
        let mut callers = JoinSet::new();
        for caller in 0..40 {
            let agent = agents[caller % 2].clone();
            callers.spawn(async move { begin(&agent, in_run("r", &format!("p-{caller}"))).await });
        }
        let answers = callers.join_all().await;
        let executed = answers.iter().filter(|it| it.decision() == Decision::Execute).count();
        assert_eq!(executed, 1);
        for server in two {
            server.stop().await;
        }
    }

    async fn a_slot_is_the_runs_and_the_intents(kind) {
        let server = TestServer::with_policy(kind, &policy(1, "limit_per_run = 1")).await;
        let agent = &server.agent;
        let a = execute(agent, in_run("r1", "a"), Reason::New).await;
        no_slot(agent, in_run("r1", "b")).await;
        execute(agent, in_run("r2", "b"), Reason::New).await;
        // Repeats use up none, and are answered as ever.
        expect(agent, in_run("r1", "a"), Decision::Hold, Reason::InFlight).await;
        let again = with_attempt(in_run("r1", "a"), &a.attempt_id);
        execute(agent, again, Reason::Resent).await;
        // An outcome that nobody knows keeps it.
        fail(agent, failure(&a, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        no_slot(agent, in_run("r1", "c")).await;
        complete(agent, completion(&a, b"1")).await.unwrap();
        no_slot(agent, in_run("r1", "c")).await;
        expect(agent, in_run("r1", "a"), Decision::Replay, Reason::Completed).await;
        server.stop().await;
    }

    async fn a_failure_gives_it_back_whoever_found_out_and_a_retry_takes_one(kind) {
        let server = TestServer::with_policy(kind, &policy(1, "limit_per_run = 1")).await;
        let agent = &server.agent;
        let a = execute(agent, in_run("r", "a"), Reason::New).await;
        not_executed(agent, &a).await;
        let b = execute(agent, in_run("r", "b"), Reason::New).await;
        let refused = expect(agent, in_run("r", "a"), Decision::Refuse, Reason::RunLimit).await;
        assert_eq!(refused.intent.unwrap().state(), IntentState::Failed, "the row stays as it was");
        // A person says that nothing happened.
        server.store.age(MINUTE).await;
        let word = resolution(agent, &key_of(&b), Resolution::NotExecuted).await;
        resolve(&server.operator, word).await.unwrap();
        let a = execute(agent, in_run("r", "a"), Reason::Retry).await;
        no_slot(agent, in_run("r", "c")).await;
        // It happened after all: it counts, though its place has been given away since.
        complete(agent, completion(&b, b"1")).await.unwrap();
        not_executed(agent, &a).await;
        no_slot(agent, in_run("r", "c")).await;
        server.stop().await;
    }

    async fn a_limit_counts_for_a_run_so_a_new_call_needs_one(kind) {
        let server = TestServer::with_policy(kind, &policy(1, "limit_per_run = 1")).await;
        let error = refused(&server.agent, charge("a", 1, "m"), "RUN_REQUIRED").await;
        assert!(error.message().starts_with("identity.run_id: "), "{}", error.message());
        assert_eq!(server.store.count_intents().await, 0);
        let text = policy(1, "limit_per_run = 1").replace("identity = [\"/order\"]\n", "");
        let other = TestServer::with_policy(kind, &text).await;
        refused(&other.agent, keyed("charge", "k1", "{}"), "RUN_REQUIRED").await;
        server.stop().await;
        other.stop().await;
    }

    /// Rows of before the limit count for nothing, and are served.
    async fn a_policy_that_brings_a_limit_takes_it_from_then_on(kind) {
        let server = TestServer::with_policy(kind, &policy(1, "")).await;
        let agent = &server.agent;
        let a = execute(agent, in_run("r", "a"), Reason::New).await;
        let nowhere = execute(agent, charge("n", 1, "m"), Reason::New).await;
        server.offer(&policy(2, "limit_per_run = 1")).await;
        complete(agent, completion(&a, b"1")).await.unwrap();
        execute(agent, in_run("r", "b"), Reason::New).await;
        no_slot(agent, in_run("r", "c")).await;
        not_executed(agent, &nowhere).await;
        execute(agent, charge("n", 1, "m"), Reason::Retry).await;
        // Lowered, raised, and taken away again.
        server.offer(&policy(3, "limit_per_run = 2")).await;
        let c = execute(agent, in_run("r", "c"), Reason::New).await;
        server.offer(&policy(4, "limit_per_run = 1")).await;
        no_slot(agent, in_run("r", "d")).await;
        server.offer(&policy(5, "")).await;
        execute(agent, in_run("r", "d"), Reason::New).await;
        not_executed(agent, &c).await;
        server.offer(&policy(6, "limit_per_run = 2")).await;
        execute(agent, in_run("r", "e"), Reason::New).await;
        server.stop().await;
    }

    /// An approval is not spent on a run that has no slot left.
    async fn a_proposal_holds_no_slot(kind) {
        let keys = "limit_per_run = 1\napproval = { when = \"args.order.startsWith('big')\" }";
        let server = TestServer::with_policy(kind, &policy(1, keys)).await;
        let agent = &server.agent;
        let proposed = begin(agent, in_run("r", "big")).await;
        assert_eq!(proposed.decision(), Decision::AwaitApproval);
        let small = execute(agent, in_run("r", "a"), Reason::New).await;
        let intent = look(agent, &key_of(&proposed)).await;
        approve(&server.operator, approval(&intent, "ada")).await.unwrap();
        let refused = expect(agent, in_run("r", "big"), Decision::Refuse, Reason::RunLimit).await;
        assert_eq!(refused.intent.unwrap().state(), IntentState::Approved);
        not_executed(agent, &small).await;
        execute(agent, in_run("r", "big"), Reason::Approved).await;
        no_slot(agent, in_run("r", "b")).await;
        server.stop().await;
    }

    async fn a_halted_tool_grants_nothing_and_replays(kind) {
        let server = TestServer::with_policy(kind, &policy(1, "")).await;
        let agent = &server.agent;
        completed(agent, in_run("r", "done"), b"1").await;
        let running = execute(agent, in_run("r", "running"), Reason::New).await;
        let broken = execute(agent, in_run("r", "broken"), Reason::New).await;
        not_executed(agent, &broken).await;
        server.offer(&policy(2, "halted = true")).await;
        for order in ["new", "broken"] {
            expect(agent, in_run("r", order), Decision::Refuse, Reason::ToolHalted).await;
        }
        expect(agent, in_run("r", "done"), Decision::Replay, Reason::Completed).await;
        expect(agent, in_run("r", "running"), Decision::Hold, Reason::InFlight).await;
        let again = with_attempt(in_run("r", "running"), &running.attempt_id);
        execute(agent, again, Reason::Resent).await;
        complete(agent, completion(&running, b"1")).await.unwrap();
        // Another tool goes on, and this one once it is switched on again.
        execute(agent, keyed("other", "k", "{}"), Reason::New).await;
        server.offer(&policy(3, "halted = false")).await;
        execute(agent, in_run("r", "broken"), Reason::Retry).await;
        server.stop().await;
    }

    /// No grant is written after the activation, on either server, whatever is on its way.
    async fn a_switch_in_the_middle_of_traffic_is_exact(kind) {
        let store = TestStore::new(kind).await;
        let text = policy(1, "limit_per_run = 1000");
        let a = TestServer::on(store.clone(), Some(&text)).await;
        let b = TestServer::on(store.clone(), Some(&text)).await;
        let mut callers = JoinSet::new();
        for caller in 0..24_usize {
            let agent = [&a, &b][caller % 2].agent.clone();
            callers.spawn(async move {
                for n in 0..1000 {
                    let answer = begin(&agent, in_run("r", &format!("{caller}-{n}"))).await;
                    if answer.decision() != Decision::Execute {
                        return answer;
                    }
                }
                panic!("the switch was never noticed");
            });
        }
        while store.count_intents().await < 60 {
            tokio::task::yield_now().await;
        }
        // A limit that is used up by then, and a switch.
        a.offer(&policy(2, "limit_per_run = 5")).await;
        let after = store.count_intents().await;
        for answer in callers.join_all().await {
            assert_eq!((answer.decision(), answer.reason()), (Decision::Refuse, Reason::RunLimit));
        }
        assert_eq!(store.count_intents().await, after, "nothing was granted since");
        a.offer(&policy(3, "halted = true")).await;
        expect(&b.agent, in_run("r2", "x"), Decision::Refuse, Reason::ToolHalted).await;
        a.stop().await;
        b.stop().await;
    }
}

/// The answer to the commit is lost, and what it was about is not: the slot went with the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_takes_one_slot_or_none() {
    let test = TestStore::new(Kind::Postgres).await;
    let proxy = Proxy::start(&test.address).await;
    let text = policy(1, "limit_per_run = 2");
    let server = TestServer::on(test.through(proxy.url.clone()), Some(&text)).await;
    let agent = &server.agent;
    execute(agent, in_run("r", "before"), Reason::New).await;
    let store = test.open().await;
    proxy.arm(Fault::SwallowCommit);
    let request = in_run("r", "a");
    let error = agent.clone().begin(request.clone()).await.unwrap_err();
    assert_eq!(crate::support::calls::reason(&error), "COMMIT_IN_DOUBT");
    let granted = execute(agent, request, Reason::Resent).await;
    no_slot(agent, in_run("r", "b")).await;
    let row = RowKey { namespace: "default".into(), id: id_of(&granted) };
    let row = store.find(&[row]).await.unwrap().rows.remove(0).unwrap().intent;
    assert_eq!(store.slots_held(run_of(&row)).await.unwrap(), 2);
    // And the other way: the request never arrived whole.
    not_executed(agent, &granted).await;
    proxy.arm(Fault::CutRequest(40));
    let request = in_run("r", "c");
    let answer = agent.clone().begin(request.clone()).await;
    let answer = match answer {
        Ok(answer) => answer.into_inner(),
        Err(_) => begin(agent, request).await,
    };
    assert_eq!(answer.decision(), Decision::Execute);
    assert_eq!(store.slots_held(run_of(&row)).await.unwrap(), 2);
    server.stop().await;
}

fn id_of(granted: &BeginResponse) -> uuid::Uuid {
    let digest: [u8; 32] = const_hex::decode_to_array(&granted.downstream_key).unwrap();
    downstream_uuid(digest)
}
