//! What every store promises of retention, one line per behaviour, run on each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use intent_ledger::{
    domain::{
        attempt::Fate,
        event::{Event, EventKind, Provenance},
        intent::{Intent, ResultBody, Settlement, State},
        time::Timestamp,
    },
    ids,
    store::{
        LOCK_WAIT, OrphanFact, RowKey, Store, Stored, StoredPolicy, Write, Written,
        agenda::Entry,
        retention::{Filed, NextLook, Tombstone},
    },
};
use uuid::Uuid;

use super::store_conformance::started_in;
use crate::{on_every_store, support::server::TestStore};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A row whose lease is over as soon as it is written.
fn stale(key: &str) -> Intent {
    let mut intent = started_in("n", key);
    let attempt = intent.attempts.last_mut().unwrap();
    attempt.lease_expires_at = attempt.granted_at;
    intent
}

async fn insert(store: &Arc<dyn Store>, intents: &[Intent]) -> Vec<Stored> {
    let mut writes: Vec<Write> =
        intents.iter().map(|intent| Write::insert(intent.clone(), Vec::new(), false)).collect();
    for (write, written) in
        writes.clone().iter().zip(store.write(&writes, LOCK_WAIT).await.unwrap())
    {
        let Written::Done { at } = written else { panic!("{written:?}") };
        writes.iter_mut().find(|it| it.row_id() == write.row_id()).unwrap().stamp(at);
    }
    writes.into_iter().map(|write| Stored { intent: *write.intent, version: 1 }).collect()
}

fn fact(note: &str) -> Event {
    Event {
        at: Timestamp::default(),
        kind: EventKind::LateComplete,
        provenance: Provenance::Caller,
        actor: "worker-1".into(),
        attempt_id: None,
        state_before: State::Started,
        state_after: State::Completed,
        code: String::new(),
        note: note.into(),
        downstream_ref: None,
        result_sha256: None,
    }
}

/// Settles a row, with labels and an event, so that there is something to prune.
async fn complete(store: &Arc<dyn Store>, row: &Stored, result: &str) -> Stored {
    let mut next = row.intent.clone();
    next.state = State::Completed;
    next.attempts.last_mut().unwrap().fate = Fate::Executed;
    next.labels = BTreeMap::from([("customer".to_owned(), "ann".to_owned())]);
    next.result =
        Some(ResultBody::reported(Some(result.into()), "text/plain".into(), None, u64::MAX));
    next.settlement = Some(Settlement {
        provenance: Provenance::Caller,
        by: "worker-1".into(),
        note: String::new(),
    });
    next.settled_at = Some(row.intent.created_at + MINUTE);
    let write = Write::replace(row, next, vec![fact("late")], None);
    let written = store.write(std::slice::from_ref(&write), LOCK_WAIT).await.unwrap();
    assert!(matches!(written[..], [Written::Done { .. }]), "{written:?}");
    read(store, row.intent.id()).await.unwrap()
}

async fn read(store: &Arc<dyn Store>, id: Uuid) -> Option<Stored> {
    let key = RowKey { namespace: "n".into(), id };
    store.find(&[key]).await.unwrap().rows.remove(0)
}

/// A tombstone of a row, as a pass leaves it.
async fn left(store: &Arc<dyn Store>, row: &Stored) -> Tombstone {
    let tombstone = Tombstone::of(row, store.now().await.unwrap());
    assert_eq!(store.prune(std::slice::from_ref(&tombstone), 0).await.unwrap(), [true]);
    tombstone
}

async fn claim(store: &Arc<dyn Store>, span: Duration) -> Vec<Filed> {
    store.claim_filed(100, span).await.unwrap().1
}

fn rows_of(filed: &[Filed]) -> Vec<Uuid> {
    let mut rows: Vec<Uuid> = filed.iter().flat_map(|entry| entry.rows.clone()).collect();
    rows.sort();
    rows
}

fn ids_of(rows: &[Stored]) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = rows.iter().map(|row| row.intent.id()).collect();
    ids.sort();
    ids
}

on_every_store! {
    async fn every_row_gets_into_the_calendar_when_its_batch_is_gathered(kind) {
        let store = TestStore::new(kind).await.open().await;
        let mut proposed = stale("proposed");
        proposed.state = State::AwaitingApproval;
        proposed.attempts.clear();
        let mut orphaned = stale("orphaned");
        orphaned.state = State::Unknown;
        orphaned.needs_attention = true;
        orphaned.attempts.clear();
        // Each in a batch of its own; those that were granted nothing among them.
        let mut rows = insert(&store, &[stale("a"), stale("b")]).await;
        rows.extend(insert(&store, &[proposed]).await);
        rows.extend(insert(&store, &[orphaned]).await);
        assert_eq!(claim(&store, MINUTE).await, []);
        assert_eq!(store.gather(10, Duration::ZERO).await.unwrap(), 3);
        assert_eq!(store.gather(10, Duration::ZERO).await.unwrap(), 0);
        let filed = claim(&store, MINUTE).await;
        assert_eq!(filed.len(), 1, "small batches are filed together");
        assert_eq!(rows_of(&filed), ids_of(&rows));
    }

    /// What is proposed beside a grant does not hurry the look at the grant.
    async fn a_batch_with_a_proposal_waits_for_the_lease_of_the_others(kind) {
        let store = TestStore::new(kind).await.open().await;
        let mut proposed = stale("proposed");
        proposed.state = State::AwaitingApproval;
        proposed.attempts.clear();
        insert(&store, &[started_in("n", "fresh"), proposed]).await;
        assert_eq!(store.gather(10, Duration::ZERO).await.unwrap(), 0);
    }

    async fn gathered_rows_wait_for_their_retention(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows = insert(&store, &[stale("a")]).await;
        store.gather(10, DAY).await.unwrap();
        assert_eq!(claim(&store, MINUTE).await, []);
        test.age(DAY).await;
        assert_eq!(rows_of(&claim(&store, MINUTE).await), ids_of(&rows));
    }

    async fn many_rows_are_filed_in_entries_of_bounded_size(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows: Vec<Intent> = (0..600).map(|n| stale(&format!("k-{n}"))).collect();
        let rows = insert(&store, &rows).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        let filed = claim(&store, MINUTE).await;
        let mut sizes: Vec<usize> = filed.iter().map(|entry| entry.rows.len()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [88, 256, 256]);
        assert_eq!(rows_of(&filed), ids_of(&rows));
    }

    async fn an_entry_is_given_to_one_until_its_claim_is_over(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows: Vec<Intent> = (0..600).map(|n| stale(&format!("k-{n}"))).collect();
        insert(&store, &rows).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        let claims = (0..6).map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { claim(&store, MINUTE).await })
        });
        let mut given = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            given.extend(claim.await.unwrap().into_iter().map(|entry| entry.id));
        }
        given.sort();
        let before = given.len();
        given.dedup();
        assert_eq!((given.len(), before), (3, 3));
        test.age(MINUTE).await;
        assert_eq!(claim(&store, MINUTE).await.len(), 3);
    }

    /// The oldest come first, and no more than are asked for.
    async fn as_many_entries_are_claimed_as_are_asked_for(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let first = insert(&store, &[stale("a")]).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        test.age(MINUTE).await;
        insert(&store, &[stale("b")]).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        let (_, claimed) = store.claim_filed(1, MINUTE).await.unwrap();
        assert_eq!(rows_of(&claimed), ids_of(&first));
    }

    async fn what_is_filed_anew_takes_the_place_of_what_was_claimed(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows = insert(&store, &[stale("a"), stale("b"), stale("c")]).await;
        let ids = ids_of(&rows);
        store.gather(10, Duration::ZERO).await.unwrap();
        let (now, claimed) = store.claim_filed(100, MINUTE).await.unwrap();
        let entry = claimed[0].id;
        let look = |due_at, rows: &[Uuid]| NextLook {
            due_at,
            rows: rows.iter().map(|row| (*row, entry)).collect(),
        };
        // Two at different times, the third is let go.
        store.file(&claimed, &[look(now, &ids[..1]), look(now + DAY, &ids[1..2])]).await.unwrap();
        let due = claim(&store, MINUTE).await;
        assert_eq!(rows_of(&due), ids[..1]);
        test.age(DAY).await;
        assert_eq!(rows_of(&claim(&store, MINUTE).await), ids[..2]);
    }

    /// Whoever comes back after his claim was over, and others have claimed the entry, changes nothing.
    async fn an_entry_that_others_have_claimed_since_stays_as_it_is(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[stale("a")]).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        let (now, slow) = store.claim_filed(100, Duration::ZERO).await.unwrap();
        let others = claim(&store, MINUTE).await;
        assert_eq!(rows_of(&others), ids_of(&rows));
        let look = NextLook { due_at: now, rows: vec![(rows[0].intent.id(), slow[0].id)] };
        store.file(&slow, &[look]).await.unwrap();
        assert_eq!(claim(&store, MINUTE).await, [], "it is filed once, and claimed");
        store.file(&others, &[]).await.unwrap();
    }

    async fn what_is_to_be_known_of_a_row_is_read_without_its_result(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[stale("a"), stale("b")]).await;
        let settled = complete(&store, &rows[1], "a result").await;
        let ids = [rows[0].intent.id(), ids::random(), settled.intent.id()];
        let kept = store.kept(&ids).await.unwrap();
        let started = kept[0].clone().unwrap();
        assert_eq!((started.namespace.as_str(), started.tool.as_str()), ("n", "charge"));
        assert_eq!((started.term.state, started.term.settled_at), (State::Started, None));
        assert_eq!(kept[1], None);
        let completed = kept[2].clone().unwrap();
        assert_eq!(completed.version, settled.version);
        assert_eq!(completed.term.settled_at, settled.intent.settled_at);
        assert_eq!((completed.term.pruned_at, completed.result_bytes), (None, 8));
        left(&store, &settled).await;
        let tombstone = store.kept(&ids[2..]).await.unwrap().remove(0).unwrap();
        assert!(tombstone.term.pruned_at >= settled.intent.settled_at);
        assert_eq!((tombstone.term.state, tombstone.result_bytes), (State::Completed, 0));
    }

    async fn a_pruned_row_is_its_tombstone(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows = insert(&store, &[stale("a")]).await;
        let settled = complete(&store, &rows[0], "the secret").await;
        let tombstone = left(&store, &settled).await;
        let found = read(&store, settled.intent.id()).await.unwrap();
        assert_eq!(found, Stored { intent: tombstone.intent, version: tombstone.version });
        assert!(found.intent.pruned);
        assert_eq!(store.events(found.intent.id()).await.unwrap(), []);
        let stored = test.rows().await.concat();
        assert!(!stored.contains("ann") && !stored.contains("secret"), "{stored}");
    }

    async fn what_has_changed_since_it_was_read_is_not_pruned(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[stale("a"), stale("b"), stale("c")]).await;
        let settled = complete(&store, &rows[0], "r").await;
        let now = store.now().await.unwrap();
        let old = Tombstone { expected: 1, ..Tombstone::of(&settled, now) };
        let open = Tombstone::of(&rows[1], now);
        let good = Tombstone::of(&complete(&store, &rows[2], "r").await, now);
        let pruned = store.prune(&[old, open, good], 0).await.unwrap();
        assert_eq!(pruned, [false, false, true]);
        assert_eq!(read(&store, settled.intent.id()).await, Some(settled.clone()));
        assert_eq!(store.events(settled.intent.id()).await.unwrap().len(), 1);
        assert_eq!(read(&store, rows[1].intent.id()).await, Some(rows[1].clone()));
        assert_eq!(store.purge(&[(settled.intent.id(), settled.version)], 0).await.unwrap(), [false]);
    }

    async fn what_was_decided_by_another_policy_is_not_done(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[stale("a"), stale("b")]).await;
        let kept = complete(&store, &rows[0], "r").await;
        let tombstone = left(&store, &complete(&store, &rows[1], "r").await).await;
        let policy = StoredPolicy { version: 1, text: String::new() };
        assert!(store.activate_policy(0, &policy).await.unwrap());
        let prune = [Tombstone::of(&kept, store.now().await.unwrap())];
        assert_eq!(store.prune(&prune, 0).await.unwrap(), [false]);
        let purge = [(tombstone.intent.id(), tombstone.version)];
        assert_eq!(store.purge(&purge, 0).await.unwrap(), [false]);
        assert_eq!(store.prune(&prune, 1).await.unwrap(), [true]);
        assert_eq!(store.purge(&purge, 1).await.unwrap(), [true]);
    }

    /// Once its key is begun anew, nobody who still has the tombstone in mind can change the new row.
    async fn the_versions_of_a_tombstone_are_never_those_of_a_new_row(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[stale("a")]).await;
        let tombstone = left(&store, &complete(&store, &rows[0], "r").await).await;
        let remembered = Stored { intent: tombstone.intent.clone(), version: tombstone.version };
        assert!(remembered.version > 1_000_000, "{}", remembered.version);
        store.purge(&[(remembered.intent.id(), remembered.version)], 0).await.unwrap();
        insert(&store, &[stale("a")]).await;
        let late = Write::replace(&remembered, rows[0].intent.clone(), Vec::new(), None);
        assert_eq!(store.write(&[late], LOCK_WAIT).await.unwrap(), [Written::Missed]);
    }

    async fn nothing_of_a_purged_row_is_left(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows = insert(&store, &[stale("a"), stale("b")]).await;
        let id = rows[0].intent.id();
        store.gather(10, DAY).await.unwrap();
        let tombstone = left(&store, &complete(&store, &rows[0], "r").await).await;
        let key = |namespace: &str| RowKey { namespace: namespace.into(), id };
        let orphan = |namespace: &str| OrphanFact {
            namespace: namespace.into(),
            key: rows[0].intent.key,
            id,
            event: fact("orphan"),
        };
        store.keep_orphans(&[orphan("n"), orphan("m")]).await.unwrap();
        // A fact that came after the pruning.
        let event = Write::replace(
            &Stored { intent: tombstone.intent.clone(), version: tombstone.version },
            tombstone.intent.clone(),
            vec![fact("later still")],
            None,
        );
        store.write(&[event], LOCK_WAIT).await.unwrap();
        assert_eq!(store.events(id).await.unwrap().len(), 1);
        assert!(store.entry(id).await.unwrap().1.is_some());

        let version = tombstone.version + 1;
        assert_eq!(store.purge(&[(id, tombstone.version)], 0).await.unwrap(), [false]);
        assert_eq!(store.purge(&[(id, version), (ids::random(), 1)], 0).await.unwrap(), [true, false]);
        assert_eq!(store.find(&[key("n")]).await.unwrap().rows, [None]);
        assert_eq!(store.events(id).await.unwrap(), []);
        assert_eq!(store.orphans(&key("n")).await.unwrap(), []);
        assert_eq!(store.orphans(&key("m")).await.unwrap().len(), 1, "another tenant's");
        assert_eq!(store.entry(id).await.unwrap().1, None::<Entry>);
        assert!(read(&store, rows[1].intent.id()).await.is_some());
    }
}

/// The tables that have rows of an intent under its id: a purge leaves nothing in any of them.
#[tokio::test]
async fn no_table_with_rows_of_an_intent_is_forgotten_by_the_purge() {
    use crate::support::server::Kind;
    let session = TestStore::new(Kind::Postgres).await.postgres().await;
    let tables = "SELECT table_name::text FROM information_schema.columns
                  WHERE table_schema = 'public' AND column_name = 'id' ORDER BY table_name";
    let tables = session.query(tables, &[]).await.unwrap();
    let tables: Vec<String> = tables.iter().map(|row| row.get(0)).collect();
    // Batches hold ids in arrays; their own `id` is no intent's, or that of one among many.
    // Those of counters are hashes of tools and runs; a subject's rows go once its window is over.
    let others = ["intents", "begin_counts", "run_counts", "look_alikes"];
    let of_intents =
        tables.iter().filter(|it| !it.ends_with("_batches") && !others.contains(&it.as_str()));
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for store in ["postgres", "sqlite"] {
        let path = root.join("src/store").join(store).join("retention.rs");
        let source = std::fs::read_to_string(path).unwrap();
        for table in of_intents.clone() {
            let named = source.contains(&format!("\"{table}\""))
                || source.contains(&format!("DELETE FROM {table} "));
            assert!(named, "{table} in {store}");
        }
    }
}
