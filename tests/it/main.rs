//! Everything that needs a running ledger: one binary, real stores, real gRPC.

#[path = "../support/mod.rs"]
mod support;

mod begin;
