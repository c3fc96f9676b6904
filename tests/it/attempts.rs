//! Section 8 through a real server: who repeated a call, how often, and what is remembered of it.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use intent_ledger::proto::v1::{
    self, Attempt, BeginRequest, Decision, Layer, ListAttemptsRequest, ListAttemptsResponse,
    Reason, SessionRequest, intent_operations_service_client::IntentOperationsServiceClient,
    session_request::Item as Asked,
};
use tonic::Request;

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, Operator, about, attempt, begin, charge, completed, completion,
            error_of, expect, key_of, keyed, look, refused, step, with_attempt,
        },
        faulty::Fault,
        http,
        load::wait_until,
        process::ServerProcess,
        server::{Kind, TestServer, TestStore},
    },
};

async fn page(operator: &Operator, key: &str, size: i32, token: &str) -> ListAttemptsResponse {
    let request = ListAttemptsRequest {
        key: key.to_owned(),
        page_size: size,
        page_token: token.to_owned(),
        ..ListAttemptsRequest::default()
    };
    operator.clone().list_attempts(request).await.unwrap().into_inner()
}

/// All pages in one.
pub(crate) async fn attempts(operator: &Operator, key: &str) -> ListAttemptsResponse {
    let mut all = page(operator, key, 0, "").await;
    while !all.next_page_token.is_empty() {
        let next = page(operator, key, 0, &all.next_page_token).await;
        all.attempts.extend(next.attempts);
        all.next_page_token = next.next_page_token;
    }
    all
}

fn layers(all: &ListAttemptsResponse) -> Vec<Layer> {
    all.attempts.iter().map(Attempt::layer).collect()
}

fn counts(all: &ListAttemptsResponse) -> BTreeMap<&'static str, i64> {
    all.layer_counts.iter().map(|it| (it.layer().as_str_name(), it.count)).collect()
}

fn from(caller: &str, call: &str, request: BeginRequest) -> BeginRequest {
    BeginRequest { caller: caller.into(), tool_call_id: call.into(), ..request }
}

on_both_stores! {
    /// Case 3. A retry wrapper around the whole run; tool-call ids are new each time.
    async fn the_callers_of_one_key_are_listed_in_their_order(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = |call: &str| from("worker-1", call, charge("o-17", 1200, "invoice 17"));
        let result = br#"{"id": "ch_1"}"#;
        let intent = completed(&server.agent, k1("call_1"), result).await;
        for call in ["call_3", "call_5"] {
            let replay = expect(&server.agent, k1(call), Decision::Replay, Reason::Completed).await;
            assert_eq!(replay.intent.unwrap().result.unwrap(), result);
        }
        let all = attempts(&server.operator, &intent.key).await;
        let calls: Vec<&str> = all.attempts.iter().map(|it| it.tool_call_id.as_str()).collect();
        assert_eq!(calls, ["call_1", "call_3", "call_5"]);
        let answers: Vec<_> = all.attempts.iter().map(|it| (it.decision(), it.reason())).collect();
        let replay = (Decision::Replay, Reason::Completed);
        assert_eq!(answers, [(Decision::Execute, Reason::New), replay, replay]);
        assert_eq!((all.total_count, all.not_kept_count), (3, 0));
        let times: Vec<_> = all.attempts.iter().map(|it| it.time.unwrap()).collect();
        assert_eq!(Some(times[0]), intent.create_time);
        assert!(times.is_sorted_by_key(|time| (time.seconds, time.nanos)), "{times:?}");
        // The row counts them too.
        let row = look(&server.agent, &intent.key).await;
        assert_eq!((row.replay_count, row.last_seen_time.is_some()), (2, true));
        server.stop().await;
    }

    /// The table of section 8.
    async fn each_layer_is_told_by_what_stayed_the_same(kind) {
        let server = TestServer::start(kind).await;
        let agent = &server.agent;
        let call = |caller: &str, call: &str| {
            from(caller, call, about("send_email", "r1", &[("order", "8812")], "{}"))
        };
        let first = with_attempt(call("worker-1", "call_1"), &attempt());
        let granted = expect(agent, first.clone(), Decision::Execute, Reason::New).await;
        let in_vain = call("worker-1", "call_1");
        let nameless = BeginRequest { attempt_id: String::new(), ..call("", "") };
        let repeats = [
            (first.clone(), Layer::Transport),
            (in_vain.clone(), Layer::Orchestrator),
            // An attempt that was never granted can be resent too.
            (in_vain, Layer::Transport),
            (call("worker-1", "call_2"), Layer::Model),
            (call("worker-2", "call_2"), Layer::ResumedRun),
            (nameless, Layer::UnknownLayer),
        ];
        for (repeat, _) in &repeats {
            begin(agent, repeat.clone()).await;
        }
        let all = attempts(&server.operator, &key_of(&granted)).await;
        assert_eq!(all.attempts[0].attempt_id, granted.attempt_id);
        assert_eq!(layers(&all)[0], Layer::Unspecified, "the first repeats nothing");
        let expected: Vec<Layer> = repeats.iter().map(|(_, layer)| *layer).collect();
        assert_eq!(layers(&all)[1..], expected);
        assert_eq!(all.attempts[1].reason(), Reason::Resent);
        assert_eq!(all.attempts[6].attempt_id, "", "it named none");
        let counted = counts(&all);
        assert_eq!(counted["LAYER_TRANSPORT"], 2);
        assert_eq!(counted["LAYER_MODEL"], 1);
        server.stop().await;
    }

    /// Reports had come before it, so the row that it makes is granted to nobody and knows no attempt.
    async fn an_attempt_that_made_a_row_in_vain_is_known_when_it_is_resent(kind) {
        let server = TestServer::start(kind).await;
        let call = || with_attempt(keyed("mail", "k1", "{}"), &"7".repeat(32));
        // The key of a call that is begun elsewhere, to report on it here first.
        let elsewhere = TestServer::start(Kind::Sqlite).await;
        let granted = begin(&elsewhere.agent, call()).await;
        elsewhere.stop().await;
        let early = server.agent.clone().complete(completion(&granted, b"1")).await;
        assert_eq!(error_of(early), "INTENT_NOT_FOUND");
        for _ in 0..2 {
            expect(&server.agent, call(), Decision::Hold, Reason::NeedsAttention).await;
        }
        let all = attempts(&server.operator, &key_of(&granted)).await;
        assert_eq!(layers(&all), [Layer::Unspecified, Layer::Transport]);
        assert_eq!(all.attempts[0].attempt_id, "");
        assert_eq!(all.attempts[0].reason(), Reason::NeedsAttention);
        server.stop().await;
    }

    /// What only differs in words is said; what differs in substance is remembered, and leaves no trace
    /// on the row.
    async fn a_changed_call_is_remembered_and_the_row_is_not_touched(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "invoice 17"), b"1").await;
        let before = server.store.rows().await;
        refused(&server.agent, charge("o-17", 1250, "invoice 17"), "PARAMETERS_CHANGED").await;
        let all = attempts(&server.operator, &intent.key).await;
        assert_eq!(server.store.rows().await, before);
        assert_eq!(all.total_count, 2);
        assert_eq!(all.attempts[1].reason(), Reason::ParametersChanged);
        assert_eq!(all.attempts[1].changed_pointers, ["/amount"]);

        begin(&server.agent, charge("o-17", 1200, "payment for inv. 17")).await;
        let all = attempts(&server.operator, &intent.key).await;
        let changed: Vec<bool> = all.attempts.iter().map(|it| it.free_text_changed).collect();
        assert_eq!(changed, [false, false, true]);
        server.stop().await;
    }

    async fn a_hundred_repeats_are_kept_and_the_others_are_counted(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "a"), b"1").await;
        for n in 0..250 {
            begin(&server.agent, from("", &format!("call_{n}"), charge("o-17", 1200, "a"))).await;
        }
        let all = attempts(&server.operator, &intent.key).await;
        assert_eq!((all.total_count, all.not_kept_count), (251, 150));
        assert_eq!(all.attempts.len(), 101, "the first and a hundred repeats");
        assert_eq!(counts(&all)["LAYER_UNKNOWN_LAYER"], 250);
        // The first hundred, in their order.
        let calls: Vec<String> = (0..100).map(|n| format!("call_{n}")).collect();
        assert!(all.attempts[1..].iter().map(|it| &it.tool_call_id).eq(&calls));
        server.stop().await;
    }

    async fn pages_go_on_where_the_one_before_ended(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "a"), b"1").await;
        for n in 1..=5 {
            begin(&server.agent, from("", &format!("call_{n}"), charge("o-17", 1200, "a"))).await;
        }
        for size in [1, 2, 3, 6, 7, 1000] {
            let (mut token, mut calls, mut pages) = (String::new(), Vec::new(), 0);
            loop {
                let page = page(&server.operator, &intent.key, size, &token).await;
                assert!(page.attempts.len() <= usize::try_from(size).unwrap());
                assert_eq!(page.total_count, 6, "counters are those of all pages");
                calls.extend(page.attempts.into_iter().map(|it| it.tool_call_id));
                token = page.next_page_token;
                pages += 1;
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(calls, ["", "call_1", "call_2", "call_3", "call_4", "call_5"], "{size}");
            assert_eq!(pages, 6_usize.div_ceil(usize::try_from(size).unwrap()), "{size}");
        }

        let other = completed(&server.agent, charge("o-18", 1200, "a"), b"1").await;
        let token = page(&server.operator, &intent.key, 2, "").await.next_page_token;
        let ask = |request: ListAttemptsRequest| {
            let mut operator = server.operator.clone();
            async move { error_of(operator.list_attempts(request).await) }
        };
        let of = |key: &str| ListAttemptsRequest { key: key.to_owned(), ..Default::default() };
        let foreign = ListAttemptsRequest { page_token: token.clone(), ..of(&other.key) };
        assert_eq!(ask(foreign).await, "PAGE_TOKEN_INVALID");
        let broken = ListAttemptsRequest { page_token: "00".into(), ..of(&intent.key) };
        assert_eq!(ask(broken).await, "PAGE_TOKEN_INVALID");
        let negative = ListAttemptsRequest { page_size: -1, ..of(&intent.key) };
        assert_eq!(ask(negative).await, "PAGE_SIZE_INVALID");
        assert_eq!(ask(of("")).await, "KEY_INVALID");
        assert_eq!(ask(of(&"ab".repeat(32))).await, "INTENT_NOT_FOUND");
        let elsewhere = ListAttemptsRequest { namespace: "acme".into(), ..of(&intent.key) };
        assert_eq!(ask(elsewhere).await, "INTENT_NOT_FOUND");
        server.stop().await;
    }

    /// By a header for a call, by that of the stream for the items of a Session.
    async fn a_repeat_tells_the_trace_that_it_was_part_of(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "a"), b"1").await;
        let trace = |n: u32| format!("{n:032x}");
        let traced = |n: u32| format!("00-{}-00f067aa0ba902b7-01", trace(n)).parse().unwrap();
        let mut unary = Request::new(charge("o-17", 1200, "a"));
        unary.metadata_mut().insert("traceparent", traced(1));
        server.agent.clone().begin(unary).await.unwrap();
        let item = SessionRequest {
            sequence: 1,
            item: Some(Asked::Begin(charge("o-17", 1200, "a"))),
        };
        let mut stream = Request::new(tokio_stream::iter([item]));
        stream.metadata_mut().insert("traceparent", traced(2));
        let answers = server.agent.clone().session(stream).await.unwrap().into_inner();
        assert_eq!(answers.count().await, 1);
        begin(&server.agent, charge("o-17", 1200, "a")).await;
        let all = attempts(&server.operator, &intent.key).await;
        let traces: Vec<&str> = all.attempts.iter().map(|it| it.trace_id.as_str()).collect();
        assert_eq!(traces, ["", &trace(1), &trace(2), ""]);
        server.stop().await;
    }

    /// What the store cannot take now is written when it is back.
    async fn an_outage_loses_no_repeat(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "a"), b"1").await;
        begin(&server.agent, charge("o-17", 1200, "a")).await;
        store.set_down(true);
        // Several flushes long.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        store.set_down(false);
        begin(&server.agent, charge("o-17", 1200, "a")).await;
        let all = attempts(&server.operator, &intent.key).await;
        assert_eq!((all.total_count, all.attempts.len()), (3, 3));
        server.stop().await;
    }

    /// What was certainly not written is written later; what may have been is not counted twice, and what
    /// is missing is known to be.
    async fn a_lost_answer_of_the_store_counts_nothing_twice(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let intent = completed(&server.agent, charge("o-17", 1200, "a"), b"1").await;
        let total = async || attempts(&server.operator, &intent.key).await.total_count;
        for (fault, counted) in [
            (Fault::Refused, 1),
            (Fault::Locked, 1),
            (Fault::ReplyLost, 1),
            (Fault::RequestLost, 0),
        ] {
            let before = total().await;
            store.next_repeats(&[fault]);
            begin(&server.agent, charge("o-17", 1200, "a")).await;
            // The first to write meets the fault; what it put back is written by the second.
            total().await;
            assert_eq!(total().await, before + counted, "{fault:?}");
        }
        let (_, page) = http::get(&format!("{}/metrics", server.http)).await;
        // Counted for the whole process, in which other tests may run.
        let dropped = "intent_ledger_history_dropped_total{what=\"repeats\"} ";
        let count = page.lines().find_map(|line| line.strip_prefix(dropped));
        assert!(count.is_some_and(|count| count.parse::<u64>().unwrap() >= 2), "{page}");
        server.stop().await;
    }

    /// The hot path: an ordinary effect leaves no row here.
    async fn an_effect_that_nobody_repeats_leaves_counters_only(kind) {
        let server = TestServer::start(kind).await;
        for run in ["r1", "r2"] {
            let call = about("send_email", run, &[("order", "8812")], "{}");
            completed(&server.agent, from("worker-1", "call_1", call), b"1").await;
        }
        let store = server.stop().await;
        for (table, rows) in
            [("repeats", 0), ("repeat_counts", 0), ("run_counts", 0), ("begin_counts", 2)]
        {
            // New, and begun; in one minute or in two.
            let found = store.sql(&format!("DELETE FROM {table}")).await;
            assert!((rows..=rows * 2).contains(&found), "{table} has {found}");
        }
    }

    /// A second after the answer a kill loses nothing; what it loses before is never a fact of the row.
    async fn a_killed_server_loses_the_last_second_of_repeats_at_most(kind) {
        let store = TestStore::new(kind).await;
        let mut server = ServerProcess::start(&store.address, Some(CHARGE_POLICY), store.flags()).await;
        let agent = server.client().await;
        let granted =
            expect(&agent, charge("o-17", 1200, "a"), Decision::Execute, Reason::New).await;
        for _ in 0..3 {
            begin(&agent, charge("o-17", 1200, "a")).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..3 {
            begin(&agent, charge("o-17", 1200, "a")).await;
        }
        agent.clone().complete(completion(&granted, b"1")).await.unwrap();
        server.kill9();
        server.restart().await;
        let operator = IntentOperationsServiceClient::new(server.channel().await);
        let all = attempts(&operator, &key_of(&granted)).await;
        assert!((4..=7).contains(&all.total_count), "{all:?}");
        assert_eq!(usize::try_from(all.total_count).unwrap(), all.attempts.len());
        let row = look(&server.client().await, &key_of(&granted)).await;
        assert_eq!(row.result.unwrap(), b"1");
        server.terminate().await;
    }

    async fn two_servers_share_one_list(kind) {
        let one = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let two = TestServer::on(one.store.clone(), Some(CHARGE_POLICY)).await;
        let intent = completed(&one.agent, charge("o-17", 1200, "a"), b"1").await;
        let both = (0..150).map(|n| {
            let agent = if n % 2 == 0 { one.agent.clone() } else { two.agent.clone() };
            tokio::spawn(async move { begin(&agent, charge("o-17", 1200, "a")).await })
        });
        for begun in futures::future::join_all(both).await {
            begun.unwrap();
        }
        wait_until("both have written", async || {
            attempts(&one.operator, &intent.key).await.total_count == 151
        })
        .await;
        let all = attempts(&two.operator, &intent.key).await;
        assert_eq!((all.attempts.len(), all.not_kept_count), (101, 50));
        let ids: std::collections::BTreeSet<&str> =
            all.attempts.iter().map(|it| it.attempt_id.as_str()).collect();
        assert_eq!(ids.len(), 101, "each is there once");
        one.stop().await;
        two.stop().await;
    }

    /// Keys that will not do what their callers hope.
    async fn a_key_that_looks_wrong_is_warned_of(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let agent = &server.agent;
        let clock = intent_ledger::store::Store::now(&*server.store.open().await).await.unwrap();
        let rows = [
            (keyed("mail", "ada@example.com", "{}"), vec!["key_looks_like_email"]),
            (about("mail", "r1", &[("to", "ada@example.com")], "{}"), vec!["key_looks_like_email"]),
            (about("mail", "r1", &[("to", "ada@example.com"), ("order", "8812")], "{}"), vec![]),
            (keyed("mail", "pay 4111-1111-1111-1111", "{}"), vec!["key_looks_like_card_number"]),
            (charge("4111111111111111", 1, "a"), vec!["key_looks_like_card_number"]),
            (keyed("mail", &format!("mail-{}", clock.micros() / 1000), "{}"), vec!["key_holds_a_clock"]),
            (keyed("mail", &format!("mail {clock}"), "{}"), vec!["key_holds_a_clock"]),
            (keyed("mail", "order-8812", "{}"), vec![]),
            (charge("o-17", 1, "4111111111111111"), vec![]),
            (step("mail", "r1", "s1", r#"{"to":"ada@example.com"}"#), vec!["weak_key"]),
        ];
        for (request, warnings) in rows {
            let answer = begin(agent, request.clone()).await;
            assert_eq!(answer.warnings, warnings, "{request:?}");
        }
        server.stop().await;
    }

    async fn a_call_that_comes_back_under_another_key_is_warned_of(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let agent = &server.agent;
        let arguments = r#"{"to":"ada"}"#;
        let call = |key: &str, arguments: &str| BeginRequest {
            identity: Some(v1::Identity {
                tool: "mail".into(), run_id: "r1".into(), step_id: "s1".into(),
                idempotency_key: key.into(), ..Default::default()
            }),
            ..from("worker-1", "call_1", keyed("mail", key, arguments))
        };
        let warned = async |request| {
            let answer = begin(agent, request).await;
            answer.warnings.contains(&"new_key_each_attempt".to_owned())
        };
        assert!(!warned(call("k1", arguments)).await);
        assert!(!warned(call("k1", arguments)).await, "the same key is a repeat");
        assert!(warned(call("k2", arguments)).await);
        assert!(warned(call("k1", arguments)).await, "and so is going back");
        // One tool call may mean several things.
        assert!(!warned(call("k3", r#"{"to":"bob"}"#)).await);
        // Without an id of the tool call nothing can be told.
        let nameless = |key| BeginRequest { tool_call_id: String::new(), ..call(key, arguments) };
        assert!(!warned(nameless("k4")).await);
        assert!(!warned(nameless("k5")).await);
        // What the policy names is what it is about.
        assert!(!warned(from("", "call_9", charge("o-1", 1, "a"))).await);
        assert!(!warned(from("", "call_9", charge("o-2", 1, "a"))).await);
        server.stop().await;
    }
}
