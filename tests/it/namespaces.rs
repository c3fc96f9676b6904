//! Case 27: tenants see nothing of each other.

use intent_ledger::proto::v1::{
    BeginRequest, CompleteRequest, Decision, ExtendRequest, Intent, ListIntentsRequest,
    LookupRequest, Reason, lookup_request::By,
};
use tonic::Code;

use crate::{
    on_both_stores,
    support::{
        calls::{
            Operator, complete, completion, error_of, expect, key_of, keyed, lookup, metadata,
            reason, resolution, resolve, span,
        },
        server::TestServer,
    },
};

fn of(namespace: &str, request: BeginRequest) -> BeginRequest {
    BeginRequest { namespace: namespace.into(), ..request }
}

async fn list(operator: &Operator, namespace: &str) -> Vec<Intent> {
    let request =
        ListIntentsRequest { namespace: namespace.into(), ..ListIntentsRequest::default() };
    operator.clone().list_intents(request).await.unwrap().into_inner().intents
}

on_both_stores! {
    /// Case 27.
    async fn one_tenants_key_is_nothing_to_another(kind) {
        let server = TestServer::start(kind).await;
        let call = || keyed("charge", "1", r#"{"amount":1}"#);
        let t1 = expect(&server.agent, of("t1", call()), Decision::Execute, Reason::New).await;
        let report = CompleteRequest {
            namespace: "t1".into(),
            downstream_ref: "ch_1".into(),
            ..completion(&t1, b"secret")
        };
        complete(&server.agent, report.clone()).await.unwrap();
        let before = server.store.rows().await;

        // By every way to name it, as t2 and as the default tenant.
        let key = key_of(&t1);
        for namespace in ["t2", ""] {
            for by in [
                By::Key(key.clone()),
                By::DownstreamKey(t1.downstream_key.clone()),
                By::DownstreamRef("ch_1".into()),
                By::Identity(call().identity.unwrap()),
            ] {
                let request = LookupRequest {
                    namespace: namespace.into(),
                    by: Some(by),
                    arguments_json: r#"{"amount":1}"#.into(),
                    ..LookupRequest::default()
                };
                let error = lookup(&server.agent, request).await.unwrap_err();
                assert_eq!((error.code(), reason(&error).as_str()), (Code::NotFound, "INTENT_NOT_FOUND"));
            }
            let foreign = CompleteRequest { namespace: namespace.into(), ..report.clone() };
            assert_eq!(error_of(complete(&server.agent, foreign).await), "INTENT_NOT_FOUND");
            let beat = ExtendRequest {
                namespace: namespace.into(),
                key: key.clone(),
                attempt_id: t1.attempt_id.clone(),
                lease: Some(span(60)),
                ..ExtendRequest::default()
            };
            assert_eq!(error_of(server.agent.clone().extend(beat).await), "INTENT_NOT_FOUND");
            assert!(list(&server.operator, namespace).await.is_empty());
        }
        assert_eq!(server.store.rows().await, before, "untouched");

        // The same name is another intent there.
        let t2 = expect(&server.agent, of("t2", call()), Decision::Execute, Reason::New).await;
        assert_ne!(key_of(&t2), key);
        assert_ne!(t2.downstream_key, t1.downstream_key);
        expect(&server.agent, of("t1", call()), Decision::Replay, Reason::Completed).await;
        assert_eq!(list(&server.operator, "t1").await.len(), 1);
        assert_eq!(list(&server.operator, "t2").await[0].key, key_of(&t2));
        server.stop().await;
    }

    /// What a tenant reports of another's future key stays its own affair.
    async fn a_foreign_orphan_fact_holds_nobody_up(kind) {
        let server = TestServer::start(kind).await;
        let other = TestServer::start(kind).await;
        let call = || keyed("charge", "1", "{}");
        // Keys can be computed by anybody: another ledger stands in for the arithmetic.
        let future = expect(&other.agent, of("t1", call()), Decision::Execute, Reason::New).await;
        let hostile = CompleteRequest { namespace: "t2".into(), ..completion(&future, b"") };
        let error = complete(&server.agent, hostile).await.unwrap_err();
        assert_eq!(metadata(&error, "reportKept"), "true");
        let t1 = expect(&server.agent, of("t1", call()), Decision::Execute, Reason::New).await;
        assert_eq!(key_of(&t1), key_of(&future));
        other.stop().await;
        server.stop().await;
    }

    /// Section 4: no namespace is the namespace `default`.
    async fn no_namespace_is_the_default_one(kind) {
        let server = TestServer::start(kind).await;
        let call = || keyed("charge", "1", "{}");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        assert_eq!(granted.intent.as_ref().unwrap().namespace, "default");
        expect(&server.agent, of("default", call()), Decision::Hold, Reason::InFlight).await;
        assert_eq!(list(&server.operator, "default").await, list(&server.operator, "").await);
        server.stop().await;
    }

    /// A person of one tenant settles nothing of another.
    async fn a_resolution_stays_in_its_namespace(kind) {
        let server = TestServer::start(kind).await;
        let call = || keyed("charge", "1", "{}");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        let mut request = resolution(
            &server.agent,
            &key_of(&granted),
            intent_ledger::proto::v1::Resolution::Executed,
        )
        .await;
        request.namespace = "t2".into();
        assert_eq!(error_of(resolve(&server.operator, request).await), "INTENT_NOT_FOUND");
        expect(&server.agent, call(), Decision::Hold, Reason::InFlight).await;
        server.stop().await;
    }
}
