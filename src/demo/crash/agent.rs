//! The agent as a process: asks the ledger, sends one mail, reports, and says each step in a line of JSON.
//!
//! It is this program once more, so that whoever has the binary has the agent.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;

use super::super::guarded::short;
use crate::{
    ids,
    proto::v1::{
        BeginRequest, BeginResponse, CompleteRequest, Decision, Identity,
        intent_ledger_service_client::IntentLedgerServiceClient,
    },
    tls,
};

/// What an agent is told at its start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Orders {
    pub(super) name: String,
    pub(super) ledger: String,
    pub(super) provider: String,
    pub(super) order: String,
    pub(super) template: String,
    pub(super) to: String,
    pub(super) subject: String,
    /// It never sends: it is to be killed with the right to send in its hands.
    pub(super) waits_before_it_sends: bool,
}

/// A step that an agent has taken.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The ledger has answered.
    Begun(Begun),
    /// The mail is sent, and the ledger knows it.
    Settled {
        /// The intent's state.
        state: String,
        /// The provider's id of the mail.
        receipt: String,
    },
}

/// What the ledger answered.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) key: String,
    pub(super) decision: String,
    pub(super) reason: String,
    /// On a replay, the provider's id of the mail.
    pub(super) receipt: String,
}

/// What the provider answers.
#[derive(Deserialize)]
struct Receipt {
    id: String,
}

/// Runs the agent in this process.
///
/// # Errors
///
/// Orders that are none; a ledger or a provider that cannot be reached or says no.
pub async fn run(orders: &str) -> anyhow::Result<()> {
    let orders: Orders = serde_json::from_str(orders).context("failed to read the orders")?;
    let channel = Endpoint::from_shared(orders.ledger.clone())?.connect().await;
    let mut ledger = IntentLedgerServiceClient::new(channel.context("failed to connect")?);

    let begun = ledger.begin(begin(&orders)).await.context("failed to ask the ledger")?;
    let begun = begun.into_inner();
    let intent = begun.intent.clone().unwrap_or_default();
    let receipt: Option<Receipt> =
        intent.result.as_deref().map(serde_json::from_slice).transpose()?;
    say(&Word::Begun(Begun {
        key: intent.key.clone(),
        decision: short(begun.decision().as_str_name(), "DECISION_"),
        reason: short(begun.reason().as_str_name(), "REASON_"),
        receipt: receipt.map(|receipt| receipt.id).unwrap_or_default(),
    }))?;
    if begun.decision() != Decision::Execute {
        return Ok(());
    }
    if orders.waits_before_it_sends {
        // Until it is killed. If whoever started it goes first, its input ends.
        io::copy(&mut io::stdin(), &mut io::sink())?;
        bail!("nobody came to kill this agent");
    }

    let answer = send(&orders, &begun).await.context("failed to send the mail")?;
    let Receipt { id } = serde_json::from_str(&answer).context("failed to read the receipt")?;
    let request = CompleteRequest {
        key: intent.key,
        attempt_id: begun.attempt_id,
        result: Some(answer.into_bytes()),
        result_content_type: "application/json".to_owned(),
        downstream_ref: id.clone(),
        ..CompleteRequest::default()
    };
    let settled = ledger.complete(request).await.context("failed to report")?.into_inner();
    let state = settled.intent.unwrap_or_default().state();
    say(&Word::Settled { state: short(state.as_str_name(), "INTENT_STATE_"), receipt: id })
}

fn begin(orders: &Orders) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity {
            tool: "send_email".to_owned(),
            run_id: "refund-8812".to_owned(),
            business_ids: BTreeMap::from([
                ("order".to_owned(), orders.order.clone()),
                ("template".to_owned(), orders.template.clone()),
            ]),
            ..Identity::default()
        }),
        arguments_json: json!({ "to": orders.to, "subject": orders.subject }).to_string(),
        attempt_id: ids::random().to_string(),
        caller: orders.name.clone(),
        ..BeginRequest::default()
    }
}

async fn send(orders: &Orders, begun: &BeginResponse) -> reqwest::Result<String> {
    let request = tls::http_client()
        .build()?
        .post(format!("{}/v1/effects", orders.provider))
        .header("idempotency-key", &begun.downstream_key)
        .header("x-action", &orders.template)
        .json(&json!({ "to": orders.to, "subject": orders.subject }));
    request.send().await?.error_for_status()?.text().await
}

fn say(word: &Word) -> anyhow::Result<()> {
    // One write, so that nobody reads half a step of an agent that is killed meanwhile.
    let line = serde_json::to_string(word)? + "\n";
    io::stdout().write_all(line.as_bytes())?;
    Ok(io::stdout().flush()?)
}

/// An agent that runs; killed when it is dropped.
pub(super) struct Process {
    child: Child,
    words: mpsc::UnboundedReceiver<String>,
}

impl Process {
    pub(super) fn start(orders: &Orders) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("failed to find this program")?;
        let mut child = Command::new(program)
            .args(["demo", "--crash", "--agent", &serde_json::to_string(orders)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start an agent")?;
        let stdout = child.stdout.take().context("an agent has no standard output")?;
        let (say, words) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                say.send(line).ok();
            }
        });
        Ok(Self { child, words })
    }

    /// Its next word.
    pub(super) async fn word(&mut self) -> anyhow::Result<Word> {
        let line = self.words.recv().await.context("an agent ended without a word")?;
        serde_json::from_str(&line).context("failed to understand an agent")
    }

    /// Its first word.
    pub(super) async fn begun(&mut self) -> anyhow::Result<Begun> {
        match self.word().await? {
            Word::Begun(begun) => Ok(begun),
            word @ Word::Settled { .. } => bail!("an agent began with {word:?}"),
        }
    }

    /// Kills it as the kernel would: it gets to do nothing more.
    pub(super) fn kill9(mut self) -> anyhow::Result<()> {
        self.child.kill().context("failed to kill an agent")?;
        self.child.wait().context("failed to wait for an agent")?;
        Ok(())
    }

    /// Returns once it has ended by itself.
    pub(super) async fn ended(mut self) -> anyhow::Result<()> {
        // It closes its output at its end, so the wait is short.
        while self.words.recv().await.is_some() {}
        let status = self.child.wait().context("failed to wait for an agent")?;
        if !status.success() {
            bail!("an agent failed: {status}");
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
