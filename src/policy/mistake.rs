//! What is wrong with a policy file, and where it stands.

use std::fmt;

/// One thing that is wrong with a policy file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// The line it stands in, counted from 1.
    pub line: usize,
    /// The character of that line it begins at, counted from 1.
    pub column: usize,
    /// The dotted path of the key, such as `tools.send_email.identity[2].normalize`; empty where
    /// the text is too broken to tell.
    pub key: String,
    /// What is wrong, and where it helps what to write instead.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, key, problem, .. } = self;
        if key.is_empty() {
            write!(f, "line {line}: {problem}")
        } else {
            write!(f, "line {line}: {key}: {problem}")
        }
    }
}

/// Where a key or value stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) key: String,
}

impl Site {
    /// The mistake of this site.
    pub(super) fn mistake(&self, problem: impl Into<String>) -> Mistake {
        let Self { line, column, ref key } = *self;
        Mistake { line, column, key: key.clone(), problem: problem.into() }
    }
}

/// `; did you mean "lease"?`, if one of the known words is near enough to the written one.
pub(super) fn did_you_mean(written: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|word| (edits(written, word), word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).clamp(1, 3))
        .min();
    match near {
        Some((_, word)) => format!("; did you mean \"{word}\"?"),
        None => String::new(),
    }
}

/// How many characters to insert, drop or replace to make one word of the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (from, to, count) in [
            ("", "", 0),
            ("", "ab", 2),
            ("leese", "lease", 1),
            ("kitten", "sitting", 3),
            ("é", "e", 1),
        ] {
            assert_eq!(edits(from, to), count, "{from} {to}");
            assert_eq!(edits(to, from), count, "{to} {from}");
        }
    }

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["lease", "lease_max", "scope"];
        assert_eq!(did_you_mean("leese", &known), "; did you mean \"lease\"?");
        assert_eq!(did_you_mean("leasemax", &known), "; did you mean \"lease_max\"?");
        assert_eq!(did_you_mean("colour", &known), "");
    }
}
