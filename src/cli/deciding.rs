//! What `approve` and `deny` share: look, ask, decide on exactly what was looked at. `resolve` looks likewise.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use super::{
    answer::{Answer, Settled},
    client::{CallError, ClientFlags, Server},
    input::UsageError,
    output::Paint,
};
use crate::proto::v1::{self, lookup_request::By};

/// Flags of a person's decision.
#[derive(Debug, Args)]
pub(super) struct DecisionFlags {
    /// The key of the intent
    key: String,

    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Your name, for the record
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    actor: Option<String>,

    /// The version that you looked at
    #[arg(long, value_name = "ETAG", conflicts_with = "latest")]
    etag: Option<String>,

    /// Decide on whatever is there now, without being asked
    #[arg(long)]
    latest: bool,

    #[command(flatten)]
    pub(super) client: ClientFlags,
}

/// A decision, ready to be sent.
pub(super) struct Decision {
    pub(super) namespace: String,
    pub(super) key: String,
    pub(super) etag: String,
    pub(super) reason: String,
    pub(super) actor: String,
}

/// Has a person decide, and prints the intent afterwards.
pub(super) fn run(
    flags: &DecisionFlags,
    verb: &str,
    send: impl AsyncFn(&mut Server, Decision) -> anyhow::Result<Option<v1::Intent>>,
) -> anyhow::Result<u8> {
    let client = &flags.client;
    let actor = flags.actor.clone().filter(|actor| !actor.is_empty());
    let mut decision = Decision {
        namespace: client.namespace.clone(),
        key: flags.key.clone(),
        etag: flags.etag.clone().unwrap_or_default(),
        reason: flags.reason.clone(),
        actor: actor
            .ok_or_else(|| UsageError("--actor: your name is not in $USER; give it".to_owned()))?,
    };
    let looks = decision.etag.is_empty();
    let asks = looks && !flags.latest;
    if asks && (client.json || !io::stdin().is_terminal()) {
        let needed =
            "--etag or --latest: nobody can be asked here; say which version is decided on";
        return Err(UsageError(needed.to_owned()).into());
    }
    client.run_for_status(async |server| {
        if looks {
            decision.etag = look(client, &flags.key, &format!("to {verb}"), server).await?;
        }
        if asks && !is_sure(verb)? {
            eprintln!("nothing was decided");
            return Ok(1);
        }
        let intent = send(server, decision).await?;
        client.print(&Settled { intent, lease: None, warnings: None })?;
        Ok(0)
    })
}

/// Shows a person what is about to be decided, under a heading; its etag.
pub(super) async fn look(
    client: &ClientFlags,
    key: &str,
    heading: &str,
    server: &mut Server,
) -> anyhow::Result<String> {
    let request = v1::LookupRequest {
        namespace: client.namespace.clone(),
        by: Some(By::Key(key.to_owned())),
        view: v1::IntentView::Full.into(),
        ..v1::LookupRequest::default()
    };
    let answer = server.ledger.lookup(client.request(request)).await;
    let intent = answer.map_err(CallError::from)?.into_inner().intent.unwrap_or_default();
    let etag = intent.etag.clone();
    if !client.json {
        let shown = Settled { intent: Some(intent), lease: None, warnings: None };
        eprintln!("{heading}:\n{}", shown.text(Paint::stderr()));
    }
    Ok(etag)
}

fn is_sure(verb: &str) -> io::Result<bool> {
    eprint!("{verb} it? [y/N] ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
