//! What operators see: metrics, logs, and errors as they are told.

mod chain;
pub mod metrics;
pub mod tracing;

pub use chain::{FailedTo, chain};
