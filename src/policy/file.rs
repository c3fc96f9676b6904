//! Reads the TOML of a policy file, whole, and names every mistake in it.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{
    mistake::{Mistake, did_you_mean},
    reader::{Item, Reader, Zero, entries, path_at},
    resolve,
    section::{Field, NamespaceSection, Section, Sited},
};
use crate::domain::{
    canonical_json::Pointer,
    identity::{IdentityPointer, NAME_BYTES_MAX, Normalize, Scope},
    tool::{Class, KeyFormat},
};

pub use super::section::PolicyFile;

mod gates;
mod status;

/// The words that every refusal of a part which is not built yet contains.
pub const NOT_ENFORCED: &str = "is not enforced yet";

/// The highest version a file may have: the stores count in signed 32 bits.
const VERSION_MAX: u32 = i32::MAX as u32;
/// The most attempts an intent may have; each is kept for as long as its row.
const ATTEMPTS_MAX: u32 = 10_000;
/// The largest result that can be kept: no larger request is read.
const RESULT_BYTES_MAX: bytesize::ByteSize = bytesize::ByteSize::mib(16);

/// The keys that may stand in `[defaults]` and in a tool.
const COMMON_KEYS: [&str; 12] = [
    "class",
    "give_up_after",
    "keep_arguments",
    "lease",
    "lease_max",
    "max_attempts",
    "max_result_bytes",
    "resend_window",
    "retention",
    "retry_failed",
    "scope",
    "tombstone",
];
/// The keys that may stand in `[defaults]` only.
const DEFAULTS_ONLY_KEYS: [&str; 1] = ["unlisted_tools"];
/// The keys that may stand in a tool only.
const TOOL_ONLY_KEYS: [&str; 8] = [
    "approval",
    "check_with",
    "downstream",
    "free_text",
    "halted",
    "identity",
    "limit_per_run",
    "look_alike",
];
/// The keys of `downstream`.
const DOWNSTREAM_KEYS: [&str; 6] =
    ["deduplicates", "key_format", "new_key_after_failed", "same_transaction", "status", "window"];

const CLASSES: [(&str, Class); 3] = [
    ("read_only", Class::ReadOnly),
    ("idempotent", Class::Idempotent),
    ("effectful", Class::Effectful),
];
const SCOPES: [(&str, Scope); 2] = [("run", Scope::Run), ("namespace", Scope::Namespace)];
const UNLISTED: [(&str, bool); 2] = [("allow", false), ("refuse", true)];
const KEY_FORMATS: [(&str, KeyFormat); 2] = [("hex", KeyFormat::Hex), ("uuid", KeyFormat::Uuid)];
const NORMALIZE: [(&str, Normalize); 3] = [
    ("trim", Normalize::Trim),
    ("lowercase", Normalize::Lowercase),
    ("collapse_whitespace", Normalize::CollapseWhitespace),
];

/// Reads a policy file.
///
/// # Errors
///
/// Every mistake of the file, in the order of its lines; what only surprises is a warning of the file. Where the TOML itself is broken, the
/// rest of the file is still read, as far as it can be told apart.
pub fn parse(text: &str) -> Result<PolicyFile, Vec<Mistake>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader::new(text);
    let mut file = file(&mut reader, root.get_ref());

    let mut mistakes: Vec<Mistake> = errors
        .iter()
        .map(|error| {
            let span = error.span().unwrap_or_default();
            let is_doubled = error.message() == "duplicate key";
            let doubled = text.get(span.clone()).filter(|_| is_doubled);
            let key = path_at(&reader, root.get_ref(), span.start, doubled);
            reader.site(span.start, key).mistake(error.message())
        })
        .collect();
    let broken: Vec<usize> = mistakes.iter().map(|mistake| mistake.line).collect();
    // What a broken line was recovered as says nothing about the line.
    mistakes.extend(reader.into_mistakes().into_iter().filter(|m| !broken.contains(&m.line)));
    // A line that could not be read may be the one that mends a conflict.
    if broken.is_empty() {
        mistakes.extend(resolve::check(&file));
    }
    mistakes.sort();
    file.warnings.extend(resolve::short_tombstones(&file));
    file.warnings.sort();
    if mistakes.is_empty() { Ok(file) } else { Err(mistakes) }
}

fn file<'a>(reader: &mut Reader<'a>, root: &'a DeTable<'a>) -> PolicyFile {
    let mut file = PolicyFile { version: 1, ..PolicyFile::default() };
    let items = entries(root, "");
    if !items.iter().any(|item| item.name == "version") {
        let problem = "is not given and counts as 1; write it, and raise it with every change";
        file.warnings.push(reader.site(0, "version".to_owned()).mistake(problem));
    }
    for item in items {
        match item.name {
            "version" => {
                if let Field::Set(version) = reader.integer(&item, 1..=VERSION_MAX) {
                    file.version = version.value;
                }
            }
            "defaults" => file.defaults = section(reader, &item, Place::Defaults),
            "tools" => file.tools = tools(reader, &item),
            "namespaces" => file.namespaces = namespaces(reader, &item),
            _ => unknown(reader, &item, &["version", "defaults", "tools", "namespaces"]),
        }
    }
    file
}

fn namespaces<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> BTreeMap<String, NamespaceSection> {
    let mut namespaces = BTreeMap::new();
    for item in reader.table(item).unwrap_or_default() {
        check_name(reader, &item, "a namespace");
        let mut namespace = NamespaceSection::default();
        for inner in reader.table(&item).unwrap_or_default() {
            match inner.name {
                "defaults" => namespace.defaults = section(reader, &inner, Place::Defaults),
                "tools" => namespace.tools = tools(reader, &inner),
                _ => unknown(reader, &inner, &["defaults", "tools"]),
            }
        }
        namespaces.insert(item.name.to_owned(), namespace);
    }
    namespaces
}

fn tools<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> BTreeMap<String, Section> {
    let mut tools = BTreeMap::new();
    for item in reader.table(item).unwrap_or_default() {
        check_name(reader, &item, "a tool");
        tools.insert(item.name.to_owned(), section(reader, &item, Place::Tool(item.name)));
    }
    tools
}

/// Where a section stands, which decides the keys it may have.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    Defaults,
    Tool(&'a str),
}

impl Place<'_> {
    fn keys(self) -> Vec<&'static str> {
        match self {
            Self::Defaults => [&COMMON_KEYS[..], &DEFAULTS_ONLY_KEYS].concat(),
            Self::Tool(_) => [&COMMON_KEYS[..], &TOOL_ONLY_KEYS].concat(),
        }
    }

    /// Where a key belongs that this place has not.
    fn belongs(self, key: &str) -> Option<&'static str> {
        match self {
            Self::Defaults if TOOL_ONLY_KEYS.contains(&key) => Some("may stand in a tool only"),
            Self::Tool(_) if DEFAULTS_ONLY_KEYS.contains(&key) => {
                Some("may stand in defaults only")
            }
            _ => None,
        }
    }
}

fn section<'a>(reader: &mut Reader<'a>, item: &Item<'a>, place: Place<'_>) -> Section {
    let mut section = Section::default();
    let keys = place.keys();
    for item in reader.table(item).unwrap_or_default() {
        if !keys.contains(&item.name) {
            match place.belongs(item.name) {
                Some(belongs) => reader.wrong_key(&item, belongs),
                None => unknown(reader, &item, &keys),
            }
            continue;
        }
        match item.name {
            "class" => section.class = reader.word(&item, &CLASSES),
            "unlisted_tools" => section.refuse_unlisted = reader.word(&item, &UNLISTED),
            "scope" => section.scope = reader.word(&item, &SCOPES),
            "lease" => section.lease = reader.duration(&item, Zero::Refused),
            "lease_max" => section.lease_max = reader.duration(&item, Zero::Refused),
            "resend_window" => section.resend_window = reader.duration(&item, Zero::Allowed),
            "retention" => section.retention = reader.duration(&item, Zero::Refused),
            "tombstone" => section.tombstone = reader.duration(&item, Zero::Allowed),
            "max_attempts" => section.max_attempts = reader.integer(&item, 1..=ATTEMPTS_MAX),
            "retry_failed" => section.retry_failed = reader.boolean(&item),
            "give_up_after" => section.give_up_after = reader.duration(&item, Zero::Refused),
            "max_result_bytes" => section.max_result_bytes = reader.size(&item, RESULT_BYTES_MAX),
            "identity" => section.identity = identity(reader, &item),
            "free_text" => section.free_text = free_text(reader, &item),
            "check_with" => section.check_with = check_with(reader, &item, place),
            "downstream" => downstream(reader, &item, &mut section),
            "keep_arguments" => must_be_false(reader, &item),
            "approval" => gates::approval(reader, &item, &mut section.approval),
            "limit_per_run" => section.limit_per_run = reader.integer(&item, 1..=gates::LIMIT_MAX),
            "halted" => section.halted = reader.boolean(&item),
            "look_alike" => gates::look_alike(reader, &item, &mut section.look_alike),
            key => unreachable!("{key} is a known key that nobody reads"),
        }
    }
    section
}

fn downstream<'a>(reader: &mut Reader<'a>, item: &Item<'a>, section: &mut Section) {
    for item in reader.table(item).unwrap_or_default() {
        match item.name {
            "key_format" => section.key_format = reader.word(&item, &KEY_FORMATS),
            "new_key_after_failed" => section.new_key_after_failed = reader.boolean(&item),
            "deduplicates" => section.deduplicates = reader.boolean(&item),
            "window" => section.window = reader.duration(&item, Zero::Refused),
            "same_transaction" => section.same_transaction = reader.boolean(&item),
            "status" => status::status(reader, &item, section),
            _ => unknown(reader, &item, &DOWNSTREAM_KEYS),
        }
    }
}

fn identity<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<Vec<Sited<IdentityPointer>>> {
    let Some(elements) = reader.array(item, "an array of pointers") else {
        return Field::Broken;
    };
    let mut pointers: Vec<Sited<IdentityPointer>> = Vec::new();
    let mut whole = true;
    for element in &elements {
        let parts = match element.value() {
            DeValue::Table(_) => identity_table(reader, element),
            _ => pointer(reader, element).map(|site| (site, Vec::new())),
        };
        let Some((Sited { value: pointer, site }, normalize)) = parts else {
            whole = false;
            continue;
        };
        if pointers.iter().any(|other| other.value.pointer == pointer) {
            reader.wrong::<()>(element, "the pointer is named twice");
        }
        pointers.push(Sited { value: IdentityPointer { pointer, normalize }, site });
    }
    if whole { Field::Set(reader.sited(item, pointers)) } else { Field::Broken }
}

/// `{ pointer = "/to", normalize = ["trim"] }`.
fn identity_table<'a>(
    reader: &mut Reader<'a>,
    item: &Item<'a>,
) -> Option<(Sited<Pointer>, Vec<Normalize>)> {
    let (mut found, mut named) = (None, false);
    let mut words = Vec::new();
    for item in reader.table(item)? {
        match item.name {
            "pointer" => {
                named = true;
                found = pointer(reader, &item);
            }
            "normalize" => words = normalize(reader, &item),
            _ => unknown(reader, &item, &["pointer", "normalize"]),
        }
    }
    if !named {
        reader.wrong::<()>(item, "has no pointer");
    }
    Some((found?, words))
}

fn normalize<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Vec<Normalize> {
    let mut words = Vec::new();
    for element in reader.array(item, "an array of words").unwrap_or_default() {
        if let Field::Set(word) = reader.word(&element, &NORMALIZE) {
            if words.contains(&word.value) {
                reader.wrong::<()>(&element, "the word is named twice");
            }
            words.push(word.value);
        }
    }
    words
}

fn free_text<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Field<Vec<Sited<Pointer>>> {
    let Some(elements) = reader.array(item, "an array of pointers") else {
        return Field::Broken;
    };
    let mut pointers: Vec<Sited<Pointer>> = Vec::new();
    for element in &elements {
        let Some(pointer) = pointer(reader, element) else {
            continue;
        };
        if pointers.iter().any(|other| other.value == pointer.value) {
            reader.wrong::<()>(element, "the pointer is named twice");
        }
        pointers.push(pointer);
    }
    if pointers.len() == elements.len() {
        Field::Set(reader.sited(item, pointers))
    } else {
        Field::Broken
    }
}

fn pointer<'a>(reader: &mut Reader<'a>, item: &Item<'a>) -> Option<Sited<Pointer>> {
    let Field::Set(Sited { value: written, site }) =
        reader.string(item, "a JSON Pointer such as \"/order_id\"")
    else {
        return None;
    };
    match Pointer::parse(written) {
        // An identity value is a scalar, and with all arguments free text nothing binds.
        Ok(_) if written.is_empty() => {
            reader.wrong::<()>(item, "the empty pointer means all arguments; name one of them");
            None
        }
        Ok(value) => Some(Sited { value, site }),
        Err(error) => {
            reader.wrong::<()>(item, format!("{error}, not {written:?}"));
            None
        }
    }
}

fn check_with<'a>(reader: &mut Reader<'a>, item: &Item<'a>, place: Place<'_>) -> Field<String> {
    let field = reader.string(item, "the name of a tool");
    let Field::Set(Sited { value: name, .. }) = field else {
        return Field::Broken;
    };
    if let Some(problem) = name_problem(name) {
        return reader.wrong(item, format!("the name of a tool {problem}"));
    }
    if matches!(place, Place::Tool(tool) if tool == name) {
        return reader.wrong(item, "the tool names itself; name one that only looks");
    }
    field.map(str::to_owned)
}

fn check_name(reader: &mut Reader<'_>, item: &Item<'_>, whose: &str) {
    if let Some(problem) = name_problem(item.name) {
        reader.wrong_key(item, format!("the name of {whose} {problem}"));
    }
}

/// What is wrong with the name of a tool or namespace; reads after the name.
pub(super) fn name_problem(name: &str) -> Option<String> {
    if name.is_empty() {
        Some("must not be empty".to_owned())
    } else if name.len() > NAME_BYTES_MAX {
        Some(format!("must have {NAME_BYTES_MAX} bytes or less, not {}", name.len()))
    } else if name.chars().any(char::is_control) {
        Some("must not have control characters".to_owned())
    } else {
        None
    }
}

fn unknown(reader: &mut Reader<'_>, item: &Item<'_>, known: &[&str]) {
    reader.wrong_key(item, format!("unknown key{}", did_you_mean(item.name, known)));
}

fn must_be_false(reader: &mut Reader<'_>, item: &Item<'_>) {
    if let Field::Set(Sited { value: true, .. }) = reader.boolean(item) {
        not_enforced(reader, item, &format!("{} = true", item.name));
    }
}

/// A part of the contract that this version cannot keep is refused, never read and ignored.
fn not_enforced(reader: &mut Reader<'_>, item: &Item<'_>, what: &str) {
    let advice = "remove it, or wait for the version that does";
    reader.wrong_key(item, format!("{what} {NOT_ENFORCED} by this version; {advice}"));
}

#[cfg(test)]
mod tests;
