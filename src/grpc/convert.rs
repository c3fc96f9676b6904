//! Generated types to requests of the ledger, and its answers back.

use std::{collections::BTreeMap, time::Duration};

use prost_types::Timestamp as ProtoTimestamp;
use uuid::Uuid;

use crate::{
    domain::{
        attempt::Failure,
        decision::Decision,
        event::{Event, EventKind, Provenance},
        identity::KeyBasis,
        intent::{Intent, State},
        repeat::{Answered, TraceId},
        time::Timestamp,
    },
    ledger::{
        BeginAnswer, BeginRequest, CompleteRequest, DecisionRequest, ExtendAnswer, ExtendRequest,
        FailRequest, IdentityRequest, ListRequest, Looked, LookupRequest, ReportedResult,
        ResolutionRequest, ResolveRequest, Similar, Target, Verdict, Violation,
    },
    proto::v1,
    reconciler::{SweepRequest, Totals},
    store::Filter,
};

pub(super) fn begin_request(
    request: v1::BeginRequest,
    trace_id: Option<TraceId>,
) -> Result<BeginRequest, Violation> {
    Ok(BeginRequest {
        namespace: request.namespace,
        identity: identity(request.identity.unwrap_or_default()),
        arguments_json: request.arguments_json,
        attempt_id: request.attempt_id,
        lease: duration("lease", request.lease)?,
        tool_call_id: request.tool_call_id,
        caller: request.caller,
        free_text: request.free_text,
        labels: request.labels,
        trace_id,
    })
}

fn identity(identity: v1::Identity) -> IdentityRequest {
    IdentityRequest {
        tool: identity.tool,
        run_id: identity.run_id,
        step_id: identity.step_id,
        business_ids: identity.business_ids,
        idempotency_key: identity.idempotency_key,
    }
}

pub(super) fn complete_request(request: v1::CompleteRequest) -> CompleteRequest {
    CompleteRequest {
        namespace: request.namespace,
        key: request.key,
        attempt_id: request.attempt_id,
        result: ReportedResult {
            bytes: request.result,
            content_type: request.result_content_type,
            sha256: request.result_sha256,
            size: request.result_size,
        },
        downstream_ref: request.downstream_ref,
    }
}

pub(super) fn fail_request(request: v1::FailRequest) -> Result<FailRequest, Violation> {
    let not_executed = match v1::FailureKind::try_from(request.kind) {
        Ok(v1::FailureKind::NotExecuted) => true,
        // A time-out or a 5xx is not a failure.
        Ok(v1::FailureKind::OutcomeUnknown | v1::FailureKind::Unspecified) => false,
        Err(_) => return Err(unknown_value("kind")),
    };
    Ok(FailRequest {
        namespace: request.namespace,
        key: request.key,
        attempt_id: request.attempt_id,
        not_executed,
        code: request.code,
        message: request.message,
        downstream_ref: request.downstream_ref,
    })
}

pub(super) fn extend_request(request: v1::ExtendRequest) -> Result<ExtendRequest, Violation> {
    Ok(ExtendRequest {
        namespace: request.namespace,
        key: request.key,
        attempt_id: request.attempt_id,
        lease: duration("lease", request.lease)?,
        downstream_ref: request.downstream_ref,
    })
}

pub(super) fn lookup_request(request: v1::LookupRequest) -> Result<LookupRequest, Violation> {
    use v1::lookup_request::By;
    Ok(LookupRequest {
        namespace: request.namespace,
        target: request.by.map(|by| match by {
            By::Key(key) => Target::Key(key),
            By::Identity(given) => Target::Identity(identity(given)),
            By::DownstreamKey(key) => Target::DownstreamKey(key),
            By::DownstreamRef(reference) => Target::DownstreamRef(reference),
            By::ToolCallId(id) => Target::ToolCallId(id),
        }),
        arguments_json: request.arguments_json,
        full: is_full(request.view)?,
        wait: duration("wait", request.wait)?,
    })
}

/// What a pass looks at: at most `limit` intents where the request does not say, and never more than
/// `limit_max`.
pub(super) fn sweep_request(
    request: &v1::ReconcileRequest,
    limit: usize,
    limit_max: usize,
) -> Result<SweepRequest, Violation> {
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let limit = match usize::try_from(request.limit) {
        Ok(0) => limit,
        Ok(asked) => asked.min(limit_max),
        Err(_) => return Err(Violation::new("limit", "PAGE_SIZE_INVALID", "must not be negative")),
    };
    Ok(SweepRequest {
        namespace: named(&request.namespace),
        tool: named(&request.tool),
        limit,
        dry_run: request.dry_run,
    })
}

pub(super) fn looked(looked: &Looked) -> v1::ReconcileResponse {
    v1::ReconcileResponse {
        key: looked.key.to_string(),
        tool: looked.tool.clone(),
        verdict: verdict(looked.verdict).into(),
        state_before: state(looked.state_before).into(),
        state_after: state(looked.state_after).into(),
        probe_count: i32::try_from(looked.probes).unwrap_or(i32::MAX),
        note: looked.note.clone(),
        needs_attention: looked.needs_attention,
        namespace: looked.namespace.clone(),
        totals: None,
    }
}

/// The last answer of a pass; `waiting` intents of its scope, by namespace, need a person.
pub(super) fn reconcile_totals(
    totals: Totals,
    waiting: BTreeMap<String, u64>,
    unsettled: u64,
) -> v1::ReconcileResponse {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let totals = v1::ReconcileTotals {
        looked_at_count: count(totals.looked_at),
        completed_count: count(totals.completed),
        failed_count: count(totals.failed),
        unknown_count: count(totals.unknown),
        unchanged_count: count(totals.unchanged),
        needs_attention_count: count(totals.needs_attention),
        unreachable_count: count(totals.unreachable),
        limit_reached: totals.limit_reached,
        attention_waiting_count: count(waiting.values().sum()),
        failed_look_count: count(totals.failed_looks),
        attention_waiting_counts: waiting.into_iter().map(|(name, it)| (name, count(it))).collect(),
        expired_count: count(totals.expired),
        unsettled_count: count(unsettled),
    };
    v1::ReconcileResponse { totals: Some(totals), ..v1::ReconcileResponse::default() }
}

fn verdict(verdict: Verdict) -> v1::Verdict {
    match verdict {
        Verdict::Completed => v1::Verdict::Completed,
        Verdict::NotExecuted => v1::Verdict::NotExecuted,
        Verdict::Absent => v1::Verdict::Absent,
        Verdict::Running => v1::Verdict::Running,
        Verdict::Duplicated => v1::Verdict::Duplicated,
        Verdict::Unmapped => v1::Verdict::Unmapped,
        Verdict::Unreachable => v1::Verdict::Unreachable,
        Verdict::NoEndpoint => v1::Verdict::NoEndpoint,
        Verdict::NotAsked => v1::Verdict::NotAsked,
        Verdict::Outdated => v1::Verdict::Outdated,
        Verdict::Expired => v1::Verdict::Expired,
    }
}

/// A list, and whether its intents carry their results and events.
pub(super) fn list_request(
    request: v1::ListIntentsRequest,
) -> Result<(ListRequest, bool), Violation> {
    let full = is_full(request.view)?;
    let states = request
        .states
        .iter()
        .map(|code| v1::IntentState::try_from(*code).ok().and_then(state_from))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| unknown_value("states"))?;
    let filter = Filter {
        namespace: request.namespace,
        tool: request.tool,
        run_id: request.run_id,
        states,
        needs_attention: request.needs_attention,
        conflict: request.conflict,
    };
    let list = ListRequest {
        filter,
        page_size: request.page_size,
        page_token: request.page_token,
        with_results: full,
    };
    Ok((list, full))
}

pub(super) fn resolve_request(
    request: v1::ResolveIntentRequest,
) -> Result<ResolveRequest, Violation> {
    let resolution = match v1::Resolution::try_from(request.resolution) {
        Ok(v1::Resolution::Executed) => Some(ResolutionRequest::Executed),
        Ok(v1::Resolution::NotExecuted) => Some(ResolutionRequest::NotExecuted),
        Ok(v1::Resolution::Acknowledged) => Some(ResolutionRequest::Acknowledged),
        Ok(v1::Resolution::Unspecified) => None,
        Err(_) => return Err(unknown_value("resolution")),
    };
    Ok(ResolveRequest {
        namespace: request.namespace,
        key: request.key,
        etag: request.etag,
        resolution,
        result: ReportedResult {
            bytes: request.result,
            content_type: request.result_content_type,
            ..ReportedResult::default()
        },
        reason: request.reason,
        actor: request.actor,
    })
}

pub(super) fn approve_request(request: v1::ApproveIntentRequest) -> DecisionRequest {
    let v1::ApproveIntentRequest { namespace, key, etag, reason, actor } = request;
    DecisionRequest { namespace, key, etag, reason, actor, yes: true }
}

pub(super) fn deny_request(request: v1::DenyIntentRequest) -> DecisionRequest {
    let v1::DenyIntentRequest { namespace, key, etag, reason, actor } = request;
    DecisionRequest { namespace, key, etag, reason, actor, yes: false }
}

fn is_full(view: i32) -> Result<bool, Violation> {
    match v1::IntentView::try_from(view) {
        Ok(v1::IntentView::Full) => Ok(true),
        Ok(v1::IntentView::Basic | v1::IntentView::Unspecified) => Ok(false),
        Err(_) => Err(unknown_value("view")),
    }
}

fn unknown_value(field: &str) -> Violation {
    Violation::new(field, "ENUM_VALUE_INVALID", "is a value that this server does not know")
}

pub(super) fn duration(
    field: &str,
    span: Option<prost_types::Duration>,
) -> Result<Option<Duration>, Violation> {
    span.map(|span| {
        // Looked at before it is normalised: the least of all seconds has no opposite.
        let whole = u64::try_from(span.seconds).ok().map(Duration::from_secs);
        let part = u64::try_from(span.nanos).ok().map(Duration::from_nanos);
        whole
            .zip(part)
            .and_then(|(whole, part)| whole.checked_add(part))
            .ok_or_else(|| Violation::new(field, "DURATION_INVALID", "must not be negative"))
    })
    .transpose()
}

/// Who looks at an intent: an attempt's id is for its own caller and for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Viewer {
    /// The caller of this attempt.
    Attempt(Option<Uuid>),
    /// An operator, who sees all.
    Operator,
}

impl Viewer {
    pub(super) fn of(attempt_id: &str) -> Self {
        Self::Attempt(Uuid::try_parse(attempt_id).ok())
    }

    fn sees(self, id: Uuid) -> String {
        match self {
            Self::Operator => id.to_string(),
            Self::Attempt(own) if own == Some(id) => id.to_string(),
            Self::Attempt(_) => String::new(),
        }
    }
}

/// An intent as `viewer` may see it.
pub(super) fn intent(
    intent: &Intent,
    expires_at: Option<Timestamp>,
    viewer: Viewer,
    events: Vec<Event>,
) -> v1::Intent {
    let current = intent.current();
    let result = intent.result.as_ref();
    let settlement = intent.settlement.as_ref();
    v1::Intent {
        key: intent.key.to_string(),
        key_basis: basis(intent.key_basis).into(),
        state: state(intent.state).into(),
        etag: intent.etag(),
        attempt: current.map_or(0, |attempt| i32::try_from(attempt.number).unwrap_or(i32::MAX)),
        attempt_id: current.map_or_else(String::new, |attempt| viewer.sees(attempt.id)),
        create_time: Some(time(intent.created_at)),
        start_time: current.map(|attempt| time(attempt.granted_at)),
        lease_expire_time: current.map(|attempt| time(attempt.lease_expires_at)),
        settle_time: intent.settled_at.map(time),
        expire_time: expires_at.map(time),
        result_content_type: result.map_or_else(String::new, |it| it.content_type.clone()),
        result_truncated: result.is_some_and(|result| result.truncated),
        result_sha256: result
            .filter(|result| result.bytes.is_some() || result.size > 0)
            .map_or_else(String::new, |result| const_hex::encode(result.sha256)),
        failure: intent
            .attempts
            .iter()
            .rev()
            .find_map(|attempt| attempt.failure.as_ref())
            .map(failure),
        provenance: settlement
            .map_or(v1::Provenance::Unspecified, |it| provenance(it.provenance))
            .into(),
        settled_by: settlement.map_or_else(String::new, |it| it.by.clone()),
        settle_note: settlement.map_or_else(String::new, |it| it.note.clone()),
        downstream_key: intent.announced_key(),
        replay_count: i64::try_from(intent.replay_count).unwrap_or(i64::MAX),
        last_seen_time: intent.last_seen_at.map(time),
        events: events.into_iter().map(|it| event(it, viewer)).collect(),
        result: result.and_then(|result| result.bytes.clone()),
        namespace: intent.namespace.clone(),
        tool: intent.tool.clone(),
        run_id: intent.run_id.clone(),
        step_id: intent.step_id.clone(),
        downstream_ref: intent.downstream_ref.clone().unwrap_or_default(),
        needs_attention: intent.needs_attention,
        conflict: intent.conflict,
        labels: intent.labels.clone(),
        arguments_json: String::new(),
    }
}

/// The arguments that a person decides on, as they were proposed; empty where nobody has to.
pub(super) fn arguments(intent: &Intent) -> String {
    let approval = intent.approval.as_ref();
    approval.map_or_else(String::new, |approval| approval.arguments_json.clone())
}

pub(super) fn begin_response(
    answer: BeginAnswer,
    expires_at: impl Fn(&Intent) -> Option<Timestamp>,
) -> v1::BeginResponse {
    let (decision, reason, retry_after) = decision(&answer.decision);
    let viewer = Viewer::Attempt(answer.attempt_id);
    v1::BeginResponse {
        decision: decision.into(),
        reason: reason.into(),
        intent: answer
            .row
            .map(|row| intent(&row.intent, expires_at(&row.intent), viewer, Vec::new())),
        attempt_id: answer.attempt_id.map_or_else(String::new, |id| id.to_string()),
        lease: answer.lease.map(span),
        downstream_key: answer.downstream_key,
        retry_after: retry_after.map(span),
        approved_arguments_json: answer.approved_arguments_json,
        model_message: answer.model_message,
        warnings: answer.warnings.into_iter().map(str::to_owned).collect(),
        similar: answer.similar.into_iter().map(similar).collect(),
    }
}

fn similar(similar: Similar) -> v1::SimilarIntent {
    let Similar { intent, pointers } = similar;
    v1::SimilarIntent {
        key: intent.key.to_string(),
        state: state(intent.state).into(),
        run_id: intent.run_id,
        create_time: Some(time(intent.created_at)),
        subject_pointers: pointers.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn extend_response(
    answer: ExtendAnswer,
    expires_at: Option<Timestamp>,
    viewer: Viewer,
) -> v1::ExtendResponse {
    v1::ExtendResponse {
        intent: Some(intent(&answer.row.intent, expires_at, viewer, Vec::new())),
        lease: Some(span(answer.lease)),
        warnings: answer.warnings.into_iter().map(str::to_owned).collect(),
    }
}

fn decision(decision: &Decision) -> (v1::Decision, v1::Reason, Option<Duration>) {
    let retry_after = match decision {
        Decision::Hold { retry_after, .. } => *retry_after,
        _ => None,
    };
    let (decision, reason) = reason_of(Answered::from(decision));
    (decision, reason, retry_after)
}

/// What a Begin was answered, as clients read it; an error is a refusal with its reason.
pub(super) fn reason_of(answered: Answered) -> (v1::Decision, v1::Reason) {
    use v1::{Decision as D, Reason as R};
    match answered {
        Answered::New => (D::Execute, R::New),
        Answered::Approved => (D::Execute, R::Approved),
        Answered::Retry => (D::Execute, R::Retry),
        Answered::NotExecuted => (D::Execute, R::NotExecuted),
        Answered::DownstreamDedupes => (D::Execute, R::DownstreamDedupes),
        Answered::Fenced => (D::Execute, R::Fenced),
        Answered::Resent => (D::Execute, R::Resent),
        Answered::NotRecorded => (D::Execute, R::NotRecorded),
        Answered::Completed => (D::Replay, R::Completed),
        Answered::ResultPruned => (D::Replay, R::ResultPruned),
        Answered::InFlight => (D::Hold, R::InFlight),
        Answered::Superseded => (D::Hold, R::Superseded),
        Answered::OutcomeUnknown => (D::Hold, R::OutcomeUnknown),
        Answered::NeedsAttention => (D::Hold, R::NeedsAttention),
        Answered::AwaitApproval => (D::AwaitApproval, R::ApprovalRequired),
        Answered::FailedFinal => (D::Refuse, R::FailedFinal),
        Answered::Denied => (D::Refuse, R::Denied),
        Answered::ToolNotListed => (D::Refuse, R::ToolNotListed),
        Answered::ToolHalted => (D::Refuse, R::ToolHalted),
        Answered::RunLimit => (D::Refuse, R::RunLimit),
        Answered::LookAlikeLimit => (D::Refuse, R::LookAlikeLimit),
        Answered::ParametersChanged => (D::Refuse, R::ParametersChanged),
        Answered::WeakKey => (D::Refuse, R::WeakKey),
        Answered::BusinessIdRequired => (D::Refuse, R::BusinessIdRequired),
        Answered::RunRequired => (D::Refuse, R::RunRequired),
    }
}

fn state(state: State) -> v1::IntentState {
    match state {
        State::AwaitingApproval => v1::IntentState::AwaitingApproval,
        State::Approved => v1::IntentState::Approved,
        State::Started => v1::IntentState::Started,
        State::Unknown => v1::IntentState::Unknown,
        State::Completed => v1::IntentState::Completed,
        State::Failed => v1::IntentState::Failed,
        State::Denied => v1::IntentState::Denied,
    }
}

fn state_from(state: v1::IntentState) -> Option<State> {
    match state {
        v1::IntentState::Unspecified => None,
        v1::IntentState::AwaitingApproval => Some(State::AwaitingApproval),
        v1::IntentState::Approved => Some(State::Approved),
        v1::IntentState::Started => Some(State::Started),
        v1::IntentState::Unknown => Some(State::Unknown),
        v1::IntentState::Completed => Some(State::Completed),
        v1::IntentState::Failed => Some(State::Failed),
        v1::IntentState::Denied => Some(State::Denied),
    }
}

fn basis(basis: KeyBasis) -> v1::KeyBasis {
    match basis {
        KeyBasis::IdempotencyKey => v1::KeyBasis::IdempotencyKey,
        KeyBasis::BusinessIds => v1::KeyBasis::BusinessIds,
        KeyBasis::Policy => v1::KeyBasis::Policy,
        KeyBasis::StepArguments => v1::KeyBasis::StepArguments,
    }
}

fn provenance(provenance: Provenance) -> v1::Provenance {
    match provenance {
        Provenance::Caller => v1::Provenance::Caller,
        Provenance::Reconciler => v1::Provenance::Reconciler,
        Provenance::Operator => v1::Provenance::Operator,
        Provenance::Policy => v1::Provenance::Policy,
    }
}

fn failure(failure: &Failure) -> v1::Failure {
    let kind = if failure.not_executed {
        v1::FailureKind::NotExecuted
    } else {
        v1::FailureKind::OutcomeUnknown
    };
    v1::Failure { kind: kind.into(), code: failure.code.clone(), message: failure.message.clone() }
}

fn event(event: Event, viewer: Viewer) -> v1::Event {
    v1::Event {
        time: Some(time(event.at)),
        kind: event_kind(event.kind).into(),
        provenance: provenance(event.provenance).into(),
        actor: event.actor,
        attempt_id: event.attempt_id.map_or_else(String::new, |id| viewer.sees(id)),
        state_before: state(event.state_before).into(),
        state_after: state(event.state_after).into(),
        note: event.note,
        downstream_ref: event.downstream_ref.unwrap_or_default(),
        result_sha256: event.result_sha256.map_or_else(String::new, const_hex::encode),
        code: event.code,
    }
}

fn event_kind(kind: EventKind) -> v1::EventKind {
    match kind {
        EventKind::LeftUnknown => v1::EventKind::LeftUnknown,
        EventKind::LateComplete => v1::EventKind::LateComplete,
        EventKind::Unproven => v1::EventKind::Unproven,
        EventKind::LateFail => v1::EventKind::LateFail,
        EventKind::Contradiction => v1::EventKind::Contradiction,
        EventKind::NotGranted => v1::EventKind::NotGranted,
        EventKind::NotStarted => v1::EventKind::NotStarted,
        EventKind::LeaseLost => v1::EventKind::LeaseLost,
        EventKind::Superseded => v1::EventKind::Superseded,
        EventKind::OrphanFact => v1::EventKind::OrphanFact,
        EventKind::Reconciled => v1::EventKind::Reconciled,
        EventKind::Probed => v1::EventKind::Probed,
        EventKind::Resolved => v1::EventKind::Resolved,
        EventKind::Acknowledged => v1::EventKind::Acknowledged,
        EventKind::Proposed => v1::EventKind::Proposed,
        EventKind::Approved => v1::EventKind::Approved,
        EventKind::Denied => v1::EventKind::Denied,
        EventKind::ApprovalExpired => v1::EventKind::ApprovalExpired,
    }
}

pub(super) fn time(at: Timestamp) -> ProtoTimestamp {
    let micros = at.micros();
    ProtoTimestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap_or(0),
    }
}

pub(super) fn span(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}
