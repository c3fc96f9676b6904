//! The trace that a caller says its call is part of.

use tonic::Request;

use crate::domain::repeat::TraceId;

/// The trace of a request, where its `traceparent` is one as the W3C writes it; anything else is no trace
/// and no error. A Session has one for all its items.
pub(super) fn of<T>(request: &Request<T>) -> Option<TraceId> {
    parse(request.metadata().get("traceparent")?.to_str().ok()?)
}

/// `VERSION-TRACE-PARENT-FLAGS`, of which later versions may add more.
fn parse(text: &str) -> Option<TraceId> {
    let mut parts = text.split('-');
    let mut part = |length: usize| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        parts.next().filter(|part| part.len() == length && part.bytes().all(digit))
    };
    let (version, trace, _, _) = (part(2)?, part(32)?, part(16)?, part(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let mut id = TraceId::default();
    const_hex::decode_to_slice(trace, &mut id).ok()?;
    (id != TraceId::default()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_the_w3c_writes_it_and_anything_else_is_none() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let rows = [
            (format!("00-{trace}-00f067aa0ba902b7-01"), true),
            (format!("cc-{trace}-00f067aa0ba902b7-01-what-comes-later"), true),
            (format!("00-{trace}-00f067aa0ba902b7-01-more"), false),
            (format!("ff-{trace}-00f067aa0ba902b7-01"), false),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), false),
            (format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()), false),
            (format!("00-{trace}-00f067aa0ba902b7"), false),
            (format!("00-{trace}0-00f067aa0ba902b7-01"), false),
            (String::new(), false),
            ("00-ü".to_owned(), false),
        ];
        for (text, expected) in rows {
            let read = parse(&text).map(const_hex::encode);
            assert_eq!(read.as_deref(), expected.then_some(trace), "{text:?}");
        }
    }
}
