//! Callers who make unary calls, each one effect after the other, over four connections.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use intent_ledger::proto::v1::{Decision, IntentState, LookupRequest, lookup_request::By};
use prost::Message;

use crate::{
    ids::{Id, Ids, RESULT, Requests},
    measure::{Load, Phase, Tally, now},
    source::Source,
    wire::{Begun, Completed, Connection, Rpc, Seen, framed},
};

/// Adds `callers` of the server at `address`, whose keys come from `source`.
pub(crate) fn effects(load: &mut Load, address: &str, callers: usize, source: &Source) {
    let source = source.clone();
    spawn(load, address, callers, move |caller, phase| caller.effects(source.clone(), phase));
}

/// The same, of calls that repeat what is done already. Each caller has one intent of its own.
pub(crate) fn replays(load: &mut Load, address: &str, callers: usize) {
    spawn(load, address, callers, Caller::replays);
}

fn spawn<F>(
    load: &mut Load,
    address: &str,
    callers: usize,
    work: impl Fn(Caller, Arc<Phase>) -> F + Send + 'static,
) where
    F: Future<Output = Tally> + Send + 'static,
{
    let address = address.to_owned();
    load.spawn(move |phase, connected| async move {
        let connections = Connection::open_for(&address, callers).await;
        connected.say();
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let caller = Caller::new(connections[caller % connections.len()].clone());
                tokio::spawn(work(caller, Arc::clone(&phase)))
            })
            .collect();
        let mut all = Tally::default();
        for task in tasks {
            all.add(task.await.expect("a caller that does not panic"));
        }
        all
    });
}

/// One caller.
pub(crate) struct Caller {
    connection: Connection,
    begin: Rpc,
    complete: Rpc,
    lookup: Rpc,
    requests: Requests,
    ids: Ids,
}

impl Caller {
    /// A caller on a connection that it shares.
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            begin: connection.rpc("Begin"),
            complete: connection.rpc("Complete"),
            lookup: connection.rpc("Lookup"),
            connection,
            requests: Requests::new(),
            ids: Ids::new(),
        }
    }

    async fn effects(mut self, source: Source, phase: Arc<Phase>) -> Tally {
        let mut tally = Tally::default();
        while !phase.stopping() {
            let began = now();
            let next = source.next(&mut self.ids);
            tally.keys += u64::from(next.fresh);
            let attempt = self.ids.id();
            let answer = self.begin(&next.key, &attempt).await;
            if !source.may_execute(next.number, &answer) {
                continue;
            }
            self.complete(&answer.intent.expect("an intent"), &attempt).await;
            if phase.measuring() {
                tally.count(began, now());
            }
        }
        tally
    }

    async fn replays(mut self, phase: Arc<Phase>) -> Tally {
        let mut tally = Tally { keys: 1, ..Tally::default() };
        let (key, attempt) = (self.ids.id(), self.ids.id());
        let answer = self.begin(&key, &attempt).await;
        self.complete(&answer.intent.expect("an intent"), &attempt).await;
        while !phase.stopping() {
            let began = now();
            let again = self.ids.id();
            let answer = self.begin(&key, &again).await;
            assert_eq!(answer.decision, Decision::Replay as i32);
            assert_eq!(answer.intent.expect("an intent").result.as_deref(), Some(RESULT));
            if phase.measuring() {
                tally.count(began, now());
            }
        }
        tally
    }

    /// An id that nobody else has.
    pub(crate) fn id(&mut self) -> Id {
        self.ids.id()
    }

    /// Asks for leave.
    pub(crate) async fn begin(&mut self, key: &Id, attempt: &Id) -> Begun {
        let message = self.requests.begin_call(key, attempt);
        let answer = self.connection.call(&self.begin, message).await;
        Begun::decode(answer).expect("an answer")
    }

    /// Reports the effect.
    pub(crate) async fn complete(&mut self, granted: &Seen, attempt: &Id) {
        let message = self.requests.complete_call(granted, attempt);
        let answer = self.connection.call(&self.complete, message).await;
        let done = Completed::decode(answer).expect("an answer").intent.expect("an intent");
        assert_eq!(done.state, IntentState::Completed as i32);
    }

    /// Looks at an intent once its state has changed, or `longest` has passed.
    pub(crate) async fn look(&mut self, key: &Bytes, longest: Duration) -> Seen {
        let key = String::from_utf8(key.to_vec()).expect("hexadecimal digits");
        let wait = prost_types::Duration::try_from(longest).expect("a short span");
        let request =
            LookupRequest { by: Some(By::Key(key)), wait: Some(wait), ..LookupRequest::default() };
        let answer = self.connection.call(&self.lookup, framed(&request).into()).await;
        // A LookupResponse has its intent where a CompleteResponse has it.
        Completed::decode(answer).expect("an answer").intent.expect("an intent")
    }
}
