//! Effect and settlement in one transaction of the application: both, or neither.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use intent_ledger::{
    domain::identity::HASH_VERSION,
    proto::v1::{
        BeginRequest, BeginResponse, Decision, FailureKind, IntentState, Provenance, Reason,
    },
    store::row_id,
};
use sha2::Digest;
use tokio_postgres::{Client, error::SqlState};

use crate::support::{
    calls::{
        self, Agent, approval, approve, attempt, begin, complete, completed, completion, error_of,
        expect, fail, failure, key_of, keyed, look,
    },
    dice::Dice,
    load::wait_until,
    server::{Kind, TestServer, TestStore},
};

/// Tool `post` writes a row of ours; `mail` is like any other.
const POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
[tools.post]
identity = ["/entry"]
downstream.same_transaction = true
[tools.pay]
identity = ["/entry"]
approval = { expires = "1h" }
downstream.same_transaction = true
[tools.mail]
identity = ["/entry"]
"#;

const MINUTE: Duration = Duration::from_secs(61);

fn post(entry: &str) -> BeginRequest {
    keyed("post", "", &format!(r#"{{"entry":"{entry}"}}"#))
}

/// A server, and the application's own table beside the ledger's.
async fn world() -> TestServer {
    let server = TestServer::with_policy(Kind::Postgres, POLICY).await;
    let table = "CREATE TABLE effects (key text NOT NULL, attempt_id uuid NOT NULL)";
    server.store.postgres().await.batch_execute(table).await.unwrap();
    server
}

async fn granted(server: &TestServer, entry: &str) -> BeginResponse {
    expect(&server.agent, post(entry), Decision::Execute, Reason::New).await
}

/// The effect, within the session's transaction.
async fn effect(session: &Client, granted: &BeginResponse) -> Result<u64, tokio_postgres::Error> {
    let insert = "INSERT INTO effects VALUES ($1, $2::text::uuid)";
    session.execute(insert, &[&key_of(granted), &granted.attempt_id]).await
}

/// The settlement, within the session's transaction.
async fn settle(
    session: &Client,
    granted: &BeginResponse,
    result: &[u8],
) -> Result<u64, tokio_postgres::Error> {
    let call = "SELECT intent_ledger.complete($1, $2::text::uuid, $3, 'text/plain')";
    session.execute(call, &[&key_of(granted), &granted.attempt_id, &result]).await
}

/// The application's whole transaction.
async fn execute(session: &Client, granted: &BeginResponse) -> Result<(), tokio_postgres::Error> {
    session.batch_execute("BEGIN").await?;
    effect(session, granted).await?;
    let settled = settle(session, granted, granted.attempt_id.as_bytes()).await;
    session.batch_execute(if settled.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    settled.map(drop)
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, tokio_postgres::Error>) -> String {
    answer.unwrap_err().code().map_or_else(String::new, |code| code.code().to_owned())
}

async fn effects(server: &TestServer) -> i64 {
    let session = server.store.postgres().await;
    session.query_one("SELECT count(*) FROM effects", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_settlement_commit_together() {
    let server = world().await;
    let session = server.store.postgres().await;
    let first = granted(&server, "e-1").await;
    execute(&session, &first).await.unwrap();
    let replay = expect(&server.agent, post("e-1"), Decision::Replay, Reason::Completed).await;
    let intent = replay.intent.unwrap();
    assert_eq!(intent.result.as_deref(), Some(first.attempt_id.as_bytes()));
    assert_eq!(intent.result_content_type, "text/plain");
    assert_eq!(intent.provenance(), Provenance::Caller);
    assert!(intent.settle_time.is_some() && !intent.needs_attention && !intent.conflict);
    assert_eq!(effects(&server).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_settlement_roll_back_together() {
    let server = world().await;
    let session = server.store.postgres().await;
    let first = granted(&server, "e-1").await;
    session.batch_execute("BEGIN").await.unwrap();
    effect(&session, &first).await.unwrap();
    settle(&session, &first, b"1").await.unwrap();
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(look(&server.agent, &key_of(&first)).await.state(), IntentState::Started);
    assert_eq!(effects(&server).await, 0);
    execute(&session, &first).await.unwrap();
    assert_eq!(effects(&server).await, 1);
}

/// The function leaves a row as Complete leaves one; but for the report, which only Complete may have to recognise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_row_is_the_same_as_after_an_ordinary_completion() {
    let server = world().await;
    let session = server.store.postgres().await;
    let results: [Option<&[u8]>; 4] = [Some(b"{\"id\":1}"), Some(b""), Some(b"\0null"), None];
    for (n, result) in results.into_iter().enumerate() {
        let entry = format!("e-{n}");
        let ordinary = keyed("mail", "", &format!(r#"{{"entry":"{entry}"}}"#));
        let ordinary = expect(&server.agent, ordinary, Decision::Execute, Reason::New).await;
        let request = completion(&ordinary, b"");
        let request = intent_ledger::proto::v1::CompleteRequest {
            result: result.map(<[u8]>::to_vec),
            result_content_type: "text/plain".into(),
            ..request
        };
        complete(&server.agent, request).await.unwrap();
        let first = granted(&server, &entry).await;
        let call = "SELECT intent_ledger.complete($1, $2::text::uuid, $3, 'text/plain')";
        session.execute(call, &[&key_of(&first), &first.attempt_id, &result]).await.unwrap();
        let settled = "SELECT (to_jsonb(i) - array['id', 'key', 'fingerprint', 'argument_digests', 'tool',
                           'created_at', 'attempt_id', 'granted_at', 'lease_expires_at', 'details', 'settled_at',
                           'reports'])::text
                       FROM intents i WHERE key = decode($1, 'hex')";
        let mut rows = Vec::new();
        for key in [key_of(&ordinary), key_of(&first)] {
            rows.push(session.query_one(settled, &[&key]).await.unwrap().get::<_, String>(0));
        }
        assert_eq!(rows[0], rows[1], "{entry}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_has_a_code_and_changes_nothing() {
    let server = world().await;
    let session = server.store.postgres().await;
    let agent = &server.agent;
    let first = granted(&server, "e-1").await;
    let mail = keyed("mail", "", r#"{"entry":"e-1"}"#);
    let ordinary = expect(agent, mail, Decision::Execute, Reason::New).await;
    let failed = granted(&server, "e-2").await;
    fail(agent, failure(&failed, FailureKind::NotExecuted, "x")).await.unwrap();
    let before = server.store.rows().await;
    let call = async |key: &str, attempt_id: Option<&str>, bytes: usize| {
        let call = "SELECT intent_ledger.complete($1, $2::text::uuid, $3)";
        session.execute(call, &[&key, &attempt_id, &vec![0_u8; bytes]]).await
    };
    let (key, own, stranger) = (key_of(&first), Some(first.attempt_id.as_str()), attempt());
    let (unknown, shouted) = ("ab".repeat(32), key.to_uppercase());
    let refused = [
        (unknown.as_str(), own, 1, "IL001"),
        (&key, Some(stranger.as_str()), 1, "IL002"),
        (&key_of(&failed), Some(failed.attempt_id.as_str()), 1, "IL003"),
        (&key_of(&ordinary), Some(ordinary.attempt_id.as_str()), 1, "IL004"),
        (&shouted, own, 1, "IL005"),
        ("", own, 1, "IL005"),
        (&key, None, 1, "IL005"),
    ];
    for (key, attempt_id, bytes, expected) in refused {
        assert_eq!(code(call(key, attempt_id, bytes).await), expected);
    }
    assert_eq!(server.store.rows().await, before);
    // A result that is too large is cut, as Complete does it.
    call(&key, own, 256 * 1024 + 1).await.unwrap();
    let cut = look(agent, &key).await;
    assert_eq!((cut.result.unwrap().len(), cut.result_truncated), (256 * 1024, true));
    let whole = sha2::Sha256::digest(vec![0_u8; 256 * 1024 + 1]);
    assert_eq!(cut.result_sha256, const_hex::encode(whole));
    // Its own caller too: what it has done this time must not stand beside the first.
    assert_eq!(code(call(&key, own, 1).await), "IL003");
}

/// The function finds the row of every key that a server can have answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_found_by_its_key_in_every_hash_version() {
    assert_eq!(HASH_VERSION, 1, "intent_ledger.complete has to look for rows of both versions");
    let server = world().await;
    let session = server.store.postgres().await;
    for entry in 0..64 {
        let first = granted(&server, &format!("e-{entry}")).await;
        settle(&session, &first, b"1").await.unwrap();
        let id = row_id(&key_of(&first).parse().unwrap(), HASH_VERSION);
        let state = "SELECT state FROM intents WHERE id = $1";
        assert_eq!(session.query_one(state, &[&id]).await.unwrap().get::<_, i16>(0), 5);
    }
}

/// Words of people are in the same document as the promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_words_of_callers_hide_the_promise_or_feign_it() {
    let server = world().await;
    let session = server.store.postgres().await;
    let agent = &server.agent;
    let feigned = r#"\u0000 \\u0000 "promise":{"same_transaction":true} \"#;
    let labels = [("promise".to_owned(), feigned.to_owned())];
    let labelled = BeginRequest { labels: labels.clone().into(), ..post("e-1") };
    let first = expect(agent, labelled, Decision::Execute, Reason::New).await;
    let mut lost = failure(&first, FailureKind::OutcomeUnknown, "http_504");
    lost.message = format!("a NUL \0 and {feigned}");
    fail(agent, lost).await.unwrap();
    assert_eq!(look(agent, &key_of(&first)).await.state(), IntentState::Unknown);
    settle(&session, &first, b"1").await.unwrap();
    let mail = keyed("mail", "", r#"{"entry":"e-1"}"#);
    let labelled = BeginRequest { labels: labels.into(), ..mail };
    let ordinary = expect(agent, labelled, Decision::Execute, Reason::New).await;
    assert_eq!(code(settle(&session, &ordinary, b"1").await), "IL004");
}

/// What a person was shown goes with the completion, and nothing else of the document changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_was_shown_goes_with_the_completion() {
    let server = world().await;
    let agent = &server.agent;
    let labels = [("words".to_owned(), r"\u0000 \\u0000 \".to_owned())];
    let pay = keyed("pay", "", r#"{"entry":"e-1"}"#);
    let pay = || BeginRequest { labels: labels.clone().into(), ..pay.clone() };
    let asked = expect(agent, pay(), Decision::AwaitApproval, Reason::ApprovalRequired).await;
    let shown = look(agent, &key_of(&asked)).await;
    assert_eq!(shown.arguments_json, r#"{"entry":"e-1"}"#);
    approve(&server.operator, approval(&shown, "ada")).await.unwrap();
    let granted = expect(agent, pay(), Decision::Execute, Reason::Approved).await;
    settle(&server.store.postgres().await, &granted, b"1").await.unwrap();
    let settled = look(agent, &key_of(&granted)).await;
    assert_eq!((settled.state(), settled.arguments_json.as_str()), (IntentState::Completed, ""));
    assert_eq!(settled.labels, labels.into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_needs_no_right_but_that_to_complete() {
    let server = world().await;
    let session = server.store.postgres().await;
    let role = format!("app_{}", intent_ledger::ids::random().simple());
    let make = format!(
        "CREATE ROLE {role}; GRANT INSERT ON effects TO {role}; CREATE SCHEMA decoy;
         CREATE TABLE decoy.intents (LIKE public.intents);
         CREATE FUNCTION public.convert_to(text, text) RETURNS bytea LANGUAGE sql
             AS 'SELECT ''taken''::bytea';
         CREATE FUNCTION public.sha256(text) RETURNS bytea LANGUAGE sql AS 'SELECT ''taken''::bytea';
         GRANT ALL ON SCHEMA decoy TO {role}; SET search_path = decoy, public; SET ROLE {role}"
    );
    session.batch_execute(&make).await.unwrap();
    let first = granted(&server, "e-1").await;
    assert_eq!(code(settle(&session, &first, b"1").await), SqlState::INSUFFICIENT_PRIVILEGE.code());
    let grant = format!(
        "RESET ROLE; GRANT USAGE ON SCHEMA intent_ledger TO {role};
         GRANT EXECUTE ON FUNCTION intent_ledger.complete TO {role}; SET ROLE {role}"
    );
    session.batch_execute(&grant).await.unwrap();
    // A table of its own by the same name is not looked at, not even a temporary one.
    session.batch_execute("SET standard_conforming_strings = off").await.unwrap();
    execute(&session, &first).await.unwrap();
    assert_eq!(code(session.execute("SELECT FROM public.intents", &[]).await), "42501");
    expect(&server.agent, post("e-1"), Decision::Replay, Reason::Completed).await;
    session
        .batch_execute(&format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

/// Whoever reads COMPLETED must not lose it by a crash, however little the application's own commits are
/// worth to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_durable_whatever_the_application_has_set() {
    let server = world().await;
    let mut session = server.store.postgres().await;
    let first = granted(&server, "e-1").await;
    session.batch_execute("SET synchronous_commit = off").await.unwrap();
    let transaction = session.transaction().await.unwrap();
    let call = "SELECT intent_ledger.complete($1, $2::text::uuid, $3)";
    transaction.execute(call, &[&key_of(&first), &first.attempt_id, &&b"1"[..]]).await.unwrap();
    let setting = transaction.query_one("SHOW synchronous_commit", &[]).await.unwrap();
    assert_eq!(setting.get::<_, &str>(0), "on", "at the commit");
    transaction.commit().await.unwrap();
    let setting = session.query_one("SHOW synchronous_commit", &[]).await.unwrap();
    assert_eq!(setting.get::<_, &str>(0), "off", "it is the application's again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_by_the_api_is_refused_and_fail_is_not() {
    let server = world().await;
    let agent = &server.agent;
    let first = granted(&server, "e-1").await;
    assert_eq!(error_of(complete(agent, completion(&first, b"1")).await), "USE_TRANSACTION");
    assert_eq!(look(agent, &key_of(&first)).await.state(), IntentState::Started);
    fail(agent, failure(&first, FailureKind::NotExecuted, "x")).await.unwrap();
    let again = expect(agent, post("e-1"), Decision::Execute, Reason::Retry).await;
    execute(&server.store.postgres().await, &again).await.unwrap();
    // The promise stays with the attempt: it is refused after the settlement too.
    assert_eq!(error_of(complete(agent, completion(&again, b"1")).await), "USE_TRANSACTION");
    completed(agent, keyed("mail", "", r#"{"entry":"e-1"}"#), b"1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_superseded_attempt_rolls_back() {
    let server = world().await;
    let session = server.store.postgres().await;
    let late = granted(&server, "e-1").await;
    expect(&server.agent, post("e-1"), Decision::Hold, Reason::InFlight).await;
    server.store.age(MINUTE).await;
    let newer = expect(&server.agent, post("e-1"), Decision::Execute, Reason::Fenced).await;
    assert_eq!(code(execute(&session, &late).await), "IL002");
    assert_eq!(effects(&server).await, 0);
    execute(&session, &newer).await.unwrap();
    assert_eq!(code(execute(&session, &late).await), "IL003");
    assert_eq!(effects(&server).await, 1);
    let intent = look(&server.agent, &key_of(&newer)).await;
    assert!(!intent.needs_attention && !intent.conflict, "{intent:?}");
}

/// A lease that is over takes nothing from an attempt that nobody has superseded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_lease_is_over_may_still_commit() {
    let server = world().await;
    let first = granted(&server, "e-1").await;
    server.store.age(MINUTE).await;
    execute(&server.store.postgres().await, &first).await.unwrap();
    expect(&server.agent, post("e-1"), Decision::Replay, Reason::Completed).await;
}

/// An application that reads a snapshot finds out that somebody else was granted the right since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_isolation_level_lets_a_superseded_attempt_through() {
    let server = world().await;
    let session = server.store.postgres().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let late = granted(&server, level).await;
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM effects");
        session.batch_execute(&begin).await.unwrap();
        server.store.age(MINUTE).await;
        let newer = expect(&server.agent, post(level), Decision::Execute, Reason::Fenced).await;
        effect(&session, &late).await.unwrap();
        let refused = code(settle(&session, &late, b"1").await);
        assert_eq!(refused, SqlState::T_R_SERIALIZATION_FAILURE.code());
        session.batch_execute("ROLLBACK").await.unwrap();
        execute(&session, &newer).await.unwrap();
    }
    assert_eq!(effects(&server).await, 2);
}

/// A Begin that would grant a further attempt waits for the transaction that is about to settle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_begin_waits_for_a_settlement_that_is_not_committed_yet() {
    let server = world().await;
    let session = server.store.postgres().await;
    for (entry, end, expected) in [
        ("e-1", "COMMIT", (Decision::Replay, Reason::Completed)),
        ("e-2", "ROLLBACK", (Decision::Execute, Reason::Fenced)),
    ] {
        let first = granted(&server, entry).await;
        server.store.age(MINUTE).await;
        session.batch_execute("BEGIN").await.unwrap();
        effect(&session, &first).await.unwrap();
        settle(&session, &first, b"1").await.unwrap();
        let agent = server.agent.clone();
        let waiting = tokio::spawn(async move { begin(&agent, post(entry)).await });
        let watcher = server.store.postgres().await;
        wait_until("the Begin waits for the row", async || {
            let waits = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND wait_event_type = 'Lock'";
            watcher.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
        })
        .await;
        // Others are not held up by it.
        completed(&server.agent, keyed("mail", "", &format!(r#"{{"entry":"{entry}"}}"#)), b"1")
            .await;
        session.batch_execute(end).await.unwrap();
        let answer = waiting.await.unwrap();
        assert_eq!((answer.decision(), answer.reason()), expected, "{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_store_refuses_the_policy() {
    let server = TestServer::with_policy(Kind::Sqlite, "version = 1").await;
    let ledger = intent_ledger::ledger::Ledger::start(
        server.store.open().await,
        crate::support::nobody::Nobody::to_ask(),
        &intent_ledger::ledger::LedgerOptions::default(),
    )
    .await
    .unwrap();
    let offered = POLICY.replace("version = 1", "version = 2")
        + "[namespaces.acme.tools.mail]\ndownstream.same_transaction = true\n";
    let error = ledger.offer_policy(&offered).await.unwrap_err().to_string();
    let expected = "tools.pay, tools.post, namespaces.acme.tools.mail: downstream.same_transaction = true needs";
    assert!(error.starts_with(expected), "{error}");
    ledger.stop().await;
    // The old one stays.
    assert_eq!(server.store.open().await.policies().await.unwrap().active, 1);
}

/// Where a transaction is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Never,
    BeforeTheEffect,
    AfterTheEffect,
    AfterTheSettlement,
    /// Before or after it is durable: nobody can tell.
    DuringTheCommit,
    /// The answer to the commit is lost.
    AfterTheCommit,
}

const EVERYWHERE: [Killed; 6] = [
    Killed::Never,
    Killed::BeforeTheEffect,
    Killed::AfterTheEffect,
    Killed::AfterTheSettlement,
    Killed::DuringTheCommit,
    Killed::AfterTheCommit,
];

/// Executes what was granted on a session of its own, whose backend is killed on the way; whether the application was
/// told that it is committed.
async fn execute_killed(
    store: &TestStore,
    granted: &BeginResponse,
    killed: Killed,
) -> Result<bool, tokio_postgres::Error> {
    let session = store.postgres().await;
    let killer = store.postgres().await;
    let own = session.query_one("SELECT pg_backend_pid()", &[]).await?.get::<_, i32>(0);
    let kill = async || killer.execute("SELECT pg_terminate_backend($1)", &[&own]).await.unwrap();
    session.batch_execute("BEGIN").await?;
    if killed == Killed::BeforeTheEffect {
        kill().await;
    }
    effect(&session, granted).await?;
    if killed == Killed::AfterTheEffect {
        kill().await;
    }
    settle(&session, granted, granted.attempt_id.as_bytes()).await?;
    if killed == Killed::AfterTheSettlement {
        kill().await;
    }
    if killed == Killed::DuringTheCommit {
        let (committed, _) = tokio::join!(session.batch_execute("COMMIT"), kill());
        committed?;
    } else {
        session.batch_execute("COMMIT").await?;
    }
    if killed == Killed::AfterTheCommit {
        kill().await;
        return Ok(false);
    }
    Ok(true)
}

/// What an application does that wants an effect: begins until it is told that the effect has happened.
async fn persist(store: &TestStore, agent: &Agent, entry: &str, mut killed: Vec<Killed>) -> usize {
    let mut granted = 0;
    for _ in 0..1000 {
        let request = BeginRequest {
            lease: Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 }),
            ..post(entry)
        };
        let answer = begin(agent, request).await;
        match answer.decision() {
            Decision::Replay => return granted,
            Decision::Execute => {
                granted += 1;
                let killed = killed.pop().unwrap_or(Killed::Never);
                // Whatever it was told: only the ledger knows what has happened.
                execute_killed(store, &answer, killed).await.ok();
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    panic!("{entry} has no end");
}

/// For each intent: its state, how often its effect is there, and whether the attempt of the effect is that of the
/// result.
async fn truth(store: &TestStore) -> BTreeMap<String, (i16, i64, bool)> {
    let truth = "SELECT encode(i.key, 'hex'), i.state, count(e.key),
                     coalesce(bool_and(convert_from(i.result, 'UTF8') = e.attempt_id::text), false)
                 FROM intents i LEFT JOIN effects e ON e.key = encode(i.key, 'hex')
                 GROUP BY i.id";
    let rows = store.postgres().await.query(truth, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect()
}

/// One caller after the other, each dying at another step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_transaction_dies_the_effect_happens_exactly_once() {
    let server = world().await;
    for killed in EVERYWHERE {
        persist(&server.store, &server.agent, &format!("{killed:?}"), vec![killed]).await;
        // Twice in a row, by the same step and by another.
        persist(&server.store, &server.agent, &format!("{killed:?} twice"), vec![killed; 2]).await;
    }
    let truth = truth(&server.store).await;
    assert_eq!(truth.len(), 2 * EVERYWHERE.len());
    assert!(truth.values().all(|it| *it == (5, 1, true)), "{truth:?}");
}

/// Many callers of each intent, all of whom die by chance; their leases are shorter than their transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_attempts_race_the_effect_happens_exactly_once() {
    let seed = std::env::var("INTENT_LEDGER_TEST_SEED").ok().and_then(|it| it.parse().ok());
    let seed = seed.unwrap_or_else(|| intent_ledger::ids::random().as_u64_pair().0);
    eprintln!("INTENT_LEDGER_TEST_SEED={seed}");
    let server = world().await;
    let callers = (0..48_u64).map(|caller| {
        let (store, agent) = (server.store.clone(), server.agent.clone());
        let mut dice = Dice::new(seed, caller);
        let killed = (0..3).map(|_| dice.one_of(&EVERYWHERE)).collect();
        async move { persist(&store, &agent, &format!("e-{}", caller % 12), killed).await }
    });
    let granted: usize = join_all(callers).await.into_iter().sum();
    let truth = truth(&server.store).await;
    assert_eq!(truth.len(), 12);
    assert!(truth.values().all(|it| *it == (5, 1, true)), "{granted} grants: {truth:?}");
    assert!(granted > 12, "somebody died: {granted}");
}

/// The example of the documentation, as it stands there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_python_posts_each_entry_once() {
    let python = std::env::var("INTENT_LEDGER_TEST_PYTHON").expect("set by ./test.sh");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let policy = std::fs::read_to_string(root.join("examples/policy.toml")).unwrap();
    let policy = policy.replace("# [tools.post_entry]", "[tools.post_entry]");
    let policy = policy.replace("# identity = [\"/entry_id\"]", "identity = [\"/entry_id\"]");
    let policy = policy.replace("# downstream.same_transaction", "downstream.same_transaction");
    let server = TestServer::with_policy(Kind::Postgres, &policy).await;
    let run = || {
        let mut example = std::process::Command::new(&python);
        example
            .arg(root.join("examples/same_transaction.py"))
            .args([server.url.trim_start_matches("http://"), &server.store.address])
            .env("PYTHONDONTWRITEBYTECODE", "1");
        tokio::task::spawn_blocking(move || example.output())
    };
    for expected in ["posted entry-1: 1 row\n", "replayed entry-1: 1 row\n"] {
        let output = run().await.unwrap().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{complaints}");
    }
    assert_eq!(
        calls::look(&server.agent, &only_key(&server.store).await).await.state(),
        IntentState::Completed
    );
}

async fn only_key(store: &TestStore) -> String {
    let key = "SELECT encode(key, 'hex') FROM intents";
    store.postgres().await.query_one(key, &[]).await.unwrap().get(0)
}
