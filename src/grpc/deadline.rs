//! The deadline that a caller has set.

use std::time::Duration;

use tonic::Request;

use crate::clock::Deadline;

/// The deadline of a request, counted from now.
///
/// The transport ends a call whose deadline has passed; this one is for what must not begin then.
pub(super) fn of<T>(request: &Request<T>) -> Deadline {
    let header = request.metadata().get("grpc-timeout");
    Deadline::after(header.and_then(|value| parse(value.to_str().ok()?)))
}

/// A timeout as gRPC writes it: at most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_in_every_unit() {
        let rows = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("30S", Some(Duration::from_secs(30))),
            ("1500m", Some(Duration::from_millis(1500))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("", None),
            ("S", None),
            ("123456789S", None),
            ("-1S", None),
            ("1ß", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
