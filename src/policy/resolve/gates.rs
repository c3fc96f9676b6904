//! Lays what stands before a tool's calls over one another, key by key.

use std::{sync::Arc, time::Duration};

use super::{Layers, Pick, nearer, or, values};
use crate::{
    domain::{
        look_alike::{LookAlikeAction, LookAlikeRule},
        tool::{ApprovalRule, Class, ToolPolicy},
    },
    policy::{mistake::Mistake, section::Field, status::Expression},
};

/// For how long two intents look the same where the policy does not say.
const WINDOW: Duration = Duration::from_secs(10 * 60);

impl Layers<'_> {
    /// How people decide, where they are asked.
    pub(super) fn approval(&self) -> Option<ApprovalRule> {
        self.get(|s| &s.approval.is_there)?;
        let built_in = ApprovalRule::default();
        Some(ApprovalRule {
            expires: or(self.get(|s| &s.approval.expires), built_in.expires),
            valid_for: or(self.get(|s| &s.approval.valid_for), built_in.valid_for),
        })
    }

    /// Which calls people are asked about; all, where there is no expression.
    pub(in crate::policy) fn approval_when(&self) -> Option<Arc<Expression>> {
        self.get(|s| &s.approval.when).cloned()
    }

    /// What is done about another intent that looks the same.
    pub(super) fn look_alike(&self) -> Option<LookAlikeRule> {
        Some(LookAlikeRule {
            subject: values(self.get(|s| &s.look_alike.subject)?),
            window: or(self.get(|s| &s.look_alike.window), WINDOW),
            action: or(self.get(|s| &s.look_alike.action), LookAlikeAction::Warn),
        })
    }

    /// What is wrong between these keys and others of the tool.
    pub(super) fn gate_conflicts(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        mistakes.extend(self.unrecorded(|s| &s.approval.is_there));
        mistakes.extend(self.unrecorded(|s| &s.limit_per_run));
        mistakes.extend(self.unrecorded(|s| &s.look_alike.is_there));
        if let (Pick::Set { set, .. }, Pick::BuiltIn) =
            (self.pick(|s| &s.look_alike.is_there), self.pick(|s| &s.look_alike.subject))
        {
            let problem = "needs a subject: where in the arguments do look-alikes agree?";
            mistakes.push(set.site.mistake(problem));
        }
        mistakes
    }

    /// A gate before calls that leave no record: there is nothing to count, compare or approve.
    fn unrecorded<T>(
        &self,
        gate: impl for<'s> Fn(&'s super::Section) -> &'s Field<T>,
    ) -> Option<Mistake> {
        let (gate, class) = (self.pick(|s| gate(s)), self.pick(|s| &s.class));
        let word = match class.or(ToolPolicy::default().class)? {
            Class::Effectful => return None,
            Class::ReadOnly => "read_only",
            Class::Idempotent => "idempotent",
        };
        let Pick::Set { .. } = gate else { return None };
        let problem = format!("means nothing for class {word}, whose calls are not recorded");
        Some(nearer(&gate, &class)?.mistake(problem))
    }
}
