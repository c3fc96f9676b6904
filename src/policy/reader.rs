//! Typed reads of a parsed TOML document that collect mistakes instead of stopping at one.

use std::{ops::RangeInclusive, time::Duration};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    mistake::{Mistake, Site, did_you_mean},
    section::{Field, Sited},
};

/// The shortest span that is not zero: the store counts microseconds, people do not mean them.
const SPAN_MIN: Duration = Duration::from_millis(1);
/// The longest span: no store's arithmetic on times overflows with it.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// One value of the document, with its name and the path that leads to it.
#[derive(Debug, Clone)]
pub(super) struct Item<'a> {
    /// The last part of the path: the key.
    pub(super) name: &'a str,
    path: String,
    key_offset: usize,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Item<'a> {
    /// The value as it was parsed.
    pub(super) fn value(&self) -> &'a DeValue<'a> {
        self.value.get_ref()
    }
}

/// Reads values of one text and remembers what was wrong with them.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    /// A reader of the text that the spans refer to.
    pub(super) fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(ends).collect();
        Self { text, line_starts, mistakes: Vec::new() }
    }

    /// Everything that was reported.
    pub(super) fn into_mistakes(self) -> Vec<Mistake> {
        self.mistakes
    }

    /// The place of a byte of the text.
    pub(super) fn site(&self, offset: usize, key: String) -> Site {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let before = self.text.get(self.line_starts[line - 1]..offset).unwrap_or_default();
        Site { line, column: before.chars().count() + 1, key }
    }

    /// Says that something is wrong with the key itself.
    pub(super) fn wrong_key(&mut self, item: &Item<'_>, problem: impl Into<String>) {
        let site = self.site(item.key_offset, item.path.clone());
        self.mistakes.push(site.mistake(problem));
    }

    /// Says that something is wrong with the value.
    pub(super) fn wrong<T>(&mut self, item: &Item<'_>, problem: impl Into<String>) -> Field<T> {
        let site = self.value_site(item);
        self.mistakes.push(site.mistake(problem));
        Field::Broken
    }

    fn value_site(&self, item: &Item<'_>) -> Site {
        self.site(item.value.span().start, item.path.clone())
    }

    fn wrong_type<T>(&mut self, item: &Item<'_>, wanted: &str) -> Field<T> {
        let problem = format!("must be {wanted}, not {}", kind(item.value()));
        self.wrong(item, problem)
    }

    fn set<T>(&self, item: &Item<'_>, value: T) -> Field<T> {
        Field::Set(self.sited(item, value))
    }

    /// The value with the place the item stands at.
    pub(super) fn sited<T>(&self, item: &Item<'_>, value: T) -> Sited<T> {
        Sited { value, site: self.value_site(item) }
    }

    /// The value with the place of the item's key.
    pub(super) fn sited_key<T>(&self, item: &Item<'_>, value: T) -> Sited<T> {
        Sited { value, site: self.site(item.key_offset, item.path.clone()) }
    }

    /// The entries of a table, in no particular order; nothing, and a mistake, if it is none.
    pub(super) fn table(&mut self, item: &Item<'a>) -> Option<Vec<Item<'a>>> {
        match item.value() {
            DeValue::Table(table) => Some(entries(table, &item.path)),
            _ => {
                self.wrong_type::<()>(item, "a table");
                None
            }
        }
    }

    /// The elements of an array; nothing, and a mistake, if it is none.
    pub(super) fn array(&mut self, item: &Item<'a>, wanted: &str) -> Option<Vec<Item<'a>>> {
        let DeValue::Array(array) = item.value() else {
            self.wrong_type::<()>(item, wanted);
            return None;
        };
        let element = |(i, value): (usize, &'a Spanned<DeValue<'a>>)| Item {
            name: item.name,
            path: format!("{}[{i}]", item.path),
            key_offset: value.span().start,
            value,
        };
        Some(array.iter().enumerate().map(element).collect())
    }

    /// A boolean.
    pub(super) fn boolean(&mut self, item: &Item<'_>) -> Field<bool> {
        match item.value() {
            DeValue::Boolean(value) => self.set(item, *value),
            _ => self.wrong_type(item, "true or false"),
        }
    }

    /// A whole number within bounds.
    pub(super) fn integer(&mut self, item: &Item<'_>, bounds: RangeInclusive<u32>) -> Field<u32> {
        let DeValue::Integer(written) = item.value() else {
            return self.wrong_type(item, "a whole number");
        };
        let value = i64::from_str_radix(written.as_str(), written.radix()).ok();
        match value.and_then(|n| u32::try_from(n).ok()).filter(|n| bounds.contains(n)) {
            Some(value) => self.set(item, value),
            None => {
                let (least, most) = bounds.into_inner();
                self.wrong(item, format!("must be from {least} to {most}, not {written}"))
            }
        }
    }

    /// A string.
    pub(super) fn string(&mut self, item: &Item<'a>, wanted: &str) -> Field<&'a str> {
        match item.value() {
            DeValue::String(value) => self.set(item, &**value),
            _ => self.wrong_type(item, wanted),
        }
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, item: &Item<'a>, words: &[(&str, T)]) -> Field<T> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let one_of = format!("one of \"{}\"", known.join("\", \""));
        self.string(item, &one_of).and_then(|written| {
            match words.iter().find(|(word, _)| *word == written) {
                Some((_, value)) => self.set(item, *value),
                None => {
                    let hint = did_you_mean(written, &known);
                    self.wrong(item, format!("must be {one_of}, not {written:?}{hint}"))
                }
            }
        })
    }

    /// A span such as `"60s"`, `"10m"`, `"24h"` or `"30d"`.
    pub(super) fn duration(&mut self, item: &Item<'a>, zero: Zero) -> Field<Duration> {
        self.string(item, "a duration such as \"60s\"").and_then(|written| {
            let span = match humantime::parse_duration(written) {
                Ok(span) => span,
                Err(error) => {
                    let problem = format!("{written:?} is not a duration such as \"60s\": {error}");
                    return self.wrong(item, problem);
                }
            };
            if span.is_zero() && zero == Zero::Refused {
                self.wrong(item, "must be longer than zero")
            } else if !span.is_zero() && span < SPAN_MIN {
                self.wrong(item, "must be 1ms or longer")
            } else if span > SPAN_MAX {
                self.wrong(item, "must be 100 years or shorter")
            } else {
                self.set(item, span)
            }
        })
    }

    /// A size such as `"256KiB"`, or a plain number of bytes.
    pub(super) fn size(&mut self, item: &Item<'a>, most: bytesize::ByteSize) -> Field<u64> {
        let size = match item.value() {
            DeValue::Integer(_) => {
                return self
                    .integer(item, 0..=u32::try_from(most.0).unwrap_or(u32::MAX))
                    .map(u64::from);
            }
            DeValue::String(written) => written.parse::<bytesize::ByteSize>(),
            _ => return self.wrong_type(item, "a size such as \"256KiB\""),
        };
        match size {
            Ok(size) if size <= most => self.set(item, size.0),
            Ok(_) => self.wrong(item, format!("must be {most} or less")),
            Err(_) => self.wrong(item, "is not a size such as \"256KiB\""),
        }
    }
}

/// Whether a span may be nothing at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zero {
    /// Zero switches something off.
    Allowed,
    /// Zero makes no sense.
    Refused,
}

impl<T> Field<T> {
    fn and_then<U>(self, next: impl FnOnce(T) -> Field<U>) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Broken => Field::Broken,
            Self::Set(set) => next(set.value),
        }
    }

    /// The same field with another value.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Broken => Field::Broken,
            Self::Set(Sited { value, site }) => Field::Set(Sited { value: change(value), site }),
        }
    }
}

/// The entries of a table that stands at a path.
pub(super) fn entries<'a>(table: &'a DeTable<'a>, path: &str) -> Vec<Item<'a>> {
    let entry = |(key, value): (&'a Spanned<_>, &'a Spanned<DeValue<'a>>)| {
        let name: &'a std::borrow::Cow<'a, str> = key.get_ref();
        Item { name, path: join(path, name), key_offset: key.span().start, value }
    };
    table.iter().map(entry).collect()
}

/// A dotted path, with quotes where TOML would need them.
fn join(path: &str, name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = match !name.is_empty() && name.chars().all(bare) {
        true => name.to_owned(),
        false => format!("{name:?}"),
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// What a value is, with its article.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// The key path of a syntax error: that of the last key before it which stands on its line, or
/// which has the name that stands there a second time. Empty if there is none.
pub(super) fn path_at(
    reader: &Reader<'_>,
    root: &DeTable<'_>,
    offset: usize,
    doubled: Option<&str>,
) -> String {
    let line = |offset| reader.site(offset, String::new()).line;
    let mut last = (0, 0, String::new());
    let mut open = entries(root, "");
    while let Some(item) = open.pop() {
        let fits = match doubled {
            Some(name) => item.name == name,
            None => line(item.key_offset) == line(offset),
        };
        // A table that is only implied has the offset of what implies it: the longer path counts.
        let place = (item.key_offset, item.path.len());
        if fits && item.key_offset <= offset && place >= (last.0, last.1) {
            last = (place.0, place.1, item.path.clone());
        }
        if let DeValue::Table(inner) = item.value() {
            open.extend(entries(inner, &item.path));
        }
    }
    last.2
}
