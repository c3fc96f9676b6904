//! Errors with their causes, each thing said once.

use std::{error::Error, fmt};

/// An error with all its causes. Libraries often repeat a cause in their own words: a part that has
/// been said is left out.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut said: Vec<String> = parts(&text).map(str::to_lowercase).collect();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        let above = said.len();
        for part in parts(&words) {
            if !said[..above].contains(&part.to_lowercase()) {
                text.push_str(": ");
                text.push_str(part);
                said.push(part.to_lowercase());
            }
        }
        cause = error.source();
    }
    text
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.trim().split(": ")
}

/// An error whose message reads after "failed to", as a whole sentence.
#[derive(Debug)]
pub struct FailedTo<E>(pub E);

impl<E: fmt::Display> fmt::Display for FailedTo<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {}", self.0)
    }
}

impl<E: Error> Error for FailedTo<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages, each the cause of the one before.
    #[derive(Debug)]
    struct Nested(&'static str, Option<Box<Nested>>);

    impl fmt::Display for Nested {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Nested {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn told(messages: &[&'static str]) -> String {
        let (first, causes) = messages.split_first().expect("a message");
        let nest = |cause, message: &&'static str| Some(Box::new(Nested(message, cause)));
        chain(&FailedTo(Nested(first, causes.iter().rev().fold(None, nest))))
    }

    #[test]
    fn a_part_that_was_said_is_not_said_again() {
        let rows: [(&[&'static str], &str); 5] = [
            (&["listen on a: b"], "failed to listen on a: b"),
            (&["reach the store", "refused"], "failed to reach the store: refused"),
            (
                &["reach the store", "pool", "connect: connect: refused", "refused"],
                "failed to reach the store: pool: connect: connect: refused",
            ),
            (
                &["reach the store", "db error", "db error: FATAL: no", "FATAL: no"],
                "failed to reach the store: db error: FATAL: no",
            ),
            (
                &["reach the store", "Cannot open: /x", "code 14: cannot open"],
                "failed to reach the store: Cannot open: /x: code 14",
            ),
        ];
        for (messages, text) in rows {
            assert_eq!(told(messages), text);
        }
    }
}
