//! Short ways to say a call, in the words of the cases.

use intent_ledger::proto::v1::{
    ApproveIntentRequest, BeginRequest, BeginResponse, CompleteRequest, Decision,
    DenyIntentRequest, Event, EventKind, ExtendRequest, ExtendResponse, FailRequest, FailureKind,
    Identity, Intent, IntentState, IntentView, LookupRequest, Reason, Resolution,
    ResolveIntentRequest, intent_ledger_service_client::IntentLedgerServiceClient,
    intent_operations_service_client::IntentOperationsServiceClient, lookup_request::By,
};
use tonic::{Status, transport::Channel};
use tonic_types::StatusExt;

pub(crate) type Agent = IntentLedgerServiceClient<Channel>;
pub(crate) type Operator = IntentOperationsServiceClient<Channel>;

/// The policy of the cases: tool `charge`, identity `/order`, free text `/memo`.
pub(crate) const CHARGE_POLICY: &str = r#"
version = 1
[defaults]
scope = "namespace"
[tools.charge]
identity = ["/order"]
free_text = ["/memo"]
"#;

/// A fresh attempt id.
pub(crate) fn attempt() -> String {
    intent_ledger::ids::random().to_string()
}

/// A Begin of tool `charge` with a fresh attempt id.
pub(crate) fn charge(order: &str, amount: u64, memo: &str) -> BeginRequest {
    charge_json(&format!(r#"{{"order":"{order}","amount":{amount},"memo":"{memo}"}}"#))
}

/// A Begin of tool `charge` with these arguments.
pub(crate) fn charge_json(arguments: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity { tool: "charge".into(), ..Identity::default() }),
        arguments_json: arguments.to_owned(),
        attempt_id: attempt(),
        ..BeginRequest::default()
    }
}

/// A Begin that names its intent by a key.
pub(crate) fn keyed(tool: &str, key: &str, arguments: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity {
            tool: tool.into(),
            idempotency_key: key.into(),
            ..Identity::default()
        }),
        arguments_json: arguments.to_owned(),
        attempt_id: attempt(),
        ..BeginRequest::default()
    }
}

/// A Complete of what a Begin was granted.
pub(crate) fn completion(granted: &BeginResponse, result: &[u8]) -> CompleteRequest {
    CompleteRequest {
        key: key_of(granted),
        attempt_id: granted.attempt_id.clone(),
        result: Some(result.to_vec()),
        result_content_type: "application/json".into(),
        ..CompleteRequest::default()
    }
}

/// A Fail of what a Begin was granted.
pub(crate) fn failure(granted: &BeginResponse, kind: FailureKind, code: &str) -> FailRequest {
    FailRequest {
        key: key_of(granted),
        attempt_id: granted.attempt_id.clone(),
        kind: kind.into(),
        code: code.into(),
        ..FailRequest::default()
    }
}

pub(crate) fn by_key(key: &str) -> LookupRequest {
    LookupRequest { by: Some(By::Key(key.to_owned())), ..LookupRequest::default() }
}

pub(crate) fn key_of(answer: &BeginResponse) -> String {
    answer.intent.as_ref().expect("a recorded intent").key.clone()
}

pub(crate) fn state_of(answer: &BeginResponse) -> IntentState {
    answer.intent.as_ref().expect("a recorded intent").state()
}

pub(crate) async fn begin(agent: &Agent, request: BeginRequest) -> BeginResponse {
    agent.clone().begin(request).await.expect("an OK response").into_inner()
}

/// Begins and expects this answer.
pub(crate) async fn expect(
    agent: &Agent,
    request: BeginRequest,
    decision: Decision,
    reason: Reason,
) -> BeginResponse {
    let answer = begin(agent, request).await;
    assert_eq!((answer.decision(), answer.reason()), (decision, reason), "{answer:?}");
    answer
}

/// The reason of an error, as a client reads it.
pub(crate) fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details.error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

/// One entry of an error's metadata.
pub(crate) fn metadata(status: &Status, name: &str) -> String {
    let details = status.get_error_details();
    details.error_info().and_then(|info| info.metadata.get(name).cloned()).unwrap_or_default()
}

/// Begins and expects an error of this reason.
pub(crate) async fn refused(agent: &Agent, request: BeginRequest, expected: &str) -> Status {
    let error = agent.clone().begin(request).await.expect_err("an error");
    assert_eq!(reason(&error), expected, "{error:?}");
    error
}

/// The intent as a reader sees it, with its events.
pub(crate) async fn look(agent: &Agent, key: &str) -> Intent {
    let request = LookupRequest { view: IntentView::Full.into(), ..by_key(key) };
    agent.clone().lookup(request).await.expect("the intent is there").into_inner().intent.unwrap()
}

pub(crate) fn kinds(intent: &Intent) -> Vec<EventKind> {
    intent.events.iter().map(Event::kind).collect()
}

/// The reason of what must have been an error.
pub(crate) fn error_of<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    reason(&answer.expect_err("an error"))
}

/// A request with an attempt id of the test's choice.
pub(crate) fn with_attempt(request: BeginRequest, attempt_id: &str) -> BeginRequest {
    BeginRequest { attempt_id: attempt_id.to_owned(), ..request }
}

/// A Begin of a step of a run.
pub(crate) fn step(tool: &str, run: &str, step: &str, arguments: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity {
            tool: tool.into(),
            run_id: run.into(),
            step_id: step.into(),
            ..Identity::default()
        }),
        ..keyed(tool, "", arguments)
    }
}

/// A Begin that says what it is about.
pub(crate) fn about(tool: &str, run: &str, ids: &[(&str, &str)], arguments: &str) -> BeginRequest {
    BeginRequest {
        identity: Some(Identity {
            tool: tool.into(),
            run_id: run.into(),
            business_ids: ids.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..Identity::default()
        }),
        ..keyed(tool, "", arguments)
    }
}

/// A span as the API writes it.
pub(crate) fn span(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

pub(crate) async fn complete(agent: &Agent, request: CompleteRequest) -> Result<Intent, Status> {
    Ok(agent.clone().complete(request).await?.into_inner().intent.unwrap())
}

pub(crate) async fn fail(agent: &Agent, request: FailRequest) -> Result<Intent, Status> {
    Ok(agent.clone().fail(request).await?.into_inner().intent.unwrap())
}

pub(crate) async fn lookup(agent: &Agent, request: LookupRequest) -> Result<Intent, Status> {
    Ok(agent.clone().lookup(request).await?.into_inner().intent.unwrap())
}

/// A heartbeat of what a Begin was granted.
pub(crate) async fn extend(
    agent: &Agent,
    granted: &BeginResponse,
    lease_seconds: i64,
    downstream_ref: &str,
) -> Result<ExtendResponse, Status> {
    let request = ExtendRequest {
        key: key_of(granted),
        attempt_id: granted.attempt_id.clone(),
        lease: Some(span(lease_seconds)),
        downstream_ref: downstream_ref.to_owned(),
        ..ExtendRequest::default()
    };
    Ok(agent.clone().extend(request).await?.into_inner())
}

/// Begins, and has it completed with this result.
pub(crate) async fn completed(agent: &Agent, request: BeginRequest, result: &[u8]) -> Intent {
    let granted = expect(agent, request, Decision::Execute, Reason::New).await;
    complete(agent, completion(&granted, result)).await.unwrap()
}

/// A person's word on an intent, on the version that is there now.
pub(crate) async fn resolution(
    agent: &Agent,
    key: &str,
    resolution: Resolution,
) -> ResolveIntentRequest {
    ResolveIntentRequest {
        key: key.to_owned(),
        etag: look(agent, key).await.etag,
        resolution: resolution.into(),
        reason: "asked the provider".into(),
        actor: "ada".into(),
        ..ResolveIntentRequest::default()
    }
}

pub(crate) async fn resolve(
    operator: &Operator,
    request: ResolveIntentRequest,
) -> Result<Intent, Status> {
    Ok(operator.clone().resolve_intent(request).await?.into_inner().intent.unwrap())
}

/// A person's yes to what was looked at.
pub(crate) fn approval(intent: &Intent, actor: &str) -> ApproveIntentRequest {
    ApproveIntentRequest {
        namespace: intent.namespace.clone(),
        key: intent.key.clone(),
        etag: intent.etag.clone(),
        reason: "it is right".into(),
        actor: actor.into(),
    }
}

/// A person's no to what was looked at.
pub(crate) fn denial(intent: &Intent, actor: &str) -> DenyIntentRequest {
    let ApproveIntentRequest { namespace, key, etag, actor, .. } = approval(intent, actor);
    DenyIntentRequest { namespace, key, etag, reason: "it is wrong".into(), actor }
}

pub(crate) async fn approve(
    operator: &Operator,
    request: ApproveIntentRequest,
) -> Result<Intent, Status> {
    Ok(operator.clone().approve_intent(request).await?.into_inner().intent.unwrap())
}

pub(crate) async fn deny(
    operator: &Operator,
    request: DenyIntentRequest,
) -> Result<Intent, Status> {
    Ok(operator.clone().deny_intent(request).await?.into_inner().intent.unwrap())
}

/// Shorter ways to read an answer.
pub(crate) trait BeginResponseExt {
    /// The row that the answer is about.
    fn recorded(&self) -> &Intent;
}

impl BeginResponseExt for BeginResponse {
    fn recorded(&self) -> &Intent {
        self.intent.as_ref().expect("a recorded intent")
    }
}
