//! Everything that needs a running ledger: one binary, real stores, real gRPC.

#[path = "../support/mod.rs"]
mod support;

mod begin;
mod crash;
mod deadlines;
mod doubt;
mod hash_version;
mod layers;
mod outage;
mod policy_change;
mod python;
mod stop;
mod storm;
