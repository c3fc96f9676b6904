//! What a policy says of one tool, in the form that decisions read.

use std::time::Duration;

use super::{identity::Recipe, look_alike::LookAlikeRule};

/// How much a repeat of the tool's call would harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Changes nothing: never recorded.
    ReadOnly,
    /// Harmless to repeat ("set state to closed"): never recorded.
    Idempotent,
    /// Sends, creates, charges, appends: recorded before it happens.
    Effectful,
}

/// The form in which the downstream gets our key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeyFormat {
    /// 64 lower-case hex digits.
    #[default]
    Hex,
    /// A version 8 UUID from the same hash, for providers that take at most 45 characters.
    Uuid,
}

/// What the downstream promises about calls that carry our key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Downstream {
    /// The form of the downstream key.
    pub key_format: KeyFormat,
    /// Whether an attempt after a definite failure gets a new downstream key.
    pub new_key_after_failed: bool,
    /// How long the downstream de-duplicates on our key; `None` where it does not.
    pub dedup_window: Option<Duration>,
    /// Whether effect and settlement are one transaction in the ledger's own database.
    pub same_transaction: bool,
    /// How to ask the downstream what became of a call; `None` where it cannot be asked.
    pub status: Option<StatusRule>,
    /// The business ids that the question names, so that a row keeps them until it is settled.
    pub asks_by: Vec<String>,
}

/// When an answer of a status endpoint may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRule {
    /// How long after the lease's end an absence proves nothing.
    pub visibility: Duration,
    /// How many absences in a row prove that nothing happened.
    pub confirmations: u32,
    /// Whether a Begin that meets an unsettled attempt asks at once.
    pub probe_on_begin: bool,
}

/// How long a proposal waits for a person, and how long the person's yes is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalRule {
    /// From the proposal to its expiry.
    pub expires: Duration,
    /// From the approval to the end of its validity.
    pub valid_for: Duration,
}

impl Default for ApprovalRule {
    /// Long enough for a weekend, and for a caller that polls.
    fn default() -> Self {
        Self { expires: 72 * HOUR, valid_for: HOUR }
    }
}

/// What the active policy says of one tool in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPolicy {
    /// Whether the policy file has a section for the tool.
    pub listed: bool,
    /// Whether a tool without a section is refused.
    pub refuse_unlisted: bool,
    /// How much a repeat would harm.
    pub class: Class,
    /// What turns a call into a key and a fingerprint.
    pub recipe: Recipe,
    /// The lease of an attempt that asks for none.
    pub lease: Duration,
    /// The longest an attempt may hold the right to execute, counted from its grant.
    pub lease_max: Duration,
    /// How long a resent Begin of the same attempt gets the same EXECUTE.
    pub resend_window: Duration,
    /// How long a result is kept after it was settled.
    pub retention: Duration,
    /// How long the key is remembered after its result was pruned.
    pub tombstone: Duration,
    /// How many attempts an intent may use before FAILED is final.
    pub max_attempts: u32,
    /// Whether FAILED may be tried again at all.
    pub retry_failed: bool,
    /// How long the downstream is asked without a verdict before a person is needed.
    pub give_up_after: Duration,
    /// The size over which a result is cut, in bytes.
    pub max_result_bytes: u64,
    /// The read-only tool that a model should ask instead of repeating.
    pub check_with: Option<String>,
    /// What the downstream promises.
    pub downstream: Downstream,
    /// How people decide, where the policy asks for a person.
    pub approval: Option<ApprovalRule>,
    /// How many intents of a run may have had, or may yet have, their effect.
    pub limit_per_run: Option<u32>,
    /// Whether nothing is granted for now.
    pub halted: bool,
    /// What is done about another intent that looks the same.
    pub look_alike: Option<LookAlikeRule>,
}

impl ToolPolicy {
    /// Whether the policy lists its tools, and this is none of them.
    pub fn refuses_tool(&self) -> bool {
        self.refuse_unlisted && !self.listed
    }

    /// Whether a new call can only be decided once more is known than its key.
    pub fn is_gated(&self) -> bool {
        self.approval.is_some() || self.limit_per_run.is_some() || self.look_alike.is_some()
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for ToolPolicy {
    /// What holds where no policy says otherwise; the values of the contract's `[defaults]`.
    fn default() -> Self {
        Self {
            listed: false,
            refuse_unlisted: false,
            class: Class::Effectful,
            recipe: Recipe::default(),
            lease: MINUTE,
            lease_max: HOUR,
            resend_window: Duration::from_secs(10),
            retention: 30 * DAY,
            tombstone: 400 * DAY,
            max_attempts: 3,
            retry_failed: true,
            give_up_after: DAY,
            max_result_bytes: 256 * 1024,
            check_with: None,
            downstream: Downstream::default(),
            approval: None,
            limit_per_run: None,
            halted: false,
            look_alike: None,
        }
    }
}
