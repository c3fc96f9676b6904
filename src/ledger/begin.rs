//! Begin: may this caller have its effect now, or what has happened already?

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use uuid::Uuid;

pub use self::gates::Similar;
use self::round::{Inserted, Round};
use super::{Ledger, LedgerError, ROUNDS_MAX, history::Origin, shape};
use crate::{
    clock::Deadline,
    domain::{
        canonical_json::Json,
        decision::{BeginCall, Decision},
        identity::Call,
        repeat::{Answered, TraceId},
    },
    ids,
    store::Stored,
};

mod answer;
pub(super) mod candidates;
mod gates;
mod round;

/// What names an intent, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityRequest {
    /// The tool.
    pub tool: String,
    /// The run; may be empty.
    pub run_id: String,
    /// The step; may be empty.
    pub step_id: String,
    /// What the action is about.
    pub business_ids: BTreeMap<String, String>,
    /// The caller's own key.
    pub idempotency_key: String,
}

/// A Begin, as a caller sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BeginRequest {
    /// The tenant; empty for the default one.
    pub namespace: String,
    /// What names the intent.
    pub identity: IdentityRequest,
    /// The arguments, as JSON text.
    pub arguments_json: String,
    /// The caller's id of this try; empty for one minted here.
    pub attempt_id: String,
    /// The lease asked for.
    pub lease: Option<Duration>,
    /// The model's id of the tool call.
    pub tool_call_id: String,
    /// The calling process.
    pub caller: String,
    /// Pointers to what may be reworded, for a tool without a policy.
    pub free_text: Vec<String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// The trace that the call is part of.
    pub trace_id: Option<TraceId>,
}

/// What a Begin is answered.
#[derive(Debug, Clone)]
pub struct BeginAnswer {
    /// The decision, written already.
    pub decision: Decision,
    /// The row; `None` where nothing is recorded.
    pub row: Option<Arc<Stored>>,
    /// The id of the granted attempt, with EXECUTE only.
    pub attempt_id: Option<Uuid>,
    /// What is left of the lease, with EXECUTE only.
    pub lease: Option<Duration>,
    /// The key to send downstream; empty where nothing is recorded.
    pub downstream_key: String,
    /// The arguments that a person approved, with EXECUTE of an approved intent only.
    pub approved_arguments_json: String,
    /// What a tool may hand to the model.
    pub model_message: String,
    /// What the caller should know.
    pub warnings: Vec<&'static str>,
    /// Other intents that look the same.
    pub similar: Vec<Similar>,
    /// The tool, if the policy lists it.
    pub listed_tool: Option<String>,
}

/// A Begin whose shape is right.
struct Checked {
    call: BeginCall,
    identity: IdentityRequest,
    arguments: Json,
    origin: Origin,
}

impl Checked {
    fn as_call(&self) -> Call<'_> {
        Call {
            namespace: &self.call.namespace,
            tool: &self.call.tool,
            run_id: &self.call.run_id,
            step_id: &self.call.step_id,
            idempotency_key: &self.identity.idempotency_key,
            business_ids: &self.identity.business_ids,
            arguments: &self.arguments,
        }
    }
}

impl Ledger {
    /// Decides a Begin, and writes the decision before it is answered.
    pub async fn begin(
        &self,
        request: BeginRequest,
        deadline: Deadline,
    ) -> Result<BeginAnswer, LedgerError> {
        self.pace.called();
        let checked = check(request)?;
        let round = Round::new(self, &checked, deadline);
        match round.insert_unread().await? {
            Inserted::Answered(answer) => {
                self.note(&checked, &round, Ok(&answer));
                Ok(*answer)
            }
            // Boxed, so that the ordinary call does not carry the room that the others need.
            other => Box::pin(self.begin_in_rounds(&checked, round, other, deadline)).await,
        }
    }

    /// Decides what a fresh key does not decide.
    async fn begin_in_rounds<'a>(
        &'a self,
        checked: &'a Checked,
        mut round: Round<'a>,
        mut inserted: Inserted,
        deadline: Deadline,
    ) -> Result<BeginAnswer, LedgerError> {
        for _ in 0..ROUNDS_MAX {
            if let Inserted::Answered(answer) = inserted {
                self.note(checked, &round, Ok(&answer));
                return Ok(*answer);
            }
            if deadline.has_passed() {
                return Err(LedgerError::DeadlinePassed);
            }
            let answer = round.run(inserted).await.transpose();
            // Nothing was written, so nothing has compared the policy's version yet.
            let refused = match &answer {
                Some(Ok(answer)) => matches!(answer.decision, Decision::Refuse { .. }),
                Some(Err(error)) => matches!(error, LedgerError::Invalid(_)),
                None => false,
            };
            if let Some(answer) = answer
                && (!refused || !round.was_behind().await?)
            {
                self.note(checked, &round, answer.as_ref());
                return answer;
            }
            round = Round::new(self, checked, deadline);
            inserted = round.insert_unread().await?;
        }
        Err(LedgerError::Internal("a Begin met somebody else's write too often".to_owned()))
    }

    /// Remembers for people what a Begin was answered, now that it is.
    fn note(
        &self,
        checked: &Checked,
        round: &Round<'_>,
        answer: Result<&BeginAnswer, &LedgerError>,
    ) {
        let (call, listed) = (&checked.call, round.is_listed());
        match (round.met(), answer) {
            (Some(met), Ok(_))
            | (Some(met), Err(LedgerError::ParametersChanged { .. } | LedgerError::Invalid(_))) => {
                self.notes.repeated(call, listed, checked.origin, met);
            }
            (None, Ok(BeginAnswer { decision, row, .. })) => {
                let answered = Answered::from(decision);
                let begun = row.is_some();
                if let Some(row) = row
                    && checked.origin.named_attempt
                    && !answered.executes()
                {
                    // The row does not know it.
                    self.notes.asked_in_vain(row.intent.id(), call.attempt_id);
                }
                self.notes.answered(call, listed, answered, (begun, begun && answered.executes()));
            }
            // Malformed, or not answered at all.
            (_, Err(_)) => {}
        }
    }
}

fn check(request: BeginRequest) -> Result<Checked, LedgerError> {
    let namespace = shape::namespace(&request.namespace)?.to_owned();
    let identity = request.identity;
    shape::tool(&identity.tool)?;
    shape::name("identity.run_id", &identity.run_id)?;
    shape::name("identity.step_id", &identity.step_id)?;
    shape::name("tool_call_id", &request.tool_call_id)?;
    shape::name("caller", &request.caller)?;
    shape::labels(&request.labels)?;
    shape::lease(request.lease)?;
    let free_text = shape::free_text(&request.free_text)?;
    let attempt_id = shape::attempt_id(&request.attempt_id)?;
    let arguments = shape::arguments(&request.arguments_json)?;
    let origin = Origin { named_attempt: attempt_id.is_some(), trace_id: request.trace_id };
    let call = BeginCall {
        namespace,
        tool: identity.tool.clone(),
        run_id: identity.run_id.clone(),
        step_id: identity.step_id.clone(),
        attempt_id: attempt_id.unwrap_or_else(ids::random),
        caller: request.caller,
        tool_call_id: request.tool_call_id,
        lease: request.lease,
        labels: request.labels,
        free_text,
        arguments_json: said_or_empty(request.arguments_json),
    };
    Ok(Checked { call, identity, arguments, origin })
}

/// The arguments as they are shown to a person: none at all are an empty object.
fn said_or_empty(arguments_json: String) -> String {
    if arguments_json.is_empty() { "{}".to_owned() } else { arguments_json }
}
