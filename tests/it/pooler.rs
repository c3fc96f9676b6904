//! A pooler in transaction mode between the servers and Postgres: `serve --behind-pooler`.

use std::collections::HashSet;

use futures::future::join_all;
use intent_ledger::{
    proto::v1::{CompleteRequest, Decision, FailureKind, IntentState, Reason},
    store::{self, Statements, StoreOptions},
};
use tokio_postgres::SimpleQueryMessage;

use crate::support::{
    calls::{
        CHARGE_POLICY, begin, by_key, charge, complete, completion, error_of, expect, extend, fail,
        failure, key_of, kinds, look, lookup,
    },
    pooler::SESSIONS,
    replicas::Replicas,
    server::{Kind, TestServer, TestStore},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_behind_a_pooler_begins_completes_and_replays() {
    let one = Replicas::start(Kind::Pooled, 1, CHARGE_POLICY).await;
    let agent = one.agent(0);
    let call = || charge("o-17", 1200, "invoice 17");
    let mut first = call();
    let granted = expect(&agent, first.clone(), Decision::Execute, Reason::New).await;
    expect(&agent, first.clone(), Decision::Execute, Reason::Resent).await;
    expect(&agent, call(), Decision::Hold, Reason::InFlight).await;
    extend(&agent, &granted, 30, "ch_1").await.unwrap();
    fail(&agent, failure(&granted, FailureKind::NotExecuted, "refused")).await.unwrap();
    first = call();
    let retried = expect(&agent, first, Decision::Execute, Reason::Retry).await;
    complete(&agent, completion(&retried, b"\0\xff")).await.unwrap();
    // The first attempt speaks up once more: a fact beside the row.
    complete(&agent, completion(&granted, b"late")).await.unwrap_err();
    let replay = expect(&agent, call(), Decision::Replay, Reason::Completed).await;
    assert_eq!(replay.intent.unwrap().result.unwrap(), b"\0\xff");
    let found = lookup(&agent, by_key(&key_of(&granted))).await.unwrap();
    assert_eq!((found.state(), found.attempt), (IntentState::Completed, 2));
    assert!(!kinds(&look(&agent, &found.key).await).is_empty());
    assert_eq!(one.store.count_intents().await, 1);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_storm_over_two_servers_behind_a_pooler_one_executes() {
    let two = Replicas::start(Kind::Pooled, 2, CHARGE_POLICY).await;
    two.one_executes("o-17", 200).await;
    assert_eq!(two.store.count_intents().await, 1);
    two.stop().await;
}

/// Many keys at once: the sessions are lent in turns while statements of all kinds are under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_over_two_servers_behind_a_pooler_are_all_had_once() {
    let two = Replicas::start(Kind::Pooled, 2, CHARGE_POLICY).await;
    let effects = (0..200).map(|number| {
        let (one, other) = (two.agent(number), two.agent(number + 1));
        async move {
            let call = || charge(&format!("o-{number}"), 1, "a");
            let answers = [begin(&one, call()).await, begin(&other, call()).await];
            assert_eq!(answers.each_ref().map(|it| it.reason()), [Reason::New, Reason::InFlight]);
            // Each server settles what the other has granted.
            complete(&other, completion(&answers[0], b"1")).await.unwrap();
            expect(&one, call(), Decision::Replay, Reason::Completed).await;
        }
    });
    join_all(effects).await;
    assert_eq!(two.store.count_intents().await, 200);
    two.stop().await;
}

/// What the tests above rest on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pooler_stands_between_and_lends_for_one_transaction() {
    let test = TestStore::new(Kind::Pooled).await;
    let store = test.open().await;
    let (console, database) = test.address.rsplit_once('/').unwrap();
    let console = format!("{console}/pgbouncer");
    let (console, connection) =
        tokio_postgres::connect(&console, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut modes = Vec::new();
    for message in console.simple_query("SHOW POOLS").await.unwrap() {
        if let SimpleQueryMessage::Row(pool) = message
            && pool.get("database") == Some(database)
        {
            assert_ne!(pool.get("cl_active"), Some("0"), "the store is a client of it");
            modes.push(pool.get("pool_mode").unwrap_or_default().to_owned());
        }
    }
    assert_eq!(modes, ["transaction"]);
    drop(store);
}

/// A migration leaves nothing behind in a session that the next one would trip over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_is_migrated_through_a_pooler_again_and_again() {
    let test = TestStore::new(Kind::Pooled).await;
    let options =
        StoreOptions { statements: Statements::Unnamed, ..StoreOptions::new(&test.address) };
    let (_, newest) = store::migrate(&options).await.unwrap();
    for _ in 0..5 {
        let migrations = [store::migrate(&options), store::migrate(&options)];
        for migrated in join_all(migrations).await {
            assert_eq!(migrated.unwrap(), (newest, newest));
        }
    }
}

/// What a transaction sets, locks or prepares goes with it: the next client of the pooler gets the session as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_back_as_it_was_lent() {
    let test = TestStore::new(Kind::Pooled).await;
    let server = TestServer::on(test.clone(), Some(CHARGE_POLICY)).await;
    let granted = begin(&server.agent, charge("o-17", 1, "a")).await;
    complete(&server.agent, completion(&granted, b"1")).await.unwrap();
    expect(&server.agent, charge("o-17", 1, "b"), Decision::Replay, Reason::Completed).await;
    let stranger = CompleteRequest { key: "ab".repeat(32), ..completion(&granted, b"1") };
    assert_eq!(error_of(complete(&server.agent, stranger).await), "INTENT_NOT_FOUND");
    server.offer(&CHARGE_POLICY.replace("version = 1", "version = 2")).await;
    server.stop().await;

    // Every session that the pooler has, for as long as the transactions last.
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let connected = tokio_postgres::connect(&test.address, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client.simple_query("BEGIN").await.unwrap();
        clients.push(client);
    }
    // The pooler itself sets what each client brings.
    let left_behind = "
        SELECT 'set ' || name FROM pg_settings WHERE source = 'session' AND name NOT IN
            ('application_name', 'client_encoding', 'DateStyle', 'standard_conforming_strings', 'TimeZone')
        UNION ALL
        SELECT 'locked ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
        UNION ALL
        SELECT 'prepared ' || statement FROM pg_prepared_statements";
    let mut used = HashSet::new();
    for client in &clients {
        for message in client.simple_query(left_behind).await.unwrap() {
            if let SimpleQueryMessage::Row(row) = message {
                panic!("{:?}", row.get(0));
            }
        }
        let pid = client.simple_query("SELECT pg_backend_pid()").await.unwrap();
        let pid = pid.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        used.insert(pid.unwrap());
    }
    assert_eq!(used.len(), SESSIONS as usize, "they are all of them");
}
