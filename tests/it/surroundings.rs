//! Health, reflection and HTTP.

use futures::StreamExt;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};

use crate::{
    on_both_stores,
    support::{
        calls::{attempt, expect, keyed},
        http,
        server::TestServer,
    },
};

const SERVICES: [&str; 2] =
    ["intent_ledger.v1.IntentLedgerService", "intent_ledger.v1.IntentOperationsService"];

async fn get(server: &TestServer, path: &str) -> (u16, String) {
    http::get(&format!("{}{path}", server.http)).await
}

on_both_stores! {
    /// Readiness and health follow the store; liveness does not.
    async fn health_follows_the_store_and_liveness_does_not(kind) {
        let (server, store) = TestServer::faulty(kind, None).await;
        let health = HealthClient::new(server.channel().await);
        let watch = |service: &str| HealthCheckRequest { service: service.into() };
        for service in ["", SERVICES[0], SERVICES[1]] {
            let answer = health.clone().check(watch(service)).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
        }
        let unknown = health.clone().check(watch("nobody")).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        assert_eq!(get(&server, "/healthz").await.0, 200);
        assert_eq!(get(&server, "/readyz").await.0, 200);

        let mut changes = health.clone().watch(watch("")).await.unwrap().into_inner();
        let mut next = async || changes.next().await.unwrap().unwrap().status();
        assert_eq!(next().await, ServingStatus::Serving);
        store.set_down(true);
        assert_eq!(next().await, ServingStatus::NotServing);
        assert_eq!(get(&server, "/healthz").await.0, 200);
        let (status, words) = get(&server, "/readyz").await;
        assert_eq!((status, words.trim()), (503, "the store does not answer"));
        store.set_down(false);
        assert_eq!(next().await, ServingStatus::Serving);
        assert_eq!(get(&server, "/readyz").await.0, 200);
        drop(changes);
        server.stop().await;
    }

    /// A tool that knows only reflection finds every service, by both versions of the protocol.
    async fn reflection_answers_in_both_versions(kind) {
        let server = TestServer::start(kind).await;
        let mut names = Vec::new();
        let request = v1::ServerReflectionRequest {
            message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
                String::new(),
            )),
            ..Default::default()
        };
        let mut client =
            v1::server_reflection_client::ServerReflectionClient::new(server.channel().await);
        let mut answers = client
            .server_reflection_info(tokio_stream::once(request))
            .await
            .unwrap()
            .into_inner();
        let answer = answers.next().await.unwrap().unwrap().message_response;
        let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer
        else {
            panic!("{answer:?}");
        };
        names.push(list.service.into_iter().map(|service| service.name).collect::<Vec<_>>());

        let request = v1alpha::ServerReflectionRequest {
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                    SERVICES[0].into(),
                ),
            ),
            ..Default::default()
        };
        let list_request = v1alpha::ServerReflectionRequest {
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
            ),
            ..Default::default()
        };
        let mut client =
            v1alpha::server_reflection_client::ServerReflectionClient::new(server.channel().await);
        let mut answers = client
            .server_reflection_info(tokio_stream::iter([list_request, request]))
            .await
            .unwrap()
            .into_inner();
        let answer = answers.next().await.unwrap().unwrap().message_response;
        let Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list)) =
            answer
        else {
            panic!("{answer:?}");
        };
        names.push(list.service.into_iter().map(|service| service.name).collect());
        let answer = answers.next().await.unwrap().unwrap().message_response;
        assert!(
            matches!(
                answer,
                Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
            ),
            "{answer:?}"
        );
        for names in names {
            for service in SERVICES.iter().chain(&["grpc.health.v1.Health"]) {
                assert!(names.iter().any(|name| name == service), "{service} in {names:?}");
            }
        }
        server.stop().await;
    }

    /// What operators see: decisions, settlements and errors are counted.
    async fn metrics_count_what_was_answered(kind) {
        use intent_ledger::proto::v1::{Decision, Reason};
        let server = TestServer::start(kind).await;
        let granted =
            expect(&server.agent, keyed("made_up", "k", "{}"), Decision::Execute, Reason::New).await;
        expect(&server.agent, keyed("made_up", "k", "{}"), Decision::Hold, Reason::InFlight).await;
        let report = crate::support::calls::completion(&granted, b"1");
        server.agent.clone().complete(report).await.unwrap();
        server.agent.clone().begin(keyed("", "k", "{}")).await.unwrap_err();
        let (status, text) = get(&server, "/metrics").await;
        assert_eq!(status, 200);
        let has = |parts: &[&str]| text.lines().any(|line| parts.iter().all(|it| line.contains(it)));
        for parts in [
            &["intent_ledger_begins_total{", "decision=\"EXECUTE\"", "reason=\"NEW\""][..],
            &["intent_ledger_begins_total{", "decision=\"HOLD\"", "reason=\"IN_FLIGHT\""],
            &["intent_ledger_settlements_total{", "kind=\"COMPLETE\""],
            &["intent_ledger_errors_total{", "reason=\"TOOL_REQUIRED\""],
            &["intent_ledger_store_write_seconds"],
        ] {
            assert!(has(parts), "{parts:?} in\n{text}");
        }
        assert!(!text.contains("tool=\"made_up\""), "a caller mints no labels:\n{text}");
        assert_eq!(get(&server, "/elsewhere").await.0, 404);
        server.stop().await;
    }

    /// A server without an attempt id from the caller mints one, and says it.
    async fn a_begin_without_an_attempt_id_gets_one(kind) {
        use intent_ledger::proto::v1::{Decision, Reason};
        let server = TestServer::start(kind).await;
        let request = crate::support::calls::with_attempt(keyed("any", "k", "{}"), "");
        let granted =
            expect(&server.agent, request.clone(), Decision::Execute, Reason::New).await;
        uuid::Uuid::parse_str(&granted.attempt_id).unwrap();
        expect(&server.agent, request, Decision::Hold, Reason::InFlight).await;
        assert_ne!(granted.attempt_id, attempt());
        server.stop().await;
    }
}
