//! `reconcile`: asks the downstreams about intents that nobody settled; the cron job.

use std::{collections::BTreeMap, io::IsTerminal, time::Duration};

use clap::{Args, builder::NonEmptyStringValueParser};
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    answer::Answer,
    client::{CallError, ClientFlags},
    json,
    output::{Paint, plain},
};
use crate::{ledger::DEFAULT_NAMESPACE, proto::v1};

const EXAMPLE: &str = "\
The server that is called does the asking, by its policy. It does the same by itself every few seconds
unless it was started with --reconcile-interval 0s; any number may do it at once. Without --namespace
all tenants' intents are looked at.

Prints a line for each intent that was looked at, and the totals last. With --json each is one object.

Exit status: 0 nothing needs a person, 1 something does, or a look failed, or the server said no; so cron can
alert. --tool and --namespace narrow that too. --timeout bounds the connection and the silence of a server that
hangs; a pass takes as long as its endpoints do, an hour at most.

Examples:
  $ intent-ledger reconcile --server http://127.0.0.1:7070
  $ intent-ledger reconcile --tool send_email --dry-run
  $ intent-ledger reconcile --key \"$KEY\"";

/// The longest a pass may take: what a cron job that hangs is ended by.
const PASS_MAX: Duration = Duration::from_secs(60 * 60);

/// Flags of `reconcile`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ReconcileFlags {
    /// Only this tool
    #[arg(long, value_name = "TOOL", value_parser = NonEmptyStringValueParser::new())]
    tool: Option<String>,

    /// Only this intent, at once, even if its next question is not due
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = ["tool", "limit"])]
    key: Option<String>,

    /// At most so many intents
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    limit: i32,

    /// Ask and tell, but change nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    client: ClientFlags,
}

/// One answer of the stream.
struct Told {
    answer: v1::ReconcileResponse,
    dry_run: bool,
}

pub(super) fn run(flags: &ReconcileFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let request = v1::ReconcileRequest {
        namespace: client.namespace.clone(),
        tool: flags.tool.clone().unwrap_or_default(),
        key: flags.key.clone().unwrap_or_default(),
        limit: flags.limit,
        dry_run: flags.dry_run,
    };
    client.run_for_status(async |server| {
        let request = client.waiting_request(request, PASS_MAX);
        let stream = server.ledger.reconcile(request).await.map_err(CallError::from)?;
        let mut stream = stream.into_inner();
        let progress = Progress::start();
        let mut looked_at = 0_u64;
        while let Some(told) = stream.message().await.map_err(CallError::from)? {
            progress.clear();
            let totals = told.totals.clone();
            client.print(&Told { answer: told, dry_run: flags.dry_run })?;
            if let Some(totals) = totals.as_ref() {
                let unfinished = totals.failed_look_count > 0;
                return Ok(u8::from(totals.attention_waiting_count > 0 || unfinished));
            }
            looked_at += 1;
            progress.show(looked_at);
        }
        let message = "the server ended the pass without its totals".to_owned();
        Err(CallError::new("UNKNOWN", message).into())
    })
}

/// How far the pass is, on standard error; nothing where that is no terminal.
struct Progress(bool);

impl Progress {
    fn start() -> Self {
        let progress = Self(std::io::stderr().is_terminal());
        progress.show(0);
        progress
    }

    fn show(&self, looked_at: u64) {
        if self.0 {
            eprint!("\r\x1b[K{looked_at} looked at …");
        }
    }

    fn clear(&self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Answer for Told {
    fn text(&self, paint: Paint) -> String {
        let it = &self.answer;
        if let Some(totals) = &it.totals {
            let said = if self.dry_run { "dry run: nothing was changed\n" } else { "" };
            return totals_line(totals) + said;
        }
        let verdict = json::verdict(it.verdict).unwrap_or_default();
        let before = json::state(it.state_before).unwrap_or_default();
        let after = json::state(it.state_after).unwrap_or_default();
        let moved = if before == after { after } else { format!("{before} → {after}") };
        let attention = if it.needs_attention { "  (needs attention)" } else { "" };
        let note =
            if it.note.is_empty() { String::new() } else { format!("  {}", plain(&it.note)) };
        let (key, tool) = (plain(&it.key), plain(&it.tool));
        let tenant = match it.namespace.as_str() {
            DEFAULT_NAMESPACE => String::new(),
            namespace => format!("{}/", plain(namespace)),
        };
        format!("{key}  {tenant}{tool}  {}  {moved}{attention}{note}\n", paint.word(&verdict))
    }
}

fn totals_line(totals: &v1::ReconcileTotals) -> String {
    let mut line = format!(
        "{} looked at: {} completed, {} failed, {} unknown, {} unchanged, {} unreachable\n",
        totals.looked_at_count,
        totals.completed_count,
        totals.failed_count,
        totals.unknown_count,
        totals.unchanged_count,
        totals.unreachable_count,
    );
    if totals.expired_count > 0 {
        line += &format!("{} ran out undecided\n", totals.expired_count);
    }
    if totals.limit_reached {
        line += "the limit was reached; there may be more: run it again, or raise --limit\n";
    }
    if totals.unsettled_count > 0 {
        line += &format!(
            "{} open still: under way, not due yet, or where nobody answers\n",
            totals.unsettled_count
        );
    }
    if totals.attention_waiting_count > 0 {
        let mut namespaces: Vec<_> = totals.attention_waiting_counts.iter().collect();
        namespaces.sort();
        for (namespace, count) in namespaces {
            line += &format!(
                "{count} need a person: intent-ledger list --attention --namespace {}\n",
                plain(namespace)
            );
        }
    }
    if totals.failed_look_count > 0 {
        let count = totals.failed_look_count;
        line += &format!("{count} could not be looked at; the server's log says why\n");
    }
    line
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let it = &self.answer;
        let mut map = serializer.serialize_map(None)?;
        if let Some(totals) = &it.totals {
            map.serialize_entry("looked_at_count", &totals.looked_at_count)?;
            map.serialize_entry("completed_count", &totals.completed_count)?;
            map.serialize_entry("failed_count", &totals.failed_count)?;
            map.serialize_entry("unknown_count", &totals.unknown_count)?;
            map.serialize_entry("unchanged_count", &totals.unchanged_count)?;
            map.serialize_entry("needs_attention_count", &totals.needs_attention_count)?;
            map.serialize_entry("unreachable_count", &totals.unreachable_count)?;
            map.serialize_entry("limit_reached", &totals.limit_reached)?;
            map.serialize_entry("attention_waiting_count", &totals.attention_waiting_count)?;
            let by_namespace: BTreeMap<_, _> = totals.attention_waiting_counts.iter().collect();
            map.serialize_entry("attention_waiting_counts", &by_namespace)?;
            map.serialize_entry("failed_look_count", &totals.failed_look_count)?;
            map.serialize_entry("expired_count", &totals.expired_count)?;
            map.serialize_entry("unsettled_count", &totals.unsettled_count)?;
            return map.end();
        }
        map.serialize_entry("namespace", &it.namespace)?;
        map.serialize_entry("key", &it.key)?;
        map.serialize_entry("tool", &it.tool)?;
        map.serialize_entry("verdict", &json::verdict(it.verdict))?;
        map.serialize_entry("state_before", &json::state(it.state_before))?;
        map.serialize_entry("state_after", &json::state(it.state_after))?;
        map.serialize_entry("probe_count", &it.probe_count)?;
        map.serialize_entry("needs_attention", &it.needs_attention)?;
        map.serialize_entry("note", &it.note)?;
        map.end()
    }
}
