//! The HTTP face: calls, status questions, and what a test sets and reads.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use super::{
    Faults, Outage, OutageMode, SentEffect, Simulator,
    book::Order,
    calls::{Call, Outcome},
    face::Line,
    fault::{Fault, FaultError},
    status::{Shown, Subject},
};

/// What providers call the header that carries a caller's key.
const KEY_HEADER: &str = "idempotency-key";

/// Names the intended action, for the log.
const ACTION_HEADER: &str = "x-action";

/// Asks for faults. The gRPC face reads it as metadata.
pub(super) const FAULT_HEADER: &str = "x-fault";

/// Marks the answer to a repeat that had no effect of its own.
const REPLAYED_HEADER: &str = "idempotent-replayed";

/// As much as the ledger takes.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The paths of the face.
pub(super) fn router(simulator: Arc<Simulator>) -> Router {
    Router::new()
        .route("/v1/effects", post(call).get(sent))
        .route("/v1/effects/by-key/{key}", get(status_by_key))
        .route("/v1/effects/by-ref/{id}", get(status_by_id))
        .route("/v1/faults", put(set_faults).get(show_faults).delete(clear_faults))
        .route("/v1/outage", put(begin_outage).delete(end_outage))
        .fallback(async || problem(StatusCode::NOT_FOUND, "no_such_path"))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(simulator)
}

async fn call(
    State(simulator): State<Arc<Simulator>>,
    Extension(line): Extension<Line>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let call = match read_call(&headers, &body) {
        Ok(call) => call,
        Err(message) => return bad_request(&message),
    };
    let (status, effect, repeated) = match simulator.call(&call).await {
        Outcome::Done { effect, repeated } => (StatusCode::OK, effect, repeated),
        Outcome::Accepted { effect, repeated } => (StatusCode::ACCEPTED, effect, repeated),
        Outcome::Refused => return problem(StatusCode::UNPROCESSABLE_ENTITY, "refused"),
        Outcome::Error => return problem(StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        Outcome::Unavailable => return unavailable(),
        Outcome::Silence => line.cut().await,
    };
    let mut response = json(status, &effect);
    if repeated {
        response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    }
    response
}

fn read_call(headers: &HeaderMap, body: &[u8]) -> Result<Call, String> {
    let text = |name: &str| {
        let value = headers.get(name).map(|value| value.to_str().map(str::to_owned));
        value.transpose().map_err(|_| format!("the header {name} is not ASCII text"))
    };
    Ok(Call {
        order: Order {
            key: text(KEY_HEADER)?.filter(|key| !key.is_empty()),
            action: text(ACTION_HEADER)?,
            request: one_line(body),
        },
        faults: faults_of(headers, Fault::list)?,
    })
}

/// The body if it is JSON, with nothing changed but the line breaks between its tokens: the log has
/// one line an effect.
fn one_line(body: &[u8]) -> Option<Box<RawValue>> {
    let json: &RawValue = serde_json::from_slice(body).ok()?;
    // Within strings JSON has no raw line breaks.
    RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok()
}

fn faults_of(
    headers: &HeaderMap,
    list: fn(&str) -> Result<Vec<Fault>, FaultError>,
) -> Result<Vec<Fault>, String> {
    let mut faults = Vec::new();
    for value in headers.get_all(FAULT_HEADER) {
        let text = value.to_str().map_err(|_| "the header x-fault is not ASCII text")?;
        faults.extend(list(text).map_err(|error| error.to_string())?);
    }
    Ok(faults)
}

async fn status_by_key(
    State(simulator): State<Arc<Simulator>>,
    Extension(line): Extension<Line>,
    Path(key): Path<String>,
    headers: HeaderMap,
) -> Response {
    status(&simulator, &line, Subject::Key(&key), &headers).await
}

async fn status_by_id(
    State(simulator): State<Arc<Simulator>>,
    Extension(line): Extension<Line>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    status(&simulator, &line, Subject::Id(&id), &headers).await
}

async fn status(
    simulator: &Simulator,
    line: &Line,
    subject: Subject<'_>,
    headers: &HeaderMap,
) -> Response {
    let own = match faults_of(headers, Fault::list_of_question) {
        Ok(own) => own,
        Err(message) => return bad_request(&message),
    };
    match simulator.status(subject, &own).await {
        Shown::Absent => problem(StatusCode::NOT_FOUND, "not_found"),
        Shown::Effects(effects) => match effects.as_slice() {
            [effect] => json(StatusCode::OK, effect),
            several => json(StatusCode::OK, &json!({ "objects": several })),
        },
        Shown::Page => page(),
        Shown::Login => login(),
        Shown::Unavailable => unavailable(),
        Shown::Silence => line.cut().await,
    }
}

/// A page for people.
pub(super) fn page() -> Response {
    let page = "<!doctype html><title>Sign in</title><form><input name=user></form>\n";
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

/// The way to a login.
pub(super) fn login() -> Response {
    (StatusCode::FOUND, [(header::LOCATION, "/login")]).into_response()
}

/// What happened, with the counts that a test asks for most.
#[derive(Serialize)]
struct Sent {
    /// Effects that happened.
    total: usize,
    /// Requests for effects that came.
    requests: u64,
    /// Effects per key; one with more than one is what the ledger is there to prevent.
    by_key: BTreeMap<String, u64>,
    /// Effects per intended action.
    by_action: BTreeMap<String, u64>,
    effects: Vec<SentEffect>,
}

async fn sent(State(simulator): State<Arc<Simulator>>) -> Response {
    let (effects, requests) = {
        let book = simulator.book();
        (book.sent(), book.requests())
    };
    let count = |name: fn(&SentEffect) -> &Option<String>| {
        let mut counts = BTreeMap::new();
        for name in effects.iter().filter_map(|effect| name(effect).clone()) {
            *counts.entry(name).or_default() += 1;
        }
        counts
    };
    let (by_key, by_action) = (count(|it| &it.idempotency_key), count(|it| &it.action));
    json(StatusCode::OK, &Sent { total: effects.len(), requests, by_key, by_action, effects })
}

async fn set_faults(State(simulator): State<Arc<Simulator>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Faults>(&body) {
        Ok(faults) => {
            *simulator.faults() = faults.clone();
            json(StatusCode::OK, &faults)
        }
        Err(error) => bad_request(&error.to_string()),
    }
}

async fn show_faults(State(simulator): State<Arc<Simulator>>) -> Response {
    let faults = simulator.faults().clone();
    json(StatusCode::OK, &faults)
}

async fn clear_faults(State(simulator): State<Arc<Simulator>>) -> StatusCode {
    simulator.clear_faults();
    StatusCode::NO_CONTENT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutageText {
    #[serde(rename = "for")]
    span: Option<String>,
    mode: Option<String>,
}

impl OutageText {
    fn read(body: &[u8]) -> Result<Outage, String> {
        let text: Self = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let mode = text.mode.as_deref().map_or(Ok(OutageMode::Refuse), str::parse)?;
        let span = text.span.map(|text| {
            humantime::parse_duration(&text)
                .map_err(|_| format!("\"for\": {text:?} is no span; one is such as 500ms or 5s"))
        });
        let span: Option<Duration> = span.transpose()?;
        if mode == OutageMode::Refuse && span.is_none() {
            return Err(
                "\"for\" is missing: while connections are refused, nobody can end it".into()
            );
        }
        Ok(Outage { mode, span })
    }
}

async fn begin_outage(
    State(simulator): State<Arc<Simulator>>,
    Extension(line): Extension<Line>,
    body: Bytes,
) -> Response {
    let outage = match OutageText::read(&body) {
        Ok(outage) => outage,
        Err(message) => return bad_request(&message),
    };
    if outage.mode == OutageMode::Refuse {
        line.spare();
    }
    simulator.outages.begin(outage).await;
    StatusCode::NO_CONTENT.into_response()
}

async fn end_outage(State(simulator): State<Arc<Simulator>>) -> StatusCode {
    simulator.outages.end().await;
    StatusCode::NO_CONTENT
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("strings, numbers and JSON make JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn problem(status: StatusCode, error: &str) -> Response {
    json(status, &json!({ "error": error }))
}

fn bad_request(message: &str) -> Response {
    json(StatusCode::BAD_REQUEST, &json!({ "error": "bad_request", "message": message }))
}

fn unavailable() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable")
}
