//! `demo`: what the ledger is for, told by running it.

use std::io::{self, IsTerminal, Write};

use anyhow::bail;
use clap::Args;

use crate::demo::{self, Telling};

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

Nothing leaves this machine and nothing stays on it. It takes about four seconds.

Exit status: 0 if the ledger kept it to exactly one mail for each that was
meant, else 1.")]
pub(super) struct DemoFlags {
    /// Print the counts, and every answer of the ledger, as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &DemoFlags) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = tell(flags) => outcome,
            // Dropping the story removes its folder.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })?;
    Ok(if outcome.is_exactly_once() { 0 } else { 1 })
}

async fn tell(flags: &DemoFlags) -> anyhow::Result<demo::Outcome> {
    let progress = io::stderr().is_terminal();
    if flags.json {
        let outcome = demo::run(&mut io::sink(), Telling { styled: false, progress }).await?;
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&outcome)?)?;
        return Ok(outcome);
    }
    let styled = io::stdout().is_terminal();
    demo::run(&mut io::stdout(), Telling { styled, progress }).await
}
