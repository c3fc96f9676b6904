//! A policy that changes under traffic, and which changes are taken.

use std::collections::BTreeMap;

use intent_ledger::proto::v1::{
    BeginResponse, Decision, FailureKind, LookupRequest, Reason, lookup_request::By,
};
use tokio::task::JoinSet;

use crate::{
    on_both_stores,
    support::{
        calls::{Agent, begin, charge_json, completion, expect, failure, key_of},
        load::wait_until,
        process::ServerProcess,
        server::{TestServer, TestStore},
    },
};

/// A policy of tool `charge` with this identity.
fn policy(version: u32, identity: &str) -> String {
    format!(
        "version = {version}\n[defaults]\nscope = \"namespace\"\n[tools.charge]\n\
         identity = [{identity}]\nfree_text = [\"/memo\"]\n"
    )
}

const ORDER: &str = r#""/order""#;
const ORDER_AND_RECIPIENT: &str =
    r#""/order", { pointer = "/to", normalize = ["trim", "lowercase"] }"#;
const RECIPIENT_AND_ORDER: &str =
    r#"{ pointer = "/to", normalize = ["collapse_whitespace"] }, "/order""#;

/// The policies in their order; another identity, another normalisation, and back.
fn history() -> [String; 4] {
    [
        policy(1, ORDER),
        policy(2, ORDER_AND_RECIPIENT),
        policy(3, RECIPIENT_AND_ORDER),
        policy(4, ORDER),
    ]
}

/// An action and its honest repeats: only the memo differs.
fn action(number: usize, memo: usize) -> String {
    format!(r#"{{"order":"o-{number}","to":" Ann  {number}@X.org","amount":5,"memo":"{memo}"}}"#)
}

async fn active(store: &TestStore) -> u32 {
    store.open().await.policies().await.unwrap().active
}

on_both_stores! {
    /// Six callers a round begin one new action and repeat an old one, on two replicas, while the
    /// policy changes three times. One replica is told, the other finds out, then is told too.
    async fn no_action_gets_two_keys_while_the_policy_changes(kind) {
        const ROUNDS: usize = 80;
        const CALLERS: usize = 6;
        let store = TestStore::new(kind).await;
        let history = history();
        let a = TestServer::on(store.clone(), Some(&history[0])).await;
        let b = TestServer::on(store.clone(), Some(&history[0])).await;
        let agents = [a.agent.clone(), b.agent.clone()];
        let tell = async {
            // Wherever the traffic is by then: each switch waits for the writes in flight.
            for text in &history[1..] {
                let (first, second) = if text.contains("version = 3") { (&a, &b) } else { (&b, &a) };
                let goal = store.count_intents().await + 12;
                wait_until("more actions", async || store.count_intents().await >= goal).await;
                first.offer(text).await;
                let goal = store.count_intents().await + 8;
                wait_until("more actions", async || store.count_intents().await >= goal).await;
                second.offer(text).await;
            }
        };
        let traffic = async {
            let mut answers: Vec<(usize, BeginResponse)> = Vec::new();
            for round in 0..ROUNDS {
                let mut calls = JoinSet::new();
                for caller in 0..CALLERS {
                    let agents = agents.clone();
                    let repeated = (round * 31 + caller * 7) % (round + 1);
                    calls.spawn(async move {
                        let mut answers = Vec::new();
                        for (turn, number) in [round, repeated].into_iter().enumerate() {
                            let agent = &agents[(caller + turn) % 2];
                            answers.push((number, act(agent, number, caller).await));
                        }
                        answers
                    });
                }
                answers.extend(calls.join_all().await.into_iter().flatten());
            }
            answers
        };
        let (answers, ()) = tokio::join!(traffic, tell);
        assert_eq!(active(&store).await, 4, "the traffic outlasted the changes");

        let mut executed: BTreeMap<usize, usize> = BTreeMap::new();
        let mut keys: BTreeMap<usize, String> = BTreeMap::new();
        for (number, answer) in &answers {
            let key = keys.entry(*number).or_insert_with(|| key_of(answer));
            assert_eq!(*key, key_of(answer), "action {number} has two keys");
            if answer.decision() == Decision::Execute {
                *executed.entry(*number).or_default() += 1;
            }
        }
        assert_eq!(executed.len(), ROUNDS);
        assert!(executed.values().all(|count| *count == 1), "{executed:?}");
        assert_eq!(store.count_intents().await, ROUNDS as i64);
        // Long after, an honest retry is still a retry.
        for number in 0..ROUNDS {
            let request = charge_json(&action(number, 99));
            expect(&a.agent, request, Decision::Replay, Reason::Completed).await;
        }
        a.stop().await;
        b.stop().await;
    }

    /// A replica that has not heard of the newest policy meets a row that was made under it.
    async fn a_replica_that_is_behind_understands_the_rows_of_one_that_is_not(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(&policy(1, ORDER))).await;
        let b = TestServer::on(store.clone(), Some(&policy(1, ORDER))).await;
        for version in 2..6 {
            // From the second round on, the recipe stays and an older one is to be looked up.
            b.offer(&policy(version, ORDER_AND_RECIPIENT)).await;
            let number = version as usize;
            let text = action(number, 0);
            let granted =
                expect(&b.agent, charge_json(&text), Decision::Execute, Reason::New).await;
            // At once: within a second it would find out by itself.
            let held =
                expect(&a.agent, charge_json(&text), Decision::Hold, Reason::InFlight).await;
            assert_eq!(key_of(&held), key_of(&granted));
            b.agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
        }
        a.stop().await;
        b.stop().await;
    }

    /// NOT_FOUND would mean "provably never begun".
    async fn a_replica_that_is_behind_finds_by_identity_what_another_has_begun(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(&policy(1, ORDER))).await;
        let b = TestServer::on(store.clone(), Some(&policy(1, ORDER))).await;
        b.offer(&policy(2, ORDER_AND_RECIPIENT)).await;
        let request = charge_json(&action(1, 0));
        let granted = expect(&b.agent, request.clone(), Decision::Execute, Reason::New).await;
        let lookup = LookupRequest {
            by: Some(By::Identity(request.identity.unwrap())),
            arguments_json: request.arguments_json,
            ..LookupRequest::default()
        };
        let found = a.agent.clone().lookup(lookup).await.unwrap().into_inner();
        assert_eq!(found.intent.unwrap().key, key_of(&granted));
        a.stop().await;
        b.stop().await;
    }

    async fn a_version_is_taken_once_and_never_goes_back(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(&policy(5, ORDER))).await;
        let text = async || store.open().await.policies().await.unwrap().kept[0].text.clone();
        // The same version with the same text is no change, with another text it is a mistake.
        a.offer(&policy(5, ORDER)).await;
        a.offer(&policy(5, RECIPIENT_AND_ORDER)).await;
        assert_eq!((active(&store).await, text().await), (5, policy(5, ORDER)));
        // A lower one is refused, whatever it says, and so is what does not parse.
        a.offer(&policy(4, ORDER)).await;
        a.offer("version = 6\n[tools.charge]\nidentiy = []\n").await;
        assert_eq!((active(&store).await, text().await), (5, policy(5, ORDER)));
        // A file without a version is version 1.
        a.offer("[tools.charge]\nidentity = [\"/order\"]\n").await;
        assert_eq!(active(&store).await, 5);
        a.offer(&policy(7, RECIPIENT_AND_ORDER)).await;
        assert_eq!((active(&store).await, text().await), (7, policy(7, RECIPIENT_AND_ORDER)));
        // A replica that starts with a file that was active before goes on with the newer one.
        let b = TestServer::on(store.clone(), Some(&policy(5, ORDER))).await;
        assert_eq!(active(&store).await, 7);
        a.stop().await;
        b.stop().await;
    }

    async fn a_class_is_not_lowered_over_unsettled_rows(kind) {
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(&policy(1, ORDER))).await;
        let request = charge_json(&action(1, 0));
        let granted = expect(&a.agent, request.clone(), Decision::Execute, Reason::New).await;
        let lower = policy(2, ORDER).replace(
            "[tools.charge]",
            "[tools.charge]\nclass = \"idempotent\"",
        );
        a.offer(&lower).await;
        assert_eq!(active(&store).await, 1);
        expect(&a.agent, request.clone(), Decision::Execute, Reason::Resent).await;
        // Nor is it over one of unknown outcome.
        let report = failure(&granted, FailureKind::OutcomeUnknown, "http 504");
        a.agent.clone().fail(report).await.unwrap();
        a.offer(&lower).await;
        assert_eq!(active(&store).await, 1);
        let mut report = completion(&granted, b"{}");
        report.downstream_ref = "ch_1".into();
        a.agent.clone().complete(report).await.unwrap();
        a.offer(&lower).await;
        assert_eq!(active(&store).await, 2);
        // The row of before decides, a new call is not recorded.
        expect(&a.agent, request, Decision::Replay, Reason::Completed).await;
        let fresh = charge_json(&action(2, 0));
        expect(&a.agent, fresh, Decision::Execute, Reason::NotRecorded).await;
        a.stop().await;
    }

    async fn a_status_endpoint_is_not_dropped_over_unsettled_rows(kind) {
        let asked = |version: u32, target: &str| {
            let status = format!("grpc.target = \"{target}\"\nvisibility = \"1m\"\n");
            format!("{}[tools.charge.downstream.status]\n{status}", policy(version, ORDER))
        };
        let store = TestStore::new(kind).await;
        let a = TestServer::on(store.clone(), Some(&asked(1, "http://127.0.0.1:1"))).await;
        let request = charge_json(&action(1, 0));
        let granted = expect(&a.agent, request, Decision::Execute, Reason::New).await;
        a.offer(&policy(2, ORDER)).await;
        a.offer("version = 3").await;
        assert_eq!(active(&store).await, 1);
        // It may move, though.
        a.offer(&asked(4, "http://127.0.0.1:2")).await;
        assert_eq!(active(&store).await, 4);
        a.agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
        a.offer(&policy(5, ORDER)).await;
        assert_eq!(active(&store).await, 5);
        a.stop().await;
    }

    /// The real process: a changed file is read by itself; SIGHUP reads an unchanged one again.
    async fn a_process_reads_its_policy_file_on_change_and_on_sighup(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(&policy(1, ORDER)), &[]).await;
        let agent = server.client().await;
        server.write_policy(&policy(2, ORDER_AND_RECIPIENT));
        wait_until("the changed file is active", async || active(&store).await == 2).await;
        // A file that is refused changes nothing, and the log says why.
        server.write_policy("version = 3\n[tools.charge]\nidentiy = []\n");
        wait_until("the log names the mistake", async || server.log().contains("identiy")).await;
        assert_eq!(active(&store).await, 2);

        let granted = begin(&agent, charge_json(&action(1, 0))).await;
        let lower = policy(3, ORDER).replace(
            "[tools.charge]",
            "[tools.charge]\nclass = \"read_only\"",
        );
        server.write_policy(&lower);
        wait_until("the log says why", async || server.log().contains("unsettled intents")).await;
        assert_eq!(active(&store).await, 2);
        // The cause is gone, the file is the same: only a signal has it read again.
        agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
        server.send("HUP");
        wait_until("the file is active", async || active(&store).await == 3).await;
        server.terminate().await;
    }
}

/// Begins an action, and completes it where that is granted.
async fn act(agent: &Agent, number: usize, memo: usize) -> BeginResponse {
    let answer = begin(agent, charge_json(&action(number, memo))).await;
    if answer.decision() == Decision::Execute {
        let report = completion(&answer, format!("{number}").as_bytes());
        agent.clone().complete(report).await.unwrap();
    }
    answer
}
