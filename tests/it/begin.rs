//! Begin and what follows, over real gRPC.

use intent_ledger::proto::v1::{Decision, Reason};

use crate::{
    on_both_stores,
    support::{
        calls::{CHARGE_POLICY, charge, completion, expect, metadata, reason},
        server::TestServer,
    },
};

on_both_stores! {
    /// The main road: EXECUTE, Complete, and every repeat is the first result as a success.
    async fn a_completed_intent_is_replayed_byte_for_byte(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-17", 1200, "invoice 17"), Decision::Execute, Reason::New)
                .await;
        let result = br#"{"b":1,"a":1.0,"a2":"x\u0000y","big":9007199254740993}"#;
        server.agent.clone().complete(completion(&granted, result)).await.unwrap();
        let replay = expect(
            &server.agent,
            charge("o-17", 1200, "payment for inv. 17"),
            Decision::Replay,
            Reason::Completed,
        )
        .await;
        assert_eq!(replay.intent.unwrap().result.unwrap(), result);
        assert_eq!(replay.warnings, ["free_text_changed"]);
        assert_eq!(replay.attempt_id, "");
        server.stop().await;
    }

    /// Another amount under the same key is told, with the pointer that differs.
    async fn other_binding_arguments_are_rejected(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        expect(&server.agent, charge("o-17", 1200, "a"), Decision::Execute, Reason::New).await;
        let error =
            server.agent.clone().begin(charge("o-17", 1250, "a")).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::FailedPrecondition);
        assert_eq!(reason(&error), "PARAMETERS_CHANGED");
        assert_eq!(metadata(&error, "pointers"), "/amount");
        assert_eq!(metadata(&error, "effectMayHaveHappened"), "true");
        server.stop().await;
    }
}
