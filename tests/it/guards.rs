//! What every store promises of the guards of its writes, one line per behaviour, run on each.

use std::{sync::Arc, time::Duration};

use intent_ledger::{
    domain::{
        approval::Approval,
        attempt::Fate,
        event::{Event, EventKind, Provenance},
        intent::{Intent, RunSlot, State},
        tool::ApprovalRule,
    },
    ids,
    store::{
        LOCK_WAIT, RowKey, Store, StoreError, Stored, Write, Written,
        agenda::{Entry, ToolKey},
        guards::{Subject, run_of},
    },
};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::store_conformance::started_in;
use crate::{
    on_both_stores, on_every_store,
    support::{
        calls::{completed, keyed},
        proxy::Proxy,
        server::{Kind, TestServer, TestStore},
    },
};

const HOUR: Duration = Duration::from_secs(3600);

fn granted(key: &str) -> Intent {
    Intent { slot: RunSlot::Held, ..started_in("n", key) }
}

/// A grant of one of at most `limit` slots of the run.
fn limited(key: &str, limit: u32) -> Write {
    Write::insert(granted(key), Vec::new(), false).limited_to(Some(limit))
}

fn failed(row: &Intent) -> Intent {
    let mut next = Intent { state: State::Failed, slot: RunSlot::GivenBack, ..row.clone() };
    next.attempts.last_mut().unwrap().fate = Fate::NotExecuted;
    next
}

async fn write(store: &Arc<dyn Store>, writes: &[Write]) -> Vec<Written> {
    store.write(writes, LOCK_WAIT).await.unwrap()
}

async fn find(store: &Arc<dyn Store>, intent: &Intent) -> Option<Stored> {
    let key = RowKey { namespace: intent.namespace.clone(), id: intent.id() };
    store.find(&[key]).await.unwrap().rows.remove(0)
}

fn done(written: &[Written]) -> Vec<bool> {
    written
        .iter()
        .map(|written| match written {
            Written::Done { .. } => true,
            Written::Guarded => false,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn fact(note: &str) -> Event {
    Event {
        at: started_in("n", "any").created_at,
        kind: EventKind::Proposed,
        provenance: Provenance::Caller,
        actor: String::new(),
        attempt_id: None,
        state_before: State::Started,
        state_after: State::Started,
        code: String::new(),
        note: note.into(),
        downstream_ref: None,
        result_sha256: None,
    }
}

on_every_store! {
    async fn of_a_batch_as_many_are_granted_as_there_are_slots(kind) {
        let store = TestStore::new(kind).await.open().await;
        let run = run_of(&granted("a"));
        let ordinary = Write::insert(started_in("n", "ordinary"), Vec::new(), false);
        let other_run = Intent { run_id: "other".into(), ..granted("other") };
        let other_run = Write::insert(other_run, Vec::new(), false).limited_to(Some(1));
        let mut batch: Vec<Write> = ["a", "b", "c", "d"].map(|key| limited(key, 2)).into();
        batch.extend([ordinary, other_run]);
        let written = done(&write(&store, &batch).await);
        assert_eq!(written[..4].iter().filter(|done| **done).count(), 2, "{written:?}");
        assert_eq!(written[4..], [true, true]);
        assert_eq!(store.slots_held(run).await.unwrap(), 2);
        // What was refused has left nothing.
        for (write, done) in batch.iter().zip(&written) {
            assert_eq!(find(&store, &write.intent).await.is_some(), *done);
        }
        assert_eq!(done(&write(&store, &[limited("e", 2)]).await), [false]);
        assert_eq!(done(&write(&store, &[limited("e", 3)]).await), [true]);
    }

    async fn a_slot_comes_back_with_the_change_that_makes_it_failed_and_with_no_other(kind) {
        let store = TestStore::new(kind).await.open().await;
        let (a, run) = (granted("a"), run_of(&granted("a")));
        assert_eq!(done(&write(&store, &[limited("a", 1)]).await), [true]);
        let read = find(&store, &a).await.unwrap();
        assert_eq!(read.intent.slot, RunSlot::Held);
        let unknown = Intent { state: State::Unknown, ..read.intent.clone() };
        let to_unknown = Write::replace(&read, unknown, Vec::new(), None);
        assert_eq!(done(&write(&store, &[to_unknown]).await), [true]);
        assert_eq!(store.slots_held(run).await.unwrap(), 1);

        let read = find(&store, &a).await.unwrap();
        let stale = Stored { version: 9, ..read.clone() };
        let late = Write::replace(&stale, failed(&read.intent), Vec::new(), None);
        assert_eq!(write(&store, &[late]).await, [Written::Missed]);
        assert_eq!(store.slots_held(run).await.unwrap(), 1, "what was not written gives nothing back");
        let failing = Write::replace(&read, failed(&read.intent), Vec::new(), None);
        assert_eq!(done(&write(&store, &[failing]).await), [true]);
        assert_eq!(store.slots_held(run).await.unwrap(), 0);

        // Somebody else takes it; a retry then finds none, and an effect that has happened counts all the same.
        assert_eq!(done(&write(&store, &[limited("b", 1)]).await), [true]);
        let read = find(&store, &a).await.unwrap();
        assert_eq!(read.intent.slot, RunSlot::GivenBack);
        let retried = Intent { state: State::Started, slot: RunSlot::Held, ..read.intent.clone() };
        let retry = Write::replace(&read, retried.clone(), Vec::new(), Some(0));
        assert_eq!(done(&write(&store, &[retry.limited_to(Some(1))]).await), [false]);
        assert_eq!(find(&store, &a).await.unwrap(), read);
        let happened = Intent { state: State::Completed, ..retried };
        let late = Write::replace(&read, happened, Vec::new(), None);
        assert_eq!(done(&write(&store, &[late]).await), [true]);
        assert_eq!(store.slots_held(run).await.unwrap(), 2);
    }

    async fn a_policy_that_has_moved_is_told_before_a_guard(kind) {
        let store = TestStore::new(kind).await.open().await;
        let mut intent = granted("a");
        intent.recipe.policy = 7;
        let guarded = Write::insert(intent, Vec::new(), false).limited_to(Some(0));
        assert_eq!(write(&store, &[guarded]).await, [Written::PolicyMoved]);
    }

    async fn whoever_must_be_alone_under_a_subject_is(kind) {
        let store = TestStore::new(kind).await.open().await;
        let now = store.now().await.unwrap();
        let id = ids::random();
        let subject = Subject { id, window: HOUR, alone_since: Some(now - HOUR) };
        let about = |key: &str, subject: Subject| {
            Write::insert(started_in("n", key), vec![fact(key)], false).about(Some(subject))
        };
        let batch = ["a", "b", "c"].map(|key| about(key, subject));
        let written = done(&write(&store, &batch).await);
        assert_eq!(written.iter().filter(|done| **done).count(), 1, "{written:?}");
        assert_eq!(done(&write(&store, &[about("d", subject)]).await), [false]);
        let refused = started_in("n", "d");
        assert!(store.events(refused.id()).await.unwrap().is_empty());
        // Under another subject, or where it need not be alone, or once the other counts no more.
        let elsewhere = Subject { id: ids::random(), ..subject };
        assert_eq!(done(&write(&store, &[about("e", elsewhere)]).await), [true]);
        let told = Subject { alone_since: None, ..subject };
        assert_eq!(done(&write(&store, &[about("f", told)]).await), [true]);
        let later = store.now().await.unwrap();
        let fresh = Subject { alone_since: Some(later), ..subject };
        assert_eq!(done(&write(&store, &[about("g", fresh)]).await), [true]);

        let found = store.look_alikes(id, now - HOUR).await.unwrap();
        let keys: Vec<_> = found.iter().map(|it| it.key).collect();
        let (f, g) = (started_in("n", "f"), started_in("n", "g"));
        assert_eq!(keys.len(), 3);
        assert_eq!(keys[..2], [g.key, f.key], "newest first");
        assert_eq!((found[0].state, found[0].run_id.as_str()), (State::Started, "r"));
        assert_eq!(found[0].created_at, find(&store, &g).await.unwrap().intent.created_at);
        assert_eq!(store.look_alikes(id, later).await.unwrap().len(), 1);
    }

    async fn what_counts_no_more_is_forgotten_in_small_batches(kind) {
        let store = TestStore::new(kind).await.open().await;
        let now = store.now().await.unwrap();
        let id = ids::random();
        for (number, window) in [(0, Duration::ZERO), (1, Duration::ZERO), (2, HOUR)] {
            let subject = Subject { id, window, alone_since: None };
            let key = number.to_string();
            let new = Write::insert(started_in("n", &key), Vec::new(), false).about(Some(subject));
            assert_eq!(done(&write(&store, &[new]).await), [true]);
        }
        let left = async || store.look_alikes(id, now - HOUR).await.unwrap().len();
        assert_eq!((store.forget_look_alikes(1).await.unwrap(), left().await), (1, 2));
        assert_eq!((store.forget_look_alikes(5).await.unwrap(), left().await), (1, 1));
        assert_eq!((store.forget_look_alikes(5).await.unwrap(), left().await), (0, 1));
    }

    /// Also beside others of its batch, granted and not.
    async fn a_proposal_is_on_the_agenda_for_its_end(kind) {
        let store = TestStore::new(kind).await.open().await;
        let proposal = |key: &str, expires: Duration| {
            let mut intent = started_in("n", key);
            intent.attempts.clear();
            intent.state = State::AwaitingApproval;
            let rule = ApprovalRule { expires, valid_for: HOUR };
            intent.approval = Some(Approval::propose(rule, "worker-1", "{}", intent.created_at));
            intent
        };
        // It was decided on long ago: the one has run out since.
        let (over, open) = (proposal("over", HOUR), proposal("open", 1_000_000 * HOUR));
        let batch: Vec<Write> = [over.clone(), open.clone(), started_in("n", "granted")]
            .map(|intent| Write::insert(intent, Vec::new(), false))
            .into();
        assert_eq!(done(&write(&store, &batch).await), [true; 3]);
        let tool = ToolKey { namespace: "n".into(), tool: "charge".into() };
        let ids = |due: &[Entry]| due.iter().map(|entry| entry.id).collect::<Vec<Uuid>>();
        let due = store.due_proposals(None, None, 10).await.unwrap();
        assert_eq!(ids(&due), [over.id()]);
        // Of this tenant and tool, and of no other; and never behind what is asked about.
        for (namespace, name, found) in
            [(Some("n"), Some("charge"), 1), (Some("m"), None, 0), (None, Some("mail"), 0)]
        {
            assert_eq!(store.due_proposals(namespace, name, 10).await.unwrap().len(), found);
        }
        assert!(store.due(&tool, 10).await.unwrap().1.is_empty());
        assert!(store.due_tools(None).await.unwrap().is_empty());
        let entry = store.entry(open.id()).await.unwrap().1.unwrap();
        assert_eq!(entry.due_at, open.first_look_at().unwrap());
        assert_eq!(store.entry(started_in("n", "granted").id()).await.unwrap().1, None);
        let read = find(&store, &open).await.unwrap();
        assert_eq!((&read.intent.approval, read.intent.state), (&open.approval, open.state));
        // Decided and begun, it is like any other grant; proposed anew, it is a proposal again.
        let read = find(&store, &over).await.unwrap();
        let begun = Intent { state: State::Unknown, ..read.intent.clone() };
        let change = Write::replace(&read, begun, Vec::new(), None);
        assert_eq!(done(&write(&store, &[change]).await), [true]);
        assert!(store.due_proposals(None, None, 10).await.unwrap().is_empty());
        assert_eq!(ids(&store.due(&tool, 10).await.unwrap().1), [over.id()]);
        let again = find(&store, &over).await.unwrap();
        let change = Write::replace(&again, read.intent, Vec::new(), None);
        assert_eq!(done(&write(&store, &[change]).await), [true]);
        assert_eq!(ids(&store.due_proposals(None, None, 10).await.unwrap()), [over.id()]);
    }
}

mod races {
    use super::*;

    on_both_stores! {
        /// Two servers' worth of writers, each with batches of its own, over and over: a single run would mostly be
        /// used up before the others come.
        async fn as_many_get_a_slot_as_there_are_whoever_asks(kind) {
            let test = TestStore::new(kind).await;
            let stores = [test.open().await, test.open().await];
            for round in 0..30 {
                let mut writers = JoinSet::new();
                for writer in 0..6_usize {
                    let store = Arc::clone(&stores[writer % 2]);
                    writers.spawn(async move {
                        let one = |n| {
                            let key = format!("{round}-{writer}-{n}");
                            let intent = Intent { run_id: format!("{round}"), ..granted(&key) };
                            Write::insert(intent, Vec::new(), false).limited_to(Some(5))
                        };
                        let batch: Vec<Write> = (0..3).map(one).collect();
                        // Who waits too long for the lock is told so; a ledger would try again.
                        let written = loop {
                            match store.write(&batch, LOCK_WAIT).await {
                                Ok(written) => break written,
                                Err(StoreError::Locked(_)) => {}
                                Err(error) => panic!("{error:?}"),
                            }
                        };
                        done(&written).into_iter().filter(|done| *done).count()
                    });
                }
                let won: usize = writers.join_all().await.into_iter().sum();
                assert_eq!(won, 5, "round {round}");
                let run = run_of(&Intent { run_id: format!("{round}"), ..granted("any") });
                assert_eq!(stores[0].slots_held(run).await.unwrap(), 5);
            }
        }

        async fn two_who_must_be_alone_do_not_both_pass(kind) {
            let test = TestStore::new(kind).await;
            let stores = [test.open().await, test.open().await];
            for round in 0..20 {
                let now = stores[0].now().await.unwrap();
                let subject =
                    Subject { id: ids::random(), window: HOUR, alone_since: Some(now - HOUR) };
                let one = |n: usize| {
                    let key = format!("{round}-{n}");
                    let write = Write::insert(started_in("n", &key), Vec::new(), false);
                    write.about(Some(subject))
                };
                let (a, b) = ([one(0)], [one(1)]);
                let (a, b) = tokio::join!(write(&stores[0], &a), write(&stores[1], &b));
                assert_eq!(done(&[a, b].concat()).into_iter().filter(|done| *done).count(), 1);
            }
        }
    }
}

/// What an ordinary effect sends names no guard, in whatever company it travels elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_without_gates_sends_nothing_of_them() {
    let test = TestStore::new(Kind::Postgres).await;
    let proxy = Proxy::start(&test.address).await;
    let gated = "[tools.limited]\nlimit_per_run = 5\n";
    let server = TestServer::on(test.through(proxy.url.clone()), Some(gated)).await;
    for n in 0..5 {
        completed(&server.agent, keyed("plain", &format!("k{n}"), "{}"), b"1").await;
    }
    let names = ["run_slots", "look_alikes", "intent_guard"];
    let of_guards = |sql: &String| names.iter().any(|name| sql.contains(name));
    let sent = proxy.statements();
    assert!(sent.iter().any(|sql| sql.contains("INSERT INTO intents")));
    let strange: Vec<_> =
        sent.iter().filter(|sql| of_guards(sql) && !sql.contains("pg_type")).collect();
    assert!(strange.is_empty(), "{strange:#?}");
    // So it would have been seen.
    let mut limited = keyed("limited", "k", "{}");
    limited.identity.as_mut().unwrap().run_id = "r".into();
    completed(&server.agent, limited, b"1").await;
    assert!(proxy.statements().iter().any(|sql| sql.contains("run_slots")));
    server.stop().await;
}
