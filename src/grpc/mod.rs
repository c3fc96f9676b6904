//! The public face: decode, call the ledger, encode.

mod admission;
mod convert;
mod deadline;
mod history;
mod reconcile;
mod service;
mod session;
mod status;
mod trace;

pub use service::{LedgerService, OperationsService};

/// The largest request that is read: a result over the policy's size still gets its answer.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
