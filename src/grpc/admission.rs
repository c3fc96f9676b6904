//! What is let in: past these bounds a caller is told at once rather than after its own deadline.

use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::ledger::LedgerError;

/// Calls that may be under way at once. Waiting Lookups do not count.
const CALLS_MAX: usize = 16_384;

/// The calls under way, and the bytes of their requests.
pub(super) struct Admission {
    calls: Semaphore,
    bytes: Semaphore,
}

/// Room for one call, until it is answered.
pub(super) struct Admitted<'a> {
    _call: SemaphorePermit<'a>,
    _bytes: SemaphorePermit<'a>,
}

impl Admission {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            calls: Semaphore::new(CALLS_MAX),
            bytes: Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS)),
        }
    }

    /// Makes room for a request, if there is some.
    pub(super) fn admit(&self, request: &impl Message) -> Result<Admitted<'_>, LedgerError> {
        let bytes = u32::try_from(request.encoded_len()).map_err(|_| LedgerError::QueueFull)?;
        let full = |_| LedgerError::QueueFull;
        Ok(Admitted {
            _call: self.calls.try_acquire().map_err(full)?,
            _bytes: self.bytes.try_acquire_many(bytes).map_err(full)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_lent_until_the_call_is_answered() {
        let admission = Admission::new(100);
        let request = |bytes| vec![0_u8; bytes];
        let first = admission.admit(&request(60)).unwrap();
        assert!(matches!(admission.admit(&request(60)), Err(LedgerError::QueueFull)));
        assert!(admission.admit(&request(30)).is_ok());
        drop(first);
        assert!(admission.admit(&request(60)).is_ok());
    }
}
