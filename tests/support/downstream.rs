//! A downstream that the ledger can ask, and the tool that calls it.

use std::time::Duration;

use intent_ledger::{
    downstream::{self, Options, Running},
    policy::Policy,
    proto::v1::BeginResponse,
    tls,
};

/// How long the tool waits for an answer: an effect whose answer is lost is not waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// How the simulator's answers are read; `docs/downstream.md` shows the same.
const RULES: &str = r#"
completed_when = "status == 200 && (has(body.objects) ? body.objects.exists(it, it.state == 'done') : body.state == 'done')"
running_when = "body.state == 'queued'"
not_executed_when = "status == 404 && body.error == 'not_found'"
key_at = "has(body.objects) ? body.objects.map(it, it.idempotency_key) : body.idempotency_key"
ref_at = "has(body.objects) ? body.objects.map(it, it.id) : body.id"
"#;

/// A simulator and a client of it.
pub(crate) struct Downstream {
    pub(crate) running: Running,
    client: reqwest::Client,
}

impl Downstream {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let running = downstream::start(options).await.unwrap();
        let client = tls::http_client().timeout(PATIENCE).build().unwrap();
        Self { running, client }
    }

    /// A tool's section that asks over HTTP; `more` are further keys of its status table.
    pub(crate) fn over_http(&self, tool: &str, more: &str) -> String {
        let address = self.running.http;
        format!(
            "[tools.{tool}.downstream.status]\n{RULES}\
             http = {{ url = \"http://{address}/v1/effects/by-key/{{downstream_key}}\" }}\n{more}\n"
        )
    }

    /// A tool's section that asks over gRPC.
    pub(crate) fn over_grpc(&self, tool: &str, more: &str) -> String {
        let address = self.running.grpc;
        format!(
            "[tools.{tool}.downstream.status]\ngrpc = {{ target = \"http://{address}\" }}\n{more}\n"
        )
    }

    /// Has the effect that a Begin granted; its answer, if one came in time.
    pub(crate) async fn send(&self, granted: &BeginResponse, faults: &str) -> Option<String> {
        let url = format!("http://{}/v1/effects", self.running.http);
        let mut request = self
            .client
            .post(url)
            .header("idempotency-key", &granted.downstream_key)
            .header("x-action", &granted.intent.as_ref().unwrap().key)
            .body("{}");
        if !faults.is_empty() {
            request = request.header("x-fault", faults);
        }
        let response = request.send().await.ok()?;
        let ok = response.status().is_success();
        response.text().await.ok().filter(|_| ok)
    }
}

/// The text as a policy that loads.
#[track_caller]
pub(crate) fn policy(sections: &[&str]) -> String {
    let text = format!("version = 1\n{}", sections.join("\n"));
    if let Err(error) = Policy::from_text(&text) {
        panic!("{error}\n{text}");
    }
    text
}
