//! The memory of one request.

use millstream_record::{Buffer, Claim};
use tokio::time::timeout;

use super::{answer::Refusal, endpoint::Endpoint};

/// Spare bytes in a batch, in addition to the size of its text. With them, a single record needs no second buffer.
pub(super) const SPARE_BYTES: usize = 4 << 10;

/// Reserves memory for one request.
#[derive(Clone, Copy)]
pub(super) struct RequestMemory<'r> {
    pub(super) endpoint: &'r Endpoint,
    pub(super) claim: &'r Claim,
}

impl RequestMemory<'_> {
    /// Reserves a buffer of the pool. Fails if none becomes free within `wait`.
    pub(super) async fn reserve(self, bytes: usize) -> Result<Buffer, Refusal> {
        let wait = self.endpoint.wait;
        let buffer = timeout(wait, self.claim.reserve_more(bytes)).await;
        buffer
            .ok()
            .flatten()
            .ok_or_else(|| Refusal::no_memory(wait))
    }

    /// Enlarges a buffer by `bytes`, and at least to twice its size.
    pub(super) async fn enlarge(self, buffer: &mut Buffer, bytes: usize) -> Result<(), Refusal> {
        let wait = self.endpoint.wait;
        let wanted = (buffer.len() + bytes).max(buffer.capacity() * 2);
        match timeout(wait, buffer.grow_more(self.claim, wanted)).await {
            Ok(true) => Ok(()),
            _ => Err(Refusal::no_memory(wait)),
        }
    }
}
