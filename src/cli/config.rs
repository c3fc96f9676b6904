//! `config`: the commented default file.

use super::output;
use crate::config::DEFAULT_FILE;

pub(super) fn run() -> anyhow::Result<u8> {
    output::write(DEFAULT_FILE)?;
    Ok(0)
}
