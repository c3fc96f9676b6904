//! The sent log as a file: one JSON line an effect.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::value::RawValue;

use crate::domain::time::Timestamp;

/// An effect that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SentEffect {
    /// The downstream's id of it.
    pub id: String,
    /// The key that its call carried.
    pub idempotency_key: Option<String>,
    /// Which intended action it was, as its caller says.
    pub action: Option<String>,
    /// When it happened.
    #[serde(serialize_with = "write_time", deserialize_with = "read_time")]
    pub sent_at: Timestamp,
    /// Until when its status said that it was absent.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_some_time",
        deserialize_with = "read_some_time"
    )]
    pub visible_at: Option<Timestamp>,
    /// The body of its call, where that was JSON.
    pub request: Option<Box<RawValue>>,
}

fn write_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

fn write_some_time<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.unwrap_or_default())
}

fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = humantime::parse_rfc3339(&text).map_err(D::Error::custom)?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(D::Error::custom)?;
    i64::try_from(since.as_micros()).map(Timestamp::from_micros).map_err(D::Error::custom)
}

fn read_some_time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timestamp>, D::Error> {
    read_time(deserializer).map(Some)
}

/// The file. Each effect is in it before anybody hears that it happened.
#[derive(Debug)]
pub(super) struct SentLog(File);

impl SentLog {
    /// Opens the file, made if absent, and reads what happened before.
    ///
    /// A last line without an end is cut off: its writer was killed while it wrote, and nobody has
    /// heard of that effect.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<SentEffect>)> {
        let file = File::options().read(true).append(true).create(true).open(path)?;
        let bytes = std::fs::read(path)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            file.set_len(whole as u64)?;
        }
        let lines = bytes[..whole].split(|byte| *byte == b'\n').enumerate();
        let effects = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(at, line)| {
                serde_json::from_slice(line).map_err(|error| {
                    let message = format!("line {}: {error}", at + 1);
                    io::Error::new(io::ErrorKind::InvalidData, message)
                })
            })
            .collect::<io::Result<_>>()?;
        Ok((Self(file), effects))
    }

    /// Appends effects, all of them by one write; a killed process has written them or not.
    pub(super) fn append(&mut self, effects: &[SentEffect]) -> io::Result<()> {
        let mut lines = Vec::new();
        for effect in effects {
            serde_json::to_writer(&mut lines, effect)?;
            lines.push(b'\n');
        }
        self.0.write_all(&lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_logged_is_read_again_and_half_a_line_is_not() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("sent.jsonl");
        let (mut log, before) = SentLog::open(&path).unwrap();
        assert!(before.is_empty());
        let request = RawValue::from_string(r#"{"amount":1.0}"#.to_owned()).unwrap();
        let time = |ms| Timestamp::from_micros(1_700_000_000_000_000 + ms * 1000);
        let effect = |number: i64| SentEffect {
            id: format!("eff-{number}"),
            idempotency_key: Some("k\n1".to_owned()),
            action: None,
            sent_at: time(number),
            visible_at: (number == 2).then(|| time(9)),
            request: Some(request.clone()),
        };
        log.append(&[effect(1), effect(2)]).unwrap();
        log.append(&[effect(3)]).unwrap();
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().next(),
            Some(
                r#"{"id":"eff-1","idempotency_key":"k\n1","action":null,"sent_at":"2023-11-14T22:13:20.001Z","request":{"amount":1.0}}"#
            )
        );
        std::fs::write(&path, format!("{text}{{\"id\":\"eff-")).unwrap();
        let (mut log, before) = SentLog::open(&path).unwrap();
        let lines: Vec<String> =
            before.iter().map(|effect| serde_json::to_string(effect).unwrap()).collect();
        assert_eq!(lines, text.lines().collect::<Vec<_>>());
        log.append(&[effect(4)]).unwrap();
        assert_eq!(SentLog::open(&path).unwrap().1.len(), 4);

        std::fs::write(&path, "{}\n").unwrap();
        let error = SentLog::open(&path).unwrap_err().to_string();
        assert!(error.starts_with("line 1: missing field `id`"), "{error}");
    }
}
