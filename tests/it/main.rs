//! Everything that needs a running ledger: one binary, real stores, real gRPC.

#[path = "../support/mod.rs"]
mod support;

mod agenda;
mod approvals;
mod attempts;
mod batcher;
mod begin;
mod classes;
mod crash;
mod deadlines;
mod distributed;
mod doubt;
mod downstream;
mod guards;
mod hash_version;
mod history;
mod keys;
mod layers;
mod limits;
mod list;
mod look_alikes;
mod lookup;
mod lost_answers;
mod namespaces;
mod orphans;
mod outage;
mod outcomes;
mod policy_change;
mod pooler;
mod python;
mod reconciler;
mod refusals;
mod repeats;
mod resolve;
mod results;
mod retention;
mod retention_store;
mod same_transaction;
mod session;
mod settling;
mod stats;
mod stop;
mod store_conformance;
mod storm;
mod surroundings;
