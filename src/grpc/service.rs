//! The two services: decode, call the ledger, encode.

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use prost::Message;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    admission::{Admission, Admitted},
    convert::{self, Viewer},
    deadline, history, reconcile, session,
    status::{reason, status, status_of_report},
    trace,
};
use crate::{
    clock::Deadline,
    domain::{event::Event, intent::Intent, repeat::TraceId},
    ledger::{DecisionRequest, Ledger, LedgerError},
    proto::v1::{
        self, intent_ledger_service_server::IntentLedgerService,
        intent_operations_service_server::IntentOperationsService,
    },
    reconciler::Reconciler,
    telemetry::metrics,
};

pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What agents and orchestrators call.
#[derive(Clone)]
pub struct LedgerService {
    ledger: Arc<Ledger>,
    reconciler: Arc<Reconciler>,
    admission: Arc<Admission>,
    passes: Arc<Semaphore>,
    draining: CancellationToken,
}

impl LedgerService {
    /// The service over `ledger`, with at most `bytes_max` of requests under way; sessions end once
    /// `draining` is cancelled.
    pub fn new(
        ledger: Arc<Ledger>,
        reconciler: Arc<Reconciler>,
        bytes_max: usize,
        draining: CancellationToken,
    ) -> Self {
        let passes = Arc::new(Semaphore::new(reconcile::PASSES_MAX));
        let admission = Arc::new(Admission::new(bytes_max));
        Self { ledger, reconciler, admission, passes, draining }
    }

    fn admit(&self, request: &impl Message) -> Result<Admitted<'_>, Status> {
        self.admission.admit(request).map_err(refuse)
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    pub(super) async fn do_begin(
        &self,
        request: v1::BeginRequest,
        deadline: Deadline,
        trace_id: Option<TraceId>,
    ) -> Result<v1::BeginResponse, Status> {
        let _admitted = self.admit(&request)?;
        let request = convert::begin_request(request, trace_id).map_err(refuse)?;
        let mut answer = self.ledger.begin(request, deadline).await.map_err(refuse)?;
        let tool = answer.listed_tool.take();
        let expires_at = |intent: &Intent| self.ledger.expires_at(intent);
        let response = convert::begin_response(answer, expires_at);
        metrics::begin(
            tool.as_deref().unwrap_or(metrics::UNLISTED),
            response.decision().as_str_name().trim_start_matches("DECISION_"),
            response.reason().as_str_name().trim_start_matches("REASON_"),
        );
        Ok(response)
    }

    pub(super) async fn do_complete(
        &self,
        request: v1::CompleteRequest,
        deadline: Deadline,
    ) -> Result<v1::CompleteResponse, Status> {
        let _admitted = self.admit(&request)?;
        let viewer = Viewer::of(&request.attempt_id);
        let request = convert::complete_request(request);
        let answer = self.ledger.complete(request, deadline).await.map_err(refuse_report)?;
        metrics::settlement("COMPLETE");
        Ok(v1::CompleteResponse {
            intent: Some(encode(&self.ledger, &answer.row.intent, viewer, Vec::new())),
            warnings: words(answer.warnings),
        })
    }

    pub(super) async fn do_fail(
        &self,
        request: v1::FailRequest,
        deadline: Deadline,
    ) -> Result<v1::FailResponse, Status> {
        let _admitted = self.admit(&request)?;
        let viewer = Viewer::of(&request.attempt_id);
        let request = convert::fail_request(request).map_err(refuse_report)?;
        let kind = if request.not_executed { "NOT_EXECUTED" } else { "OUTCOME_UNKNOWN" };
        let answer = self.ledger.fail(request, deadline).await.map_err(refuse_report)?;
        metrics::settlement(kind);
        Ok(v1::FailResponse {
            intent: Some(encode(&self.ledger, &answer.row.intent, viewer, Vec::new())),
            warnings: words(answer.warnings),
        })
    }

    pub(super) async fn do_extend(
        &self,
        request: v1::ExtendRequest,
        deadline: Deadline,
    ) -> Result<v1::ExtendResponse, Status> {
        let _admitted = self.admit(&request)?;
        let viewer = Viewer::of(&request.attempt_id);
        let request = convert::extend_request(request).map_err(refuse_report)?;
        let answer = self.ledger.extend(request, deadline).await.map_err(refuse_report)?;
        let expires_at = self.ledger.expires_at(&answer.row.intent);
        Ok(convert::extend_response(answer, expires_at, viewer))
    }

    pub(super) async fn do_lookup(
        &self,
        request: v1::LookupRequest,
        deadline: Deadline,
    ) -> Result<v1::LookupResponse, Status> {
        // One that waits holds a row and no work.
        let _admitted = match request.wait {
            Some(_) => None,
            None => Some(self.admit(&request)?),
        };
        let request = convert::lookup_request(request).map_err(refuse)?;
        let full = request.full;
        let answer = self.ledger.lookup(request, deadline).await.map_err(refuse)?;
        let viewer = Viewer::Attempt(None);
        let mut intent = encode(&self.ledger, &answer.intent, viewer, answer.events);
        if full {
            intent.arguments_json = convert::arguments(&answer.intent);
        }
        Ok(v1::LookupResponse { intent: Some(intent) })
    }
}

fn encode(ledger: &Ledger, intent: &Intent, viewer: Viewer, events: Vec<Event>) -> v1::Intent {
    let expires_at = ledger.expires_at(intent);
    convert::intent(intent, expires_at, viewer, events)
}

pub(super) fn refuse(error: impl Into<LedgerError>) -> Status {
    let error = error.into();
    metrics::error(reason(&error));
    status(&error)
}

/// As [`refuse`], for those who report on an attempt.
fn refuse_report(error: impl Into<LedgerError>) -> Status {
    let error = error.into();
    metrics::error(reason(&error));
    status_of_report(&error)
}

fn words(warnings: Vec<&'static str>) -> Vec<String> {
    warnings.into_iter().map(str::to_owned).collect()
}

#[tonic::async_trait]
impl IntentLedgerService for LedgerService {
    async fn begin(
        &self,
        request: Request<v1::BeginRequest>,
    ) -> Result<Response<v1::BeginResponse>, Status> {
        let (deadline, trace_id) = (deadline::of(&request), trace::of(&request));
        self.do_begin(request.into_inner(), deadline, trace_id).await.map(Response::new)
    }

    async fn complete(
        &self,
        request: Request<v1::CompleteRequest>,
    ) -> Result<Response<v1::CompleteResponse>, Status> {
        let deadline = deadline::of(&request);
        self.do_complete(request.into_inner(), deadline).await.map(Response::new)
    }

    async fn fail(
        &self,
        request: Request<v1::FailRequest>,
    ) -> Result<Response<v1::FailResponse>, Status> {
        let deadline = deadline::of(&request);
        self.do_fail(request.into_inner(), deadline).await.map(Response::new)
    }

    async fn extend(
        &self,
        request: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        let deadline = deadline::of(&request);
        self.do_extend(request.into_inner(), deadline).await.map(Response::new)
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        let deadline = deadline::of(&request);
        self.do_lookup(request.into_inner(), deadline).await.map(Response::new)
    }

    type ReconcileStream = Answers<v1::ReconcileResponse>;

    async fn reconcile(
        &self,
        request: Request<v1::ReconcileRequest>,
    ) -> Result<Response<Self::ReconcileStream>, Status> {
        let deadline = deadline::of(&request);
        let (ledger, reconciler) = (Arc::clone(&self.ledger), Arc::clone(&self.reconciler));
        reconcile::run(ledger, reconciler, &self.passes, request.into_inner(), deadline)
            .map(Response::new)
            .map_err(refuse)
    }

    type SessionStream = Answers<v1::SessionResponse>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let of_all = (deadline::of(&request), trace::of(&request));
        Ok(Response::new(session::run(self.clone(), request.into_inner(), of_all)))
    }
}

/// What people and consoles call.
pub struct OperationsService {
    ledger: Arc<Ledger>,
}

impl OperationsService {
    /// The service over `ledger`.
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }

    async fn decide(
        &self,
        request: DecisionRequest,
        deadline: Deadline,
    ) -> Result<v1::Intent, Status> {
        let row = self.ledger.decide(request, deadline).await.map_err(refuse)?;
        Ok(encode(&self.ledger, &row.intent, Viewer::Operator, Vec::new()))
    }
}

#[tonic::async_trait]
impl IntentOperationsService for OperationsService {
    async fn list_intents(
        &self,
        request: Request<v1::ListIntentsRequest>,
    ) -> Result<Response<v1::ListIntentsResponse>, Status> {
        let (request, full) = convert::list_request(request.into_inner()).map_err(refuse)?;
        let answer = self.ledger.list(request).await.map_err(refuse)?;
        let mut intents = Vec::with_capacity(answer.intents.len());
        for intent in answer.intents {
            let events =
                if full { self.ledger.events(&intent).await.map_err(refuse)? } else { Vec::new() };
            let mut encoded = encode(&self.ledger, &intent, Viewer::Operator, events);
            if full {
                encoded.arguments_json = convert::arguments(&intent);
            } else {
                encoded.result = None;
            }
            intents.push(encoded);
        }
        Ok(Response::new(v1::ListIntentsResponse {
            intents,
            next_page_token: answer.next_page_token,
        }))
    }

    async fn list_attempts(
        &self,
        request: Request<v1::ListAttemptsRequest>,
    ) -> Result<Response<v1::ListAttemptsResponse>, Status> {
        let request = history::attempts_request(request.into_inner());
        let answer = self.ledger.attempts(request).await.map_err(refuse)?;
        Ok(Response::new(history::attempts_response(answer)))
    }

    async fn approve_intent(
        &self,
        request: Request<v1::ApproveIntentRequest>,
    ) -> Result<Response<v1::ApproveIntentResponse>, Status> {
        let deadline = deadline::of(&request);
        let intent = self.decide(convert::approve_request(request.into_inner()), deadline).await?;
        Ok(Response::new(v1::ApproveIntentResponse { intent: Some(intent) }))
    }

    async fn deny_intent(
        &self,
        request: Request<v1::DenyIntentRequest>,
    ) -> Result<Response<v1::DenyIntentResponse>, Status> {
        let deadline = deadline::of(&request);
        let intent = self.decide(convert::deny_request(request.into_inner()), deadline).await?;
        Ok(Response::new(v1::DenyIntentResponse { intent: Some(intent) }))
    }

    async fn resolve_intent(
        &self,
        request: Request<v1::ResolveIntentRequest>,
    ) -> Result<Response<v1::ResolveIntentResponse>, Status> {
        let deadline = deadline::of(&request);
        let request = convert::resolve_request(request.into_inner()).map_err(refuse)?;
        let row = self.ledger.resolve(request, deadline).await.map_err(refuse)?;
        Ok(Response::new(v1::ResolveIntentResponse {
            intent: Some(encode(&self.ledger, &row.intent, Viewer::Operator, Vec::new())),
        }))
    }

    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let request = history::stats_request(request.into_inner()).map_err(refuse)?;
        let answer = self.ledger.stats(request).await.map_err(refuse)?;
        Ok(Response::new(history::stats_response(answer)))
    }
}
