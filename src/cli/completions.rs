//! `completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output};

const EXAMPLE: &str = "\
Examples:
  $ intent-ledger completions bash > ~/.local/share/bash-completion/completions/intent-ledger
  $ intent-ledger completions zsh > \"${fpath[1]}/_intent-ledger\"
  $ intent-ledger completions fish > ~/.config/fish/completions/intent-ledger.fish";

/// Flags of `completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CompletionsFlags {
    /// The shell
    shell: Shell,
}

pub(super) fn run(flags: &CompletionsFlags) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "intent-ledger", &mut script);
    output::write(&String::from_utf8(script)?)?;
    Ok(0)
}
