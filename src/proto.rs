//! The public contract as generated from `proto/`: messages, enums, service traits and clients.
//!
//! Only `grpc`, and whatever speaks to a running server as a client does, names these types.

/// Package `intent_ledger.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated; its comments are the contract's own, and what lacks one is tonic's"
)]
pub mod v1 {
    tonic::include_proto!("intent_ledger.v1");
}

/// Package `intent_ledger.status.v1`: what a downstream can implement.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "generated; its comments are the contract's own, and what lacks one is tonic's"
)]
pub mod status_v1 {
    tonic::include_proto!("intent_ledger.status.v1");
}

/// All files of the contract and what they import, with comments, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    tonic::include_file_descriptor_set!("intent_ledger_descriptor");
