//! One stream that always has as many effects under way.

use std::{sync::Arc, time::Instant};

use intent_ledger::proto::v1::IntentState;

use crate::{
    ids::{ID_BYTES, Id, Ids, Requests},
    measure::{Connected, Load, Phase, Tally, now},
    source::Source,
    wire::{Answer, Connection, Kind, Session},
};

/// Adds a session with the server at `address`, whose keys come from `source`.
pub(crate) fn effects(load: &mut Load, address: &str, in_flight: usize, source: &Source) {
    let (address, source) = (address.to_owned(), source.clone());
    load.spawn(move |phase, connected| one(address, in_flight, source, phase, connected));
}

async fn one(
    address: String,
    in_flight: usize,
    source: Source,
    phase: Arc<Phase>,
    connected: Connected,
) -> Tally {
    let session = Connection::open(&address).await.session().await;
    connected.say();
    let began = now();
    let slots = vec![Slot { began, attempt: [0; ID_BYTES], number: 0 }; in_flight];
    let (requests, ids) = (Requests::new(), Ids::new());
    let mut stream = Stream { session, source, requests, ids, slots, tally: Tally::default() };
    for slot in 0..in_flight {
        stream.begin(slot, began);
    }
    stream.session.flush();
    stream.run(&phase).await
}

/// One effect under way.
#[derive(Clone)]
struct Slot {
    began: Instant,
    attempt: Id,
    /// Of its key, for the source.
    number: usize,
}

struct Stream {
    session: Session,
    source: Source,
    requests: Requests,
    ids: Ids,
    slots: Vec<Slot>,
    tally: Tally,
}

impl Stream {
    async fn run(mut self, phase: &Phase) -> Tally {
        let mut under_way = self.slots.len();
        let mut answers = Vec::new();
        while under_way > 0 {
            self.session.answers(&mut answers).await;
            // One look at the clock for all that came together.
            let (at, measuring, stopping) = (now(), phase.measuring(), phase.stopping());
            for answer in answers.drain(..) {
                let slot = usize::try_from(answer.sequence).expect("one of ours");
                if self.goes_on(slot, answer, at, measuring) {
                    continue;
                }
                if stopping {
                    under_way -= 1;
                } else {
                    self.begin(slot, at);
                }
            }
            self.session.flush();
        }
        self.session.close().await;
        self.tally
    }

    fn begin(&mut self, slot: usize, at: Instant) {
        let next = self.source.next(&mut self.ids);
        self.tally.keys += u64::from(next.fresh);
        let attempt = self.ids.id();
        self.slots[slot] = Slot { began: at, attempt, number: next.number };
        self.session.push(slot as u64, Kind::Begin, self.requests.begin(&next.key, &attempt));
    }

    /// Takes an answer; whether the slot's effect has more to come.
    fn goes_on(&mut self, slot: usize, answer: Answer, at: Instant, measuring: bool) -> bool {
        let state = &self.slots[slot];
        if let Some(begun) = answer.begin {
            if !self.source.may_execute(state.number, &begun) {
                return false;
            }
            let request = self.requests.complete(&begun.intent.expect("an intent"), &state.attempt);
            self.session.push(answer.sequence, Kind::Complete, request);
            return true;
        }
        let done = answer.complete.and_then(|completed| completed.intent);
        let done = done.map(|intent| intent.state);
        assert_eq!(done, Some(IntentState::Completed as i32), "{:?}", answer.error);
        if measuring {
            self.tally.count(state.began, at);
        }
        false
    }
}
