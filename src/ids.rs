//! Random ids and luck, in the one place that makes them.

use std::{fmt, sync::Arc};

use uuid::Uuid;

/// A fresh version 4 UUID.
#[expect(clippy::disallowed_methods, reason = "this is the one place that makes random ids")]
pub fn random() -> Uuid {
    Uuid::new_v4()
}

/// A number from 0 to 1 that nobody can foresee, such as for a wait that must not be everybody's.
fn luck() -> f64 {
    let (high, _) = random().as_u64_pair();
    // The upper 32 bits are all random.
    f64::from(u32::try_from(high >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

/// Where numbers from 0 to 1 come from: nobody can foresee them, unless a test brings its own.
#[derive(Clone)]
pub struct Luck(Arc<dyn Fn() -> f64 + Send + Sync>);

impl Luck {
    /// Numbers that `draw` draws.
    pub fn of(draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(draw))
    }

    /// The next number.
    pub fn draw(&self) -> f64 {
        (self.0)()
    }
}

impl Default for Luck {
    fn default() -> Self {
        Self::of(luck)
    }
}

impl fmt::Debug for Luck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Luck")
    }
}
