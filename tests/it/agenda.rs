//! What every store promises of the agenda, one line per behaviour, run on each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use intent_ledger::{
    domain::{
        attempt::Fate,
        event::Provenance,
        intent::{Intent, Settlement, State},
        time::Timestamp,
    },
    ids,
    store::{
        DownstreamObject, LOCK_WAIT, Store, Stored, StoredPolicy, Write, Written,
        agenda::{Entry, Next, Release, ToolKey},
    },
};
use uuid::Uuid;

use super::store_conformance::started_in;
use crate::{on_every_store, support::server::TestStore};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn tool(namespace: &str) -> ToolKey {
    ToolKey { namespace: namespace.into(), tool: "charge".into() }
}

/// A row that was just begun, with a lease of this length.
fn leased(namespace: &str, key: &str, lease: Duration) -> Intent {
    let mut intent = started_in(namespace, key);
    let attempt = intent.attempts.last_mut().unwrap();
    attempt.lease_expires_at = attempt.granted_at + lease;
    intent
}

async fn write(store: &Arc<dyn Store>, writes: &[Write]) -> Vec<Timestamp> {
    let written = store.write(writes, LOCK_WAIT).await.unwrap();
    let at = written.into_iter().map(|written| match written {
        Written::Done { at } => at,
        other => panic!("{other:?}"),
    });
    at.collect()
}

async fn insert(store: &Arc<dyn Store>, intents: &[Intent]) -> Vec<Stored> {
    let mut writes: Vec<Write> =
        intents.iter().map(|intent| Write::insert(intent.clone(), Vec::new(), false)).collect();
    let at = write(store, &writes).await;
    for (write, at) in writes.iter_mut().zip(at) {
        write.stamp(at);
    }
    writes.into_iter().map(|write| Stored { intent: *write.intent, version: 1 }).collect()
}

async fn replace(store: &Arc<dyn Store>, old: &Stored, intent: Intent) -> Stored {
    let write = [Write::replace(old, intent.clone(), Vec::new(), None)];
    self::write(store, &write).await;
    Stored { intent, version: old.version + 1 }
}

/// An ordinary success.
fn completed(row: &Intent) -> Intent {
    let mut next = row.clone();
    next.state = State::Completed;
    next.attempts.last_mut().unwrap().fate = Fate::Executed;
    next.settlement = Some(Settlement {
        provenance: Provenance::Caller,
        by: row.current().unwrap().caller.clone(),
        note: String::new(),
    });
    next.settled_at = Some(row.created_at);
    next
}

fn unknown(row: &Intent) -> Intent {
    let mut next = row.clone();
    next.state = State::Unknown;
    next.attempts.last_mut().unwrap().fate = Fate::Unknown;
    next
}

async fn due(store: &Arc<dyn Store>, namespace: &str) -> Vec<Entry> {
    store.due(&tool(namespace), 100).await.unwrap().1
}

/// Until when each of these is now ours.
async fn claimed(
    store: &Arc<dyn Store>,
    entries: &[Entry],
    span: Duration,
) -> Vec<Option<Timestamp>> {
    store.claim(entries, span).await.unwrap()
}

async fn waiting(
    store: &Arc<dyn Store>,
    namespace: Option<&str>,
    tool: Option<&str>,
) -> BTreeMap<String, u64> {
    store.waiting_for_people(namespace, tool).await.unwrap()
}

async fn entry(store: &Arc<dyn Store>, id: Uuid) -> Option<Entry> {
    store.entry(id).await.unwrap().1
}

fn ids_of(entries: &[Entry]) -> Vec<Uuid> {
    entries.iter().map(|entry| entry.id).collect()
}

on_every_store! {
    /// A lease of no time at all is over as soon as it is written.
    async fn what_is_unsettled_when_its_lease_is_over_is_due_and_nothing_else(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let rows = insert(&store, &[
            leased("n", "stale", Duration::ZERO),
            leased("n", "settled", Duration::ZERO),
            leased("n", "fresh", MINUTE),
        ]).await;
        replace(&store, &rows[1], completed(&rows[1].intent)).await;

        assert_eq!(store.gather(10, DAY).await.unwrap(), 1, "the batch");
        assert_eq!(store.gather(10, DAY).await.unwrap(), 0, "it is looked through once");
        let found = due(&store, "n").await;
        assert_eq!(ids_of(&found), [rows[0].intent.id()]);
        assert_eq!((found[0].probes, found[0].claimed_until, found[0].version), (0, None, 1));
        // The one whose lease still runs is on the agenda for its end.
        let fresh = entry(&store, rows[2].intent.id()).await.unwrap();
        assert_eq!(fresh.due_at, rows[2].intent.current().unwrap().lease_expires_at);
        assert_eq!(entry(&store, rows[1].intent.id()).await, None);
        assert_eq!(store.due_tools(None).await.unwrap(), [tool("n")]);
        assert_eq!(store.due_tools(Some("n")).await.unwrap(), [tool("n")]);
        assert_eq!(store.due_tools(Some("other")).await.unwrap(), []);
    }

    /// A batch waits for the first of its leases, and batches whose leases run are left alone.
    async fn a_batch_is_not_looked_through_before_a_lease_is_over(kind) {
        let store = TestStore::new(kind).await.open().await;
        insert(&store, &[leased("n", "a", MINUTE), leased("n", "b", MINUTE)]).await;
        assert_eq!(store.gather(10, DAY).await.unwrap(), 0);
        insert(&store, &[leased("n", "c", Duration::ZERO)]).await;
        assert_eq!(store.gather(10, DAY).await.unwrap(), 1);
        assert_eq!(due(&store, "n").await.len(), 1);
    }

    async fn gathering_goes_on_where_it_stopped(kind) {
        let store = TestStore::new(kind).await.open().await;
        for key in ["a", "b", "c"] {
            insert(&store, &[leased("n", key, Duration::ZERO)]).await;
        }
        assert_eq!(store.gather(2, DAY).await.unwrap(), 2);
        assert_eq!(due(&store, "n").await.len(), 2);
        assert_eq!(store.gather(2, DAY).await.unwrap(), 1);
        assert_eq!(due(&store, "n").await.len(), 3);
    }

    async fn an_unknown_outcome_is_due_at_once(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[leased("n", "a", MINUTE)]).await;
        replace(&store, &rows[0], unknown(&rows[0].intent)).await;
        assert_eq!(ids_of(&due(&store, "n").await), [rows[0].intent.id()]);
    }

    async fn what_waits_for_a_person_is_not_on_the_agenda(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[
            leased("n", "a", Duration::ZERO),
            leased("n", "b", Duration::ZERO),
        ]).await;
        let mut flagged = unknown(&rows[0].intent);
        flagged.needs_attention = true;
        let flagged = replace(&store, &rows[0], flagged).await;
        store.gather(10, DAY).await.unwrap();
        assert_eq!(ids_of(&due(&store, "n").await), [rows[1].intent.id()]);
        assert_eq!(waiting(&store, None, None).await, BTreeMap::from([("n".to_owned(), 1)]));
        assert_eq!(waiting(&store, Some("n"), Some("charge")).await, BTreeMap::from([("n".to_owned(), 1)]));
        assert_eq!(waiting(&store, Some("n"), Some("mail")).await, BTreeMap::new());
        assert_eq!(waiting(&store, Some("m"), None).await, BTreeMap::new());
        // Once a person has seen it, it is looked at again.
        let mut seen = flagged.intent.clone();
        seen.needs_attention = false;
        replace(&store, &flagged, seen).await;
        assert_eq!(due(&store, "n").await.len(), 2);
    }

    /// A heartbeat or a further grant moves the time, forgets the questions and frees the claim.
    async fn a_longer_lease_moves_an_entry(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[leased("n", "a", Duration::ZERO)]).await;
        store.gather(10, DAY).await.unwrap();
        let found = due(&store, "n").await;
        let until = claimed(&store, &found, MINUTE).await[0].unwrap();
        let mut extended = rows[0].intent.clone();
        let attempt = extended.attempts.last_mut().unwrap();
        attempt.lease_expires_at = attempt.granted_at + MINUTE;
        attempt.extended = true;
        let end = attempt.lease_expires_at;
        replace(&store, &rows[0], extended).await;
        let moved = entry(&store, found[0].id).await.unwrap();
        assert_eq!((moved.due_at, moved.claimed_until, moved.version), (end, None, 3));
        // The claimer gives back what is no longer his.
        let mine = Release { id: found[0].id, version: 2, claimed_until: until, next: None };
        store.release(&[mine]).await.unwrap();
        assert_eq!(entry(&store, found[0].id).await, Some(moved));
    }

    async fn each_entry_is_claimed_by_one(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let keys: Vec<String> = (0..20).map(|n| format!("k-{n}")).collect();
        let rows: Vec<Intent> = keys.iter().map(|key| leased("n", key, Duration::ZERO)).collect();
        insert(&store, &rows).await;
        store.gather(10, DAY).await.unwrap();
        let found = due(&store, "n").await;
        assert_eq!(found.len(), 20);
        let claims = (0..8).map(|_| {
            let (store, found) = (Arc::clone(&store), found.clone());
            tokio::spawn(async move { store.claim(&found, MINUTE).await.unwrap() })
        });
        let mut won = [0; 20];
        for claim in claims.collect::<Vec<_>>() {
            for (won, claimed) in won.iter_mut().zip(claim.await.unwrap()) {
                *won += i32::from(claimed.is_some());
            }
        }
        assert_eq!(won, [1; 20]);
        assert_eq!(due(&store, "n").await, []);
        let (now, claimed) = store.entry(found[0].id).await.unwrap();
        let claimed = claimed.unwrap();
        assert!(claimed.is_claimed(now));
        assert_eq!(claimed.claimed_until, Some(claimed.due_at));
        assert_eq!(claimed.version, 2);
    }

    async fn a_claim_that_is_over_is_due_again(kind) {
        let store = TestStore::new(kind).await.open().await;
        insert(&store, &[leased("n", "a", Duration::ZERO)]).await;
        store.gather(10, DAY).await.unwrap();
        let found = due(&store, "n").await;
        assert!(claimed(&store, &found, Duration::ZERO).await[0].is_some());
        let again = due(&store, "n").await;
        assert_eq!(ids_of(&again), ids_of(&found));
        assert_eq!(claimed(&store, &found, MINUTE).await, [None], "an old reading");
        assert!(claimed(&store, &again, MINUTE).await[0].is_some());
    }

    async fn what_is_not_on_the_agenda_is_put_there_by_one_claim(kind) {
        let store = TestStore::new(kind).await.open().await;
        let (now, none) = store.entry(ids::random()).await.unwrap();
        assert_eq!(none, None);
        let fresh = Entry {
            id: ids::random(),
            namespace: "n".into(),
            tool: "charge".into(),
            due_at: now,
            probes: 0,
            asked_at: None,
            claimed_until: None,
            version: 0,
        };
        assert!(claimed(&store, std::slice::from_ref(&fresh), MINUTE).await[0].is_some());
        assert_eq!(claimed(&store, std::slice::from_ref(&fresh), MINUTE).await, [None]);
        assert_eq!(entry(&store, fresh.id).await.unwrap().version, 1);
    }

    async fn a_release_says_when_to_look_again_or_never(kind) {
        let store = TestStore::new(kind).await.open().await;
        insert(&store, &[
            leased("n", "a", Duration::ZERO),
            leased("n", "b", Duration::ZERO),
        ]).await;
        store.gather(10, DAY).await.unwrap();
        let found = due(&store, "n").await;
        let until = claimed(&store, &found, MINUTE).await[0].unwrap();
        let later = found[0].due_at + MINUTE;
        let next = Next { due_at: later, probes: 3, asked_at: Some(found[0].due_at) };
        store.release(&[
            Release { id: found[0].id, version: 2, claimed_until: until, next: Some(next) },
            Release { id: found[1].id, version: 2, claimed_until: until, next: None },
        ]).await.unwrap();
        let kept = entry(&store, found[0].id).await.unwrap();
        assert_eq!((kept.due_at, kept.probes, kept.asked_at), (later, 3, Some(found[0].due_at)));
        assert_eq!((kept.claimed_until, kept.version), (None, 3));
        assert_eq!(entry(&store, found[1].id).await, None);
    }

    /// The versions of an entry that went and came again start anew: a claim that is over must not
    /// take the new one's place.
    async fn a_lapsed_claim_does_not_release_a_newer_entry(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[leased("n", "a", Duration::from_micros(1))]).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        let found = due(&store, "n").await;
        let lapsed = claimed(&store, &found, Duration::ZERO).await[0].unwrap();
        let again = due(&store, "n").await;
        let until = claimed(&store, &again, MINUTE).await[0].unwrap();
        let id = found[0].id;
        store.release(&[Release { id, version: 3, claimed_until: until, next: None }]).await.unwrap();
        assert_eq!(entry(&store, id).await, None);
        // Unknown now: on the agenda anew, and claimed under the number that the lapsed claim had.
        replace(&store, &rows[0], unknown(&rows[0].intent)).await;
        let anew = due(&store, "n").await;
        let until = claimed(&store, &anew, MINUTE).await[0].unwrap();
        assert_eq!(entry(&store, id).await.unwrap().version, 2);
        store.release(&[Release { id, version: 2, claimed_until: lapsed, next: None }]).await.unwrap();
        assert_eq!(entry(&store, id).await.unwrap().claimed_until, Some(until));
    }

    /// What a longer lease left in a batch goes on the agenda once, under its own time.
    async fn an_entry_that_is_there_keeps_its_time_when_its_batch_is_gathered(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[leased("n", "a", Duration::ZERO)]).await;
        let mut extended = rows[0].intent.clone();
        let attempt = extended.attempts.last_mut().unwrap();
        attempt.lease_expires_at = attempt.granted_at + MINUTE;
        let end = attempt.lease_expires_at;
        replace(&store, &rows[0], extended).await;
        assert_eq!(store.gather(10, DAY).await.unwrap(), 1);
        assert_eq!(entry(&store, rows[0].intent.id()).await.unwrap().due_at, end);
        assert_eq!(due(&store, "n").await, []);
    }

    async fn a_write_that_misses_leaves_nothing_on_the_agenda(kind) {
        let store = TestStore::new(kind).await.open().await;
        let row = leased("n", "a", Duration::ZERO);
        let stored = insert(&store, std::slice::from_ref(&row)).await.remove(0);
        store.gather(10, DAY).await.unwrap();
        store.claim(&due(&store, "n").await, MINUTE).await.unwrap();
        let claimed = entry(&store, row.id()).await;
        // The same key again, and a change of another version.
        let again = Write::insert(leased("n", "a", Duration::ZERO), Vec::new(), false);
        let stale = Stored { version: 7, ..stored.clone() };
        let late = Write::replace(&stale, unknown(&stored.intent), Vec::new(), None);
        for write in [again, late] {
            let written = store.write(&[write], LOCK_WAIT).await.unwrap();
            assert_eq!(written, [Written::Missed]);
        }
        assert_eq!(store.gather(10, DAY).await.unwrap(), 0);
        assert_eq!(entry(&store, row.id()).await, claimed);
    }

    /// What a reconciler decided by an older policy is decided again.
    async fn a_verdict_under_another_policy_is_not_written(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[leased("n", "a", MINUTE)]).await;
        let policy = StoredPolicy { version: 1, text: String::new() };
        assert!(store.activate_policy(0, &policy).await.unwrap());
        let verdict = |policy| {
            [Write::replace(&rows[0], completed(&rows[0].intent), Vec::new(), policy)]
        };
        let written = store.write(&verdict(Some(0)), LOCK_WAIT).await.unwrap();
        assert_eq!(written, [Written::PolicyMoved]);
        // A caller's report rests on no policy.
        let written = store.write(&verdict(None), LOCK_WAIT).await.unwrap();
        assert!(matches!(written[..], [Written::Done { .. }]), "{written:?}");
    }

    async fn another_intent_with_the_same_reference_is_found(kind) {
        let store = TestStore::new(kind).await.open().await;
        let rows = insert(&store, &[
            leased("n", "a", MINUTE),
            leased("n", "b", MINUTE),
            leased("m", "c", MINUTE),
        ]).await;
        for row in [&rows[0], &rows[2]] {
            let mut done = completed(&row.intent);
            done.downstream_ref = Some("obj-1".into());
            replace(&store, row, done).await;
        }
        let (a, b) = (rows[0].intent.id(), rows[1].intent.id());
        let other = async |namespace: &str, reference: &str, except| {
            let downstream_ref = reference.to_owned();
            let object = DownstreamObject { tool: tool(namespace), downstream_ref, row: except };
            store.others_with_references(&[object]).await.unwrap()[0]
        };
        assert_eq!(other("n", "obj-1", b).await, Some(rows[0].intent.key));
        assert_eq!(other("n", "obj-1", a).await, None, "its own");
        assert_eq!(other("n", "obj-2", b).await, None);
        let mail = ToolKey { namespace: "n".into(), tool: "mail".into() };
        // Several at once, each with its own answer.
        let objects = [(mail, b), (tool("n"), b), (tool("n"), a)].map(|(tool, row)| DownstreamObject {
            tool,
            downstream_ref: "obj-1".into(),
            row,
        });
        let others = store.others_with_references(&objects).await.unwrap();
        assert_eq!(others, [None, Some(rows[0].intent.key), None]);
    }
}
