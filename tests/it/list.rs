//! ListIntents: filters, pages, views.

use intent_ledger::proto::v1::{
    BeginRequest, Decision, FailureKind, Intent, IntentState, IntentView, ListIntentsRequest,
    ListIntentsResponse, Reason,
};

use crate::{
    on_both_stores,
    support::{
        calls::{
            Operator, charge, complete, completion, expect, fail, failure, key_of, reason, step,
        },
        server::TestServer,
    },
};

async fn page(operator: &Operator, request: ListIntentsRequest) -> ListIntentsResponse {
    operator.clone().list_intents(request).await.unwrap().into_inner()
}

/// One intent of each kind: name of the run, tool, how it ended.
async fn prepare(server: &TestServer) {
    for (run, tool, end) in [
        ("r1", "a", "started"),
        ("r1", "b", "completed"),
        ("r2", "a", "failed"),
        ("r2", "b", "unknown"),
        ("r2", "b", "conflict"),
    ] {
        let call = step(tool, run, end, "{}");
        let granted = expect(&server.agent, call, Decision::Execute, Reason::New).await;
        let not_executed = failure(&granted, FailureKind::NotExecuted, "x");
        match end {
            "started" => {}
            "completed" => {
                complete(&server.agent, completion(&granted, b"1")).await.unwrap();
            }
            "failed" => {
                fail(&server.agent, not_executed).await.unwrap();
            }
            "unknown" => {
                let unknown = failure(&granted, FailureKind::OutcomeUnknown, "x");
                fail(&server.agent, unknown).await.unwrap();
            }
            _ => {
                fail(&server.agent, not_executed).await.unwrap();
                complete(&server.agent, completion(&granted, b"1")).await.unwrap();
            }
        }
    }
}

fn steps(intents: &[Intent]) -> Vec<&str> {
    intents.iter().map(|intent| intent.step_id.as_str()).collect()
}

on_both_stores! {
    /// Filters are all applied at once; the newest come first.
    async fn a_list_is_filtered_and_newest_first(kind) {
        let server = TestServer::start(kind).await;
        prepare(&server).await;
        let base = ListIntentsRequest::default;
        let states = |states: &[IntentState]| states.iter().map(|state| *state as i32).collect();
        let table: Vec<(ListIntentsRequest, &[&str])> = vec![
            (base(), &["conflict", "unknown", "failed", "completed", "started"]),
            (ListIntentsRequest { tool: "a".into(), ..base() }, &["failed", "started"]),
            (ListIntentsRequest { run_id: "r1".into(), ..base() }, &["completed", "started"]),
            (ListIntentsRequest { tool: "b".into(), run_id: "r1".into(), ..base() }, &["completed"]),
            (ListIntentsRequest { tool: "c".into(), ..base() }, &[]),
            (
                ListIntentsRequest { states: states(&[IntentState::Completed]), ..base() },
                &["conflict", "completed"],
            ),
            (
                ListIntentsRequest {
                    states: states(&[IntentState::Failed, IntentState::Started]),
                    ..base()
                },
                &["failed", "started"],
            ),
            (
                ListIntentsRequest { needs_attention: Some(true), ..base() },
                &["conflict", "unknown"],
            ),
            (
                ListIntentsRequest { needs_attention: Some(false), ..base() },
                &["failed", "completed", "started"],
            ),
            (ListIntentsRequest { conflict: Some(true), ..base() }, &["conflict"]),
            (
                ListIntentsRequest { conflict: Some(false), tool: "b".into(), ..base() },
                &["unknown", "completed"],
            ),
            (ListIntentsRequest { namespace: "other".into(), ..base() }, &[]),
        ];
        for (request, expected) in table {
            let answer = page(&server.operator, request.clone()).await;
            assert_eq!(steps(&answer.intents), expected, "{request:?}");
            assert_eq!(answer.next_page_token, "");
        }
        server.stop().await;
    }

    /// AIP-158: pages are disjoint and complete; a token is good for its filter only.
    async fn pages_are_disjoint_and_complete(kind) {
        let server = TestServer::start(kind).await;
        prepare(&server).await;
        let whole = page(&server.operator, ListIntentsRequest::default()).await.intents;
        for page_size in 1..=6 {
            let mut request = ListIntentsRequest { page_size, ..ListIntentsRequest::default() };
            let mut seen = Vec::new();
            loop {
                let answer = page(&server.operator, request.clone()).await;
                assert!(answer.intents.len() <= page_size as usize);
                seen.extend(answer.intents);
                if answer.next_page_token.is_empty() {
                    break;
                }
                request.page_token = answer.next_page_token;
            }
            assert_eq!(seen, whole, "page_size {page_size}");
        }
        // Rows that come in between are newer, and so on no later page.
        let mut request = ListIntentsRequest { page_size: 2, ..ListIntentsRequest::default() };
        request.page_token = page(&server.operator, request.clone()).await.next_page_token;
        expect(&server.agent, step("a", "r3", "new", "{}"), Decision::Execute, Reason::New).await;
        let second = page(&server.operator, request.clone()).await;
        assert_eq!(steps(&second.intents), ["failed", "completed"]);
        // Another size is the same list, another filter is not.
        request.page_size = 1;
        assert_eq!(steps(&page(&server.operator, request.clone()).await.intents), ["failed"]);
        for other in [
            ListIntentsRequest { tool: "a".into(), ..request.clone() },
            ListIntentsRequest { namespace: "other".into(), ..request.clone() },
            ListIntentsRequest { needs_attention: Some(false), ..request.clone() },
            ListIntentsRequest { page_token: request.page_token.to_uppercase() + "0", ..request.clone() },
            // A time that no clock has said.
            ListIntentsRequest { page_token: format!("9{}", &request.page_token[1..]), ..request.clone() },
            ListIntentsRequest { page_token: format!("6{}", &request.page_token[1..]), ..request },
        ] {
            let error = server.operator.clone().list_intents(other).await.unwrap_err();
            assert_eq!(reason(&error), "PAGE_TOKEN_INVALID");
        }
        server.stop().await;
    }

    /// BASIC keeps a page small; FULL has results and events. An operator sees the attempt's id.
    async fn a_basic_list_has_no_results(kind) {
        let server = TestServer::start(kind).await;
        prepare(&server).await;
        let basic = page(&server.operator, ListIntentsRequest::default()).await.intents;
        assert!(basic.iter().all(|intent| intent.result.is_none() && intent.events.is_empty()));
        assert!(basic.iter().all(|intent| !intent.attempt_id.is_empty()));
        let completed = &basic[3];
        assert_eq!(completed.result_sha256.len(), 64);
        let request =
            ListIntentsRequest { view: IntentView::Full.into(), ..ListIntentsRequest::default() };
        let full = page(&server.operator, request).await.intents;
        assert_eq!(full[3].result.as_deref(), Some(&b"1"[..]));
        assert_eq!(full[0].events.len(), 1);
        server.stop().await;
    }

    /// A page that asks for nothing gets fifty.
    async fn a_page_has_fifty_where_it_asks_for_no_size(kind) {
        let server =
            TestServer::with_policy(kind, crate::support::calls::CHARGE_POLICY).await;
        let begins: Vec<BeginRequest> =
            (0..51).map(|order| charge(&format!("o-{order}"), 1, "a")).collect();
        let mut keys = Vec::new();
        for request in begins {
            keys.push(key_of(&expect(&server.agent, request, Decision::Execute, Reason::New).await));
        }
        let first = page(&server.operator, ListIntentsRequest::default()).await;
        assert_eq!(first.intents.len(), 50);
        let request = ListIntentsRequest {
            page_token: first.next_page_token,
            page_size: i32::MAX,
            ..ListIntentsRequest::default()
        };
        let last = page(&server.operator, request).await;
        assert_eq!(last.intents.len(), 1);
        assert_eq!(last.intents[0].key, keys[0]);
        server.stop().await;
    }
}
