//! A caller as a process of its own: it is told actions on standard input, and tells what it meets.
//!
//! It keeps the caller's side of the contract. It begins an effect only while its lease runs, on its own
//! clock from when it sent the Begin, and waits for the downstream no longer than that. What it does not
//! know it reports as unknown. A kill may catch it at any step.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use intent_ledger::{
    clock::monotonic,
    ids,
    proto::v1::{
        BeginRequest, BeginResponse, CompleteRequest, Decision, FailRequest, FailureKind, Identity,
        Reason, intent_ledger_service_client::IntentLedgerServiceClient,
    },
    tls,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::sleep};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

use crate::{dice::Dice, plan::tool_of};

/// Makes this binary a caller.
pub(crate) const ORDERS: &str = "INTENT_LEDGER_CHAOS_CALLER";

/// How long a call of the ledger may take. A Begin may have to wait for a question downstream.
const LEDGER_PATIENCE: Duration = Duration::from_secs(4);

/// The longest it waits for the downstream, if its lease allows.
const EFFECT_PATIENCE: Duration = Duration::from_millis(800);

/// With less than this left of the lease no effect is begun.
const LEASE_MARGIN: Duration = Duration::from_millis(50);

/// The longest wait before a held action is asked about again.
const HOLD_MAX: Duration = Duration::from_millis(700);

/// One in a hundred times, how often a caller stalls with the right to act in its hands.
const STALL_PERCENT: u64 = 3;

/// The longest such stall, past the end of any lease here.
const STALL_MAX_MILLIS: u64 = 4000;

/// What a caller is told at its start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) name: String,
    pub(crate) seed: u64,
    /// How often it has been started before.
    pub(crate) life: u64,
    pub(crate) ledgers: Vec<String>,
    /// Where each tool's effects are had.
    pub(crate) effects: BTreeMap<String, String>,
}

/// What a caller tells, one line each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// What a Begin was answered.
    Answer(String),
    /// What the downstream did, as the caller saw it.
    Met(String),
    /// An action has happened.
    Replay { action: String, result: String },
    /// What should not be.
    Odd(String),
}

struct Caller {
    orders: Orders,
    dice: Mutex<Dice>,
    ledgers: Vec<IntentLedgerServiceClient<Channel>>,
    http: reqwest::Client,
}

/// Runs a caller until its standard input ends.
pub(crate) fn run(orders: &str) {
    let orders: Orders = serde_json::from_str(orders).expect("orders of our own");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let connect = |url: &String| {
            let endpoint = Endpoint::from_shared(url.clone()).expect("a URL of our own");
            IntentLedgerServiceClient::new(endpoint.connect_lazy())
        };
        let purpose = orders.name.bytes().fold(orders.life, |sum, byte| sum * 31 + u64::from(byte));
        let caller = Arc::new(Caller {
            ledgers: orders.ledgers.iter().map(connect).collect(),
            dice: Mutex::new(Dice::new(orders.seed, purpose)),
            // A connection that a kill has cut would be found out only by the next call on it.
            http: tls::http_client().pool_max_idle_per_host(0).build().expect("an HTTP client"),
            orders,
        });
        let (send, mut actions) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for action in io::stdin().lock().lines().map_while(Result::ok) {
                send.send(action).ok();
            }
        });
        while let Some(action) = actions.recv().await {
            tokio::spawn(Arc::clone(&caller).act(action));
        }
    });
}

impl Caller {
    /// Sees to an action until it has happened.
    async fn act(self: Arc<Self>, action: String) {
        loop {
            let attempt_id = ids::random().to_string();
            let (sent_at, answer) = self.begin(&action, &attempt_id).await;
            let decision = answer.decision().as_str_name().trim_start_matches("DECISION_");
            let reason = answer.reason().as_str_name().trim_start_matches("REASON_");
            self.note(&action, &format!("{attempt_id} {decision} {reason}"));
            tell(&Told::Answer(format!("{decision} {reason}")));
            match answer.decision() {
                Decision::Execute => self.execute(&action, sent_at, answer).await,
                Decision::Hold => {
                    if answer.reason() == Reason::Superseded {
                        // It was granted, and we have never heard of it.
                        let key = answer.intent.clone().unwrap_or_default().key;
                        self.fail(&action, &key, &attempt_id, "NEVER_GRANTED").await;
                    }
                    let asked = answer.retry_after.and_then(|it| Duration::try_from(it).ok());
                    sleep(asked.map_or(HOLD_MAX, |it| it.min(HOLD_MAX))).await;
                }
                Decision::Replay => {
                    let result = answer.intent.unwrap_or_default().result.unwrap_or_default();
                    let result = String::from_utf8_lossy(&result).into_owned();
                    tell(&Told::Replay { action, result });
                    return;
                }
                Decision::Refuse | Decision::AwaitApproval | Decision::Unspecified => {
                    tell(&Told::Odd(format!("{action}: {decision} {reason}")));
                    return;
                }
            }
        }
    }

    /// Asks until there is an answer, always with the same attempt id; says when the question went out
    /// that was answered.
    async fn begin(&self, action: &str, attempt_id: &str) -> (Instant, BeginResponse) {
        let request = BeginRequest {
            identity: Some(Identity { tool: tool_of(action).to_owned(), ..Identity::default() }),
            arguments_json: format!(r#"{{"action":"{action}"}}"#),
            attempt_id: attempt_id.to_owned(),
            caller: self.orders.name.clone(),
            labels: [("action".to_owned(), action.to_owned())].into(),
            ..BeginRequest::default()
        };
        loop {
            let sent_at = monotonic();
            match self.ledger().begin(timed(request.clone())).await {
                Ok(answer) => return (sent_at, answer.into_inner()),
                Err(status) => self.wait_after(action, "Begin", &status).await,
            }
        }
    }

    /// Has the effect, if the lease still runs, and reports what came of it.
    async fn execute(&self, action: &str, sent_at: Instant, granted: BeginResponse) {
        let key = granted.intent.unwrap_or_default().key;
        let attempt_id = granted.attempt_id;
        let lease = granted.lease.and_then(|lease| Duration::try_from(lease).ok());
        let lease_end = sent_at + lease.unwrap_or_default();
        if self.dice(|dice| dice.percent(STALL_PERCENT)) {
            let stall = self.dice(|dice| dice.below(STALL_MAX_MILLIS));
            sleep(Duration::from_millis(stall)).await;
        }
        let left = lease_end.saturating_duration_since(monotonic());
        if left < LEASE_MARGIN {
            tell(&Told::Met("lease over before the call".to_owned()));
            return self.fail(action, &key, &attempt_id, "lease_over").await;
        }
        let response = self
            .http
            .post(format!("{}/v1/effects", self.orders.effects[tool_of(action)]))
            .header("idempotency-key", &granted.downstream_key)
            .header("x-action", action)
            .timeout(left.min(EFFECT_PATIENCE))
            .body("{}")
            .send()
            .await;
        let answer = match response {
            Ok(response) => {
                let status = response.status().as_u16();
                response.text().await.map(|body| (status, body))
            }
            Err(error) => Err(error),
        };
        let met = match &answer {
            Ok((status, _)) => status.to_string(),
            Err(error) if error.is_connect() => "not connected".to_owned(),
            Err(error) if error.is_timeout() => "time-out".to_owned(),
            Err(_) => "cut off".to_owned(),
        };
        self.note(action, &format!("{attempt_id} {} → {met}", granted.downstream_key));
        tell(&Told::Met(met.clone()));
        match answer {
            Ok((200, receipt)) => self.complete(action, &key, &attempt_id, receipt).await,
            // A definite no.
            Ok((422, _)) => self.fail(action, &key, &attempt_id, "refused").await,
            // Nothing was sent.
            Err(error) if error.is_connect() => {
                self.fail(action, &key, &attempt_id, "not_connected").await;
            }
            // 202 is no yes either: what was queued when the downstream was killed never happens.
            Ok(_) | Err(_) => self.report_unknown(action, &key, &attempt_id, &met).await,
        }
    }

    async fn complete(&self, action: &str, key: &str, attempt_id: &str, receipt: String) {
        #[derive(Deserialize)]
        struct Receipt {
            id: String,
        }
        let Receipt { id } = serde_json::from_str(&receipt).expect("a receipt of the simulator");
        let request = CompleteRequest {
            key: key.to_owned(),
            attempt_id: attempt_id.to_owned(),
            result: Some(receipt.into_bytes()),
            result_content_type: "application/json".to_owned(),
            downstream_ref: id,
            ..CompleteRequest::default()
        };
        loop {
            match self.ledger().complete(timed(request.clone())).await {
                Ok(_) => return self.note(action, &format!("{attempt_id} completed")),
                Err(status) if is_passing(&status) => {
                    self.wait_after(action, "Complete", &status).await;
                }
                Err(status) => {
                    return tell(&Told::Odd(format!("{action}: Complete: {}", said(&status))));
                }
            }
        }
    }

    /// It certainly did not happen.
    async fn fail(&self, action: &str, key: &str, attempt_id: &str, code: &str) {
        self.report(action, key, attempt_id, FailureKind::NotExecuted, code).await;
    }

    /// Nobody knows.
    async fn report_unknown(&self, action: &str, key: &str, attempt_id: &str, code: &str) {
        self.report(action, key, attempt_id, FailureKind::OutcomeUnknown, code).await;
    }

    async fn report(
        &self,
        action: &str,
        key: &str,
        attempt_id: &str,
        kind: FailureKind,
        code: &str,
    ) {
        let request = FailRequest {
            key: key.to_owned(),
            attempt_id: attempt_id.to_owned(),
            kind: kind.into(),
            code: code.to_owned(),
            ..FailRequest::default()
        };
        loop {
            match self.ledger().fail(timed(request.clone())).await {
                Ok(_) => return self.note(action, &format!("{attempt_id} {code}")),
                Err(status) if is_passing(&status) => {
                    self.wait_after(action, "Fail", &status).await;
                }
                // Somebody was quicker: the reconciler, or the next attempt.
                Err(status)
                    if ["ALREADY_SETTLED", "ATTEMPT_SUPERSEDED"]
                        .contains(&reason(&status).as_str()) =>
                {
                    return self.note(action, &format!("{attempt_id} {code}: {}", said(&status)));
                }
                Err(status) => {
                    return tell(&Told::Odd(format!("{action}: Fail: {}", said(&status))));
                }
            }
        }
    }

    /// Waits before a call is sent again; one that no kill explains is told.
    async fn wait_after(&self, action: &str, call: &str, status: &Status) {
        let words = format!("{call}: {}", said(status));
        self.note(action, &words);
        if !is_passing(status) {
            tell(&Told::Odd(format!("{action}: {words}")));
        }
        sleep(Duration::from_millis(100 + self.dice(|dice| dice.below(200)))).await;
    }

    /// One of the servers.
    fn ledger(&self) -> IntentLedgerServiceClient<Channel> {
        self.dice(|dice| dice.one_of(&self.ledgers))
    }

    fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.dice.lock().expect("nobody panics with the dice"))
    }

    /// For whoever looks into what an action went through.
    fn note(&self, action: &str, words: &str) {
        let Orders { name, life, .. } = &self.orders;
        let line = format!("{action} {name}.{life} {words}\n");
        io::stderr().write_all(line.as_bytes()).ok();
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LEDGER_PATIENCE);
    request
}

/// Whether the same call may be answered later: a server, its store or the way there is down. What the
/// ledger itself answers carries a reason.
fn is_passing(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => true,
        Code::Unknown | Code::Internal => reason(status).is_empty(),
        _ => false,
    }
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

fn said(status: &Status) -> String {
    format!("{:?} {} {}", status.code(), reason(status), status.message())
}

/// Tells a line, by one write: a kill leaves no half of it to be read.
fn tell(told: &Told) {
    let line = serde_json::to_string(told).expect("strings make JSON") + "\n";
    // Whoever no longer listens is about to kill us.
    io::stdout().write_all(line.as_bytes()).ok();
}
