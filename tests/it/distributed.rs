//! A distributed Postgres can take schema and statements as they are.
//!
//! Citus refuses some of what Postgres accepts. Every statement that the store sends is written down on its way, and
//! the texts are searched for it; so are the migrations and the source, for statements that no test sends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use intent_ledger::{
    domain::{
        attempt::Layer,
        identity::HASH_VERSION,
        intent::State,
        repeat::{Answered, LayerCounts, Repeat},
        time::Timestamp,
    },
    ids,
    ledger::DEFAULT_NAMESPACE,
    proto::v1::{BeginRequest, CompleteRequest, Decision, FailureKind, Reason},
    store::{
        self, DownstreamObject, Filter, Reference, RowKey, StoreOptions, Touch,
        agenda::{Entry, Release, ToolKey},
        history::{Counted, KeepFrom, Repeated, RunCount, ToolCount},
        retention::Tombstone,
        row_id,
    },
};

use crate::support::{
    calls::{
        CHARGE_POLICY, charge, completed, completion, error_of, expect, extend, fail, failure,
        key_of,
    },
    proxy::Proxy,
    server::{Kind, TestServer, TestStore},
};

/// Rows are placed by this column.
const DISTRIBUTION_COLUMN: &str = "id";

/// Tables that are small and written seldom, which every node has whole: any index will do there.
const REFERENCE_TABLES: [&str; 3] = ["active_policy", "policies", "intent_ledger_migrations"];

/// Functions whose value is not the same on every node that runs a part of the statement.
const VOLATILE: [&str; 12] = [
    "now",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
    "random",
    "gen_random_uuid",
    "nextval",
    "pg_current_xact_id",
    "txid_current",
    "setseed",
    "pg_backend_pid",
];

/// The same as words without brackets.
const VOLATILE_WORDS: [&str; 5] =
    ["current_timestamp", "current_time", "current_date", "localtimestamp", "localtime"];

/// A word or sign of SQL in lower case, and how many brackets are open around it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    depth: usize,
}

/// The words and signs of a text, without comments and quoted texts. What is between dollar quotes
/// is the body of a function, and SQL like the rest.
fn tokens(sql: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut depth = 0;
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map_or(rest.len(), |end| end + 4)
        } else if first == '\'' {
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else if first.is_alphanumeric() || first == '_' {
            let word = |c: char| !(c.is_alphanumeric() || c == '_');
            let length = rest.find(word).unwrap_or(rest.len());
            tokens.push(Token { text: rest[..length].to_lowercase(), depth });
            length
        } else {
            if first == ')' {
                depth = usize::saturating_sub(depth, 1);
            }
            if !first.is_whitespace() && first != '"' {
                tokens.push(Token { text: first.to_string(), depth });
            }
            if first == '(' {
                depth += 1;
            }
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    tokens
}

/// What is refused in a text of SQL.
fn refused(sql: &str) -> BTreeSet<String> {
    let tokens = tokens(sql);
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = BTreeSet::new();
    for at in 0..tokens.len() {
        match (word(at), word(at + 1)) {
            ("create", "trigger") | ("constraint", "trigger") => {
                found.insert("a trigger".to_owned());
            }
            ("replace", "trigger") => {
                found.insert("a trigger".to_owned());
            }
            ("skip", "locked") => {
                found.insert("SKIP LOCKED".to_owned());
            }
            ("ctid", _) => {
                found.insert("a row by its ctid".to_owned());
            }
            ("set", _) if is_update(&tokens, at) => {
                found.extend(volatile_in_update(&tokens, at));
            }
            _ => {}
        }
    }
    found
}

/// Whether a SET is that of an UPDATE, with a table's name between or without (ON CONFLICT).
fn is_update(tokens: &[Token], set: usize) -> bool {
    // UPDATE [ONLY] [schema.]table [[AS] alias] SET
    tokens[set.saturating_sub(7)..set]
        .iter()
        .rev()
        .take_while(|token| token.text != ";" && token.depth == tokens[set].depth)
        .any(|token| token.text == "update")
}

/// The volatile functions that an UPDATE assigns, or compares with.
fn volatile_in_update(tokens: &[Token], set: usize) -> BTreeSet<String> {
    let depth = tokens[set].depth;
    let mut from = false;
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate().skip(set + 1) {
        if token.depth < depth || token.text == ";" {
            break;
        }
        if token.depth == depth {
            // What a FROM brings is computed once, before the rows are.
            from = match token.text.as_str() {
                "from" => true,
                "where" | "returning" => false,
                _ => from,
            };
        }
        let name = token.text.as_str();
        let called = VOLATILE.contains(&name) && tokens.get(at + 1).is_some_and(|t| t.text == "(");
        if !from && (called || VOLATILE_WORDS.contains(&name)) {
            found.insert(format!("{name} in an UPDATE"));
        }
    }
    found
}

#[test]
fn what_is_refused_is_found_and_nothing_else() {
    let rows: [(&str, &[&str]); 22] = [
        ("CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f()", &["a trigger"]),
        ("create or replace trigger t before update on a execute function f()", &["a trigger"]),
        ("CREATE CONSTRAINT TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f()", &["a trigger"]),
        ("-- there are no triggers: CREATE TRIGGER t\nSELECT 1", &[]),
        ("SELECT id FROM a ORDER BY at LIMIT 5 FOR UPDATE SKIP LOCKED", &["SKIP LOCKED"]),
        ("SELECT id FROM a WHERE id = $1 FOR UPDATE", &[]),
        ("DELETE FROM a WHERE ctid IN (SELECT ctid FROM a LIMIT 5)", &["a row by its ctid"]),
        ("UPDATE a SET at = now()", &["now in an UPDATE"]),
        ("UPDATE ONLY s.a AS x SET n = n + 1, at = (x.at + (NOW() - $1))", &["now in an UPDATE"]),
        ("UPDATE a SET at = CURRENT_TIMESTAMP", &["current_timestamp in an UPDATE"]),
        ("UPDATE a SET n = 1 WHERE at < clock_timestamp()", &["clock_timestamp in an UPDATE"]),
        ("UPDATE a SET n = 1 FROM b WHERE a.n < random()", &["random in an UPDATE"]),
        ("UPDATE a SET at = $1, note = 'now()' WHERE id = $2", &[]),
        ("UPDATE a SET at = clock.at FROM (SELECT now() AS at) AS clock WHERE a.id = $1", &[]),
        ("WITH c AS (SELECT now() AS at) UPDATE a SET at = c.at FROM c WHERE a.id = $1", &[]),
        (
            "INSERT INTO a (id, at) VALUES ($1, now()) ON CONFLICT (id) DO UPDATE SET at = now()",
            &["now in an UPDATE"],
        ),
        (
            "INSERT INTO a (id, at) VALUES ($1, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at",
            &[],
        ),
        ("WITH u AS (UPDATE a SET n = 1 WHERE id = $1 RETURNING id) SELECT now() FROM u", &[]),
        ("UPDATE a SET n = 1; SELECT now()", &[]),
        ("SET LOCAL lock_timeout = '5s'; SELECT now()", &[]),
        ("UPDATE a SET now = $1, random = $2 WHERE id = $3", &[]),
        (
            "CREATE FUNCTION f() RETURNS void AS $$ BEGIN UPDATE a SET at = now(); END $$",
            &["now in an UPDATE"],
        ),
    ];
    for (sql, expected) in rows {
        let expected: BTreeSet<String> = expected.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(refused(sql), expected, "{sql}");
    }
}

/// Every text of a Rust source in double quotes, as the program has it.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let end = raw.find("\"#").unwrap_or(raw.len());
            found.push(raw[..end].to_owned());
            end + 5
        } else if first == '"' {
            let mut text = String::new();
            let mut characters = rest[1..].char_indices();
            let mut end = rest.len();
            while let Some((at, character)) = characters.next() {
                match character {
                    '"' => {
                        end = at + 2;
                        break;
                    }
                    // A line that goes on, or an escaped sign; none of them is a word of SQL.
                    '\\' => {
                        characters.next();
                        text.push(' ');
                    }
                    other => text.push(other),
                }
            }
            found.push(text);
            end
        } else if rest.starts_with("'\"'") {
            3
        } else {
            first.len_utf8()
        };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    found
}

/// Whatever each text has in it that is refused.
fn search(texts: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, BTreeSet<String>> {
    let searched = texts.into_iter().map(|(place, sql)| (place, refused(&sql)));
    searched.filter(|(_, found)| !found.is_empty()).collect()
}

/// The files of a directory, whole, with this ending.
fn files(directory: &str, ending: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut files: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == ending))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{directory} has files that end in {ending}");
    files
}

#[test]
fn no_migration_has_what_a_distributed_postgres_refuses() {
    assert_eq!(search(files("migrations/postgres", "sql")), BTreeMap::new());
}

#[test]
fn no_text_of_the_source_has_what_a_distributed_postgres_refuses() {
    let sources = files("src/store/postgres", "rs");
    let texts: Vec<(String, String)> = sources
        .iter()
        .flat_map(|(file, source)| {
            literals(source).into_iter().map(move |text| (format!("{file}: {text}"), text))
        })
        .collect();
    assert!(texts.iter().any(|(_, text)| text.contains("INSERT INTO")), "they are found");
    assert_eq!(search(texts), BTreeMap::new());
}

/// A unique index that lacks the distribution column cannot be kept by nodes that do not ask each other.
#[tokio::test]
async fn every_unique_index_has_the_distribution_column_and_no_table_has_a_trigger() {
    let session = TestStore::new(Kind::Postgres).await.postgres().await;
    let indexes = session
        .query(
            "SELECT t.relname::text, i.relname::text,
                    array(SELECT attname::text FROM pg_attribute
                          WHERE attrelid = t.oid AND attnum = ANY(x.indkey))
             FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
             WHERE t.relnamespace = 'public'::regnamespace AND (x.indisunique OR x.indisexclusion)",
            &[],
        )
        .await
        .unwrap();
    let mut seen = BTreeSet::new();
    for index in indexes {
        let (table, name): (String, String) = (index.get(0), index.get(1));
        let columns: Vec<String> = index.get(2);
        if !REFERENCE_TABLES.contains(&table.as_str()) {
            assert!(columns.iter().any(|it| it == DISTRIBUTION_COLUMN), "{name} on {table}");
            seen.insert(table);
        }
    }
    let expected = ["begin_counts", "events", "intents", "orphan_facts", "repeats", "run_counts"]
        .map(str::to_owned);
    assert!(expected.iter().all(|table| seen.contains(table)), "{seen:?}");
    let triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal";
    assert_eq!(session.query_one(triggers, &[]).await.unwrap().get::<_, i64>(0), 0);
    // And no row points at one that another node may have.
    let references = "SELECT count(*) FROM pg_constraint WHERE contype = 'f'";
    assert_eq!(session.query_one(references, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// The operations of the traits, which [`every_statement`] all asks for.
const OPERATIONS: [&str; 39] = [
    "now",
    "write",
    "find",
    "find_by_reference",
    "versions",
    "list",
    "events",
    "keep_orphans",
    "orphans",
    "touch",
    "active_policy",
    "policies",
    "activate_policy",
    "unsettled_tools",
    "diagnose",
    "others_with_references",
    "gather",
    "due_tools",
    "due",
    "due_proposals",
    "entry",
    "claim",
    "waiting_for_people",
    "release",
    "claim_filed",
    "kept",
    "prune",
    "purge",
    "file",
    "slots_held",
    "look_alikes",
    "forget_look_alikes",
    "remember",
    "repeats",
    "count",
    "counts",
    "run_counts",
    "roll_counts",
    "open_now",
];

/// Every gate at once.
const GATED_POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
[tools.charge]
identity = ["/order"]
free_text = ["/memo"]
limit_per_run = 2
look_alike = { subject = ["/amount"], window = "1h", action = "await_approval" }
"#;

fn gated(order: &str) -> BeginRequest {
    let mut request = charge(order, 7, "a");
    request.identity.as_mut().unwrap().run_id = "r".into();
    request
}

/// Every statement that a store sends, from the migration on.
async fn every_statement() -> BTreeSet<String> {
    let test = TestStore::new(Kind::Postgres).await;
    let proxy = Proxy::start(&test.address).await;
    let behind = test.through(proxy.url.clone());
    store::migrate(&StoreOptions::new(&behind.address)).await.unwrap();

    // Writes of every kind, orphans and policies.
    let server = TestServer::on(behind.clone(), Some(CHARGE_POLICY)).await;
    let agent = &server.agent;
    let granted = expect(agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
    expect(agent, charge("o-1", 1, "a"), Decision::Hold, Reason::InFlight).await;
    extend(agent, &granted, 30, "ch_1").await.unwrap();
    fail(agent, failure(&granted, FailureKind::NotExecuted, "x")).await.unwrap();
    let again = expect(agent, charge("o-1", 1, "a"), Decision::Execute, Reason::Retry).await;
    agent.clone().complete(completion(&again, b"1")).await.unwrap();
    error_of(agent.clone().complete(completion(&granted, b"2")).await);
    completed(agent, charge("o-2", 1, "a"), b"1").await;
    let stranger = CompleteRequest { key: "ab".repeat(32), ..completion(&granted, b"1") };
    assert_eq!(error_of(agent.clone().complete(stranger).await), "INTENT_NOT_FOUND");
    server.offer(&GATED_POLICY.replace("version = 1", "version = 2")).await;
    let limited = expect(agent, gated("o-3"), Decision::Execute, Reason::New).await;
    fail(agent, failure(&limited, FailureKind::NotExecuted, "x")).await.unwrap();
    expect(agent, gated("o-3"), Decision::Execute, Reason::Retry).await;
    expect(agent, gated("o-4"), Decision::AwaitApproval, Reason::ApprovalRequired).await;
    let key = key_of(&granted).parse().unwrap();
    server.stop().await;

    // The rest, each with every form of its statement.
    let store = behind.open().await;
    let namespace = DEFAULT_NAMESPACE.to_owned();
    let row = RowKey { namespace: namespace.clone(), id: row_id(&key, HASH_VERSION) };
    let found = store.find(std::slice::from_ref(&row)).await.unwrap();
    assert_eq!(found.rows[0].as_ref().unwrap().intent.state, State::Completed);
    store.now().await.unwrap();
    for reference in [
        Reference::DownstreamKey(ids::random()),
        Reference::DownstreamRef("ch_1".into()),
        Reference::ToolCallId("call_1".into()),
    ] {
        store.find_by_reference(&namespace, &reference).await.unwrap();
    }
    store.versions(&[row.id]).await.unwrap();
    for wanted in [None, Some(true), Some(false)] {
        let filter = Filter {
            namespace: namespace.clone(),
            needs_attention: wanted,
            conflict: wanted,
            ..Filter::default()
        };
        store.list(&filter, None, 10).await.unwrap();
    }
    assert!(!store.events(row.id).await.unwrap().is_empty());
    store.orphans(&row).await.unwrap();
    store.touch(&[Touch { id: row.id, replays: 1 }]).await.unwrap();
    store.active_policy().await.unwrap();
    assert_eq!(store.policies().await.unwrap().active, 2);
    store.unsettled_tools().await.unwrap();
    store.diagnose().await.unwrap();
    let tool = ToolKey { namespace, tool: "charge".into() };
    let downstream_ref = "ch_1".to_owned();
    let object = DownstreamObject { tool: tool.clone(), downstream_ref, row: row.id };
    store.others_with_references(&[object]).await.unwrap();
    store.gather(10, Duration::ZERO).await.unwrap();
    store.due_tools(None).await.unwrap();
    store.due(&tool, 10).await.unwrap();
    store.due_proposals(None, None, 10).await.unwrap();
    let (now, entry) = store.entry(ids::random()).await.unwrap();
    assert_eq!(entry, None);
    let entry = Entry {
        id: ids::random(),
        namespace: tool.namespace.clone(),
        tool: tool.tool.clone(),
        due_at: now,
        probes: 0,
        asked_at: None,
        claimed_until: None,
        version: 0,
    };
    let span = Duration::from_secs(60);
    let claimed = store.claim(std::slice::from_ref(&entry), span).await.unwrap();
    let claimed_until = claimed[0].expect("nobody else claims it");
    store.waiting_for_people(None, None).await.unwrap();
    let release = Release { id: entry.id, version: 1, claimed_until, next: None };
    store.release(&[release]).await.unwrap();
    store.slots_held(row.id).await.unwrap();
    store.look_alikes(row.id, now).await.unwrap();
    store.forget_look_alikes(10).await.unwrap();

    let record = Repeat {
        at: now,
        caller: "worker-1".into(),
        attempt_id: None,
        tool_call_id: String::new(),
        run_id: String::new(),
        step_id: String::new(),
        free_text_changed: false,
        changed: Vec::new(),
        trace_id: None,
        answered: Answered::Completed,
        layer: Layer::Model,
    };
    let repeated = Repeated { id: row.id, layers: LayerCounts::default(), records: vec![record] };
    store.remember(&[repeated]).await.unwrap();
    store.repeats(row.id, 0, 10).await.unwrap();
    let counted = ToolCount {
        namespace: tool.namespace.clone(),
        tool: tool.tool.clone(),
        counted: Counted::Begun,
        count: 1,
    };
    let run = RunCount {
        namespace: tool.namespace.clone(),
        tool: tool.tool.clone(),
        run_id: "r1".into(),
        count: 2,
    };
    store.count(&[counted], &[run]).await.unwrap();
    store.counts(&tool.namespace, None, Timestamp::default()).await.unwrap();
    store.run_counts(&tool.namespace, None, Timestamp::default(), 10).await.unwrap();
    store.roll_counts(KeepFrom { minutes: now, hours: now, runs: now }).await.unwrap();
    store.open_now(None, None, 10).await.unwrap();
    let (now, claimed) = store.claim_filed(1, span).await.unwrap();
    store.kept(&[row.id]).await.unwrap();
    let left = Tombstone::of(found.rows[0].as_ref().unwrap(), now);
    assert_eq!(store.prune(std::slice::from_ref(&left), 2).await.unwrap(), [true]);
    assert_eq!(store.purge(&[(row.id, left.version)], 2).await.unwrap(), [true]);
    store.file(&claimed, &[]).await.unwrap();
    proxy.statements()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_has_what_a_distributed_postgres_refuses() {
    let statements = every_statement().await;
    let all = statements.iter().map(|it| it.trim_start()).collect::<Vec<_>>().join("\n");
    for part in [
        "INSERT INTO intents",
        "UPDATE intents",
        "orphan_facts",
        "policies",
        "run_slots",
        "look_alikes",
        "COMMIT",
    ] {
        assert!(all.contains(part), "{part} is among them:\n{all}");
    }
    assert_eq!(search(statements.into_iter().map(|sql| (sql.clone(), sql))), BTreeMap::new());
}

/// A new operation must be asked for above, so that its statements are searched.
#[test]
fn every_operation_of_the_store_is_searched() {
    let mut operations = BTreeSet::new();
    for (file, name) in [
        ("mod.rs", "pub trait Store"),
        ("agenda.rs", "pub trait Agenda"),
        ("retention.rs", "pub trait Retention"),
        ("guards.rs", "pub trait Guarded"),
        ("history.rs", "pub trait History"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store").join(file);
        let source = fs::read_to_string(path).unwrap();
        let (_, body) = source.split_once(name).unwrap();
        let (body, _) = body.split_once("\n}\n").unwrap();
        let named = body.split("async fn ").skip(1);
        operations.extend(named.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()));
    }
    assert_eq!(operations, BTreeSet::from(OPERATIONS.map(str::to_owned)));
}
