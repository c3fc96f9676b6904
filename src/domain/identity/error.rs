//! Why a call has no key, and which field of the request mends it.

use super::BUSINESS_IDS_MAX;
use crate::domain::canonical_json::{Pointer, excerpt};

/// Why a call has no key. Each is the caller's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Two ways to name the intent in one call; they might disagree.
    #[error("both idempotency_key and business_ids are given, where one must decide")]
    BothKeyAndBusinessIds,
    /// Nothing names the intent, and none is ever invented.
    #[error("an idempotency_key, business_ids, or run_id with step_id must be given")]
    NoIdentity,
    /// The identity is per run, and there is no run.
    #[error("run_id must be given, because this identity holds within one run")]
    RunMissing,
    /// An identity pointer of the policy finds nothing, or null.
    #[error("the arguments have no value at {pointer}, which is part of this tool's identity")]
    PointerMissing {
        /// The pointer of the policy.
        pointer: Pointer,
    },
    /// An identity pointer of the policy finds an array or an object.
    #[error("the value at {pointer} must be a string, a number or a boolean")]
    PointerNotScalar {
        /// The pointer of the policy.
        pointer: Pointer,
    },
    /// An identity pointer of the policy finds a text that is empty or all blanks.
    #[error("the value at {pointer}, which is part of this tool's identity, is blank")]
    BlankValue {
        /// The pointer of the policy.
        pointer: Pointer,
    },
    /// The idempotency key is not one.
    #[error("the idempotency_key {why}")]
    BadIdempotencyKey {
        /// What is wrong with it.
        why: TextFault,
    },
    /// More business ids than [`BUSINESS_IDS_MAX`].
    #[error("{count} business_ids are given, more than {BUSINESS_IDS_MAX}")]
    TooManyBusinessIds {
        /// How many there are.
        count: usize,
    },
    /// The name of a business id is not one.
    #[error("the name {} in business_ids {why}", excerpt(name))]
    BadBusinessName {
        /// The name as it came.
        name: String,
        /// What is wrong with it.
        why: TextFault,
    },
    /// The value of a business id is not one.
    #[error("the business id {} {why}", excerpt(name))]
    BadBusinessId {
        /// The name of the business id.
        name: String,
        /// What is wrong with its value.
        why: TextFault,
    },
    /// Two names of business ids are one in NFC.
    #[error("the business id {} stands twice", excerpt(name))]
    DoubledBusinessId {
        /// The name in NFC.
        name: String,
    },
}

/// What is wrong with a text from a caller. It reads after the name of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// Nothing in it, or blanks only.
    #[error("is blank")]
    Blank,
    /// Longer than it may be.
    #[error("is {bytes} bytes long, more than {bytes_max}")]
    TooLong {
        /// The length of the text.
        bytes: usize,
        /// The length allowed.
        bytes_max: usize,
    },
    /// A character of Unicode's category Cc is in it.
    #[error("has a control character in it")]
    ControlCharacter,
    /// It begins or ends with a blank.
    #[error("begins or ends with a blank")]
    OuterBlank,
}

impl IdentityError {
    /// The request field to mend, as a path.
    pub fn field(&self) -> String {
        match self {
            IdentityError::BothKeyAndBusinessIds | IdentityError::NoIdentity => "identity".into(),
            IdentityError::RunMissing => "identity.run_id".into(),
            IdentityError::PointerMissing { pointer }
            | IdentityError::PointerNotScalar { pointer }
            | IdentityError::BlankValue { pointer } => format!("arguments_json{pointer}"),
            IdentityError::BadIdempotencyKey { .. } => "identity.idempotency_key".into(),
            IdentityError::TooManyBusinessIds { .. } | IdentityError::BadBusinessName { .. } => {
                "identity.business_ids".into()
            }
            IdentityError::BadBusinessId { name, .. }
            | IdentityError::DoubledBusinessId { name } => {
                format!("identity.business_ids[{}]", excerpt(name))
            }
        }
    }

    /// The cause as a word for machines: a name of the public enum of reasons.
    pub fn reason(&self) -> &'static str {
        match self {
            IdentityError::BothKeyAndBusinessIds => "IDENTITY_AMBIGUOUS",
            IdentityError::NoIdentity => "IDENTITY_REQUIRED",
            IdentityError::RunMissing => "RUN_REQUIRED",
            IdentityError::PointerMissing { .. } | IdentityError::BlankValue { .. } => {
                "IDENTITY_POINTER_EMPTY"
            }
            IdentityError::PointerNotScalar { .. } => "IDENTITY_NOT_SCALAR",
            IdentityError::BadIdempotencyKey { .. } => "IDEMPOTENCY_KEY_INVALID",
            IdentityError::TooManyBusinessIds { .. }
            | IdentityError::BadBusinessName { .. }
            | IdentityError::BadBusinessId { .. }
            | IdentityError::DoubledBusinessId { .. } => "BUSINESS_IDS_INVALID",
        }
    }
}
