//! Random ids, in the one place that makes them.

use uuid::Uuid;

/// A fresh version 4 UUID.
#[expect(clippy::disallowed_methods, reason = "this is the one place that makes random ids")]
pub fn random() -> Uuid {
    Uuid::new_v4()
}
