//! Spans as a policy file has them.

use std::time::Duration;

/// A span as people write it in a policy file: `90d`, `1h 30m`, `500ms`.
pub fn show_span(span: Duration) -> String {
    let mut rest = span.as_secs();
    let mut text = Vec::new();
    for (seconds, unit) in [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m"), (1, "s")] {
        if rest >= seconds {
            text.push(format!("{}{unit}", rest / seconds));
            rest %= seconds;
        }
    }
    let fraction = Duration::from_nanos(u64::from(span.subsec_nanos()));
    if !fraction.is_zero() || text.is_empty() {
        text.push(humantime::format_duration(fraction).to_string());
    }
    text.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_in_units_that_a_file_takes() {
        for (text, shown) in [
            ("90d", "90d"),
            ("400days", "400d"),
            ("72h", "3d"),
            ("5400s", "1h 30m"),
            ("60s", "1m"),
            ("1500ms", "1s 500ms"),
            ("0s", "0s"),
        ] {
            let span = humantime::parse_duration(text).unwrap();
            assert_eq!(show_span(span), shown);
            assert_eq!(humantime::parse_duration(shown).unwrap(), span);
        }
    }
}
