//! One question over HTTP.

use std::{error::Error, sync::Arc};

use http::{HeaderValue, Uri};
use reqwest::{Client, Method, Request, Response, redirect};

use super::{endpoints::NotSent, resolver::Resolver};
use crate::{
    domain::verdict::Answer,
    policy::status::{HttpAnswer, HttpFace, Question, StatusEndpoint},
    tls,
};

/// The most of an answer that is read.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Connections to one endpoint that are kept for the next question.
const IDLE_MAX: usize = 32;

/// Asks status endpoints over HTTP(S).
pub(super) struct HttpProbe {
    client: Client,
}

impl HttpProbe {
    pub(super) fn new() -> reqwest::Result<Self> {
        let client = tls::http_client()
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(Resolver))
            .pool_max_idle_per_host(IDLE_MAX)
            .user_agent(concat!("intent-ledger/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client })
    }

    /// The request of a question; nothing is sent.
    pub(super) fn prepare(
        &self,
        endpoint: &StatusEndpoint,
        face: &HttpFace,
        question: &Question,
    ) -> Result<Request, NotSent> {
        // No question can be made of it, now or later.
        let url = face.url(question).map_err(|missing| NotSent::unmapped(missing.to_string()))?;
        let Ok(method) = Method::from_bytes(face.method.as_bytes()) else {
            return Err(NotSent::unmapped("the method is none of HTTP"));
        };
        let mut request = self.client.request(method, url).timeout(endpoint.timeout);
        for header in &endpoint.headers {
            let value = header
                .value(|name| std::env::var(name).ok())
                .map_err(|missing| NotSent::unreachable(missing.to_string()))?;
            let value = HeaderValue::try_from(value);
            let mut value = value.map_err(|error| NotSent::unreachable(error.to_string()))?;
            value.set_sensitive(true);
            request = request.header(&header.name, value);
        }
        let request = request.build().map_err(|error| NotSent::unmapped(cause(&error)))?;
        // The client finds out only as it sends, and then it looks like a fault of the endpoint.
        match Uri::try_from(request.url().as_str()) {
            Ok(_) => Ok(request),
            Err(error) => {
                Err(NotSent::unmapped(format!("no URL can be made of the call: {error}")))
            }
        }
    }

    pub(super) async fn ask(
        &self,
        request: Request,
        face: &HttpFace,
        question: &Question,
        result_bytes_max: u64,
    ) -> Answer {
        match self.client.execute(request).await {
            Ok(response) => read(response, face, question, result_bytes_max).await,
            Err(error) => Answer::unreachable(cause(&error)),
        }
    }
}

async fn read(
    mut response: Response,
    face: &HttpFace,
    question: &Question,
    result_bytes_max: u64,
) -> Answer {
    let status = response.status().as_u16();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<(String, String)> =
        response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let mut body = Vec::new();
    let mut cut = false;
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let room = BODY_BYTES_MAX - body.len();
                cut = chunk.len() > room;
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if cut {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => return Answer::unreachable(cause(&error)),
        }
    }
    face.judge(
        &HttpAnswer { status, headers: &headers, body: &body, cut },
        question,
        result_bytes_max,
    )
}

/// The innermost cause, which says most; without the URL, which carries a key.
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
