//! Cases 21 to 25 and section 2: what makes two calls the same intent.

use intent_ledger::proto::v1::{BeginRequest, Decision, Identity, KeyBasis, Reason};

use crate::{
    on_both_stores,
    support::{
        calls::{
            about, attempt, begin, charge_json, expect, key_of, keyed, metadata, refused, step,
        },
        server::TestServer,
    },
};

/// What a second call is, seen from a first one under the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The same intent, and the same arguments.
    Same,
    /// The same intent, other arguments.
    Mismatch(&'static str),
    /// Another intent.
    Other,
}

async fn compare(server: &TestServer, first: BeginRequest, second: BeginRequest, then: Then) {
    let words = format!("{first:?}\n{second:?}");
    let granted = begin(&server.agent, first).await;
    assert_eq!(granted.reason(), Reason::New, "{words}");
    match then {
        Then::Same => {
            let held = begin(&server.agent, second).await;
            assert_eq!(held.reason(), Reason::InFlight, "{words}");
            assert_eq!(key_of(&held), key_of(&granted), "{words}");
        }
        Then::Mismatch(pointers) => {
            let error = refused(&server.agent, second, "PARAMETERS_CHANGED").await;
            assert_eq!(metadata(&error, "pointers"), pointers, "{words}");
        }
        Then::Other => {
            let other = begin(&server.agent, second).await;
            assert_eq!(other.reason(), Reason::New, "{words}");
            assert_ne!(key_of(&other), key_of(&granted), "{words}");
        }
    }
}

on_both_stores! {
    /// Case 21.
    async fn a_key_has_1_to_255_bytes_and_no_blank_ends(kind) {
        let server = TestServer::start(kind).await;
        let long = "x".repeat(256);
        for key in [" ", "\t", "\u{3000}", &long, "a\0b", "\0", "a\u{7f}b", "\u{85}", " k1", "k1 ", "\nk1"] {
            let error =
                refused(&server.agent, keyed("charge", key, "{}"), "IDEMPOTENCY_KEY_INVALID").await;
            assert_eq!(error.code(), tonic::Code::InvalidArgument, "{key:?}");
        }
        refused(&server.agent, keyed("charge", "", "{}"), "IDENTITY_REQUIRED").await;
        assert_eq!(server.store.count_intents().await, 0);
        let longest = &long[1..];
        for key in [longest, "k1", "K1", "k 1", "k\u{e9}", "ke\u{301}", "\u{1f4b8}"] {
            let granted =
                expect(&server.agent, keyed("charge", key, "{}"), Decision::Execute, Reason::New)
                    .await;
            let intent = granted.intent.unwrap();
            assert_eq!(intent.key_basis(), KeyBasis::IdempotencyKey);
            assert!(intent.key.len() == 64 && intent.key.bytes().all(|b| b.is_ascii_hexdigit()));
        }
        assert_eq!(server.store.count_intents().await, 7);
        server.stop().await;
    }

    /// Case 22: parts are hashed as parts, so no joining character makes two calls one.
    async fn no_joining_character_makes_two_calls_one(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.pair]
            identity = ["/a", "/b"]
        "#).await;
        for joint in ["|", ":", "/", "-", ",", " ", "\"", "\\", "\",\"", "\u{2028}", "."] {
            let (ab, bc) = (format!("a{joint}b"), format!("b{joint}c"));
            compare(&server, step("t", &ab, "c", "{}"), step("t", "a", &bc, "{}"), Then::Other).await;
            compare(&server, step(&ab, "c", "d", "{}"), step("a", &bc, "d", "{}"), Then::Other).await;
            compare(
                &server,
                about(&ab, "", &[("c", "1")], "{}"),
                about("a", "", &[(&bc, "1")], "{}"),
                Then::Other,
            )
            .await;
            compare(
                &server,
                about("t", "", &[(&ab, "c")], "{}"),
                about("t", "", &[("a", &bc)], "{}"),
                Then::Other,
            )
            .await;
            let pair = |a: &str, b: &str| {
                let arguments = serde_json::json!({"a": a, "b": b}).to_string();
                BeginRequest {
                    identity: Some(Identity { tool: "pair".into(), ..Identity::default() }),
                    arguments_json: arguments,
                    attempt_id: attempt(),
                    ..BeginRequest::default()
                }
            };
            compare(&server, pair(&ab, "c"), pair("a", &bc), Then::Other).await;
            // The tool is bound by the fingerprint where the caller's key is the whole identity.
            let key = format!("key{joint}end");
            compare(&server, keyed(&ab, &key, "{}"), keyed("a", &key, "{}"), Then::Mismatch("")).await;
        }
        // One basis never meets another, whatever the texts.
        compare(
            &server,
            keyed("t", r#"{"k":"v"}"#, "{}"),
            about("t", "", &[("k", "v")], "{}"),
            Then::Other,
        )
        .await;
        server.stop().await;
    }

    /// Cases 23, 24 and 25 on binding arguments, and case 24 on identity values.
    async fn arguments_are_compared_by_what_they_mean(kind) {
        use Then::{Mismatch, Same};
        let server = TestServer::with_policy(kind, crate::support::calls::CHARGE_POLICY).await;
        let table: &[(&str, &str, Then)] = &[
            (r#"{"a":{"x":1,"y":2},"b":3}"#, r#"{"b":3,"a":{"y":2,"x":1}}"#, Same),
            (r#"{"side":["debit","credit"]}"#, r#"{"side":["credit","debit"]}"#, Mismatch("/side")),
            (r#"{"n":10}"#, r#"{"n":10.0}"#, Same),
            (r#"{"n":10}"#, r#"{"n":1e1}"#, Same),
            (r#"{"n":10}"#, r#"{"n":1.0E+1}"#, Same),
            (r#"{"n":0}"#, r#"{"n":-0}"#, Same),
            (r#"{"n":0}"#, r#"{"n":-0.0}"#, Same),
            (r#"{"n":0}"#, r#"{"n":0e9}"#, Same),
            (r#"{"n":10}"#, r#"{"n":"10"}"#, Mismatch("/n")),
            (r#"{"n":9007199254740992}"#, r#"{"n":9007199254740993}"#, Mismatch("/n")),
            (r#"{"n":18446744073709551616}"#, r#"{"n":18446744073709551617}"#, Mismatch("/n")),
            (r#"{"n":0.1}"#, r#"{"n":0.10000000000000001}"#, Mismatch("/n")),
            (r#"{"n":0.1}"#, r#"{"n":1e-1}"#, Same),
            (r#"{"coupon":null}"#, "{}", Same),
            (r#"{"a":{"coupon":null}}"#, r#"{"a":{}}"#, Same),
            ("{}", r#"{"coupon":""}"#, Mismatch("/coupon")),
            (r#"{"coupon":null}"#, r#"{"coupon":false}"#, Mismatch("/coupon")),
            ("{}", "", Same),
            (" { } ", "{}", Same),
            ("{\"name\":\"caf\u{e9}\"}", "{\"name\":\"cafe\u{301}\"}", Same),
            ("{\"caf\u{e9}\":1}", "{\"cafe\u{301}\":1}", Same),
            (r#"{"name":"caf\u00e9"}"#, "{\"name\":\"caf\u{e9}\"}", Same),
            (r#"{"name":"a"}"#, r#"{"name":"A"}"#, Mismatch("/name")),
            (r#"{"name":"a"}"#, r#"{"name":"a "}"#, Mismatch("/name")),
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"a":1,"b":9,"c":9}"#, Mismatch("/b /c")),
            (r#"{"a/b":1}"#, r#"{"a/b":2}"#, Mismatch("/a~1b")),
            (r#"{"deep":{"er":1}}"#, r#"{"deep":{"er":2}}"#, Mismatch("/deep")),
            (r#"{"flag":true}"#, r#"{"flag":1}"#, Mismatch("/flag")),
            (r#"{"list":[1,null]}"#, r#"{"list":[1]}"#, Mismatch("/list")),
        ];
        for (row, (first, second, then)) in table.iter().enumerate() {
            let key = format!("row {row}");
            compare(&server, keyed("any", &key, first), keyed("any", &key, second), *then).await;
        }

        // As identity: text, and numbers by their value.
        let identity: &[(&str, &str, Then)] = &[
            (r#"{"order":8812}"#, r#"{"order":"8812"}"#, Same),
            (r#"{"order":10}"#, r#"{"order":1e1}"#, Same),
            (r#"{"order":11}"#, r#"{"order":"11.0"}"#, Then::Other),
            ("{\"order\":\"caf\u{e9}\"}", "{\"order\":\"cafe\u{301}\"}", Same),
            (r#"{"order":9007199254740992}"#, r#"{"order":9007199254740993}"#, Then::Other),
            (r#"{"order":true}"#, r#"{"order":"true"}"#, Same),
            (r#"{"order":"a"}"#, r#"{"order":"A"}"#, Then::Other),
            (r#"{"order":"o-1","memo":"x"}"#, r#"{"order":"o-1","memo":"y"}"#, Same),
            (r#"{"order":"o-2","memo":"x"}"#, r#"{"order":"o-2"}"#, Same),
        ];
        for (first, second, then) in identity {
            compare(&server, charge_json(first), charge_json(second), *then).await;
        }
        server.stop().await;
    }

    /// Case 24 and section 2: what has no exact meaning is not hashed, and leaves no row.
    async fn arguments_without_an_exact_meaning_are_refused(kind) {
        let server = TestServer::start(kind).await;
        let deep = |levels: usize| {
            format!("{{\"a\":{}1{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
        };
        let large = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        let table = [
            (r#"{"amount":1,"amount":9999}"#.to_owned(), "ARGUMENTS_DUPLICATE_MEMBER"),
            (r#"{"a":{"b":1,"\u0062":2}}"#.to_owned(), "ARGUMENTS_DUPLICATE_MEMBER"),
            ("{\"caf\u{e9}\":1,\"cafe\u{301}\":2}".to_owned(), "ARGUMENTS_DUPLICATE_MEMBER"),
            (r#"{"a":NaN}"#.to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":Infinity}"#.to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":-Infinity}"#.to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":01}"#.to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":1}{}"#.to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":"#.to_owned(), "ARGUMENTS_MALFORMED"),
            ("nonsense".to_owned(), "ARGUMENTS_MALFORMED"),
            (r#"{"a":"\ud800"}"#.to_owned(), "ARGUMENTS_LONE_SURROGATE"),
            (r#"{"\udc00":1}"#.to_owned(), "ARGUMENTS_LONE_SURROGATE"),
            ("[]".to_owned(), "ARGUMENTS_NOT_OBJECT"),
            ("null".to_owned(), "ARGUMENTS_NOT_OBJECT"),
            ("\"{}\"".to_owned(), "ARGUMENTS_NOT_OBJECT"),
            (deep(129), "ARGUMENTS_TOO_DEEP"),
            (deep(100_000), "ARGUMENTS_TOO_DEEP"),
            (large(256 * 1024 + 1), "ARGUMENTS_TOO_LARGE"),
        ];
        for (arguments, expected) in table {
            let error = refused(&server.agent, keyed("t", "k", &arguments), expected).await;
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
        }
        assert_eq!(server.store.count_intents().await, 0);
        expect(&server.agent, keyed("t", "deep", &deep(128)), Decision::Execute, Reason::New).await;
        let largest = large(256 * 1024);
        expect(&server.agent, keyed("t", "large", &largest), Decision::Execute, Reason::New).await;
        server.stop().await;
    }

    /// Section 2: exactly one basis, in this order.
    async fn the_policys_pointers_win_then_the_key_then_business_ids_then_the_step(kind) {
        let server = TestServer::with_policy(kind, crate::support::calls::CHARGE_POLICY).await;
        let all = |tool: &str, key: &str, ids: &[(&str, &str)], run: &str, step: &str| {
            let mut request = about(tool, run, ids, r#"{"order":"o-1"}"#);
            let identity = request.identity.as_mut().unwrap();
            identity.idempotency_key = key.into();
            identity.step_id = step.into();
            request
        };
        let ids: &[(&str, &str)] = &[("order", "o-1")];
        let none: &[(&str, &str)] = &[];
        let table = [
            (all("charge", "", none, "", ""), KeyBasis::Policy, vec![]),
            (all("charge", "k", none, "r", "s"), KeyBasis::Policy, vec!["identity_overridden"]),
            (all("charge", "", ids, "r", "s"), KeyBasis::Policy, vec!["identity_overridden"]),
            (all("other", "k", none, "r", "s"), KeyBasis::IdempotencyKey, vec![]),
            (all("other", "", ids, "r", "s"), KeyBasis::BusinessIds, vec![]),
            (all("other", "", none, "r", "s"), KeyBasis::StepArguments, vec!["weak_key"]),
        ];
        for (request, basis, warnings) in table {
            let answer = begin(&server.agent, request.clone()).await;
            assert_eq!(answer.intent.unwrap().key_basis(), basis, "{request:?}");
            assert_eq!(answer.warnings, warnings, "{request:?}");
        }
        // Both a key and business ids are one too many, even where the policy decides.
        for tool in ["charge", "other"] {
            let both = all(tool, "k", ids, "r", "s");
            refused(&server.agent, both, "IDENTITY_AMBIGUOUS").await;
        }
        // A key that does not decide is checked all the same.
        let bad = all("charge", " k", none, "r", "s");
        refused(&server.agent, bad, "IDEMPOTENCY_KEY_INVALID").await;
        server.stop().await;
    }

    /// Section 2: the run is part of the identity unless the scope is the namespace.
    async fn the_scope_says_whether_another_run_is_another_intent(kind) {
        let server = TestServer::with_policy(kind, r#"
            [tools.per_run]
            identity = ["/order"]
            [tools.once]
            identity = ["/order"]
            scope = "namespace"
        "#).await;
        let call = |tool: &str, run: &str| {
            let mut request = about(tool, run, &[], r#"{"order":1}"#);
            request.attempt_id = attempt();
            request
        };
        compare(&server, call("per_run", "r1"), call("per_run", "r2"), Then::Other).await;
        compare(&server, call("once", "r1"), call("once", "r2"), Then::Same).await;
        refused(&server.agent, call("per_run", ""), "RUN_REQUIRED").await;
        expect(&server.agent, call("once", ""), Decision::Hold, Reason::InFlight).await;
        refused(&server.agent, about("any", "", &[("a", "b")], "{}"), "RUN_REQUIRED").await;
        server.stop().await;
    }

    /// Section 2: `normalize` makes spellings one, and only where the policy says so.
    async fn spellings_that_the_policy_names_are_one(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.mail]
            identity = ["/plain", { pointer = "/to", normalize = ["trim", "lowercase", "collapse_whitespace"] }]
        "#).await;
        let call = |plain: &str, to: &str| {
            let arguments = serde_json::json!({"plain": plain, "to": to}).to_string();
            about("mail", "", &[], &arguments)
        };
        compare(&server, call("a", "Ada  L"), call("a", " ada l\t"), Then::Same).await;
        compare(&server, call("b", "ada"), call("B", "ada"), Then::Other).await;
        compare(&server, call("c", "ada"), call("c ", "ada"), Then::Other).await;
        server.stop().await;
    }
}
