//! Reads `[tools.NAME.downstream.status]`.

use std::{sync::Arc, time::Duration};

use super::unknown;
use crate::policy::{
    reader::{Item, Reader, Zero},
    section::{Field, Section, Sited, StatusSection},
    status::{
        Expression, GrpcCall, Header, HeaderProblem, HttpRequest, Origin, UrlTemplate, not_a_rule,
    },
};

/// The keys of `status`.
pub(super) const STATUS_KEYS: [&str; 11] = [
    "completed_when",
    "confirmations",
    "grpc",
    "http",
    "key_at",
    "not_executed_when",
    "probe_on_begin",
    "ref_at",
    "result",
    "running_when",
    "visibility",
];
const HTTP_KEYS: [&str; 4] = ["headers", "method", "timeout", "url"];
const GRPC_KEYS: [&str; 3] = ["headers", "target", "timeout"];

const METHODS: [(&str, &str); 2] = [("GET", "GET"), ("POST", "POST")];

/// How long an answer may take where the policy does not say.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest it may say: each question that hangs takes a place among those under way.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// The most absences that can be asked for; they are half a `visibility` apart, at least.
const CONFIRMATIONS_MAX: u32 = 100;

pub(super) fn status<'a>(reader: &mut Reader<'a>, item: &Item<'a>, section: &mut Section) {
    let Some(entries) = reader.table(item) else {
        section.status.is_there = Field::Broken;
        return;
    };
    let status: &mut StatusSection = &mut section.status;
    status.is_there = Field::Set(reader.sited_key(item, ()));
    for item in entries {
        match item.name {
            "http" => status.http = http(reader, &item),
            "grpc" => status.grpc = grpc(reader, &item),
            "completed_when" => status.completed_when = rule(reader, &item),
            "not_executed_when" => status.not_executed_when = rule(reader, &item),
            "running_when" => status.running_when = rule(reader, &item),
            "result" => status.result = expression(reader, &item),
            "key_at" => status.key_at = expression(reader, &item),
            "ref_at" => status.ref_at = expression(reader, &item),
            // Zero would claim that nothing is ever under way when a lease ends.
            "visibility" => status.visibility = reader.duration(&item, Zero::Refused),
            "confirmations" => {
                status.confirmations = reader.integer(&item, 1..=CONFIRMATIONS_MAX);
            }
            "probe_on_begin" => status.probe_on_begin = reader.boolean(&item),
            _ => unknown(reader, &item, &STATUS_KEYS),
        }
    }
}

fn expression<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<Arc<Expression>> {
    let field = reader.string(item, "an expression such as \"status == 200\"");
    let Field::Set(Sited { value: source, .. }) = field else {
        return Field::Broken;
    };
    match Expression::compile(source) {
        Ok(expression) => Field::Set(reader.sited(item, Arc::new(expression))),
        Err(problems) => {
            for problem in problems {
                reader.wrong::<()>(item, problem);
            }
            Field::Broken
        }
    }
}

/// An expression that claims answers. What it says of some answers shows whether it can.
fn rule<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<Arc<Expression>> {
    match expression(reader, item) {
        Field::Set(rule) => match not_a_rule(&rule.value) {
            Some(problem) => reader.wrong(item, problem),
            None => Field::Set(rule),
        },
        other => other,
    }
}

fn http<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<HttpRequest> {
    let Some(entries) = reader.table(item) else {
        return Field::Broken;
    };
    let (mut url, mut method) = (Field::Absent, Field::Absent);
    let (mut headers, mut timeout) = (Some(Vec::new()), Some(TIMEOUT));
    for item in entries {
        match item.name {
            "url" => {
                let text = reader.string(
                    &item,
                    "a URL such as \"https://mail.internal/by-key/{downstream_key}\"",
                );
                url = place(reader, &item, text, UrlTemplate::parse);
            }
            "method" => method = reader.word(&item, &METHODS),
            "headers" => headers = self::headers(reader, &item, false),
            "timeout" => timeout = self::timeout(reader, &item),
            _ => unknown(reader, &item, &HTTP_KEYS),
        }
    }
    let method = match method {
        Field::Absent => Some("GET"),
        Field::Broken => None,
        Field::Set(method) => Some(method.value),
    };
    let url = match url {
        Field::Absent => return reader.wrong(item, "has no url"),
        Field::Broken => None,
        Field::Set(url) => Some(url.value),
    };
    match (method, url, headers, timeout) {
        (Some(method), Some(url), Some(headers), Some(timeout)) => {
            Field::Set(reader.sited(item, HttpRequest { method, url, headers, timeout }))
        }
        _ => Field::Broken,
    }
}

fn grpc<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<GrpcCall> {
    let Some(entries) = reader.table(item) else {
        return Field::Broken;
    };
    let mut target = Field::Absent;
    let (mut headers, mut timeout) = (Some(Vec::new()), Some(TIMEOUT));
    for item in entries {
        match item.name {
            "target" => {
                let text = reader.string(&item, "a URL such as \"http://mail.internal:9090\"");
                target = place(reader, &item, text, |text| {
                    let (origin, rest) = Origin::of(text)?;
                    let more = "must end after its host or port: what is called there is known";
                    if matches!(rest, "" | "/") { Ok(origin) } else { Err(more.to_owned()) }
                });
            }
            "headers" => headers = self::headers(reader, &item, true),
            "timeout" => timeout = self::timeout(reader, &item),
            _ => unknown(reader, &item, &GRPC_KEYS),
        }
    }
    let origin = match target {
        Field::Absent => return reader.wrong(item, "has no target"),
        Field::Broken => None,
        Field::Set(origin) => Some(origin.value),
    };
    match (origin, headers, timeout) {
        (Some(origin), Some(headers), Some(timeout)) => {
            Field::Set(reader.sited(item, GrpcCall { origin, headers, timeout }))
        }
        _ => Field::Broken,
    }
}

/// A text that names a place on the network.
fn place<'a, T>(
    reader: &mut Reader<'a>,
    item: &Item<'a>,
    text: Field<&'a str>,
    parse: impl FnOnce(&'a str) -> Result<T, String>,
) -> Field<T> {
    let Field::Set(Sited { value: text, .. }) = text else {
        return Field::Broken;
    };
    match parse(text) {
        Ok(value) => Field::Set(reader.sited(item, value)),
        Err(problem) => reader.wrong(item, problem),
    }
}

/// `{ authorization = "Bearer ${TOKEN}" }`, in the order of the names; `None` where one is wrong.
fn headers<'a>(reader: &mut Reader<'a>, item: &Item<'a>, is_grpc: bool) -> Option<Vec<Header>> {
    let mut headers: Vec<Header> = Vec::new();
    let mut whole = true;
    for item in reader.table(item)? {
        let text = reader.string(&item, "the value of a header, such as \"Bearer ${TOKEN}\"");
        let Field::Set(Sited { value: text, .. }) = text else {
            whole = false;
            continue;
        };
        match Header::parse(item.name, text, is_grpc) {
            Ok(header) if headers.iter().any(|other| other.name == header.name) => {
                reader.wrong_key(&item, "the header is named twice");
                whole = false;
            }
            Ok(header) => headers.push(header),
            Err(HeaderProblem::Name(problem)) => {
                reader.wrong_key(&item, problem);
                whole = false;
            }
            Err(HeaderProblem::Value(problem)) => {
                reader.wrong::<()>(&item, problem);
                whole = false;
            }
        }
    }
    headers.sort_by(|a, b| a.name.cmp(&b.name));
    whole.then_some(headers)
}

fn timeout<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Option<Duration> {
    match reader.duration(item, Zero::Refused) {
        Field::Set(Sited { value, .. }) if value > TIMEOUT_MAX => {
            reader.wrong::<()>(item, "must be 30s or shorter");
            None
        }
        Field::Set(Sited { value, .. }) => Some(value),
        Field::Absent | Field::Broken => None,
    }
}

#[cfg(test)]
mod tests;
