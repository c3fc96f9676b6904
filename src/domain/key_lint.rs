//! Keys that will not do what their callers hope, told from how they look.
//!
//! A key must be the same at every repeat and another one for every action. A clock inside makes every
//! repeat a new action; a person's address makes every later action towards that person a repeat; a card
//! number must not stand in a key at all. All of this is a guess, so it is a warning and decides nothing.

use std::time::Duration;

use uuid::Uuid;

use super::time::Timestamp;

/// How close to the time of the call a time in a key must be to count as a clock: an order of last year may
/// well be named by its time.
const CLOCK_NEAR: Duration = Duration::from_secs(24 * 60 * 60);

/// The same for a UUID that tells when it was made. Those are ordinary ids of things; only one that is as
/// young as the call was probably made for it.
const UUID_NEAR: Duration = Duration::from_secs(60);

/// How many digits the shortest number of a card has.
const CARD_DIGITS_MIN: usize = 13;

/// How many digits the time of these days has in seconds since 1970.
const EPOCH_DIGITS_MIN: usize = 10;

/// How many digits a date with hour and minute has.
const DATE_DIGITS: usize = 12;

/// How many hyphens a UUID has.
const UUID_HYPHENS: usize = 4;

/// What looks wrong with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lint {
    /// It is made of e-mail addresses and nothing else.
    Email,
    /// It has the number of a payment card in it.
    CardNumber,
    /// It has the time of the call in it.
    Clock,
}

impl Lint {
    /// The warning of a Begin.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Email => "key_looks_like_email",
            Self::CardNumber => "key_looks_like_card_number",
            Self::Clock => "key_holds_a_clock",
        }
    }
}

/// What looks wrong with a key that is made from these values, each once.
pub fn lint<'a>(values: impl IntoIterator<Item = &'a str>, now: Timestamp) -> Vec<Lint> {
    let (mut card, mut clock, mut addresses, mut others) = (false, false, 0, 0);
    for value in values {
        // Beside an order's number an address is no more than where it goes.
        if is_email(value) {
            addresses += 1;
        } else {
            others += 1;
        }
        // Most keys have too few digits for anything; every Begin comes by here.
        let shape = Shape::of(value);
        card |= shape.digits >= CARD_DIGITS_MIN && holds_card_number(value);
        clock |= shape.holds_clock(value, now);
    }
    let found = [
        (addresses > 0 && others == 0, Lint::Email),
        (card, Lint::CardNumber),
        (clock, Lint::Clock),
    ];
    found.into_iter().filter_map(|(holds, lint)| holds.then_some(lint)).collect()
}

/// How many digits and hyphens a text has, which most often tells that it is nothing of what is looked for.
struct Shape {
    digits: usize,
    longest_run: usize,
    hyphens: usize,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self { digits: 0, longest_run: 0, hyphens: 0 };
        let mut run = 0;
        for byte in text.bytes() {
            if byte.is_ascii_digit() {
                shape.digits += 1;
                run += 1;
                shape.longest_run = shape.longest_run.max(run);
            } else {
                run = 0;
                shape.hyphens += usize::from(byte == b'-');
            }
        }
        shape
    }

    fn holds_clock(&self, text: &str, now: Timestamp) -> bool {
        let near = |at: Timestamp, span| now.since(at) <= span && at.since(now) <= span;
        (self.longest_run >= EPOCH_DIGITS_MIN && epochs(text).any(|at| near(at, CLOCK_NEAR)))
            || (self.digits >= DATE_DIGITS && date_times(text).any(|at| near(at, CLOCK_NEAR)))
            || (self.hyphens >= UUID_HYPHENS && uuids(text).any(|at| near(at, UUID_NEAR)))
    }
}

fn is_email(text: &str) -> bool {
    let Some((local, host)) = text.split_once('@') else { return false };
    let is_local =
        |byte: u8| byte.is_ascii_alphanumeric() || b".!#$%&'*+-/=?^_`{|}~".contains(&byte);
    let is_host =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' || !byte.is_ascii();
    !local.is_empty()
        && local.bytes().all(|byte| is_local(byte) || !byte.is_ascii())
        && host.bytes().all(is_host)
        && host.split('.').count() >= 2
        && host.split('.').all(|label| !label.is_empty())
}

/// Whether a run of digits, in groups or not, is the number of a card: its length and first digits are those
/// of a scheme, and its last digit is right.
fn holds_card_number(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let begin = at;
        let mut digits = [0_u8; 19];
        let mut count = 0;
        while at < bytes.len() {
            if bytes[at].is_ascii_digit() {
                if count < digits.len() {
                    digits[count] = bytes[at] - b'0';
                }
                count += 1;
            } else if !is_gap(bytes, at) {
                break;
            }
            at += 1;
        }
        let in_a_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
        let stands_alone = !in_a_word(begin.checked_sub(1).and_then(|before| bytes.get(before)))
            && !in_a_word(bytes.get(at));
        if stands_alone && (13..=19).contains(&count) && is_card(&digits[..count]) {
            return true;
        }
    }
    false
}

/// One blank or hyphen between two digits.
fn is_gap(bytes: &[u8], at: usize) -> bool {
    matches!(bytes[at], b' ' | b'-') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
}

fn is_card(digits: &[u8]) -> bool {
    let first = |count: usize| {
        digits[..count].iter().fold(0_u32, |number, digit| number * 10 + u32::from(*digit))
    };
    let of_a_scheme = match digits.len() {
        13 => first(1) == 4,
        14 => matches!(first(2), 30 | 36 | 38 | 39),
        15 => matches!(first(2), 34 | 37),
        16 => {
            first(1) == 4
                || matches!(first(2), 35 | 51..=55 | 62 | 65)
                || matches!(first(4), 2221..=2720 | 6011)
                || matches!(first(3), 644..=649)
        }
        17 | 18 => first(2) == 62,
        19 => first(1) == 4 || matches!(first(2), 62 | 65),
        _ => false,
    };
    of_a_scheme && passes_luhn(digits)
}

fn passes_luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| match (place % 2, u32::from(*digit)) {
            (0, digit) => digit,
            (_, digit) if digit > 4 => digit * 2 - 9,
            (_, digit) => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Every number that stands by itself, as a time.
fn epochs(text: &str) -> impl Iterator<Item = Timestamp> + '_ {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(epoch)
}

/// A number of seconds, milliseconds, microseconds or nanoseconds since 1970, by its length.
fn epoch(token: &str) -> Option<Timestamp> {
    let number =
        || token.parse::<i64>().ok().filter(|_| token.bytes().all(|it| it.is_ascii_digit()));
    let micros = match token.len() {
        10 => number()? * 1_000_000,
        13 => number()? * 1000,
        16 => number()?,
        19 => number()? / 1000,
        _ => return None,
    };
    Some(Timestamp::from_micros(micros))
}

/// Every date with a time of day, as ISO 8601 writes them: `2026-11-30T09:15`, `2026-11-30 09:15:00`,
/// `20261130T0915`. Its zone is within the day that counts as near. A date alone is no clock: a daily
/// report is named by it.
fn date_times(text: &str) -> impl Iterator<Item = Timestamp> + '_ {
    let bytes = text.as_bytes();
    (0..bytes.len()).filter(|at| bytes[*at] == b'2').filter_map(move |at| {
        let rest = &bytes[at..];
        let extended = match_form(rest, b"9999-99-99T99:99");
        let basic = || match_form(rest, b"99999999T9999");
        let digits = extended.or_else(basic)?;
        civil(&digits)
    })
}

/// The twelve digits of a text that begins like `form`: 9 is any digit, T a T, a blank or an underscore.
fn match_form(text: &[u8], form: &[u8]) -> Option<[u8; 12]> {
    let mut digits = [0; 12];
    let mut count = 0;
    for (byte, wanted) in text.get(..form.len())?.iter().zip(form) {
        match wanted {
            b'9' if byte.is_ascii_digit() => {
                digits[count] = byte - b'0';
                count += 1;
            }
            b'T' if matches!(byte, b'T' | b't' | b' ' | b'_') => {}
            other if byte == other && *other != b'9' => {}
            _ => return None,
        }
    }
    Some(digits)
}

/// The time that `YYYYMMDDhhmm` says, in UTC; `None` where there is no such time.
fn civil(digits: &[u8; 12]) -> Option<Timestamp> {
    let number = |from: usize, to: usize| {
        digits[from..to].iter().fold(0_i64, |number, digit| number * 10 + i64::from(*digit))
    };
    let (year, month, day) = (number(0, 4), number(4, 6), number(6, 8));
    let (hour, minute) = (number(8, 10), number(10, 12));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 24 || minute > 59 {
        return None;
    }
    // Days since 1970 of a date in the Gregorian calendar, whose years are counted from March here.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    Some(Timestamp::from_micros(((days * 24 + hour) * 60 + minute) * 60_000_000))
}

/// When every UUID of version 1, 6 or 7 in a text was made.
fn uuids(text: &str) -> impl Iterator<Item = Timestamp> + '_ {
    const BYTES: usize = 36;
    let bytes = text.as_bytes();
    let starts = (0..(bytes.len() + 1).saturating_sub(BYTES)).filter(move |at| {
        let hyphens = [8, 13, 18, 23].into_iter().all(|place| bytes[at + place] == b'-');
        hyphens && matches!(bytes[at + 14], b'1' | b'6' | b'7')
    });
    starts.filter_map(move |at| {
        let made = Uuid::try_parse(text.get(at..at + BYTES)?).ok()?.get_timestamp()?;
        let (seconds, nanos) = made.to_unix();
        let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
        Some(Timestamp::from_micros(micros + i64::from(nanos / 1000)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T09:15:00Z.
    const NOW: Timestamp = Timestamp::from_micros(1_796_030_100_000_000);

    fn found(values: &[&str]) -> Vec<Lint> {
        lint(values.iter().copied(), NOW)
    }

    #[test]
    fn a_key_that_is_an_address_is_told_and_one_that_has_an_address_beside_other_things_is_not() {
        let rows: [(&[&str], bool); 11] = [
            (&["ada@example.com"], true),
            (&["ada.l+billing@mail.example.co.uk"], true),
            (&["ada@example.com", "bob@example.com"], true),
            (&["ada@bücher.example"], true),
            (&["8812", "refund_approved", "ada@example.com"], false),
            (&["@ada"], false),
            (&["ada@localhost"], false),
            (&["ada@example..com"], false),
            (&["welcome ada@example.com"], false),
            (&["a@b@example.com"], false),
            (&[], false),
        ];
        for (values, expected) in rows {
            assert_eq!(found(values) == [Lint::Email], expected, "{values:?}");
        }
    }

    #[test]
    fn a_card_number_is_told_and_a_long_number_is_not() {
        let rows = [
            ("4111111111111111", true),
            ("4111 1111 1111 1111", true),
            ("card:4111-1111-1111-1111:charge", true),
            ("5555555555554444", true),
            ("2223003122003222", true),
            ("378282246310005", true),
            ("6011111111111117", true),
            ("30569309025904", true),
            // The last digit is wrong.
            ("4111111111111112", false),
            // No scheme begins so.
            ("1111111111111117", false),
            ("0000000000000000", false),
            // Part of something longer, or of a word.
            ("41111111111111111111111", false),
            ("ab4111111111111111cd", false),
            ("4111--1111--1111--1111", false),
            ("o-17", false),
            ("2026-11-29", false),
        ];
        for (value, expected) in rows {
            assert_eq!(found(&[value]).contains(&Lint::CardNumber), expected, "{value}");
        }
    }

    #[test]
    fn the_time_of_the_call_is_told_and_any_other_time_is_not() {
        let rows = [
            ("2026-11-30T09:15:00Z", true),
            ("mail-2026-11-30 09:14", true),
            ("20261130T091500Z", true),
            ("2026-11-30T22:15:00+13:00", true),
            ("run_1796030100", true),
            ("1796030100123", true),
            ("1796030100123456", true),
            ("1796030100123456789", true),
            // A date alone names a day.
            ("2026-11-30", false),
            ("report-20261130", false),
            // Another time is a name like any other.
            ("2024-02-29T12:00:00Z", false),
            ("1500000000", false),
            ("2026-13-30T09:15", false),
            ("2026-11-30T99:15", false),
            ("0123456789", false),
            ("order-17960301001", false),
            ("f47ac10b-58cc-4372-a567-0e02b2c3d479", false),
        ];
        for (value, expected) in rows {
            assert_eq!(found(&[value]).contains(&Lint::Clock), expected, "{value}");
        }
    }

    /// An id that tells when it was made is told only while it is as young as the call.
    #[test]
    fn a_uuid_made_for_the_call_is_told_and_that_of_an_older_thing_is_not() {
        let seconds = u64::try_from(NOW.micros() / 1_000_000).unwrap();
        for (age, expected) in [(0, true), (30, true), (61, false), (3600, false)] {
            // Version 1 counts tenths of microseconds since 1582.
            let ticks = (seconds - age) * 10_000_000 + 0x01B2_1DD2_1381_4000;
            let ids = [
                uuid::Builder::from_unix_timestamp_millis((seconds - age) * 1000, &[7; 10])
                    .into_uuid(),
                uuid::Builder::from_gregorian_timestamp(ticks, 1, &[1; 6]).into_uuid(),
            ];
            for id in ids {
                let value = format!("try-{id}");
                assert_eq!(found(&[&value]).contains(&Lint::Clock), expected, "{value}");
            }
        }
    }

    #[test]
    fn days_are_counted_as_the_calendar_does() {
        let rows = [
            ("1970-01-01T00:00", 0),
            ("2000-02-29T00:00", 951_782_400),
            ("2026-11-30T09:15", 1_796_030_100),
        ];
        for (text, seconds) in rows {
            let digits = match_form(text.as_bytes(), b"9999-99-99T99:99").unwrap();
            assert_eq!(civil(&digits), Some(Timestamp::from_micros(seconds * 1_000_000)), "{text}");
        }
    }

    #[test]
    fn nothing_is_said_of_ordinary_keys() {
        for value in ["8812", "refund_approved", "o-17", "acme/2026/inv-000123", "naïve ключ", "x"]
        {
            assert_eq!(found(&[value]), [], "{value}");
        }
    }
}
