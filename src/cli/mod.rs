//! The command line: one file per subcommand.

mod demo;
mod serve;

use clap::{Parser, Subcommand};

/// Makes it safe for AI agents to repeat themselves: ask the ledger before every effect.
#[derive(Debug, Parser)]
#[command(name = "intent-ledger", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<crate::config::ServeFlags>),
    /// See what it is for: one mail that is sent 18 times, and once with the ledger
    Demo(demo::DemoFlags),
}

/// Runs the command that the arguments name; the process's exit status.
pub fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Serve(flags) => serve::run(*flags),
        Command::Demo(flags) => demo::run(&flags),
    }
}

/// The exit status of an error: 64 for what is wrong with the command line or the configuration,
/// 1 for what the server or the store said.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    if error.is::<crate::config::ConfigError>() { 64 } else { 1 }
}
