//! Pure values and decisions: no I/O, no clock, no randomness.
//!
//! Start with [`decision`], the table that answers a Begin, and [`report`], what callers say of
//! their attempts. [`intent`] holds the one state machine that both go through.

pub mod approval;
pub mod attempt;
pub mod canonical_json;
pub mod decision;
pub mod event;
pub mod fingerprint;
pub mod identity;
pub mod intent;
pub mod key_lint;
pub mod look_alike;
pub mod repeat;
pub mod report;
pub mod retention;
pub mod review;
pub mod schedule;
pub mod time;
pub mod tool;
#[cfg(test)]
mod vectors_test;
pub mod verdict;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod properties;
