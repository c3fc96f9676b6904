//! Callers, keys, faults and their order by chance; what must hold whatever comes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use intent_ledger::{
    clock::Deadline,
    domain::{
        attempt::Fate,
        decision::{Decision, ExecuteReason, HoldReason, RefuseReason},
        identity::Key,
        intent::State,
    },
    ledger::{
        BeginAnswer, ExtendAnswer, FailRequest, Ledger, LedgerError, LedgerOptions, SettleAnswer,
    },
    store::{Filter, RowKey, Store, Stored},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use uuid::Uuid;

use super::{NEW, POISON, POLICY, completion, extension, reason, refuse_poison, request};
use crate::support::{
    faulty::{FaultyStore, Truth},
    nobody::Nobody,
    seeded::{Dice, Luck, each_seed},
    server::{Kind, TestStore},
};

/// Some callers of some keys, over one ledger or two, on a store with bad luck.
struct Run {
    /// One for each seed.
    namespace: String,
    store: Arc<FaultyStore>,
    ledgers: Vec<Arc<Ledger>>,
    acknowledged: watch::Sender<usize>,
    /// Whether the first ledger is being stopped.
    stopping: AtomicBool,
    stories: Mutex<Vec<Story>>,
}

/// What one caller was told.
#[derive(Debug)]
struct Story {
    caller: usize,
    tool: &'static str,
    order: String,
    attempt: Uuid,
    result: Vec<u8>,
    /// What its first Begin came to.
    first: Option<First>,
    granted: Option<ExecuteReason>,
    /// How many of its acknowledged calls have written.
    writes: usize,
    /// Whether some call of it was in doubt.
    doubted: bool,
    key: Option<Key>,
    extended: bool,
    fate: Option<Fate>,
    replayed: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    NothingWritten,
    InDoubt,
    Told(Option<ExecuteReason>),
}

/// A caller under way.
struct Caller<'a> {
    run: &'a Run,
    dice: Dice,
    story: Story,
}

impl Run {
    async fn start(inner: Arc<dyn Store>, seed: u64, dice: &mut Dice) -> Self {
        let luck = Luck::new(Dice::new(seed, 1), dice.one_of(&[0, 10, 30, 60]));
        let store = FaultyStore::with_luck(inner, dice.one_of(&[1, 2]), luck);
        let options = LedgerOptions {
            queue_max: dice.one_of(&[2, 16, 8192, 8192]),
            batch_rows_max: dice.one_of(&[1, 3, 16, 256]),
            ..LedgerOptions::default()
        };
        let mut ledgers = Vec::new();
        for _ in 0..dice.one_of(&[1, 2]) {
            let ledger =
                Ledger::start(Arc::clone(&store) as _, Nobody::to_ask(), &options).await.unwrap();
            ledger.offer_policy(POLICY).await.unwrap();
            ledgers.push(ledger);
        }
        Self {
            namespace: format!("seed-{seed}"),
            store,
            ledgers,
            acknowledged: watch::channel(0).0,
            stopping: AtomicBool::new(false),
            stories: Mutex::default(),
        }
    }

    /// All callers at once; in some runs a ledger of two stops in the middle.
    async fn play(&self, seed: u64, dice: &mut Dice) {
        let keys = 2 + dice.below(12);
        let callers: Vec<Caller<'_>> = (0..10 + dice.below(40) as usize)
            .map(|caller| {
                let mut dice = Dice::new(seed, 100 + caller as u64);
                let order = dice.below(keys);
                let story = Story {
                    caller,
                    tool: if order == 0 { POISON } else { "charge" },
                    order: format!("o-{order}"),
                    attempt: dice.id(),
                    result: format!("the result of {caller}").into_bytes(),
                    first: None,
                    granted: None,
                    writes: 0,
                    doubted: false,
                    key: None,
                    extended: false,
                    fate: None,
                    replayed: None,
                };
                Caller { run: self, dice, story }
            })
            .collect();
        let stops = self.ledgers.len() > 1 && dice.percent(50);
        let stops_after = dice.below(callers.len() as u64) as usize;
        let all = async {
            join_all(callers.into_iter().map(Caller::live)).await;
            self.acknowledged.send_replace(usize::MAX);
        };
        let stop = async {
            if stops {
                let mut acknowledged = self.acknowledged.subscribe();
                acknowledged.wait_for(|count| *count > stops_after).await.unwrap();
                self.stopping.store(true, SeqCst);
                self.ledgers[0].stop().await;
            }
        };
        tokio::join!(all, stop);
        self.store.turn_good().await;
        for ledger in &self.ledgers {
            ledger.stop().await;
        }
    }

    fn truths_of(&self, attempt: Uuid) -> Vec<Truth> {
        let mut truths = self.store.truths();
        truths.retain(|truth| truth.attempt == attempt);
        truths
    }

    /// What was told and what is stored are one.
    async fn check(&self, inner: &dyn Store) {
        let rows = self.rows(inner).await;
        let stories = self.stories.lock().unwrap();
        let mut keys: BTreeMap<&str, Key> = BTreeMap::new();
        for story in stories.iter() {
            let Some(key) = story.key else { continue };
            assert_eq!(*keys.entry(&story.order).or_insert(key), key, "its own key: {story:?}");
            assert_ne!(story.tool, POISON, "{story:?}");
            self.check_story(story, &rows[&key]);
        }
        let distinct: HashSet<Key> = keys.values().copied().collect();
        assert_eq!(distinct.len(), keys.len(), "each order has a key of its own: {keys:?}");
        for key in distinct {
            let new = stories.iter().filter(|it| it.key == Some(key) && it.granted == Some(NEW));
            assert!(new.count() <= 1, "one EXECUTE NEW a key: {stories:#?}");
        }
        if self.ledgers.len() == 1 && self.store.writers() == 1 {
            self.check_order(&stories);
        }
    }

    fn check_story(&self, story: &Story, stored: &Stored) {
        let row = &stored.intent;
        let truths = self.truths_of(story.attempt);
        let attempt = row.attempt(story.attempt);
        assert_eq!(attempt.is_some(), story.granted.is_some(), "{story:?} {stored:?}");
        assert_eq!(attempt.is_some(), !truths.is_empty(), "{story:?} {stored:?}");
        assert!(truths.len() >= story.writes, "acknowledged is durable: {story:?} {truths:?}");
        if let Some(attempt) = attempt {
            // Sent again is what was written and not told; everything else was told.
            let told = truths.iter().min_by_key(|truth| truth.version).unwrap().told;
            match story.granted.unwrap() {
                ExecuteReason::Resent => assert!(!told, "{story:?} {truths:?}"),
                ExecuteReason::Granted(on) => {
                    assert!(told, "{story:?} {truths:?}");
                    assert_eq!(on, attempt.granted_on, "{story:?}");
                }
            }
            assert!(attempt.extended || !story.extended, "{story:?} {stored:?}");
            assert_eq!(attempt.fate, story.fate.unwrap_or(Fate::Open), "{story:?} {stored:?}");
        }
        let result = row.result.as_ref().and_then(|result| result.bytes.as_ref());
        if story.fate == Some(Fate::Executed) {
            assert_eq!(row.state, State::Completed, "{story:?} {stored:?}");
            assert_eq!(result, Some(&story.result), "{story:?} {stored:?}");
        }
        if story.replayed.is_some() {
            assert_eq!(result, story.replayed.as_ref(), "{story:?} {stored:?}");
        }
    }

    /// The rows, each of them with the history that was noted: every version once.
    async fn rows(&self, inner: &dyn Store) -> HashMap<Key, Stored> {
        let mut histories: HashMap<Uuid, BTreeMap<u32, Truth>> = HashMap::new();
        for truth in self.store.truths() {
            let before = histories.entry(truth.id).or_default().insert(truth.version, truth);
            assert_eq!(before, None, "a version is written once: {truth:?}");
        }
        let filter = Filter { namespace: self.namespace.clone(), ..Filter::default() };
        let listed = inner.list(&filter, None, 1000).await.unwrap();
        assert_eq!(listed.len(), histories.len(), "{listed:?} {histories:?}");
        let asked: Vec<RowKey> = histories
            .keys()
            .map(|id| RowKey { namespace: self.namespace.clone(), id: *id })
            .collect();
        let found = inner.find(&asked).await.unwrap();
        let mut rows = HashMap::new();
        for (asked, row) in asked.iter().zip(found.rows) {
            let row = row.expect("what was written is there");
            let history = &histories[&asked.id];
            let versions: Vec<u32> = history.keys().copied().collect();
            assert_eq!(versions, (1..=row.version).collect::<Vec<_>>(), "{row:?}");
            let (last, current) = (history[&row.version], row.intent.current().unwrap());
            assert_eq!((last.attempt, last.fate), (current.id, current.fate), "{row:?}");
            rows.insert(row.intent.key, row);
        }
        rows
    }

    /// The first Begins of all callers were queued in their order, before anything was written: of
    /// those on one key, the first that was not turned away has won.
    fn check_order(&self, stories: &[Story]) {
        let mut decided = HashSet::new();
        let mut in_order: Vec<&Story> = stories.iter().collect();
        in_order.sort_by_key(|story| story.caller);
        for story in in_order {
            match story.first {
                None | Some(First::NothingWritten) => {}
                Some(First::InDoubt) => {
                    decided.insert(&story.order);
                }
                Some(First::Told(reason)) => {
                    if decided.insert(&story.order) {
                        assert_eq!(reason, Some(NEW), "first come, first granted: {stories:#?}");
                    }
                }
            }
        }
    }
}

impl Caller<'_> {
    async fn live(mut self) {
        for _ in 0..3 {
            if !self.begin().await || self.story.replayed.is_some() {
                break;
            }
            if self.story.granted.is_some() {
                self.report().await;
                break;
            }
        }
        self.run.stories.lock().unwrap().push(self.story);
    }

    /// Begins with the one attempt id; whether there may be more to do.
    async fn begin(&mut self) -> bool {
        let request =
            request(&self.run.namespace, self.story.tool, &self.story.order, self.story.attempt);
        let begin = async |ledger: &Ledger, deadline| ledger.begin(request.clone(), deadline).await;
        let Some(answer) = self.insist(begin).await else {
            return false;
        };
        let intent = &answer.row.as_ref().expect("a recorded intent").intent;
        self.story.key = Some(intent.key);
        let current = intent.current().unwrap();
        match &answer.decision {
            Decision::Execute { reason, .. } => {
                assert_eq!(answer.attempt_id, Some(self.story.attempt), "its own attempt");
                assert_eq!((current.id, intent.state), (self.story.attempt, State::Started));
                self.story.writes += usize::from(*reason != ExecuteReason::Resent);
                self.story.granted = Some(*reason);
            }
            Decision::Replay { .. } => {
                let result = intent.result.as_ref().expect("it has completed");
                self.story.replayed = result.bytes.clone();
            }
            Decision::Hold { reason, .. } => {
                assert_ne!(*reason, HoldReason::Superseded, "nobody else has this attempt id");
                assert_ne!(current.id, self.story.attempt);
            }
            Decision::Refuse { reason: RefuseReason::FailedFinal } => return false,
            other => panic!("{other:?}"),
        }
        true
    }

    /// What follows an EXECUTE, each step until it is acknowledged.
    async fn report(&mut self) {
        let namespace = self.run.namespace.clone();
        let key = self.story.key.unwrap();
        let attempt_id = self.story.attempt.to_string();
        if self.dice.percent(20) {
            let granted = self.story.granted;
            assert!(self.begin().await);
            assert_eq!(self.story.granted, Some(ExecuteReason::Resent));
            self.story.granted = granted;
        }
        if self.dice.percent(30) {
            let request = extension(&namespace, key, self.story.attempt);
            let extend =
                async |ledger: &Ledger, deadline| ledger.extend(request.clone(), deadline).await;
            let extended = self.insist(extend).await.unwrap();
            assert_eq!(extended.row.intent.key, key);
            self.story.writes += 1;
            self.story.extended = true;
        }
        match self.dice.below(10) {
            0 => {}
            1..=3 => {
                let not_executed = self.dice.percent(70);
                let request = FailRequest {
                    namespace,
                    key: key.to_string(),
                    attempt_id,
                    not_executed,
                    code: "refused".to_owned(),
                    ..FailRequest::default()
                };
                let fail =
                    async |ledger: &Ledger, deadline| ledger.fail(request.clone(), deadline).await;
                let failed = self.insist(fail).await.unwrap();
                assert_eq!(failed.row.intent.key, key);
                self.story.writes += 1;
                self.story.fate =
                    Some(if not_executed { Fate::NotExecuted } else { Fate::Unknown });
            }
            _ => {
                let result = self.story.result.clone();
                let request = completion(&namespace, key, self.story.attempt, &result);
                let complete = async |ledger: &Ledger, deadline| {
                    ledger.complete(request.clone(), deadline).await
                };
                let repeats = usize::from(self.dice.percent(50));
                for repeat in 0..=repeats {
                    let completed = self.insist(&complete).await.unwrap();
                    assert_eq!(completed.row.intent.key, key);
                    let stored = completed.row.intent.result.clone().unwrap();
                    assert_eq!(stored.bytes.as_ref(), Some(&result), "its own result");
                    self.story.writes += usize::from(repeat == 0);
                    self.story.fate = Some(Fate::Executed);
                }
            }
        }
    }

    /// Repeats a call until it is acknowledged; `None` where the store refuses its row.
    async fn insist<T>(
        &mut self,
        call: impl AsyncFn(&Ledger, Deadline) -> Result<T, LedgerError>,
    ) -> Option<T>
    where
        T: Told,
    {
        loop {
            let ledger = self.dice.below(self.run.ledgers.len() as u64) as usize;
            let budget = self.dice.percent(10).then(|| self.dice.moment());
            let answer = call(&self.run.ledgers[ledger], Deadline::after(budget)).await;
            let first = match &answer {
                Ok(told) => First::Told(told.reason()),
                Err(LedgerError::CommitInDoubt(_)) => First::InDoubt,
                Err(_) => First::NothingWritten,
            };
            self.story.first.get_or_insert(first);
            match answer {
                Ok(told) => {
                    self.run.acknowledged.send_modify(|count| *count += 1);
                    return Some(told);
                }
                Err(LedgerError::CommitInDoubt(_)) => self.story.doubted = true,
                Err(LedgerError::Internal(_)) if self.story.tool == POISON => return None,
                Err(
                    error @ (LedgerError::StoreUnavailable(_)
                    | LedgerError::QueueFull
                    | LedgerError::Stopping
                    | LedgerError::DeadlinePassed),
                ) => {
                    let stops = ledger == 0 && self.run.stopping.load(SeqCst);
                    assert!(stops || !matches!(error, LedgerError::Stopping), "nobody stops");
                    // They all say that nothing was written.
                    let written = self.run.truths_of(self.story.attempt).len();
                    let expected = self.story.writes;
                    assert!(self.story.doubted || written == expected, "{:?}", self.story);
                }
                Err(other) => panic!("{other:?}: {:?}", self.story),
            }
            sleep(self.dice.moment()).await;
        }
    }
}

/// An answer, as far as the order of Begins is concerned.
trait Told {
    fn reason(&self) -> Option<ExecuteReason> {
        None
    }
}

impl Told for BeginAnswer {
    fn reason(&self) -> Option<ExecuteReason> {
        reason(self)
    }
}

impl Told for ExtendAnswer {}

impl Told for SettleAnswer {}

async fn whatever_the_store_does(kind: Kind, seeds: Range<u64>) {
    let test = TestStore::new(kind).await;
    refuse_poison(&test).await;
    let inner = test.open().await;
    each_seed(seeds, async |seed| {
        let mut dice = Dice::new(seed, 0);
        let run = Run::start(Arc::clone(&inner), seed, &mut dice).await;
        let play = run.play(seed, &mut dice);
        timeout(Duration::from_secs(60), play).await.expect("everybody is answered");
        run.check(&*inner).await;
    })
    .await;
}

/// Each caller gets its own answer and only true ones, and what was acknowledged is there.
#[tokio::test]
async fn whatever_the_store_does_answers_are_true_on_sqlite() {
    whatever_the_store_does(Kind::Sqlite, 0..50).await;
}

#[tokio::test]
async fn whatever_the_store_does_answers_are_true_on_postgres() {
    whatever_the_store_does(Kind::Postgres, 0..20).await;
}
