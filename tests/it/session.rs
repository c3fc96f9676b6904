//! Session: the same calls on one stream, each item with its own answer.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use futures::{Stream, StreamExt, future::join_all};
use intent_ledger::proto::v1::{
    Decision, IntentState, Reason, SessionRequest,
    intent_ledger_service_client::IntentLedgerServiceClient, session_request::Item as Asked,
    session_response::Item as Answered,
};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Code, transport::Endpoint};
use tonic_types::pb::ErrorInfo;

use crate::{
    on_both_stores,
    support::{
        calls::{
            BeginResponseExt as _, CHARGE_POLICY, by_key, charge, completed, completion, expect,
            key_of, span,
        },
        load::wait_until,
        server::{Kind, TestServer},
    },
};

on_both_stores! {
    /// Who asks for more than may wait for it is not read further, and gets all once he takes it.
    async fn large_answers_wait_for_their_reader(kind) {
        let server = TestServer::with_policy(kind, CHARGE_POLICY).await;
        let large = vec![7; 256 * 1024];
        let key = completed(&server.agent, charge("o-1", 1, "a"), &large).await.key;
        let (items, stream) = mpsc::channel(1);
        let mut answers =
            server.agent.clone().session(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let asking = tokio::spawn(async move {
            for sequence in 0..300 {
                let item = Some(Asked::Lookup(by_key(&key)));
                items.send(SessionRequest { sequence, item }).await.unwrap();
            }
        });
        let mut seen = HashSet::new();
        while let Some(answer) = answers.next().await {
            let answer = answer.unwrap();
            let Some(Answered::Lookup(found)) = answer.item else { panic!("{answer:?}") };
            assert_eq!(found.intent.unwrap().result.as_deref(), Some(&large[..]));
            assert!(seen.insert(answer.sequence));
        }
        assert_eq!(seen.len(), 300);
        asking.await.unwrap();
        server.stop().await;
    }

    /// Section 4: answers find their items by the sequence; an item's error ends nothing.
    async fn a_session_answers_each_item_and_survives_their_errors(kind) {
        let (server, store) = TestServer::faulty(kind, Some(CHARGE_POLICY)).await;
        let (items, stream) = mpsc::unbounded_channel();
        let ask = |sequence: u64, item: Option<Asked>| {
            items.send(SessionRequest { sequence, item }).unwrap();
        };
        let stream = UnboundedReceiverStream::new(stream);
        let mut answers = server.agent.clone().session(stream).await.unwrap().into_inner();
        let mut next = async || {
            let answer = answers.next().await.expect("the stream goes on").expect("no error ends it");
            (answer.sequence, answer.item.unwrap())
        };

        // Many in flight, in whatever order they come back; sequences are the caller's choice.
        for order in 0..20_u64 {
            ask(u64::MAX - order, Some(Asked::Begin(charge(&format!("o-{order}"), 1, "a"))));
        }
        let mut granted = HashMap::new();
        for _ in 0..20 {
            let (sequence, answer) = next().await;
            let Answered::Begin(answer) = answer else { panic!("{answer:?}") };
            assert_eq!(answer.reason(), Reason::New);
            granted.insert(u64::MAX - sequence, answer);
        }
        assert_eq!(granted.len(), 20);

        // Errors are the statuses that the calls would have had.
        let expected = [
            (1, Some(Asked::Begin(charge("o-1", 2, "a"))), Code::FailedPrecondition, "PARAMETERS_CHANGED"),
            (2, Some(Asked::Lookup(by_key("x"))), Code::InvalidArgument, "KEY_INVALID"),
            (3, None, Code::InvalidArgument, "SESSION_ITEM_REQUIRED"),
            (4, Some(Asked::Lookup(by_key(&"ab".repeat(32)))), Code::NotFound, "INTENT_NOT_FOUND"),
        ];
        for (sequence, item, code, reason) in expected {
            ask(sequence, item);
            let (answered, answer) = next().await;
            let Answered::Error(status) = answer else { panic!("{answer:?}") };
            assert_eq!((answered, status.code), (sequence, i32::from(code)));
            let info = ErrorInfo::decode(&*status.details[0].value).unwrap();
            assert_eq!(info.reason, reason);
            assert!(info.metadata.contains_key("effectMayHaveHappened"));
        }

        // A long wait holds nobody up, and is woken by the settlement behind it.
        let first = &granted[&0];
        let mut wait = by_key(&key_of(first));
        wait.wait = Some(span(300));
        let mut finds = store.finds();
        let before = *finds.borrow_and_update();
        ask(5, Some(Asked::Lookup(wait)));
        // It has read the row, and then read it again with its watch on.
        finds.wait_for(|finds| *finds >= before + 2).await.unwrap();
        ask(6, Some(Asked::Lookup(by_key(&key_of(&granted[&1])))));
        assert_eq!(next().await.0, 6);
        ask(7, Some(Asked::Complete(completion(first, b"1"))));
        let mut both = [next().await, next().await];
        both.sort_by_key(|(sequence, _)| *sequence);
        let [(5, Answered::Lookup(woken)), (7, Answered::Complete(completed))] = both else {
            panic!("{both:?}");
        };
        assert_eq!(woken.intent.unwrap().state(), IntentState::Completed);
        assert_eq!(completed.intent.unwrap().attempt_id, first.attempt_id);

        // The end of the items is the end of the stream.
        drop(items);
        assert!(answers.next().await.is_none());
        let replay =
            expect(&server.agent, charge("o-0", 1, "a"), Decision::Replay, Reason::Completed).await;
        assert_eq!(replay.recorded().result.as_deref(), Some(&b"1"[..]));
        server.stop().await;
    }
}

/// Items as a caller sends them that does not save them up: a frame of HTTP/2 for each. The count is of those sent.
fn item_by_item(count: u64, item: Asked) -> (impl Stream<Item = SessionRequest>, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let items = futures::stream::iter(0..count).then(move |sequence| {
        counted.fetch_add(1, SeqCst);
        let item = Some(item.clone());
        async move {
            tokio::task::yield_now().await;
            SessionRequest { sequence, item }
        }
    });
    (items, sent)
}

/// Senders that write faster than they are answered are held up by flow control; their connection, with every other
/// call on it, is not ended as an attacker's.
async fn senders_that_read_nothing_for_a_while(senders: usize, count: u64) {
    let server = TestServer::with_policy(Kind::Sqlite, CHARGE_POLICY).await;
    // A client with room for some hundred answers on a stream, as HTTP/2 has it by default.
    let small = Endpoint::from_shared(server.url.clone()).unwrap();
    let channel = small.initial_stream_window_size(65_535).connect().await.unwrap();
    let agent = IntentLedgerServiceClient::new(channel);
    // Answered without the store: it is the stream that is tried.
    let lookup = Asked::Lookup(by_key(&"no".repeat(32)));
    let mut sessions = Vec::new();
    for _ in 0..senders {
        let (items, sent) = item_by_item(count, lookup.clone());
        let answers = agent.clone().session(items).await.unwrap().into_inner();
        sessions.push((sent, answers));
    }
    let (mut before, mut unchanged) = (Vec::new(), 0);
    wait_until("the senders are held up", async || {
        let now: Vec<u64> = sessions.iter().map(|(sent, _)| sent.load(SeqCst)).collect();
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
        before.iter().all(|sent| *sent > 0) && unchanged >= 50
    })
    .await;
    assert!(before.iter().all(|sent| *sent < count), "what has held up {before:?}?");
    expect(&agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
    let reading = sessions.into_iter().map(|(_, mut answers)| async move {
        let mut seen = HashSet::new();
        while let Some(answer) = answers.next().await {
            assert!(seen.insert(answer.expect("no error ends it").sequence));
        }
        seen.len() as u64
    });
    assert_eq!(join_all(reading).await, vec![count; senders], "none is lost");
    expect(&agent, charge("o-2", 1, "a"), Decision::Execute, Reason::New).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_reads_nothing_is_held_up_and_not_cut_off() {
    senders_that_read_nothing_for_a_while(1, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_on_one_connection_that_read_nothing_are_held_up_and_not_cut_off() {
    senders_that_read_nothing_for_a_while(8, 10_000).await;
}
