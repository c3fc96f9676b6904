//! Parse, run, exit code.

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
use intent_ledger::cli::{self, Cli};

/// Bad usage, as in sysexits.h.
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            error.print().ok();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(EX_USAGE),
            };
        }
    };
    match cli::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("intent-ledger: {error:#}");
            ExitCode::from(cli::exit_status(&error))
        }
    }
}
