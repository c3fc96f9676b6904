//! What a status can say that is not the truth.

use std::time::Duration;

use intent_ledger::{
    clock::monotonic,
    downstream::{Fault, Faults},
    proto::status_v1::EffectState,
};
use serde_json::{Value, json};
use tonic::Code;

use super::{Downstream, SHORT, done, not_found};

/// An answer of the gRPC face: the state, and the key and reference of its first effect.
type Grpc = Result<(EffectState, &'static str, &'static str), Code>;

/// An answer of the HTTP face.
type Http = (u16, Value);

/// A lie, and its answers about a key whose effect happened and about one that is unknown.
type Lie = (&'static str, Http, Grpc, Http, Grpc);

/// An effect as a lie shows it.
fn shown(id: &str, state: &str, key: &str, action: Option<&str>) -> Http {
    (200, json!({"id": id, "state": state, "idempotency_key": key, "action": action}))
}

fn page() -> Http {
    let page = "<!doctype html><title>Sign in</title><form><input name=user></form>\n";
    (200, page.into())
}

/// Each lie, about k1 that happened and k2 that did not.
fn lies() -> Vec<Lie> {
    use EffectState::{Executed, NotExecuted, Unspecified};
    let mail = Some("mail");
    let other = "another-key";
    let nothing = Ok((NotExecuted, "", ""));
    let hold = "compliance_hold";
    let gone = (503, json!({"error": "unavailable"}));
    vec![
        (
            "status_unmapped",
            shown("eff-1", hold, "k1", mail),
            Ok((Unspecified, "k1", "eff-1")),
            shown("eff-0", hold, "k2", None),
            Ok((Unspecified, "k2", "eff-0")),
        ),
        // What a gRPC client makes of a page.
        ("status_html", page(), Err(Code::Internal), page(), Err(Code::Internal)),
        (
            "status_other_key",
            shown("eff-1", "done", other, mail),
            Ok((Executed, other, "eff-1")),
            shown("eff-0", "done", other, None),
            Ok((Executed, other, "eff-0")),
        ),
        (
            "status_shared_ref",
            shown("eff-shared", "done", "k1", mail),
            Ok((Executed, "k1", "eff-shared")),
            shown("eff-shared", "done", "k2", None),
            Ok((Executed, "k2", "eff-shared")),
        ),
        (
            "status_redirect",
            (302, "".into()),
            Err(Code::Unknown),
            (302, "".into()),
            Err(Code::Unknown),
        ),
        ("status_lies_absent", not_found(), nothing, not_found(), nothing),
        (
            "status_lies_done",
            (200, done("eff-1", "k1")),
            Ok((Executed, "k1", "eff-1")),
            shown("eff-0", "done", "k2", None),
            Ok((Executed, "k2", "eff-0")),
        ),
        ("status_error", gone.clone(), Err(Code::Unavailable), gone, Err(Code::Unavailable)),
    ]
}

#[track_caller]
fn expect_grpc(asked: Result<super::Seen, tonic::Status>, expected: Grpc, name: &str) {
    match (asked, expected) {
        (Err(status), Err(code)) => assert_eq!(status.code(), code, "{name}"),
        (Ok(seen), Ok((state, key, reference))) => {
            let first = seen.effects.first();
            let first = first.map_or(("", ""), |effect| (effect.0.as_str(), effect.1.as_str()));
            assert_eq!((seen.state, first), (state, (key, reference)), "{name}");
        }
        (asked, expected) => panic!("{name}: {asked:?} instead of {expected:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lie_is_told_for_one_question_to_both_faces() {
    let downstream = Downstream::plain().await;
    downstream.http.post("k1", "").await.unwrap();
    for (name, http_known, grpc_known, http_unknown, grpc_unknown) in lies() {
        let (http, grpc) = downstream.ask("k1", name).await;
        assert_eq!(http, http_known, "{name}");
        expect_grpc(grpc, grpc_known, name);
        let (http, grpc) = downstream.ask("k2", name).await;
        assert_eq!(http, http_unknown, "{name}");
        expect_grpc(grpc, grpc_unknown, name);
        assert_eq!(downstream.ask("k1", "").await.0, (200, done("eff-1", "k1")), "{name} stayed");
        assert_eq!(downstream.ask("k2", "").await.0, not_found(), "{name} stayed");
    }
    let location =
        downstream.http.client.get(format!("{}/v1/effects/by-key/k1", downstream.http.base));
    let answer = location.header("x-fault", "status_redirect").send().await.unwrap();
    assert_eq!(answer.headers()["location"], "/login");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lie_that_a_call_asks_for_stays_with_its_key() {
    let downstream = Downstream::plain().await;
    for (name, known, grpc_known, ..) in lies() {
        // The key is part of what is shown, so it is k1 each time, of a new downstream.
        let downstream = Downstream::plain().await;
        downstream.http.post("k1", name).await.unwrap();
        for _ in 0..2 {
            let (http, grpc) = downstream.ask("k1", "").await;
            assert_eq!(http, known, "{name}");
            expect_grpc(grpc, grpc_known, name);
        }
        assert_eq!(downstream.http.get("/v1/effects/by-ref/eff-1").await.0, known.0, "{name}");
        assert_eq!(downstream.running.questions("k1"), 5, "{name}");
        downstream.http.delete("/v1/faults").await;
        assert_eq!(downstream.ask("k1", "").await.0, (200, done("eff-1", "k1")), "{name}");
    }
    // Even one whose call has no effect, and whose key is asked for before.
    assert_eq!(downstream.ask("k9", "").await.0, not_found());
    downstream.http.post("k9", "refused, status_lies_done").await.unwrap();
    assert_eq!(downstream.ask("k9", "").await.0, shown("eff-0", "done", "k9", None));
    // What is set for a key concerns it alone.
    let lie = Fault::list("status_lies_done").unwrap();
    downstream.running.set_faults(Faults::none().with_key("k8", lie));
    assert_eq!(downstream.ask("k8", "").await.0, shown("eff-0", "done", "k8", None));
    assert_eq!(downstream.ask("k7", "").await.0, not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_status_tells_what_is_true_when_it_answers() {
    let downstream = Downstream::plain().await;
    let impatient = downstream.http.waiting(SHORT);
    assert!(impatient.status("k1", "status_slow=1h").await.unwrap_err().is_timeout());
    let begun = monotonic();
    let slow = downstream.http.status("k1", "status_slow=2s");
    let meanwhile = async {
        downstream.running.until(|it| it.questions("k1") == 2).await;
        downstream.http.post("k1", "").await.unwrap()
    };
    let (slow, _) = tokio::join!(slow, meanwhile);
    assert_eq!(slow.unwrap(), (200, done("eff-1", "k1")));
    assert!(monotonic().duration_since(begun) >= Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_knows_only_reflection_finds_the_service_and_its_health() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let downstream = Downstream::plain().await;
    let url = format!("http://{}", downstream.running.grpc);
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let service = "intent_ledger.status.v1.EffectStatusService";
    let check = HealthCheckRequest { service: service.into() };
    let health = HealthClient::new(channel.clone()).check(check).await.unwrap().into_inner();
    assert_eq!(health.status, tonic_health::ServingStatus::Serving as i32);
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(list))
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answers.message_response else {
        panic!("{answers:?}");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.iter().any(|name| name == service), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("LedgerService")), "{names:?}");
}
