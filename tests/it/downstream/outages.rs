//! Outages: nobody is served, nothing happens, and it passes.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use intent_ledger::downstream::{Outage, OutageMode};
use serde_json::json;
use tokio::net::TcpStream;
use tonic::Code;

use super::{Downstream, HttpClient, SHORT, Seen, done, not_found};

async fn connect(address: SocketAddr) -> Result<(), ErrorKind> {
    TcpStream::connect(address).await.map(drop).map_err(|error| error.kind())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuse_cuts_connections_refuses_new_ones_and_gives_no_port_away() {
    let downstream = Downstream::plain().await;
    let addresses = [downstream.running.http, downstream.running.grpc];
    // Connections that are open already: one that waits for an answer, one of gRPC that is idle.
    assert_eq!(downstream.ask_grpc("k1", "").await.unwrap(), Seen::absent());
    let waiting = downstream.http.waiting(super::PATIENCE);
    let waiting = tokio::spawn(async move { waiting.post("k1", "effect_then_timeout").await });
    downstream.running.until(|it| it.sent_count() == 1).await;

    let outage = Outage { mode: OutageMode::Refuse, span: None };
    downstream.running.set_outage(outage).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(!error.is_timeout(), "{error:?}");
    for address in addresses {
        assert_eq!(connect(address).await, Err(ErrorKind::ConnectionRefused));
        let taken = std::net::TcpListener::bind(address).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
    assert!(downstream.http.post("k2", "").await.unwrap_err().is_connect());
    assert_eq!(downstream.ask_grpc("k1", "").await.unwrap_err().code(), Code::Unavailable);

    downstream.running.end_outage().await;
    assert_eq!(downstream.ask("k1", "").await.0, (200, done("eff-1", "k1")));
    assert_eq!(downstream.ask("k2", "").await.0, not_found());
    assert_eq!(downstream.running.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_orders_an_outage_over_http_hears_that_it_began_and_it_ends_by_itself() {
    let downstream = Downstream::plain().await;
    let order = json!({"for": "1h", "mode": "refuse"});
    assert_eq!(downstream.http.put("/v1/outage", &order).await.0, 204);
    assert_eq!(connect(downstream.running.http).await, Err(ErrorKind::ConnectionRefused));
    downstream.running.end_outage().await;
    let order = json!({"for": "50ms", "mode": "refuse"});
    assert_eq!(downstream.http.put("/v1/outage", &order).await.0, 204);
    downstream.running.outage_over().await;
    assert_eq!(downstream.http.post("k1", "").await.unwrap(), (200, done("eff-1", "k1")));

    for (body, said) in [
        (json!({"mode": "refuse"}), "\"for\" is missing"),
        (json!({}), "\"for\" is missing"),
        (json!({"for": "soon"}), "\"soon\" is no span"),
        (
            json!({"for": "1s", "mode": "explode"}),
            "there is no outage mode \"explode\"; there are: refuse, error, hang",
        ),
        (json!({"for": "1s", "kind": "hang"}), "unknown field `kind`"),
    ] {
        let (status, answer) = downstream.http.put("/v1/outage", &body).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!((status, message.contains(said)), (400, true), "{body}: {answer}");
    }
    assert_eq!(downstream.http.post("k1", "").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_answers_503_and_a_test_can_still_read_the_log_and_end_it() {
    let downstream = Downstream::plain().await;
    let http = &downstream.http;
    http.post("k1", "").await.unwrap();
    assert_eq!(http.put("/v1/outage", &json!({"mode": "error"})).await.0, 204);
    let gone = (503, json!({"error": "unavailable"}));
    assert_eq!(http.post("k1", "").await.unwrap(), gone);
    let (asked, grpc) = downstream.ask("k1", "").await;
    assert_eq!((asked, grpc.unwrap_err().code()), (gone, Code::Unavailable));
    let (_, log) = http.get("/v1/effects").await;
    assert_eq!((&log["total"], &log["requests"]), (&json!(1), &json!(2)));
    assert_eq!(http.delete("/v1/outage").await, 204);
    assert_eq!(http.post("k1", "").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hang_answers_nothing_and_has_no_effect_when_it_is_over() {
    let downstream = Downstream::plain().await;
    downstream.running.set_outage(Outage { mode: OutageMode::Hang, span: None }).await;
    let impatient = downstream.http.waiting(SHORT);
    assert!(impatient.status("k1", "").await.unwrap_err().is_timeout());
    let patient: HttpClient = downstream.http.clone();
    let patient = tokio::spawn(async move { patient.post("k1", "").await });
    downstream.running.until(|it| it.requests() == 1).await;
    assert_eq!(downstream.http.get("/v1/effects").await.1["requests"], 1);
    downstream.running.end_outage().await;
    let error = patient.await.unwrap().unwrap_err();
    assert!(!error.is_timeout(), "{error:?}");
    assert_eq!(downstream.running.sent_count(), 0);
    assert_eq!(downstream.http.post("k1", "").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_outage_takes_the_place_of_an_older_one_and_of_its_end() {
    let downstream = Downstream::plain().await;
    let set = async |mode, span| downstream.running.set_outage(Outage { mode, span }).await;
    set(OutageMode::Refuse, Some(Duration::from_millis(50))).await;
    set(OutageMode::Error, None).await;
    assert_eq!(downstream.http.post("k1", "").await.unwrap().0, 503);
    set(OutageMode::Refuse, None).await;
    // The first one's end comes and goes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(connect(downstream.running.http).await, Err(ErrorKind::ConnectionRefused));
    downstream.running.end_outage().await;
    assert_eq!(downstream.http.post("k1", "").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_can_bring_an_outage_about() {
    let downstream = Downstream::plain().await;
    assert!(downstream.http.post("k1", "outage=1h").await.is_err());
    assert_eq!(connect(downstream.running.http).await, Err(ErrorKind::ConnectionRefused));
    downstream.running.end_outage().await;
    assert_eq!(downstream.ask("k1", "").await.0, not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_cuts_what_waits_and_frees_the_ports() {
    let Downstream { running, http, .. } = Downstream::plain().await;
    let address = running.http;
    let waiting = tokio::spawn(async move { http.post("k1", "effect_then_timeout, twice").await });
    running.until(|it| it.sent_count() == 2).await;
    running.stop().await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(!error.is_timeout(), "{error:?}");
    std::net::TcpListener::bind(address).expect("the port is free");
}
