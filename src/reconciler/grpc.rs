//! One question over gRPC, to a downstream that implements `EffectStatusService`.

use std::{
    collections::HashMap,
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::{
    Code, Request, Status,
    body::Body,
    metadata::{MetadataKey, MetadataValue},
    transport::{Channel, ClientTlsConfig, Endpoint, Uri},
};

use super::{endpoints::NotSent, resolver::resolve};
use crate::{
    domain::verdict::Answer,
    policy::status::{
        GrpcFace, Object, Question, Standing, StatusEndpoint, judge_objects, says_nothing,
    },
    proto::status_v1::{
        EffectState, GetEffectRequest, GetEffectResponse,
        effect_status_service_client::EffectStatusServiceClient,
    },
};

/// The most of an answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// How much of an error's words is repeated.
const WORDS_CHARS_MAX: usize = 80;

/// Asks downstreams over gRPC; a channel for each target is kept.
#[derive(Default)]
pub(super) struct GrpcProbe {
    channels: Mutex<HashMap<String, Channel>>,
}

/// A call that is ready to be made.
pub(super) struct Call {
    channel: Channel,
    target: String,
    request: Request<GetEffectRequest>,
}

impl GrpcProbe {
    /// The call of a question; nothing is sent.
    pub(super) fn prepare(
        &self,
        endpoint: &StatusEndpoint,
        face: &GrpcFace,
        question: &Question,
    ) -> Result<Box<Call>, NotSent> {
        let not_sent = |note: String| NotSent::unreachable(note);
        let channel = self.channel(&face.target, endpoint.timeout);
        let channel = channel.map_err(|error| not_sent(error.to_string()))?;
        let mut request = Request::new(GetEffectRequest {
            downstream_key: question.downstream_key.clone(),
            downstream_ref: question.downstream_ref.clone().unwrap_or_default(),
            tool: question.tool.clone(),
            namespace: question.namespace.clone(),
        });
        request.set_timeout(endpoint.timeout);
        for header in &endpoint.headers {
            let value = header.value(|name| std::env::var(name).ok());
            let value = value.map_err(|missing| not_sent(missing.to_string()))?;
            let name = MetadataKey::from_bytes(header.name.to_ascii_lowercase().as_bytes());
            let (Ok(name), Ok(mut value)) = (name, MetadataValue::try_from(value)) else {
                return Err(not_sent(format!("the header {} cannot be sent", header.name)));
            };
            value.set_sensitive(true);
            request.metadata_mut().insert(name, value);
        }
        Ok(Box::new(Call { channel, target: face.target.clone(), request }))
    }

    pub(super) async fn ask(
        &self,
        call: Box<Call>,
        timeout: Duration,
        question: &Question,
        result_bytes_max: u64,
    ) -> Answer {
        let Call { channel, target, request } = *call;
        let channel = tower::ServiceExt::map_response(channel, read_page);
        let mut client =
            EffectStatusServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let answer = tokio::time::timeout(timeout, client.get_effect(request)).await;
        match answer {
            Ok(Ok(response)) => judge(response.into_inner(), question, result_bytes_max),
            Ok(Err(status)) => refused(&status),
            Err(_) => {
                // The connection may be dead without knowing it: the next question makes a new one.
                self.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(&target);
                Answer::unreachable("no answer in time")
            }
        }
    }

    fn channel(
        &self,
        target: &str,
        connect_timeout: Duration,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(target) {
            return Ok(channel.clone());
        }
        let mut endpoint =
            Endpoint::from_shared(target.to_owned())?.connect_timeout(connect_timeout);
        if endpoint.uri().scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(ClientTlsConfig::new().with_native_roots())?;
        }
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(connect));
        channels.insert(target.to_owned(), channel.clone());
        Ok(channel)
    }
}

async fn connect(uri: Uri) -> io::Result<TokioIo<TcpStream>> {
    let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    });
    let addresses = resolve(uri.host().unwrap_or_default(), port).await?;
    let stream = TcpStream::connect(addresses.as_slice()).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

fn judge(response: GetEffectResponse, question: &Question, result_bytes_max: u64) -> Answer {
    let standing = match response.state() {
        EffectState::Unspecified => Standing::Unspecified,
        EffectState::Executed => Standing::Executed,
        EffectState::NotExecuted => Standing::NotExecuted,
        EffectState::Running => Standing::Running,
    };
    let objects = response.effects.into_iter().map(|effect| Object {
        downstream_key: effect.downstream_key,
        downstream_ref: effect.downstream_ref,
        result: effect.result,
        content_type: effect.result_content_type,
    });
    judge_objects(standing, objects.collect(), question, result_bytes_max)
}

/// What is no gRPC, such as a gateway's page or a redirect, is an answer that cannot be read: were it left as it
/// is, it would pass for a connection that broke. An HTTP status that says nothing of the effect stays.
fn read_page(response: http::Response<Body>) -> http::Response<Body> {
    let status = response.status();
    let is_grpc = response.headers().contains_key(Status::GRPC_STATUS)
        || response
            .headers()
            .get(http::header::CONTENT_TYPE)
            .is_some_and(|declared| declared.as_bytes().starts_with(b"application/grpc"));
    if is_grpc || says_nothing(status.as_u16()) {
        return response;
    }
    let what = if status.is_redirection() { "a redirect" } else { "no gRPC, a page for people" };
    Status::failed_precondition(format!("http {}: {what}", status.as_u16())).into_http()
}

/// An error is no answer, or one that cannot be read; never a verdict.
fn refused(status: &Status) -> Answer {
    let words: String =
        status.message().chars().filter(|c| !c.is_control()).take(WORDS_CHARS_MAX).collect();
    let note = format!("gRPC {:?}: {words}", status.code());
    match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Cancelled
        | Code::Internal
        | Code::Unknown
        | Code::Unauthenticated
        | Code::PermissionDenied => Answer::unreachable(note),
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss => Answer::unmapped(note),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The connector looks names up by itself.
    #[tokio::test]
    async fn a_name_that_leads_to_a_refused_address_is_not_connected_to() {
        let uri: Uri = "http://169.254.43518:80".parse().expect("a URI");
        let Err(why) = connect(uri).await else { panic!("it is refused") };
        assert!(why.to_string().contains("leads to"), "{why}");
    }

    #[test]
    fn what_is_no_grpc_is_read_as_an_answer_that_nothing_claims() {
        let answer = |status: u16, content_type: &str| {
            let response = http::Response::builder().status(status);
            let response = response.header(http::header::CONTENT_TYPE, content_type);
            let read = read_page(response.body(Body::default()).expect("a response"));
            Status::from_header_map(read.headers()).map(|status| refused(&status))
        };
        for (status, content_type) in [(200, "text/html"), (302, "text/html"), (404, "")] {
            let told = answer(status, content_type);
            assert!(matches!(told, Some(Answer::Unmapped { .. })), "{status}: {told:?}");
        }
        // The client reads these itself.
        for (status, content_type) in
            [(200, "application/grpc"), (200, "application/grpc+proto"), (503, "text/html")]
        {
            assert_eq!(answer(status, content_type), None, "{status} {content_type}");
        }
    }
}
