//! Results are kept for their time, keys for theirs, and what is not settled for ever: cases 37 and 38.

use std::{sync::Arc, time::Duration};

use intent_ledger::{
    ledger::{Forgotten, Ledger, LedgerOptions},
    proto::v1::{BeginResponse, Decision, FailureKind, IntentState, Reason},
};
use tokio_util::sync::CancellationToken;

use crate::{
    on_both_stores,
    support::{
        calls::{
            Agent, CHARGE_POLICY, begin, by_key, charge, complete, completed, completion, error_of,
            expect, fail, failure, key_of, look, lookup, metadata, refused,
        },
        faulty::FaultyStore,
        http,
        load::wait_until,
        nobody::Nobody,
        process::ServerProcess,
        server::{Kind, TestServer, TestStore},
    },
};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A replica that does nothing but passes when it is told to.
struct Pruner(Arc<Ledger>);

impl Pruner {
    async fn on(store: &TestStore) -> Self {
        let options = LedgerOptions::default();
        Self(Ledger::start(store.open().await, Nobody::to_ask(), &options).await.unwrap())
    }

    async fn pass(&self) -> (usize, usize) {
        let Forgotten { pruned, purged, .. } =
            self.0.prune(&CancellationToken::new()).await.unwrap();
        (pruned, purged)
    }
}

/// Passes at this moment, by a replica that knows the active policy; how many were pruned and purged.
async fn pass(store: &TestStore) -> (usize, usize) {
    let pruner = Pruner::on(store).await;
    let done = pruner.pass().await;
    pruner.0.stop().await;
    done
}

/// How many ids are in the calendar, and how many different ones.
async fn filed(store: &TestStore) -> (usize, usize) {
    let mut ids: Vec<[u8; 16]> = if let Some(path) = store.address.strip_prefix("sqlite:") {
        let connection = rusqlite::Connection::open(path).unwrap();
        let mut statement = connection.prepare("SELECT intents FROM retention_batches").unwrap();
        let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
        rows.flat_map(|row| row.unwrap().as_chunks().0.to_vec()).collect()
    } else {
        let all = "SELECT unnest(intents) FROM retention_batches";
        let rows = store.postgres().await.query(all, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, uuid::Uuid>(0).into_bytes()).collect()
    };
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    (all, ids.len())
}

async fn look_up(agent: &Agent, order: &str) -> String {
    key_of(&begin(agent, charge(order, 1200, "a")).await)
}

async fn replay(agent: &Agent, order: &str, reason: Reason) -> BeginResponse {
    expect(agent, charge(order, 1200, "again"), Decision::Replay, reason).await
}

on_both_stores! {
    /// Case 37.
    async fn a_pruned_result_is_still_a_replay_and_never_an_execution(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let agent = &server.agent;
        let result = completed(agent, charge("o-37", 1200, "a"), b"{\"id\":\"ch_1\"}").await;
        server.store.age(29 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        let kept = replay(agent, "o-37", Reason::Completed).await;
        assert_eq!(kept.intent.unwrap().result.as_deref(), Some(&b"{\"id\":\"ch_1\"}"[..]));
        server.store.age(DAY + HOUR).await;
        assert_eq!(pass(&server.store).await, (1, 0));

        let answer = replay(agent, "o-37", Reason::ResultPruned).await;
        let intent = answer.intent.unwrap();
        assert_eq!((intent.result, intent.state), (None, IntentState::Completed.into()));
        assert_eq!(intent.result_sha256, result.result_sha256);
        assert!(answer.model_message.contains("do not"), "{}", answer.model_message);
        let error = refused(agent, charge("o-37", 1250, "a"), "PARAMETERS_CHANGED").await;
        assert_eq!(metadata(&error, "pointers"), "/amount");
        assert_eq!(look(agent, &result.key).await.events, []);
        // The same pass again finds nothing.
        assert_eq!(pass(&server.store).await, (0, 0));
    }

    /// Case 38.
    async fn what_is_not_settled_survives_400_days(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let agent = &server.agent;
        let started = expect(agent, charge("o-1", 1200, "a"), Decision::Execute, Reason::New).await;
        let lost = expect(agent, charge("o-2", 1200, "a"), Decision::Execute, Reason::New).await;
        fail(agent, failure(&lost, FailureKind::OutcomeUnknown, "http_504")).await.unwrap();
        for _ in 0..10 {
            server.store.age(40 * DAY).await;
            assert_eq!(pass(&server.store).await, (0, 0));
        }
        assert_eq!(look(agent, &key_of(&started)).await.state(), IntentState::Started);
        assert_eq!(look(agent, &key_of(&lost)).await.state(), IntentState::Unknown);
        assert_eq!(filed(&server.store).await, (2, 2));
        // Settled at last, they stay for their whole retention.
        complete(agent, completion(&started, b"1")).await.unwrap();
        server.store.age(29 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        replay(agent, "o-1", Reason::Completed).await;
        server.store.age(2 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
    }

    /// Case 38: retention counts from settling.
    async fn begun_at_0_h_completed_at_23_h_replayed_at_46_h_and_pruned_at_48_h(kind) {
        let policy = CHARGE_POLICY.replace("[tools.charge]", "[tools.charge]\nretention = \"24h\"");
        let server = TestServer::with_policy(kind, &policy).await;
        let agent = &server.agent;
        let granted = expect(agent, charge("o-38", 1200, "a"), Decision::Execute, Reason::New).await;
        server.store.age(23 * HOUR).await;
        pass(&server.store).await;
        complete(agent, completion(&granted, b"1")).await.unwrap();
        server.store.age(23 * HOUR).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        let kept = replay(agent, "o-38", Reason::Completed).await;
        assert_eq!(kept.intent.unwrap().result.as_deref(), Some(&b"1"[..]));
        server.store.age(2 * HOUR).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        replay(agent, "o-38", Reason::ResultPruned).await;
    }

    async fn a_key_is_remembered_for_its_tombstone_and_then_forgotten(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let agent = &server.agent;
        let intent = completed(agent, charge("o-1", 1200, "a"), b"1").await;
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        server.store.age(399 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        replay(agent, "o-1", Reason::ResultPruned).await;
        server.store.age(2 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 1));
        assert_eq!(server.store.count_intents().await, 0);
        assert_eq!(filed(&server.store).await, (0, 0));
        assert_eq!(error_of(lookup(agent, by_key(&intent.key)).await), "INTENT_NOT_FOUND");
        expect(agent, charge("o-1", 1200, "a"), Decision::Execute, Reason::New).await;
    }

    /// The server was off for two years: the key is remembered from the pruning on, not from when it was due.
    async fn a_pruner_that_is_late_forgets_no_key_early(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        completed(&server.agent, charge("o-1", 1200, "a"), b"1").await;
        server.store.age(800 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        server.store.age(DAY).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        replay(&server.agent, "o-1", Reason::ResultPruned).await;
    }

    async fn a_failed_tombstone_counts_its_attempts_and_stays_final(kind) {
        let policy = CHARGE_POLICY.replace("[tools.charge]", "[tools.charge]\nmax_attempts = 2");
        let server = TestServer::with_policy(kind, &policy).await;
        let agent = &server.agent;
        let begin = || charge("o-1", 1200, "a");
        let first = expect(agent, begin(), Decision::Execute, Reason::New).await;
        fail(agent, failure(&first, FailureKind::NotExecuted, "http_422")).await.unwrap();
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        let again = expect(agent, begin(), Decision::Execute, Reason::Retry).await;
        assert_eq!(again.intent.as_ref().unwrap().attempt, 2);
        fail(agent, failure(&again, FailureKind::NotExecuted, "http_422")).await.unwrap();
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        expect(agent, begin(), Decision::Refuse, Reason::FailedFinal).await;
        // A success that nobody believed in any more is kept from now on.
        complete(agent, completion(&again, b"it did")).await.unwrap();
        replay(agent, "o-1", Reason::Completed).await;
        assert_eq!(pass(&server.store).await, (0, 0));
    }

    /// What is pruned is decided by the policy of the day.
    async fn a_longer_retention_holds_at_the_next_look(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        completed(&server.agent, charge("o-1", 1200, "a"), b"1").await;
        pass(&server.store).await;
        server.offer(&CHARGE_POLICY
            .replace("version = 1", "version = 2")
            .replace("[tools.charge]", "[tools.charge]\nretention = \"60d\"")).await;
        server.store.age(40 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 0));
        replay(&server.agent, "o-1", Reason::Completed).await;
        server.store.age(21 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
    }

    /// A pruner that has not heard of the new policy prunes nothing by the old one.
    async fn a_pass_under_an_old_policy_prunes_nothing(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        completed(&server.agent, charge("o-1", 1200, "a"), b"1").await;
        server.store.age(40 * DAY).await;
        let pruner = Pruner::on(&server.store).await;
        server.offer(&CHARGE_POLICY
            .replace("version = 1", "version = 2")
            .replace("[tools.charge]", "[tools.charge]\nretention = \"60d\"")).await;
        assert_eq!(pruner.pass().await, (0, 0));
        replay(&server.agent, "o-1", Reason::Completed).await;
        pruner.0.stop().await;
    }

    /// A server that has just answered a Begin from a row asks whether it is still as it was.
    async fn what_a_server_remembers_of_a_row_does_not_outlive_its_pruning(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let other = TestServer::on(server.store.clone(), None).await;
        let granted =
            expect(&server.agent, charge("o-1", 1200, "a"), Decision::Execute, Reason::New).await;
        expect(&other.agent, charge("o-1", 1200, "a"), Decision::Hold, Reason::InFlight).await;
        complete(&server.agent, completion(&granted, b"1")).await.unwrap();
        replay(&other.agent, "o-1", Reason::Completed).await;
        replay(&server.agent, "o-1", Reason::Completed).await;
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (1, 0));
        for agent in [&server.agent, &other.agent] {
            replay(agent, "o-1", Reason::ResultPruned).await;
        }
        server.store.age(401 * DAY).await;
        assert_eq!(pass(&server.store).await, (0, 1));
        expect(&other.agent, charge("o-1", 1200, "a"), Decision::Execute, Reason::New).await;
        expect(&server.agent, charge("o-1", 1200, "a"), Decision::Hold, Reason::InFlight).await;
    }

    /// Each of many rows is pruned by one of two replicas.
    async fn two_replicas_that_prune_at_once_share_the_work(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let orders: Vec<String> = (0..300).map(|n| format!("o-{n}")).collect();
        let calls = orders.iter().map(|order| completed(&server.agent, charge(order, 1, "a"), b"1"));
        futures::future::join_all(calls).await;
        server.store.age(31 * DAY).await;
        let (one, two) = (Pruner::on(&server.store).await, Pruner::on(&server.store).await);
        let (a, b) = tokio::join!(one.pass(), two.pass());
        assert_eq!(a.0 + b.0, 300, "{a:?} {b:?}");
        assert_eq!(filed(&server.store).await, (300, 300));
        server.store.age(401 * DAY).await;
        let (a, b) = tokio::join!(one.pass(), two.pass());
        assert_eq!(a.1 + b.1, 300, "{a:?} {b:?}");
        assert_eq!(server.store.count_intents().await, 0);
        one.0.stop().await;
        two.0.stop().await;
    }

    /// A pass that is cut short anywhere leaves rows that the next one finds.
    async fn a_pass_that_dies_loses_no_row(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let faulty = FaultyStore::over(server.store.open().await);
        let options = LedgerOptions::default();
        let dying = Ledger::start(Arc::clone(&faulty) as _, Nobody::to_ask(), &options).await.unwrap();
        let mut orders = Vec::new();
        // Claim, read, prune, file, claim what is not there: each with two ways to die.
        for half in 0..11 {
            orders.push(format!("o-{half}"));
            completed(&server.agent, charge(&orders[half], 1200, "a"), b"1").await;
            server.store.age(31 * DAY).await;
            faulty.fails_at_step(Some(half));
            let died = dying.prune(&CancellationToken::new()).await.is_err();
            assert_eq!(died, half < 10, "{half}");
            assert_eq!(filed(&server.store).await, (orders.len(), orders.len()), "{half}");
            // Once the claim of the dead is over, another one does what is left.
            server.store.age(Duration::from_secs(61)).await;
            pass(&server.store).await;
            assert_eq!(filed(&server.store).await, (orders.len(), orders.len()), "{half}");
        }
        dying.stop().await;
        for order in &orders {
            replay(&server.agent, order, Reason::ResultPruned).await;
        }
    }

    /// A thousand times, somebody asks for a key while it is pruned, and while it is purged.
    async fn a_begin_that_meets_the_pruner_gets_one_of_the_two_right_answers(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let pruner = Pruner::on(&server.store).await;
        let rounds = 1000;
        let at_once = 50;
        for round in (0..rounds).step_by(at_once) {
            let orders: Vec<String> = (round..round + at_once).map(|n| format!("o-{n}")).collect();
            let calls = orders.iter().map(|it| completed(&server.agent, charge(it, 1200, "a"), b"1"));
            futures::future::join_all(calls).await;
            server.store.age(31 * DAY).await;
            // Pruned beside Begins: a replay, with the result or without.
            let begins = |order: &String| {
                let (agent, order) = (server.agent.clone(), order.clone());
                async move { (begin(&agent, charge(&order, 1200, "b")).await, order) }
            };
            let asked = || futures::future::join_all(orders.iter().chain(&orders).map(begins));
            let (answers, done) = tokio::join!(asked(), pruner.pass());
            assert_eq!(done, (at_once, 0));
            for (answer, order) in answers {
                let right = match answer.reason() {
                    Reason::Completed => answer.recorded_result() == Some(&b"1"[..]),
                    Reason::ResultPruned => answer.recorded_result().is_none(),
                    _ => false,
                };
                assert!(right && answer.decision() == Decision::Replay, "{order}: {answer:?}");
            }
            server.store.age(401 * DAY).await;
            // Purged beside Begins: a replay, or a new intent that is executed by one.
            let (answers, done) = tokio::join!(asked(), pruner.pass());
            assert_eq!(done, (0, at_once));
            for order in &orders {
                let of_order = answers.iter().filter(|(_, it)| it == order);
                let words: Vec<(Decision, Reason)> =
                    of_order.map(|(answer, _)| (answer.decision(), answer.reason())).collect();
                let executed = words.iter().filter(|(it, _)| *it == Decision::Execute).count();
                let right = words.iter().all(|it| {
                    [
                        (Decision::Replay, Reason::ResultPruned),
                        (Decision::Execute, Reason::New),
                        (Decision::Hold, Reason::InFlight),
                    ]
                    .contains(it)
                });
                assert!(right && executed <= 1, "{order}: {words:?}");
            }
        }
        pruner.0.stop().await;
    }

    /// A row that nobody can understand keeps no other one from being pruned.
    async fn a_poisonous_row_stays_alone(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        for order in ["o-1", "o-2", "o-3"] {
            completed(&server.agent, charge(order, 1200, "a"), b"1").await;
        }
        let key = look_up(&server.agent, "o-2").await;
        let (blob, nothing) = match kind {
            Kind::Sqlite => (format!("x'{key}'"), "x''"),
            _ => (format!("decode('{key}', 'hex')"), "''"),
        };
        let poison = format!("UPDATE intents SET argument_digests = {nothing} WHERE key = {blob}");
        assert_eq!(server.store.sql(&poison).await, 1);
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (2, 0));
        assert_eq!(filed(&server.store).await, (3, 3));
        for order in ["o-1", "o-3"] {
            replay(&server.agent, order, Reason::ResultPruned).await;
        }
    }

    /// What was there before there was a calendar is filed by the migration.
    async fn rows_from_before_the_calendar_are_pruned_too(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        for order in ["o-1", "o-2"] {
            completed(&server.agent, charge(order, 1200, "a"), b"1").await;
        }
        server.store.sql("DELETE FROM granted_batches").await;
        let folder = if kind == Kind::Sqlite { "sqlite" } else { "postgres" };
        let path = format!("migrations/{folder}/0005_schedule_retention.sql");
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let migration = std::fs::read_to_string(root.join(path)).unwrap();
        let (_, filing) = migration.split_once("INSERT INTO retention_batches").unwrap();
        server.store.sql(&format!("INSERT INTO retention_batches{}", filing.trim_end().trim_end_matches(';'))).await;
        assert_eq!(filed(&server.store).await, (2, 2));
        server.store.age(31 * DAY).await;
        assert_eq!(pass(&server.store).await, (2, 0));
    }

    /// A server prunes by itself.
    async fn a_server_prunes_in_the_background(kind) {
        let store = TestStore::new(kind).await;
        let opened = store.open().await;
        let server = TestServer::over(store, opened, Some(CHARGE_POLICY), LedgerOptions::default(), |config| {
            config.prune_interval = Duration::from_millis(20);
        }).await;
        completed(&server.agent, charge("o-1", 1200, "a"), b"1").await;
        server.store.age(31 * DAY).await;
        wait_until("the result is pruned", async || {
            begin(&server.agent, charge("o-1", 1200, "a")).await.reason() == Reason::ResultPruned
        })
        .await;
        // It is counted once the server has heard of it, which may be after whoever reads the row.
        wait_until("it is counted", async || {
            let (_, metrics) = http::get(&format!("{}/metrics", server.http)).await;
            metrics.contains("intent_ledger_pruned_total")
        })
        .await;
    }

    /// Servers that are killed in the middle of passes lose no row.
    async fn killed_servers_lose_no_row(kind) {
        let store = TestStore::new(kind).await;
        let server = TestServer::on(store.clone(), Some(CHARGE_POLICY)).await;
        let orders: Vec<String> = (0..400).map(|n| format!("o-{n}")).collect();
        let calls = orders.iter().map(|order| completed(&server.agent, charge(order, 1200, "a"), b"1"));
        futures::future::join_all(calls).await;
        server.stop().await;
        store.age(31 * DAY).await;
        for _ in 0..3 {
            let mut flags = store.flags().to_vec();
            flags.extend(["--prune-interval", "1ms"]);
            let mut process = ServerProcess::start(&store.address, None, &flags).await;
            process.kill9();
            let (all, different) = filed(&store).await;
            assert!(all <= 400 && (different == 400 || different == 0), "{all} {different}");
            store.age(Duration::from_secs(61)).await;
        }
        pass(&store).await;
        assert_eq!(filed(&store).await, (400, 400));
        let server = TestServer::on(store, None).await;
        for order in &orders {
            replay(&server.agent, order, Reason::ResultPruned).await;
        }
    }
}

/// A row that somebody's open transaction holds is left for another look, and holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_left_for_another_look() {
    let server = TestServer::with_policy(Kind::Postgres, CHARGE_POLICY).await;
    let held = completed(&server.agent, charge("o-1", 1200, "a"), b"1").await;
    server.store.age(31 * DAY).await;
    let session = server.store.postgres().await;
    session.batch_execute("BEGIN; SELECT FROM intents FOR UPDATE").await.unwrap();
    assert_eq!(pass(&server.store).await, (0, 0));
    replay(&server.agent, "o-1", Reason::Completed).await;
    session.batch_execute("ROLLBACK").await.unwrap();
    server.store.age(Duration::from_secs(61)).await;
    assert_eq!(pass(&server.store).await, (1, 0));
    assert_eq!(look(&server.agent, &held.key).await.result, None);
}

/// Shorter ways to read an answer.
trait RecordedResult {
    fn recorded_result(&self) -> Option<&[u8]>;
}

impl RecordedResult for BeginResponse {
    fn recorded_result(&self) -> Option<&[u8]> {
        self.intent.as_ref().and_then(|intent| intent.result.as_deref())
    }
}
