//! The real binary: its commands against a real `serve`, its help against golden files.
//!
//! `UPDATE_GOLDEN=1 cargo test --test cli` writes the golden files anew.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_intent-ledger");

/// What a command said, and its exit status.
struct Said {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Said {
    #[track_caller]
    fn exits(self, status: i32) -> Self {
        let Self { stdout, stderr, .. } = &self;
        assert_eq!(self.status, status, "stdout: {stdout}\nstderr: {stderr}");
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).expect("one JSON object")
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self {
            status: output.status.code().expect("not killed"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The binary, with nothing of our environment that could change what it says.
fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_clear().env("USER", "ada").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Said {
    binary(arguments).output().expect("the binary runs").into()
}

fn run_with_stdin(arguments: &[&str], stdin: &[u8]) -> Said {
    let mut command = binary(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(stdin).expect("it reads its input");
    child.wait_with_output().expect("it ends").into()
}

/// `serve` as a process of its own, over a new SQLite file.
struct Server {
    child: Child,
    url: String,
    /// Where it speaks HTTP.
    http: String,
    dir: TempDir,
}

impl Server {
    fn start() -> Self {
        Self::with_policy("")
    }

    fn with_policy(policy: &str) -> Self {
        Self::with(policy, &[])
    }

    fn with(policy: &str, more: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let store = format!("sqlite:{}", dir.path().join("ledger.db").display());
        let arguments =
            ["serve", "--store", &store, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let mut command = binary(&arguments);
        command.args(more);
        if !policy.is_empty() {
            let path = dir.path().join("policy.toml");
            fs::write(&path, policy).expect("a file");
            command.arg("--policy").arg(path);
        }
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        let mut child =
            command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary runs");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut ready)
            .expect("the ready line");
        let addresses = ready.trim_end().strip_prefix("ready grpc=");
        let (grpc, http) = addresses
            .and_then(|addresses| addresses.split_once(" http="))
            .unwrap_or_else(|| panic!("not ready: {ready:?}"));
        Self { url: format!("http://{grpc}"), http: format!("http://{http}"), child, dir }
    }

    /// What it has logged so far.
    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).expect("a file")
    }

    /// Lets it end what it is at; all that it has logged.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(told.success() && self.child.wait().expect("it ends").success());
        self.log()
    }

    fn run(&self, arguments: &[&str]) -> Said {
        run(&[arguments, &["--server", &self.url]].concat())
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).exits(0).json()
    }

    /// Begins `send_email` with a key of the caller's; the key and the attempt.
    #[track_caller]
    fn granted(&self, key: &str) -> (String, String) {
        let begun = self.json(&["begin", "send_email", "--key", key, "--args", r#"{"to":"a"}"#]);
        assert_eq!(begun["decision"], "EXECUTE", "{begun}");
        (text(&begun["intent"]["key"]), text(&begun["attempt_id"]))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

#[test]
fn what_completed_is_replayed_byte_for_byte() {
    let server = Server::start();
    let call = ["begin", "send_email", "--run", "r-1", "--business-id", "order=8812"];
    let begun = server.json(&[&call[..], &["--lease", "60s", "--label", "team=mail"]].concat());
    assert_eq!(begun["decision"], "EXECUTE");
    assert_eq!(begun["reason"], "NEW");
    assert_eq!(begun["lease"], "60s");
    assert_eq!(begun["intent"]["key_basis"], "BUSINESS_IDS");
    assert_eq!(begun["intent"]["labels"]["team"], "mail");
    assert_eq!(begun["intent"]["result"], Value::Null);
    let (key, attempt) = (text(&begun["intent"]["key"]), text(&begun["attempt_id"]));

    let held = server.run(&call).exits(0).stdout;
    assert!(held.contains("decision:         HOLD\n"), "{held}");
    assert!(held.contains("reason:           IN_FLIGHT\n"), "{held}");

    let extended = server.json(&[
        "extend",
        &key,
        "--attempt",
        &attempt,
        "--lease",
        "2m",
        "--downstream-ref",
        "m-17",
    ]);
    assert_eq!(
        (&extended["lease"], &extended["intent"]["downstream_ref"]),
        (&"120s".into(), &"m-17".into())
    );

    let complete =
        ["complete", &key, "--attempt", &attempt, "--result", "@", "--server", &server.url];
    let file = server.dir.path().join("result");
    fs::write(&file, b"\x00\xff").unwrap();
    let named = format!("@{}", file.display());
    let completed = run(&complete.map(|it| if it == "@" { &named } else { it })).exits(0).stdout;
    assert!(completed.starts_with("state:           COMPLETED\n"), "{completed}");
    assert!(completed.contains("(2 bytes that are no text; --json has them)"), "{completed}");

    let replayed = server.json(&call);
    assert_eq!(
        (&replayed["decision"], &replayed["reason"]),
        (&"REPLAY".into(), &"COMPLETED".into())
    );
    assert_eq!(replayed["intent"]["result_base64"], "AP8=");
    assert_eq!(replayed["intent"].get("result"), None);
    assert_eq!(replayed["intent"]["provenance"], "CALLER");
    assert_eq!(replayed["attempt_id"], "");
}

#[test]
fn a_failure_is_final_knowledge_only_when_it_says_so() {
    let server = Server::start();
    let (key, attempt) = server.granted("a");
    let unknown = server.json(&["fail", &key, "--attempt", &attempt, "--code", "timeout"]);
    assert_eq!(unknown["intent"]["state"], "UNKNOWN");
    assert_eq!(unknown["intent"]["failure"]["kind"], "OUTCOME_UNKNOWN");

    let (key, attempt) = server.granted("b");
    let failed =
        ["fail", &key, "--attempt", &attempt, "--not-executed", "--message", "no\x1b[2Jsuch"];
    let failed = server.run(&failed).exits(0).stdout;
    assert!(failed.starts_with("state:           FAILED\n"), "{failed}");
    assert!(failed.contains(r"NOT_EXECUTED no\u{1b}[2Jsuch"), "{failed}");
    let again = server.json(&["begin", "send_email", "--key", "b", "--args", r#"{"to":"a"}"#]);
    assert_eq!((&again["reason"], &again["intent"]["attempt"]), (&"RETRY".into(), &2.into()));
}

#[test]
fn the_server_s_no_names_reason_and_next_action_and_exits_1() {
    let server = Server::start();
    server.granted("a");
    let changed = ["begin", "send_email", "--key", "a", "--args", r#"{"to":"b"}"#];
    let said = server.run(&changed).exits(1);
    assert_eq!(said.stdout, "");
    let first = said.stderr.lines().next().unwrap_or_default();
    assert_eq!(
        first,
        "intent-ledger: PARAMETERS_CHANGED: the key was begun with other arguments \
         (next: DO_NOT_EXECUTE)"
    );
    assert!(said.stderr.contains("\n  pointers: /to\n"), "{}", said.stderr);

    let said = server.run(&[&changed[..], &["--json"]].concat()).exits(1);
    assert_eq!(said.stderr, "");
    let error = &said.json()["error"];
    assert_eq!(error["code"], "FAILED_PRECONDITION");
    assert_eq!(error["reason"], "PARAMETERS_CHANGED");
    assert_eq!(error["metadata"]["nextAction"], "DO_NOT_EXECUTE");

    let invalid = server.run(&["begin", "t", "--key", "k", "--args", "[]", "--json"]).exits(1);
    let error = &invalid.json()["error"];
    assert_eq!(
        (&error["code"], &error["reason"]),
        (&"INVALID_ARGUMENT".into(), &"ARGUMENTS_NOT_OBJECT".into())
    );
    assert_eq!(error["violations"][0]["field"], "arguments_json");
}

#[test]
fn an_intent_is_looked_up_by_whatever_names_it() {
    let server = Server::start();
    let call = ["send_email", "--run", "r-1", "--business-id", "order=1"];
    let begun = server.json(&[&["begin"], &call[..], &["--tool-call-id", "c-1"]].concat());
    let (key, attempt) = (text(&begun["intent"]["key"]), text(&begun["attempt_id"]));
    let downstream_key = text(&begun["downstream_key"]);
    server.json(&["extend", &key, "--attempt", &attempt, "--downstream-ref", "m-1"]);
    let ways: [&[&str]; 5] = [
        &[&key],
        &["--downstream-key", &downstream_key],
        &["--downstream-ref", "m-1"],
        &["--tool-call-id", "c-1"],
        &["--tool", "send_email", "--run", "r-1", "--business-id", "order=1"],
    ];
    for way in ways {
        let found = server.json(&[&["lookup"], way].concat());
        assert_eq!(found["intent"]["key"], key.as_str(), "{way:?}");
        assert_eq!(found["intent"]["attempt_id"], "", "{way:?}");
    }
    let absent = server.run(&["lookup", &"0".repeat(64)]).exits(1).stderr;
    assert!(absent.starts_with("intent-ledger: INTENT_NOT_FOUND: "), "{absent}");

    // A wait ends with what it waited for, or as it was.
    let waited = server.json(&["lookup", &key, "--wait", "100ms", "--timeout", "10s"]);
    assert_eq!(waited["intent"]["state"], "STARTED");
}

#[test]
fn a_list_is_a_table_for_people_and_pages_for_programs() {
    let server = Server::start();
    assert_eq!(server.run(&["list"]).exits(0).stderr, "no intents\n");
    let keys: Vec<String> = ["a", "b", "c"].iter().map(|key| server.granted(key).0).collect();
    let table = server.run(&["list"]).exits(0).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("CREATED") && lines[0].ends_with("KEY"), "{table}");
    assert!(
        lines[1].contains("  STARTED  send_email  -") && lines[1].ends_with(&keys[2]),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "colours are for terminals: {table}");

    let page = server.json(&["list", "--page-size", "2"]);
    assert_eq!(page["intents"].as_array().map(Vec::len), Some(2));
    let next = text(&page["next_page_token"]);
    let rest = server.json(&["list", "--page-size", "2", "--page-token", &next]);
    assert_eq!(rest["intents"][0]["key"], keys[0].as_str());
    let all = server.run(&["list", "--page-size", "2", "--all", "--json"]).exits(0).stdout;
    assert_eq!(all.lines().count(), 2, "{all}");
    let all = server.run(&["list", "--page-size", "2", "--all"]).exits(0);
    assert_eq!((all.stdout.lines().count(), all.stderr.as_str()), (4, ""));
    let first = server.run(&["list", "--page-size", "2"]).exits(0).stderr;
    assert!(first.starts_with("there are more: add --all, or --page-token "), "{first}");

    let none = server.json(&["list", "--state", "completed", "--state", "FAILED", "--attention"]);
    assert_eq!(none["intents"], Value::Array(Vec::new()));
}

#[test]
fn a_person_resolves_what_was_shown() {
    let server = Server::start();
    let (key, attempt) = server.granted("a");
    let early = ["resolve", &key, "--not-executed", "--reason", "not there", "--json"];
    let early = server.run(&early).exits(1).json();
    assert_eq!(early["error"]["reason"], "LEASE_RUNNING");
    server.json(&["fail", &key, "--attempt", &attempt]);
    let etag = text(&server.json(&["lookup", &key])["intent"]["etag"]);
    let because = ["--reason", "it is in the sent log"];

    let stale = ["resolve", &key, "--acknowledge", "--etag", "stale"];
    let stale = server.run(&[&stale[..], &because].concat()).exits(1).stderr;
    assert!(stale.starts_with("intent-ledger: ETAG_MISMATCH: "), "{stale}");

    let resolve = ["resolve", &key, "--executed", "--result", "m-17"];
    let said = server.run(&[&resolve[..], &because].concat()).exits(0);
    assert!(said.stderr.starts_with("resolving:\nstate:           UNKNOWN"), "{}", said.stderr);
    assert!(said.stdout.starts_with("state:           COMPLETED\n"), "{}", said.stdout);
    assert!(said.stdout.contains(" OPERATOR ada it is in the sent log\n"), "{}", said.stdout);
    let replayed = server.json(&["begin", "send_email", "--key", "a", "--args", r#"{"to":"a"}"#]);
    assert_eq!(replayed["intent"]["result"], "m-17");

    let opposite = ["resolve", &key, "--not-executed", "--etag", &etag, "--actor", "bob", "--json"];
    let opposite = server.run(&[&opposite[..], &because].concat()).exits(1);
    assert_eq!(opposite.json()["error"]["code"], "FAILED_PRECONDITION");
    let history = server.json(&["lookup", &key, "--full"]);
    assert!(history["intent"]["events"].as_array().is_some_and(|events| !events.is_empty()));
    let history = server.run(&["lookup", &key, "--full"]).exits(0).stdout;
    let event = " RESOLVED (a person settled it) UNKNOWN → COMPLETED ada it is in the sent log\n";
    assert!(history.contains(event), "{history}");
    let told = server.run(&["explain", &key]).exits(0).stdout;
    let event = "RESOLVED by OPERATOR ada, UNKNOWN → COMPLETED: a person settled it\n";
    assert!(told.contains(event), "{told}");
}

/// README, "When nobody knows", and what the cron job says to it.
#[test]
fn the_cron_job_ends_1_while_something_needs_a_person() {
    let server = Server::start();
    let pass = server.run(&["reconcile"]).exits(0).stdout;
    assert!(pass.starts_with("0 looked at: "), "{pass}");

    let ticket = ["begin", "open_ticket", "--key", "ticket-8812", "--namespace", "acme"];
    let begun = server.json(&ticket);
    let (key, attempt) = (text(&begun["intent"]["key"]), text(&begun["attempt_id"]));
    let fail = ["fail", &key, "--attempt", &attempt, "--code", "http_504", "--namespace", "acme"];
    let failed = server.run(&fail).exits(0).stdout;
    assert!(failed.starts_with("state:           UNKNOWN (needs attention)\n"), "{failed}");
    let held = server.json(&ticket);
    assert_eq!((&held["decision"], &held["reason"]), (&"HOLD".into(), &"NEEDS_ATTENTION".into()));

    let pass = server.run(&["reconcile"]).exits(1).stdout;
    let where_to_look = "1 need a person: intent-ledger list --attention --namespace acme\n";
    assert!(pass.ends_with(where_to_look), "{pass}");
    let totals = server.run(&["reconcile", "--json"]).exits(1).json();
    assert_eq!(totals["attention_waiting_counts"]["acme"], 1, "{totals}");
    let elsewhere = server.run(&["reconcile", "--namespace", "default"]).exits(0).stdout;
    assert!(!elsewhere.contains("need a person"), "{elsewhere}");
    let listed = server.run(&["list", "--attention", "--namespace", "acme"]).exits(0).stdout;
    assert!(listed.contains("open_ticket"), "{listed}");

    let resolve = ["resolve", &key, "--executed", "--actor", "ada", "--reason", "found in its log"];
    server.run(&[&resolve[..], &["--namespace", "acme"]].concat()).exits(0);
    server.run(&["reconcile"]).exits(0);
    let mistaken = server.run(&["reconcile", "--key", "k", "--limit", "3"]).exits(64).stderr;
    assert!(mistaken.contains("--limit"), "{mistaken}");
}

#[test]
fn a_person_decides_on_what_was_looked_at() {
    let server = Server::with_policy(
        "[tools.refund]\nidentity = [\"/order\"]\nscope = \"namespace\"\n\
         approval.when = \"args.amount > 100\"\n",
    );
    let ask = |order: &str| {
        let arguments = format!(r#"{{"order":"{order}","amount":400}}"#);
        let begun = server.json(&["begin", "refund", "--args", &arguments, "--caller", "agent-7"]);
        (begun["decision"].clone(), text(&begun["intent"]["key"]))
    };
    let (decision, key) = ask("a");
    assert_eq!(decision, "AWAIT_APPROVAL");
    let waiting = server.json(&["list", "--state", "awaiting_approval"]);
    assert_eq!(waiting["intents"][0]["key"], key.as_str());
    let seen = server.json(&["lookup", &key, "--full"]);
    assert_eq!(seen["intent"]["arguments_json"], r#"{"order":"a","amount":400}"#);
    let etag = text(&seen["intent"]["etag"]);
    let because = ["--reason", "the parcel came back"];

    // Nobody can be asked here, so it must be said which version is meant.
    for more in [&["approve", &key][..], &["deny", &key], &["approve", &key, "--json"]] {
        let said = server.run(&[more, &because].concat()).exits(64).stderr;
        assert!(said.contains("--etag or --latest"), "{said}");
    }
    let own = ["approve", &key, "--latest", "--actor", "agent-7", "--json"];
    let own = server.run(&[&own[..], &because].concat()).exits(1).json();
    assert_eq!(own["error"]["reason"], "PERMISSION_DENIED");
    let stale = ["approve", &key, "--etag", "stale"];
    let stale = server.run(&[&stale[..], &because].concat()).exits(1).stderr;
    assert!(stale.starts_with("intent-ledger: ETAG_MISMATCH: "), "{stale}");
    let approve = ["approve", &key, "--etag", &etag];
    let said = server.run(&[&approve[..], &because].concat()).exits(0);
    assert!(said.stdout.starts_with("state:     APPROVED\n"), "{}", said.stdout);
    assert!(said.stdout.contains("\nruns out:  20"), "{}", said.stdout);
    let late = ["deny", &key, "--latest"];
    let late = server.run(&[&late[..], &because].concat()).exits(1).stderr;
    assert!(late.contains("ALREADY_DECIDED"), "{late}");
    assert_eq!(ask("a").0, "EXECUTE");

    // What is decided on is shown to a person first, with its arguments.
    let (_, key) = ask("b");
    let said = server.run(&[&["deny", &key, "--latest"][..], &because].concat()).exits(0);
    assert!(said.stderr.starts_with("to deny:\nstate:      AWAITING_APPROVAL"), "{}", said.stderr);
    let arguments = r#"arguments:  {"order":"b","amount":400}"#;
    assert!(said.stderr.contains(arguments), "{}", said.stderr);
    assert!(said.stdout.contains(" OPERATOR ada the parcel came back\n"), "{}", said.stdout);
    assert_eq!(ask("b").0, "REFUSE");
}

#[test]
fn the_log_is_told_in_our_own_words() {
    let server = Server::with("", &["--reconcile-interval", "20ms"]);
    assert!(
        server.log().contains("the store's schema was migrated from=0 to="),
        "{}",
        server.log()
    );
    let begun = server.json(&["begin", "send_email", "--key", "a", "--lease", "20ms"]);
    let looked_at = server.json(&["lookup", &text(&begun["intent"]["key"]), "--wait", "8s"]);
    assert_eq!(looked_at["intent"]["state"], "UNKNOWN");
    let log = server.stop();
    assert!(!log.contains("refinery"), "{log}");
    let pass = log.lines().find(|line| line.contains("open intents looked at")).expect(&log);
    assert!(pass.contains(" totals=1 looked at, 1 unknown"), "{pass}");
    assert!(!pass.contains('{'), "{pass}");
}

#[test]
fn a_policy_s_mistakes_are_named_with_file_line_and_column() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("policy.toml");
    fs::write(&path, "version = 1\n[tools.a]\nleese = \"60s\"\nscope = \"never\"\n").unwrap();
    let file = path.to_str().unwrap();
    let said = run(&["policy", "check", file]).exits(1);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", said.stdout);
    assert!(lines[0].starts_with(&format!("{file}:3:1: tools.a.leese: ")), "{}", lines[0]);
    assert!(lines[1].starts_with(&format!("{file}:4:")), "{}", lines[1]);
    let status = b"[tools.a.downstream.status]\nhttp.url = \"http://169.254.169.254/{key}\"\n\
                   completed_when = \"status == 200 && bdy.ok\"\n";
    let told = run_with_stdin(&["policy", "check", "-"], status).exits(1).stdout;
    let address =
        ":2:12: tools.a.downstream.status.http.url: must not be asked at 169.254.169.254: ";
    assert!(told.contains(address), "{told}");
    let name = ":3:18: tools.a.downstream.status.completed_when: column 18 of the expression: ";
    assert!(told.contains(name), "{told}");
    let said = run(&["policy", "check", file, "--json"]).exits(1).json();
    assert_eq!((&said["ok"], &said["mistakes"][0]["line"]), (&false.into(), &3.into()));
    let said = run(&["policy", "explain", file, "a", "-"]).exits(1);
    assert!(said.stderr.starts_with(&format!("{file}:3:1: ")), "{}", said.stderr);

    let example = run(&["policy", "check", &example()]).exits(0);
    assert_eq!(example.stdout, "ok: version 1, 4 tools\n");

    // No mistakes, and not what somebody would think.
    let surprising = b"[tools.a]\ntombstone = \"1m\"\n";
    let said = run_with_stdin(&["policy", "check", "-"], surprising).exits(0);
    assert_eq!(
        said.stdout,
        "-:1:1: warning: version: is not given and counts as 1; write it, and raise it with every \
         change\n\
         -:2:13: warning: tools.a.tombstone: 1m is less than 1h, which a key is remembered at least \
         after its result is pruned; it counts as 1h\n\
         ok: version 1, 1 tool\n"
    );
    let said = run_with_stdin(&["policy", "check", "-", "--json"], surprising).exits(0).json();
    assert_eq!((&said["ok"], &said["warnings"][1]["line"]), (&true.into(), &2.into()));
    assert_eq!(said["mistakes"], Value::Array(Vec::new()));
}

/// Nothing has been changed by then, not even the schema of the store.
#[test]
fn a_bad_policy_is_refused_before_the_store_is_opened() {
    let dir = TempDir::new().unwrap();
    let (policy, ledger) = (dir.path().join("policy.toml"), dir.path().join("ledger.db"));
    fs::write(&policy, "[tools.a]\nleese = \"60s\"\n").unwrap();
    let store = format!("sqlite:{}", ledger.display());
    let policy = policy.to_str().unwrap();
    let arguments = ["serve", "--store", &store, "--policy", policy, "--listen", "127.0.0.1:0"];
    let said = run(&arguments).exits(1);
    assert!(
        said.stderr.contains(&format!("failed to load the policy {policy}")),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("tools.a.leese"), "{}", said.stderr);
    assert!(!ledger.exists());
    // Right in itself, and not for an embedded store.
    fs::write(policy, "[tools.a.downstream]\nsame_transaction = true\n").unwrap();
    let said = run(&arguments).exits(1);
    let needs =
        "tools.a: downstream.same_transaction = true needs a ledger in the application's own";
    assert!(said.stderr.contains(needs), "{}", said.stderr);
    assert!(!ledger.exists());
}

fn example() -> String {
    root().join("examples/policy.toml").to_str().expect("UTF-8").to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn a_sample_call_is_explained_as_the_server_would_answer_it() {
    let explain = |arguments: &str, more: &[&str]| {
        let example = example();
        let command = ["policy", "explain", &example, "send_email", "-"];
        run_with_stdin(&[&command, more].concat(), arguments.as_bytes())
    };
    let call = r#"{"order_id":8812,"template":"paid","to":" Ada@example.com"}"#;
    let said = explain(call, &["--run", "r-1"]).exits(0).stdout;
    assert!(said.starts_with("decision:          EXECUTE NEW\n"), "{said}");
    assert!(said.contains("\nclass:             effectful\n"), "{said}");
    let first = explain(call, &["--run", "r-1", "--json"]).exits(0).json();
    let other = r#"{"to":"ada@example.com","template":"paid","order_id":"8812","body":"x"}"#;
    let again = explain(other, &["--run", "r-1", "--json", "--idempotency-key", "mine"]).exits(0);
    assert_eq!(first["key"], again.json()["key"]);
    assert_eq!(again.json()["warnings"][0], "identity_overridden");
    assert_eq!(first["lease"], "60s");
    for line in ["lease:             1m", "result kept for:   30d", "gives up after:    1d"] {
        assert!(said.contains(&format!("\n{line}\n")), "{line:?} is not in {said}");
    }
    let url =
        format!("https://mail.internal/v1/by-key/{}", first["downstream_key"].as_str().unwrap());
    assert!(said.contains(&format!("\nasked at:          GET {url}\n")), "{said}");
    assert!(said.contains("\nasked with:        MAIL_STATUS_TOKEN\n"), "{said}");
    assert!(said.contains("\nabsence takes:     2 in a row, 2m after the lease\n"), "{said}");
    assert_eq!(
        (&first["status"]["url"], &first["status"]["confirmations"]),
        (&url.into(), &2.into())
    );

    // The gates that it meets.
    assert!(said.contains("\nin one run:        at most 5\n"), "{said}");
    assert!(said.contains("\nlook-alikes:       warn: the same /to within 10m\n"), "{said}");
    let refund = |arguments: &str, words: &str| {
        let example = example();
        let command = ["policy", "explain", &example, "refund", "-"];
        let said = run_with_stdin(&command, arguments.as_bytes()).exits(0).stdout;
        let line =
            said.lines().find(|line| line.starts_with("needs a person: ")).expect("it is told");
        assert!(line.ends_with(words), "{said}");
        said
    };
    refund(r#"{"order_id":8812,"amount":100}"#, " no, since not args.amount > 100");
    refund(r#"{"order_id":8812}"#, "args.amount > 100 says nothing of it: No such key: amount");
    let said = refund(r#"{"order_id":8812,"amount":101}"#, " yes, since args.amount > 100");
    assert!(said.contains(" AWAIT_APPROVAL APPROVAL_REQUIRED\n"), "{said}");
    assert!(said.contains(" within 3d, good for 1h\n"), "{said}");

    let said = explain("{}", &["--run", "r-1", "--json"]).exits(1).json();
    assert_eq!(said["error"]["reason"], "IDENTITY_POINTER_EMPTY");
    let said = explain("[", &["--run", "r-1"]).exits(1).stderr;
    assert!(said.starts_with("intent-ledger: ARGUMENTS_MALFORMED: "), "{said}");
}

#[test]
fn a_store_is_migrated_and_examined() {
    let dir = TempDir::new().unwrap();
    let store = format!("sqlite:{}", dir.path().join("ledger.db").display());
    let absent = run(&["doctor", "--store", &store]).exits(1).stdout;
    assert!(absent.contains("PROBLEM: failed to reach the store: "), "{absent}");
    assert!(!dir.path().join("ledger.db").exists(), "doctor made a file");

    let migrated = run(&["migrate", "--store", &store]).exits(0).stdout;
    assert!(migrated.starts_with("schema: version 0 → "), "{migrated}");
    let again = run(&["migrate", "--store", &store]).exits(0).stdout;
    assert!(again.ends_with(", nothing to do\n"), "{again}");

    let well = run(&["doctor", "--store", &store]).exits(0).stdout;
    assert!(well.contains("schema:            up to date\n"), "{well}");
    assert!(well.ends_with("problems:          ok: none\n"), "{well}");
    let report = run(&["doctor", "--store", &store, "--json"]).exits(0).json();
    assert_eq!((&report["ok"], &report["oldest_unsettled"]), (&true.into(), &Value::Null));

    let foreign = dir.path().join("foreign.db");
    fs::write(&foreign, "").unwrap();
    let foreign = format!("sqlite:{}", foreign.display());
    let said = run(&["doctor", "--store", &foreign, "--json"]).exits(1).json();
    assert!(text(&said["problems"][0]).contains("intent-ledger migrate"), "{said}");
    assert_eq!(fs::read(dir.path().join("foreign.db")).unwrap(), b"", "doctor changed a file");
}

#[test]
fn the_default_file_and_completions_are_printed() {
    let config = run(&["config"]).exits(0).stdout;
    let table: toml::Table = toml::from_str(&config).expect("TOML");
    assert_eq!(table["listen"].as_str(), Some("127.0.0.1:7070"));
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).exits(0).stdout;
        assert!(script.contains("begin"), "{shell}");
    }
}

#[test]
fn bad_usage_exits_64() {
    let key = "0".repeat(64);
    let bad: [&[&str]; 19] = [
        &[],
        &["no-such-command"],
        &["begin"],
        &["begin", "t", "--business-id", "order"],
        &["begin", "t", "--business-id", "a=1", "--business-id", "a=2"],
        &["begin", "t", "--business-id", "a=1", "--key", "k"],
        &["begin", "t", "--args", "@/no/such/file"],
        &["begin", "t", "--lease", "soon"],
        &["begin", "t", "--server", "https://127.0.0.1:1"],
        &["complete", &key],
        &["lookup"],
        &["lookup", &key, "--tool", "t"],
        &["lookup", &key, "--run", "r"],
        &["list", "--state", "GONE"],
        &["resolve", &key, "--executed", "--not-executed", "--reason", "x"],
        &["migrate", "--store", "mysql://x"],
        // An unset variable is no wish for all of them.
        &["reconcile", "--key", ""],
        &["reconcile", "--tool", ""],
        &["reconcile", "--timeout", "0s"],
    ];
    for arguments in bad {
        let said = run(arguments);
        assert_eq!(said.status, 64, "{arguments:?}: {}", said.stderr);
        assert!(!said.stderr.is_empty(), "{arguments:?}");
    }
    let said = run_with_stdin(&["begin", "t", "--args", "-"], b"\xff").exits(64);
    assert_eq!(said.stderr, "intent-ledger: --args: is not UTF-8\n");
    run(&["policy", "check", "/no/such/file"]).exits(64);
}

#[test]
fn an_error_names_what_was_done_and_says_its_cause_once() {
    let dir = TempDir::new().unwrap();
    let foreign = dir.path().join("foreign.db");
    fs::write(&foreign, "not a database, by any means").unwrap();
    let foreign = format!("sqlite:{}", foreign.display());
    let is_none = "failed to reach the store: file is not a database: Error code 26\n";
    let address = "failed to understand the store address \"mysql://x\": expected sqlite:PATH or \
                   postgres://…\n";
    let filter = "failed to configure the server: log: error parsing level filter: expected one of \
                  \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5\n";
    for (arguments, status, text) in [
        (&["serve", "--store", &foreign] as &[&str], 1, is_none),
        (&["migrate", "--store", &foreign], 1, is_none),
        (&["serve", "--store", "mysql://x"], 64, address),
        (&["migrate", "--store", "mysql://x"], 64, address),
        (&["serve", "--log", "a=b=c"], 64, filter),
    ] {
        assert_eq!(run(arguments).exits(status).stderr, format!("intent-ledger: {text}"));
    }
    // Every layer of a Postgres client says it again.
    let said = run(&["serve", "--store", "postgres://ledger@127.0.0.1:1/x"]).exits(1).stderr;
    assert!(said.starts_with("intent-ledger: failed to reach the store: "), "{said}");
    for part in ["error connecting to server", "refused"] {
        assert_eq!(said.matches(part).count(), 1, "{said}");
    }
}

#[test]
fn a_duplicate_is_explained_and_counted() {
    let server = Server::start();
    let call = |caller: &str, id: &str| {
        let call = ["begin", "send_email", "--run", "r-1", "--business-id", "order=8812"];
        server.json(&[&call[..], &["--caller", caller, "--tool-call-id", id]].concat())
    };
    let begun = call("worker-1", "call_1");
    let (key, attempt) = (text(&begun["intent"]["key"]), text(&begun["attempt_id"]));
    assert_eq!(call("worker-1", "call_1")["decision"], "HOLD");
    server.json(&["complete", &key, "--attempt", &attempt, "--result", "sent"]);
    call("worker-1", "call_3");
    call("worker-2", "call_5");

    let told = server.run(&["explain", &key]).exits(0).stdout;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "send_email, run r-1: COMPLETED");
    assert_eq!(lines[1], key);
    for part in [
        "worker-1 begins it, and may execute: EXECUTE NEW\n",
        "as the same tool call was run again (ORCHESTRATOR), and must wait: HOLD IN_FLIGHT\n",
        "settled by CALLER worker-1: COMPLETED\n",
        "as the model asked again (MODEL), and is given the first result: REPLAY COMPLETED\n",
        "differs: tool call call_3, not call_1\n",
        "as another process took the run up (RESUMED_RUN)",
        "differs: caller worker-2, not worker-1, tool call call_5, not call_1\n",
        "\nIt happened once; whoever asks again is given the first result.\n",
        "\nBegun 4 times; repeats by layer: ORCHESTRATOR 1, MODEL 1, RESUMED_RUN 1.\n",
    ] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    let order = ["EXECUTE NEW", "HOLD IN_FLIGHT", "settled by", "MODEL", "RESUMED_RUN"];
    let places: Vec<_> = order.iter().map(|part| told.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{told}");

    let told = server.json(&["explain", &key]);
    assert_eq!(told["total_count"], 4);
    assert_eq!(told["attempts"][0]["layer"], Value::Null);
    assert_eq!(told["attempts"][0]["attempt_id"], attempt);
    assert_eq!(told["attempts"][2]["layer"], "MODEL");
    assert_eq!(told["intent"]["state"], "COMPLETED");
    assert!(text(&told["stands"]).starts_with("It happened once"));
    let unknown = server.run(&["explain", &"ab".repeat(32)]).exits(1).stderr;
    assert!(unknown.starts_with("intent-ledger: INTENT_NOT_FOUND"), "{unknown}");

    let counted = server.json(&["stats", "--window", "1h", "--tool", "send_email"]);
    let mail = &counted["tools"][0];
    assert_eq!((&mail["begin_count"], &mail["intent_count"]), (&4.into(), &1.into()));
    assert_eq!(mail["retry_amplification"], 4.0);
    assert_eq!(counted["unsettled_count"], 0);
    let told = server.run(&["stats"]).exits(0).stdout;
    assert!(told.contains("send_email  4       1        1         4.00"), "{told}");
    let none = server.run(&["stats", "--tool", "none"]).exits(0).stdout;
    assert!(none.contains("nothing was begun\n"), "{none}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_a_way_out() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let said = run(&["list", "--server", &url]).exits(1);
    assert!(
        said.stderr.starts_with(&format!(
            "intent-ledger: UNAVAILABLE: failed to reach the server at {url}: Connection refused"
        )),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("`intent-ledger serve`"), "{}", said.stderr);
    let said = run(&["begin", "t", "--key", "k", "--server", &url, "--json"]).exits(1);
    assert_eq!(said.json()["error"]["code"], "UNAVAILABLE");
}

#[test]
fn an_address_where_no_ledger_answers_is_named_with_what_to_check() {
    let port = "the one that `serve` prints as grpc= (7070 unless it is told otherwise), not that of \
                HTTP\n";
    let server = Server::start();
    let said = run(&["list", "--server", &server.http]).exits(1).stderr;
    let text = format!("UNIMPLEMENTED: no gRPC server answers at {} (HTTP status", server.http);
    assert!(said.starts_with(&format!("intent-ledger: {text}")) && said.ends_with(port), "{said}");

    // Something that hangs up, or speaks no HTTP/2.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(b"HTTP/1.0 400 Bad request\r\n\r\n").ok();
        }
    });
    let said = run(&["list", "--server", &url]).exits(1).stderr;
    let text = format!("intent-ledger: UNAVAILABLE: failed to talk to {url}: ");
    assert!(said.starts_with(&text) && said.ends_with(port), "{said}");

    // Another gRPC server.
    let mut downstream = binary(&["downstream", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    let mut child = downstream.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let url = format!("http://{}", ready.trim_end().rsplit_once("grpc=").unwrap().1);
    let said = run(&["list", "--server", &url]);
    child.kill().unwrap();
    child.wait().unwrap();
    let text = format!("UNIMPLEMENTED: the gRPC server at {url} has no such call; is it an ");
    assert!(said.stderr.starts_with(&format!("intent-ledger: {text}")), "{}", said.stderr);

    // Nobody says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let said = run(&["list", "--server", &url, "--timeout", "200ms"]).exits(1).stderr;
    let text = format!("no answer from {url} in time (--timeout is 200ms)\n");
    assert_eq!(said, format!("intent-ledger: DEADLINE_EXCEEDED: {text}"));
}

#[test]
fn an_error_that_names_a_field_names_its_flag() {
    let server = Server::start();
    let key = "0".repeat(64);
    for (arguments, flags) in [
        (&["complete", &key, "--attempt", "x"] as &[&str], "attempt_id is --attempt"),
        (&["begin", "t", "--key", "k", "--attempt-id", "x"], "attempt_id is --attempt-id"),
        (&["begin", "t", "--key", "k", "--args", "[]"], "arguments_json is --args"),
        (&["begin", "t", "--key", "k", "--free-text", "x"], "free_text is --free-text"),
        (&["begin", "t", "--key", "k", "--lease", "0s"], "lease is --lease"),
        (
            &["begin", "t"],
            "business_ids is --business-id, idempotency_key is --key, run_id is --run, step_id is \
             --step",
        ),
        (&["list", "--page-token", "x"], "page_token is --page-token"),
    ] {
        let said = server.run(arguments).exits(1).stderr;
        assert!(said.contains(&format!("\n  here: {flags}\n")), "{arguments:?}: {said}");
    }
    let said = server.run(&["lookup", "x"]).exits(1).stderr;
    assert!(!said.contains("here:"), "the key has no flag: {said}");
}

#[test]
fn a_lost_answer_of_begin_names_the_attempt_that_finds_the_truth() {
    // Connections are taken by the kernel and never answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let attempt = "6e9f45b8-436d-450c-aa38-4ec20b4a13c2";
    let begin = ["begin", "t", "--key", "k", "--attempt-id", attempt, "--timeout", "200ms"];
    let said = run(&[&begin[..], &["--json", "--server", &url]].concat()).exits(1).json();
    assert_eq!(said["error"]["code"], "DEADLINE_EXCEEDED");
    assert_eq!(said["error"]["metadata"]["repeatWithAttemptId"], attempt);
}

#[test]
fn help_reads_as_its_golden_file_says() {
    for (name, arguments) in [
        ("help", &["--help"] as &[&str]),
        ("begin-help", &["begin", "--help"]),
        ("demo-help", &["demo", "--help"]),
        ("downstream-help", &["downstream", "--help"]),
        ("explain-help", &["explain", "--help"]),
        ("stats-help", &["stats", "--help"]),
    ] {
        let help = run(arguments).exits(0).stdout;
        let path = root().join(format!("tests/golden/cli/{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &help).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(help, golden, "{} differs; UPDATE_GOLDEN=1 writes it anew", path.display());
    }
}
