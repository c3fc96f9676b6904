//! What `serve` is told: defaults, then a file, then variables and flags.

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::Args;
use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;

use crate::telemetry::tracing::LogFormat;

/// The commented default file; the defaults are read from it.
pub const DEFAULT_FILE: &str = include_str!("../../examples/intent-ledger.toml");

/// Everything that a server is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeConfig {
    /// Where intents are kept.
    pub store: String,
    /// The address of gRPC.
    pub listen: SocketAddr,
    /// The address of HTTP.
    pub http: SocketAddr,
    /// The policy file.
    pub policy: Option<PathBuf>,
    /// Accept callers from other machines although nobody shows credentials.
    pub allow_unauthenticated: bool,
    /// How often the reconciler looks for what is due; zero for never.
    pub reconcile_interval: Duration,
    /// How often results and tombstones whose time is over are looked for; zero for never.
    pub prune_interval: Duration,
    /// Accept a store that can lose what it acknowledged.
    pub allow_unsafe_durability: bool,
    /// Connections to Postgres.
    pub connections_max: usize,
    /// Whether a pooler in transaction mode stands before Postgres.
    pub behind_pooler: bool,
    /// Writes that may wait.
    pub queue_max: usize,
    /// Rows that one statement writes at most.
    pub batch_rows_max: usize,
    /// Writers beside each other.
    pub writers: usize,
    /// Bytes of requests that may be under way.
    pub bytes_in_flight_max: ByteSize,
    /// Threads that serve calls; `None` for half of the cores.
    pub threads: Option<usize>,
    /// How long a stop waits for calls that are under way.
    pub shutdown_grace: Duration,
    /// What is logged.
    pub log: String,
    /// How it is logged.
    pub log_format: LogFormat,
}

/// Flags and variables, each of which wins over the file.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeFlags {
    /// Where intents are kept: sqlite:PATH, made if absent, or postgres://…
    /// [default: sqlite:intent-ledger.db]
    #[arg(long, env = "INTENT_LEDGER_STORE", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,

    /// The gRPC address; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, env = "INTENT_LEDGER_LISTEN", value_name = "ADDR")]
    pub listen: Option<SocketAddr>,

    /// The HTTP address, for /metrics, /healthz and /readyz [default: 127.0.0.1:7071]
    #[arg(long, env = "INTENT_LEDGER_HTTP", value_name = "ADDR")]
    pub http: Option<SocketAddr>,

    /// The policy file, read at start, on change and on SIGHUP
    #[arg(long, env = "INTENT_LEDGER_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Accept callers from other machines without credentials: whoever reaches the ports may settle
    /// anything
    #[arg(long, env = "INTENT_LEDGER_ALLOW_UNAUTHENTICATED")]
    pub allow_unauthenticated: bool,

    /// How often to look for intents that nobody settled; 0s leaves that to `reconcile` [default: 5s]
    #[arg(long, env = "INTENT_LEDGER_RECONCILE_INTERVAL", value_name = "SPAN",
          value_parser = humantime::parse_duration)]
    pub reconcile_interval: Option<Duration>,

    /// How often to look for results and tombstones whose time is over; 0s keeps them [default: 1m]
    #[arg(long, env = "INTENT_LEDGER_PRUNE_INTERVAL", value_name = "SPAN",
          value_parser = humantime::parse_duration)]
    pub prune_interval: Option<Duration>,

    /// Accept store settings that can lose what was acknowledged
    #[arg(long, env = "INTENT_LEDGER_ALLOW_UNSAFE_DURABILITY")]
    pub allow_unsafe_durability: bool,

    /// Connections to Postgres [default: 16]
    #[arg(long, env = "INTENT_LEDGER_CONNECTIONS_MAX", value_name = "N")]
    pub connections_max: Option<usize>,

    /// A pooler in transaction mode (such as PgBouncer's) stands before Postgres: prepare nothing
    #[arg(long, env = "INTENT_LEDGER_BEHIND_POOLER")]
    pub behind_pooler: bool,

    /// Writes that may wait; past that a call is told UNAVAILABLE [default: 8192]
    #[arg(long, env = "INTENT_LEDGER_QUEUE_MAX", value_name = "N")]
    pub queue_max: Option<usize>,

    /// Rows that one statement writes at most [default: 256]
    #[arg(long, env = "INTENT_LEDGER_BATCH_ROWS_MAX", value_name = "N")]
    pub batch_rows_max: Option<usize>,

    /// Writers beside each other over Postgres; a second one works while whole batches wait
    /// [default: 2]
    #[arg(long, env = "INTENT_LEDGER_WRITERS", value_name = "N")]
    pub writers: Option<usize>,

    /// Bytes of requests that may be under way; past that a call is told UNAVAILABLE
    /// [default: 128MiB]
    #[arg(long, env = "INTENT_LEDGER_BYTES_IN_FLIGHT_MAX", value_name = "SIZE")]
    pub bytes_in_flight_max: Option<ByteSize>,

    /// Threads that serve calls [default: half of the cores, at least one]
    #[arg(long, env = "INTENT_LEDGER_THREADS", value_name = "N")]
    pub threads: Option<usize>,

    /// How long a stop waits for calls under way, such as 10s [default: 10s]
    #[arg(long, env = "INTENT_LEDGER_SHUTDOWN_GRACE", value_name = "SPAN",
          value_parser = humantime::parse_duration)]
    pub shutdown_grace: Option<Duration>,

    /// What is logged, as in RUST_LOG [default: info]
    #[arg(long, env = "INTENT_LEDGER_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// How it is logged [default: text]
    #[arg(long, env = "INTENT_LEDGER_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// A configuration file; `intent-ledger config` prints one with every default
    #[arg(long, env = "INTENT_LEDGER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is not one of ours; the text has line and key.
    #[error("understand {0}: {1}")]
    Parse(String, String),
    /// Two settings, or a setting and what it needs, do not go together.
    #[error("{setting}: {problem}")]
    Invalid {
        /// The key in the file; the flag has the same name.
        setting: &'static str,
        /// What is wrong.
        problem: String,
    },
}

/// A file: each key may be absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    store: Option<String>,
    listen: Option<SocketAddr>,
    http: Option<SocketAddr>,
    policy: Option<PathBuf>,
    allow_unauthenticated: Option<bool>,
    #[serde(deserialize_with = "span")]
    reconcile_interval: Option<Duration>,
    #[serde(deserialize_with = "span")]
    prune_interval: Option<Duration>,
    allow_unsafe_durability: Option<bool>,
    connections_max: Option<usize>,
    behind_pooler: Option<bool>,
    queue_max: Option<usize>,
    batch_rows_max: Option<usize>,
    writers: Option<usize>,
    bytes_in_flight_max: Option<ByteSize>,
    threads: Option<usize>,
    #[serde(deserialize_with = "span")]
    shutdown_grace: Option<Duration>,
    log: Option<String>,
    log_format: Option<LogFormat>,
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map(Some).map_err(D::Error::custom)
}

fn parse(name: &str, text: &str) -> Result<File, ConfigError> {
    toml::from_str(text)
        .map_err(|error| ConfigError::Parse(name.to_owned(), error.to_string().trim().to_owned()))
}

/// Defaults, then the file, then flags and variables.
///
/// # Errors
///
/// A file that cannot be read or understood, or settings that do not go together.
pub fn load(flags: ServeFlags) -> Result<ServeConfig, ConfigError> {
    let defaults = parse("the default file", DEFAULT_FILE)?;
    let file = match &flags.config {
        Some(path) => {
            let text =
                fs::read_to_string(path).map_err(|error| ConfigError::Read(path.clone(), error))?;
            parse(&path.display().to_string(), &text)?
        }
        None => File::default(),
    };
    macro_rules! setting {
        ($name:ident) => {
            flags
                .$name
                .or(file.$name)
                .or(defaults.$name)
                .expect(concat!("the default file has ", stringify!($name)))
        };
    }
    let config = ServeConfig {
        store: setting!(store),
        listen: setting!(listen),
        http: setting!(http),
        policy: flags.policy.or(file.policy),
        allow_unauthenticated: flags.allow_unauthenticated
            || file.allow_unauthenticated.unwrap_or(false),
        reconcile_interval: setting!(reconcile_interval),
        prune_interval: setting!(prune_interval),
        allow_unsafe_durability: flags.allow_unsafe_durability
            || file.allow_unsafe_durability.unwrap_or(false),
        connections_max: setting!(connections_max),
        behind_pooler: flags.behind_pooler || file.behind_pooler.unwrap_or(false),
        queue_max: setting!(queue_max),
        batch_rows_max: setting!(batch_rows_max),
        writers: setting!(writers),
        bytes_in_flight_max: setting!(bytes_in_flight_max),
        threads: flags.threads.or(file.threads),
        shutdown_grace: setting!(shutdown_grace),
        log: setting!(log),
        log_format: setting!(log_format),
    };
    check(config)
}

/// Parameters of one statement travel as arrays; past this a batch only adds latency.
const BATCH_ROWS_LIMIT: usize = 10_000;

/// A request may be this large.
const BYTES_IN_FLIGHT_LEAST: ByteSize = ByteSize::mib(16);

fn check(config: ServeConfig) -> Result<ServeConfig, ConfigError> {
    let invalid =
        |setting, problem: &str| Err(ConfigError::Invalid { setting, problem: problem.to_owned() });
    for (setting, address) in [("listen", config.listen), ("http", config.http)] {
        if !address.ip().is_loopback() && !config.allow_unauthenticated {
            let problem = format!(
                "{address} is not a loopback address, and without credentials every caller could \
                 settle every intent; this version has no credentials yet, and where only callers \
                 you trust reach the port, --allow-unauthenticated accepts them"
            );
            return Err(ConfigError::Invalid { setting, problem });
        }
    }
    if config.listen == config.http && config.listen.port() != 0 {
        return invalid("http", "is the same address as listen");
    }
    if config.connections_max < 4 {
        return invalid("connections_max", "must be at least 4: two to write, two to read");
    }
    if config.writers == 0 || config.writers > config.connections_max / 2 {
        return invalid("writers", "must be 1 to half of connections_max");
    }
    if config.bytes_in_flight_max < BYTES_IN_FLIGHT_LEAST {
        return invalid(
            "bytes_in_flight_max",
            "must be at least 16MiB, which one request may have",
        );
    }
    if config.threads == Some(0) {
        return invalid("threads", "must be at least 1");
    }
    if config.queue_max == 0 {
        return invalid("queue_max", "must be at least 1");
    }
    if config.batch_rows_max == 0 || config.batch_rows_max > BATCH_ROWS_LIMIT {
        return invalid("batch_rows_max", "must be 1 to 10000");
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_is_what_a_server_without_flags_uses() {
        let config = load(ServeFlags::default()).unwrap();
        assert_eq!(config.store, "sqlite:intent-ledger.db");
        assert_eq!(config.listen, "127.0.0.1:7070".parse().unwrap());
        assert_eq!(config.shutdown_grace, Duration::from_secs(10));
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = parse("a.toml", "store = \"sqlite:x\"\nstoer = 1\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("stoer"), "{error}");
    }

    #[test]
    fn without_credentials_only_loopback_is_served() {
        let flags =
            ServeFlags { listen: Some("0.0.0.0:7070".parse().unwrap()), ..ServeFlags::default() };
        let error = load(flags).unwrap_err().to_string();
        assert!(error.starts_with("listen: 0.0.0.0:7070 is not a loopback address"), "{error}");
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), "queue_max = 5\nbatch_rows_max = 6\n").unwrap();
        let flags = ServeFlags {
            config: Some(path.path().to_owned()),
            queue_max: Some(7),
            ..ServeFlags::default()
        };
        let config = load(flags).unwrap();
        assert_eq!((config.queue_max, config.batch_rows_max), (7, 6));
        assert_eq!(config.connections_max, 16);
    }
}
