//! A thousand callers on one key, over several servers of one store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use intent_ledger::proto::v1::{Decision, IntentState};
use tokio::sync::Barrier;

use crate::{
    ids::{Id, Ids, RESULT},
    measure::{Tally, now, runtime},
    unary::Caller,
    wire::Connection,
};

/// How long a holder waits for a change. One that comes after the change waits in vain, so not long.
const LOOK: Duration = Duration::from_millis(100);

/// How long each caller waited from the common start until it knew the result.
///
/// # Panics
/// If a call fails, or another number than one of them is told to execute.
pub(crate) fn run(addresses: &[&str], callers: usize) -> Tally {
    runtime().block_on(async {
        let mut connections = Vec::new();
        for address in addresses {
            connections.extend(Connection::open_for(address, callers).await);
        }
        let key = Ids::new().id();
        let start = Arc::new(Barrier::new(callers));
        let executed = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let caller = Caller::new(connections[caller % connections.len()].clone());
                tokio::spawn(one(caller, key, Arc::clone(&start), Arc::clone(&executed)))
            })
            .collect();
        let mut all = Tally::default();
        for task in tasks {
            all.add(task.await.expect("a caller that does not panic"));
        }
        assert_eq!(executed.load(Ordering::Relaxed), 1, "one of {callers} callers executes");
        all.keys += 1;
        all
    })
}

async fn one(mut caller: Caller, key: Id, start: Arc<Barrier>, executed: Arc<AtomicU32>) -> Tally {
    // An effect of its own first, so that nothing is done for the first time in the storm.
    let (own, attempt) = (caller.id(), caller.id());
    let mut tally = Tally { keys: 1, ..Tally::default() };
    let granted = caller.begin(&own, &attempt).await.intent.expect("an intent");
    caller.complete(&granted, &attempt).await;

    start.wait().await;
    let began = now();
    let attempt = caller.id();
    loop {
        let answer = caller.begin(&key, &attempt).await;
        let intent = answer.intent.expect("an intent");
        match Decision::try_from(answer.decision) {
            Ok(Decision::Execute) => {
                executed.fetch_add(1, Ordering::Relaxed);
                caller.complete(&intent, &attempt).await;
                break;
            }
            Ok(Decision::Replay) => {
                assert_eq!(intent.result.as_deref(), Some(RESULT), "the first result");
                break;
            }
            Ok(Decision::Hold) => {
                while caller.look(&intent.key, LOOK).await.state != IntentState::Completed as i32 {}
            }
            _ => panic!("no call of the storm may be answered {}", answer.decision),
        }
    }
    tally.count(began, now());
    tally
}
