//! Short ways to say a call, in the words of the cases.

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, CompleteRequest, Decision, FailRequest, FailureKind, Identity,
    IntentState, LookupRequest, Reason, intent_ledger_service_client::IntentLedgerServiceClient,
    lookup_request::By,
};
use tonic::{Status, transport::Channel};
use tonic_types::StatusExt;

pub(crate) type Agent = IntentLedgerServiceClient<Channel>;

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
