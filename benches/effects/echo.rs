//! The ceiling of gRPC: the same service and the same messages, answered from memory.
//!
//! The transport is set up as in `src/app.rs`; an answer is as large as one of the ledger's.

use std::pin::Pin;

use futures::{Stream, StreamExt};
use intent_ledger::proto::v1::{
    self, BeginRequest, BeginResponse, CompleteRequest, CompleteResponse, Decision, Intent,
    IntentState, KeyBasis, Provenance, Reason, SessionRequest, SessionResponse,
    intent_ledger_service_server::{IntentLedgerService, IntentLedgerServiceServer},
    session_request, session_response,
};
use prost_types::{Duration, Timestamp};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

const KEY: &str = "9b1f0c5e7d3a4b6c8e2f1a0d9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b";

/// Serves until it is killed, with `threads`, or one for each core.
pub(crate) fn serve(threads: Option<usize>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("ready grpc={}", listener.local_addr().expect("an address"));
        Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keepalive_interval(Some(std::time::Duration::from_secs(30)))
            .add_service(IntentLedgerServiceServer::new(Echo))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .expect("a server");
    });
}

struct Echo;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds: 1_770_000_000 + seconds, nanos: 123_456_000 })
}

/// An intent of the size that the ledger answers.
fn intent(state: IntentState, attempt_id: String) -> Intent {
    Intent {
        key: KEY.to_owned(),
        key_basis: KeyBasis::IdempotencyKey.into(),
        tool: crate::ids::TOOL.to_owned(),
        run_id: "run-1".to_owned(),
        state: state.into(),
        etag: KEY[..32].to_owned(),
        attempt: 1,
        attempt_id,
        create_time: at(0),
        start_time: at(0),
        lease_expire_time: at(30),
        downstream_key: KEY.to_owned(),
        ..Intent::default()
    }
}

fn begun(request: BeginRequest) -> BeginResponse {
    BeginResponse {
        decision: Decision::Execute.into(),
        reason: Reason::New.into(),
        intent: Some(intent(IntentState::Started, request.attempt_id.clone())),
        attempt_id: request.attempt_id,
        lease: Some(Duration { seconds: 30, nanos: 0 }),
        downstream_key: KEY.to_owned(),
        ..BeginResponse::default()
    }
}

fn completed(request: CompleteRequest) -> CompleteResponse {
    let intent = Intent {
        settle_time: at(1),
        expire_time: at(86_400),
        result: request.result,
        result_content_type: request.result_content_type,
        result_sha256: KEY.to_owned(),
        provenance: Provenance::Caller.into(),
        settled_by: "bench".to_owned(),
        ..intent(IntentState::Completed, request.attempt_id)
    };
    CompleteResponse { intent: Some(intent), warnings: Vec::new() }
}

fn answer(request: SessionRequest) -> SessionResponse {
    use session_request::Item as Asked;
    use session_response::Item as Answered;
    let item = match request.item {
        Some(Asked::Begin(request)) => Answered::Begin(begun(request)),
        Some(Asked::Complete(request)) => Answered::Complete(completed(request)),
        other => panic!("the benchmark does not ask {other:?}"),
    };
    SessionResponse { sequence: request.sequence, item: Some(item) }
}

fn unasked<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the benchmark does not ask this"))
}

#[tonic::async_trait]
impl IntentLedgerService for Echo {
    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BeginResponse>, Status> {
        Ok(Response::new(begun(request.into_inner())))
    }

    async fn complete(
        &self,
        request: Request<CompleteRequest>,
    ) -> Result<Response<CompleteResponse>, Status> {
        Ok(Response::new(completed(request.into_inner())))
    }

    type SessionStream = Answers<SessionResponse>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let answers = request.into_inner().map(|request| request.map(answer));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fail(
        &self,
        _: Request<v1::FailRequest>,
    ) -> Result<Response<v1::FailResponse>, Status> {
        unasked()
    }

    async fn extend(
        &self,
        _: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        unasked()
    }

    async fn lookup(
        &self,
        _: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        unasked()
    }

    type ReconcileStream = Answers<v1::ReconcileResponse>;

    async fn reconcile(
        &self,
        _: Request<v1::ReconcileRequest>,
    ) -> Result<Response<Self::ReconcileStream>, Status> {
        unasked()
    }
}
