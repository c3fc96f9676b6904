//! Callers who make unary calls, each one effect after the other, over four connections.

use std::sync::Arc;

use intent_ledger::proto::v1::{Decision, IntentState};
use prost::Message;

use crate::{
    ids::{Ids, RESULT, Requests},
    measure::{Connected, Load, Phase, Tally, now},
    wire::{Begun, Completed, Connection, Rpc, Seen},
};

/// Starts the load of `callers` on the server at `address`.
pub(crate) fn effects(address: &str, callers: usize) -> Load {
    start(address, callers, Caller::effects)
}

/// The same, of calls that repeat what is done already. Each caller has one intent of its own.
pub(crate) fn replays(address: &str, callers: usize) -> Load {
    start(address, callers, Caller::replays)
}

fn start<F>(
    address: &str,
    callers: usize,
    work: impl Fn(Caller, Arc<Phase>) -> F + Send + 'static,
) -> Load
where
    F: Future<Output = Tally> + Send + 'static,
{
    let address = address.to_owned();
    let mut load = Load::new();
    load.spawn(move |phase, connected: Connected| async move {
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
    load
}

/// One caller.
pub(crate) struct Caller {
    connection: Connection,
    begin: Rpc,
    complete: Rpc,
    requests: Requests,
    ids: Ids,
}

impl Caller {
    /// A caller on a connection that it shares.
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            begin: connection.rpc("Begin"),
            complete: connection.rpc("Complete"),
            connection,
            requests: Requests::new(),
            ids: Ids::new(),
        }
    }

    async fn effects(mut self, phase: Arc<Phase>) -> Tally {
        let mut tally = Tally::default();
        while !phase.stopping() {
            let began = now();
            let (key, attempt) = (self.ids.id(), self.ids.id());
            tally.keys += 1;
            let answer = self.begin(&key, &attempt).await;
            assert_eq!(answer.decision, Decision::Execute as i32);
            let done = self.complete(&answer.intent.expect("an intent"), &attempt).await;
            assert_eq!(done.state, IntentState::Completed as i32);
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

    /// Asks for leave.
    pub(crate) async fn begin(&mut self, key: &crate::ids::Id, attempt: &crate::ids::Id) -> Begun {
        let message = self.requests.begin_call(key, attempt);
        let answer = self.connection.call(&self.begin, message).await;
        Begun::decode(answer).expect("an answer")
    }

    /// Reports the effect; the intent as it is then.
    pub(crate) async fn complete(&mut self, granted: &Seen, attempt: &crate::ids::Id) -> Seen {
        let message = self.requests.complete_call(granted, attempt);
        let answer = self.connection.call(&self.complete, message).await;
        let answer = Completed::decode(answer).expect("an answer");
        answer.intent.expect("an intent")
    }
}
