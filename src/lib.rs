//! intent-ledger: makes it safe for AI agents to repeat themselves.

pub mod clock;
pub mod domain;
pub mod policy;
pub mod proto;
pub mod store;
