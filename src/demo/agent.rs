//! An agent whose every layer means well and tries again.
//!
//! From the outside in: [`run_with_crash`], [`think`] (the model), [`orchestrate`], and the tool
//! itself with its HTTP client. The model is a script; what it is told is real.

use async_trait::async_trait;

use super::provider::MailClient;

/// How often the HTTP client sends a request before it gives up.
pub(super) const HTTP_TRIES: usize = 3;

/// How often the orchestrator runs a tool call before it hands the error to the model.
pub(super) const ORCHESTRATOR_TRIES: usize = 2;

/// Who caused a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    /// Nobody repeats anything yet.
    FirstCall,
    /// The HTTP or gRPC client repeats a request that got no answer.
    HttpClient,
    /// The orchestrator repeats a tool call that failed.
    Orchestrator,
    /// The model reads the error and calls the tool again, in other words.
    Model,
    /// A new process repeats a step that has no checkpoint.
    ResumedRun,
}

impl Layer {
    /// All of them, from the inside out.
    pub(super) const ALL: [Self; 5] =
        [Self::FirstCall, Self::HttpClient, Self::Orchestrator, Self::Model, Self::ResumedRun];

    /// What people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FirstCall => "first call",
            Self::HttpClient => "HTTP client",
            Self::Orchestrator => "orchestrator",
            Self::Model => "model",
            Self::ResumedRun => "resumed run",
        }
    }
}

/// One mail that somebody means to be sent, once.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) order: &'static str,
    pub(super) template: &'static str,
    pub(super) to: &'static str,
    /// The words that the model finds for it, one set each time it is asked.
    pub(super) subjects: &'static [&'static str],
}

/// One call of the tool.
#[derive(Debug, Clone)]
pub(super) struct Call<'a> {
    pub(super) mail: &'a Mail,
    pub(super) subject: &'a str,
    pub(super) layer: Layer,
    /// The model's name for the call; the orchestrator's repeats keep it.
    pub(super) tool_call_id: String,
}

/// What a tool tells the layers above it.
#[derive(Debug, Clone)]
pub(super) enum Told {
    /// The mail is sent; the provider's id.
    Sent(String),
    /// It may or may not be: there is no answer.
    Error,
    /// It may or may not be, and there is a tool to find out.
    Check,
}

/// The tool `send_email`, and the one to check on it.
#[async_trait]
pub(super) trait EmailTool: Send + Sync {
    /// `send_email`.
    async fn send(&self, call: &Call<'_>) -> anyhow::Result<Told>;

    /// `get_email_status`.
    async fn status(&self) -> anyhow::Result<Told>;
}

/// Runs the step in a process that dies after its work and before its checkpoint, then in a new one.
///
/// `start` gives a process its tool: what the first one has in memory is lost with it. Returns the
/// agent's last word.
pub(super) async fn run_with_crash<T: EmailTool>(
    mail: &Mail,
    start: impl Fn(&'static str) -> anyhow::Result<T>,
    crashed: impl FnOnce(),
) -> anyhow::Result<String> {
    let (reworded, resumed) = mail.subjects.split_at(2);
    let never_said = think(mail, reworded, Layer::FirstCall, &start("agent-1")?).await?;
    drop(never_said);
    crashed();
    think(mail, resumed, Layer::ResumedRun, &start("agent-2")?).await
}

/// The model: calls the tool, in other words after every error, and gives up when out of words.
pub(super) async fn think(
    mail: &Mail,
    subjects: &[&str],
    mut layer: Layer,
    tool: &dyn EmailTool,
) -> anyhow::Result<String> {
    let mut told = Told::Error;
    for (index, subject) in subjects.iter().enumerate() {
        let tool_call_id = format!("{}-call-{}", mail.template, index + 1);
        told = orchestrate(Call { mail, subject, layer, tool_call_id }, tool).await?;
        if matches!(told, Told::Sent(_)) {
            break;
        }
        layer = Layer::Model;
    }
    if matches!(told, Told::Check) {
        // It was told so before, and sent all the same: models mostly obey, not always.
        told = tool.status().await?;
    }
    Ok(match told {
        Told::Sent(id) => format!("The e-mail has been sent ({id})."),
        Told::Error => "Sorry, I could not send the e-mail.".to_owned(),
        Told::Check => "I do not know yet whether the e-mail was sent.".to_owned(),
    })
}

/// The orchestrator: runs the call again as long as it does not succeed.
async fn orchestrate(mut call: Call<'_>, tool: &dyn EmailTool) -> anyhow::Result<Told> {
    let mut told = tool.send(&call).await?;
    for _ in 1..ORCHESTRATOR_TRIES {
        if matches!(told, Told::Sent(_)) {
            break;
        }
        call.layer = Layer::Orchestrator;
        told = tool.send(&call).await?;
    }
    Ok(told)
}

/// The tool as it is commonly written: an HTTP client that repeats what times out.
pub(super) struct PlainTool {
    pub(super) provider: MailClient,
}

#[async_trait]
impl EmailTool for PlainTool {
    async fn send(&self, call: &Call<'_>) -> anyhow::Result<Told> {
        let mut layer = call.layer;
        for _ in 0..HTTP_TRIES {
            if let Some(receipt) = self.provider.send(call, layer, None).await? {
                return Ok(Told::Sent(receipt.id));
            }
            layer = Layer::HttpClient;
        }
        Ok(Told::Error)
    }

    async fn status(&self) -> anyhow::Result<Told> {
        // Nothing was sent that the provider could be asked by.
        Ok(Told::Error)
    }
}
