//! Cases 1 to 10: the same call again, and calls that only look the same.

use std::time::Duration;

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, Decision, EventKind, IntentState, Reason,
};
use prost::{Message, bytes::BufMut};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, begin, charge, complete, completed, completion, expect, key_of, keyed,
            kinds, look, metadata, refused, state_of, step,
        },
        server::TestServer,
    },
};

on_both_stores! {
    /// Case 1. Runs restarted after 180 s: time alone grants nothing, and the first caller is still
    /// heard.
    async fn a_caller_that_is_silent_for_three_minutes_keeps_its_effect_to_itself(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = || charge("o-17", 1200, "invoice 17");
        let first = expect(&server.agent, k1(), Decision::Execute, Reason::New).await;
        server.store.age(Duration::from_secs(181)).await;
        let other = BeginRequest { caller: "worker-2".into(), ..k1() };
        let held = begin(&server.agent, other).await;
        assert_eq!(held.decision(), Decision::Hold);
        assert!(
            matches!(held.reason(), Reason::OutcomeUnknown | Reason::NeedsAttention),
            "{held:?}"
        );
        assert_eq!(held.attempt_id, "");
        let settled = complete(&server.agent, completion(&first, br#"{"id":"ch_1"}"#)).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        let third = expect(&server.agent, k1(), Decision::Replay, Reason::Completed).await;
        let intent = third.intent.unwrap();
        assert_eq!(intent.result.unwrap(), br#"{"id":"ch_1"}"#);
        assert_eq!((intent.attempt, intent.conflict), (1, false));
        server.stop().await;
    }

    /// Case 2. One pausing tool re-ran its finished siblings.
    async fn a_resumed_batch_replays_what_is_done_and_holds_what_is_open(kind) {
        let server = TestServer::start(kind).await;
        let mail = || step("send_email", "r1", "mail", r#"{"to":"a@example.com"}"#);
        let ask = || step("ask_person", "r1", "ask", r#"{"question":"refund?"}"#);
        completed(&server.agent, mail(), b"\"sent\"").await;
        expect(&server.agent, ask(), Decision::Execute, Reason::New).await;
        let replayed = expect(&server.agent, mail(), Decision::Replay, Reason::Completed).await;
        assert_eq!(replayed.intent.unwrap().result.unwrap(), b"\"sent\"");
        expect(&server.agent, ask(), Decision::Hold, Reason::InFlight).await;
        server.stop().await;
    }

    /// Case 3, without its list of attempts. Tool-call ids are new each time.
    async fn new_tool_call_ids_get_the_same_bytes(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = |id: &str| BeginRequest {
            tool_call_id: id.into(),
            ..charge("o-17", 1200, "invoice 17")
        };
        let result = br#"{"id": "ch_1" , "amount":1200.00}"#;
        completed(&server.agent, call("call_1"), result).await;
        for id in ["call_3", "call_5"] {
            let replay =
                expect(&server.agent, call(id), Decision::Replay, Reason::Completed).await;
            assert_eq!(replay.intent.unwrap().result.unwrap(), result, "{id}");
            assert!(replay.warnings.is_empty(), "{:?}", replay.warnings);
        }
        server.stop().await;
    }

    /// Case 4. At temperature 0 only the memo differed; two transfers.
    async fn another_memo_is_replayed_and_another_amount_is_told(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        completed(&server.agent, charge("o-17", 1200, "invoice 17"), b"1").await;
        let reworded = charge("o-17", 1200, "payment for inv. 17");
        let replay = expect(&server.agent, reworded, Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.warnings, ["free_text_changed"]);
        let error =
            refused(&server.agent, charge("o-17", 1250, "invoice 17"), "PARAMETERS_CHANGED").await;
        assert_eq!(metadata(&error, "pointers"), "/amount");
        assert_eq!(metadata(&error, "state"), "COMPLETED");
        assert!(!error.message().contains("1250"), "values stay out: {error:?}");
        server.stop().await;
    }

    /// Case 6. A cache swallowed the second, intended, call.
    async fn calls_that_differ_in_identity_only_all_execute(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let mut keys = Vec::new();
        for order in 1..=18 {
            let granted = expect(
                &server.agent,
                charge(&format!("o-{order}"), 1200, "same"),
                Decision::Execute,
                Reason::New,
            )
            .await;
            let result = order.to_string();
            complete(&server.agent, completion(&granted, result.as_bytes())).await.unwrap();
            keys.push(key_of(&granted));
        }
        for (key, order) in keys.iter().zip(1..) {
            let intent = look(&server.agent, key).await;
            assert_eq!(intent.result.unwrap(), format!("{order}").as_bytes());
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 18);
        assert_eq!(server.store.count_intents().await, 18);
        server.stop().await;
    }

    /// Case 7, without the gated tool.
    async fn a_resume_replays_and_a_fork_executes(kind) {
        let server = TestServer::start(kind).await;
        let call = |run: &str| step("charge", run, &format!("{run}:s4"), r#"{"amount":1200}"#);
        completed(&server.agent, call("r1"), b"1").await;
        expect(&server.agent, call("r1"), Decision::Replay, Reason::Completed).await;
        expect(&server.agent, call("r2"), Decision::Execute, Reason::New).await;
        // A fork that kept the step's name is another run all the same.
        let fork = step("charge", "r2", "r1:s4", r#"{"amount":1200}"#);
        expect(&server.agent, fork, Decision::Execute, Reason::New).await;
        server.stop().await;
    }

    /// Case 8. A stray second caller damaged the first row.
    async fn a_key_that_another_tool_borrows_stays_as_it_was_in_every_column(kind) {
        let server = TestServer::start(kind).await;
        let k1 = || keyed("charge", "k1", r#"{"amount":1200}"#);
        let granted = expect(&server.agent, k1(), Decision::Execute, Reason::New).await;
        let before = server.store.rows().await;
        let stray = || keyed("mail", "k1", r#"{"amount":1200}"#);
        let error = refused(&server.agent, stray(), "PARAMETERS_CHANGED").await;
        assert_eq!(error.code(), tonic::Code::FailedPrecondition);
        refused(&server.agent, keyed("charge", "k1", r#"{"amount":1}"#), "PARAMETERS_CHANGED").await;
        // What is written behind is written by the time a server has stopped.
        let store = server.stop().await;
        assert_eq!(store.rows().await, before);

        let server = TestServer::on(store, None).await;
        let settled = complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        assert_eq!(settled.state(), IntentState::Completed);
        let before = server.store.rows().await;
        refused(&server.agent, stray(), "PARAMETERS_CHANGED").await;
        let store = server.stop().await;
        assert_eq!(store.rows().await, before);
    }

    /// Counters say what they are called: replays are counted, holds and mismatches are not.
    async fn only_replays_are_counted_as_replays(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let k1 = || charge("o-17", 1200, "invoice 17");
        let granted = expect(&server.agent, k1(), Decision::Execute, Reason::New).await;
        expect(&server.agent, k1(), Decision::Hold, Reason::InFlight).await;
        let store = server.stop().await;
        let server = TestServer::on(store, Some(CHARGE_POLICY)).await;
        let intent = look(&server.agent, &key_of(&granted)).await;
        assert_eq!(intent.replay_count, 0);
        assert!(intent.last_seen_time.is_some());
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        for _ in 0..3 {
            expect(&server.agent, k1(), Decision::Replay, Reason::Completed).await;
        }
        let store = server.stop().await;
        let server = TestServer::on(store, Some(CHARGE_POLICY)).await;
        assert_eq!(look(&server.agent, &key_of(&granted)).await.replay_count, 3);
        server.stop().await;
    }

    /// Case 9. A retry mark is evidence, never a reason to refuse.
    async fn a_first_call_that_is_marked_as_a_retry_executes(kind) {
        let server = TestServer::start(kind).await;
        let mut request = Request::new(keyed("charge", "k9", "{}"));
        for (name, value) in [
            ("x-stainless-retry-count", "3"),
            ("grpc-previous-rpc-attempts", "2"),
            ("retry-attempt", "3"),
        ] {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let answer = server.agent.clone().begin(request).await.unwrap().into_inner();
        assert_eq!((answer.decision(), answer.reason()), (Decision::Execute, Reason::New));
        server.stop().await;
    }

    /// Case 10. What surrounds a call never makes it another one.
    async fn what_surrounds_a_call_changes_no_answer(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let result = br#"{"id":"ch_1"}"#;
        let intent = completed(&server.agent, charge("o-17", 1200, "invoice 17"), result).await;

        let plain = charge("o-17", 1200, "invoice 17");
        let other_provenance = BeginRequest {
            caller: "worker-9".into(),
            tool_call_id: "call_9".into(),
            labels: [("client".to_owned(), "9.0".to_owned())].into(),
            lease: Some(crate::support::calls::span(5)),
            ..charge("o-17", 1200, "invoice 17")
        };
        let mut identity = other_provenance.identity.clone().unwrap();
        identity.run_id = "another run".into();
        identity.step_id = "another step".into();
        let other_run = BeginRequest { identity: Some(identity), ..charge("o-17", 1200, "invoice 17") };
        for request in [plain, other_provenance, other_run] {
            for (name, value) in [
                ("x-request-id", "req-2"),
                ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                ("user-agent", "grpc-python/9.99.0"),
            ] {
                let mut call = Request::new(request.clone());
                call.metadata_mut().insert(name, value.parse().unwrap());
                let answer = server.agent.clone().begin(call).await.unwrap().into_inner();
                assert_eq!((answer.decision(), answer.reason()), (Decision::Replay, Reason::Completed));
                assert_eq!(key_of(&answer), intent.key);
                assert_eq!(answer.intent.unwrap().result.unwrap(), result);
            }
        }

        // A newer client: fields that this server does not know, outside and inside.
        let newer = newer_client(&charge("o-17", 1200, "invoice 17"));
        let answer = begin_raw(&server, newer).await.unwrap();
        assert_eq!((answer.decision(), answer.reason()), (Decision::Replay, Reason::Completed));
        assert_eq!(answer.intent.unwrap().result.unwrap(), result);
        let newer = newer_client(&charge("o-18", 1200, "invoice 18"));
        let answer = begin_raw(&server, newer).await.unwrap();
        assert_eq!((answer.decision(), answer.reason()), (Decision::Execute, Reason::New));
        expect(&server.agent, charge("o-18", 1200, "invoice 18"), Decision::Hold, Reason::InFlight)
            .await;
        server.stop().await;
    }

    /// The first answer of an EXECUTE is told apart from any later one.
    async fn nothing_out_of_the_ordinary_leaves_no_events(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        assert_eq!(state_of(&granted), IntentState::Started);
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        expect(&server.agent, charge("o-1", 1, "b"), Decision::Replay, Reason::Completed).await;
        let none: [EventKind; 0] = [];
        assert_eq!(kinds(&look(&server.agent, &key_of(&granted)).await), none);
        server.stop().await;
    }
}

/// A request as a client with a newer proto would send it.
fn newer_client(request: &BeginRequest) -> Vec<u8> {
    /// Field 2000, a string, and field 2001, a number.
    fn put_unknown_fields(message: &mut Vec<u8>) {
        prost::encoding::string::encode(2000, &"from the future".to_owned(), message);
        prost::encoding::uint64::encode(2001, &7, message);
    }
    let mut identity = request.identity.clone().unwrap().encode_to_vec();
    put_unknown_fields(&mut identity);
    let mut message = BeginRequest { identity: None, ..request.clone() }.encode_to_vec();
    prost::encoding::bytes::encode(2, &identity, &mut message);
    put_unknown_fields(&mut message);
    message
}

async fn begin_raw(server: &TestServer, message: Vec<u8>) -> Result<BeginResponse, Status> {
    let mut client = Grpc::new(server.channel().await);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/intent_ledger.v1.IntentLedgerService/Begin");
    Ok(client.unary(Request::new(message), path, RawRequest).await?.into_inner())
}

/// Sends bytes as they are.
struct RawRequest;

impl Codec for RawRequest {
    type Encode = Vec<u8>;
    type Decode = BeginResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawRequest {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawRequest {
    type Item = BeginResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<BeginResponse>, Status> {
        BeginResponse::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
