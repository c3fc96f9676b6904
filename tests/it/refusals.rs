//! Section 4, errors: one reason per cause, the field that mends it, and what to do next.

use intent_ledger::proto::v1::{
    BeginRequest, CompleteRequest, ExtendRequest, FailRequest, Identity, ListIntentsRequest,
    LookupRequest, Resolution, ResolveIntentRequest, lookup_request::By,
};
use prost_types::Duration as ProtoDuration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    on_both_stores,
    support::{
        calls::{about, attempt, by_key, charge, charge_json, keyed, metadata, reason, span, step},
        server::TestServer,
    },
};

const POLICY: &str = r#"
[tools.charge]
identity = ["/order"]
scope = "namespace"
[tools.per_run]
identity = ["/order"]
"#;

/// A malformed request: its reason, and the field that mends it.
#[track_caller]
fn violation<T: std::fmt::Debug>(answer: Result<T, Status>, expected: &str, field: &str) {
    let error = answer.expect_err(expected);
    assert_eq!(
        (error.code(), reason(&error).as_str()),
        (Code::InvalidArgument, expected),
        "{error:?}"
    );
    assert_eq!(metadata(&error, "nextAction"), "FIX_REQUEST");
    assert_bounded(&error);
    let details = error.get_error_details();
    let fields: Vec<&str> = details
        .bad_request()
        .expect("a BadRequest")
        .field_violations
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    assert_eq!(fields, [field], "{error:?}");
}

/// What every error of ours carries, in headers of a bounded size.
#[track_caller]
fn assert_bounded(error: &Status) {
    let details = error.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "intent-ledger");
    let effect = &info.metadata["effectMayHaveHappened"];
    assert!(effect == "true" || effect == "false", "{error:?}");
    assert!(!info.metadata["nextAction"].is_empty());
    assert!(error.message().len() < 1024, "{} bytes", error.message().len());
    assert!(error.details().len() < 5 * 1024, "{} bytes", error.details().len());
}

fn identified(change: impl FnOnce(&mut Identity)) -> BeginRequest {
    let mut request = keyed("any", "k", "{}");
    change(request.identity.as_mut().unwrap());
    request
}

on_both_stores! {
    /// Every cause of INVALID_ARGUMENT that a Begin can have.
    async fn a_malformed_begin_names_its_field_and_leaves_no_row(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let long = || "x".repeat(256);
        let many = |count: usize| (0..count).map(|i| (format!("n{i}"), "v".to_owned())).collect();
        let lease = |seconds, nanos| BeginRequest {
            lease: Some(ProtoDuration { seconds, nanos }),
            ..keyed("any", "k", "{}")
        };
        let labels = |name: String, value: String| BeginRequest {
            labels: [(name, value)].into(),
            ..keyed("any", "k", "{}")
        };
        let free_text = |request: BeginRequest, pointers: &[&str]| BeginRequest {
            free_text: pointers.iter().map(|pointer| (*pointer).to_owned()).collect(),
            ..request
        };
        let with_attempt =
            |id: &str| BeginRequest { attempt_id: id.into(), ..keyed("any", "k", "{}") };
        let table: Vec<(BeginRequest, &str, &str)> = vec![
            (BeginRequest { identity: None, ..keyed("any", "k", "{}") }, "TOOL_REQUIRED", "identity.tool"),
            (keyed("", "k", "{}"), "TOOL_REQUIRED", "identity.tool"),
            (keyed(&long(), "k", "{}"), "NAME_INVALID", "identity.tool"),
            (keyed("a\nb", "k", "{}"), "NAME_INVALID", "identity.tool"),
            (BeginRequest { namespace: long(), ..keyed("any", "k", "{}") }, "NAME_INVALID", "namespace"),
            (BeginRequest { namespace: "a\0".into(), ..keyed("any", "k", "{}") }, "NAME_INVALID", "namespace"),
            (identified(|it| it.run_id = long()), "NAME_INVALID", "identity.run_id"),
            (identified(|it| it.step_id = "\t".into()), "NAME_INVALID", "identity.step_id"),
            (BeginRequest { tool_call_id: long(), ..keyed("any", "k", "{}") }, "NAME_INVALID", "tool_call_id"),
            (BeginRequest { caller: "\u{1b}[0m".into(), ..keyed("any", "k", "{}") }, "NAME_INVALID", "caller"),
            (keyed("any", "", "{}"), "IDENTITY_REQUIRED", "identity"),
            (step("any", "r", "", "{}"), "IDENTITY_REQUIRED", "identity"),
            (step("any", "", "s", "{}"), "IDENTITY_REQUIRED", "identity"),
            (identified(|it| it.business_ids = many(1)), "IDENTITY_AMBIGUOUS", "identity"),
            (about("any", "", &[("order", "1")], "{}"), "RUN_REQUIRED", "identity.run_id"),
            (about("per_run", "", &[], r#"{"order":1}"#), "RUN_REQUIRED", "identity.run_id"),
            (keyed("any", " k", "{}"), "IDEMPOTENCY_KEY_INVALID", "identity.idempotency_key"),
            (about("any", "r", &[("", "1")], "{}"), "BUSINESS_IDS_INVALID", "identity.business_ids"),
            (about("any", "r", &[("a", "")], "{}"), "BUSINESS_IDS_INVALID", "identity.business_ids[\"a\"]"),
            (about("any", "r", &[("a", " ")], "{}"), "BUSINESS_IDS_INVALID", "identity.business_ids[\"a\"]"),
            (about("any", "r", &[("a", "x\0")], "{}"), "BUSINESS_IDS_INVALID", "identity.business_ids[\"a\"]"),
            (
                BeginRequest {
                    identity: Some(Identity {
                        tool: "any".into(),
                        run_id: "r".into(),
                        business_ids: many(33),
                        ..Identity::default()
                    }),
                    ..BeginRequest::default()
                },
                "BUSINESS_IDS_INVALID",
                "identity.business_ids",
            ),
            (charge_json("{}"), "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
            (charge_json(r#"{"order":null}"#), "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
            (charge_json(r#"{"order":" "}"#), "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
            (charge_json(r#"{"order":{"id":1}}"#), "IDENTITY_NOT_SCALAR", "arguments_json/order"),
            (charge_json(r#"{"order":["o"]}"#), "IDENTITY_NOT_SCALAR", "arguments_json/order"),
            (keyed("any", "k", "{"), "ARGUMENTS_MALFORMED", "arguments_json"),
            (keyed("any", "k", "[]"), "ARGUMENTS_NOT_OBJECT", "arguments_json"),
            (free_text(keyed("any", "k", "{}"), &["/a", "b"]), "FREE_TEXT_INVALID", "free_text[1]"),
            (free_text(charge("o", 1, "a"), &["/memo"]), "FREE_TEXT_NOT_ALLOWED", "free_text"),
            (with_attempt("a1"), "ATTEMPT_ID_INVALID", "attempt_id"),
            (with_attempt("00000000-0000-0000-0000-000000000000"), "ATTEMPT_ID_INVALID", "attempt_id"),
            (lease(0, 0), "DURATION_INVALID", "lease"),
            (lease(-1, 0), "DURATION_INVALID", "lease"),
            (lease(400 * 24 * 60 * 60, 0), "DURATION_INVALID", "lease"),
            (labels(String::new(), "v".into()), "LABELS_INVALID", "labels"),
            (labels(long(), "v".into()), "LABELS_INVALID", "labels"),
            (labels("n".into(), "v\n".into()), "LABELS_INVALID", "labels"),
            (labels("n".into(), "v".repeat(1025)), "LABELS_INVALID", "labels"),
            (BeginRequest { labels: many(33), ..keyed("any", "k", "{}") }, "LABELS_INVALID", "labels"),
        ];
        for (request, expected, field) in table {
            violation(server.agent.clone().begin(request).await, expected, field);
        }
        assert_eq!(server.store.count_intents().await, 0);
        server.stop().await;
    }

    /// Every cause that the other calls of an agent can have.
    async fn a_malformed_report_names_its_field(kind) {
        let server = TestServer::start(kind).await;
        let key = || "ab".repeat(32);
        let complete = |change: fn(&mut CompleteRequest)| {
            let mut request = CompleteRequest {
                key: "ab".repeat(32),
                attempt_id: attempt(),
                ..CompleteRequest::default()
            };
            change(&mut request);
            request
        };
        let agent = || server.agent.clone();
        for bad in ["", "ab", &"AB".repeat(32), &"zz".repeat(32), &"ab".repeat(33)] {
            let request = CompleteRequest { key: bad.to_owned(), ..complete(|_| {}) };
            violation(agent().complete(request).await, "KEY_INVALID", "key");
            violation(agent().lookup(by_key(bad)).await, "KEY_INVALID", "key");
        }
        let rows: [(CompleteRequest, &str, &str); 5] = [
            (complete(|it| it.attempt_id.clear()), "ATTEMPT_ID_REQUIRED", "attempt_id"),
            (complete(|it| it.attempt_id = "x".into()), "ATTEMPT_ID_INVALID", "attempt_id"),
            (complete(|it| it.downstream_ref = "x".repeat(1025)), "TEXT_TOO_LONG", "downstream_ref"),
            (complete(|it| it.result_content_type = "x".repeat(256)), "NAME_INVALID", "result_content_type"),
            (complete(|it| it.result_size = -1), "RESULT_DIGEST_INVALID", "result_size"),
        ];
        for (request, expected, field) in rows {
            violation(agent().complete(request).await, expected, field);
        }
        let fail = |kind: i32, code: String, attempt_id: String| FailRequest {
            key: key(),
            attempt_id,
            kind,
            code,
            ..FailRequest::default()
        };
        violation(agent().fail(fail(99, String::new(), attempt())).await, "ENUM_VALUE_INVALID", "kind");
        violation(agent().fail(fail(1, "x".repeat(256), attempt())).await, "NAME_INVALID", "code");
        violation(
            agent().fail(fail(1, String::new(), String::new())).await,
            "ATTEMPT_ID_REQUIRED",
            "attempt_id",
        );
        let extend = |lease| ExtendRequest {
            key: key(),
            attempt_id: attempt(),
            lease: Some(lease),
            ..ExtendRequest::default()
        };
        violation(agent().extend(extend(span(0))).await, "DURATION_INVALID", "lease");
        violation(agent().extend(extend(span(-1))).await, "DURATION_INVALID", "lease");

        let lookup = |by| LookupRequest { by, ..LookupRequest::default() };
        violation(agent().lookup(lookup(None)).await, "LOOKUP_TARGET_REQUIRED", "key");
        for (by, expected, field) in [
            (By::DownstreamKey("x".into()), "KEY_INVALID", "downstream_key"),
            (By::DownstreamRef(String::new()), "LOOKUP_TARGET_REQUIRED", "downstream_ref"),
            (By::ToolCallId(String::new()), "LOOKUP_TARGET_REQUIRED", "tool_call_id"),
            (By::ToolCallId("x".repeat(256)), "NAME_INVALID", "tool_call_id"),
            (By::Identity(Identity::default()), "TOOL_REQUIRED", "identity.tool"),
            (
                By::Identity(Identity { tool: "any".into(), ..Identity::default() }),
                "IDENTITY_REQUIRED",
                "identity",
            ),
        ] {
            violation(agent().lookup(lookup(Some(by))).await, expected, field);
        }
        let request = LookupRequest { view: 99, ..by_key(&key()) };
        violation(agent().lookup(request).await, "ENUM_VALUE_INVALID", "view");
        let request = LookupRequest { wait: Some(span(-1)), ..by_key(&key()) };
        violation(agent().lookup(request).await, "DURATION_INVALID", "wait");
        server.stop().await;
    }

    /// Every cause that a person's calls can have.
    async fn a_malformed_decision_names_its_field(kind) {
        let server = TestServer::start(kind).await;
        let operator = || server.operator.clone();
        let list = |change: fn(&mut ListIntentsRequest)| {
            let mut request = ListIntentsRequest::default();
            change(&mut request);
            request
        };
        for (request, expected, field) in [
            (list(|it| it.page_size = -1), "PAGE_SIZE_INVALID", "page_size"),
            (list(|it| it.page_token = "x".into()), "PAGE_TOKEN_INVALID", "page_token"),
            (list(|it| it.page_token = "ab".repeat(32)), "PAGE_TOKEN_INVALID", "page_token"),
            (list(|it| it.states = vec![0]), "ENUM_VALUE_INVALID", "states"),
            (list(|it| it.states = vec![3, 99]), "ENUM_VALUE_INVALID", "states"),
            (list(|it| it.view = 99), "ENUM_VALUE_INVALID", "view"),
            (list(|it| it.tool = "x".repeat(256)), "NAME_INVALID", "tool"),
            (list(|it| it.run_id = "\0".into()), "NAME_INVALID", "run_id"),
            (list(|it| it.namespace = "\0".into()), "NAME_INVALID", "namespace"),
        ] {
            violation(operator().list_intents(request).await, expected, field);
        }
        let resolve = |change: fn(&mut ResolveIntentRequest)| {
            let mut request = ResolveIntentRequest {
                key: "ab".repeat(32),
                etag: "x".into(),
                resolution: Resolution::NotExecuted.into(),
                reason: "looked".into(),
                actor: "ada".into(),
                ..ResolveIntentRequest::default()
            };
            change(&mut request);
            request
        };
        for (request, expected, field) in [
            (resolve(|it| it.key.clear()), "KEY_INVALID", "key"),
            (resolve(|it| it.etag.clear()), "ETAG_REQUIRED", "etag"),
            (resolve(|it| it.reason.clear()), "REASON_REQUIRED", "reason"),
            (resolve(|it| it.reason = " \n".into()), "REASON_REQUIRED", "reason"),
            (resolve(|it| it.reason = "x".repeat(4097)), "TEXT_TOO_LONG", "reason"),
            (resolve(|it| it.actor.clear()), "ACTOR_REQUIRED", "actor"),
            (resolve(|it| it.actor = "x".repeat(256)), "NAME_INVALID", "actor"),
            (resolve(|it| it.resolution = 0), "RESOLUTION_REQUIRED", "resolution"),
            (resolve(|it| it.resolution = 99), "ENUM_VALUE_INVALID", "resolution"),
            (resolve(|it| it.result = Some(vec![])), "RESULT_NOT_ALLOWED", "result"),
        ] {
            violation(operator().resolve_intent(request).await, expected, field);
        }
        server.stop().await;
    }

    /// Hostile input grows no header: texts and details stay bounded.
    async fn an_error_stays_small_whatever_was_sent(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        let begin = |request: BeginRequest| {
            let mut agent = server.agent.clone();
            async move { agent.begin(request).await.expect_err("hostile") }
        };
        let huge = "\u{1f4a3}".repeat(50_000);
        let member = |value: u32| {
            let members: Vec<String> = (0..60)
                .map(|i| format!("\"{}{i:02}\":{value}", "\u{1f4a3}".repeat(60)))
                .collect();
            format!("{{{}}}", members.join(","))
        };
        let hostile = [
            keyed(&huge, "k", "{}"),
            keyed("any", &huge, "{}"),
            about("any", "r", &[(&huge, "v")], "{}"),
            about("any", "r", &[("n", &huge)], "{}"),
            keyed("any", "k", &format!("{{\"{huge}\":1,\"{huge}\":2}}")),
            keyed("any", "k", &format!("{{\"a\": {huge}}}")),
            BeginRequest { attempt_id: huge.clone(), ..keyed("any", "k", "{}") },
            BeginRequest { free_text: vec![huge.clone(); 10], ..keyed("any", "k", "{}") },
            BeginRequest { namespace: huge.clone(), ..keyed("any", "k", "{}") },
        ];
        for request in hostile {
            assert_bounded(&begin(request).await);
        }
        server.agent.clone().begin(keyed("any", "wide", &member(1))).await.unwrap();
        let error = begin(keyed("any", "wide", &member(2))).await;
        assert_eq!(reason(&error), "PARAMETERS_CHANGED");
        assert_bounded(&error);
        server.stop().await;
    }

    /// Section 4: the order of checks. Shape, then policy, then key.
    async fn checks_come_in_the_order_of_the_contract(kind) {
        let server = TestServer::with_policy(kind, POLICY).await;
        // Shape before key.
        let both = BeginRequest { lease: Some(span(0)), ..keyed("any", " k", "{}") };
        violation(server.agent.clone().begin(both).await, "DURATION_INVALID", "lease");
        // Policy before key.
        let both = BeginRequest { free_text: vec!["/memo".into()], ..charge_json("{}") };
        violation(server.agent.clone().begin(both).await, "FREE_TEXT_NOT_ALLOWED", "free_text");
        server.stop().await;
    }
}
