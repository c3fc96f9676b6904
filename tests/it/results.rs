//! Cases 28 and 29: what a replay hands back.

use std::collections::BTreeSet;

use intent_ledger::proto::v1::{
    CompleteRequest, Decision, Reason, intent_ledger_service_client::IntentLedgerServiceClient,
};
use sha2::{Digest, Sha256};

use crate::{
    on_both_stores,
    support::{
        calls::{
            CHARGE_POLICY, begin, charge, complete, completed, completion, error_of, expect,
            key_of, look, reason,
        },
        server::TestServer,
    },
};

fn sha256(bytes: &[u8]) -> String {
    const_hex::encode(Sha256::digest(bytes))
}

on_both_stores! {
    /// Case 28, and section 4: any bytes, and none.
    async fn any_result_is_replayed_byte_for_byte(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let results: &[&[u8]] = &[
            br#"{"b":1,"a":1.0,"a2":"x\u0000y","big":9007199254740993}"#,
            b"",
            b"null",
            b"false",
            b"\0",
            b"a\0b",
            &[0xff, 0xfe, 0x00, 0x80],
            "caf\u{e9} cafe\u{301}".as_bytes(),
            br#"{"a":1,"a":2}"#,
            b" \n{ } \r\n",
            br#""\ud800""#,
        ];
        for (order, result) in results.iter().enumerate() {
            let call = || charge(&format!("o-{order}"), 1, "a");
            let settled = completed(&server.agent, call(), result).await;
            assert_eq!(settled.result.as_deref(), Some(*result));
            let replay = expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
            let intent = replay.intent.unwrap();
            assert_eq!(intent.result.as_deref(), Some(*result));
            assert_eq!(intent.result_sha256, sha256(result));
            assert_eq!(intent.result_content_type, "application/json");
            assert!(!intent.result_truncated);
            serde_json::from_str::<serde::de::IgnoredAny>(&replay.model_message).unwrap();
        }
        // No result at all is not an empty one.
        let call = || charge("none", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        complete(&server.agent, CompleteRequest { result: None, ..completion(&granted, b"") })
            .await
            .unwrap();
        let replay = expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
        let intent = replay.intent.unwrap();
        assert_eq!((intent.result, intent.result_sha256.as_str()), (None, ""));
        server.stop().await;
    }

    /// Case 28: settling was refused for size; the engine paid again.
    async fn five_mebibytes_complete_and_a_stock_client_reads_the_replay(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        // 4 MiB is what a client reads that nobody has told otherwise.
        let stock = IntentLedgerServiceClient::new(server.channel().await);
        let call = || charge("o-1", 1, "a");
        let whole: Vec<u8> = (0..5 * 1024 * 1024_u32).map(|i| (i % 251) as u8).collect();
        let granted = expect(&stock, call(), Decision::Execute, Reason::New).await;
        let answer = stock.clone().complete(completion(&granted, &whole)).await.unwrap().into_inner();
        assert_eq!(answer.warnings, ["result_truncated"]);
        let replay = expect(&stock, call(), Decision::Replay, Reason::Completed).await;
        let intent = replay.intent.unwrap();
        assert!(intent.result_truncated);
        assert_eq!(intent.result_sha256, sha256(&whole));
        assert_eq!(intent.result.as_deref(), Some(&whole[..256 * 1024]));
        // The same whole again is the same report; another with the same beginning is not.
        complete(&stock, completion(&granted, &whole)).await.unwrap();
        let mut other = whole.clone();
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(error_of(complete(&stock, completion(&granted, &other)).await), "ALREADY_SETTLED");
        assert_eq!(look(&stock, &key_of(&granted)).await.result_sha256, sha256(&whole));
        server.stop().await;
    }

    /// Section 4: requests up to 16 MiB are read; beyond, the library answers, without our details.
    async fn requests_are_read_up_to_sixteen_mebibytes(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let granted =
            expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        let over = vec![b'x'; 17 * 1024 * 1024];
        let error = complete(&server.agent, completion(&granted, &over)).await.unwrap_err();
        assert_eq!(reason(&error), "");
        let close = vec![b'x'; 16 * 1024 * 1024 - 1024];
        let settled = complete(&server.agent, completion(&granted, &close)).await.unwrap();
        assert!(settled.result_truncated);
        assert_eq!(settled.result_sha256, sha256(&close));
        server.stop().await;
    }

    /// Section 4: a caller that had to cut the result itself says what the whole was.
    async fn a_result_that_the_caller_cut_keeps_the_callers_digest(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        let cut = CompleteRequest {
            result_sha256: sha256(b"the whole"),
            result_size: 9,
            ..completion(&granted, b"the")
        };
        let wrong = [
            CompleteRequest { result_sha256: "abc".into(), ..cut.clone() },
            CompleteRequest { result_sha256: sha256(b"x").to_uppercase(), ..cut.clone() },
            CompleteRequest { result_sha256: String::new(), ..cut.clone() },
            CompleteRequest { result_size: -1, ..cut.clone() },
            CompleteRequest { result_size: 2, ..cut.clone() },
            CompleteRequest { result_size: 3, ..cut.clone() },
        ];
        for request in wrong {
            assert_eq!(error_of(complete(&server.agent, request).await), "RESULT_DIGEST_INVALID");
        }
        let settled = complete(&server.agent, cut).await.unwrap();
        assert!(settled.result_truncated);
        assert_eq!(settled.result.as_deref(), Some(&b"the"[..]));
        assert_eq!(settled.result_sha256, sha256(b"the whole"));
        server.stop().await;
    }

    /// Section 5: `max_result_bytes` is the tool's.
    async fn the_policy_says_how_much_of_a_result_is_kept(kind) {
        let server = TestServer::with_policy(kind, r#"
            [defaults]
            scope = "namespace"
            [tools.charge]
            identity = ["/order"]
            max_result_bytes = "4B"
        "#).await;
        for (order, result, kept) in [("o-1", "1234", "1234"), ("o-2", "12345", "1234")] {
            let settled = completed(&server.agent, charge(order, 1, "a"), result.as_bytes()).await;
            assert_eq!(settled.result.as_deref(), Some(kept.as_bytes()));
            assert_eq!(settled.result_truncated, result != kept);
            assert_eq!(settled.result_sha256, sha256(result.as_bytes()));
        }
        server.stop().await;
    }

    /// Case 29: a replay is history, not the current state of the world.
    async fn a_replay_is_history(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let mut tickets = BTreeSet::new();
        let call = || charge("o-1", 1, "a");
        let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
        tickets.insert("T-1");
        let ticket = br#"{"ticket":"T-1"}"#;
        complete(&server.agent, completion(&granted, ticket)).await.unwrap();
        tickets.remove("T-1");
        let replay = begin(&server.agent, call()).await;
        assert_eq!(replay.decision(), Decision::Replay);
        assert_eq!(replay.intent.unwrap().result.as_deref(), Some(&ticket[..]));
        assert!(tickets.is_empty(), "nothing is made anew");
        server.stop().await;
    }
}
