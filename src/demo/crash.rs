//! The second story: an agent that dies between the send and the report, and who settles it then.
//!
//! The agents (`agent`) are processes of their own, this program started once more, and what kills
//! them is SIGKILL. The mail provider is the [simulator](crate::downstream) that comes with the
//! ledger, which the policy tells the ledger how to ask. `report` has the words.

pub mod agent;
mod report;

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use serde::Serialize;
use tonic::transport::Channel;

use self::{
    agent::{Orders, Process, Word},
    report::Story,
};
use super::{APPROVED, PAID, Telling, agent::Mail, connect, guarded::short, start_server};
use crate::{
    downstream::{self, FaultKind, FaultRate, Faults, Options},
    proto::v1::{
        Intent, IntentState, LookupRequest,
        intent_ledger_service_client::IntentLedgerServiceClient, lookup_request::By,
    },
};

/// How long an agent may act. Short, for a reader who waits for its end.
const LEASE: Duration = Duration::from_secs(2);

/// How long after the lease's end an absence proves nothing.
const VISIBILITY: Duration = Duration::from_secs(1);

/// How often the server looks for calls that nobody settled.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(250);

/// Within this, on a busy machine, each of the two mails is settled; else something hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one Lookup waits for a change.
const LOOKUP_WAIT: prost_types::Duration = prost_types::Duration { seconds: 10, nanos: 0 };

/// When the agent is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Killed {
    /// Its mail has left the provider; the answer is on its way.
    AfterSend,
    /// It may send, and has not.
    BeforeSend,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Outcome {
    actions: Vec<Action>,
    exactly_once: bool,
}

impl Outcome {
    /// Whether every intended mail was sent exactly once, and the agents were told so.
    pub fn is_exactly_once(&self) -> bool {
        self.exactly_once
    }
}

/// One intended mail and what became of it.
#[derive(Debug, Serialize)]
struct Action {
    order: &'static str,
    template: &'static str,
    killed: Killed,
    intended: usize,
    sent: usize,
    ledger_answers: Vec<Answer>,
    /// How often the provider was asked what became of the mail.
    questions: u64,
    /// What the reconciler settled the dead agent's attempt as.
    reconciled_as: String,
    /// Who has the last word on the intent.
    settled_by: String,
    /// The provider's id of the mail, as the last agent knows it.
    told: String,
}

/// What an agent was answered.
#[derive(Debug, Serialize)]
struct Answer {
    asked_by: &'static str,
    decision: String,
    reason: String,
}

/// Who plays.
struct Stage {
    ledger: IntentLedgerServiceClient<Channel>,
    ledger_url: String,
    provider: downstream::Running,
}

/// Runs the story and tells it to `out`, line by line, as it happens.
///
/// # Errors
///
/// Whatever keeps one of the processes from starting or being reached, or `out` from being written.
pub async fn run(out: &mut dyn Write, telling: Telling) -> anyhow::Result<Outcome> {
    let folder = tempfile::Builder::new()
        .prefix("intent-ledger-demo-")
        .tempdir()
        .context("failed to make a folder for the ledger")?;
    let provider = downstream::start(Options::default()).await?;
    let policy = policy(&provider);
    let server = start_server(folder.path(), &policy, Some(RECONCILE_INTERVAL)).await?;
    let ledger = connect(server.grpc).await?;
    let stage = Stage { ledger, ledger_url: format!("http://{}", server.grpc), provider };

    report::introduction(out, telling)?;
    let mut actions = Vec::new();
    for (mail, killed) in [(&APPROVED, Killed::AfterSend), (&PAID, Killed::BeforeSend)] {
        let story = Story::begin(out, telling, killed)?;
        let played = tokio::time::timeout(PATIENCE, stage.play(mail, killed, story)).await;
        actions.push(played.context("the story came to no end")??);
    }
    let exactly_once = actions.iter().all(|action| stage.is_once(action));
    let outcome = Outcome { actions, exactly_once };
    report::table(out, telling, &outcome)?;

    let Stage { ledger, provider, .. } = stage;
    drop(ledger);
    server.stop().await;
    provider.stop().await;
    Ok(outcome)
}

/// What the server is told of the tool: how long it may take, and how to ask what became of it.
fn policy(provider: &downstream::Running) -> String {
    format!(
        r#"version = 1

[tools.send_email]
free_text = ["/subject"]
lease = "{}"

[tools.send_email.downstream.status]
http.url = "http://{}/v1/effects/by-key/{{downstream_key}}"
completed_when = "status == 200 && body.state == 'done'"
not_executed_when = "status == 404 && body.error == 'not_found'"
ref_at = "body.id"
visibility = "{}"
confirmations = 2
"#,
        humantime::format_duration(LEASE),
        provider.http,
        humantime::format_duration(VISIBILITY),
    )
}

impl Stage {
    /// One mail: an agent dies over it, another is held, the reconciler settles it, a third goes on.
    async fn play(
        &self,
        mail: &Mail,
        killed: Killed,
        mut story: Story<'_>,
    ) -> anyhow::Result<Action> {
        let mut answers = Vec::new();

        let mut first = self.agent("agent-1", mail, killed)?;
        let begun = first.begun().await?;
        let key = begun.key.clone();
        let asks = "agent-1 asks the ledger";
        answers.push(story.answer(asks, "agent-1", &begun)?);
        if killed == Killed::AfterSend {
            self.provider.until(|provider| provider.sent_count() == 1).await;
            story.line("agent-1 sends: the mail leaves the provider", &self.last_id())?;
        }
        first.kill9()?;
        // Nobody else is to lose an answer.
        self.provider.clear_faults();
        let silence = match killed {
            Killed::AfterSend => "no Complete, no Fail",
            Killed::BeforeSend => "before it sends",
        };
        story.line("agent-1 is killed (kill -9)", silence)?;

        let mut second = self.agent("agent-2", mail, Killed::AfterSend)?;
        let begun = second.begun().await?;
        answers.push(story.answer("agent-2, the resumed run, asks", "agent-2", &begun)?);
        second.ended().await?;

        let intent = self.settled(&key).await?;
        let reconciled_as = short(intent.state().as_str_name(), "INTENT_STATE_");
        let questions = self.provider.questions(&intent.downstream_key);
        let found = if intent.downstream_ref.is_empty() {
            "never heard of it".to_owned()
        } else {
            format!("sent, {}", intent.downstream_ref)
        };
        let times = if questions == 1 { "once" } else { &format!("{questions} times") };
        story.line(&format!("the ledger has asked the provider {times}"), &found)?;
        let by = short(intent.provenance().as_str_name(), "PROVENANCE_");
        story.line(&format!("the {by} settles the intent"), &reconciled_as)?;

        let mut third = self.agent("agent-3", mail, Killed::AfterSend)?;
        let begun = third.begun().await?;
        answers.push(story.answer("agent-3, resumed once more, asks", "agent-3", &begun)?);
        let mut told = begun.receipt;
        if begun.decision == "EXECUTE" {
            let Word::Settled { state, receipt } = third.word().await? else {
                bail!("agent-3 did not say what it settled");
            };
            story.line("agent-3 sends: the mail leaves the provider", &receipt)?;
            story.line("agent-3 reports: Complete", &state)?;
            told = receipt;
        }
        third.ended().await?;

        let settled_by = self.look(&key, None).await?.provenance();
        Ok(Action {
            order: mail.order,
            template: mail.template,
            killed,
            intended: 1,
            sent: self.sent(mail.template).len(),
            ledger_answers: answers,
            questions,
            reconciled_as,
            settled_by: short(settled_by.as_str_name(), "PROVENANCE_"),
            told,
        })
    }

    /// Starts a process of the agent; one that is to die after its send gets no answer before that.
    fn agent(&self, name: &'static str, mail: &Mail, killed: Killed) -> anyhow::Result<Process> {
        let dies = name == "agent-1";
        if dies && killed == Killed::AfterSend {
            let never = FaultRate::new(FaultKind::EffectThenTimeout.into(), 1.0)?;
            self.provider.set_faults(Faults::none().with_rate(never));
        }
        Process::start(&Orders {
            name: name.to_owned(),
            ledger: self.ledger_url.clone(),
            provider: format!("http://{}", self.provider.http),
            order: mail.order.to_owned(),
            template: mail.template.to_owned(),
            to: mail.to.to_owned(),
            subject: mail.subjects[0].to_owned(),
            waits_before_it_sends: dies && killed == Killed::BeforeSend,
        })
    }

    /// The intent, once somebody has settled it.
    async fn settled(&self, key: &str) -> anyhow::Result<Intent> {
        let mut intent = self.look(key, None).await?;
        while matches!(intent.state(), IntentState::Started | IntentState::Unknown) {
            intent = self.look(key, Some(LOOKUP_WAIT)).await?;
        }
        Ok(intent)
    }

    /// The intent; with a wait, when its state has changed, or after that.
    async fn look(&self, key: &str, wait: Option<prost_types::Duration>) -> anyhow::Result<Intent> {
        let by = Some(By::Key(key.to_owned()));
        let request = LookupRequest { by, wait, ..LookupRequest::default() };
        let answer = self.ledger.clone().lookup(request).await.context("failed to look")?;
        answer.into_inner().intent.context("the ledger showed no intent")
    }

    /// The ids of the mails of a template that left the provider.
    fn sent(&self, template: &str) -> Vec<String> {
        let sent = self.provider.sent().into_iter();
        sent.filter(|mail| mail.action.as_deref() == Some(template)).map(|mail| mail.id).collect()
    }

    fn last_id(&self) -> String {
        self.provider.sent().pop().map(|mail| mail.id).unwrap_or_default()
    }

    /// The mail was sent as often as it was meant, and the last agent knows it by its id.
    fn is_once(&self, action: &Action) -> bool {
        self.sent(action.template) == [action.told.as_str()]
    }
}
