//! An intent: one effect that somebody means to have, and where it stands.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::{
    approval::Approval,
    attempt::{Attempt, Fate},
    canonical_json::Pointer,
    event::Provenance,
    fingerprint::{ArgumentDigests, Fingerprint},
    identity::{Key, KeyBasis, downstream_digest, downstream_uuid},
    time::Timestamp,
    tool::ToolPolicy,
};

/// Where an intent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// A person must decide first. Entered by a gated Begin; left by Approve, Deny or expiry.
    AwaitingApproval,
    /// Decided yes, not begun. Left by the one Begin that gets EXECUTE, or by the end of its validity.
    Approved,
    /// An attempt holds the right to execute, or held it and nobody has settled.
    Started,
    /// Somebody tried and nobody knows. Left by evidence only, never by age.
    Unknown,
    /// The effect happened. Final.
    Completed,
    /// The effect certainly did not happen. Left by a new attempt, unless final.
    Failed,
    /// A person said no, or nobody decided in time. Left by a new proposal.
    Denied,
}

/// What can happen to an intent, as its state sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transition {
    /// A call waits for a person (again).
    Propose,
    /// A person said yes.
    Approve,
    /// A person said no, or the time for it ran out.
    Deny,
    /// An attempt is granted the right to execute.
    Grant,
    /// There is evidence that the effect happened.
    Executed,
    /// Every granted attempt is known not to have had its effect.
    NotExecuted,
    /// An attempt was made, and its effect is not known.
    LoseTrack,
}

/// A move that the state machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("apply {transition:?} to an intent in state {state}")]
pub struct TransitionError {
    /// The state that the intent was in.
    pub state: State,
    /// What was to happen.
    pub transition: Transition,
}

impl State {
    /// Every state, in the order of the contract.
    pub const ALL: [Self; 7] = [
        Self::AwaitingApproval,
        Self::Approved,
        Self::Started,
        Self::Unknown,
        Self::Completed,
        Self::Failed,
        Self::Denied,
    ];

    /// The state after `transition`: the one place that says which moves there are.
    pub fn after(self, transition: Transition) -> Result<Self, TransitionError> {
        use State as S;
        use Transition as T;
        match (self, transition) {
            (S::AwaitingApproval, T::Approve) => Ok(S::Approved),
            // Approved: its validity ran out unused.
            (S::AwaitingApproval | S::Approved, T::Deny) => Ok(S::Denied),
            // A new proposal: after an expiry, after a validity that ran out unused, for a retry,
            // or by a person who reopens what was denied.
            (S::AwaitingApproval | S::Approved | S::Failed | S::Denied, T::Propose) => {
                Ok(S::AwaitingApproval)
            }
            (S::Approved | S::Started | S::Unknown | S::Failed, T::Grant) => Ok(S::Started),
            // A success is the safer belief, wherever it is reported.
            (
                S::AwaitingApproval
                | S::Approved
                | S::Started
                | S::Unknown
                | S::Completed
                | S::Failed
                | S::Denied,
                T::Executed,
            ) => Ok(S::Completed),
            (S::Started | S::Unknown | S::Failed, T::NotExecuted) => Ok(S::Failed),
            // From AWAITING_APPROVAL, APPROVED and DENIED: somebody acted without the right to.
            (
                S::AwaitingApproval | S::Approved | S::Started | S::Unknown | S::Denied,
                T::LoseTrack,
            ) => Ok(S::Unknown),
            (S::AwaitingApproval, T::Grant | T::NotExecuted)
            | (S::Approved, T::Approve | T::NotExecuted)
            | (S::Started | S::Unknown, T::Propose | T::Approve | T::Deny)
            | (
                S::Completed,
                T::Propose | T::Approve | T::Deny | T::Grant | T::NotExecuted | T::LoseTrack,
            )
            | (S::Failed, T::Approve | T::Deny | T::LoseTrack)
            | (S::Denied, T::Approve | T::Deny | T::Grant | T::NotExecuted) => {
                Err(TransitionError { state: self, transition })
            }
        }
    }

    /// Whether an effect may be under way or have happened unseen.
    pub fn is_unsettled(self) -> bool {
        match self {
            Self::Started | Self::Unknown => true,
            Self::AwaitingApproval
            | Self::Approved
            | Self::Completed
            | Self::Failed
            | Self::Denied => false,
        }
    }

    /// The state's public name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingApproval => "AWAITING_APPROVAL",
            Self::Approved => "APPROVED",
            Self::Started => "STARTED",
            Self::Unknown => "UNKNOWN",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Denied => "DENIED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The recipe that a row's key and fingerprint were made under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecipeVersion {
    /// The version of the policy.
    pub policy: u32,
    /// The version of the hash.
    pub hash: u32,
}

/// The result that a caller, the reconciler or a person recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultBody {
    /// The bytes, cut to the policy's size; `None` where the settlement carried no result.
    pub bytes: Option<Vec<u8>>,
    /// The media type, as reported; may be empty.
    pub content_type: String,
    /// SHA-256 of the whole result.
    pub sha256: [u8; 32],
    /// Size of the whole result, in bytes.
    pub size: u64,
    /// Whether `bytes` is less than the whole.
    pub truncated: bool,
}

impl ResultBody {
    /// A result as it was reported, cut to `bytes_max`.
    ///
    /// A caller that had to cut the result itself says what the whole was by `whole`.
    pub fn reported(
        bytes: Option<Vec<u8>>,
        content_type: String,
        whole: Option<([u8; 32], u64)>,
        bytes_max: u64,
    ) -> Self {
        let given = bytes.as_deref().unwrap_or_default();
        let given_size = given.len() as u64;
        let (sha256, size) = whole.unwrap_or_else(|| (Sha256::digest(given).into(), given_size));
        let kept = usize::try_from(bytes_max.min(given_size)).unwrap_or(usize::MAX);
        Self {
            truncated: size > kept as u64,
            bytes: bytes.map(|mut bytes| {
                bytes.truncate(kept);
                bytes
            }),
            content_type,
            sha256,
            size,
        }
    }

    /// Whether both are the same result.
    pub fn is_same(&self, other: &Self) -> bool {
        self.bytes.is_some() == other.bytes.is_some()
            && self.sha256 == other.sha256
            && self.size == other.size
    }
}

/// Who settled an intent, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// By which road.
    pub provenance: Provenance,
    /// The name of the person or process.
    pub by: String,
    /// The reason, where a person gave one.
    pub note: String,
}

/// What the reconciler has learnt so far; starts again with every grant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Probing {
    /// Absences in a row that count.
    pub absences: u32,
    /// When the last of them was seen.
    pub last_absence_at: Option<Timestamp>,
    /// Since when there has been no verdict; times without any answer are left out.
    pub asked_since: Option<Timestamp>,
    /// When the downstream last answered without a verdict: what it was asked before is older news.
    #[serde(default)]
    pub heard_at: Option<Timestamp>,
    /// Why a person was last told that nobody else can move it on.
    #[serde(default)]
    pub handed_over: Option<HandedOver>,
}

/// Why only a person can move an intent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandedOver {
    /// Nobody can be asked.
    NoEndpoint,
    /// The downstream was asked for long enough.
    GaveUp,
    /// The downstream knows nothing of what it gave a reference for.
    AbsentDespiteReference,
    /// Somebody acted without a grant, so that no absence proves anything.
    ActedWithoutGrant,
    /// The downstream's object has settled another intent.
    Taken,
}

/// Whether an intent counts for the limit of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RunSlot {
    /// It never held a slot: nothing was granted, or there was no limit then.
    #[default]
    None,
    /// It holds one: its effect may have happened, or may yet.
    Held,
    /// It held one, and gave it back because nothing happened.
    GivenBack,
}

/// One effect that somebody means to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The tenant.
    pub namespace: String,
    /// The public key.
    pub key: Key,
    /// What the downstream key is made of; it follows from the public one.
    pub downstream: [u8; 32],
    /// What the key was made from.
    pub key_basis: KeyBasis,
    /// The recipe of key and fingerprint.
    pub recipe: RecipeVersion,
    /// Free text that the first caller declared, where no policy did: part of the recipe.
    pub free_text: Vec<Pointer>,
    /// Hash of the tool and the binding arguments.
    pub fingerprint: Fingerprint,
    /// Short digests of single arguments, to name the differing ones.
    pub digests: ArgumentDigests,
    /// The tool.
    pub tool: String,
    /// The run that began it; may be empty.
    pub run_id: String,
    /// The step that began it; may be empty.
    pub step_id: String,
    /// The model's id of the tool call that began it; may be empty.
    pub tool_call_id: String,
    /// Business ids that the downstream is asked by, for as long as it may have to be asked.
    pub kept: BTreeMap<String, String>,
    /// The caller's own labels.
    pub labels: BTreeMap<String, String>,
    /// When the row was written.
    pub created_at: Timestamp,

    /// Where it stands.
    pub state: State,
    /// Every granted attempt, oldest first; the last is the current one.
    pub attempts: Vec<Attempt>,
    /// Attempts up to this number no longer count: a person reopened the intent after them.
    pub attempts_forgiven: u32,
    /// What people were asked and said.
    pub approval: Option<Approval>,
    /// Whether it counts for the limit of its run.
    pub slot: RunSlot,
    /// The first result; final.
    pub result: Option<ResultBody>,
    /// Whether the result was removed after its retention.
    pub pruned: bool,
    /// Who settled it.
    pub settlement: Option<Settlement>,
    /// When it was settled.
    pub settled_at: Option<Timestamp>,
    /// The downstream's id of the effect.
    pub downstream_ref: Option<String>,
    /// Whether only a person can move it on.
    pub needs_attention: bool,
    /// Whether facts contradict each other.
    pub conflict: bool,
    /// What the reconciler has learnt so far.
    pub probing: Probing,

    /// How often a Begin was answered with the first result; written behind.
    pub replay_count: u64,
    /// When a Begin last met it; written behind.
    pub last_seen_at: Option<Timestamp>,
}

impl Intent {
    /// The attempt that holds, or last held, the right to execute.
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }

    /// The granted attempt with this id.
    pub fn attempt(&self, id: Uuid) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.id == id)
    }

    pub(super) fn attempt_mut(&mut self, id: Uuid) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|attempt| attempt.id == id)
    }

    /// Whether this attempt is the newest granted one.
    pub fn is_current(&self, id: Uuid) -> bool {
        self.current().is_some_and(|attempt| attempt.id == id)
    }

    /// How many attempts count against the policy's maximum.
    pub fn attempts_used(&self) -> u32 {
        let counted = self.attempts.iter().filter(|attempt| {
            attempt.number > self.attempts_forgiven && attempt.fate != Fate::NeverBegan
        });
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }

    /// Whether every granted attempt is known not to have had its effect.
    pub fn is_harmless(&self) -> bool {
        self.attempts.iter().all(|attempt| attempt.fate.is_harmless())
    }

    /// Whether the downstream, when it was asked, named the object that it is settled by.
    pub fn was_found(&self) -> bool {
        let by_answer =
            self.settlement.as_ref().is_some_and(|it| it.provenance == Provenance::Reconciler);
        self.state == State::Completed && by_answer && self.downstream_ref.is_some()
    }

    /// Whether nobody but a person is expected to move it on. A contradiction alone is no such reason: the
    /// downstream can still say what became of a later attempt.
    pub fn waits_for_a_person(&self) -> bool {
        self.needs_attention && (!self.conflict || self.probing.handed_over.is_some())
    }

    /// When somebody must first look at what became of it; `None` while that is for nobody but its
    /// caller or a person.
    ///
    /// At the end of the lease; at once where the caller has said that it does not know; and when a
    /// proposal that nobody decides, or a yes that nobody uses, runs out.
    pub fn first_look_at(&self) -> Option<Timestamp> {
        if self.waits_for_a_person() && self.state.is_unsettled() {
            return None;
        }
        match self.state {
            State::Started => self.current().map(|attempt| attempt.lease_expires_at),
            State::Unknown => Some(self.created_at),
            State::AwaitingApproval | State::Approved => {
                self.approval.as_ref().map(Approval::good_until)
            }
            State::Completed | State::Failed | State::Denied => None,
        }
    }

    /// Whether the effect, by any attempt, may be in the world.
    pub fn effect_may_have_happened(&self) -> bool {
        match self.state {
            State::Started | State::Unknown | State::Completed => true,
            State::AwaitingApproval | State::Approved | State::Failed | State::Denied => {
                self.conflict || !self.is_harmless()
            }
        }
    }

    /// The attempts that carry the same downstream key as the current one, oldest first.
    pub fn sharing_key(&self) -> impl Iterator<Item = &Attempt> {
        let key = self.current().map(|current| current.promise.key_attempt);
        self.attempts.iter().filter(move |attempt| Some(attempt.promise.key_attempt) == key)
    }

    /// Until when the downstream de-duplicates further attempts under the current key.
    ///
    /// Counted from the first grant under that key. What was promised at each grant holds; the
    /// policy of today may only tighten it.
    pub fn dedup_until(&self, policy: &ToolPolicy) -> Option<Timestamp> {
        policy.downstream.dedup_window?;
        self.window_end(policy)
    }

    /// The end of the window that was promised, which today's policy may only bring forward.
    ///
    /// It stays where a later policy promises none: what was granted inside it must end inside it.
    pub(super) fn window_end(&self, policy: &ToolPolicy) -> Option<Timestamp> {
        let first = self.sharing_key().next()?.granted_at;
        let mut window = policy.downstream.dedup_window.unwrap_or(Duration::MAX);
        for attempt in self.sharing_key() {
            window = window.min(attempt.promise.dedup_window?);
        }
        Some(first + window)
    }

    /// Whether a transaction rolls back whatever an earlier attempt does late.
    pub fn is_fenced(&self) -> bool {
        !self.is_harmless() && self.attempts.iter().all(|attempt| attempt.promise.same_transaction)
    }

    /// How many bytes of result and arguments it carries; all else is small.
    pub fn body_bytes(&self) -> usize {
        let result = self.result.as_ref().and_then(|result| result.bytes.as_ref());
        let arguments = self.approval.as_ref().map(|approval| approval.arguments_json.len());
        result.map_or(0, Vec::len) + arguments.unwrap_or(0)
    }

    /// Whether this is the first result, be it kept or pruned.
    pub fn has_result(&self, result: &ResultBody) -> bool {
        self.result.as_ref().is_some_and(|stored| {
            stored.is_same(result)
                || (self.pruned && (stored.sha256, stored.size) == (result.sha256, result.size))
        })
    }

    /// The key to send downstream with the current attempt, or with the first one to come.
    pub fn downstream_key(&self) -> String {
        let uuid_key = self.current().is_some_and(|attempt| attempt.promise.uuid_key);
        let digest =
            self.current().map_or(self.downstream, |attempt| self.downstream_digest(attempt));
        if uuid_key { downstream_uuid(digest).to_string() } else { const_hex::encode(digest) }
    }

    /// The key to send downstream, for callers; empty where a person decides first: in which form it will
    /// be sent is the policy's word at the grant.
    pub fn announced_key(&self) -> String {
        match self.state {
            State::AwaitingApproval | State::Approved | State::Denied
                if self.attempts.is_empty() =>
            {
                String::new()
            }
            _ => self.downstream_key(),
        }
    }

    /// The hash behind the key that was sent downstream with an attempt.
    pub fn downstream_digest(&self, attempt: &Attempt) -> [u8; 32] {
        match attempt.promise.key_attempt {
            None => self.downstream,
            own => downstream_digest(&self.key, own, self.recipe.hash),
        }
    }

    /// The id that it is filed under: its downstream key in its UUID form, without an attempt.
    pub fn id(&self) -> Uuid {
        downstream_uuid(self.downstream)
    }

    /// Changes when a person who decides on this intent would want to look again.
    ///
    /// It covers state, attempt, argument hash and decision, not counters.
    pub fn etag(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.state.as_str());
        hash.update(self.fingerprint.as_bytes());
        hash.update(self.attempts_forgiven.to_be_bytes());
        for attempt in &self.attempts {
            hash.update(attempt.id);
            hash.update(attempt.fate.as_str());
        }
        if let Some(approval) = &self.approval {
            hash.update(serde_json::to_vec(approval).expect("an approval is plain data"));
        }
        const_hex::encode(&hash.finalize()[..8])
    }

    /// Forgets who settled it: it is open again.
    pub(super) fn unsettle(&mut self) {
        self.settlement = None;
        self.settled_at = None;
        // What is open again is no tombstone, and its result will be kept again.
        self.pruned = false;
    }

    /// Moves the intent along the state machine.
    pub(super) fn go(&mut self, transition: Transition) -> Result<(), TransitionError> {
        self.state = self.state.after(transition)?;
        self.slot = match (self.state, self.slot) {
            // What certainly did not happen counts no more, whoever found that out …
            (State::Failed, RunSlot::Held) => RunSlot::GivenBack,
            // … and counts again once it turns out to have happened after all.
            (State::Completed, RunSlot::GivenBack) => RunSlot::Held,
            (_, slot) => slot,
        };
        if self.state == State::Completed
            && let Some(approval) = &mut self.approval
        {
            // Nobody has to see them any more, and nothing is executed again.
            approval.arguments_json = String::new();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
