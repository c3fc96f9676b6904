//! What every store promises, one line per behaviour, run on each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use intent_ledger::{
    domain::{
        approval::Approval,
        attempt::{Failure, Fate},
        canonical_json::Json,
        decision::{BeginCall, Candidate, Decision, Facts, decide},
        event::{Event, EventKind, Provenance},
        fingerprint::fingerprint,
        identity::{Call, HASH_VERSION, Recipe, downstream_digest, downstream_uuid, identify},
        intent::{HandedOver, Intent, Probing, RecipeVersion, ResultBody, Settlement, State},
        time::Timestamp,
        tool::{ApprovalRule, ToolPolicy},
    },
    ids,
    store::{
        self, Cursor, Filter, Found, LOCK_WAIT, ORPHANS_PER_NAMESPACE_MAX, OrphanFact, Reference,
        RowKey, Store, StoreOptions, Stored, StoredPolicies, StoredPolicy, Touch, Write, Written,
        row_id,
    },
};

use crate::{
    on_every_store,
    support::server::{Kind, TestStore},
};

/// Decisions of these tests are made for this time, long before any write.
const DECIDED_AT: Timestamp = Timestamp::from_micros(1_000_000);

/// The row of a first Begin, as the domain decides it.
pub(crate) fn started_in(namespace: &str, key: &str) -> Intent {
    let arguments = Json::parse("{}").unwrap();
    let business_ids = BTreeMap::new();
    let call = Call {
        namespace,
        tool: "charge",
        run_id: "r",
        step_id: "",
        idempotency_key: key,
        business_ids: &business_ids,
        arguments: &arguments,
    };
    let recipe = Recipe::default();
    let identified = identify(&recipe, &call).unwrap();
    let candidate = Candidate {
        recipe: RecipeVersion { policy: 0, hash: HASH_VERSION },
        key: identified.key,
        downstream: downstream_digest(&identified.key, None, HASH_VERSION),
        basis: identified.basis,
        print: fingerprint(&recipe, &[], &call, &identified.key, identified.basis),
        kept: BTreeMap::new(),
    };
    let begin = BeginCall {
        free_text: Vec::new(),
        namespace: namespace.into(),
        tool: "charge".into(),
        run_id: "r".into(),
        step_id: String::new(),
        attempt_id: ids::random(),
        caller: "worker-1".into(),
        tool_call_id: String::new(),
        lease: None,
        labels: BTreeMap::new(),
        arguments_json: "{}".into(),
    };
    let facts = Facts::at(DECIDED_AT);
    match decide(None, &begin, &candidate, &ToolPolicy::default(), &facts) {
        Ok(Decision::Execute { write: Some(written), .. }) => *written.intent,
        other => panic!("{other:?}"),
    }
}

fn started(key: &str) -> Intent {
    started_in("n", key)
}

fn insertion(intent: &Intent) -> Write {
    insertion_with(intent, Vec::new())
}

fn insertion_with(intent: &Intent, events: Vec<Event>) -> Write {
    Write::insert(intent.clone(), events, false)
}

/// A new row that was decided under this policy.
fn insertion_under(policy: u32, key: &str) -> Write {
    let mut intent = started(key);
    intent.recipe.policy = policy;
    insertion(&intent)
}

/// The row that a write leaves.
fn stamped(write: &Write, at: Timestamp) -> Intent {
    let mut write = write.clone();
    write.stamp(at);
    *write.intent
}

fn fact(kind: EventKind, note: &str) -> Event {
    Event {
        at: DECIDED_AT,
        kind,
        provenance: Provenance::Caller,
        actor: "worker-1".into(),
        attempt_id: Some(uuid::Uuid::from_u128(7)),
        state_before: State::Started,
        state_after: State::Started,
        code: "http_504".into(),
        note: note.into(),
        downstream_ref: Some("ch_1".into()),
        result_sha256: Some([7; 32]),
    }
}

fn key_of(intent: &Intent) -> RowKey {
    RowKey { namespace: intent.namespace.clone(), id: row_id(&intent.key, intent.recipe.hash) }
}

fn orphan(intent: &Intent, note: &str) -> OrphanFact {
    OrphanFact {
        namespace: intent.namespace.clone(),
        key: intent.key,
        id: key_of(intent).id,
        event: fact(EventKind::OrphanFact, note),
    }
}

#[track_caller]
fn done(written: Written) -> Timestamp {
    match written {
        Written::Done { at } => at,
        other => panic!("{other:?}"),
    }
}

async fn write(store: &dyn Store, write: &Write) -> Written {
    let mut written = store.write(std::slice::from_ref(write), LOCK_WAIT).await.unwrap();
    assert_eq!(written.len(), 1);
    written.remove(0)
}

async fn insert(store: &dyn Store, intent: &Intent) -> Stored {
    done(write(store, &insertion(intent)).await);
    find(store, intent).await.expect("it was just written")
}

/// A row that somebody has reported on since it was new.
async fn changed(store: &dyn Store, intent: &Intent, change: impl FnOnce(&mut Intent)) -> Stored {
    let read = insert(store, intent).await;
    let mut next = read.intent.clone();
    change(&mut next);
    done(write(store, &Write::replace(&read, next, Vec::new(), None)).await);
    find(store, intent).await.expect("it was just written")
}

async fn find(store: &dyn Store, intent: &Intent) -> Option<Stored> {
    store.find(&[key_of(intent)]).await.unwrap().rows.remove(0)
}

async fn list(
    store: &dyn Store,
    filter: &Filter,
    after: Option<Cursor>,
    max: usize,
) -> Vec<Intent> {
    let rows = store.list(filter, after, max).await.unwrap();
    rows.into_iter().map(|stored| stored.intent).collect()
}

fn in_namespace(namespace: &str) -> Filter {
    Filter { namespace: namespace.into(), ..Filter::default() }
}

fn policy(version: u32) -> StoredPolicy {
    StoredPolicy { version, text: format!("version = {version}\n") }
}

on_every_store! {
    async fn an_absent_row_is_inserted_and_one_that_is_there_is_left_alone(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        assert_eq!(find(&*store, &intent).await, None);
        let first = insertion(&intent);
        let at = done(write(&*store, &first).await);
        let stored = find(&*store, &intent).await.unwrap();
        assert_eq!(stored, Stored { intent: stamped(&first, at), version: 1 });
        // A rival has the same key and another attempt.
        assert_eq!(write(&*store, &insertion(&started("k1"))).await, Written::Missed);
        assert_eq!(find(&*store, &intent).await, Some(stored));
    }

    async fn a_row_is_replaced_at_the_version_that_was_read_and_at_no_other(kind) {
        let store = TestStore::new(kind).await.open().await;
        let read = insert(&*store, &started("k1")).await;
        let mut next = read.intent.clone();
        next.state = State::Unknown;
        let replacement = Write::replace(&read, next.clone(), Vec::new(), None);
        done(write(&*store, &replacement).await);
        let second = find(&*store, &next).await.unwrap();
        assert_eq!((second.version, second.intent.state), (2, State::Unknown));
        assert_eq!(write(&*store, &replacement).await, Written::Missed, "the version has moved");
        let future = Stored { version: 3, ..second.clone() };
        let write_ahead = Write::replace(&future, next.clone(), Vec::new(), None);
        assert_eq!(write(&*store, &write_ahead).await, Written::Missed);
        let absent = Stored { intent: started("k2"), version: 1 };
        let nothing = Write::replace(&absent, started("k2"), Vec::new(), None);
        assert_eq!(write(&*store, &nothing).await, Written::Missed, "there is no such row");
        assert_eq!(find(&*store, &next).await, Some(second));
    }

    async fn a_batch_has_one_answer_for_each_write_in_its_order(kind) {
        let store = TestStore::new(kind).await.open().await;
        let [a, b, c] = ["a", "b", "c"].map(started);
        let stored_a = insert(&*store, &a).await;
        let stored_b = insert(&*store, &b).await;
        let mut unknown = stored_a.intent.clone();
        unknown.state = State::Unknown;
        let stale = Stored { version: 9, ..stored_b.clone() };
        let batch = [
            insertion(&c),
            Write::replace(&stale, b.clone(), Vec::new(), None),
            insertion_under(5, "d"),
            Write::replace(&stored_a, unknown, Vec::new(), Some(0)),
            insertion(&started("e")),
        ];
        let written = store.write(&batch, LOCK_WAIT).await.unwrap();
        assert!(
            matches!(
                written[..],
                [
                    Written::Done { .. },
                    Written::Missed,
                    Written::PolicyMoved,
                    Written::Done { .. },
                    Written::Done { .. }
                ]
            ),
            "{written:?}"
        );
        assert_eq!(find(&*store, &a).await.unwrap().intent.state, State::Unknown);
        assert_eq!(find(&*store, &b).await, Some(stored_b));
        assert_eq!(find(&*store, &started("d")).await, None);
        assert!(find(&*store, &started("e")).await.is_some());
        assert_eq!(store.write(&[], LOCK_WAIT).await.unwrap(), []);
    }

    async fn a_batch_of_hundreds_is_written_whole(kind) {
        let store = TestStore::new(kind).await.open().await;
        let batch: Vec<Write> = (0..300).map(|i| insertion(&started(&format!("k{i}")))).collect();
        for written in store.write(&batch, LOCK_WAIT).await.unwrap() {
            done(written);
        }
        let keys: Vec<RowKey> = batch.iter().map(|write| key_of(&write.intent)).collect();
        let found = store.find(&keys).await.unwrap();
        for (write, row) in batch.iter().zip(found.rows) {
            assert_eq!(row.unwrap().intent.key, write.intent.key);
        }
    }

    async fn a_write_that_was_decided_under_another_policy_leaves_no_trace(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        let read = insert(&*store, &intent).await;
        assert!(store.activate_policy(0, &policy(3)).await.unwrap());
        assert_eq!(write(&*store, &insertion(&started("k2"))).await, Written::PolicyMoved);
        assert_eq!(find(&*store, &started("k2")).await, None);
        let mut next = read.intent.clone();
        next.state = State::Unknown;
        let events = vec![fact(EventKind::Superseded, "")];
        let old = Write::replace(&read, next.clone(), events.clone(), Some(0));
        assert_eq!(write(&*store, &old).await, Written::PolicyMoved);
        assert_eq!(find(&*store, &intent).await.as_ref(), Some(&read));
        assert_eq!(store.events(key_of(&intent).id).await.unwrap(), []);
        // A report rests on no policy.
        let report = Write::replace(&read, next, events, None);
        done(write(&*store, &report).await);
        done(write(&*store, &insertion_under(3, "k2")).await);
    }

    async fn an_orphan_fact_stands_in_the_way_of_an_insert_that_has_not_seen_it(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        assert_eq!(store.keep_orphans(&[orphan(&intent, "a")]).await.unwrap(), [true]);
        assert_eq!(write(&*store, &insertion(&intent)).await, Written::Missed);
        assert_eq!(find(&*store, &intent).await, None);
        let seen = Write::insert(intent.clone(), Vec::new(), true);
        done(write(&*store, &seen).await);
        // Another tenant's fact of the same id is nobody's business here.
        let other = started("k2");
        let foreign = OrphanFact { namespace: "other".into(), ..orphan(&other, "a") };
        assert_eq!(store.keep_orphans(&[foreign]).await.unwrap(), [true]);
        done(write(&*store, &insertion(&other)).await);
    }

    async fn orphan_facts_are_kept_once_oldest_first_and_per_namespace(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        for note in ["b", "a", "b"] {
            assert_eq!(store.keep_orphans(&[orphan(&intent, note)]).await.unwrap(), [true]);
        }
        let kept = store.orphans(&key_of(&intent)).await.unwrap();
        let notes: Vec<&str> = kept.iter().map(|event| event.note.as_str()).collect();
        assert_eq!(notes, ["b", "a"]);
        assert_eq!(Event { at: DECIDED_AT, ..kept[0].clone() }, fact(EventKind::OrphanFact, "b"));
        assert!(kept[0].at > DECIDED_AT && kept[0].at <= kept[1].at, "the store's own time");
        let foreign = RowKey { namespace: "other".into(), ..key_of(&intent) };
        assert_eq!(store.orphans(&foreign).await.unwrap(), []);
    }

    async fn orphan_facts_are_bounded_for_each_namespace(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let most = ORPHANS_PER_NAMESPACE_MAX - 1;
        test.sql(&match kind {
            Kind::Sqlite => format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})
                 INSERT INTO orphan_facts (id, namespace, digest, at, fact)
                 SELECT randomblob(16), 'n', randomblob(16), 0, '{{}}' FROM n"
            ),
            _ => format!(
                "INSERT INTO orphan_facts (id, namespace, digest, at, fact)
                 SELECT gen_random_uuid(), 'n', '\\x00', now(), '{{}}'
                 FROM generate_series(1, {most})"
            ),
        })
        .await;
        let facts = [orphan(&started("k1"), "last"), orphan(&started("k2"), "over")];
        assert_eq!(store.keep_orphans(&facts).await.unwrap(), [true, false]);
        assert_eq!(store.keep_orphans(&facts[..1]).await.unwrap(), [true], "known already");
        let other = orphan(&started_in("other", "k1"), "first");
        assert_eq!(store.keep_orphans(&[other]).await.unwrap(), [true]);
        assert_eq!(store.orphans(&key_of(&started("k2"))).await.unwrap(), []);
    }

    async fn events_come_with_their_row_once_and_oldest_first(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        let id = key_of(&intent).id;
        let first = insertion_with(&intent, vec![fact(EventKind::OrphanFact, "first")]);
        let at = done(write(&*store, &first).await);
        let at_write = Event { at, ..fact(EventKind::OrphanFact, "first") };
        assert_eq!(store.events(id).await.unwrap().as_slice(), std::slice::from_ref(&at_write));

        let mut read = find(&*store, &intent).await.unwrap();
        for note in ["second", "first", "second"] {
            let kind = if note == "first" { EventKind::OrphanFact } else { EventKind::LateFail };
            let events = vec![fact(kind, note)];
            let again = Write::replace(&read, read.intent.clone(), events, None);
            done(write(&*store, &again).await);
            read = find(&*store, &intent).await.unwrap();
        }
        let events = store.events(id).await.unwrap();
        let notes: Vec<&str> = events.iter().map(|event| event.note.as_str()).collect();
        assert_eq!(notes, ["first", "second"]);
        assert_eq!(events[0], at_write, "the first time stays");

        // A move is a fact each time, and so is what a person decides.
        let moved = Event { state_after: State::Unknown, ..fact(EventKind::LateFail, "moved") };
        let person = Event {
            provenance: Provenance::Operator,
            ..fact(EventKind::Acknowledged, "seen")
        };
        for _ in 0..2 {
            let events = vec![moved.clone(), person.clone()];
            let again = Write::replace(&read, read.intent.clone(), events, None);
            done(write(&*store, &again).await);
            read = find(&*store, &intent).await.unwrap();
        }
        assert_eq!(store.events(id).await.unwrap().len(), 6);

        // A write that misses brings no events.
        let missed = insertion_with(&intent, vec![fact(EventKind::NotGranted, "never")]);
        assert_eq!(write(&*store, &missed).await, Written::Missed);
        assert_eq!(store.events(id).await.unwrap().len(), 6);
        assert_eq!(store.events(ids::random()).await.unwrap(), []);
    }

    async fn the_times_that_a_decision_sets_are_those_of_its_write(kind) {
        let store = TestStore::new(kind).await.open().await;
        let intent = started("k1");
        let before = store.now().await.unwrap();
        let at = done(write(&*store, &insertion(&intent)).await);
        assert!(before <= at && at <= store.now().await.unwrap());
        let read = find(&*store, &intent).await.unwrap();
        let attempt = read.intent.current().unwrap();
        assert_eq!((read.intent.created_at, attempt.granted_at), (at, at));
        assert_eq!(attempt.lease_expires_at, at + Duration::from_secs(60));

        // A settlement is of its write's time and moves no other.
        let mut settled = read.intent.clone();
        settled.state = State::Completed;
        settled.settled_at = Some(DECIDED_AT);
        let settle = Write::replace(&read, settled, Vec::new(), None);
        let at_settle = done(write(&*store, &settle).await);
        assert!(at_settle >= at);
        let read = find(&*store, &intent).await.unwrap();
        assert_eq!(read.intent, stamped(&settle, at_settle));
        assert_eq!(read.intent.settled_at, Some(at_settle));
        assert_eq!(read.intent.created_at, at);
        assert_eq!(read.intent.current().unwrap().granted_at, at);

        // A longer lease was decided on a reading and keeps its time: a write that has waited must
        // not carry it past the end of a window.
        let mut extended = read.intent.clone();
        let end = DECIDED_AT + Duration::from_secs(600);
        extended.attempts[0].lease_expires_at = end;
        let extend = Write::replace(&read, extended, Vec::new(), None);
        done(write(&*store, &extend).await);
        let read = find(&*store, &intent).await.unwrap();
        let attempt = read.intent.current().unwrap();
        assert_eq!(attempt.lease_expires_at, end);
        assert_eq!(attempt.granted_at, at);
        assert_eq!(read.intent.settled_at, Some(at_settle));
    }

    async fn every_part_of_an_intent_comes_back_as_it_was_written(kind) {
        let store = TestStore::new(kind).await.open().await;
        let read = insert(&*store, &started("k1")).await;
        let mut full = read.intent.clone();
        full.labels = [("team".to_owned(), "a\"b\u{1f4b8}".to_owned())].into();
        full.state = State::Completed;
        let mut second = full.attempts[0].clone();
        full.attempts[0].fate = Fate::NotExecuted;
        full.attempts[0].failure =
            Some(Failure { not_executed: true, code: "x".into(), message: "a\0b".into() });
        full.attempts[0].reports = vec![[1; 8], [2; 8]];
        second.id = ids::random();
        second.number = 2;
        second.extended = true;
        second.fate = Fate::Executed;
        second.reports = vec![[3; 8]];
        second.promise.key_attempt = Some(2);
        second.promise.uuid_key = true;
        second.promise.dedup_window = Some(Duration::from_millis(1500));
        full.attempts.push(second);
        full.attempts_forgiven = 1;
        let rule = ApprovalRule { expires: Duration::from_secs(5), valid_for: Duration::from_secs(6) };
        full.approval = Some(Approval::propose(rule, "worker-1", "{\"a\":1}", DECIDED_AT));
        full.result = Some(ResultBody::reported(Some(vec![0, 255]), "a/b".into(), None, 1));
        full.settlement = Some(Settlement {
            provenance: Provenance::Operator,
            by: "ada".into(),
            note: "it's there".into(),
        });
        full.settled_at = Some(DECIDED_AT);
        full.downstream_ref = Some("ch_1".into());
        full.needs_attention = true;
        full.conflict = true;
        full.probing = Probing {
            absences: 2,
            last_absence_at: Some(DECIDED_AT),
            asked_since: Some(DECIDED_AT),
            heard_at: Some(DECIDED_AT),
            handed_over: Some(HandedOver::GaveUp),
        };
        let replacement = Write::replace(&read, full, Vec::new(), Some(0));
        let at = done(write(&*store, &replacement).await);
        let stored = find(&*store, &read.intent).await.unwrap();
        assert_eq!(stored, Stored { intent: stamped(&replacement, at), version: 2 });
        // Columns that may be empty may be emptied again.
        let mut bare = read.intent.clone();
        bare.pruned = true;
        let replacement = Write::replace(&stored, bare, Vec::new(), None);
        let at = done(write(&*store, &replacement).await);
        let stored = find(&*store, &read.intent).await.unwrap();
        assert_eq!(stored, Stored { intent: stamped(&replacement, at), version: 3 });
    }

    async fn results_are_kept_byte_for_byte(kind) {
        let store = TestStore::new(kind).await.open().await;
        let results: [Option<&[u8]>; 7] = [
            None,
            Some(b""),
            Some(b"\0"),
            Some(b"a\0b"),
            Some(&[0xff, 0xfe, 0x80, 0x00]),
            Some(br#"{"b":1,"a":1.0,"a":"\u0000"}"#),
            Some(br"\x41\\'"),
        ];
        for (number, bytes) in results.into_iter().enumerate() {
            let read = insert(&*store, &started(&format!("k{number}"))).await;
            let mut next = read.intent.clone();
            let body =
                ResultBody::reported(bytes.map(<[u8]>::to_vec), String::new(), None, u64::MAX);
            next.result = Some(body.clone());
            let replacement = Write::replace(&read, next.clone(), Vec::new(), None);
            done(write(&*store, &replacement).await);
            assert_eq!(find(&*store, &next).await.unwrap().intent.result, Some(body), "{bytes:?}");
        }
    }

    async fn rows_are_found_in_the_order_asked_for_and_in_their_namespace_only(kind) {
        let store = TestStore::new(kind).await.open().await;
        let [a, b] = ["a", "b"].map(started);
        insert(&*store, &a).await;
        insert(&*store, &b).await;
        let foreign = RowKey { namespace: "other".into(), ..key_of(&a) };
        let keys = [key_of(&b), key_of(&started("c")), foreign, key_of(&a), key_of(&b)];
        let before = store.now().await.unwrap();
        let Found { now, rows } = store.find(&keys).await.unwrap();
        assert!(before <= now);
        let found: Vec<Option<_>> =
            rows.into_iter().map(|row| row.map(|stored| stored.intent.key)).collect();
        assert_eq!(found, [Some(b.key), None, None, Some(a.key), Some(b.key)]);
        assert_eq!(store.find(&[]).await.unwrap().rows, []);
    }

    async fn a_reference_finds_the_newest_row_of_its_namespace(kind) {
        let store = TestStore::new(kind).await.open().await;
        let mut newest = None;
        for (namespace, key) in [("n", "a"), ("n", "b"), ("other", "c")] {
            let mut intent = started_in(namespace, key);
            intent.tool_call_id = "call_1".into();
            changed(&*store, &intent, |it| it.downstream_ref = Some("ch_1".into())).await;
            if namespace == "n" {
                newest = Some(intent.key);
            }
        }
        let find = async |namespace: &str, reference: Reference| {
            let found = store.find_by_reference(namespace, &reference).await.unwrap();
            found.map(|stored| stored.intent.key)
        };
        let call = || Reference::ToolCallId("call_1".into());
        assert_eq!(find("n", call()).await, newest);
        assert_eq!(find("n", Reference::DownstreamRef("ch_1".into())).await, newest);
        assert_eq!(find("nobody", call()).await, None);
        assert_eq!(find("n", Reference::ToolCallId("call_2".into())).await, None);
        assert_eq!(find("n", Reference::DownstreamRef("CH_1".into())).await, None);
    }

    async fn an_attempt_is_found_by_a_downstream_key_of_its_own(kind) {
        let store = TestStore::new(kind).await.open().await;
        let stored = changed(&*store, &started("k1"), |it| {
            it.attempts[0].promise.key_attempt = Some(1);
        })
        .await;
        let row = &stored.intent;
        let key = downstream_uuid(row.downstream_digest(&row.attempts[0]));
        assert_ne!(key, key_of(row).id);
        let find = async |namespace: &str, key| {
            let reference = Reference::DownstreamKey(key);
            store.find_by_reference(namespace, &reference).await.unwrap()
        };
        assert_eq!(find("n", key).await.as_ref(), Some(&stored));
        assert_eq!(find("other", key).await, None);
        assert_eq!(find("n", key_of(row).id).await, None, "the intent's own key is the row's id");
    }

    async fn versions_are_told_for_each_row_that_is_there(kind) {
        let store = TestStore::new(kind).await.open().await;
        let [a, b] = ["a", "b"].map(started);
        let read = insert(&*store, &a).await;
        insert(&*store, &b).await;
        let again = Write::replace(&read, read.intent.clone(), Vec::new(), None);
        done(write(&*store, &again).await);
        let ids = [key_of(&b).id, ids::random(), key_of(&a).id];
        assert_eq!(store.versions(&ids).await.unwrap().1, [Some(1), None, Some(2)]);
        assert_eq!(store.versions(&[]).await.unwrap().1, []);
    }

    async fn a_list_is_newest_first_and_its_cursor_goes_on_where_it_ended(kind) {
        let store = TestStore::new(kind).await.open().await;
        // Some rows of one batch have one time: their ids order them.
        let batch: Vec<Write> = (0..5).map(|i| insertion(&started(&format!("b{i}")))).collect();
        store.write(&batch, LOCK_WAIT).await.unwrap();
        for key in ["x", "y"] {
            insert(&*store, &started(key)).await;
        }
        insert(&*store, &started_in("other", "z")).await;
        let filter = in_namespace("n");
        let all = list(&*store, &filter, None, 100).await;
        assert_eq!(all.len(), 7);
        assert_eq!((all[0].key, all[1].key), (started("y").key, started("x").key));
        assert!(all.is_sorted_by_key(|intent| std::cmp::Reverse(intent.created_at)));
        for page in 1..=7 {
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let rows = list(&*store, &filter, after, page).await;
                let Some(last) = rows.last() else { break };
                after = Some(Cursor { created_at: last.created_at, id: key_of(last).id });
                seen.extend(rows);
            }
            assert_eq!(seen, all, "pages of {page}");
        }
        assert_eq!(list(&*store, &filter, None, 0).await, []);
    }

    async fn a_list_obeys_every_condition_of_its_filter(kind) {
        let store = TestStore::new(kind).await.open().await;
        type Variant = (&'static str, fn(&mut Intent));
        let variants: [Variant; 5] = [
            ("tool", |it| it.tool = "mail".into()),
            ("run", |it| it.run_id = "r2".into()),
            ("state", |it| it.state = State::Denied),
            ("attention", |it| it.needs_attention = true),
            ("conflict", |it| it.conflict = true),
        ];
        for (key, change) in variants {
            let mut intent = started(key);
            if matches!(key, "tool" | "run") {
                change(&mut intent);
            }
            changed(&*store, &intent, change).await;
        }
        let found = async |filter: Filter| {
            let mut keys: Vec<_> =
                list(&*store, &filter, None, 10).await.iter().map(|intent| intent.key).collect();
            keys.sort();
            keys
        };
        let keys = |names: &[&str]| {
            let mut keys: Vec<_> = names.iter().map(|name| started(name).key).collect();
            keys.sort();
            keys
        };
        let n = || in_namespace("n");
        let table: [(Filter, &[&str]); 9] = [
            (n(), &["tool", "run", "state", "attention", "conflict"]),
            (Filter { tool: "mail".into(), ..n() }, &["tool"]),
            (Filter { run_id: "r2".into(), ..n() }, &["run"]),
            (Filter { states: vec![State::Denied, State::Unknown], ..n() }, &["state"]),
            (Filter { needs_attention: Some(true), ..n() }, &["attention"]),
            (Filter { needs_attention: Some(false), ..n() }, &["tool", "run", "state", "conflict"]),
            (Filter { conflict: Some(true), ..n() }, &["conflict"]),
            (Filter { conflict: Some(false), ..n() }, &["tool", "run", "state", "attention"]),
            (Filter { conflict: Some(true), needs_attention: Some(true), ..n() }, &[]),
        ];
        for (filter, names) in table {
            assert_eq!(found(filter.clone()).await, keys(names), "{filter:?}");
        }
    }

    async fn a_touch_adds_to_the_counters_and_raises_no_version(kind) {
        let store = TestStore::new(kind).await.open().await;
        let read = insert(&*store, &started("k1")).await;
        assert_eq!((read.intent.replay_count, read.intent.last_seen_at), (0, None));
        let id = key_of(&read.intent).id;
        let before = store.now().await.unwrap();
        let touch = |repeats| Touch { id, replays: repeats };
        store.touch(&[touch(3), Touch { id: ids::random(), replays: 1 }]).await.unwrap();
        store.touch(&[touch(2)]).await.unwrap();
        store.touch(&[touch(0)]).await.unwrap();
        store.touch(&[]).await.unwrap();
        let touched = find(&*store, &read.intent).await.unwrap();
        assert_eq!((touched.version, touched.intent.replay_count), (1, 5));
        assert!(touched.intent.last_seen_at.is_some_and(|seen| seen >= before));
        // A write that read the row before is not disturbed, and disturbs no counter.
        let next = Write::replace(&read, read.intent.clone(), Vec::new(), None);
        done(write(&*store, &next).await);
        assert_eq!(find(&*store, &read.intent).await.unwrap().intent.replay_count, 5);
    }

    async fn a_policy_is_activated_by_compare_and_set(kind) {
        let store = TestStore::new(kind).await.open().await;
        assert_eq!(store.policies().await.unwrap(), StoredPolicies::default());
        assert!(store.activate_policy(0, &policy(1)).await.unwrap());
        // Nothing was begun under version 0, so nobody needs it.
        let kept = StoredPolicies { active: 1, kept: vec![policy(1)] };
        assert_eq!(store.policies().await.unwrap(), kept);
        done(write(&*store, &insertion_under(1, "k1")).await);
        assert!(!store.activate_policy(0, &policy(2)).await.unwrap(), "another was quicker");
        assert_eq!(store.policies().await.unwrap(), kept, "a refused one leaves no trace");
        assert!(store.activate_policy(1, &policy(5)).await.unwrap());
        let kept = StoredPolicies { active: 5, kept: vec![policy(5), policy(1)] };
        assert_eq!(store.policies().await.unwrap(), kept);
    }

    async fn what_was_begun_before_any_policy_keeps_version_zero(kind) {
        let store = TestStore::new(kind).await.open().await;
        insert(&*store, &started("k1")).await;
        assert!(store.activate_policy(0, &policy(1)).await.unwrap());
        let none = StoredPolicy { version: 0, text: String::new() };
        let kept = StoredPolicies { active: 1, kept: vec![policy(1), none] };
        assert_eq!(store.policies().await.unwrap(), kept);
    }

    async fn the_tools_with_unsettled_rows_are_named_once(kind) {
        let store = TestStore::new(kind).await.open().await;
        for (key, state) in [
            ("a", State::Started),
            ("b", State::Unknown),
            ("c", State::Completed),
            ("d", State::Failed),
        ] {
            let mut intent = started(key);
            intent.state = state;
            if state == State::Completed || state == State::Failed {
                intent.tool = "settled".into();
            }
            insert(&*store, &intent).await;
        }
        let unsettled = store.unsettled_tools().await.unwrap();
        assert_eq!(unsettled, [("n".to_owned(), "charge".to_owned())]);
    }

    async fn a_diagnosis_names_the_settings_and_the_oldest_unsettled_intent(kind) {
        // Over one connection, as `doctor` has it.
        let test = TestStore::new(kind).await;
        let options = StoreOptions { connections_max: 1, ..test.options() };
        let store = store::open(&options).await.unwrap();
        let empty = store.diagnose().await.unwrap();
        assert_eq!(empty.oldest_unsettled, None);
        assert!(!empty.settings.is_empty());
        for setting in &empty.settings {
            assert_eq!(setting.problem, None, "{setting:?}");
        }
        let oldest = insert(&*store, &started("a")).await;
        insert(&*store, &started("b")).await;
        let diagnosis = store.diagnose().await.unwrap();
        let expected = (oldest.intent.key, oldest.intent.created_at);
        assert_eq!(diagnosis.oldest_unsettled, Some(expected));
        assert!(store.writers() >= 1);
    }

    async fn of_two_writers_on_one_key_one_wins(kind) {
        let test = TestStore::new(kind).await;
        // Two handles, as two replicas have them.
        let stores: [Arc<dyn Store>; 2] = [test.open().await, test.open().await];
        for round in 0..8 {
            let key = format!("k{round}");
            let writes = [insertion(&started(&key)), insertion(&started(&key))];
            let (a, b) = tokio::join!(write(&*stores[0], &writes[0]), write(&*stores[1], &writes[1]));
            let won = match (a, b) {
                (Written::Done { .. }, Written::Missed) => 0,
                (Written::Missed, Written::Done { .. }) => 1,
                other => panic!("{other:?}"),
            };
            let read = find(&*stores[0], &writes[0].intent).await.unwrap();
            let winner = writes[won].intent.attempts[0].id;
            assert_eq!(read.intent.attempts[0].id, winner);
            // And the same for what follows.
            let next = Write::replace(&read, read.intent.clone(), Vec::new(), None);
            let (a, b) = tokio::join!(write(&*stores[0], &next), write(&*stores[1], &next));
            assert!(
                matches!(
                    (a, b),
                    (Written::Done { .. }, Written::Missed) | (Written::Missed, Written::Done { .. })
                ),
                "{a:?} {b:?}"
            );
        }
    }

    async fn two_writers_with_the_same_rows_in_other_orders_both_get_answers(kind) {
        let test = TestStore::new(kind).await;
        let stores: [Arc<dyn Store>; 2] = [test.open().await, test.open().await];
        let forth: Vec<Write> = (0..50).map(|i| insertion(&started(&format!("k{i}")))).collect();
        let back: Vec<Write> = forth.iter().rev().cloned().collect();
        let (a, b) = tokio::join!(stores[0].write(&forth, LOCK_WAIT), stores[1].write(&back, LOCK_WAIT));
        let is_done = |written: &&Written| matches!(written, Written::Done { .. });
        let done = a.unwrap().iter().filter(is_done).count() + b.unwrap().iter().filter(is_done).count();
        assert_eq!(done, 50, "each row once");
        // And the same for what follows.
        let keys: Vec<RowKey> = forth.iter().map(|write| key_of(&write.intent)).collect();
        let read = stores[0].find(&keys).await.unwrap().rows;
        let replacement = |read: Option<Stored>| {
            let read = read.expect("it was just written");
            Write::replace(&read, read.intent.clone(), Vec::new(), None)
        };
        let forth: Vec<Write> = read.into_iter().map(replacement).collect();
        let back: Vec<Write> = forth.iter().rev().cloned().collect();
        let (a, b) = tokio::join!(stores[0].write(&forth, LOCK_WAIT), stores[1].write(&back, LOCK_WAIT));
        let done = a.unwrap().iter().filter(is_done).count() + b.unwrap().iter().filter(is_done).count();
        assert_eq!(done, 50, "each row once");
    }

    async fn what_is_written_is_there_for_whoever_opens_the_store_next(kind) {
        let test = TestStore::new(kind).await;
        let store = test.open().await;
        let stored = insert(&*store, &started("k1")).await;
        drop(store);
        let again = test.open().await;
        assert_eq!(find(&*again, &stored.intent).await, Some(stored));
    }
}

/// The lock that every write shares is waited for; a write in flight keeps its policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activation_waits_for_the_writes_in_flight() {
    let test = TestStore::new(Kind::Postgres).await;
    let store = test.open().await;
    let mut session = test.postgres().await;
    let in_flight = session.transaction().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock_shared(x'1ed9e40001'::int8)";
    in_flight.execute(lock, &[]).await.unwrap();
    let activation = tokio::spawn(async move { store.activate_policy(0, &policy(1)).await });
    let watcher = test.postgres().await;
    let waits = "SELECT count(*) FROM pg_locks
         WHERE locktype = 'advisory' AND NOT granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while watcher.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!activation.is_finished());
    in_flight.commit().await.unwrap();
    assert!(activation.await.unwrap().unwrap());
}

/// Otherwise one half of this suite would prove nothing that the other does not.
#[tokio::test]
async fn the_other_postgres_is_of_another_major_version() {
    let mut majors = Vec::new();
    for kind in [Kind::Postgres, Kind::AnotherMajor] {
        let session = TestStore::new(kind).await.postgres().await;
        let version = "SELECT current_setting('server_version_num')::int / 10000";
        majors.push(session.query_one(version, &[]).await.unwrap().get::<_, i32>(0));
    }
    assert_ne!(majors[0], majors[1], "see INTENT_LEDGER_TEST_PGBIN_OTHER in ./test.sh --help");
}
