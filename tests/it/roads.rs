//! The two roads of a batch to Postgres: one call of a function of the session, or a transaction of four
//! messages where sessions may make no functions.

use intent_ledger::proto::v1::{Decision, Reason};

use crate::support::{
    calls::{CHARGE_POLICY, charge, complete, completion, expect},
    server::{Kind, TestServer, TestStore},
};

/// How many functions the sessions of the server have made, and how many effects were had.
async fn functions_after_an_effect(server: &TestServer) -> i64 {
    let call = || charge("o-17", 1200, "invoice 17");
    let granted = expect(&server.agent, call(), Decision::Execute, Reason::New).await;
    complete(&server.agent, completion(&granted, b"1")).await.unwrap();
    expect(&server.agent, call(), Decision::Replay, Reason::Completed).await;
    assert_eq!(server.store.count_intents().await, 1);
    let made = "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                WHERE p.proname LIKE 'write\\_%' AND n.nspname LIKE 'pg\\_temp\\_%'";
    server.store.postgres().await.query_one(made, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_call_of_a_function() {
    let server = TestServer::with_policy(Kind::Postgres, CHARGE_POLICY).await;
    assert!(functions_after_an_effect(&server).await >= 2, "a new row and a settlement");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_make_no_functions_writes_all_the_same() {
    let store = TestStore::new(Kind::Postgres).await;
    let session = store.postgres().await;
    let role = format!("ledger_{}", intent_ledger::ids::random().simple());
    let (_, database) = store.address.rsplit_once('/').unwrap();
    session
        .batch_execute(&format!(
            "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC; CREATE ROLE {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
        ))
        .await
        .unwrap();
    let address = format!("{}?options=-c%20role%3D{role}", store.address);
    let server = TestServer::on(store.through(address), Some(CHARGE_POLICY)).await;
    assert_eq!(functions_after_an_effect(&server).await, 0);
    server.stop().await;
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    session.batch_execute(&drop).await.unwrap();
}
