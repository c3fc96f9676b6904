//! What goes wrong with calls.

use std::time::{Duration, Instant};

use intent_ledger::{clock::monotonic, proto::status_v1::EffectState};
use serde_json::json;

use super::{Downstream, Options, SHORT, Seen, done, not_found};

fn elapsed(since: Instant) -> Duration {
    monotonic().duration_since(since)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_then_timeout_happens_and_nobody_hears_it() {
    let downstream = Downstream::plain().await;
    let impatient = downstream.http.waiting(SHORT);
    let error = impatient.post("k1", "effect_then_timeout").await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(downstream.ask("k1", "").await.0, (200, done("eff-1", "k1")));
    // With a span it is answered after all.
    let begun = monotonic();
    let answer = downstream.http.post("k2", "effect_then_timeout=50ms").await.unwrap();
    assert_eq!(answer, (200, done("eff-2", "k2")));
    assert!(elapsed(begun) >= Duration::from_millis(50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_follows_an_effect_or_none_and_the_caller_cannot_tell() {
    let downstream = Downstream::plain().await;
    let after = downstream.http.post("k1", "effect_then_error").await.unwrap();
    let without = downstream.http.post("k2", "error_without_effect").await.unwrap();
    assert_eq!((after.0, &after), (500, &without));
    assert_eq!(downstream.ask("k1", "").await.0.0, 200);
    assert_eq!(downstream.ask("k2", "").await.0, not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_happens_at_once_and_is_answered_later() {
    let downstream = Downstream::plain().await;
    tokio::select! {
        answer = downstream.http.post("k1", "slow=1h") => panic!("answered: {answer:?}"),
        () = downstream.running.until(|it| it.sent_count() == 1) => {}
    }
    let begun = monotonic();
    let answer = downstream.http.post("k2", "slow=50ms").await.unwrap();
    assert_eq!(answer, (200, done("eff-2", "k2")));
    assert!(elapsed(begun) >= Duration::from_millis(50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_makes_two_objects_with_one_key() {
    let downstream = Downstream::plain().await;
    assert_eq!(downstream.http.post("k1", "twice").await.unwrap(), (200, done("eff-1", "k1")));
    let (http, grpc) = downstream.ask("k1", "").await;
    let objects = json!({"objects": [done("eff-1", "k1"), done("eff-2", "k1")]});
    assert_eq!(http, (200, objects));
    let Seen { state, effects } = grpc.unwrap();
    let references: Vec<&str> = effects.iter().map(|effect| effect.1.as_str()).collect();
    assert_eq!((state, references.as_slice()), (EffectState::Executed, &["eff-1", "eff-2"][..]));
    assert_eq!(downstream.running.sent_count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_has_no_effect_and_closes_the_connection_at_once_or_later() {
    let downstream = Downstream::plain().await;
    let error = downstream.http.post("k1", "lost").await.unwrap_err();
    assert!(error.is_request() && !error.is_timeout(), "{error:?}");
    let begun = monotonic();
    let error = downstream.http.post("k1", "lost=50ms").await.unwrap_err();
    assert!(!error.is_timeout() && elapsed(begun) >= Duration::from_millis(50), "{error:?}");
    let impatient = downstream.http.waiting(SHORT);
    assert!(impatient.post("k1", "lost=1h").await.unwrap_err().is_timeout());
    let (http, grpc) = downstream.ask("k1", "").await;
    assert_eq!((http, grpc.unwrap()), (not_found(), Seen::absent()));
    assert_eq!((downstream.running.sent_count(), downstream.running.requests()), (0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_is_a_definite_no() {
    let downstream = Downstream::plain().await;
    let refused = (422, json!({"error": "refused"}));
    assert_eq!(downstream.http.post("k1", "refused").await.unwrap(), refused);
    assert_eq!(downstream.ask("k1", "").await.0, not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_visibility_is_absent_until_it_is_not() {
    let downstream = Downstream::plain().await;
    let begun = monotonic();
    let answer = downstream.http.post("k1", "late_visibility=500ms").await.unwrap();
    assert_eq!(answer, (200, done("eff-1", "k1")));
    assert_eq!(downstream.running.sent_count(), 1, "it happened all the same");
    while downstream.ask("k1", "").await.0 == not_found() {}
    assert!(elapsed(begun) >= Duration::from_millis(499));
    let (http, grpc) = downstream.ask("k1", "").await;
    assert_eq!((http, grpc.unwrap().state), ((200, done("eff-1", "k1")), EffectState::Executed));
    downstream.http.post("k2", "late_visibility=1h").await.unwrap();
    let (http, grpc) = downstream.ask("k2", "").await;
    assert_eq!((http, grpc.unwrap()), (not_found(), Seen::absent()));
    assert_eq!(downstream.http.get("/v1/effects/by-ref/eff-2").await, not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_effect_is_queued_and_then_happens() {
    let window = Some(Duration::from_secs(3600));
    let options = Options { deduplicates: window, ..Options::default() };
    let downstream = Downstream::start(options).await;
    let mut queued = done("eff-1", "k1");
    queued["state"] = "queued".into();
    let answer = downstream.http.post("k1", "late_effect=1h").await.unwrap();
    assert_eq!(answer, (202, queued.clone()));
    let (http, grpc) = downstream.ask("k1", "").await;
    assert_eq!(http, (200, queued.clone()));
    let running = Seen { state: EffectState::Running, effects: Vec::new() };
    assert_eq!(grpc.unwrap(), running);
    assert_eq!(downstream.http.post("k1", "").await.unwrap(), (202, queued));
    assert_eq!(downstream.running.sent_count(), 0);

    assert_eq!(downstream.http.post("k2", "late_effect=50ms").await.unwrap().0, 202);
    downstream.running.until(|it| it.sent_count() == 1).await;
    let (http, grpc) = downstream.ask("k2", "").await;
    assert_eq!(http, (200, done("eff-2", "k2")));
    assert_eq!(grpc.unwrap().state, EffectState::Executed);
    assert_eq!(downstream.http.post("k2", "").await.unwrap(), (200, done("eff-2", "k2")));
    assert_eq!(downstream.running.sent_count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_one_call_add_up() {
    let downstream = Downstream::plain().await;
    let impatient = downstream.http.waiting(SHORT);
    let faults = "twice, effect_then_timeout, late_visibility=1h";
    assert!(impatient.post("k1", faults).await.unwrap_err().is_timeout());
    assert_eq!(downstream.running.sent_count(), 2);
    assert_eq!(downstream.ask("k1", "").await.0, not_found());
    // What is lost is not refused: nobody hears it.
    assert!(downstream.http.post("k2", "refused, lost").await.is_err());
}
