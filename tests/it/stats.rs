//! GetStats through real servers: exact counts over a window, and what is open now.

use std::{collections::BTreeMap, time::Duration};

use intent_ledger::proto::v1::{
    BeginRequest, Decision, FailureKind, GetStatsRequest, GetStatsResponse, Reason, ToolStats,
};

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, Operator, about, begin, charge, completed, error_of, expect, fail,
            failure, key_of, span,
        },
        http::get,
        load::wait_until,
        server::TestServer,
    },
};

const POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
[tools.charge]
identity = ["/order"]
free_text = ["/memo"]
[tools.look]
class = "read_only"
[tools.mail]
[tools.wire]
identity = ["/order"]
approval = { expires = "1h" }
"#;

async fn stats(operator: &Operator, request: GetStatsRequest) -> GetStatsResponse {
    operator.clone().get_stats(request).await.unwrap().into_inner()
}

fn of<'a>(stats: &'a GetStatsResponse, tool: &str) -> &'a ToolStats {
    stats.tools.iter().find(|it| it.tool == tool).expect("the tool was begun")
}

fn decisions(stats: &ToolStats) -> BTreeMap<(Decision, Reason), i64> {
    stats.decisions.iter().map(|it| ((it.decision(), it.reason()), it.count)).collect()
}

fn tool(name: &str) -> GetStatsRequest {
    GetStatsRequest { tool: name.into(), ..GetStatsRequest::default() }
}

fn in_run(run: &str, order: &str) -> BeginRequest {
    about("mail", run, &[("order", order)], "{}")
}

on_both_stores! {
    async fn what_was_begun_is_counted_by_tool_decision_and_layer(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        completed(agent, charge("o-1", 1, "a"), b"1").await;
        let call = |call: &str| BeginRequest { tool_call_id: call.into(), ..charge("o-1", 1, "a") };
        for n in 0..3 {
            begin(agent, call(&format!("call_{n}"))).await;
        }
        assert_eq!(error_of(agent.clone().begin(charge("o-1", 2, "a")).await), "PARAMETERS_CHANGED");
        let granted = expect(agent, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
        fail(agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
        let again = expect(agent, charge("o-2", 1, "a"), Decision::Execute, Reason::Retry).await;
        begin(agent, about("look", "r1", &[("a", "b")], "{}")).await;
        // A malformed one is about nothing.
        error_of(agent.clone().begin(BeginRequest { arguments_json: "[".into(), ..charge("o-3", 1, "a") }).await);

        let all = stats(&server.operator, GetStatsRequest::default()).await;
        let names: Vec<&str> = all.tools.iter().map(|it| it.tool.as_str()).collect();
        assert_eq!(names, ["charge", "look"]);
        let charge = of(&all, "charge");
        assert_eq!(decisions(charge), [
            ((Decision::Execute, Reason::New), 2),
            ((Decision::Execute, Reason::Retry), 1),
            ((Decision::Replay, Reason::Completed), 3),
            ((Decision::Refuse, Reason::ParametersChanged), 1),
        ].into());
        assert_eq!((charge.begin_count, charge.intent_count, charge.execution_count), (7, 2, 3));
        assert_eq!(charge.repeats.iter().map(|it| it.count).sum::<i64>(), 5);
        assert_eq!(charge.retry_amplification, 3.5);
        let look = of(&all, "look");
        assert_eq!((look.begin_count, look.intent_count, look.execution_count), (1, 0, 1));
        assert_eq!(look.retry_amplification, 0.0);
        let alone = stats(&server.operator, tool("look")).await;
        assert_eq!(alone.tools.iter().collect::<Vec<_>>(), [look]);

        // What is open now: the second attempt of o-2.
        assert_eq!((all.unsettled_count, all.oldest_unsettled_key.as_str()), (1, key_of(&again).as_str()));
        assert!(all.oldest_unsettled_age.is_some());
        assert_eq!((all.needs_attention_count, all.approvals_waiting_count), (0, 0));
        let start = all.start_time.unwrap().seconds;
        let window = all.end_time.unwrap().seconds - start;
        assert!((86_400..90_001).contains(&window), "a day, from a whole hour on: {window}");
        // Another tenant has none of it.
        let other = GetStatsRequest { namespace: "acme".into(), ..GetStatsRequest::default() };
        let other = stats(&server.operator, other).await;
        assert_eq!((other.tools.len(), other.unsettled_count), (0, 0));
        server.stop().await;
    }

    async fn replicas_add_up(kind) {
        let one = TestServer::with_policy(kind, POLICY).await;
        let two = TestServer::on(one.store.clone(), Some(POLICY)).await;
        completed(&one.agent, charge("o-1", 1, "a"), b"1").await;
        for n in 0..40 {
            let agent = if n % 2 == 0 { &one.agent } else { &two.agent };
            begin(agent, charge("o-1", 1, "a")).await;
        }
        // Each writes its own within the second; a server's own are always in its answer.
        assert!(of(&stats(&two.operator, tool("charge")).await, "charge").begin_count >= 20);
        for operator in [&one.operator, &two.operator] {
            wait_until("both have written", async || {
                of(&stats(operator, tool("charge")).await, "charge").begin_count == 41
            })
            .await;
        }
        let all = stats(&two.operator, tool("charge")).await;
        let charge = of(&all, "charge");
        assert_eq!((charge.intent_count, charge.execution_count), (1, 1));
        assert_eq!(charge.retry_amplification, 41.0);
        one.stop().await;
        two.stop().await;
    }

    /// Intents of one run, each counted once, whatever their attempts.
    async fn runs_that_execute_a_tool_more_than_once_are_told(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        for (run, orders) in [("r1", 1), ("r2", 4), ("r3", 2)] {
            for order in 0..orders {
                let granted = begin(agent, in_run(run, &format!("{run}-{order}"))).await;
                if order == 0 {
                    fail(agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
                    expect(agent, in_run(run, &format!("{run}-0")), Decision::Execute, Reason::Retry).await;
                }
            }
        }
        let all = stats(&server.operator, GetStatsRequest::default()).await;
        let runs: Vec<(&str, &str, i64)> = all
            .runs_over_one
            .iter()
            .map(|run| (run.run_id.as_str(), run.tool.as_str(), run.execution_count))
            .collect();
        assert_eq!(runs, [("r2", "mail", 4), ("r3", "mail", 2)]);
        // They are in the metrics too, without their names; other tests of this process may add to them.
        for (name, least) in [
            ("intent_ledger_executions_beyond_first_in_run_total{tool=\"mail\"} ", 4.0),
            ("intent_ledger_executions_total{tool=\"mail\"} ", 10.0),
            ("intent_ledger_repeats_total{tool=\"mail\",layer=\"UNKNOWN_LAYER\"} ", 3.0),
            ("intent_ledger_oldest_unsettled_seconds ", 0.0),
        ] {
            let value = async || {
                let page = get(&format!("{}/metrics", server.http)).await.1;
                page.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok())
            };
            wait_until(name, async || value().await.is_some_and(|value| value >= least)).await;
        }
        server.stop().await;
    }

    /// More than one statement writes: each is there when somebody asks, and when the server stops.
    async fn every_run_that_executes_again_is_told(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        for n in 0..160 {
            begin(&server.agent, in_run(&format!("r{}", n / 2), &format!("o-{n}"))).await;
        }
        let all = stats(&server.operator, GetStatsRequest::default()).await;
        assert_eq!(all.runs_over_one.len(), 80);
        assert!(all.runs_over_one.iter().all(|run| run.execution_count == 2));
        for n in 0..160 {
            begin(&server.agent, in_run(&format!("s{}", n / 2), &format!("p-{n}"))).await;
        }
        let store = server.stop().await;
        assert_eq!(store.sql("DELETE FROM run_counts WHERE count = 2").await, 160);
    }

    async fn what_waits_for_a_person_is_told_by_its_kind(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let agent = &server.agent;
        let wire = |order: &str| about("wire", "r1", &[], &format!(r#"{{"order":"{order}"}}"#));
        for order in ["o-1", "o-2"] {
            let request = BeginRequest { caller: "worker-1".into(), ..wire(order) };
            expect(agent, request, Decision::AwaitApproval, Reason::ApprovalRequired).await;
        }
        // Nothing can be asked, so only a person knows.
        let granted = begin(agent, charge("o-3", 1, "a")).await;
        fail(agent, failure(&granted, FailureKind::OutcomeUnknown, "x")).await.unwrap();

        let waiting = async |request| {
            let all = stats(&server.operator, request).await;
            assert!(!all.open_is_lower_bound);
            (all.unsettled_count, all.needs_attention_count, all.approvals_waiting_count)
        };
        assert_eq!(waiting(GetStatsRequest::default()).await, (1, 1, 2));
        assert_eq!(waiting(tool("wire")).await, (0, 0, 2));
        assert_eq!(waiting(tool("charge")).await, (1, 1, 0));
        server.stop().await;
    }

    async fn a_window_is_a_span_of_time(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        completed(&server.agent, charge("o-1", 1, "a"), b"1").await;
        let ask = |window: prost_types::Duration| {
            let mut operator = server.operator.clone();
            let request = GetStatsRequest { window: Some(window), ..GetStatsRequest::default() };
            async move { operator.get_stats(request).await.map(tonic::Response::into_inner) }
        };
        for seconds in [0, -1] {
            assert_eq!(error_of(ask(span(seconds)).await), "DURATION_INVALID");
        }
        assert_eq!(ask(span(60)).await.unwrap().tools.len(), 1);
        // Further back than anything is kept: the answer says from when.
        let years = ask(span(10 * 365 * 86_400)).await.unwrap();
        let back = years.end_time.unwrap().seconds - years.start_time.unwrap().seconds;
        assert!((90 * 86_400..90 * 86_400 + 3601).contains(&back), "{back}");
        // Yesterday's are not today's.
        let day = match kind {
            crate::support::server::Kind::Sqlite => Duration::from_secs(86_400).as_micros().to_string(),
            _ => "interval '1 day'".to_owned(),
        };
        server.store.sql(&format!("UPDATE begin_counts SET span_at = span_at - {day}")).await;
        assert_eq!(ask(span(3600)).await.unwrap().tools.len(), 0);
        assert_eq!(ask(span(2 * 86_400)).await.unwrap().tools.len(), 1);
        server.stop().await;
    }
}
