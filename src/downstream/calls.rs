//! What a call for an effect comes to.

use std::{io, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Simulator,
    book::{EffectView, Order},
    fault::{Fault, FaultKind as Kind, Reach},
    faults::Met,
    outage::{Outage, OutageMode},
};

/// A call for an effect.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub(super) order: Order,
    /// The faults that it asks for.
    pub(super) faults: Vec<Fault>,
}

/// What a caller is answered.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It happened; or this key's effect had happened before.
    Done { effect: EffectView, repeated: bool },
    /// It is under way; or this key's effect was before.
    Accepted { effect: EffectView, repeated: bool },
    /// A definite no.
    Refused,
    /// An error that does not say what happened.
    Error,
    /// Nobody is there.
    Unavailable,
    /// The connection is closed.
    Silence,
}

impl Simulator {
    /// Has the effect of a call, or not, and answers in its own time.
    pub(super) async fn call(self: &Arc<Self>, call: &Call) -> Outcome {
        // What it meets is settled as it comes: whoever sees it counted may end the outage.
        let outage = self.outages.mode();
        self.book().count_request();
        self.changed();
        match outage {
            None => {}
            Some(OutageMode::Error) => return Outcome::Unavailable,
            Some(mode @ (OutageMode::Hang | OutageMode::Refuse)) => {
                self.outages.no_longer(mode).await;
                return Outcome::Silence;
            }
        }
        let key = call.order.key.as_deref().unwrap_or_default();
        let of_status: Vec<Fault> = (call.faults.iter().copied())
            .filter(|fault| fault.kind().reach() != Reach::Call)
            .collect();
        let nth = self.book().count_call(key, &of_status);
        let met = self.faults().of_call(self.chance, key, nth, &call.faults);

        if let Some(span) = met.span(Kind::Outage) {
            self.outages.begin(Outage { mode: OutageMode::Refuse, span: Some(span) }).await;
            return Outcome::Silence;
        }
        if let Some(span) = met.span(Kind::Lost) {
            sleep(span).await;
            return Outcome::Silence;
        }
        if met.has(Kind::Refused) {
            return Outcome::Refused;
        }
        if met.has(Kind::ErrorWithoutEffect) {
            return Outcome::Error;
        }
        // Whoever is gone before the answer finds the effect all the same: it comes before every wait.
        let outcome = match self.effect(&call.order, &met) {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::error!(%error, "the sent log cannot be written, so nothing happens");
                return Outcome::Error;
            }
        };
        for kind in [Kind::Slow, Kind::EffectThenTimeout] {
            if let Some(span) = met.span(kind) {
                sleep(span).await;
            }
        }
        if met.has(Kind::EffectThenError) { Outcome::Error } else { outcome }
    }

    fn effect(self: &Arc<Self>, order: &Order, met: &Met) -> io::Result<Outcome> {
        // One lock from the look to the effect: of two calls with one key only the first has it.
        let mut book = self.book();
        let now = self.now();
        if let (Some(key), Some(window)) = (&order.key, self.deduplicates)
            && let Some(effect) = book.earlier(key, window, now)
        {
            return Ok(match effect.is_done() {
                true => Outcome::Done { effect, repeated: true },
                false => Outcome::Accepted { effect, repeated: true },
            });
        }
        let visible_at = met.span(Kind::LateVisibility).map(|span| now + span);
        if let Some(span) = met.span(Kind::LateEffect) {
            let (number, effect) = book.accept(order, visible_at, now);
            tokio::spawn(Arc::clone(self).finish(number, span));
            return Ok(Outcome::Accepted { effect, repeated: false });
        }
        let copies = if met.has(Kind::Twice) { 2 } else { 1 };
        let effect = book.have_effect(order, copies, visible_at, now)?;
        drop(book);
        self.happened(&effect, copies);
        Ok(Outcome::Done { effect, repeated: false })
    }

    /// Has an effect that was accepted, after a while.
    async fn finish(self: Arc<Self>, number: u64, span: Duration) {
        if self.stopping.run_until_cancelled(sleep(span)).await.is_none() {
            return;
        }
        let finished = self.book().finish(number, self.now());
        match finished {
            Ok(effect) => self.happened(&effect, 1),
            Err(error) => {
                tracing::error!(%error, "the sent log cannot be written, so an effect stays queued")
            }
        }
    }

    fn happened(&self, effect: &EffectView, copies: u64) {
        let EffectView { id, idempotency_key: key, action, .. } = effect;
        tracing::info!(id, key, action, copies, "effect");
        self.changed();
    }
}
