//! intent-ledger: makes it safe for AI agents to repeat themselves.

pub mod domain;
pub mod proto;
