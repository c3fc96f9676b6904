//! Every way in which a call may already be known.

use crate::{
    domain::{
        canonical_json::Pointer,
        decision::Candidate,
        fingerprint::fingerprint,
        identity::{Call, IdentityError, downstream_digest, downstream_uuid, identify, named_ids},
    },
    ledger::Violation,
    policy::{PolicySet, VersionedRecipe},
    store::{Found, RowKey, Stored},
};

/// The call under the active recipe, and under older ones that rows may still have.
pub(in crate::ledger) struct Candidates {
    namespace: String,
    /// What a new row would be filed under, or why the call has no key.
    pub(in crate::ledger) active: Result<Candidate, IdentityError>,
    /// Other keys that a row of this call may have, the oldest recipe's first.
    older: Vec<Candidate>,
    recorded_before: bool,
}

impl Candidates {
    pub(in crate::ledger) fn of(
        policies: &PolicySet,
        call: &Call<'_>,
        free_text: &[Pointer],
        asks_by: &[String],
    ) -> Self {
        let identified = |versioned: &VersionedRecipe<'_>| {
            let recipe = &versioned.recipe;
            let identified = identify(recipe, call)?;
            Ok(Candidate {
                recipe: versioned.version,
                key: identified.key,
                downstream: downstream_digest(&identified.key, None, recipe.hash_version),
                basis: identified.basis,
                print: fingerprint(recipe, free_text, call, &identified.key, identified.basis),
                kept: named_ids(asks_by, recipe, call),
            })
        };
        let active = identified(&policies.active_recipe(call.namespace, call.tool));
        let mut known: Vec<_> = active.iter().map(|candidate| candidate.key).collect();
        let mut older = Vec::new();
        let mut recorded_before = false;
        for versioned in policies.older_recipes(call.namespace, call.tool) {
            // No key under an older recipe means that no row of it can be this call's.
            let Ok(candidate) = identified(&versioned) else { continue };
            recorded_before = true;
            if !known.contains(&candidate.key) {
                known.push(candidate.key);
                older.push(candidate);
            }
        }
        older.reverse();
        Self { namespace: call.namespace.to_owned(), active, older, recorded_before }
    }

    /// Whether only the active recipe's key can be this call's.
    pub(in crate::ledger) fn is_plain(&self) -> bool {
        self.older.is_empty()
    }

    /// The only key that can be this call's.
    pub(in crate::ledger) fn only(&self) -> Option<&Candidate> {
        self.active.as_ref().ok().filter(|_| self.is_plain())
    }

    /// Whether an older policy may have recorded the call, be it under the active recipe's key.
    pub(in crate::ledger) fn recorded_before(&self) -> bool {
        self.recorded_before
    }

    /// Every key to look up, the oldest recipe's first: the row that was made for exactly this
    /// call is found before one that a coarser or finer recipe made later.
    pub(in crate::ledger) fn keys(&self) -> Vec<RowKey> {
        self.all().map(|candidate| self.row_key(candidate)).collect()
    }

    /// Where a row of this candidate is filed.
    pub(in crate::ledger) fn row_key(&self, candidate: &Candidate) -> RowKey {
        let id = downstream_uuid(candidate.downstream);
        RowKey { namespace: self.namespace.clone(), id }
    }

    /// The first row that is there, in the order of [`Self::keys`].
    pub(in crate::ledger) fn row(&self, found: Found) -> Option<Stored> {
        self.all()
            .zip(found.rows)
            .find_map(|(candidate, row)| row.filter(|stored| stored.intent.key == candidate.key))
    }

    fn all(&self) -> impl Iterator<Item = &Candidate> {
        self.older.iter().chain(&self.active)
    }
}

/// Why the call has no key, as the request's fault.
pub(in crate::ledger) fn invalid_identity(error: &IdentityError) -> Violation {
    Violation::new(error.field(), error.reason(), error.to_string())
}
