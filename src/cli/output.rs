//! How things are printed: aligned `name: value` lines for people, one line of JSON for programs.

use std::{
    io::{ErrorKind, IsTerminal, Write},
    time::Duration,
};

use serde::Serialize;

/// A value as one line of JSON.
pub(super) fn line(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// An error with its causes; the messages of the layers below read after "failed to".
pub(super) fn failed_to(error: impl std::error::Error + Send + Sync + 'static) -> String {
    format!("failed to {:#}", anyhow::Error::from(error))
}

/// Writes to standard output. A reader that has seen enough is no error.
pub(super) fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// A text without what could move a terminal's cursor, or show letters in another order than they are in: agents choose
/// much of what is shown.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns_text(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Whether a character changes the direction of what follows (Unicode's UAX 9).
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    fn what_agents_chose_can_neither_move_the_cursor_nor_turn_the_text() {
        assert_eq!(plain("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(plain("pay \u{202e}001\u{2069}"), "pay \\u{202e}001\\u{2069}");
        assert_eq!(plain("\u{61c}\u{200f}ü שלום"), "\\u{61c}\\u{200f}ü שלום");
    }
}
