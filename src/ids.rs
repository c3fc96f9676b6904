//! Random ids and luck, in the one place that makes them.

use uuid::Uuid;

/// A fresh version 4 UUID.
#[expect(clippy::disallowed_methods, reason = "this is the one place that makes random ids")]
pub fn random() -> Uuid {
    Uuid::new_v4()
}

/// A number from 0 to 1 that nobody can foresee, such as for a wait that must not be everybody's.
pub fn luck() -> f64 {
    let (high, _) = random().as_u64_pair();
    // The upper 32 bits are all random.
    f64::from(u32::try_from(high >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}
