//! One stream that always has as many effects under way.

use std::{sync::Arc, time::Instant};

use intent_ledger::proto::v1::{Decision, IntentState};

use crate::{
    ids::{Id, Ids, Requests},
    measure::{Connected, Load, Phase, Tally, now},
    wire::{Connection, Kind, Session},
};

/// Starts the load of one session on each of the servers, with `in_flight` effects each.
pub(crate) fn effects(addresses: &[&str], in_flight: usize) -> Load {
    let mut load = Load::new();
    for address in addresses {
        let address = (*address).to_owned();
        load.spawn(move |phase, connected| one_stream(address, in_flight, phase, connected));
    }
    load
}

async fn one_stream(
    address: String,
    in_flight: usize,
    phase: Arc<Phase>,
    connected: Connected,
) -> Tally {
    let session = Connection::open(&address).await.session().await;
    connected.say();
    let mut stream = Stream {
        session,
        requests: Requests::new(),
        ids: Ids::new(),
        slots: Vec::with_capacity(in_flight),
        tally: Tally::default(),
    };
    for slot in 0..in_flight {
        stream.slots.push((now(), [0; 36]));
        stream.begin(slot, now());
    }
    stream.session.flush();
    stream.run(&phase).await
}

struct Stream {
    session: Session,
    requests: Requests,
    ids: Ids,
    /// Of each effect under way: when it began, and its attempt.
    slots: Vec<(Instant, Id)>,
    tally: Tally,
}

impl Stream {
    fn begin(&mut self, slot: usize, at: Instant) {
        let (key, attempt) = (self.ids.id(), self.ids.id());
        self.slots[slot] = (at, attempt);
        self.tally.keys += 1;
        self.session.push(slot as u64, Kind::Begin, self.requests.begin(&key, &attempt));
    }

    async fn run(mut self, phase: &Phase) -> Tally {
        let mut under_way = self.slots.len();
        let mut answers = Vec::new();
        while under_way > 0 {
            self.session.answers(&mut answers).await;
            // One look at the clock for all that came together.
            let (at, measuring, stopping) = (now(), phase.measuring(), phase.stopping());
            for answer in answers.drain(..) {
                let slot = answer.sequence as usize;
                if let Some(begun) = answer.begin {
                    assert_eq!(begun.decision, Decision::Execute as i32);
                    let granted = begun.intent.expect("an intent");
                    let request = self.requests.complete(&granted, &self.slots[slot].1);
                    self.session.push(answer.sequence, Kind::Complete, request);
                } else {
                    let done = answer.complete.and_then(|it| it.intent);
                    let state = done.map(|intent| intent.state);
                    assert_eq!(state, Some(IntentState::Completed as i32), "{:?}", answer.error);
                    if measuring {
                        self.tally.count(self.slots[slot].0, at);
                    }
                    if stopping {
                        under_way -= 1;
                    } else {
                        self.begin(slot, at);
                    }
                }
            }
            self.session.flush();
        }
        self.session.close().await;
        self.tally
    }
}
