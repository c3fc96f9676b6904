//! Case 26: an upgrade that hashes otherwise still knows the rows of before.

use intent_ledger::{
    ledger::LedgerOptions,
    proto::v1::{BeginRequest, Decision, LookupRequest, Reason, lookup_request::By},
};

use crate::{
    on_both_stores,
    support::{
        calls::{by_key, charge, completion, expect, key_of, metadata, reason},
        load::PATIENT_POLICY,
        server::{TestServer, TestStore},
    },
};

/// The key of order `o-17` under version 1: rows in the field carry it.
const KEY_OF_O_17: &str = "bfdc88ca807003893a7fb8313acb173a6700103d85f1b081dffef95659c6101c";

fn by_identity(request: &BeginRequest) -> LookupRequest {
    LookupRequest {
        by: Some(By::Identity(request.identity.clone().unwrap())),
        arguments_json: request.arguments_json.clone(),
        ..LookupRequest::default()
    }
}

async fn upgraded(store: TestStore) -> TestServer {
    let options = LedgerOptions { hash_version: 2, ..LedgerOptions::default() };
    TestServer::with_options(store, Some(PATIENT_POLICY), options).await
}

on_both_stores! {
    async fn rows_of_hash_version_1_are_found_by_a_server_that_writes_version_2(kind) {
        let old = TestServer::with_policy(kind, PATIENT_POLICY).await;
        let done = charge("o-17", 1200, "invoice 17");
        let granted = expect(&old.agent, done, Decision::Execute, Reason::New).await;
        assert_eq!(key_of(&granted), KEY_OF_O_17);
        old.agent.clone().complete(completion(&granted, b"first")).await.unwrap();
        let open = charge("o-18", 1200, "invoice 18");
        let granted = expect(&old.agent, open.clone(), Decision::Execute, Reason::New).await;
        let downstream_key = granted.downstream_key.clone();

        let new = upgraded(old.stop().await).await;
        let again = charge("o-17", 1200, "reworded");
        let replay =
            expect(&new.agent, again.clone(), Decision::Replay, Reason::Completed).await;
        assert_eq!(key_of(&replay), KEY_OF_O_17);
        assert_eq!(replay.intent.unwrap().result.unwrap(), b"first");
        let error = new.agent.clone().begin(charge("o-17", 1250, "x")).await.unwrap_err();
        assert_eq!(reason(&error), "PARAMETERS_CHANGED");
        assert_eq!(metadata(&error, "pointers"), "/amount");
        for lookup in [by_key(KEY_OF_O_17), by_identity(&again)] {
            let found = new.agent.clone().lookup(lookup).await.unwrap().into_inner();
            assert_eq!(found.intent.unwrap().key, KEY_OF_O_17);
        }

        // What was in flight during the upgrade: the same attempt, the same downstream key.
        let resent = expect(&new.agent, open, Decision::Execute, Reason::Resent).await;
        assert_eq!(resent.downstream_key, downstream_key);
        new.agent.clone().complete(completion(&resent, b"{}")).await.unwrap();

        // A new key is of the new version, and everything works on it.
        let fresh = charge("o-19", 1200, "invoice 19");
        let granted = expect(&new.agent, fresh.clone(), Decision::Execute, Reason::New).await;
        let versions = "UPDATE intents SET version = version WHERE hash_version = ";
        assert_eq!(new.store.sql(&format!("{versions}1")).await, 2);
        assert_eq!(new.store.sql(&format!("{versions}2")).await, 1);
        let lookups = [
            by_key(&key_of(&granted)),
            by_identity(&fresh),
            LookupRequest {
                by: Some(By::DownstreamKey(granted.downstream_key.clone())),
                ..LookupRequest::default()
            },
        ];
        for lookup in lookups {
            let found = new.agent.clone().lookup(lookup).await.unwrap().into_inner();
            assert_eq!(found.intent.unwrap().key, key_of(&granted));
        }
        new.agent.clone().complete(completion(&granted, b"{}")).await.unwrap();
        expect(&new.agent, fresh, Decision::Replay, Reason::Completed).await;
        new.stop().await;
    }
}
