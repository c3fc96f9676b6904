//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use crate::{
    lines::{self, Line},
    measure::Timing,
    server::Program,
};

/// Effects per second beside a hand-rolled table, and beside what gRPC and Postgres can do at most.
///
/// Starts a Postgres cluster and servers of its own, goes through all lines, round after round, and
/// prints the medians as one table, then the bars with what was reached. Read the ratios: a
/// machine that does other work makes every line slower.
#[derive(Debug, Clone, Parser)]
#[command(name = "effects", bin_name = "cargo bench --bench effects --")]
pub(crate) struct Options {
    /// Take less than five minutes: 0.7 seconds a line, and disturbed lines are not run again
    #[arg(long)]
    pub(crate) quick: bool,

    /// Seconds that a line is measured for [default: 4]
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,

    /// Rounds through all lines; a figure is the median of them
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Only these lines, comma-separated: a name or the beginning of some, such as
    /// table,session-1024
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    only: Vec<String>,

    /// Print the names of the lines and stop
    #[arg(long)]
    pub(crate) list: bool,

    /// Write all lines and ratios as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Measure another build of the server
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_intent-ledger"),
          hide_default_value = true)]
    binary: PathBuf,

    /// A flag for `intent-ledger serve`, such as --serve=--batch-rows-max=512; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    serve: Vec<String>,

    /// Reach Postgres through its Unix socket instead of TCP on loopback, everybody alike
    #[arg(long)]
    pub(crate) unix_socket: bool,

    /// Instead of all that, load a server for so many seconds and see that its memory stays flat
    #[arg(long, value_name = "SECONDS")]
    pub(crate) soak: Option<u64>,

    /// Threads of the echo server [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) echo_threads: Option<usize>,

    /// Be the echo server
    #[arg(long, hide = true)]
    pub(crate) echo_server: bool,

    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// How long to measure a line.
    pub(crate) fn timing(&self) -> Timing {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.7 } else { 4.0 });
        let length = Duration::from_secs_f64(seconds);
        Timing { warm_up: (length / 4).min(Duration::from_secs(1)), length }
    }

    /// How often a line is run again at most, if others took much of the machine meanwhile.
    pub(crate) fn retries(&self) -> usize {
        if self.quick { 0 } else { 2 }
    }

    /// How often to go through all lines.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.max(1)
    }

    /// The server to measure.
    pub(crate) fn program(&self) -> Program {
        Program { binary: self.binary.clone(), flags: self.serve.clone() }
    }

    /// The lines that are asked for.
    ///
    /// # Errors
    /// A word that is the name, or the beginning of the name, of none.
    pub(crate) fn lines(&self) -> Result<Vec<Line>, &str> {
        let mut lines = lines::all();
        let matches = |name: &str, word: &str| {
            name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        for word in &self.only {
            if !lines.iter().any(|line| matches(&line.name, word)) {
                return Err(word);
            }
        }
        let wanted = |name: &str| self.only.iter().any(|word| matches(name, word));
        lines.retain(|line| self.only.is_empty() || wanted(&line.name));
        Ok(lines)
    }
}
