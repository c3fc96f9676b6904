//! The import map of the source, kept true: who may name whom.
//!
//! `domain ← {policy, store} ← ledger ← reconciler ← {grpc, console} ← app ← demo ← cli`

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Each module, a lower one first, with the other modules of ours that it may name. What is missing here is not
/// known yet and must be given its place.
const MAP: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("ids", &[]),
    ("proto", &[]),
    ("tls", &[]),
    ("clock", &["domain"]),
    ("telemetry", &["clock"]),
    ("policy", &["domain"]),
    ("store", &["domain", "clock", "ids", "telemetry"]),
    // Settings are told in the words of whom they are for.
    ("config", &["store", "telemetry"]),
    ("ledger", &["domain", "policy", "store", "clock", "ids", "telemetry"]),
    ("downstream", &["domain", "proto", "clock", "ids"]),
    (
        "reconciler",
        &["domain", "policy", "store", "ledger", "proto", "tls", "clock", "ids", "telemetry"],
    ),
    (
        "grpc",
        &[
            "domain",
            "policy",
            "store",
            "ledger",
            "reconciler",
            "proto",
            "clock",
            "ids",
            "telemetry",
        ],
    ),
    ("console", &["domain", "policy", "store", "ledger", "clock", "ids", "telemetry"]),
    (
        "app",
        &[
            "domain",
            "policy",
            "store",
            "ledger",
            "grpc",
            "console",
            "reconciler",
            "proto",
            "config",
            "clock",
            "ids",
            "telemetry",
        ],
    ),
    (
        "demo",
        &[
            "app",
            "downstream",
            "domain",
            "policy",
            "store",
            "ledger",
            "proto",
            "config",
            "tls",
            "clock",
            "ids",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "app",
            "demo",
            "downstream",
            "domain",
            "policy",
            "store",
            "ledger",
            "grpc",
            "proto",
            "config",
            "clock",
            "ids",
            "telemetry",
        ],
    ),
    ("main", &["cli"]),
    ("lib", &[]),
];

/// A path that only these places may name; a place is a file or a directory with its slash.
const ONLY: &[(&str, &[&str])] = &[
    ("tokio_postgres", &["store/postgres/"]),
    ("deadpool_postgres", &["store/postgres/"]),
    ("rusqlite", &["store/sqlite/"]),
    ("refinery", &["store/postgres/schema.rs", "store/sqlite/schema.rs"]),
    ("tonic::Code", &["grpc/status.rs", "reconciler/grpc.rs"]),
    ("crate::proto", &["grpc/", "reconciler/grpc.rs", "cli/", "demo/", "downstream/", "app.rs"]),
    ("reqwest", &["tls.rs", "reconciler/", "demo/"]),
    ("std::time::SystemTime::now", &["clock.rs"]),
    ("std::time::Instant::now", &["clock.rs"]),
    ("crate::store::postgres", &["store/"]),
    ("crate::store::sqlite", &["store/"]),
];

/// Paths that a place must not name.
const NEVER: &[(&str, &[&str])] = &[
    (
        "domain/",
        &[
            "tokio",
            "tonic",
            "prost",
            "rusqlite",
            "tokio_postgres",
            "std::time::SystemTime",
            "std::time::Instant",
            "std::env",
            "rand",
            "tracing",
            "metrics",
        ],
    ),
    (
        "policy/",
        &[
            "tonic",
            "prost",
            "tokio",
            "tracing",
            "std::time::SystemTime",
            "std::time::Instant",
            "std::env",
        ],
    ),
    ("store/", &["tonic", "prost"]),
    ("ledger/", &["tonic", "prost", "axum"]),
    ("grpc/service.rs", &["crate::store"]),
    ("telemetry/", &["tonic", "prost"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Every source file, by its path under `src/`.
fn sources() -> Vec<(String, String)> {
    fn collect(directory: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut paths = Vec::new();
    collect(&src, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// The module that a file is, as segments: `store/postgres/sql.rs` is `store postgres sql`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|name| !["main", "lib"].contains(name)).map(str::to_owned).collect()
}

/// The text without comments, strings and characters, so that prose names nothing.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// A character rather than a lifetime.
fn is_character(text: &str) -> bool {
    let mut following = text.chars().skip(1);
    following.next() == Some('\\') || following.next() == Some('\'')
}

/// The length of a quoted piece at the start of a text, with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Every path that a file names, in `use` trees or in its code, from the crate's root or a
/// crate's name on. `super` and `self` are resolved; an import that is used by its last name
/// counts where it is imported, with what the code appends to that name.
fn paths(file: &str, text: &str) -> BTreeSet<String> {
    let code = code_of(text);
    let mut found = BTreeSet::new();
    let mut imported: Vec<(String, String)> = Vec::new();
    let mut rest = code.as_str();
    let mut body = String::new();
    while let Some(at) = next_use(rest) {
        body.push_str(&rest[..at]);
        let statement = &rest[at + "use ".len()..];
        let end = statement.find(';').unwrap_or(statement.len());
        for path in expand(&statement[..end]) {
            let (path, name) = match path.split_once(" as ") {
                Some((path, name)) => (path.trim().to_owned(), name.trim().to_owned()),
                None => {
                    let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                    (path, name)
                }
            };
            let path = resolve(file, &path);
            imported.push((name, path.clone()));
            found.insert(path);
        }
        rest = &statement[end..];
    }
    body.push_str(rest);
    for path in inline(&body) {
        let (first, more) = path.split_once("::").expect("an inline path has two segments");
        match imported.iter().find(|(name, _)| name == first) {
            Some((_, full)) => found.insert(format!("{full}::{more}")),
            None => found.insert(resolve(file, &path)),
        };
    }
    found
}

/// Where the next `use` statement begins.
fn next_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|at| {
        code[..*at].chars().next_back().is_none_or(|before| before.is_whitespace() || before == '{')
    })
}

/// The paths of a `use` tree.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        return vec![tree.to_owned()];
    };
    let prefix = &tree[..open];
    let inner = tree[open + 1..].trim_end().trim_end_matches('}');
    // One brace too many was cut off where branches end together.
    let missing = inner.matches('{').count() - inner.matches('}').count();
    let inner = format!("{inner}{}", "}".repeat(missing));
    let mut branches = vec![String::new()];
    let mut depth = 0;
    for character in inner.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(String::new());
                continue;
            }
            _ => {}
        }
        branches.last_mut().unwrap().push(character);
    }
    let full = |branch: &String| expand(&format!("{prefix}{}", branch.trim()));
    branches.iter().filter(|branch| !branch.trim().is_empty()).flat_map(full).collect()
}

/// Paths in code: two or more names joined by `::`.
fn inline(body: &str) -> Vec<String> {
    let separate = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
    body.split(separate)
        .map(|word| word.trim_matches(':'))
        .filter(|word| word.contains("::"))
        .map(str::to_owned)
        .collect()
}

/// A path with `self` and `super` at its start replaced by what they mean in a file.
fn resolve(file: &str, path: &str) -> String {
    let mut module = module_of(file);
    let mut rest = path.trim().trim_start_matches("::");
    let mut relative = false;
    while let Some((first, more)) = rest.split_once("::") {
        match first {
            "self" => {}
            "super" => {
                module.pop();
            }
            _ => break,
        }
        relative = true;
        rest = more;
    }
    if !relative {
        return rest.trim_end_matches("::self").to_owned();
    }
    let own = std::iter::once("crate".to_owned()).chain(module).collect::<Vec<_>>().join("::");
    format!("{own}::{rest}").trim_end_matches("::self").to_owned()
}

fn is_under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn is_at(file: &str, place: &str) -> bool {
    file == place || (place.ends_with('/') && file.starts_with(place))
}

/// What is wrong with one file.
fn violations(file: &str, text: &str) -> Vec<String> {
    let own = file.split('/').next().unwrap().trim_end_matches(".rs");
    let Some((_, allowed)) = MAP.iter().find(|(module, _)| *module == own) else {
        return vec![format!("{file}: module {own:?} has no place in the map")];
    };
    let ours: BTreeSet<&str> = MAP.iter().map(|(module, _)| *module).collect();
    let mut wrong = Vec::new();
    for path in paths(file, text) {
        let named = path
            .strip_prefix("crate::")
            .or_else(|| path.strip_prefix("intent_ledger::"))
            .and_then(|rest| rest.split("::").next());
        if let Some(named) = named
            && ours.contains(named)
            && named != own
            && !allowed.contains(&named)
        {
            wrong.push(format!("{file} names {path}: {own} must not know {named}"));
        }
        for (only, places) in ONLY {
            let home = only.strip_prefix("crate::").is_some_and(|module| {
                file == format!("{module}.rs") || file.starts_with(&format!("{module}/"))
            });
            if is_under(&path, only) && !home && !places.iter().any(|place| is_at(file, place)) {
                wrong.push(format!("{file} names {path}: only {places:?} may"));
            }
        }
        for (place, banned) in NEVER {
            if is_at(file, place) && banned.iter().any(|banned| is_under(&path, banned)) {
                wrong.push(format!("{file} names {path}: {place} never does"));
            }
        }
    }
    wrong
}

#[test]
fn imports_point_one_way() {
    let sources = sources();
    assert!(sources.len() > 40, "{} files", sources.len());
    let wrong: Vec<String> =
        sources.iter().flat_map(|(file, text)| violations(file, text)).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The map itself has no way back.
#[test]
fn the_map_has_no_cycle() {
    let lower = |module: &str| -> Vec<&str> {
        MAP.iter().take_while(|(name, _)| *name != module).map(|(name, _)| *name).collect()
    };
    for (module, allowed) in MAP {
        let lower = lower(module);
        let higher: Vec<_> = allowed.iter().filter(|named| !lower.contains(named)).collect();
        assert!(higher.is_empty(), "{module} is below {higher:?}");
    }
}

/// The check finds what it is for, however it is written.
#[test]
fn a_wrong_import_is_found_in_every_form() {
    let rows: &[(&str, &str, usize)] = &[
        ("domain/intent.rs", "use std::time::Duration;\nuse super::time::Timestamp;", 0),
        ("domain/intent.rs", "use std::time::{Duration, Instant};", 1),
        ("domain/intent.rs", "let now = std::time::SystemTime::now();", 2),
        ("domain/intent.rs", "use std::{env, fmt};", 1),
        ("domain/intent.rs", "use std::env as surroundings;", 1),
        ("domain/intent.rs", "use crate::store::Store;", 1),
        ("domain/intent.rs", "use super::super::store::Store;", 1),
        (
            "domain/intent.rs",
            "// use crate::store::Store;\nlet a = \"crate::store\"; /* tokio::x */",
            0,
        ),
        ("domain/intent.rs", "fn f<'a>(c: char) -> bool { c == '\"' || tokio::spawn(c) }", 1),
        ("policy/mod.rs", "use crate::{domain::tool::Class, store::{Store, Write}};", 2),
        ("store/mod.rs", "use crate::ledger::Ledger;", 1),
        ("store/sqlite/mod.rs", "use rusqlite::{Connection, params};", 0),
        ("store/mod.rs", "use rusqlite::{Connection, params};", 2),
        ("ledger/begin.rs", "pub(super) fn f() { crate::grpc::status() }", 1),
        ("ledger/mod.rs", "use crate::store::postgres::PostgresStore;", 1),
        ("grpc/service.rs", "use tonic::Code;", 1),
        ("grpc/service.rs", "use tonic::{self, Status};\nfn f() { tonic::Code::Ok }", 1),
        ("grpc/service.rs", "use crate::store::Filter;", 1),
        ("grpc/convert.rs", "use crate::store::Filter;", 0),
        ("ledger/mod.rs", "use crate::proto::v1::Intent;", 2),
        ("config/mod.rs", "use crate::app::Running;", 1),
        ("news/mod.rs", "", 1),
    ];
    for (file, text, expected) in rows {
        let wrong = violations(file, text);
        assert_eq!(wrong.len(), *expected, "{file}: {text}\n{wrong:#?}");
    }
}

/// The two stores change in step.
#[test]
fn every_migration_has_its_twin() {
    let names = |store: &str| -> BTreeSet<String> {
        let files = fs::read_dir(root().join("migrations").join(store)).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    };
    let (postgres, sqlite) = (names("postgres"), names("sqlite"));
    assert_eq!(postgres, sqlite);
    let numbers: Vec<String> = (1..=postgres.len()).map(|n| format!("{n:04}_")).collect();
    for (name, number) in postgres.iter().zip(numbers) {
        assert!(name.starts_with(&number) && name.ends_with(".sql"), "{name}");
    }
}
