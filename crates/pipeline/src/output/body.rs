//! The memory of a processor's output.
//!
//! Large output goes into buffers of the pool, which are reused when the consumer has finished: writing to fresh memory would cost more
//! than the copy itself.

use bytes::Bytes;
use millstream_record::{Buffer, Pool};

/// The output of batches with fewer bytes than this goes into allocated memory, because the smallest buffer of the pool would be much too
/// large for it.
const POOLED_BYTES_MIN: usize = 32 << 10;
/// The maximum number of buffers of the pool for one batch. A processor may write to any number of ports and tags, but only a few of
/// them get a large part of the batch; the rest goes into allocated memory.
pub(super) const POOLED_MAX: usize = 4;

/// Hands out the memory for one output.
pub(super) struct Buffers<'a> {
    pool: &'a Pool,
    /// The bytes of the input. The output is rarely much larger.
    bytes: usize,
    /// The number of buffers that may still come from the pool.
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

    /// The bound of the pool.
    pub(super) fn bytes_max(&self) -> usize {
        self.pool.bytes_max()
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

    /// Returns the bytes, without a copy unless the buffer is mostly empty. The bytes of a mostly empty buffer are copied, and the buffer
    /// returns to the pool immediately: a queue counts the bytes of a waiting batch, but not the unused capacity of its buffer.
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
