//! A thousand callers on one key, over several servers of one store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use intent_ledger::proto::v1::{Decision, IntentState};
use tokio::sync::Barrier;

use crate::{
    ids::{Id, Ids, RESULT},
    measure::{Tally, now, runtime},
    unary::Caller,
    wire::Connection,
};

/// How long a holder waits for a change at first, and at most. A look that comes after the change
/// waits in vain, so not long at first.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(400);

/// What all callers of a storm share.
struct Shared {
    key: Id,
    start: Barrier,
    executed: AtomicU32,
    looks: AtomicU32,
    /// When the effect was settled, in microseconds after its caller began.
    settled: AtomicU32,
}

/// How long each caller waited from the common start until it knew the result, and in words what
/// happened meanwhile.
///
/// # Panics
/// If a call fails, or another number than one of them is told to execute.
pub(crate) fn run(addresses: &[&str], callers: usize) -> (Tally, String) {
    let shared = Arc::new(Shared {
        key: Ids::new().id(),
        start: Barrier::new(callers),
        executed: AtomicU32::new(0),
        looks: AtomicU32::new(0),
        settled: AtomicU32::new(0),
    });
    let mut tally = runtime().block_on(async {
        let mut connections = Vec::new();
        for address in addresses {
            connections.extend(Connection::open_for(address, callers).await);
        }
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let caller = Caller::new(connections[caller % connections.len()].clone());
                tokio::spawn(one(caller, Arc::clone(&shared)))
            })
            .collect();
        let mut all = Tally::default();
        for task in tasks {
            all.add(task.await.expect("a caller that does not panic"));
        }
        all
    });
    tally.keys += 1;
    let executed = shared.executed.load(Ordering::Relaxed);
    assert_eq!(executed, 1, "one of {callers} callers executes");
    let told = format!(
        "one EXECUTE, settled after {} ms; {} looks until all of {callers} callers knew",
        shared.settled.load(Ordering::Relaxed) / 1000,
        shared.looks.load(Ordering::Relaxed),
    );
    (tally, told)
}

async fn one(mut caller: Caller, shared: Arc<Shared>) -> Tally {
    // An effect of its own first, so that nothing is done for the first time in the storm.
    let (own, attempt) = (caller.id(), caller.id());
    let mut tally = Tally { keys: 1, ..Tally::default() };
    let granted = caller.begin(&own, &attempt).await.intent.expect("an intent");
    caller.complete(&granted, &attempt).await;

    shared.start.wait().await;
    let began = now();
    know(&mut caller, &shared, began).await;
    tally.count(began, now());
    tally
}

/// Returns once the caller has had the effect, or the result of it.
async fn know(caller: &mut Caller, shared: &Shared, began: Instant) {
    let attempt = caller.id();
    let mut look = LOOK_MIN;
    loop {
        let answer = caller.begin(&shared.key, &attempt).await;
        let intent = answer.intent.expect("an intent");
        match Decision::try_from(answer.decision) {
            Ok(Decision::Execute) => {
                shared.executed.fetch_add(1, Ordering::Relaxed);
                caller.complete(&intent, &attempt).await;
                let settled = now().duration_since(began).as_micros();
                shared.settled.store(settled.try_into().unwrap_or(u32::MAX), Ordering::Relaxed);
                return;
            }
            Ok(Decision::Replay) => {
                assert_eq!(intent.result.as_deref(), Some(RESULT), "the first result");
                return;
            }
            Ok(Decision::Hold) => loop {
                shared.looks.fetch_add(1, Ordering::Relaxed);
                let seen = caller.look(&intent.key, look).await;
                if seen.state == IntentState::Completed as i32 {
                    break;
                }
                look = (look * 2).min(LOOK_MAX);
            },
            _ => panic!("no call of the storm may be answered {}", answer.decision),
        }
    }
}
