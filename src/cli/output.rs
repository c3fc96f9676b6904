//! How things are printed: aligned `name: value` lines for people, one line of JSON for programs.

use std::{
    error::Error,
    io::{ErrorKind, IsTerminal, Write},
    time::Duration,
};

use serde::Serialize;

use crate::telemetry::{FailedTo, chain};

/// A value as one line of JSON. What could play with a terminal is escaped, which tells a program the same.
pub(super) fn line(value: &impl Serialize) -> anyhow::Result<String> {
    let mut line = String::new();
    for c in serde_json::to_string(value)?.chars() {
        // All of them lie in the first plane, and nothing of them stands outside a string.
        if plays_tricks(c) { line += &format!("\\u{:04x}", u32::from(c)) } else { line.push(c) }
    }
    Ok(line + "\n")
}

/// An error with its causes; the messages of the layers below read after "failed to".
pub(super) fn failed_to(error: impl Error + 'static) -> String {
    chain(&FailedTo(error))
}

/// Writes to standard output. A reader that has seen enough is no error.
pub(super) fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// A text without what could move a terminal's cursor, or show words in another order than they stand:
/// agents choose much of what is shown.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if plays_tricks(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Whether a character moves the cursor, or turns the direction of what stands around it.
fn plays_tricks(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

/// Colours words, or does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint(bool);

impl Paint {
    /// Colours only on a terminal, and not where `NO_COLOR` asks for none.
    pub(super) fn stdout() -> Self {
        Self(std::io::stdout().is_terminal() && wanted())
    }

    /// No colours.
    #[cfg(test)]
    pub(super) fn never() -> Self {
        Self(false)
    }

    /// The same for standard error.
    pub(super) fn stderr() -> Self {
        Self(std::io::stderr().is_terminal() && wanted())
    }

    /// `text` in the colour of the word it begins with.
    pub(super) fn word(self, text: &str) -> String {
        let colour = match text.split([' ', ':']).next() {
            Some("EXECUTE" | "REPLAY" | "COMPLETED" | "ok") => 32,
            Some("HOLD" | "AWAIT_APPROVAL" | "STARTED" | "UNKNOWN" | "AWAITING_APPROVAL") => 33,
            Some("REFUSE" | "FAILED" | "DENIED" | "PROBLEM") => 31,
            _ => return text.to_owned(),
        };
        if self.0 { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Names and values, to be aligned.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<Line>);

#[derive(Debug)]
struct Line {
    name: String,
    value: String,
    is_word: bool,
}

impl Lines {
    /// One more line, unless there is nothing to say.
    pub(super) fn add(&mut self, name: &str, value: impl Into<String>) {
        self.push(name, value.into(), false);
    }

    /// One more line, in the colour of its first word.
    pub(super) fn add_word(&mut self, name: &str, value: impl Into<String>) {
        self.push(name, value.into(), true);
    }

    fn push(&mut self, name: &str, value: String, is_word: bool) {
        if !value.is_empty() {
            self.0.push(Line { name: format!("{name}:"), value, is_word });
        }
    }

    /// The lines, with values that begin in one column.
    pub(super) fn render(&self, paint: Paint) -> String {
        let width = self.0.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        let render = |Line { name, value, is_word }: &Line| {
            let value = plain(value);
            let value = if *is_word { paint.word(&value) } else { value };
            format!("{name:width$}  {value}\n")
        };
        self.0.iter().map(render).collect()
    }
}

/// A span for people; rounded down, as it is often a lease.
pub(super) fn span(span: Duration) -> String {
    let rounded = if span < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(span.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_play_with_a_terminal_is_escaped_for_people_and_for_programs() {
        let turning = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in turning.chain(['\u{61c}', '\u{200e}', '\u{200f}', '\u{1b}', '\u{9b}', '\n']) {
            let text = format!("pay {c}eve");
            assert_eq!(plain(&text), format!("pay {}eve", c.escape_default()));
            let line = line(&text).unwrap();
            assert!(!line.trim_end().contains(c), "{line:?}");
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
        assert_eq!(plain("שלום, עולם · é 🙂"), "שלום, עולם · é 🙂");
        assert_eq!(line(&"é 🙂").unwrap(), "\"é 🙂\"\n");
    }
}
