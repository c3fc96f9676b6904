//! What a status question is answered: the truth, or what faults make of it.

use tokio::time::sleep;

use super::{
    Simulator,
    book::{DONE, EffectView},
    fault::{Fault, FaultKind as Kind},
    faults::Met,
    outage::OutageMode,
};

/// What the asker names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    /// The key that the call carried.
    Key(&'a str),
    /// The downstream's id of the effect.
    Id(&'a str),
}

/// What the asker is shown; each face has its own form of it.
#[derive(Debug)]
pub(super) enum Shown {
    /// There is no such effect.
    Absent,
    /// The effects; at least one.
    Effects(Vec<EffectView>),
    /// A page for people.
    Page,
    /// The way to a login.
    Login,
    /// Nobody is there.
    Unavailable,
    /// The connection is closed.
    Silence,
}

/// A state that no policy knows.
const UNMAPPED: &str = "compliance_hold";

/// The id of what never happened.
const INVENTED: &str = "eff-0";

/// The id that all keys with `status_shared_ref` share.
const SHARED: &str = "eff-shared";

/// What a key with `status_other_key` is taken for.
const OTHER_KEY: &str = "another-key";

impl Simulator {
    /// Answers a question, in its own time; `own` are the faults that it asks for.
    pub(super) async fn status(&self, subject: Subject<'_>, own: &[Fault]) -> Shown {
        match self.outages.mode() {
            None => {}
            Some(OutageMode::Error) => return Shown::Unavailable,
            Some(mode @ (OutageMode::Hang | OutageMode::Refuse)) => {
                self.outages.no_longer(mode).await;
                return Shown::Silence;
            }
        }
        let key = match subject {
            Subject::Key(key) => Some(key.to_owned()),
            Subject::Id(id) => self.book().key_of_id(id).map(str::to_owned),
        };
        let met = self.met(key.as_deref().unwrap_or_default(), own);
        self.changed();
        if let Some(span) = met.span(Kind::StatusSlow) {
            sleep(span).await;
        }
        if met.has(Kind::StatusError) {
            return Shown::Unavailable;
        }
        if met.has(Kind::StatusRedirect) {
            return Shown::Login;
        }
        if met.has(Kind::StatusHtml) {
            return Shown::Page;
        }
        // Looked up after the wait: an answer is as old as its last step.
        let found = match subject {
            Subject::Key(key) => self.book().of_key(key, self.now()),
            Subject::Id(id) => Vec::from_iter(self.book().of_id(id, self.now())),
        };
        let effects = distorted(found, subject, &met);
        if effects.is_empty() { Shown::Absent } else { Shown::Effects(effects) }
    }

    fn met(&self, key: &str, own: &[Fault]) -> Met {
        let (nth, asked_for) = self.book().count_question(key);
        let own: Vec<Fault> = own.iter().copied().chain(asked_for).collect();
        self.faults().of_question(self.chance, key, nth, &own)
    }
}

/// The objects as a status that lies shows them.
fn distorted(mut effects: Vec<EffectView>, subject: Subject<'_>, met: &Met) -> Vec<EffectView> {
    if met.has(Kind::StatusLiesAbsent) {
        return Vec::new();
    }
    let inventing =
        [Kind::StatusLiesDone, Kind::StatusSharedRef, Kind::StatusOtherKey, Kind::StatusUnmapped];
    if effects.is_empty() && inventing.iter().any(|kind| met.has(*kind)) {
        effects.push(invented(subject));
    }
    for effect in &mut effects {
        if met.has(Kind::StatusLiesDone) {
            effect.state = DONE;
        }
        if met.has(Kind::StatusSharedRef) {
            effect.id = SHARED.to_owned();
        }
        if met.has(Kind::StatusOtherKey) {
            effect.idempotency_key = Some(OTHER_KEY.to_owned());
        }
        if met.has(Kind::StatusUnmapped) {
            effect.state = UNMAPPED;
        }
    }
    effects
}

/// An object that there is not.
fn invented(subject: Subject<'_>) -> EffectView {
    let (id, key) = match subject {
        Subject::Key(key) => (INVENTED, Some(key.to_owned())),
        Subject::Id(id) => (id, None),
    };
    EffectView { id: id.to_owned(), state: DONE, idempotency_key: key, action: None }
}
