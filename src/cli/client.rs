//! What every command that talks to a server shares: its flags and the connection.

use std::{error::Error, time::Duration};

use clap::Args;
use http::Uri;
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

pub(super) use super::call_error::CallError;
use super::{
    answer::Answer,
    call_error::{ErrorObject, deepest},
    output,
};
use crate::proto::v1::{
    intent_ledger_service_client::IntentLedgerServiceClient as LedgerClient,
    intent_operations_service_client::IntentOperationsServiceClient as OperationsClient,
};

/// Enough for any page of intents; a policy may allow results far over the default of gRPC.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Which server, and how its answers are printed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub(super) struct ClientFlags {
    /// The server's gRPC address
    #[arg(long, env = "INTENT_LEDGER_SERVER", value_name = "URL", value_parser = server,
          default_value = "http://127.0.0.1:7070", hide_env_values = true)]
    server: Uri,

    /// The tenant; may be left out where there is only one
    #[arg(
        long,
        env = "INTENT_LEDGER_NAMESPACE",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(super) namespace: String,

    /// How long to wait for the answer
    #[arg(long, value_name = "SPAN", default_value = "10s",
          value_parser = timeout)]
    timeout: Duration,

    /// Print one JSON object an answer, with the field names of the proto files
    #[arg(long)]
    pub(super) json: bool,
}

fn timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(timeout) if timeout < Duration::from_millis(1) => Err("must be 1ms or more".to_owned()),
        Ok(timeout) => Ok(timeout),
        Err(error) => Err(error.to_string()),
    }
}

fn server(text: &str) -> Result<Uri, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        (Some("https"), _) => Err("this version has no TLS yet; use http://".to_owned()),
        _ => Err("expected http://HOST:PORT".to_owned()),
    }
}

/// A connection to a server.
pub(super) struct Server {
    pub(super) ledger: LedgerClient<Channel>,
    pub(super) operations: OperationsClient<Channel>,
}

impl ClientFlags {
    /// Connects and lets `talk` do the rest; the exit status. With `--json` an error of the server
    /// is printed here; any other goes to whoever prints errors.
    pub(super) fn run(
        &self,
        talk: impl AsyncFnOnce(&mut Server) -> anyhow::Result<()>,
    ) -> anyhow::Result<u8> {
        self.run_for_status(async |server| talk(server).await.map(|()| 0))
    }

    /// As [`Self::run`], for what has more than one good end.
    pub(super) fn run_for_status(
        &self,
        talk: impl AsyncFnOnce(&mut Server) -> anyhow::Result<u8>,
    ) -> anyhow::Result<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async { talk(&mut self.connect().await?).await });
        let at = |error: CallError| error.at(&self.address(), self.timeout);
        match outcome.map_err(|error| error.downcast::<CallError>().map(at)) {
            Ok(status) => Ok(status),
            Err(Ok(error)) if self.json => {
                output::write(&output::line(&ErrorObject { error: &error })?)?;
                Ok(1)
            }
            Err(Ok(error)) => Err(error.into()),
            Err(Err(other)) => Err(other),
        }
    }

    async fn connect(&self) -> Result<Server, CallError> {
        let endpoint = Endpoint::from(self.server.clone()).connect_timeout(self.timeout);
        let channel = endpoint.connect().await.map_err(|error| self.unreachable(&error))?;
        Ok(Server {
            ledger: LedgerClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            operations: OperationsClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
        })
    }

    fn address(&self) -> String {
        self.server.to_string().trim_end_matches('/').to_owned()
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> CallError {
        let message = format!(
            "failed to reach the server at {}: {}; is it running? `intent-ledger serve` starts one, \
             and --server names another",
            self.address(),
            deepest(error)
        );
        CallError::new("UNAVAILABLE", message)
    }

    /// A request with the deadline of the flags.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        self.waiting_request(message, Duration::ZERO)
    }

    /// A request that the server may sit on for `wait` before the deadline begins to count.
    pub(super) fn waiting_request<T>(&self, message: T, wait: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout.saturating_add(wait));
        request
    }

    /// Prints an answer.
    pub(super) fn print(&self, answer: &impl Answer) -> anyhow::Result<()> {
        let text =
            if self.json { output::line(answer)? } else { answer.text(output::Paint::stdout()) };
        output::write(&text)
    }
}
