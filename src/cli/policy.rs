//! `policy`: what a policy file says, before a server reads it.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    input, output,
    policy_explain::{self, ExplainFlags},
};
use crate::policy::{Mistake, Policy, PolicyError};

const CHECK_EXAMPLE: &str = "\
Each mistake is one line, FILE:LINE:COLUMN: key: problem, and makes the exit status 1. What is no mistake
and may surprise is told in the same form, with \"warning: \" before the key.
What rests on the store is told by the server that reads the file: over an embedded store it
refuses downstream.same_transaction = true.

Example:
  $ intent-ledger policy check policy.toml
  policy.toml:3:1: tools.send_email.leese: unknown key; did you mean \"lease\"?";

/// What to do with a policy file.
#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Name every mistake of a policy file
    Check(CheckFlags),
    /// Show what a policy makes of a sample call: key, fingerprint, class and decision
    Explain(Box<ExplainFlags>),
}

/// Flags of `policy check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLE)]
pub(super) struct CheckFlags {
    /// The policy file; - for standard input
    file: String,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was found in a policy file.
#[derive(Serialize)]
struct Checked<'a> {
    ok: bool,
    version: Option<u32>,
    tools: Option<usize>,
    mistakes: Vec<Named<'a>>,
    warnings: Vec<Named<'a>>,
}

#[derive(Serialize)]
struct Named<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    key: &'a str,
    problem: &'a str,
}

pub(super) fn run(command: &PolicyCommand) -> anyhow::Result<u8> {
    match command {
        PolicyCommand::Check(flags) => check(flags),
        PolicyCommand::Explain(flags) => policy_explain::run(flags),
    }
}

fn check(flags: &CheckFlags) -> anyhow::Result<u8> {
    let checked = Policy::from_text(&input::file_text("FILE", &flags.file)?);
    let text = match (&checked, flags.json) {
        (Ok(policy), false) => {
            let tools = count_tools(policy);
            let s = if tools == 1 { "" } else { "s" };
            let warnings = warnings(&flags.file, policy.warnings());
            format!("{warnings}ok: version {}, {tools} tool{s}\n", policy.version())
        }
        (Err(error), false) => mistakes(&flags.file, error),
        (checked, true) => output::line(&Checked {
            ok: checked.is_ok(),
            version: checked.as_ref().ok().map(Policy::version),
            tools: checked.as_ref().ok().map(count_tools),
            mistakes: checked.as_ref().err().map_or_else(Vec::new, |error| {
                error.mistakes.iter().map(|mistake| named(&flags.file, mistake)).collect()
            }),
            warnings: checked.as_ref().map_or_else(
                |_| Vec::new(),
                |policy| policy.warnings().iter().map(|it| named(&flags.file, it)).collect(),
            ),
        })?,
    };
    output::write(&text)?;
    Ok(u8::from(checked.is_err()))
}

/// A tool with sections in several namespaces is one tool.
fn count_tools(policy: &Policy) -> usize {
    policy.tools().map(|(_, tool, _)| tool).collect::<BTreeSet<_>>().len()
}

fn named<'a>(file: &'a str, mistake: &'a Mistake) -> Named<'a> {
    let Mistake { line, column, ref key, ref problem } = *mistake;
    Named { file, line, column, key, problem }
}

/// Each mistake as one line, in the form that editors jump to.
pub(super) fn mistakes(file: &str, error: &PolicyError) -> String {
    error.mistakes.iter().map(|mistake| line(file, mistake, "")).collect()
}

fn warnings(file: &str, warnings: &[Mistake]) -> String {
    warnings.iter().map(|warning| line(file, warning, "warning: ")).collect()
}

fn line(file: &str, mistake: &Mistake, what: &str) -> String {
    let Mistake { line, column, key, problem } = mistake;
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    output::plain(&format!("{file}:{line}:{column}: {what}{key}{problem}")) + "\n"
}
