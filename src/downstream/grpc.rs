//! The gRPC face: the status service of `proto/intent_ledger/status/v1/`, health and reflection.

use std::sync::Arc;

use axum::{Router, http::HeaderValue};
use tonic::{
    Request, Response, Status,
    metadata::{MetadataMap, MetadataValue},
    service::Routes,
};

use super::{
    Simulator, StartError,
    book::{DONE, EffectView, QUEUED},
    face::Line,
    fault::Fault,
    http::{self, FAULT_HEADER},
    status::{Shown, Subject},
};
use crate::proto::{
    FILE_DESCRIPTOR_SET,
    status_v1::{
        Effect, EffectState, GetEffectRequest, GetEffectResponse,
        effect_status_service_server::{EffectStatusService, EffectStatusServiceServer},
    },
};

/// The service's full name.
const SERVICE: &str = "intent_ledger.status.v1.EffectStatusService";

/// The mark of an answer that a proxy gives instead.
const INSTEAD: &str = "x-instead";

/// The paths of the face.
pub(super) async fn router(simulator: Arc<Simulator>) -> Result<Router, StartError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    for service in ["", SERVICE] {
        health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
    }
    let routes = Routes::new(health_service)
        .add_service(EffectStatusServiceServer::new(StatusService(simulator)))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes.prepare().into_axum_router().layer(axum::middleware::map_response(as_sent)))
}

/// Of the services in the description only these are here.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(SERVICE)
        .with_service_name("grpc.health.v1.Health")
}

struct StatusService(Arc<Simulator>);

#[tonic::async_trait]
impl EffectStatusService for StatusService {
    async fn get_effect(
        &self,
        request: Request<GetEffectRequest>,
    ) -> Result<Response<GetEffectResponse>, Status> {
        let own = faults_of(request.metadata())?;
        let line = request.extensions().get::<Line>().cloned();
        let GetEffectRequest { downstream_key, downstream_ref, .. } = request.into_inner();
        let subject = match (downstream_key.as_str(), downstream_ref.as_str()) {
            ("", "") => return Err(Status::invalid_argument("neither key nor reference is given")),
            ("", id) => Subject::Id(id),
            (key, _) => Subject::Key(key),
        };
        match self.0.status(subject, &own).await {
            Shown::Absent => Ok(Response::new(GetEffectResponse {
                state: EffectState::NotExecuted.into(),
                effects: Vec::new(),
            })),
            Shown::Effects(effects) => Ok(Response::new(answer(effects))),
            Shown::Page => Err(instead("page")),
            Shown::Login => Err(instead("login")),
            Shown::Unavailable => Err(Status::unavailable("unavailable")),
            Shown::Silence => match line {
                Some(line) => line.cut().await,
                None => std::future::pending().await,
            },
        }
    }
}

/// What a proxy on the way answers instead, which is no gRPC: see [`as_sent`].
fn instead(what: &'static str) -> Status {
    let mut status = Status::unknown("a proxy answers instead");
    status.metadata_mut().insert(INSTEAD, MetadataValue::from_static(what));
    status
}

/// An answer as it leaves the face.
async fn as_sent(answer: axum::response::Response) -> axum::response::Response {
    match answer.headers().get(INSTEAD).map(HeaderValue::as_bytes) {
        Some(b"page") => http::page(),
        Some(_) => http::login(),
        None => answer,
    }
}

fn answer(effects: Vec<EffectView>) -> GetEffectResponse {
    let is = |state| effects.iter().any(|effect| effect.state == state);
    // One that happened decides, and one under way before one that is neither.
    let state = if is(DONE) {
        EffectState::Executed
    } else if is(QUEUED) {
        EffectState::Running
    } else {
        EffectState::Unspecified
    };
    let shown = effects.into_iter().filter(|effect| effect.state != QUEUED).map(|effect| Effect {
        result: effect.to_json(),
        result_content_type: "application/json".to_owned(),
        downstream_key: effect.idempotency_key.unwrap_or_default(),
        downstream_ref: effect.id,
    });
    GetEffectResponse { state: state.into(), effects: shown.collect() }
}

fn faults_of(metadata: &MetadataMap) -> Result<Vec<Fault>, Status> {
    let mut faults = Vec::new();
    for value in metadata.get_all(FAULT_HEADER) {
        let text = value.to_str().map_err(|_| Status::invalid_argument("x-fault is not ASCII"))?;
        let list = Fault::list_of_question(text)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        faults.extend(list);
    }
    Ok(faults)
}
