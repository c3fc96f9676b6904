//! The story of a mail that is sent 18 times, told by running it; then once more with the ledger.
//!
//! `agent` has the four layers that repeat, `provider` the mail server that answers too late,
//! `guarded` what an agent does to be safe, `report` the words. Everything on the wire is real
//! and on this machine: the servers, their requests, the time-outs. The model is a script, the
//! crash drops what the process has in memory. In the story of [`crash`] it is a real one.

mod agent;
pub mod crash;
mod guarded;
mod provider;
mod report;

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use serde::Serialize;
use tonic::transport::{Channel, Endpoint};

use self::{
    agent::{Layer, Mail, PlainTool},
    guarded::{Asked, GuardedTool, Line, Minutes},
    provider::{MailClient, Provider, SentMail},
};
use crate::{
    app::{self, Running},
    config::{self, ServeFlags},
    proto::v1::intent_ledger_service_client::IntentLedgerServiceClient,
};

/// How long the HTTP client waits for an answer: long enough for a busy machine to send a request,
/// and short enough for a reader to wait for 18 of them.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(150);

/// When a slow provider answers: after the client has given up.
const SLOW_ANSWER: Duration = Duration::from_millis(400);

/// The mail whose answer comes too late.
const APPROVED: Mail = Mail {
    order: "8812",
    template: "refund_approved",
    to: "ada@example.com",
    subjects: &[
        "Your refund is approved",
        "Refund for order 8812 approved",
        "Good news about your refund",
    ],
};

/// Another mail about the same order to the same person, and meant: it must not be held back.
const PAID: Mail = Mail {
    order: "8812",
    template: "refund_paid",
    to: "ada@example.com",
    subjects: &["Your refund has been paid"],
};

/// What the server is told of the tool: how a mail is worded makes it no other mail.
const POLICY: &str = r#"version = 1

[tools.send_email]
free_text = ["/subject"]
check_with = "get_email_status"
"#;

/// How the story is told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Telling {
    /// Headings stand out.
    pub styled: bool,
    /// A line on standard error shows how far it is.
    pub progress: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Outcome {
    actions: Vec<Action>,
    sent_without_by_layer: Vec<LayerCount>,
    ledger_answers: Vec<Asked>,
    last_word_without: String,
    last_word_with: String,
    exactly_once: bool,
}

impl Outcome {
    /// Whether every intended mail was sent exactly once with the ledger.
    pub fn is_exactly_once(&self) -> bool {
        self.exactly_once
    }
}

/// One intended mail and how often it was sent.
#[derive(Debug, Serialize)]
struct Action {
    order: &'static str,
    template: &'static str,
    intended: usize,
    sent_without: usize,
    sent_with: usize,
}

/// How many mails one layer caused.
#[derive(Debug, Serialize)]
struct LayerCount {
    layer: &'static str,
    sent: usize,
}

/// What one run of the agent left behind.
struct Ran {
    sent: Vec<SentMail>,
    last_word: String,
}

impl Ran {
    fn count(&self, mail: &Mail) -> usize {
        self.of(mail).count()
    }

    fn of(&self, mail: &Mail) -> impl Iterator<Item = &SentMail> {
        self.sent.iter().filter(|sent| sent.template == mail.template)
    }
}

/// Runs the story and tells it to `out`.
///
/// # Errors
///
/// Whatever keeps one of the servers from starting or being reached, or `out` from being written.
pub async fn run(out: &mut dyn Write, telling: Telling) -> anyhow::Result<Outcome> {
    report::introduction(out, telling)?;

    let without = without_ledger(telling).await?;
    report::without(out, telling, &without)?;

    let minutes = Arc::new(Minutes::default());
    let with = with_ledger(telling, &minutes).await?;
    report::with(out, telling, &with, &minutes.lines())?;

    let outcome = outcome(&without, with, &minutes);
    report::table(out, telling, &outcome)?;
    Ok(outcome)
}

async fn without_ledger(telling: Telling) -> anyhow::Result<Ran> {
    let provider = Provider::start().await?;
    let tool = || anyhow::Ok(PlainTool { provider: MailClient::new(&provider, CLIENT_TIMEOUT)? });
    let story = async {
        provider.answer_after(SLOW_ANSWER);
        let last_word = agent::run_with_crash(&APPROVED, |_| tool(), || ()).await?;
        provider.answer_after(Duration::ZERO);
        agent::think(&PAID, PAID.subjects, Layer::FirstCall, &tool()?).await?;
        anyhow::Ok(last_word)
    };
    let sent = || provider.sent().len();
    let last_word = report::with_progress(telling, "without the ledger", sent, story).await?;
    Ok(Ran { sent: provider.sent(), last_word })
}

async fn with_ledger(telling: Telling, minutes: &Arc<Minutes>) -> anyhow::Result<Ran> {
    let folder = tempfile::Builder::new()
        .prefix("intent-ledger-demo-")
        .tempdir()
        .context("failed to make a folder for the ledger")?;
    let server = start_server(folder.path(), POLICY, None).await?;
    let provider = Provider::start().await?;
    let ledger = connect(server.grpc).await?;
    let tool = |process| {
        let client = MailClient::new(&provider, CLIENT_TIMEOUT)?;
        anyhow::Ok(GuardedTool::new(ledger.clone(), client, process, Arc::clone(minutes)))
    };
    let story = async {
        provider.answer_after(SLOW_ANSWER);
        let crashed = || minutes.add(Line::Crash);
        let last_word = agent::run_with_crash(&APPROVED, tool, crashed).await?;
        minutes.add(Line::Later);
        provider.answer_after(Duration::ZERO);
        agent::think(&PAID, PAID.subjects, Layer::FirstCall, &tool("agent-2")?).await?;
        anyhow::Ok(last_word)
    };
    let sent = || provider.sent().len();
    let last_word = report::with_progress(telling, "with the ledger", sent, story).await?;
    drop(ledger);
    server.stop().await;
    Ok(Ran { sent: provider.sent(), last_word })
}

/// The server that `intent-ledger serve` runs, on free ports and with its store in `folder`.
async fn start_server(
    folder: &Path,
    policy_text: &str,
    reconcile_interval: Option<Duration>,
) -> anyhow::Result<Running> {
    let policy = folder.join("policy.toml");
    std::fs::write(&policy, policy_text).context("failed to write the demo's policy")?;
    let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = config::load(ServeFlags {
        store: Some(format!("sqlite:{}", folder.join("intent-ledger.db").display())),
        listen: Some(free_port),
        http: Some(free_port),
        policy: Some(policy),
        reconcile_interval,
        shutdown_grace: Some(Duration::from_secs(1)),
        ..ServeFlags::default()
    })?;
    app::start(&config).await
}

async fn connect(address: SocketAddr) -> anyhow::Result<IntentLedgerServiceClient<Channel>> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await
        .context("failed to connect to the ledger")?;
    Ok(IntentLedgerServiceClient::new(channel))
}

fn outcome(without: &Ran, with: Ran, minutes: &Minutes) -> Outcome {
    let actions: Vec<Action> = [APPROVED, PAID]
        .iter()
        .map(|mail| Action {
            order: mail.order,
            template: mail.template,
            intended: 1,
            sent_without: without.count(mail),
            sent_with: with.count(mail),
        })
        .collect();
    let by_layer = Layer::ALL.map(|layer| LayerCount {
        layer: layer.name(),
        sent: without.of(&APPROVED).filter(|sent| sent.layer == layer.name()).count(),
    });
    let answers = minutes.lines().into_iter().filter_map(|line| match line {
        Line::Asked(asked) => Some(asked),
        Line::Note(_) | Line::Crash | Line::Later => None,
    });
    Outcome {
        exactly_once: actions.iter().all(|action| action.sent_with == action.intended),
        actions,
        sent_without_by_layer: by_layer.into(),
        ledger_answers: answers.collect(),
        last_word_without: without.last_word.clone(),
        last_word_with: with.last_word,
    }
}
