//! Logs, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Sets logging up for the process; a second call changes nothing.
///
/// # Errors
///
/// A filter that does not parse.
pub fn init(filter: &str, format: LogFormat) -> Result<(), tracing_subscriber::filter::ParseError> {
    // The library that migrates tells of itself at length; a filter that names it still has its way.
    let quiet = format!("refinery_core=warn,{filter}");
    let filter = EnvFilter::try_new(quiet)?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let installed = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().try_init(),
    };
    // In tests several servers share a process and its log.
    drop(installed);
    Ok(())
}
