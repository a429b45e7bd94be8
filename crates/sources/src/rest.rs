//! Bytes that wait for more: a value that is cut, the body of a request. A few kilobytes are a vector of their own; what
//! grows moves into memory of the pool, so that `memory_max` counts it.

use std::time::Duration;

use millstream_record::{Buffer, Pool};

/// More bytes than this are held in memory of the pool, whose smallest buffer is as large.
const OWN_BYTES_MAX: usize = 64 << 10;

/// Bytes that wait for more.
#[derive(Default)]
pub(crate) struct Rest {
    own: Vec<u8>,
    pooled: Option<Buffer>,
}

impl Rest {
    /// What waits.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.pooled {
            Some(buffer) => buffer,
            None => &self.own,
        }
    }

    /// Appends bytes; false: there was no memory for `wait`.
    pub(crate) async fn append(&mut self, bytes: &[u8], pool: &Pool, wait: Duration) -> bool {
        let length = self.bytes().len() + bytes.len();
        let capacity = self.pooled.as_ref().map_or(OWN_BYTES_MAX, |b| b.capacity());
        if length > capacity {
            let size = length.max(capacity * 2);
            let Ok(mut larger) = tokio::time::timeout(wait, pool.reserve(size)).await else {
                return false;
            };
            larger.extend_from_slice(self.bytes());
            self.own = Vec::new();
            self.pooled = Some(larger);
        }
        match &mut self.pooled {
            Some(buffer) => buffer.extend_from_slice(bytes),
            None => self.own.extend_from_slice(bytes),
        }
        true
    }

    /// Drops `count` bytes at the front.
    pub(crate) fn consume(&mut self, count: usize) {
        let left = self.bytes().get(count..).unwrap_or_default();
        if left.len() <= OWN_BYTES_MAX && self.pooled.is_some() || left.is_empty() {
            *self = Self {
                own: left.to_vec(),
                pooled: None,
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
    use super::*;

    #[tokio::test]
    async fn what_grows_is_counted_and_what_shrinks_goes_back() {
        let pool = Pool::new(1 << 20);
        let wait = Duration::from_millis(10);
        let mut rest = Rest::default();
        assert!(rest.append(&[1; OWN_BYTES_MAX], &pool, wait).await);
        assert_eq!(pool.taken_bytes(), 0);
        assert!(rest.append(&[2; 10], &pool, wait).await);
        assert_eq!(pool.taken_bytes(), 2 * OWN_BYTES_MAX);
        assert!(!rest.append(&[3; 900 << 10], &pool, wait).await);
        assert_eq!(rest.bytes().len(), OWN_BYTES_MAX + 10);
        rest.consume(OWN_BYTES_MAX);
        assert_eq!((rest.bytes(), pool.taken_bytes()), (&[2; 10][..], 0));
        rest.consume(10);
        assert!(rest.bytes().is_empty());
    }
}
