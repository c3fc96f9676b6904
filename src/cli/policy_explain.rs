//! `policy explain`: what a policy makes of one sample call.

use std::{fmt, time::Duration};

use clap::Args;
use serde::{Serialize, Serializer};

use super::{
    identity::IdentityFlags,
    input,
    output::{self, Lines, Paint},
    policy,
};
use crate::{
    domain::{
        attempt::GrantedOn,
        decision::{Decision, ExecuteReason, RefuseReason},
        look_alike::{LookAlikeAction, LookAlikeRule},
        tool::{Class, StatusRule, ToolPolicy},
    },
    ledger::DEFAULT_NAMESPACE,
    policy::{
        Need, Policy,
        explain::{Asked, ExplainError, Explanation, Sample, explain},
        show_span,
        status::{Face, MissingValue},
    },
    telemetry::chain,
};

const EXAMPLE: &str = "\
The call is explained as one that nobody has made before. No server is needed.

Example:
  $ echo '{\"order_id\":8812,\"template\":\"paid\",\"to\":\"ada@example.com\"}' |
      intent-ledger policy explain examples/policy.toml send_email - --run run-1";

/// Flags of `policy explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ExplainFlags {
    /// The policy file
    file: String,

    /// The tool that is called
    tool: String,

    /// A file with the arguments of the call, a JSON object; - for standard input
    #[arg(value_name = "ARGS.json")]
    args: String,

    /// The tenant
    #[arg(long, env = "INTENT_LEDGER_NAMESPACE", value_name = "NAME",
          default_value = DEFAULT_NAMESPACE, hide_env_values = true)]
    namespace: String,

    #[command(flatten)]
    identity: IdentityFlags,

    /// A label of the call, which an approval may depend on; as often as needed
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::pair)]
    label: Vec<(String, String)>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An explanation as it is printed.
#[derive(Serialize)]
struct Explained {
    decision: &'static str,
    reason: Option<&'static str>,
    class: &'static str,
    listed: bool,
    key: Option<String>,
    key_basis: Option<&'static str>,
    fingerprint: Option<String>,
    downstream_key: Option<String>,
    lease: Option<Span>,
    lease_max: Span,
    max_attempts: u32,
    downstream_deduplicates: Option<Span>,
    retention: Span,
    check_with: Option<String>,
    approval: Option<ExplainedApproval>,
    limit_per_run: Option<u32>,
    halted: bool,
    look_alike: Option<ExplainedLookAlike>,
    status: Option<ExplainedStatus>,
    warnings: Vec<&'static str>,
}

/// Whether a person is asked, as it is printed.
#[derive(Serialize)]
struct ExplainedApproval {
    needed: bool,
    /// The expression; absent where every call needs a person.
    when: Option<String>,
    /// Why the expression says nothing of this call.
    unclear: Option<String>,
    expires: Span,
    valid_for: Span,
}

/// What is compared, as it is printed.
#[derive(Serialize)]
struct ExplainedLookAlike {
    subject: Vec<String>,
    window: Span,
    action: &'static str,
}

/// How the downstream is asked, as it is printed.
#[derive(Serialize)]
struct ExplainedStatus {
    protocol: &'static str,
    method: Option<String>,
    /// What is connected to, or the URL as the policy has it.
    address: String,
    /// The URL for the sample, where everything is there.
    url: Option<String>,
    /// What is not there.
    missing: Option<String>,
    timeout: Span,
    /// The environment variables that the headers need.
    variables: Vec<String>,
    visibility: Span,
    confirmations: u32,
    probe_on_begin: bool,
    give_up_after: Span,
}

#[derive(Serialize)]
struct ErrorObject {
    error: Refusal,
}

#[derive(Serialize)]
struct Refusal {
    reason: &'static str,
    message: String,
}

pub(super) fn run(flags: &ExplainFlags) -> anyhow::Result<u8> {
    let arguments_json = input::file_text("ARGS.json", &flags.args)?;
    let policy = match Policy::from_text(&input::file_text("FILE", &flags.file)?) {
        Ok(policy) => policy,
        Err(error) if flags.json => {
            let message = policy::mistakes(&flags.file, &error).trim_end().to_owned();
            return refuse("POLICY_INVALID", message);
        }
        Err(error) => {
            eprint!("{}", policy::mistakes(&flags.file, &error));
            return Ok(1);
        }
    };
    let sample = Sample {
        namespace: &flags.namespace,
        tool: &flags.tool,
        run_id: &flags.identity.run,
        step_id: &flags.identity.step,
        idempotency_key: &flags.identity.idempotency_key,
        business_ids: &input::map("--business-id", &flags.identity.business_id)?,
        labels: &input::map("--label", &flags.label)?,
        arguments_json: &arguments_json,
    };
    let explained = match explain(&policy, &sample) {
        Ok(explanation) => explained(explanation),
        Err(error) => {
            let (reason, message) = (reason(&error), chain(&error));
            if flags.json {
                return refuse(reason, message);
            }
            eprintln!("intent-ledger: {reason}: {}", output::plain(&message));
            return Ok(1);
        }
    };
    let text = if flags.json { output::line(&explained)? } else { text(&explained) };
    output::write(&text)?;
    Ok(0)
}

fn refuse(reason: &'static str, message: String) -> anyhow::Result<u8> {
    output::write(&output::line(&ErrorObject { error: Refusal { reason, message } })?)?;
    Ok(1)
}

fn explained(explanation: Explanation) -> Explained {
    let Explanation {
        rule,
        need,
        approval_when,
        decision,
        identity,
        downstream_key,
        lease,
        asked,
        warnings,
    } = explanation;
    let (decision, reason) = words(&decision);
    let approval = approval(&rule, &need, approval_when);
    Explained {
        decision,
        reason,
        class: class(rule.class),
        listed: rule.listed,
        key: identity.map(|identity| identity.key.to_string()),
        key_basis: identity.map(|identity| identity.basis.as_str()),
        fingerprint: identity.map(|identity| identity.fingerprint.to_string()),
        downstream_key,
        lease: lease.map(Span),
        lease_max: Span(rule.lease_max),
        max_attempts: if rule.retry_failed { rule.max_attempts } else { 1 },
        downstream_deduplicates: rule.downstream.dedup_window.map(Span),
        retention: Span(rule.retention),
        check_with: rule.check_with.clone(),
        approval,
        limit_per_run: rule.limit_per_run,
        halted: rule.halted,
        look_alike: rule.look_alike.as_ref().map(look_alike),
        status: asked.zip(rule.downstream.status).map(|(asked, when)| status(&asked, when, &rule)),
        warnings,
    }
}

fn approval(rule: &ToolPolicy, need: &Need, when: Option<String>) -> Option<ExplainedApproval> {
    let terms = rule.approval?;
    let unclear = match need {
        Need::Unclear(why) => Some(why.clone()),
        Need::NoGate | Need::No | Need::Yes => None,
    };
    Some(ExplainedApproval {
        needed: need.is_there(),
        when,
        unclear,
        expires: Span(terms.expires),
        valid_for: Span(terms.valid_for),
    })
}

fn look_alike(rule: &LookAlikeRule) -> ExplainedLookAlike {
    ExplainedLookAlike {
        subject: rule.pointers().iter().map(ToString::to_string).collect(),
        window: Span(rule.window),
        action: match rule.action {
            LookAlikeAction::Warn => "warn",
            LookAlikeAction::AwaitApproval => "await_approval",
            LookAlikeAction::Refuse => "refuse",
        },
    }
}

fn status(asked: &Asked, when: StatusRule, rule: &ToolPolicy) -> ExplainedStatus {
    let endpoint = &*asked.endpoint;
    let (protocol, method, address) = match &endpoint.face {
        Face::Http(http) => ("http", Some(http.method.clone()), http.url_template()),
        Face::Grpc(grpc) => ("grpc", None, grpc.target.clone()),
    };
    let (url, missing) = match asked.url.clone().transpose() {
        Ok(url) => (url, None),
        Err(error) => (None, Some(error)),
    };
    let variables = endpoint.headers.iter().flat_map(|header| header.variables());
    ExplainedStatus {
        protocol,
        method,
        address,
        url,
        missing: missing.as_ref().map(MissingValue::to_string),
        timeout: Span(endpoint.timeout),
        variables: variables.map(str::to_owned).collect(),
        visibility: Span(when.visibility),
        confirmations: when.confirmations,
        probe_on_begin: when.probe_on_begin,
        give_up_after: Span(rule.give_up_after),
    }
}

fn text(it: &Explained) -> String {
    let mut lines = Lines::default();
    let reason = it.reason.map(|reason| format!(" {reason}")).unwrap_or_default();
    lines.add_word("decision", format!("{}{reason}", it.decision));
    let unlisted = if it.listed { "" } else { " (the policy has no section for this tool)" };
    lines.add("class", format!("{}{unlisted}", it.class));
    let mut some = |name, value: Option<&str>| lines.add(name, value.unwrap_or_default());
    some("key", it.key.as_deref());
    some("key basis", it.key_basis);
    some("fingerprint", it.fingerprint.as_deref());
    some("downstream key", it.downstream_key.as_deref());
    let spoken = |span: &Option<Span>| span.as_ref().map(ToString::to_string);
    some("lease", spoken(&it.lease).as_deref());
    some("deduplicated for", spoken(&it.downstream_deduplicates).as_deref());
    some("check with", it.check_with.as_deref());
    if it.key.is_some() {
        lines.add("attempts", format!("at most {}", it.max_attempts));
        lines.add("result kept for", it.retention.to_string());
    }
    gate_lines(it, &mut lines);
    if let Some(status) = &it.status {
        status_lines(status, &mut lines);
    }
    lines.add("warnings", it.warnings.join(" "));
    lines.render(Paint::stdout())
}

fn gate_lines(it: &Explained, lines: &mut Lines) {
    if let Some(approval) = &it.approval {
        let needed = if approval.needed { "yes" } else { "no" };
        let why = match (&approval.when, &approval.unclear) {
            (Some(when), Some(unclear)) => format!(", since {when} says nothing of it: {unclear}"),
            (Some(when), None) if approval.needed => format!(", since {when}"),
            (Some(when), None) => format!(", since not {when}"),
            (None, _) => ", as every call of the tool".to_owned(),
        };
        lines.add("needs a person", format!("{needed}{why}"));
        let terms = format!("within {}, good for {}", approval.expires, approval.valid_for);
        lines.add("decided", terms);
    }
    if let Some(limit) = it.limit_per_run {
        lines.add("in one run", format!("at most {limit}"));
    }
    if it.halted {
        lines.add("halted", "yes: nothing is granted");
    }
    if let Some(alike) = &it.look_alike {
        let (subject, window, action) = (alike.subject.join(" "), &alike.window, alike.action);
        lines.add("look-alikes", format!("{action}: the same {subject} within {window}"));
    }
}

fn status_lines(it: &ExplainedStatus, lines: &mut Lines) {
    let how = it.method.as_deref().unwrap_or("gRPC");
    let missing = it.missing.as_ref().map(|missing| format!(" ({missing})")).unwrap_or_default();
    let address = it.url.as_ref().unwrap_or(&it.address);
    lines.add("asked at", format!("{how} {address}{missing}"));
    lines.add("asked with", it.variables.join(" "));
    let absences = format!("{} in a row, {} after the lease", it.confirmations, it.visibility);
    lines.add("absence takes", absences);
    lines.add("probe on begin", if it.probe_on_begin { "yes" } else { "no" });
    lines.add("gives up after", it.give_up_after.to_string());
}

/// A span: for programs in seconds, as in the answers of the service; for people as a policy file has it.
struct Span(Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let span = prost_types::Duration::try_from(self.0);
        span.map(|span| span.to_string()).unwrap_or_default().serialize(serializer)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_span(self.0))
    }
}

fn class(class: Class) -> &'static str {
    match class {
        Class::ReadOnly => "read_only",
        Class::Idempotent => "idempotent",
        Class::Effectful => "effectful",
    }
}

/// A decision on a call that nobody has made before, in words of the contract.
fn words(decision: &Decision) -> (&'static str, Option<&'static str>) {
    match decision {
        Decision::Execute { reason: ExecuteReason::Granted(GrantedOn::New), .. } => {
            ("EXECUTE", Some("NEW"))
        }
        Decision::NotRecorded => ("EXECUTE", Some("NOT_RECORDED")),
        Decision::AwaitApproval { .. } => ("AWAIT_APPROVAL", Some("APPROVAL_REQUIRED")),
        Decision::WeakKey => ("INVALID_ARGUMENT", Some("WEAK_KEY")),
        Decision::BusinessIdRequired { .. } => ("INVALID_ARGUMENT", Some("BUSINESS_ID_REQUIRED")),
        Decision::RunRequired => ("INVALID_ARGUMENT", Some("RUN_REQUIRED")),
        Decision::Refuse { reason } => ("REFUSE", Some(refused(*reason))),
        // These are about a row, and there is none.
        Decision::Execute { .. } => ("EXECUTE", None),
        Decision::Replay { .. } => ("REPLAY", None),
        Decision::Hold { .. } => ("HOLD", None),
        Decision::ParametersChanged { .. } => ("FAILED_PRECONDITION", None),
    }
}

fn refused(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::FailedFinal => "FAILED_FINAL",
        RefuseReason::Denied => "DENIED",
        RefuseReason::ToolNotListed => "TOOL_NOT_LISTED",
        RefuseReason::ToolHalted => "TOOL_HALTED",
        RefuseReason::RunLimit => "RUN_LIMIT",
        RefuseReason::LookAlikeLimit => "LOOK_ALIKE_LIMIT",
    }
}

/// The reason that the server would give.
fn reason(error: &ExplainError) -> &'static str {
    match error {
        ExplainError::Name { .. } => "NAME_INVALID",
        ExplainError::Arguments(error) => error.reason(),
        ExplainError::NotAnObject => "ARGUMENTS_NOT_OBJECT",
        ExplainError::Identity(error) => error.reason(),
    }
}
