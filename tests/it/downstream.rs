//! The downstream simulator, by real HTTP and gRPC requests: each fault, the sent log, outages, the command.

mod calls;
mod outages;
mod policy;
mod process;
mod status;

use std::time::Duration;

use futures::future::join_all;
use intent_ledger::{
    downstream::{self, Fault, Faults, Options, Running},
    proto::status_v1::{
        EffectState, GetEffectRequest, GetEffectResponse,
        effect_status_service_client::EffectStatusServiceClient,
    },
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tonic::{Status, transport::Channel};

/// How long a client waits where no answer is to come.
const SHORT: Duration = Duration::from_millis(200);

/// How long it waits where one is, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A downstream and its clients.
struct Downstream {
    running: Running,
    http: HttpClient,
    grpc: EffectStatusServiceClient<Channel>,
}

impl Downstream {
    async fn start(options: Options) -> Self {
        let running = downstream::start(options).await.unwrap();
        let http = HttpClient::new(format!("http://{}", running.http), PATIENCE);
        let url = format!("http://{}", running.grpc);
        let channel = Channel::from_shared(url).unwrap().connect_lazy();
        Self { running, http, grpc: EffectStatusServiceClient::new(channel) }
    }

    async fn plain() -> Self {
        Self::start(Options::default()).await
    }

    /// Asks both faces about a key; HTTP's status and body, and gRPC's answer.
    async fn ask(&self, key: &str, faults: &str) -> ((u16, Value), Result<Seen, Status>) {
        let http = self.http.status(key, faults).await.unwrap();
        (http, self.ask_grpc(key, faults).await)
    }

    async fn ask_grpc(&self, key: &str, faults: &str) -> Result<Seen, Status> {
        let request = GetEffectRequest { downstream_key: key.into(), ..Default::default() };
        let mut request = tonic::Request::new(request);
        if !faults.is_empty() {
            request.metadata_mut().insert("x-fault", faults.parse().unwrap());
        }
        self.grpc.clone().get_effect(request).await.map(|answer| answer.into_inner().into())
    }
}

/// A gRPC answer: the state, and each effect's key, reference and result.
#[derive(Debug, PartialEq)]
struct Seen {
    state: EffectState,
    effects: Vec<(String, String, String)>,
}

impl From<GetEffectResponse> for Seen {
    fn from(answer: GetEffectResponse) -> Self {
        let state = answer.state();
        let effects = answer.effects.into_iter().map(|effect| {
            let result = String::from_utf8(effect.result).unwrap();
            (effect.downstream_key, effect.downstream_ref, result)
        });
        Self { state, effects: effects.collect() }
    }
}

impl Seen {
    fn absent() -> Self {
        Self { state: EffectState::NotExecuted, effects: Vec::new() }
    }
}

/// Talks to the HTTP face; sends each request once.
#[derive(Clone)]
struct HttpClient {
    client: reqwest::Client,
    base: String,
}

impl HttpClient {
    fn new(base: String, timeout: Duration) -> Self {
        // The HTTP client wants to know one, though nothing here is encrypted.
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self { client, base }
    }

    /// The same downstream, waited for only so long; with connections of its own.
    fn waiting(&self, timeout: Duration) -> Self {
        Self::new(self.base.clone(), timeout)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> reqwest::Result<(u16, Value)> {
        let mut request = self.client.request(method, format!("{}{path}", self.base)).body(body);
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    async fn post(&self, key: &str, faults: &str) -> reqwest::Result<(u16, Value)> {
        let headers = [("idempotency-key", key), ("x-fault", faults), ("x-action", "mail")];
        self.send(Method::POST, "/v1/effects", &headers, r#"{"to":"ada"}"#).await
    }

    async fn status(&self, key: &str, faults: &str) -> reqwest::Result<(u16, Value)> {
        let path = format!("/v1/effects/by-key/{key}");
        self.send(Method::GET, &path, &[("x-fault", faults)], "").await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, &[], "").await.unwrap()
    }

    async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(Method::PUT, path, &[], body.to_string()).await.unwrap()
    }

    async fn delete(&self, path: &str) -> u16 {
        self.send(Method::DELETE, path, &[], "").await.unwrap().0
    }
}

/// The JSON of an effect that happened.
fn done(id: &str, key: &str) -> Value {
    json!({"id": id, "state": "done", "idempotency_key": key, "action": "mail"})
}

fn not_found() -> (u16, Value) {
    (404, json!({"error": "not_found"}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_has_its_effect_and_all_who_ask_hear_the_same() {
    let downstream = Downstream::plain().await;
    let effect = done("eff-1", "k1");
    assert_eq!(downstream.ask("k1", "").await.0, not_found());
    assert_eq!(downstream.http.post("k1", "").await.unwrap(), (200, effect.clone()));
    let (http, grpc) = downstream.ask("k1", "").await;
    assert_eq!(http, (200, effect.clone()));
    let text = r#"{"id":"eff-1","state":"done","idempotency_key":"k1","action":"mail"}"#;
    let effects = vec![("k1".to_owned(), "eff-1".to_owned(), text.to_owned())];
    assert_eq!(grpc.unwrap(), Seen { state: EffectState::Executed, effects });
    assert_eq!(downstream.http.get("/v1/effects/by-ref/eff-1").await, (200, effect));
    for id in ["eff-2", "eff-01", "nothing"] {
        let path = format!("/v1/effects/by-ref/{id}");
        assert_eq!(downstream.http.get(&path).await, not_found(), "{id}");
    }
    let by_ref = |id: &str| GetEffectRequest { downstream_ref: id.into(), ..Default::default() };
    let grpc = downstream.grpc.clone().get_effect(by_ref("eff-1")).await.unwrap().into_inner();
    assert_eq!(grpc.effects[0].downstream_key, "k1");
    assert_eq!(grpc.effects[0].result_content_type, "application/json");
    let absent = downstream.grpc.clone().get_effect(by_ref("eff-2")).await.unwrap().into_inner();
    assert_eq!(Seen::from(absent), Seen::absent());
    let nothing = downstream.grpc.clone().get_effect(by_ref("")).await.unwrap_err();
    assert_eq!(nothing.code(), tonic::Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sent_log_has_every_effect_with_counts() {
    let downstream = Downstream::plain().await;
    let post = async |headers: &[(&str, &str)], body: &'static str| {
        downstream.http.send(Method::POST, "/v1/effects", headers, body).await.unwrap()
    };
    let key = ("idempotency-key", "k1");
    post(&[key, ("x-action", "a")], "{\n \"n\": 1.0,\r\n \"s\": \"\\n\" }").await;
    post(&[key, ("x-action", "b")], "no JSON").await;
    let (status, keyless) = post(&[("x-action", "a")], "").await;
    assert_eq!((status, &keyless["idempotency_key"]), (200, &Value::Null));
    post(&[key, ("x-fault", "refused")], "{}").await;
    let (status, log) = downstream.http.get("/v1/effects").await;
    assert_eq!(status, 200);
    assert_eq!((&log["total"], &log["requests"]), (&json!(3), &json!(4)));
    assert_eq!((&log["by_key"], &log["by_action"]), (&json!({"k1": 2}), &json!({"a": 2, "b": 1})));
    assert_eq!(log["effects"][0]["request"], json!({"n": 1.0, "s": "\n"}));
    assert_eq!(log["effects"][1]["request"], Value::Null);
    assert_eq!(log["effects"][2]["id"], "eff-3");
    let sent = downstream.running.sent();
    assert_eq!(sent[0].request.as_ref().unwrap().get(), r#"{  "n": 1.0,   "s": "\n" }"#);
    assert_eq!((sent.len(), downstream.running.requests()), (3, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downstream_that_deduplicates_has_one_effect_of_a_crowd_and_forgets_it_after_its_window()
{
    let window = Some(Duration::from_secs(3600));
    let downstream =
        Downstream::start(Options { deduplicates: window, ..Options::default() }).await;
    let crowd = join_all((0..50).map(|_| downstream.http.post("k1", ""))).await;
    for answer in crowd {
        assert_eq!(answer.unwrap(), (200, done("eff-1", "k1")));
    }
    assert_eq!((downstream.running.sent_count(), downstream.running.requests()), (1, 50));
    // A repeat says so, and is as late or as wrong as it is told to be.
    let url = format!("{}/v1/effects", downstream.http.base);
    let request = downstream.http.client.post(url).header("idempotency-key", "k1");
    assert_eq!(request.send().await.unwrap().headers()["idempotent-replayed"], "true");
    assert_eq!(downstream.http.post("k1", "effect_then_error").await.unwrap().0, 500);
    assert_eq!(downstream.running.sent_count(), 1);
    // What was refused is judged anew.
    assert_eq!(downstream.http.post("k2", "refused").await.unwrap().0, 422);
    assert_eq!(downstream.http.post("k2", "").await.unwrap(), (200, done("eff-2", "k2")));

    let window = Some(Duration::from_millis(1));
    let downstream =
        Downstream::start(Options { deduplicates: window, ..Options::default() }).await;
    while downstream.running.sent_count() < 2 {
        downstream.http.post("k1", "").await.unwrap();
    }
    let objects = downstream.http.status("k1", "").await.unwrap().1;
    assert_eq!(objects, json!({"objects": [done("eff-1", "k1"), done("eff-2", "k1")]}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_repeats_what_befell_each_key_in_whatever_order_they_come() {
    let rates = ["refused=0.3", "error_without_effect=0.3", "twice=0.3", "status_html=0.5"];
    let faults = rates.iter().fold(Faults::none(), |it, rate| it.with_rate(rate.parse().unwrap()));
    let run = async |seed, backwards| {
        let options = Options { seed, faults: faults.clone(), ..Options::default() };
        let downstream = Downstream::start(options).await;
        let mut keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
        if backwards {
            keys.reverse();
        }
        let lives = keys.into_iter().map(async |key| {
            let mut met = Vec::new();
            for _ in 0..3 {
                met.push(downstream.http.post(&key, "").await.unwrap().0);
            }
            let objects = downstream.running.sent();
            let of_key = |it: &&downstream::SentEffect| it.idempotency_key.as_deref() == Some(&key);
            let html = downstream.http.status(&key, "").await.unwrap().1.is_string();
            (key.clone(), met, objects.iter().filter(of_key).count(), html)
        });
        let mut lives = join_all(lives).await;
        lives.sort();
        lives
    };
    let first = run(7, false).await;
    assert_eq!(run(7, true).await, first);
    assert_ne!(run(8, false).await, first);
    let statuses: std::collections::BTreeSet<u16> =
        first.iter().flat_map(|life| life.1.clone()).collect();
    assert_eq!(statuses, [200, 422, 500].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_set_shown_and_cleared_at_run_time_and_unknown_ones_refused() {
    let downstream = Downstream::plain().await;
    let http = &downstream.http;
    let set = json!({"rates": {"slow": "1:1ms", "refused": 0}, "keys": {"k1": "refused"}});
    let shown = json!({"rates": {"slow": "1:1ms", "refused": 0.0}, "keys": {"k1": "refused"}});
    assert_eq!(http.put("/v1/faults", &set).await, (200, shown.clone()));
    assert_eq!(http.get("/v1/faults").await, (200, shown.clone()));
    assert_eq!(http.post("k1", "").await.unwrap().0, 422);
    assert_eq!(http.post("k2", "").await.unwrap().0, 200);

    for (body, said) in [
        (json!({"rates": {"slwo": 1}}), r#"there is no fault "slwo"; there are: effect_then"#),
        (json!({"rates": {"twice": "1:2s"}}), "twice takes no span"),
        (json!({"rates": {"twice": 7}}), r#""7" is no rate for twice"#),
        (json!({"fault": "slow"}), "unknown field `fault`"),
        (json!(7), "invalid type: integer"),
    ] {
        let (status, answer) = http.put("/v1/faults", &body).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!((status, message.contains(said)), (400, true), "{body}: {answer}");
    }
    assert_eq!(http.get("/v1/faults").await, (200, shown), "a bad word changes nothing");
    let (status, answer) = http.post("k3", "slow, lots").await.unwrap();
    assert_eq!((status, &answer["error"]), (400, &json!("bad_request")));
    assert!(answer["message"].as_str().unwrap().contains("there is no fault \"lots\""));
    assert_eq!(downstream.ask("k3", "").await.0, not_found());
    for faults in ["nonsense", "slow"] {
        let (status, _) = http.status("k3", faults).await.unwrap();
        let refused = downstream.ask_grpc("k3", faults).await.unwrap_err();
        assert_eq!((status, refused.code()), (400, tonic::Code::InvalidArgument), "{faults}");
    }

    assert_eq!(http.delete("/v1/faults").await, StatusCode::NO_CONTENT.as_u16());
    assert_eq!(http.get("/v1/faults").await.1, json!({"rates": {}, "keys": {}}));
    assert_eq!(http.post("k1", "").await.unwrap().0, 200);
    let of_key = Fault::list("refused").unwrap();
    downstream.running.set_faults(Faults::none().with_key("k1", of_key));
    assert_eq!(http.post("k1", "").await.unwrap().0, 422);
    downstream.running.clear_faults();
    assert_eq!(http.post("k1", "").await.unwrap().0, 200);
    assert_eq!(http.get("/v1/effect").await, (404, json!({"error": "no_such_path"})));
}
