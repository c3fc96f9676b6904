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
    /// The arguments that the approver sees and that will be executed, as they were sent; kept until
    /// the effect has happened, since a retry and a reopened proposal need them.
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

    /// Whether this person made the proposal.
    ///
    /// Names stand in for credentials, so case and outer blanks make no other person.
    pub fn is_own(&self, actor: &str) -> bool {
        let (proposer, actor) = (self.proposer.trim(), actor.trim());
        !proposer.is_empty() && proposer.eq_ignore_ascii_case(actor)
    }

    /// When it runs out as it stands: undecided, or approved and unused.
    pub fn good_until(&self) -> Timestamp {
        match &self.verdict {
            Verdict::Approved { valid_until, .. } => *valid_until,
            Verdict::Pending | Verdict::Denied { .. } | Verdict::Expired => self.expires_at,
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

    /// Until when a person's yes is good; `None` where nobody has said yes.
    pub fn valid_until(&self) -> Option<Timestamp> {
        match &self.verdict {
            Verdict::Approved { valid_until, .. } => Some(*valid_until),
            Verdict::Pending | Verdict::Denied { .. } | Verdict::Expired => None,
        }
    }

    /// Whether a person's yes is good at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.valid_until().is_some_and(|until| now < until)
    }
}
