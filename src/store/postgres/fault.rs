//! What is known after an error of Postgres.

use tokio_postgres::error::SqlState;

use crate::store::{BoxError, StoreError};

/// An error of a statement that writes nothing, or nothing before its commit.
pub(super) fn nothing_written(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(fault) {
        Some(Fault::Row) => StoreError::Rejected(error.into()),
        Some(Fault::Locked) => StoreError::Locked(error.into()),
        Some(Fault::Busy | Fault::Unknown) | None => StoreError::Unavailable(error.into()),
    }
}

/// An error after the commit was sent: only an answer of the server proves that nothing happened.
pub(super) fn after_send(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(fault) {
        Some(Fault::Row) => StoreError::Rejected(error.into()),
        Some(Fault::Locked) => StoreError::Locked(error.into()),
        Some(Fault::Busy) => StoreError::Unavailable(error.into()),
        Some(Fault::Unknown) | None => StoreError::Indeterminate(error.into()),
    }
}

/// What an error code says of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It was rolled back, and would be again: something is wrong with a row or a statement.
    Row,
    /// It was rolled back, after it had waited for a lock as long as it may.
    Locked,
    /// It was rolled back; the same may succeed later.
    Busy,
    /// The session ended, perhaps after the commit was durable. Codes that we do not know count
    /// as this: a pooler may say it of a server that it has lost.
    Unknown,
}

pub(super) fn fault(code: &SqlState) -> Fault {
    match code.code() {
        "40003" => Fault::Unknown,
        // Read-only: a standby that is not promoted yet. Cancelled: a time-out, or a person.
        "25006" | "57014" => Fault::Busy,
        "55P03" => Fault::Locked,
        code => match &code[..2] {
            "40" | "53" => Fault::Busy,
            "0A" | "20" | "21" | "22" | "23" | "25" | "26" | "34" | "3D" | "3F" | "42" | "44"
            | "54" | "55" | "P0" => Fault::Row,
            _ => Fault::Unknown,
        },
    }
}

pub(super) fn is_conflict(error: &BoxError) -> bool {
    error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code).is_some_and(
        |code| {
            *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_codes_prove_that_nothing_was_written() {
        let rows = [
            ("23505", Fault::Row),
            ("22021", Fault::Row),
            ("42P01", Fault::Row),
            ("25P02", Fault::Row),
            ("40P01", Fault::Busy),
            ("40001", Fault::Busy),
            ("53100", Fault::Busy),
            ("25006", Fault::Busy),
            ("55P03", Fault::Locked),
            ("57014", Fault::Busy),
            ("57P01", Fault::Unknown),
            ("57P03", Fault::Unknown),
            ("08006", Fault::Unknown),
            ("08007", Fault::Unknown),
            ("40003", Fault::Unknown),
            ("58000", Fault::Unknown),
            ("XX000", Fault::Unknown),
        ];
        for (code, expected) in rows {
            assert_eq!(fault(&SqlState::from_code(code)), expected, "{code}");
        }
    }
}
