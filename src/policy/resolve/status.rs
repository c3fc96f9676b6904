//! Lays the `status` tables of a tool over one another.
//!
//! Each key is picked by itself, as everywhere, but `http` and `grpc` are taken whole: a URL and
//! the token that goes there belong together, and half a table of another place would send one
//! downstream's token to another. The more specific of the two decides the protocol. With `grpc`,
//! inherited rules for answers over HTTP mean nothing and are left aside.

use std::{sync::Arc, time::Duration};

use super::{Layers, Pick, or};
use crate::{
    domain::tool::StatusRule,
    policy::{
        mistake::Mistake,
        section::{Field, Section, Sited},
        status::{Expression, GrpcCall, HttpRequest, Rules, StatusEndpoint},
    },
};

/// How many absences in a row are believed where the policy does not say.
const CONFIRMATIONS: u32 = 2;

/// The table that says where the downstream is asked.
enum Place<'a> {
    Http(&'a Sited<HttpRequest>),
    Grpc(&'a Sited<GrpcCall>, usize),
}

/// The keys that only answers over HTTP are read by.
type RuleField = for<'a> fn(&'a Section) -> &'a Field<Arc<Expression>>;
const RULES: [RuleField; 6] = [
    |s| &s.status.completed_when,
    |s| &s.status.not_executed_when,
    |s| &s.status.running_when,
    |s| &s.status.result,
    |s| &s.status.key_at,
    |s| &s.status.ref_at,
];

impl<'a> Layers<'a> {
    /// Where the downstream is asked; nothing if nobody says, or if what is said is a mistake.
    fn place(&self) -> Result<Option<Place<'a>>, Mistake> {
        let (http, grpc) = (self.pick(|s| &s.status.http), self.pick(|s| &s.status.grpc));
        Ok(match (http, grpc) {
            (Pick::Broken, _) | (_, Pick::Broken) => None,
            (Pick::Set { depth: a, .. }, Pick::Set { set, depth: b }) if a == b => {
                return Err(set.site.mistake("the same table has http: give one of them"));
            }
            (Pick::Set { set, depth: a }, Pick::Set { depth: b, .. }) if a < b => {
                Some(Place::Http(set))
            }
            (_, Pick::Set { set, depth }) => Some(Place::Grpc(set, depth)),
            (Pick::Set { set, .. }, Pick::BuiltIn) => Some(Place::Http(set)),
            (Pick::BuiltIn, Pick::BuiltIn) => match self.pick(|s| &s.status.is_there) {
                Pick::Set { set, .. } => {
                    let problem = "needs http or grpc: where is the downstream asked?";
                    return Err(set.site.mistake(problem));
                }
                Pick::BuiltIn | Pick::Broken => None,
            },
        })
    }

    /// What is wrong between the keys of the tool's status tables.
    pub(super) fn status_conflicts(&self) -> Vec<Mistake> {
        let place = match self.place() {
            Ok(Some(place)) => place,
            Ok(None) => return Vec::new(),
            Err(mistake) => return vec![mistake],
        };
        let mut mistakes = Vec::new();
        let is_absent = |field: RuleField| matches!(self.pick(field), Pick::BuiltIn);
        let no_visibility = matches!(self.pick(|s| &s.status.visibility), Pick::BuiltIn);
        let visibility = "needs visibility: for how long does an absence prove nothing?";
        match place {
            Place::Http(http) => {
                if is_absent(|s| &s.status.completed_when) {
                    let problem = "needs completed_when: how does one see that it happened?";
                    mistakes.push(http.site.mistake(problem));
                }
                if !http.value.url.asks_by_downstream_key() && is_absent(|s| &s.status.key_at) {
                    let problem = "needs key_at, since the URL does not ask by {downstream_key}";
                    mistakes.push(http.site.mistake(problem));
                }
                if let Pick::Set { set, .. } = self.pick(|s| &s.status.not_executed_when)
                    && no_visibility
                {
                    mistakes.push(set.site.mistake(visibility));
                }
            }
            Place::Grpc(grpc, at) => {
                if no_visibility {
                    mistakes.push(grpc.site.mistake(visibility));
                }
                for field in RULES {
                    if let Pick::Set { set, depth } = self.pick(field)
                        && depth <= at
                    {
                        let problem = "means nothing with grpc, whose answers need no rules";
                        mistakes.push(set.site.mistake(problem));
                    }
                }
            }
        }
        mistakes
    }

    /// How the downstream is asked, and when its answers may be believed.
    pub(in crate::policy) fn status(&self) -> Option<(StatusRule, StatusEndpoint)> {
        let endpoint = match self.place().ok()?? {
            Place::Http(http) => StatusEndpoint::http(http.value.clone(), self.rules()?),
            Place::Grpc(grpc, _) => StatusEndpoint::grpc(grpc.value.clone()),
        };
        let rule = StatusRule {
            // Nobody can say that it is absent where this is not given.
            visibility: or(self.get(|s| &s.status.visibility), Duration::ZERO),
            confirmations: or(self.get(|s| &s.status.confirmations), CONFIRMATIONS),
            probe_on_begin: or(self.get(|s| &s.status.probe_on_begin), false),
        };
        Some((rule, endpoint))
    }

    fn rules(&self) -> Option<Rules> {
        Some(Rules {
            completed_when: self.get(|s| &s.status.completed_when).cloned()?,
            not_executed_when: self.get(|s| &s.status.not_executed_when).cloned(),
            running_when: self.get(|s| &s.status.running_when).cloned(),
            result: self.get(|s| &s.status.result).cloned(),
            key_at: self.get(|s| &s.status.key_at).cloned(),
            ref_at: self.get(|s| &s.status.ref_at).cloned(),
        })
    }
}
