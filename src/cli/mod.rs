//! The command line: one file per subcommand; beside them what the commands share.
//!
//! - `client`, `call_error`: flags, connection and errors of all that talk to a server
//! - `identity`, `input`: what people type
//! - `deciding`: how a person decides on a proposal
//! - `answer`, `table`, `timeline`, `json`, `output`: what people and programs read

mod answer;
mod approve;
mod begin;
mod call_error;
mod client;
mod complete;
mod completions;
mod config;
mod deciding;
mod demo;
mod deny;
mod doctor;
mod downstream;
mod explain;
mod extend;
mod fail;
mod identity;
mod input;
mod json;
mod list;
mod lookup;
mod migrate;
mod output;
mod policy;
mod policy_explain;
mod reconcile;
mod resolve;
mod serve;
mod stats;
mod table;
mod timeline;

use clap::{Parser, Subcommand};

use crate::telemetry::{FailedTo, chain};

const EXAMPLE: &str = "\
Try it, with the server in one terminal and the calls in another:
  $ intent-ledger serve
  $ intent-ledger begin open_ticket --run run-1 --business-id order=8812
  $ intent-ledger complete KEY --attempt ID --result sent
  $ intent-ledger begin open_ticket --run run-1 --business-id order=8812

Exit status: 0 done, 1 the server or the store said no, 64 bad usage.";

/// Makes it safe for AI agents to repeat themselves: ask the ledger before every effect.
#[derive(Debug, Parser)]
#[command(name = "intent-ledger", version, propagate_version = true, after_help = EXAMPLE)]
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
    /// Ask whether the effect of a call may happen now
    Begin(Box<begin::BeginFlags>),
    /// Report that the effect happened
    Complete(Box<complete::CompleteFlags>),
    /// Report that the effect did not happen, or that nobody knows
    Fail(Box<fail::FailFlags>),
    /// Keep the right to execute for longer
    Extend(Box<extend::ExtendFlags>),
    /// Show one intent, or wait for it to change
    Lookup(Box<lookup::LookupFlags>),
    /// Tell who repeated a call, what differed, and what became of it
    Explain(Box<explain::ExplainFlags>),
    /// List intents, the newest first
    List(Box<list::ListFlags>),
    /// Ask the downstreams about intents that nobody settled
    Reconcile(Box<reconcile::ReconcileFlags>),
    /// Say yes to an intent that awaits a person
    Approve(Box<approve::ApproveFlags>),
    /// Say no to an intent that awaits a person
    Deny(Box<deny::DenyFlags>),
    /// Settle by a person's word what nothing else can settle
    Resolve(Box<resolve::ResolveFlags>),
    /// Count what was asked, what repeated it, and what is open
    Stats(Box<stats::StatsFlags>),
    /// Check and explain policy files
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Bring the schema of a store up to this version
    Migrate(migrate::MigrateFlags),
    /// Examine a store: durability, schema, clock, what is left open
    Doctor(doctor::DoctorFlags),
    /// Run a service to test against, whose faults can be set
    Downstream(downstream::DownstreamFlags),
    /// Print the configuration file with every default
    Config,
    /// Print completions for a shell
    Completions(completions::CompletionsFlags),
}

/// Runs the command that the arguments name; the process's exit status.
pub fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Serve(flags) => serve::run(*flags),
        Command::Demo(flags) => demo::run(&flags),
        Command::Begin(flags) => begin::run(&flags),
        Command::Complete(flags) => complete::run(&flags),
        Command::Fail(flags) => fail::run(&flags),
        Command::Extend(flags) => extend::run(&flags),
        Command::Lookup(flags) => lookup::run(&flags),
        Command::Explain(flags) => explain::run(&flags),
        Command::List(flags) => list::run(&flags),
        Command::Reconcile(flags) => reconcile::run(&flags),
        Command::Approve(flags) => approve::run(&flags),
        Command::Deny(flags) => deny::run(&flags),
        Command::Resolve(flags) => resolve::run(&flags),
        Command::Stats(flags) => stats::run(&flags),
        Command::Policy(command) => policy::run(&command),
        Command::Migrate(flags) => migrate::run(&flags),
        Command::Doctor(flags) => doctor::run(&flags),
        Command::Downstream(flags) => downstream::run(flags),
        Command::Config => config::run(),
        Command::Completions(flags) => completions::run(&flags),
    }
}

/// An error as a person reads it: with its causes, and without what could play with a terminal.
pub fn words(error: &anyhow::Error) -> String {
    let text = chain(error.as_ref());
    text.split('\n').map(output::plain).collect::<Vec<_>>().join("\n")
}

/// The exit status of an error: 64 for what is wrong with the command line or the configuration,
/// 1 for what the server or the store said.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    use crate::{config::ConfigError, store::OpenError};
    let bad_address =
        error.downcast_ref().is_some_and(|error| matches!(error, FailedTo(OpenError::Address(_))));
    if error.is::<ConfigError>() || error.is::<input::UsageError>() || bad_address { 64 } else { 1 }
}
