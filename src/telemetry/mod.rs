//! What operators see: metrics and logs.

pub mod metrics;
pub mod tracing;
