//! intent-ledger: makes it safe for AI agents to repeat themselves.
//!
//! An orchestrator asks the ledger before it lets a tool have its effect. The road of a request:
//!
//! - [`cli`] and [`app`]: from the command line to a running server, with [`config`].
//! - [`grpc`]: decodes a request and encodes its answer; [`proto`] is the generated contract.
//! - [`ledger`]: one file per operation. It reads the row, lets the domain decide, writes, answers.
//! - [`domain`]: the decisions. Pure: no I/O, no clock, no randomness.
//! - [`policy`]: what the operator says of each tool.
//! - [`store`]: moves rows in and out of Postgres or SQLite.
//! - [`reconciler`]: asks downstreams what became of calls that nobody settled.
//!
//! [`demo`] is the story of all this, told by running it. [`downstream`] is a service to test against, whose
//! faults can be set.
//!
//! Beside the road: [`clock`], [`ids`], [`telemetry`] and [`tls`].

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod demo;
pub mod domain;
pub mod downstream;
pub mod grpc;
pub mod ids;
pub mod ledger;
pub mod policy;
pub mod proto;
pub mod reconciler;
pub mod store;
pub mod telemetry;
pub mod tls;
