//! The tool with the ledger in front of it: Begin before the mail, Complete or Fail after it.
//!
//! This is all that changes. The layers above are the same, and repeat as before.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::transport::Channel;

use super::{
    agent::{Call, EmailTool, Layer, Told},
    provider::{MailClient, Receipt},
};
use crate::{
    ids,
    proto::v1::{
        BeginRequest, BeginResponse, CompleteRequest, Decision, FailRequest, FailureKind, Identity,
        intent_ledger_service_client::IntentLedgerServiceClient,
    },
};

/// The run whose steps the agent carries out; a resumed run keeps it.
const RUN_ID: &str = "refund-8812";

/// Something that was said between the agent and the ledger.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// The agent asked whether it may send.
    Asked(Asked),
    /// What else happened, in words.
    Note(String),
    /// The agent's process died.
    Crash,
    /// Time went by.
    Later,
}

/// A Begin and its answer.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Asked {
    /// Who caused it.
    pub(super) asked_by: &'static str,
    pub(super) subject: String,
    pub(super) decision: String,
    pub(super) reason: String,
    /// The answer never reached the agent.
    pub(super) answer_lost: bool,
}

/// What was said, in order.
#[derive(Debug, Default)]
pub(super) struct Minutes(Mutex<Vec<Line>>);

impl Minutes {
    pub(super) fn add(&self, line: Line) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a remark; one that was made before is not worth a line.
    fn note(&self, words: impl Into<String>) {
        let words = words.into();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = lines.iter().any(|line| matches!(line, Line::Note(note) if *note == words));
        if !said {
            lines.push(Line::Note(words));
        }
    }
}

/// The tool of one process of the agent.
pub(super) struct GuardedTool {
    ledger: IntentLedgerServiceClient<Channel>,
    provider: MailClient,
    process: &'static str,
    minutes: Arc<Minutes>,
    /// The next answer of the ledger is lost, as networks do.
    lose_an_answer: AtomicBool,
    /// An attempt of unknown outcome. In memory only: it dies with the process.
    open: Mutex<Option<Attempt>>,
}

/// What it takes to settle an attempt.
#[derive(Debug, Clone)]
struct Attempt {
    key: String,
    attempt_id: String,
    downstream_key: String,
}

impl GuardedTool {
    pub(super) fn new(
        ledger: IntentLedgerServiceClient<Channel>,
        provider: MailClient,
        process: &'static str,
        minutes: Arc<Minutes>,
    ) -> Self {
        Self {
            ledger,
            provider,
            process,
            // Once: the rest of the story is about the provider's lost answers.
            lose_an_answer: AtomicBool::new(minutes.lines().is_empty()),
            minutes,
            open: Mutex::new(None),
        }
    }

    /// Asks the ledger. What its transport repeats is this question, never the mail.
    async fn begin(&self, call: &Call<'_>) -> anyhow::Result<BeginResponse> {
        let mail = call.mail;
        let arguments = json!({ "to": mail.to, "subject": call.subject });
        let request = BeginRequest {
            identity: Some(Identity {
                tool: "send_email".to_owned(),
                run_id: RUN_ID.to_owned(),
                // What the mail is about, never how it is worded.
                business_ids: BTreeMap::from([
                    ("order".to_owned(), mail.order.to_owned()),
                    ("template".to_owned(), mail.template.to_owned()),
                ]),
                ..Identity::default()
            }),
            arguments_json: arguments.to_string(),
            // One for each logical attempt; the transport's repeat below carries the same.
            attempt_id: ids::random().to_string(),
            tool_call_id: call.tool_call_id.clone(),
            caller: self.process.to_owned(),
            ..BeginRequest::default()
        };
        let answer_lost = self.lose_an_answer.swap(false, Ordering::Relaxed);
        let answer = self.ask(call, call.layer, request.clone(), answer_lost).await?;
        if answer_lost {
            drop(answer);
            self.minutes.note("thrown away here, as networks do; the client asks once more:");
            return self.ask(call, Layer::HttpClient, request, false).await;
        }
        Ok(answer)
    }

    async fn ask(
        &self,
        call: &Call<'_>,
        layer: Layer,
        request: BeginRequest,
        answer_lost: bool,
    ) -> anyhow::Result<BeginResponse> {
        let answer =
            self.ledger.clone().begin(request).await.context("failed to ask the ledger")?;
        let answer = answer.into_inner();
        self.minutes.add(Line::Asked(Asked {
            asked_by: layer.name(),
            subject: call.subject.to_owned(),
            decision: short(answer.decision().as_str_name(), "DECISION_"),
            reason: short(answer.reason().as_str_name(), "REASON_"),
            answer_lost,
        }));
        Ok(answer)
    }

    /// The ledger said EXECUTE: sends the mail, once, and reports what came of it.
    async fn execute(&self, call: &Call<'_>, begun: BeginResponse) -> anyhow::Result<Told> {
        let attempt = Attempt {
            key: begun.intent.unwrap_or_default().key,
            attempt_id: begun.attempt_id,
            downstream_key: begun.downstream_key,
        };
        match self.provider.send(call, call.layer, Some(&attempt.downstream_key)).await? {
            Some(receipt) => {
                self.minutes
                    .note(format!("the mail goes out, and the answer comes: sent, {}", receipt.id));
                self.complete(&attempt, &receipt).await?;
                Ok(Told::Sent(receipt.id))
            }
            None => {
                self.minutes.note("the mail goes out; no answer comes in time");
                self.report_unknown(&attempt).await?;
                *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(attempt);
                Ok(Told::Error)
            }
        }
    }

    /// A time-out is not a failure: nobody knows.
    async fn report_unknown(&self, attempt: &Attempt) -> anyhow::Result<()> {
        let request = FailRequest {
            key: attempt.key.clone(),
            attempt_id: attempt.attempt_id.clone(),
            kind: FailureKind::OutcomeUnknown.into(),
            code: "timeout".to_owned(),
            ..FailRequest::default()
        };
        let answer = self.ledger.clone().fail(request).await.context("failed to report")?;
        let state = answer.into_inner().intent.unwrap_or_default().state();
        let state = short(state.as_str_name(), "INTENT_STATE_");
        self.minutes.note(format!("Fail(OUTCOME_UNKNOWN) tells the ledger: the intent is {state}"));
        Ok(())
    }

    async fn complete(&self, attempt: &Attempt, receipt: &Receipt) -> anyhow::Result<()> {
        let request = CompleteRequest {
            key: attempt.key.clone(),
            attempt_id: attempt.attempt_id.clone(),
            result: Some(receipt.body.clone().into_bytes()),
            result_content_type: "application/json".to_owned(),
            downstream_ref: receipt.id.clone(),
            ..CompleteRequest::default()
        };
        let answer = self.ledger.clone().complete(request).await.context("failed to report")?;
        let state = answer.into_inner().intent.unwrap_or_default().state();
        let state = short(state.as_str_name(), "INTENT_STATE_");
        self.minutes
            .note(format!("Complete({}) tells the ledger: the intent is {state}", receipt.id));
        Ok(())
    }

    /// Hands the ledger's words to the model.
    fn pass_on(&self, model_message: &str) -> anyhow::Result<Told> {
        #[derive(Deserialize)]
        struct Message {
            note: String,
            check_with: Option<String>,
        }
        let message: Message = serde_json::from_str(model_message)
            .context("failed to read the ledger's message for the model")?;
        self.minutes.note(format!("for the model: \"{}\"", message.note));
        Ok(if message.check_with.is_some() { Told::Check } else { Told::Error })
    }
}

#[async_trait]
impl EmailTool for GuardedTool {
    async fn send(&self, call: &Call<'_>) -> anyhow::Result<Told> {
        let begun = self.begin(call).await?;
        match begun.decision() {
            Decision::Execute => self.execute(call, begun).await,
            Decision::Replay => {
                let result = begun.intent.unwrap_or_default().result.unwrap_or_default();
                let receipt = Receipt::read(String::from_utf8(result)?)?;
                self.minutes.note(format!("the first result, as a success: sent, {}", receipt.id));
                Ok(Told::Sent(receipt.id))
            }
            Decision::Hold | Decision::AwaitApproval | Decision::Refuse | Decision::Unspecified => {
                self.pass_on(&begun.model_message)
            }
        }
    }

    /// Looks before anything is repeated: asks the provider by the key that the mail carried.
    async fn status(&self) -> anyhow::Result<Told> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(attempt) = open else { return Ok(Told::Check) };
        match self.provider.find(&attempt.downstream_key).await? {
            Some(receipt) => {
                self.minutes.note(format!(
                    "get_email_status asks the provider by the mail's key: sent, {}",
                    receipt.id
                ));
                self.complete(&attempt, &receipt).await?;
                Ok(Told::Sent(receipt.id))
            }
            // Not there is no proof that it will not be: the intent stays unknown.
            None => Ok(Told::Check),
        }
    }
}

/// An enum's public name without its prefix.
pub(super) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}
