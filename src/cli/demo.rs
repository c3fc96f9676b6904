//! `demo`: what the ledger is for, told by running it.

use std::io::{self, IsTerminal, Write};

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::demo::{self, Telling, crash};

/// How the story is told.
#[derive(Debug, Args)]
#[command(after_long_help = "\
What happens:
  1. A mail provider starts on a free port of this machine. It sends a mail at
     once but answers later than its client waits.
  2. An agent sends one mail. Its HTTP client, its orchestrator, its model (in
     other words each time) and its resumed run all try again: 18 mails.
  3. A ledger starts, as `intent-ledger serve` would, with its store in a
     temporary folder. The same agent asks it before it sends, says what came of
     it, and looks before it repeats: one mail.
  4. The effects are counted, from the provider's own sent log.

With --crash it is another story:
  1. An agent, a process of its own, is told that it may send, and sends. It is
     killed with kill -9 before it can report. When its lease is over, the
     ledger asks the provider and settles it; a resumed run gets the receipt.
  2. Another one is killed before it sends. The provider is asked until an
     absence proves something; then a resumed run may send.
  3. The mails are counted.

Nothing leaves this machine and nothing stays on it. It takes about four seconds,
with --crash about eight.

Exit status: 0 if the ledger kept it to exactly one mail for each that was
meant, else 1.")]
pub(super) struct DemoFlags {
    /// Kill the agent (kill -9) after the send, and before it, and see who settles it
    #[arg(long)]
    crash: bool,

    /// Print the counts, and every answer of the ledger, as one JSON object
    #[arg(long)]
    json: bool,

    /// Be the agent of `--crash`, as these orders say
    #[arg(long, hide = true, value_name = "JSON", requires = "crash")]
    agent: Option<String>,
}

pub(super) fn run(flags: &DemoFlags) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(orders) = &flags.agent {
        return runtime.block_on(crash::agent::run(orders)).map(|()| 0);
    }
    let exactly_once = runtime.block_on(async {
        tokio::select! {
            exactly_once = tell(flags) => exactly_once,
            // Dropping the story removes its folder.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })?;
    Ok(if exactly_once { 0 } else { 1 })
}

/// Tells the story; whether each mail was sent exactly once.
async fn tell(flags: &DemoFlags) -> anyhow::Result<bool> {
    let progress = io::stderr().is_terminal();
    let styled = !flags.json && io::stdout().is_terminal();
    let telling = Telling { styled, progress };
    let mut out: Box<dyn Write> =
        if flags.json { Box::new(io::sink()) } else { Box::new(io::stdout()) };
    if flags.crash {
        let outcome = crash::run(&mut *out, telling).await?;
        print_json(flags, &outcome)?;
        return Ok(outcome.is_exactly_once());
    }
    let outcome = demo::run(&mut *out, telling).await?;
    print_json(flags, &outcome)?;
    Ok(outcome.is_exactly_once())
}

fn print_json(flags: &DemoFlags, outcome: &impl Serialize) -> anyhow::Result<()> {
    if flags.json {
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(outcome)?)?;
    }
    Ok(())
}
