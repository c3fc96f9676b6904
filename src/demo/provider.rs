//! A mail provider: a small HTTP server that keeps a log of what it sent, and a client for it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task::JoinHandle};

use super::agent::{Call, Layer, Mail};
use crate::{clock::monotonic, tls};

/// What providers call the header that carries a caller's key.
const KEY_HEADER: &str = "idempotency-key";

/// Names the layer that caused a request, so that the sent log can show it. SDKs have such headers
/// too (a retry count); the provider only writes it down.
const LAYER_HEADER: &str = "x-sent-by";

/// One mail that has left the provider.
#[derive(Debug, Clone)]
pub(super) struct SentMail {
    /// When, counted from the provider's start.
    pub(super) at: Duration,
    pub(super) subject: String,
    /// Which intended mail it is.
    pub(super) template: String,
    /// The layer of the agent that caused it.
    pub(super) layer: String,
    idempotency_key: Option<String>,
}

/// The provider, for as long as it is not dropped.
pub(super) struct Provider {
    address: SocketAddr,
    office: Arc<Office>,
    server: JoinHandle<()>,
}

/// What the provider's handlers share.
struct Office {
    opened: Instant,
    sent: Mutex<Vec<SentMail>>,
    answers_after: Mutex<Duration>,
}

impl Provider {
    /// Opens a provider on a free port; it answers at once until told otherwise.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("failed to listen for the mail provider")?;
        let address = listener.local_addr()?;
        let office = Arc::new(Office {
            opened: monotonic(),
            sent: Mutex::default(),
            answers_after: Mutex::default(),
        });
        let routes = Router::new()
            .route("/v1/mails", post(send))
            .route("/v1/by-key/{key}", get(by_key))
            .with_state(Arc::clone(&office));
        let server = tokio::spawn(async move {
            // Ends with the demo; a failure shows as mails that are not in the log.
            axum::serve(listener, routes).await.ok();
        });
        Ok(Self { address, office, server })
    }

    /// From now on, answers only so long after the mail has been sent.
    pub(super) fn answer_after(&self, delay: Duration) {
        *self.office.answers_after.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }

    /// Every mail that was sent, oldest first.
    pub(super) fn sent(&self) -> Vec<SentMail> {
        self.office.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Serialize, Deserialize)]
struct MailBody {
    to: String,
    subject: String,
    template: String,
}

/// Sends the mail, then answers: sending is done long before the caller hears of it.
///
/// Sends it again if it comes again, whatever key it carries: many real ones do.
async fn send(
    State(office): State<Arc<Office>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let Ok(mail) = serde_json::from_slice::<MailBody>(&body) else {
        return (StatusCode::UNPROCESSABLE_ENTITY, String::new());
    };
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let number = {
        let mut sent = office.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push(SentMail {
            at: monotonic().duration_since(office.opened),
            subject: mail.subject,
            template: mail.template,
            layer: header(LAYER_HEADER).unwrap_or_default(),
            idempotency_key: header(KEY_HEADER),
        });
        sent.len()
    };
    let delay = *office.answers_after.lock().unwrap_or_else(PoisonError::into_inner);
    tokio::time::sleep(delay).await;
    (StatusCode::OK, receipt(number))
}

/// What became of the mail that carried this key?
async fn by_key(
    State(office): State<Arc<Office>>,
    Path(key): Path<String>,
) -> (StatusCode, String) {
    let sent = office.sent.lock().unwrap_or_else(PoisonError::into_inner);
    match sent.iter().position(|mail| mail.idempotency_key.as_ref() == Some(&key)) {
        Some(index) => (StatusCode::OK, receipt(index + 1)),
        None => (StatusCode::NOT_FOUND, String::new()),
    }
}

fn receipt(number: usize) -> String {
    format!(r#"{{"id":"mail-{number}","state":"sent"}}"#)
}

/// What the provider answered about a mail that it sent.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    /// The provider's id of the mail.
    pub(super) id: String,
    /// The whole answer.
    pub(super) body: String,
}

impl Receipt {
    /// Reads an answer of the provider, or one that the ledger has kept.
    pub(super) fn read(body: String) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Fields {
            id: String,
        }
        let Fields { id } =
            serde_json::from_str(&body).context("failed to read the provider's answer")?;
        Ok(Self { id, body })
    }
}

/// Talks to the provider; sends each request once.
#[derive(Clone)]
pub(super) struct MailClient {
    http: reqwest::Client,
    base: String,
}

impl MailClient {
    /// A client that waits for an answer no longer than `timeout`.
    pub(super) fn new(provider: &Provider, timeout: Duration) -> anyhow::Result<Self> {
        let http = tls::http_client().timeout(timeout).build()?;
        Ok(Self { http, base: format!("http://{}/v1", provider.address) })
    }

    /// Asks for the mail to be sent; `None` if no answer came in time.
    pub(super) async fn send(
        &self,
        call: &Call<'_>,
        layer: Layer,
        key: Option<&str>,
    ) -> anyhow::Result<Option<Receipt>> {
        let Mail { to, template, .. } = *call.mail;
        let body =
            MailBody { to: to.into(), subject: call.subject.into(), template: template.into() };
        let mut request = self
            .http
            .post(format!("{}/mails", self.base))
            .header(LAYER_HEADER, layer.name())
            .json(&body);
        if let Some(key) = key {
            request = request.header(KEY_HEADER, key);
        }
        match read(request).await {
            Ok(body) => Receipt::read(body).map(Some),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error).context("failed to reach the mail provider"),
        }
    }

    /// Looks up the mail that carried this key; `None` if there is none, or no answer came.
    pub(super) async fn find(&self, key: &str) -> anyhow::Result<Option<Receipt>> {
        match read(self.http.get(format!("{}/by-key/{key}", self.base))).await {
            Ok(body) => Receipt::read(body).map(Some),
            Err(error) if error.is_timeout() || error.is_status() => Ok(None),
            Err(error) => Err(error).context("failed to reach the mail provider"),
        }
    }
}

async fn read(request: reqwest::RequestBuilder) -> reqwest::Result<String> {
    request.send().await?.error_for_status()?.text().await
}
