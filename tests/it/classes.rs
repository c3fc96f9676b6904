//! What the policy says of a tool: its class, its attempts, its downstream key, its words.

use std::time::Duration;

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, Decision, FailureKind, Identity, IntentState, Reason,
};
use serde_json::Value;

use crate::{
    on_both_stores,
    support::{
        calls::{
            attempt, begin, charge, complete, completed, completion, error_of, expect, fail,
            failure, key_of, keyed, look, refused, step,
        },
        http,
        server::TestServer,
    },
};

fn bare(tool: &str, arguments: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity { tool: tool.into(), ..Identity::default() }),
        arguments_json: arguments.into(),
        attempt_id: attempt(),
        ..BeginRequest::default()
    }
}

fn message(answer: &BeginResponse) -> Value {
    serde_json::from_str(&answer.model_message).unwrap()
}

async fn metric(server: &TestServer, name: &str, labels: &[&str]) -> u64 {
    let text = http::get(&format!("{}/metrics", server.http)).await.1;
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

on_both_stores! {
    /// Section 4: `read_only` and `idempotent` are executed each time, counted, and never recorded.
    async fn what_is_harmless_to_repeat_is_never_recorded(kind) {
        // Metrics are one for the process: these names are this test's own.
        let (reads, closes) = match kind {
            crate::support::server::Kind::Sqlite => ("get_a", "close_a"),
            _ => ("get_b", "close_b"),
        };
        let server = TestServer::with_policy(kind, &format!(r#"
            [tools.{reads}]
            class = "read_only"
            [tools.{closes}]
            class = "idempotent"
        "#)).await;
        for tool in [reads, closes] {
            for _ in 0..3 {
                // Not even a key is needed.
                let answer =
                    expect(&server.agent, bare(tool, "{}"), Decision::Execute, Reason::NotRecorded)
                        .await;
                assert_eq!(answer.intent, None);
                assert_eq!((answer.attempt_id.as_str(), answer.downstream_key.as_str()), ("", ""));
                assert_eq!(answer.lease, None);
                assert_eq!(message(&answer)["status"], "execute");
            }
            let tool = format!("tool=\"{tool}\"");
            let labels = [tool.as_str(), "NOT_RECORDED"];
            assert_eq!(metric(&server, "intent_ledger_begins_total", &labels).await, 3);
        }
        assert_eq!(server.store.count_intents().await, 0);
        // Its shape is checked all the same.
        refused(&server.agent, bare(reads, "[]"), "ARGUMENTS_NOT_OBJECT").await;
        server.stop().await;
    }

    /// Section 4: a tool that is not listed is refused where the policy says so; its rows replay.
    async fn an_unlisted_tool_is_refused_and_what_it_did_is_still_replayed(kind) {
        let server = TestServer::with_policy(kind, "version = 1\n[tools.charge]").await;
        let call = || keyed("wire", "k1", "{}");
        completed(&server.agent, call(), b"1").await;
        let open = || keyed("wire", "k2", "{}");
        expect(&server.agent, open(), Decision::Execute, Reason::New).await;
        server
            .offer("version = 2\n[defaults]\nunlisted_tools = \"refuse\"\n[tools.charge]")
            .await;
        expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        expect(&server.agent, open(), Decision::Hold, Reason::InFlight).await;
        let other = keyed("wire", "k3", "{}");
        let answer = expect(&server.agent, other, Decision::Refuse, Reason::ToolNotListed).await;
        assert_eq!(answer.intent, None);
        assert_eq!(message(&answer)["status"], "refused");
        assert_eq!(server.store.count_intents().await, 2);
        expect(&server.agent, keyed("charge", "k4", "{}"), Decision::Execute, Reason::New).await;
        server.stop().await;
    }

    /// The same with any class in the defaults, and before a key is asked for.
    async fn an_unlisted_tool_is_refused_whatever_the_default_class(kind) {
        for class in ["read_only", "idempotent", "effectful"] {
            let server = TestServer::with_policy(kind, &format!(
                "[defaults]\nclass = \"{class}\"\nunlisted_tools = \"refuse\"\n[tools.get]\n"
            )).await;
            for request in [keyed("wire", "k", "{}"), bare("wire", "{}")] {
                expect(&server.agent, request, Decision::Refuse, Reason::ToolNotListed).await;
            }
            assert_eq!(server.store.count_intents().await, 0);
            server.stop().await;
        }
    }

    /// Section 4: a class that has changed since does not make a row disappear.
    async fn a_row_decides_even_if_the_class_has_changed_since(kind) {
        let server = TestServer::with_policy(
            kind,
            "version = 1\n[tools.charge]\nidentity = [\"/order\"]\nscope = \"namespace\"",
        )
        .await;
        completed(&server.agent, charge("o-1", 1, "a"), b"1").await;
        server
            .offer("version = 2\n[tools.charge]\nclass = \"idempotent\"\nidentity = [\"/order\"]\nscope = \"namespace\"")
            .await;
        expect(&server.agent, charge("o-1", 1, "a"), Decision::Replay, Reason::Completed).await;
        refused(&server.agent, charge("o-1", 2, "a"), "PARAMETERS_CHANGED").await;
        expect(&server.agent, charge("o-2", 1, "a"), Decision::Execute, Reason::NotRecorded).await;
        server.stop().await;
    }

    /// Section 2: free text by request is for tools without a policy.
    async fn a_caller_declares_free_text_only_where_no_policy_does(kind) {
        let server = TestServer::with_policy(kind, "[tools.charge]").await;
        let call = |tool: &str, memo: &str, amount: u32| BeginRequest {
            free_text: vec!["/memo".into()],
            ..keyed(tool, "k", &format!("{{\"memo\":\"{memo}\",\"amount\":{amount}}}"))
        };
        expect(&server.agent, call("any", "a", 1), Decision::Execute, Reason::New).await;
        let held = expect(&server.agent, call("any", "b", 1), Decision::Hold, Reason::InFlight).await;
        assert_eq!(held.warnings, ["free_text_changed"]);
        let same = expect(&server.agent, call("any", "a", 1), Decision::Hold, Reason::InFlight).await;
        assert!(same.warnings.is_empty());
        refused(&server.agent, call("any", "a", 2), "PARAMETERS_CHANGED").await;
        // What the first call declared is part of the row's recipe, whatever a repeat declares.
        let undeclared = BeginRequest { free_text: vec![], ..call("any", "b", 1) };
        expect(&server.agent, undeclared, Decision::Hold, Reason::InFlight).await;
        let other = BeginRequest { free_text: vec!["/amount".into()], ..call("any", "a", 2) };
        refused(&server.agent, other, "PARAMETERS_CHANGED").await;
        let listed = BeginRequest {
            free_text: vec!["/memo".into()],
            ..keyed("charge", "k2", r#"{"memo":"a","amount":1}"#)
        };
        refused(&server.agent, listed, "FREE_TEXT_NOT_ALLOWED").await;
        // They are kept with the row, so there is a bound.
        let many = (0..65).map(|number| format!("/{number}")).collect();
        let endless = BeginRequest { free_text: many, ..keyed("any", "k3", "{}") };
        refused(&server.agent, endless, "FREE_TEXT_INVALID").await;
        // A policy that lists the tool later does not turn an honest retry away.
        server.offer("version = 2\n[tools.charge]\n[tools.any]\nfree_text = [\"/memo\"]").await;
        expect(&server.agent, call("any", "a", 1), Decision::Hold, Reason::InFlight).await;
        let undeclared = BeginRequest { free_text: vec![], ..call("any", "b", 1) };
        expect(&server.agent, undeclared, Decision::Hold, Reason::InFlight).await;
        server.stop().await;
    }

    /// Section 4: FAILED is tried again up to `max_attempts`.
    async fn failures_are_final_after_the_policys_number_of_attempts(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.charge]
            identity = ["/order"]
            [tools.once]
            identity = ["/order"]
            retry_failed = false
        "#).await;
        let call = || charge("o-1", 1, "a");
        let mut granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        for number in 2..=3 {
            let report = failure(&granted, FailureKind::NotExecuted, "http 422");
            fail(&server.agent, report).await.unwrap();
            granted = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
            assert_eq!(granted.intent.as_ref().unwrap().attempt, number);
        }
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        for _ in 0..2 {
            let answer = expect(&server.agent, call(), Decision::Refuse, Reason::FailedFinal).await;
            assert_eq!(answer.intent.as_ref().unwrap().state(), IntentState::Failed);
            assert_eq!((answer.attempt_id.as_str(), &answer.retry_after), ("", &None));
            assert_eq!(message(&answer)["status"], "refused");
        }
        // A mismatch is told in this state too.
        refused(&server.agent, charge("o-1", 2, "a"), "PARAMETERS_CHANGED").await;

        let once = || bare("once", r#"{"order":1}"#);
        let granted = expect(&server.agent, once(), Decision::Execute, Reason::New).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        expect(&server.agent, once(), Decision::Refuse, Reason::FailedFinal).await;
        server.stop().await;
    }

    /// Section 4: NEVER_GRANTED costs no attempt.
    async fn an_attempt_that_never_got_its_execute_costs_nothing(kind) {
        let server = TestServer::with_policy(kind, r#"
            [tools.charge]
            identity = ["/order"]
            scope = "namespace"
            max_attempts = 1
            retry_failed = false
        "#).await;
        let call = || charge("o-1", 1, "a");
        for round in 1..=3 {
            let reason = if round == 1 { Reason::New } else { Reason::Retry };
            let granted = expect(&server.agent, call(), Decision::Execute, reason).await;
            let report = failure(&granted, FailureKind::NotExecuted, "NEVER_GRANTED");
            let intent = fail(&server.agent, report).await.unwrap();
            assert_eq!((intent.state(), intent.attempt), (IntentState::Failed, round));
        }
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::Retry).await;
        fail(&server.agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        expect(&server.agent, call(), Decision::Refuse, Reason::FailedFinal).await;
        // With an id that the ledger has never seen it is no report on this intent.
        let stranger = BeginResponse { attempt_id: attempt(), ..granted };
        let report = failure(&stranger, FailureKind::NotExecuted, "NEVER_GRANTED");
        assert_eq!(error_of(fail(&server.agent, report).await), "NOT_GRANTED");
        server.stop().await;
    }

    /// Section 4: the downstream key, in both forms, stable or new after a definite failure.
    async fn the_downstream_key_has_the_policys_form_and_is_stable(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.hex]
            identity = ["/order"]
            [tools.uuid]
            identity = ["/order"]
            [tools.uuid.downstream]
            key_format = "uuid"
            [tools.fresh]
            identity = ["/order"]
            [tools.fresh.downstream]
            new_key_after_failed = true
            deduplicates = true
            window = "1d"
        "#).await;
        let call = |tool: &str| bare(tool, r#"{"order":1}"#);
        for tool in ["hex", "uuid", "fresh"] {
            let first = expect(&server.agent, call(tool), Decision::Execute, Reason::New).await;
            let key = first.downstream_key.clone();
            if tool == "uuid" {
                assert_eq!(key.len(), 36);
                assert_eq!(uuid::Uuid::parse_str(&key).unwrap().get_version_num(), 8);
            } else {
                assert!(key.len() == 64 && key.bytes().all(|b| b"0123456789abcdef".contains(&b)));
            }
            assert_ne!(key, key_of(&first), "the key itself is not what is sent");
            let held = begin(&server.agent, call(tool)).await;
            assert_eq!(held.downstream_key, key);
            assert_eq!(held.intent.unwrap().downstream_key, key);
            fail(&server.agent, failure(&first, FailureKind::NotExecuted, "x")).await.unwrap();
            let second = expect(&server.agent, call(tool), Decision::Execute, Reason::Retry).await;
            assert_eq!(second.downstream_key == key, tool != "fresh", "{tool}");
            if tool == "fresh" {
                // A retry that rests on deduplication keeps the key it is deduplicated by.
                server.store.age(Duration::from_secs(61)).await;
                let third =
                    expect(&server.agent, call(tool), Decision::Execute, Reason::DownstreamDedupes)
                        .await;
                assert_eq!(third.downstream_key, second.downstream_key);
            }
        }
        server.stop().await;
    }

    /// Section 4: what a tool can hand to the model, as it is.
    async fn the_model_is_told_in_short_json(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.charge]
            identity = ["/order"]
            check_with = "get_charge"
            max_attempts = 1
        "#).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        assert_eq!(message(&granted)["status"], "execute");
        let held = message(&begin(&server.agent, call()).await);
        assert_eq!(held["status"], "in_progress");
        assert_eq!(held["check_with"], "get_charge");
        fail(&server.agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();
        let unknown = message(&begin(&server.agent, call()).await);
        assert_eq!(unknown["status"], "outcome_unknown");
        assert_eq!(unknown["note"], "outcome unknown; do not repeat; check with get_charge");
        let result = br#"{"id":"ch_1","exact":9007199254740993,"n":1.0}"#;
        complete(&server.agent, completion(&granted, result)).await.unwrap();
        let replay = begin(&server.agent, call()).await;
        assert_eq!(message(&replay)["status"], "already_done");
        assert!(message(&replay)["note"].as_str().unwrap().contains("do not do it again"));
        assert_eq!(message(&replay).get("check_with"), None);
        let verbatim = std::str::from_utf8(result).unwrap();
        assert!(replay.model_message.contains(verbatim), "{}", replay.model_message);

        // What is no JSON is handed over as text, and what is no text not at all.
        for (order, result, expected) in [
            ("o-2", &b"sent: 1"[..], Some(Value::from("sent: 1"))),
            ("o-3", &[0xff, 0x00][..], None),
        ] {
            completed(&server.agent, charge(order, 1, "a"), result).await;
            let replay = begin(&server.agent, charge(order, 1, "a")).await;
            assert_eq!(message(&replay).get("result").cloned(), expected);
        }
        let error = refused(&server.agent, charge("o-1", 2, "a"), "PARAMETERS_CHANGED").await;
        let told = crate::support::calls::metadata(&error, "model_message");
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["status"], "parameters_changed");
        server.stop().await;
    }

    /// Labels and provenance are kept as they came and decide nothing.
    async fn labels_are_kept(kind) {
        let server = TestServer::start(kind).await;
        let labels = |value: &str| [("team".to_owned(), value.to_owned())].into();
        let first = BeginRequest { labels: labels("red \u{1f4b8}"), ..step("t", "r", "s", "{}") };
        let granted = expect(&server.agent, first, Decision::Execute, Reason::New).await;
        let second = BeginRequest { labels: labels("blue"), ..step("t", "r", "s", "{}") };
        expect(&server.agent, second, Decision::Hold, Reason::InFlight).await;
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.labels, labels("red \u{1f4b8}"));
        assert_eq!((intent.run_id.as_str(), intent.step_id.as_str()), ("r", "s"));
        server.stop().await;
    }
}
