//! Pure values and decisions: no I/O, no clock, no randomness.

pub mod canonical_json;
pub mod fingerprint;
pub mod identity;

#[cfg(test)]
mod vectors_test;
