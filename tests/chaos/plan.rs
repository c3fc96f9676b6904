//! How long, how much, and what goes wrong.

use std::{env, fmt::Debug, str::FromStr, time::Duration};

use intent_ledger::ids;

/// The longest an attempt may act: as short as a busy machine of two cores still keeps, because half of
/// what goes wrong is waited out by it.
const LEASE: &str = "2s";

/// How long after the lease's end an absence proves nothing. An effect that is called at the end of the
/// lease shows a second later, by the faults below; the other second is for a machine that stalls.
const VISIBILITY: &str = "2s";

/// What goes wrong with calls, in parts of one: 0.30. None of them is a lie; what a downstream says
/// is true, or is told late, or not at all. Those have tests of their own.
const FAULTS: [&str; 8] = [
    "effect_then_timeout=0.05",
    "effect_then_error=0.05",
    "lost=0.04",
    "refused=0.04",
    "error_without_effect=0.04",
    "late_visibility=0.04:1s",
    "late_effect=0.03:1s",
    "outage=0.01:300ms",
];

/// And with the ledger's questions.
const STATUS_FAULT: &str = "status_error=0.05";

/// A tool, and what its downstream promises.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) deduplicates: bool,
}

/// With the first a second call for the same action is a second effect, so all depends on what the
/// ledger finds out. The second may be called again under the same key.
pub(crate) const TOOLS: [Tool; 2] =
    [Tool { name: "ask", deduplicates: false }, Tool { name: "dedupe", deduplicates: true }];

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How long things are killed.
    pub(crate) chaos: Duration,
    pub(crate) actions: usize,
    pub(crate) seed: u64,
}

/// How long the actions that are open when the chaos ends may take: half a dozen leases with their
/// visibility, on a machine that others use as well.
pub(crate) const TAIL: Duration = Duration::from_secs(120);

impl Plan {
    /// What the environment asks for; else what CI has time for.
    ///
    /// Two busy cores carry about seven actions a second beside the recoveries of Postgres: 200 in thirty
    /// seconds. Each kind of fault then comes up some eight times, and some sixty processes are killed,
    /// Postgres three times. The 1,000 actions of five minutes (`just chaos`) leave the machine room to
    /// die in: some 700 kills, Postgres thirty times, so that each kind of kill meets each kind of fault.
    pub(crate) fn from_environment() -> Self {
        Self {
            chaos: Duration::from_secs(read("INTENT_LEDGER_CHAOS_SECONDS").unwrap_or(30)),
            actions: read("INTENT_LEDGER_CHAOS_ACTIONS").unwrap_or(200),
            seed: read("INTENT_LEDGER_TEST_SEED").unwrap_or_else(|| ids::random().as_u64_pair().0),
        }
    }

    /// The intended actions; each names its tool.
    pub(crate) fn actions(&self) -> Vec<String> {
        (0..self.actions).map(|n| format!("{}-{n:04}", TOOLS[n % TOOLS.len()].name)).collect()
    }

    /// What a downstream is started with.
    pub(crate) fn downstream_flags(&self, tool: &Tool) -> Vec<String> {
        let mut flags = vec!["--seed".to_owned(), self.seed.to_string()];
        for fault in FAULTS.iter().chain([&STATUS_FAULT]) {
            flags.extend(["--fault".to_owned(), (*fault).to_owned()]);
        }
        if tool.deduplicates {
            flags.extend(["--deduplicates".to_owned(), "1h".to_owned()]);
        }
        flags
    }
}

/// A number in a variable.
fn read<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text} is no number: {error:?}")))
}

/// The tool of an action.
pub(crate) fn tool_of(action: &str) -> &str {
    action.split_once('-').map_or(action, |(tool, _)| tool)
}

/// The servers' policy; `ports` are those of the tools' downstreams.
pub(crate) fn policy(ports: [u32; TOOLS.len()]) -> String {
    let mut text = format!(
        "version = 1\n[defaults]\nscope = \"namespace\"\nlease = \"{LEASE}\"\n\
         # Nobody gives up: each action is to happen in the end.\nmax_attempts = 100\n"
    );
    for (tool, port) in TOOLS.iter().zip(ports) {
        let name = tool.name;
        text += &format!("[tools.{name}]\nidentity = [\"/action\"]\n");
        if tool.deduplicates {
            text += &format!("[tools.{name}.downstream]\ndeduplicates = true\nwindow = \"1h\"\n");
        }
        text += &format!(
            r#"[tools.{name}.downstream.status]
http = {{ url = "http://127.0.0.1:{port}/v1/effects/by-key/{{downstream_key}}", timeout = "1s" }}
completed_when = "status == 200 && body.state == 'done'"
running_when = "body.state == 'queued'"
not_executed_when = "status == 404 && body.error == 'not_found'"
key_at = "body.idempotency_key"
ref_at = "body.id"
visibility = "{VISIBILITY}"
confirmations = 2
probe_on_begin = true
"#
        );
    }
    text
}
