//! Every endpoint that is asked: how many questions at once, and whether it answers at all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{
    circuit::{Circuit, Turn},
    grpc::GrpcProbe,
    http::HttpProbe,
};
use crate::{
    clock::monotonic,
    domain::verdict::Answer,
    ledger::Downstream,
    policy::status::{Face, Question, StatusEndpoint},
    telemetry::metrics,
};

/// Questions that one endpoint is asked at once by this server: enough for a thousand a second at 30 ms
/// each, and no crowd for a provider.
pub(super) const QUESTIONS_MAX: usize = 32;

/// The endpoints of all policies, each by its scheme, host and port.
pub struct Endpoints {
    http: HttpProbe,
    grpc: GrpcProbe,
    known: Mutex<HashMap<String, Arc<Known>>>,
}

/// What a question comes to that could not be sent.
pub(super) struct NotSent(pub(super) Answer);

/// What is known of one endpoint.
struct Known {
    circuit: Mutex<Circuit>,
    questions: Semaphore,
}

impl Endpoints {
    /// No endpoint is known yet.
    ///
    /// # Errors
    ///
    /// The system's certificates cannot be read.
    pub fn new() -> Result<Self, reqwest::Error> {
        Ok(Self { http: HttpProbe::new()?, grpc: GrpcProbe::default(), known: Mutex::default() })
    }

    fn known(&self, origin: &str) -> Arc<Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(origin) {
            return Arc::clone(known);
        }
        let fresh =
            Arc::new(Known { circuit: Mutex::default(), questions: Semaphore::new(QUESTIONS_MAX) });
        known.insert(origin.to_owned(), Arc::clone(&fresh));
        fresh
    }
}

impl Known {
    fn with_circuit<T>(&self, job: impl FnOnce(&mut Circuit) -> T) -> T {
        job(&mut self.circuit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Downstream for Endpoints {
    async fn ask(
        &self,
        endpoint: &StatusEndpoint,
        question: &Question,
        result_bytes_max: u64,
    ) -> Option<Answer> {
        let known = self.known(&endpoint.origin);
        // A question that would wait longer than for its answer is not asked: its claim would lapse.
        let turn = tokio::time::timeout(endpoint.timeout, known.questions.acquire()).await;
        let _turn = turn.ok()?.ok()?;
        if !known.with_circuit(|circuit| circuit.admit(monotonic())) {
            return None;
        }
        let began = monotonic();
        let asked = match &endpoint.face {
            Face::Http(face) => self.http.ask(endpoint, face, question, result_bytes_max).await,
            Face::Grpc(face) => self.grpc.ask(endpoint, face, question, result_bytes_max).await,
        };
        let answer = match asked {
            Ok(answer) => answer,
            // Nothing was sent, so nothing has been learnt of the endpoint.
            Err(NotSent(answer)) => return Some(answer),
        };
        metrics::probe(word(&answer), monotonic().duration_since(began));
        let answered = !matches!(answer, Answer::Unreachable { .. });
        let origin = &endpoint.origin;
        match known.with_circuit(|circuit| circuit.record(answered, monotonic())) {
            Turn::Opened => {
                let reason = note(&answer);
                tracing::warn!(
                    origin,
                    reason,
                    "endpoint unreachable; it is left alone for a while"
                );
            }
            Turn::Closed => tracing::info!(origin, "endpoint answers again"),
            Turn::Same if !answered => {
                tracing::debug!(origin, reason = note(&answer), "no answer");
            }
            Turn::Same => {}
        }
        if let Answer::Unmapped { note } = &answer {
            let key = &question.key;
            tracing::warn!(origin, key, note, "the answer fits no rule of the policy");
        }
        Some(answer)
    }

    fn room(&self, endpoint: &StatusEndpoint) -> usize {
        let known = self.known(&endpoint.origin);
        known.with_circuit(|circuit| circuit.room(monotonic(), QUESTIONS_MAX))
    }
}

fn note(answer: &Answer) -> &str {
    match answer {
        Answer::Unreachable { note } | Answer::Unmapped { note } => note,
        _ => "",
    }
}

fn word(answer: &Answer) -> &'static str {
    match answer {
        Answer::Executed { .. } => "EXECUTED",
        Answer::Absent => "ABSENT",
        Answer::Running => "RUNNING",
        Answer::Several { .. } | Answer::Taken { .. } => "DUPLICATED",
        Answer::Unmapped { .. } => "UNMAPPED",
        Answer::Unreachable { .. } => "UNREACHABLE",
    }
}
