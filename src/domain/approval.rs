//! A person's decision about an intent that must not happen without one.

use serde::{Deserialize, Serialize};

use super::{time::Timestamp, tool::ApprovalRule};

/// What was proposed, and what a person said.
///
/// The decision is bound to the row's key and fingerprint, since it lives in the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// When it was proposed.
    pub proposed_at: Timestamp,
    /// When an undecided proposal runs out.
    pub expires_at: Timestamp,
    /// The arguments that the approver sees and that will be executed, as they were sent.
    pub arguments_json: String,
    /// Who proposed it; never the approver.
    pub proposer: String,
    /// How long a yes is good.
    pub valid_for: std::time::Duration,
    /// What was decided.
    pub verdict: Verdict,
}

/// Where a proposal stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Nobody has decided.
    Pending,
    /// A person said yes.
    Approved {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// When the yes runs out.
        valid_until: Timestamp,
    },
    /// A person said no.
    Denied {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// Nobody decided in time.
    Expired,
}

impl Approval {
    /// A proposal made at `now`.
    pub fn propose(
        rule: ApprovalRule,
        proposer: &str,
        arguments_json: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            proposed_at: now,
            expires_at: now + rule.expires,
            arguments_json: arguments_json.to_owned(),
            proposer: proposer.to_owned(),
            valid_for: rule.valid_for,
            verdict: Verdict::Pending,
        }
    }

    /// Whether nobody decided in time.
    pub fn ran_out(&self, now: Timestamp) -> bool {
        match &self.verdict {
            Verdict::Pending => now >= self.expires_at,
            Verdict::Expired => true,
            Verdict::Approved { .. } | Verdict::Denied { .. } => false,
        }
    }

    /// Whether a person's yes is good at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        match &self.verdict {
            Verdict::Approved { valid_until, .. } => now < *valid_until,
            Verdict::Pending | Verdict::Denied { .. } | Verdict::Expired => false,
        }
    }
}
