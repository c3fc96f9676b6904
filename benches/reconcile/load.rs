//! Callers that begin and complete, one effect after the other.

use std::time::Duration;

use intent_ledger::{clock::monotonic, proto::v1::CompleteRequest};

use crate::world::{World, begin};

/// Callers beside each other.
const CALLERS: usize = 16;

/// How long each Begin took, of as many as were made in `span`.
pub(crate) async fn begins(world: &World, span: Duration) -> Vec<Duration> {
    let end = monotonic() + span;
    let callers = (0..CALLERS).map(|_| {
        let mut agent = world.agent.clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            while monotonic() < end {
                let began = monotonic();
                let granted = agent.begin(begin("live")).await.expect("an answer").into_inner();
                took.push(monotonic().duration_since(began));
                let completion = CompleteRequest {
                    key: granted.intent.expect("it is recorded").key,
                    attempt_id: granted.attempt_id,
                    result: Some(b"1".to_vec()),
                    ..CompleteRequest::default()
                };
                agent.complete(completion).await.expect("an answer");
            }
            took
        })
    });
    let mut all = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        all.extend(caller.await.expect("a caller"));
    }
    all
}
