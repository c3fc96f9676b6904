//! How a downstream is asked what became of a call, and how its answers are read: the tables
//! `[tools.NAME.downstream.status]` of a policy. Nothing here asks; whoever does hands in what came
//! back.
//!
//! # Answers over HTTP
//!
//! The first line that fits decides.
//!
//! | the answer | is read as |
//! | --- | --- |
//! | 5xx, 401, 407, 408, 429 | unreachable: it says nothing of the effect, no rule is asked |
//! | 3xx | unmapped; a redirect is never followed |
//! | `text/html`, `application/xhtml…`; `<` at the beginning, whatever is declared | unmapped: a page for people, such as a gateway's 404, proves nothing |
//! | a body longer than the cap | unmapped |
//! | a rule that is neither true nor false | unmapped |
//! | two or more rules are true | unmapped |
//! | no rule is true | unmapped; the note shows the answer's beginning |
//! | `completed_when` is true | executed, if an object is ours; several, if two are |
//! | `not_executed_when` is true | absent, unless `key_at` finds keys and none is ours |
//! | `running_when` is true | running, if an object is ours |
//!
//! A rule whose evaluation is an error, as where it looks into a member that is not there, is not
//! true: it claims nothing. Rules see `status`, a number; `headers`, a map by names in lower case;
//! and `body`: JSON where it is JSON, `null` where it is empty, else a string.
//!
//! **Whose object it is.** `key_at` finds our key, or a list of the keys of all objects. Without it
//! the question was asked by our key, and every object is ours: the body, or each element of a body
//! that is a list. Where it finds nothing, there is no object of ours; that is an answer to "not
//! executed" and to nothing else. Two of ours that are running are told once one of them is done.
//!
//! **Its reference.** `ref_at` finds the downstream's id, a string or a whole number, or a list of
//! as many as there are keys. Without it, it is the `id` of the body, or of each element of a body
//! that is a list, if there is one. With it, an object of ours without a reference is unmapped. Two
//! objects of ours with one reference are one, listed twice.
//!
//! **What a replay returns.** `result = "body"`, which holds where nothing is said, is the body byte
//! for byte, with the media type it came with; an empty body is no result, and such an answer is
//! unmapped. Any other expression is written as JSON, and one that fails makes the answer unmapped:
//! a wrong replay is worse than none.
//!
//! # Answers of the effect status service
//!
//! See [`judge_objects`].

mod address;
mod expression;
mod header;
mod judge;
mod objects;
mod url_template;
mod value;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use self::{
    address::{refused_address, refused_host},
    header::{Header, MissingVariable},
    judge::says_nothing,
    objects::judge_objects,
    url_template::MissingValue,
};
pub(super) use self::{
    expression::{Expression, context},
    header::HeaderProblem,
    judge::{Rules, not_a_rule},
    url_template::{Origin, UrlTemplate},
    value::{read, string},
};
use crate::domain::verdict::Answer;

/// How many bytes of an answer are read: an asker stops there and says that it did.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// How many characters of an answer are shown to people.
const EXCERPT_CHARS_MAX: usize = 80;

/// Which effect is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The key that the call to the downstream carried.
    pub downstream_key: String,
    /// The downstream's own id, where it has given one.
    pub downstream_ref: Option<String>,
    /// The intent's key, in hex.
    pub key: String,
    /// What the action is about, by name.
    pub business: BTreeMap<String, String>,
    /// The tool's name.
    pub tool: String,
    /// The tenant's name.
    pub namespace: String,
}

/// Where one tool's downstream is asked, and how its answers are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusEndpoint {
    /// `scheme://host:port`, normalized and with the port filled in: what has one circuit.
    pub origin: String,
    /// How long an answer may take.
    pub timeout: Duration,
    /// What goes with every question.
    pub headers: Vec<Header>,
    /// The protocol.
    pub face: Face,
}

/// The protocol that a downstream is asked in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Face {
    /// Its own endpoint over HTTP, read by the policy's rules.
    Http(Arc<HttpFace>),
    /// `intent_ledger.status.v1.EffectStatusService`.
    Grpc(GrpcFace),
}

/// An endpoint over HTTP. A question has no body, whatever the method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpFace {
    /// `GET` or `POST`.
    pub method: String,
    url: UrlTemplate,
    rules: Rules,
}

/// An endpoint of the effect status service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcFace {
    /// The URL to connect to: scheme, host and port.
    pub target: String,
}

/// An answer over HTTP.
#[derive(Debug, Clone, Copy)]
pub struct HttpAnswer<'a> {
    /// The status code.
    pub status: u16,
    /// Names and values, in the order they came.
    pub headers: &'a [(String, String)],
    /// The body, up to [`ANSWER_BYTES_MAX`].
    pub body: &'a [u8],
    /// Whether there was more of it.
    pub cut: bool,
}

/// An object in an answer of the effect status service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The key that it carries.
    pub downstream_key: String,
    /// The downstream's id; may be empty.
    pub downstream_ref: String,
    /// What the call returned.
    pub result: Vec<u8>,
    /// The media type of the result; may be empty.
    pub content_type: String,
}

/// Where the effect status service says that an effect stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No state, or one that we do not know.
    Unspecified,
    /// It happened.
    Executed,
    /// There is no such effect, and none is under way.
    NotExecuted,
    /// It is under way.
    Running,
}

impl StatusEndpoint {
    /// An endpoint over HTTP.
    pub(super) fn http(request: HttpRequest, rules: Rules) -> Self {
        let HttpRequest { method, url, headers, timeout } = request;
        let origin = url.origin().to_string();
        let face = Face::Http(Arc::new(HttpFace { method: method.to_owned(), url, rules }));
        Self { origin, timeout, headers, face }
    }

    /// An endpoint of the effect status service.
    pub(super) fn grpc(call: GrpcCall) -> Self {
        let GrpcCall { origin, headers, timeout } = call;
        let origin = origin.to_string();
        let face = Face::Grpc(GrpcFace { target: origin.clone() });
        Self { origin, timeout, headers, face }
    }

    /// The names of the business ids that a question needs: the ledger keeps those values until an
    /// intent is settled.
    pub fn business_names(&self) -> impl Iterator<Item = &str> {
        let url = match &self.face {
            Face::Http(http) => Some(&http.url),
            Face::Grpc(_) => None,
        };
        url.into_iter().flat_map(UrlTemplate::business_names)
    }
}

impl HttpFace {
    /// The URL for one effect.
    ///
    /// # Errors
    ///
    /// Where a value that stands in the URL is not known of the intent: it cannot be asked about.
    pub fn url(&self, question: &Question) -> Result<String, MissingValue> {
        self.url.fill(question)
    }

    /// The URL with its placeholders, for people.
    pub fn url_template(&self) -> String {
        self.url.to_string()
    }

    /// What an answer says of the effect; its result is cut to `result_bytes_max`.
    pub fn judge(
        &self,
        answer: &HttpAnswer<'_>,
        question: &Question,
        result_bytes_max: u64,
    ) -> Answer {
        self.rules.judge(answer, question, result_bytes_max)
    }
}

/// The `http` table of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpRequest {
    pub(super) method: &'static str,
    pub(super) url: UrlTemplate,
    pub(super) headers: Vec<Header>,
    pub(super) timeout: Duration,
}

/// The `grpc` table of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrpcCall {
    pub(super) origin: Origin,
    pub(super) headers: Vec<Header>,
    pub(super) timeout: Duration,
}

/// The beginning of a text from outside, on one line.
fn excerpt(text: &str) -> String {
    let mut shown = text.trim().chars().filter(|c| !c.is_control());
    let mut beginning: String = shown.by_ref().take(EXCERPT_CHARS_MAX).collect();
    if shown.next().is_some() {
        beginning.pop();
        beginning.push('…');
    }
    beginning
}
