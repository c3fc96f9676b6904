//! What every store promises of repeats and counters, one line per behaviour, run on each.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::join_all;
use intent_ledger::{
    domain::{
        attempt::{Fate, Layer},
        event::Provenance,
        intent::{Intent, Settlement, State},
        repeat::{Answered, LayerCounts, REPEATS_KEPT_MAX, Repeat},
        time::Timestamp,
    },
    ids,
    store::{
        LOCK_WAIT, Store, Stored, Write, Written,
        history::{Counted, KeepFrom, OpenNow, Repeated, RunCount, ToolCount},
    },
};
use uuid::Uuid;

use super::store_conformance::started_in;
use crate::{on_every_store, support::server::TestStore};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A repeat that has something in every column.
fn repeat(number: i64, layer: Layer) -> Repeat {
    Repeat {
        at: Timestamp::from_micros(1_796_030_100_000_000 + number),
        caller: format!("worker-{number}"),
        attempt_id: Some(Uuid::from_u128(number.unsigned_abs().into())),
        tool_call_id: format!("call_{number}"),
        run_id: "r1".into(),
        step_id: "schritt-ü".into(),
        free_text_changed: number % 2 == 0,
        changed: if number % 3 == 0 {
            Vec::new()
        } else {
            vec!["/a".to_owned(), "/b/0".to_owned()]
        },
        trace_id: Some([7; 16]),
        answered: Answered::Completed,
        layer,
    }
}

fn repeated(id: Uuid, records: impl IntoIterator<Item = Repeat>) -> Repeated {
    let records: Vec<Repeat> = records.into_iter().collect();
    let mut layers = LayerCounts::default();
    records.iter().for_each(|record| layers.add(record.layer, 1));
    Repeated { id, layers, records }
}

fn tool_count(namespace: &str, tool: &str, counted: Counted, count: u64) -> ToolCount {
    ToolCount { namespace: namespace.into(), tool: tool.into(), counted, count }
}

fn run_count(run_id: &str, count: u64) -> RunCount {
    RunCount { namespace: "n".into(), tool: "charge".into(), run_id: run_id.into(), count }
}

async fn insert(store: &Arc<dyn Store>, intent: Intent) -> Stored {
    let mut write = Write::insert(intent, Vec::new(), false);
    match store.write(std::slice::from_ref(&write), LOCK_WAIT).await.unwrap()[..] {
        [Written::Done { at }] => write.stamp(at),
        ref other => panic!("{other:?}"),
    }
    Stored { intent: *write.intent, version: 1 }
}

async fn replace(store: &Arc<dyn Store>, old: &Stored, intent: Intent) {
    let write = [Write::replace(old, intent, Vec::new(), None)];
    let written = store.write(&write, LOCK_WAIT).await.unwrap();
    assert!(matches!(written[..], [Written::Done { .. }]), "{written:?}");
}

/// The same row, in which nobody knows what became of the effect.
fn unknown(row: &Stored, needs_attention: bool) -> Intent {
    let mut next = row.intent.clone();
    next.state = State::Unknown;
    next.needs_attention = needs_attention;
    next.attempts.last_mut().unwrap().fate = Fate::Unknown;
    next
}

fn completed(row: &Stored) -> Intent {
    let mut next = row.intent.clone();
    next.state = State::Completed;
    next.attempts.last_mut().unwrap().fate = Fate::Executed;
    next.settlement =
        Some(Settlement { provenance: Provenance::Caller, by: "worker-1".into(), note: "".into() });
    next.settled_at = Some(row.intent.created_at);
    next
}

fn leased(key: &str, lease: Duration) -> Intent {
    let mut intent = started_in("n", key);
    let attempt = intent.attempts.last_mut().unwrap();
    attempt.lease_expires_at = attempt.granted_at + lease;
    intent
}

on_every_store! {
    async fn repeats_are_kept_as_they_were_in_their_order(kind) {
        let store = TestStore::new(kind).await.open().await;
        let (id, other) = (ids::random(), ids::random());
        let nothing = store.repeats(id, 0, 10).await.unwrap();
        assert_eq!((nothing.layers.total(), nothing.kept, nothing.records.len()), (0, 0, 0));

        let bare = Repeat {
            caller: String::new(), attempt_id: None, tool_call_id: String::new(),
            run_id: String::new(), step_id: String::new(), trace_id: None,
            ..repeat(3, Layer::UnknownLayer)
        };
        let first = [repeat(1, Layer::Model), repeat(2, Layer::Transport)];
        store.remember(&[
            repeated(id, first.clone()), repeated(other, [repeat(9, Layer::ResumedRun)]),
        ]).await.unwrap();
        store.remember(&[repeated(id, [bare.clone()])]).await.unwrap();

        let found = store.repeats(id, 0, 10).await.unwrap();
        let expected: Vec<(u32, Repeat)> = (1..).zip(first.into_iter().chain([bare])).collect();
        assert_eq!(found.records, expected);
        assert_eq!(found.kept, 3);
        let counts: Vec<u64> = found.layers.iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 0, 1, 0, 1]);
        // From a place on, and no more than asked for.
        assert_eq!(store.repeats(id, 1, 1).await.unwrap().records, expected[1..2]);
        assert_eq!(store.repeats(id, 3, 10).await.unwrap().records, []);
        assert_eq!(store.repeats(id, 3, 10).await.unwrap().kept, 3);

        assert_eq!(store.repeats(other, 0, 10).await.unwrap().records.len(), 1);
    }

    /// The first are kept: they tell how it began.
    async fn no_more_repeats_are_kept_than_there_may_be_and_all_are_counted(kind) {
        let store = TestStore::new(kind).await.open().await;
        let id = ids::random();
        for batch in 0..3 {
            let records = (1..=60).map(|n| repeat(batch * 60 + n, Layer::Orchestrator));
            let mut batch = repeated(id, records);
            // Some that came with no record.
            batch.layers.add(Layer::Transport, 10);
            store.remember(&[batch]).await.unwrap();
        }
        let found = store.repeats(id, 0, 1000).await.unwrap();
        assert_eq!(found.layers.of(Layer::Orchestrator), 180);
        assert_eq!(found.layers.of(Layer::Transport), 30);
        // 1 to 60, then 71 to 100: what was counted only has a number too.
        assert_eq!(found.records.len(), 90);
        assert_eq!(found.kept, 90);
        assert_eq!(found.records.last().unwrap().0, REPEATS_KEPT_MAX);
    }

    async fn servers_that_remember_at_once_keep_no_more_and_lose_no_count(kind) {
        let test = TestStore::new(kind).await;
        let stores = [test.open().await, test.open().await];
        let (one, two) = (ids::random(), ids::random());
        let writes = (0..20_i64).map(|n| {
            let store = Arc::clone(&stores[usize::try_from(n % 2).unwrap()]);
            tokio::spawn(async move {
                let records = |id| repeated(id, (0..20).map(|m| repeat(n * 20 + m, Layer::Model)));
                // In either order, as it comes out of a map.
                let mut both = [records(one), records(two)];
                if n % 3 == 0 {
                    both.reverse();
                }
                store.remember(&both).await.unwrap();
            })
        });
        for written in join_all(writes).await {
            written.unwrap();
        }
        for id in [one, two] {
            let found = stores[0].repeats(id, 0, 1000).await.unwrap();
            assert_eq!((found.layers.total(), found.kept), (400, u64::from(REPEATS_KEPT_MAX)));
            let numbers: Vec<u32> = found.records.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, (1..=REPEATS_KEPT_MAX).collect::<Vec<_>>());
            let distinct: BTreeSet<&str> =
                found.records.iter().map(|(_, it)| it.caller.as_str()).collect();
            assert_eq!(distinct.len(), found.records.len());
        }
    }

    async fn counters_of_several_servers_add_up_and_those_of_others_stay_apart(kind) {
        let test = TestStore::new(kind).await;
        let stores = [test.open().await, test.open().await];
        let new = Counted::Answered(Answered::New);
        let model = Counted::Repeated(Layer::Model);
        let adding = (0..20).map(|n| {
            let store = Arc::clone(&stores[n % 2]);
            tokio::spawn(async move {
                let mut counts = vec![
                    tool_count("n", "charge", new, 2), tool_count("n", "charge", model, 3),
                    tool_count("n", "mail", Counted::Begun, 1), tool_count("other", "charge", new, 7),
                ];
                if n % 3 == 0 {
                    counts.reverse();
                }
                store.count(&counts, &[]).await.unwrap();
            })
        });
        for added in join_all(adding).await {
            added.unwrap();
        }
        let since = stores[0].now().await.unwrap() - DAY;
        let mut found = stores[0].counts("n", None, since).await.unwrap();
        found.sort_by(|one, other| (&one.tool, one.counted).cmp(&(&other.tool, other.counted)));
        let charge = [tool_count("n", "charge", new, 40), tool_count("n", "charge", model, 60)];
        let mail = tool_count("n", "mail", Counted::Begun, 20);
        assert_eq!(found, [charge[0].clone(), charge[1].clone(), mail.clone()]);
        assert_eq!(stores[1].counts("n", Some("mail"), since).await.unwrap(), [mail]);
        assert_eq!(stores[1].counts("n", Some("none"), since).await.unwrap(), []);
        assert_eq!(stores[1].counts("n", None, since + DAY + DAY).await.unwrap(), []);
    }

    async fn runs_with_the_most_executions_come_first(kind) {
        let store = TestStore::new(kind).await.open().await;
        let since = store.now().await.unwrap() - DAY;
        store.count(&[], &[run_count("r1", 2), run_count("r2", 2), run_count("r3", 9)]).await.unwrap();
        store.count(&[], &[run_count("r2", 3)]).await.unwrap();
        let found = store.run_counts("n", None, since, 2).await.unwrap();
        assert_eq!(found, [run_count("r3", 9), run_count("r2", 5)]);
        assert_eq!(store.run_counts("n", Some("charge"), since, 9).await.unwrap().len(), 3);
        assert_eq!(store.run_counts("n", Some("mail"), since, 9).await.unwrap(), []);
        assert_eq!(store.run_counts("other", None, since, 9).await.unwrap(), []);
        assert_eq!(store.run_counts("n", None, since + DAY + DAY, 9).await.unwrap(), []);
    }

    async fn old_minutes_become_hours_that_count_the_same_until_they_are_forgotten(kind) {
        let test = TestStore::new(kind).await;
        let stores = [test.open().await, test.open().await];
        let store = &stores[0];
        let new = Counted::Answered(Answered::New);
        let day = match test.address.starts_with("sqlite:") {
            true => DAY.as_micros().to_string(),
            false => "interval '1 day'".to_owned(),
        };
        // Of the day before yesterday, of yesterday, and of now.
        for count in [1, 10, 100] {
            test.sql(&format!("UPDATE begin_counts SET span_at = span_at - {day}")).await;
            store.count(&[tool_count("n", "charge", new, count)], &[run_count("r1", count)]).await.unwrap();
        }
        let now = store.now().await.unwrap();
        let since = |days: u32| now - (DAY * days) - Duration::from_secs(7200);
        let counted = async |days| {
            let found = store.counts("n", None, since(days)).await.unwrap();
            found.iter().map(|it| it.count).sum::<u64>()
        };
        assert_eq!((counted(2).await, counted(1).await, counted(0).await), (111, 110, 100));

        // Two servers at once, and once more: each minute goes into its hour once.
        let keep = |days: u32| now - (DAY * days) + Duration::from_secs(3600);
        let first = KeepFrom { minutes: keep(1), hours: keep(9), runs: keep(9) };
        for rolled in join_all(stores.iter().map(|store| store.roll_counts(first))).await {
            rolled.unwrap();
        }
        store.roll_counts(first).await.unwrap();
        assert_eq!((counted(2).await, counted(1).await, counted(0).await), (111, 110, 100));
        assert_eq!(store.run_counts("n", None, since(0), 9).await.unwrap().len(), 1);

        // More of the same hour comes to it, and what is too old goes.
        test.sql(&format!(
            "UPDATE begin_counts SET span_at = span_at - {day} WHERE minutes = 1"
        )).await;
        store.roll_counts(first).await.unwrap();
        assert_eq!((counted(2).await, counted(1).await, counted(0).await), (111, 110, 0));
        let second = KeepFrom { minutes: keep(1), hours: keep(2), runs: keep(0) };
        store.roll_counts(second).await.unwrap();
        assert_eq!((counted(2).await, counted(1).await), (110, 110));
        assert_eq!(store.run_counts("n", None, since(9), 9).await.unwrap(), []);
    }

    /// By whichever road a row is open: freshly granted, on the agenda, or waiting for a person.
    async fn what_is_open_is_found_without_what_is_settled(kind) {
        let store = TestStore::new(kind).await.open().await;
        let hour = Duration::from_secs(3600);
        let open = async |tool| store.open_now(Some("n"), tool, 100).await.unwrap();
        let nothing = open(None).await;
        assert_eq!(nothing, OpenNow { now: nothing.now, ..OpenNow::default() });

        let stale = insert(&store, leased("stale", Duration::ZERO)).await;
        store.gather(10, Duration::ZERO).await.unwrap();
        insert(&store, leased("fresh", hour)).await;
        let handed_over = insert(&store, leased("handed over", hour)).await;
        replace(&store, &handed_over, unknown(&handed_over, true)).await;
        let settled = insert(&store, leased("settled", hour)).await;
        replace(&store, &settled, completed(&settled)).await;
        let asked = insert(&store, leased("unknown", hour)).await;
        replace(&store, &asked, unknown(&asked, false)).await;
        insert(&store, started_in("other", "elsewhere")).await;

        let found = open(None).await;
        assert_eq!((found.unsettled, found.needs_attention, found.awaiting_approval), (4, 1, 0));
        assert_eq!(found.oldest, Some((stale.intent.key, stale.intent.created_at)));
        assert!(found.now >= stale.intent.created_at);
        assert_eq!(open(Some("charge")).await.unsettled, 4);
        assert_eq!(open(Some("mail")).await.unsettled, 0);
        assert_eq!(store.open_now(None, None, 100).await.unwrap().unsettled, 5);
        // Without the batches only what is on the agenda, or marked, is seen.
        let part = store.open_now(Some("n"), None, 0).await.unwrap();
        assert_eq!((part.unsettled, part.bounded, found.bounded), (3, true, false));
    }

    /// However much was granted and settled between what is stale and what is under way, both ends show.
    async fn what_is_open_is_found_at_both_ends_of_a_long_row_of_grants(kind) {
        let store = TestStore::new(kind).await.open().await;
        let lease = |nth: u64| Duration::from_secs(3600 + nth);
        insert(&store, leased("forgotten", lease(0))).await;
        for nth in 1..=20 {
            let settled = insert(&store, leased(&format!("settled {nth}"), lease(nth))).await;
            replace(&store, &settled, completed(&settled)).await;
        }
        let middle = insert(&store, leased("hidden", lease(21))).await;
        for nth in 22..=40 {
            let settled = insert(&store, leased(&format!("settled {nth}"), lease(nth))).await;
            replace(&store, &settled, completed(&settled)).await;
        }
        insert(&store, leased("under way", lease(41))).await;

        let open = async |ends| store.open_now(None, None, ends).await.unwrap();
        let few = open(3).await;
        assert_eq!((few.unsettled, few.bounded), (2, true));
        let all = open(40).await;
        assert_eq!((all.unsettled, all.bounded), (3, false));
        assert!(all.oldest.unwrap().1 < middle.intent.created_at);
    }
}
