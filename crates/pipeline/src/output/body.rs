//! The memory of a processor's output.
//!
//! Large output goes into buffers of the pool, which return to it when the consumer has finished. Memory that is touched for the first
//! time costs more than the copy into it.

use bytes::Bytes;
use millstream_record::{Buffer, Pool};

/// Batches below this size have buffers of the allocator. The smallest buffer of the pool is much larger than their output.
const POOLED_BYTES_MIN: usize = 32 << 10;
/// Buffers of the pool for one batch. A processor may write to any number of ports and tags; the other ones get little of the batch.
pub(super) const POOLED_MAX: usize = 4;

/// Hands out the memory for one output.
pub(super) struct Buffers<'a> {
    pool: &'a Pool,
    /// The bytes of the input. The output is rarely much larger.
    bytes: usize,
    /// The buffers that may still come from the pool.
    pooled: usize,
}

impl<'a> Buffers<'a> {
    pub(super) fn new(pool: &'a Pool, bytes: usize) -> Self {
        Self {
            pool,
            bytes,
            pooled: if bytes < POOLED_BYTES_MIN {
                0
            } else {
                POOLED_MAX
            },
        }
    }

    fn body(&mut self) -> Body {
        match self.pooled.checked_sub(1) {
            None => Body::Allocated(Vec::new()),
            Some(left) => {
                self.pooled = left;
                Body::Pooled(self.pool.take(self.bytes))
            }
        }
    }
}

/// The bytes of a batch that is being filled.
pub(super) enum Body {
    /// Nothing was written yet.
    Empty,
    Allocated(Vec<u8>),
    Pooled(Buffer),
}

impl Body {
    pub(super) fn for_writing(&mut self, buffers: &mut Buffers<'_>) -> &mut Vec<u8> {
        if matches!(self, Self::Empty) {
            *self = buffers.body();
        }
        match self {
            Self::Pooled(buffer) => buffer,
            Self::Allocated(bytes) => bytes,
            Self::Empty => unreachable!("a body was just made"),
        }
    }

    /// Shares the bytes. A buffer that is mostly empty is returned to its pool at once, because the batch may wait in a queue that
    /// counts only its bytes.
    pub(super) fn share(self) -> Bytes {
        match self {
            Self::Pooled(buffer) if buffer.len() < buffer.capacity() / 4 => {
                Bytes::copy_from_slice(&buffer)
            }
            Self::Pooled(buffer) => buffer.freeze(),
            Self::Allocated(bytes) => Bytes::from(bytes),
            Self::Empty => Bytes::new(),
        }
    }
}
