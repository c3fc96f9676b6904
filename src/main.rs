//! Parse, run, exit code.

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};
use intent_ledger::cli::{self, Cli};

/// Every call makes and drops some dozens of small values; the system's allocator takes a third of a
/// busy server's time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
            eprintln!("intent-ledger: {}", cli::words(&error));
            ExitCode::from(cli::exit_status(&error))
        }
    }
}
