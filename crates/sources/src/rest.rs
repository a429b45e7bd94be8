//! The bytes of an incomplete value or request body. Up to 64 KiB are in a vector; beyond that, all of them move into a buffer of
//! the memory pool. Both count against `memory_max`, except for a vector of at most 1 KiB.

use std::time::Duration;

use millstream_record::{Buffer, Charge, Claim};
use tokio::time::timeout;

/// The maximum number of bytes in the vector. The smallest buffer of the pool has this size.
const OWN_BYTES_MAX: usize = 64 << 10;
/// A vector of at most this many bytes is not charged to the pool.
const FEW_BYTES: usize = 1 << 10;
/// A buffer of the pool grows by this factor, so that all growth together copies at most a third of the final bytes.
const GROWTH: usize = 4;

/// The bytes of an incomplete value.
pub(crate) struct Rest {
    own: Vec<u8>,
    /// The number of bytes that are charged to the pool for `own`, and the charge.
    charge: Option<(usize, Charge)>,
    pooled: Option<Buffer>,
    /// The largest expected number of bytes.
    expected: usize,
}

impl Default for Rest {
    fn default() -> Self {
        Self::expecting(usize::MAX)
    }
}

impl Rest {
    /// An empty value whose memory does not grow beyond `expected` bytes, unless more bytes are appended.
    pub(crate) fn expecting(expected: usize) -> Self {
        Self {
            own: Vec::new(),
            charge: None,
            pooled: None,
            expected,
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.pooled {
            Some(buffer) => buffer,
            None => &self.own,
        }
    }

    /// Number of bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        match &self.pooled {
            Some(buffer) => buffer.capacity(),
            None => self.own.capacity(),
        }
    }

    /// Appends bytes. Returns false if no memory became free within `wait`, or if the free memory is reserved for other messages.
    pub(crate) async fn append(&mut self, bytes: &[u8], claim: &Claim, wait: Duration) -> bool {
        let length = self.bytes().len() + bytes.len();
        if self.pooled.is_none() && length <= OWN_BYTES_MAX {
            self.own.extend_from_slice(bytes);
            return self.count(claim);
        }
        let grown = timeout(wait, self.grow(length, claim)).await;
        if grown != Ok(true) {
            return false;
        }
        if let Some(buffer) = &mut self.pooled {
            buffer.extend_from_slice(bytes);
        }
        true
    }

    /// Charges memory for `own`. Returns false if there is none left.
    fn count(&mut self, claim: &Claim) -> bool {
        let bytes = self.own.capacity();
        let counted = self
            .charge
            .as_ref()
            .map_or(FEW_BYTES, |(counted, _)| *counted);
        if bytes > counted {
            self.charge = None;
            self.charge = claim.pool().charge(bytes).map(|charge| (bytes, charge));
            return self.charge.is_some();
        }
        true
    }

    async fn grow(&mut self, length: usize, claim: &Claim) -> bool {
        let size = |capacity: usize| (capacity * GROWTH).min(self.expected).max(length);
        match &mut self.pooled {
            Some(buffer) if buffer.capacity() >= length => true,
            Some(buffer) => {
                let size = size(buffer.capacity());
                buffer.grow_more(claim, size).await
            }
            None => {
                let Some(mut buffer) = claim.reserve_more(size(OWN_BYTES_MAX)).await else {
                    return false;
                };
                buffer.extend_from_slice(&self.own);
                self.own = Vec::new();
                self.charge = None;
                self.pooled = Some(buffer);
                true
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::expecting(self.expected);
    }

    /// Drops `count` bytes at the front.
    pub(crate) fn consume(&mut self, count: usize) {
        let left = self.bytes().get(count..).unwrap_or_default();
        if left.len() <= OWN_BYTES_MAX && self.pooled.is_some() || left.is_empty() {
            *self = Self {
                own: left.to_vec(),
                ..Self::expecting(self.expected)
            };
            return;
        }
        match &mut self.pooled {
            Some(buffer) => buffer.drain(..count),
            None => self.own.drain(..count),
        };
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    use super::*;

    #[tokio::test]
    async fn memory_is_counted_as_it_grows_and_returned_as_it_shrinks() {
        let pool = Pool::new(1 << 20);
        let claim = pool.claim(0);
        let wait = Duration::from_millis(10);
        let mut rest = Rest::default();
        assert!(rest.append(&[1; 100], &claim, wait).await);
        assert_eq!(pool.taken_bytes(), 0);
        assert!(rest.append(&[1; OWN_BYTES_MAX - 100], &claim, wait).await);
        assert_eq!(pool.taken_bytes(), OWN_BYTES_MAX);
        assert!(rest.append(&[2; 10], &claim, wait).await);
        assert_eq!(pool.taken_bytes(), GROWTH * OWN_BYTES_MAX);
        assert!(!rest.append(&[3; 900 << 10], &claim, wait).await);
        assert_eq!(rest.bytes().len(), OWN_BYTES_MAX + 10);
        rest.consume(OWN_BYTES_MAX);
        assert_eq!((rest.bytes(), pool.taken_bytes()), (&[2; 10][..], 0));
        rest.consume(10);
        assert!(rest.bytes().is_empty());
    }
}
