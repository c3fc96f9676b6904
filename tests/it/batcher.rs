//! Many callers, one statement, one answer each, whatever the store does.

mod chance;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::{future::join_all, poll};
use intent_ledger::{
    clock::{Deadline, monotonic},
    domain::{
        attempt::GrantedOn,
        decision::{Decision, ExecuteReason, HoldReason},
        identity::Key,
        intent::State,
        report::Refusal,
    },
    ids,
    ledger::{
        BeginAnswer, BeginRequest, CompleteRequest, ExtendAnswer, ExtendRequest, IdentityRequest,
        Ledger, LedgerError, LedgerOptions, ReportedResult,
    },
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    on_both_stores,
    support::{
        faulty::{Fault, FaultyStore},
        load::wait_until,
        nobody::Nobody,
        seeded::{Dice, Luck},
        server::{Kind, TestStore},
    },
};

/// No attempt runs out while its caller insists.
const POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
lease = "10m"
resend_window = "10m"
[tools.charge]
identity = ["/order"]
[tools.poison]
identity = ["/order"]
"#;

const NEW: ExecuteReason = ExecuteReason::Granted(GrantedOn::New);

/// The tool whose rows the store itself refuses, once it was told to.
const POISON: &str = "poison";

async fn refuse_poison(store: &TestStore) {
    store
        .sql(match store.address.starts_with("sqlite:") {
            true => {
                "CREATE TRIGGER no_poison BEFORE INSERT ON intents WHEN NEW.tool = 'poison'
                 BEGIN SELECT RAISE(ABORT, 'poison'); END"
            }
            false => "ALTER TABLE intents ADD CONSTRAINT no_poison CHECK (tool <> 'poison')",
        })
        .await;
}

fn request(namespace: &str, tool: &str, order: &str, attempt: Uuid) -> BeginRequest {
    BeginRequest {
        namespace: namespace.to_owned(),
        identity: IdentityRequest { tool: tool.to_owned(), ..IdentityRequest::default() },
        arguments_json: format!(r#"{{"order":"{order}"}}"#),
        attempt_id: attempt.to_string(),
        ..BeginRequest::default()
    }
}

fn completion(namespace: &str, key: Key, attempt: Uuid, result: &[u8]) -> CompleteRequest {
    CompleteRequest {
        namespace: namespace.to_owned(),
        key: key.to_string(),
        attempt_id: attempt.to_string(),
        result: ReportedResult { bytes: Some(result.to_vec()), ..ReportedResult::default() },
        ..CompleteRequest::default()
    }
}

fn extension(namespace: &str, key: Key, attempt: Uuid) -> ExtendRequest {
    ExtendRequest {
        namespace: namespace.to_owned(),
        key: key.to_string(),
        attempt_id: attempt.to_string(),
        lease: Some(Duration::from_secs(300)),
        ..ExtendRequest::default()
    }
}

fn reason(answer: &BeginAnswer) -> Option<ExecuteReason> {
    match answer.decision {
        Decision::Execute { reason, .. } => Some(reason),
        _ => None,
    }
}

/// A ledger with one writer, whose batches the test can hold up.
async fn held(test: &TestStore) -> (Arc<FaultyStore>, Arc<Ledger>) {
    let store = FaultyStore::over(test.open().await);
    let options = LedgerOptions::default();
    let ledger = Ledger::start(Arc::clone(&store) as _, Nobody::to_ask(), &options).await.unwrap();
    ledger.offer_policy(POLICY).await.unwrap();
    (store, ledger)
}

type BeginResult = Result<BeginAnswer, LedgerError>;

fn charge<'a>(ledger: &'a Ledger, order: &str) -> impl Future<Output = BeginResult> + use<'a> {
    begin(ledger, "charge", order)
}

fn begin<'a>(
    ledger: &'a Ledger,
    tool: &str,
    order: &str,
) -> impl Future<Output = BeginResult> + use<'a> {
    ledger.begin(request("", tool, order, ids::random()), Deadline::default())
}

fn extended(
    ledger: &Ledger,
    (key, attempt): (Key, Uuid),
) -> impl Future<Output = Result<ExtendAnswer, LedgerError>> + use<'_> {
    ledger.extend(extension("", key, attempt), Deadline::default())
}

/// Has a batch of its own under way, and everything that comes now queued behind it.
async fn hold_behind_a_batch(
    store: &FaultyStore,
    ledger: &Arc<Ledger>,
) -> tokio::task::JoinHandle<BeginResult> {
    store.hold();
    let ledger = Arc::clone(ledger);
    let blocker = tokio::spawn(async move { charge(&ledger, &ids::random().to_string()).await });
    store.held_writes(1).await;
    blocker
}

/// Queues calls in their order: the first poll of each brings it as far as its answer.
macro_rules! queue {
    ($calls:expr) => {
        for call in $calls.iter_mut() {
            assert!(poll!(call).is_pending());
        }
    };
}

/// Queues calls that may have to read their rows first; they are held up when this returns.
async fn queue_after_reading(stores: &[&FaultyStore], mut calls: Pin<&mut impl Future>) {
    loop {
        assert!(poll!(&mut calls).is_pending(), "they are held up");
        if !stores.iter().any(|store| store.is_read()) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

on_both_stores! {
    async fn equal_keys_of_one_batch_are_granted_to_the_first_that_came(kind) {
        let test = TestStore::new(kind).await;
        let (store, ledger) = held(&test).await;
        let blocker = hold_behind_a_batch(&store, &ledger).await;
        let orders = ["b", "a", "b", "c", "a", "b", "c", "c"];
        let mut calls: Vec<_> =
            orders.iter().map(|order| Box::pin(charge(&ledger, order))).collect();
        queue!(calls);
        store.release();
        let answers: Vec<BeginAnswer> =
            join_all(calls).await.into_iter().map(Result::unwrap).collect();
        let new: Vec<bool> = answers.iter().map(|it| reason(it) == Some(NEW)).collect();
        assert_eq!(new, [true, true, false, true, false, false, false, false]);
        for (order, answer) in orders.iter().zip(&answers) {
            let first = orders.iter().position(|it| it == order).unwrap();
            let winner = answers[first].attempt_id;
            let intent = &answer.row.as_ref().unwrap().intent;
            assert_eq!(intent.current().map(|attempt| attempt.id), winner, "{order}");
            if reason(answer).is_none() {
                let Decision::Hold { reason, .. } = answer.decision else { panic!("{answer:?}") };
                assert_eq!(reason, HoldReason::InFlight);
            }
        }
        assert!(blocker.await.unwrap().is_ok());
        ledger.stop().await;
        assert_eq!(test.count_intents().await, 4);
    }

    async fn of_two_results_in_one_batch_the_first_stays(kind) {
        let test = TestStore::new(kind).await;
        let (store, ledger) = held(&test).await;
        let granted = charge(&ledger, "a").await.unwrap();
        let key = granted.row.unwrap().intent.key;
        let attempt = granted.attempt_id.unwrap();
        let blocker = hold_behind_a_batch(&store, &ledger).await;
        let complete = |result: &[u8]| {
            Box::pin(ledger.complete(completion("", key, attempt, result), Deadline::default()))
        };
        let mut first = [complete(b"1")];
        queue!(first);
        let mut others = pin!(join_all([complete(b"2"), complete(b"1")]));
        queue_after_reading(&[&store], others.as_mut()).await;
        store.release();
        let [first] = first;
        assert_eq!(first.await.unwrap().row.intent.state, State::Completed);
        let [other, same] = others.await.try_into().unwrap();
        let refused = other.unwrap_err();
        let LedgerError::Refused { refusal, intent, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(refusal, Refusal::AlreadySettled);
        for intent in [*intent, same.unwrap().row.intent.clone()] {
            assert_eq!(intent.result.unwrap().bytes.unwrap(), b"1");
        }
        assert!(blocker.await.unwrap().is_ok());
        ledger.stop().await;
    }

    /// A row that the store itself refuses does not cost its neighbours their answer.
    async fn a_poisonous_row_fails_alone(kind) {
        let test = TestStore::new(kind).await;
        refuse_poison(&test).await;
        let (store, ledger) = held(&test).await;
        let blocker = hold_behind_a_batch(&store, &ledger).await;
        let tool = |number| if number == 13 { POISON } else { "charge" };
        let mut calls: Vec<_> = (0..40)
            .map(|number| Box::pin(begin(&ledger, tool(number), &format!("o-{number}"))))
            .collect();
        queue!(calls);
        store.release();
        for (number, answer) in join_all(calls).await.into_iter().enumerate() {
            match answer {
                Ok(answer) => assert_eq!((number == 13, reason(&answer)), (false, Some(NEW))),
                Err(LedgerError::Internal(_)) => assert_eq!(number, 13),
                Err(other) => panic!("{number}: {other:?}"),
            }
        }
        assert_eq!(store.batches()[..2], [1, 40], "they were one batch");
        assert!(blocker.await.unwrap().is_ok());
        ledger.stop().await;
        assert_eq!(test.count_intents().await, 40);
    }

    async fn what_is_queued_is_written_by_a_stop_and_what_comes_later_is_turned_away(kind) {
        let test = TestStore::new(kind).await;
        let (store, ledger) = held(&test).await;
        let blocker = hold_behind_a_batch(&store, &ledger).await;
        let mut queued: Vec<_> = (0..300)
            .map(|number| Box::pin(charge(&ledger, &format!("o-{number}"))))
            .collect();
        queue!(queued);
        let mut stop = pin!(ledger.stop());
        assert!(poll!(&mut stop).is_pending());
        let late = charge(&ledger, "late").await;
        assert!(matches!(late, Err(LedgerError::Stopping)), "{late:?}");
        assert!(poll!(&mut stop).is_pending(), "it waits for the batch under way");
        store.release();
        let (answers, ()) = tokio::join!(join_all(queued), stop);
        for answer in answers {
            assert_eq!(reason(&answer.unwrap()), Some(NEW));
        }
        assert!(blocker.await.unwrap().is_ok());
        // Durable, not only answered: whoever opens the store next finds them.
        assert_eq!(test.count_intents().await, 301);
        let late = charge(&ledger, "later still").await;
        assert!(matches!(late, Err(LedgerError::Stopping)), "{late:?}");
        assert_eq!(test.count_intents().await, 301);
    }

    /// A caller that has gone away takes back nothing: its row is written and found by its attempt.
    async fn a_caller_that_goes_away_leaves_its_write_behind(kind) {
        let test = TestStore::new(kind).await;
        let (store, ledger) = held(&test).await;
        let blocker = hold_behind_a_batch(&store, &ledger).await;
        let attempt = ids::random();
        let call = || ledger.begin(request("", "charge", "a", attempt), Deadline::default());
        {
            let mut gone = pin!(call());
            assert!(poll!(&mut gone).is_pending());
        }
        store.release();
        assert!(blocker.await.unwrap().is_ok());
        assert_eq!(reason(&call().await.unwrap()), Some(ExecuteReason::Resent));
        ledger.stop().await;
        assert_eq!(test.count_intents().await, 2);
    }
}

/// The answers of two replicas to the same calls: each has all of them in one batch, the second in reverse, and both
/// batches are let go at once.
async fn crossed<'a, T, C>(
    replicas: &'a [(Arc<FaultyStore>, Arc<Ledger>); 2],
    calls: usize,
    call: impl Fn(&'a Ledger, usize) -> C,
) -> Vec<[T; 2]>
where
    T: std::fmt::Debug,
    C: Future<Output = Result<T, LedgerError>>,
{
    let [(forth_store, forth), (back_store, back)] = replicas;
    let blockers = tokio::join!(
        hold_behind_a_batch(forth_store, forth),
        hold_behind_a_batch(back_store, back)
    );
    let mut all = pin!(async {
        tokio::join!(
            join_all((0..calls).map(|number| call(forth, number))),
            join_all((0..calls).rev().map(|number| call(back, number))),
        )
    });
    queue_after_reading(&[forth_store, back_store], all.as_mut()).await;
    forth_store.release();
    back_store.release();
    let (one, mut other) = all.await;
    assert!(blockers.0.await.unwrap().is_ok() && blockers.1.await.unwrap().is_ok());
    other.reverse();
    let answered = |answer: Result<T, LedgerError>| answer.expect("an answer");
    one.into_iter().zip(other).map(|(one, other)| [one, other].map(answered)).collect()
}

/// Two replicas whose batches hold the same rows in opposite orders, to insert and to replace: everybody is answered,
/// and Postgres has never had to break a deadlock.
async fn batches_that_cross_each_other(kind: Kind) {
    const ROUNDS: usize = 200;
    const BEGUN: usize = 10;
    const EXTENDED: usize = 4;
    let test = TestStore::new(kind).await;
    let replicas = [held(&test).await, held(&test).await];
    for round in 0..ROUNDS {
        let begin = |ledger, number| charge(ledger, &format!("{round}-{number}"));
        let begun = crossed(&replicas, BEGUN, begin).await;
        let granted = begun.iter().map(|answers| {
            let new: Vec<_> = answers.iter().filter(|it| reason(it) == Some(NEW)).collect();
            assert_eq!(new.len(), 1, "{answers:?}");
            (new[0].row.as_ref().unwrap().intent.key, new[0].attempt_id.unwrap())
        });
        let granted: Vec<(Key, Uuid)> = granted.collect();
        let extend = |ledger, number: usize| extended(ledger, granted[number]);
        crossed(&replicas, EXTENDED, extend).await;
    }
    for (_, ledger) in &replicas {
        ledger.stop().await;
    }
    drop(replicas);
    assert_eq!(test.count_intents().await, (ROUNDS * (BEGUN + 4)) as i64);
    assert_eq!(test.deadlocks().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_cross_each_other_are_all_answered() {
    batches_that_cross_each_other(Kind::Postgres).await;
}

/// Where nothing is prepared, Postgres plans each batch anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_cross_behind_a_pooler_are_all_answered() {
    batches_that_cross_each_other(Kind::Pooled).await;
}

/// A row that somebody's open transaction has locked holds up only itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_holds_up_nobody_else() {
    let test = TestStore::new(Kind::Postgres).await;
    let (store, ledger) = held(&test).await;
    let granted = charge(&ledger, "locked").await.unwrap();
    let key = granted.row.unwrap().intent.key;
    let attempt = granted.attempt_id.unwrap();
    let began = monotonic();
    let mut neighbours = Vec::new();
    for number in 0..25 {
        let granted = charge(&ledger, &format!("n-{number}")).await.unwrap();
        neighbours.push((granted.row.unwrap().intent.key, granted.attempt_id.unwrap()));
    }
    // Less than anybody waits for a lock, unless the machine itself is slow.
    let longest = Duration::from_secs(3) + 2 * monotonic().duration_since(began);
    let session = test.postgres().await;
    session.batch_execute("BEGIN").await.unwrap();
    let locked = session
        .query("SELECT FROM intents WHERE key = $1 FOR UPDATE", &[&key.as_bytes().as_slice()])
        .await
        .unwrap();
    assert_eq!(locked.len(), 1);

    // One batch: the locked row, settlements of others, and new rows.
    let blocker = hold_behind_a_batch(&store, &ledger).await;
    let complete = |key, attempt| {
        Box::pin(ledger.complete(completion("", key, attempt, b"1"), Deadline::default()))
    };
    let mut locked = [complete(key, attempt)];
    queue!(locked);
    let mut settling: Vec<_> =
        neighbours.iter().map(|(key, attempt)| complete(*key, *attempt)).collect();
    queue!(settling);
    let mut beginning: Vec<_> =
        (0..25).map(|number| Box::pin(charge(&ledger, &format!("o-{number}")))).collect();
    queue!(beginning);
    store.release();
    let others = async {
        for settled in join_all(settling).await {
            assert_eq!(settled.expect("settled").row.intent.state, State::Completed);
        }
        for begun in join_all(beginning).await {
            assert_eq!(reason(&begun.expect("granted")), Some(NEW));
        }
        // And whoever comes after them.
        for number in 0..5 {
            let begun = charge(&ledger, &format!("p-{number}")).await;
            assert_eq!(reason(&begun.expect("granted")), Some(NEW));
        }
    };
    timeout(longest, others).await.expect("nobody waits for the locked row");
    assert!(blocker.await.unwrap().is_ok());

    session.batch_execute("ROLLBACK").await.unwrap();
    let [first] = locked;
    match first.await {
        Ok(settled) => assert_eq!(settled.row.intent.state, State::Completed),
        Err(LedgerError::StoreUnavailable(_)) => {
            let again = complete(key, attempt).await.expect("it is free again");
            assert_eq!(again.row.intent.state, State::Completed);
        }
        Err(other) => panic!("{other:?}"),
    }
    ledger.stop().await;
}

/// Who was met while somebody held the row is not forgotten, and keeps nobody else from being counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_told_later_that_it_was_met() {
    let test = TestStore::new(Kind::Postgres).await;
    let options = LedgerOptions::default();
    let ledger = Ledger::start(test.open().await, Nobody::to_ask(), &options).await.unwrap();
    ledger.offer_policy(POLICY).await.unwrap();
    let mut keys = Vec::new();
    for order in ["locked", "free"] {
        let granted = charge(&ledger, order).await.unwrap();
        let (key, attempt) = (granted.row.unwrap().intent.key, granted.attempt_id.unwrap());
        ledger.complete(completion("", key, attempt, b"1"), Deadline::default()).await.unwrap();
        keys.push(key);
    }
    let session = test.postgres().await;
    session.batch_execute("BEGIN").await.unwrap();
    let key: &[u8] = keys[0].as_bytes();
    let locked = session.query("SELECT FROM intents WHERE key = $1 FOR UPDATE", &[&key]).await;
    assert_eq!(locked.unwrap().len(), 1);
    for order in ["locked", "free", "free"] {
        charge(&ledger, order).await.unwrap();
    }
    let met = async |key: &Key| {
        let sql = "SELECT replay_count FROM intents WHERE key = $1";
        let other = test.postgres().await;
        other.query_one(sql, &[&key.as_bytes().as_slice()]).await.unwrap().get::<_, i64>(0)
    };
    wait_until("the free row is counted", async || met(&keys[1]).await == 2).await;
    assert_eq!(met(&keys[0]).await, 0);
    session.batch_execute("ROLLBACK").await.unwrap();
    wait_until("the other is too", async || met(&keys[0]).await == 1).await;
    ledger.stop().await;
}

/// Two batches that are under way at once, each with a call for the same row, find it locked one after the other. What
/// comes for the row in between is answered all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_two_batches_find_locked_loses_no_call() {
    let test = TestStore::new(Kind::Postgres).await;
    let luck = Luck::new(Dice::new(0, 0), 0);
    let store = FaultyStore::with_luck(test.open().await, 2, luck);
    let options = LedgerOptions { batch_rows_max: 1, ..LedgerOptions::default() };
    let ledger = Ledger::start(Arc::clone(&store) as _, Nobody::to_ask(), &options).await.unwrap();
    ledger.offer_policy(POLICY).await.unwrap();
    let granted = charge(&ledger, "a").await.unwrap();
    let key = granted.row.unwrap().intent.key;
    let attempt = granted.attempt_id.unwrap();
    let session = test.postgres().await;
    session.batch_execute("BEGIN; SELECT FROM intents FOR UPDATE").await.unwrap();

    store.hold();
    let complete = |result: &[u8]| {
        Box::pin(ledger.complete(completion("", key, attempt, result), Deadline::default()))
    };
    let mut first = pin!(join_all([complete(b"1"), complete(b"2")]));
    queue_after_reading(&[&store], first.as_mut()).await;
    store.held_writes(2).await;
    let (tried, answered) = (store.batches().len(), store.answered());
    // One of them is told at once, and so is its second try; the other finds out by itself.
    store.next_writes(&[Fault::Locked, Fault::Nothing, Fault::Locked]);
    store.release();
    // Both batches, and the one once more by itself, and then beside the batches.
    wait_until("one waits alone", async || store.batches().len() >= tried + 4).await;
    let mut late = pin!(complete(b"3"));
    queue_after_reading(&[&store], late.as_mut()).await;
    // All but the one that waits alone.
    wait_until("the other has found out", async || store.answered() >= answered + 4).await;
    session.batch_execute("ROLLBACK").await.unwrap();

    let mut answers = first.await;
    answers.push(late.await);
    let settled = answers.iter().filter(|it| it.is_ok()).count();
    assert_eq!(settled, 1, "{answers:?}");
    for refused in answers.into_iter().filter_map(Result::err) {
        let LedgerError::Refused { refusal, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(refusal, Refusal::AlreadySettled);
    }
    ledger.stop().await;
}
