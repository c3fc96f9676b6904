//! Every endpoint that is asked: how many questions at once, and whether it answers at all.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    circuit::{Circuit, Turn},
    grpc::{self, GrpcProbe},
    http::HttpProbe,
};
use crate::{
    clock::monotonic,
    domain::verdict::Answer,
    ledger::{Downstream, NotAsked},
    policy::status::{Face, HttpFace, Question, StatusEndpoint},
    telemetry::metrics,
};

/// Questions that one endpoint is asked at once by this server: enough for a thousand a second at 30 ms
/// each, and no crowd for a provider.
pub(super) const QUESTIONS_MAX: usize = 32;

/// Threads that ask and read: two, so that one answer that takes long to read leaves the others one.
const THREADS: usize = 2;

/// How much later than its time-out a question may end: an answer that came in time is read first.
const LATE_MAX: Duration = Duration::from_millis(500);

/// How many causes for which no question can be made are remembered; far more than policies have.
const UNSENT_MAX: usize = 1000;

/// The endpoints of all policies, each by its scheme, host and port.
pub struct Endpoints {
    http: Arc<HttpProbe>,
    grpc: Arc<GrpcProbe>,
    /// Where questions are asked and answers are read: whatever a downstream sends, and however long a rule
    /// takes over it, keeps no caller waiting.
    threads: Option<Runtime>,
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Causes, each with its endpoint and tool, for which no question could be made.
    unsent: Mutex<HashSet<(String, String, String)>>,
}

/// What a question comes to that could not be sent.
pub(super) struct NotSent(Box<Answer>);

impl NotSent {
    /// No question can be made of it, now or later.
    pub(super) fn unmapped(note: impl Into<String>) -> Self {
        Self(Box::new(Answer::unmapped(note)))
    }

    /// Something of ours is missing, such as a secret.
    pub(super) fn unreachable(note: impl Into<String>) -> Self {
        Self(Box::new(Answer::unreachable(note)))
    }
}

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
    /// The system's certificates cannot be read, or it has no threads left.
    pub fn new() -> io::Result<Self> {
        let threads = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("questions")
            .enable_all()
            .build()?;
        Ok(Self {
            http: Arc::new(HttpProbe::new().map_err(io::Error::other)?),
            grpc: Arc::default(),
            threads: Some(threads),
            known: Mutex::default(),
            unsent: Mutex::default(),
        })
    }

    /// Asks, for as long as the endpoint may take.
    async fn exchange(
        &self,
        prepared: Prepared,
        timeout: Duration,
        question: &Question,
        result_bytes_max: u64,
    ) -> Answer {
        let Some(threads) = &self.threads else { return Answer::unreachable("shutting down") };
        let (http, grpc) = (Arc::clone(&self.http), Arc::clone(&self.grpc));
        let question = question.clone();
        let asking = threads.spawn(async move {
            match prepared {
                Prepared::Http(request, face) => {
                    http.ask(*request, &face, &question, result_bytes_max).await
                }
                Prepared::Grpc(call) => grpc.ask(call, timeout, &question, result_bytes_max).await,
            }
        });
        // Whoever goes away takes the question along.
        let asking = AbortOnDropHandle::new(asking);
        match tokio::time::timeout(timeout + LATE_MAX, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(broken)) => Answer::unmapped(format!("the answer could not be read: {broken}")),
            // Nothing is counted: the threads may have been busy with others.
            Err(_) => Answer::unreachable("no answer that could be read in time"),
        }
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

    /// Says what keeps questions from being sent, once for each cause until the server starts again: an
    /// absent secret would be told for every row, and would be read in no row.
    fn tell_unsent(&self, origin: &str, question: &Question, answer: &Answer) {
        let cause = (origin.to_owned(), question.tool.clone(), note(answer).to_owned());
        let mut told = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < UNSENT_MAX && told.insert(cause) {
            let (tool, key, reason) = (&question.tool, &question.key, note(answer));
            tracing::warn!(origin, tool, key, reason, "no question can be made for this endpoint");
        }
    }
}

/// A question that is ready to be sent.
enum Prepared {
    Http(Box<reqwest::Request>, Arc<HttpFace>),
    Grpc(Box<grpc::Call>),
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        // Not to be waited for where others run.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
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
    ) -> Result<Answer, NotAsked> {
        let known = self.known(&endpoint.origin);
        let prepared = match &endpoint.face {
            Face::Http(face) => self
                .http
                .prepare(endpoint, face, question)
                .map(|request| Prepared::Http(Box::new(request), Arc::clone(face))),
            Face::Grpc(face) => self.grpc.prepare(endpoint, face, question).map(Prepared::Grpc),
        };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(NotSent(answer)) => {
                // Nothing is sent, so nothing is learnt of the endpoint.
                metrics::probe(word(&answer), Duration::ZERO);
                self.tell_unsent(&endpoint.origin, question, &answer);
                return Ok(*answer);
            }
        };
        // A question that would wait longer than for its answer is not asked: its claim would lapse.
        let turn = tokio::time::timeout(endpoint.timeout, known.questions.acquire()).await;
        let _turn = turn.map_err(|_| NotAsked::Busy)?.map_err(|_| NotAsked::Busy)?;
        if !known.with_circuit(|circuit| circuit.admit(monotonic())) {
            return Err(NotAsked::LeftAlone);
        }
        let began = monotonic();
        let answer = self.exchange(prepared, endpoint.timeout, question, result_bytes_max).await;
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
        Ok(answer)
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
