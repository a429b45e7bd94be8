//! The read buffer of a connection: for headers, small frames, and bytes read beyond a payload.
//!
//! Thousands of silent connections hold no buffer. While there is nothing to read, the buffer is in a free list of its thread,
//! and the bytes of an incomplete frame are in a vector of exactly their length. A vector larger than [`FEW_BYTES`] is charged to
//! the pool, which enforces `memory_max`.

use std::{
    cell::RefCell, future::Future, future::poll_fn, io, pin::pin, task::Poll, time::Duration,
};

use bytes::BufMut;
use millstream_net::sides::Reading;
use millstream_record::{Buffer, Charge, Claim, Pool};
use tokio::{io::AsyncReadExt, time::timeout};

/// The size of the buffer. Larger ones are at most a tenth faster, smaller ones need more system calls.
pub(crate) const STASH_BYTES: usize = 64 << 10;
/// An incomplete frame of up to this size is moved out of the buffer while the connection waits.
const MOVED_BYTES_MAX: usize = STASH_BYTES / 2;
/// An incomplete frame of up to this size is not charged to the pool.
const FEW_BYTES: usize = 1 << 10;
/// Maximum number of free buffers of a thread.
const FREE_MAX: usize = 16;
/// How long a connection that holds memory waits for more memory. After that it is closed, which frees its memory.
const MEMORY_WAIT: Duration = Duration::from_secs(30);

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Waits for memory, with a timeout, because other connections may wait for the memory that this one holds. `None` after the
/// timeout.
pub(crate) async fn patiently<T>(wait: impl Future<Output = T>) -> Option<T> {
    timeout(MEMORY_WAIT, wait).await.ok()
}

/// Whether a read failed because there is no memory for an incomplete frame.
pub(crate) fn is_no_memory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

/// Bytes that were read and not yet decoded.
pub(crate) struct Stash {
    pool: Pool,
    store: Store,
    /// The number of bytes at the front that were already consumed.
    start: usize,
    /// The memory that is charged for the bytes while the connection waits.
    charge: Option<Charge>,
}

/// The memory that holds the bytes.
enum Store {
    /// A buffer of [`STASH_BYTES`], or a smaller one for an incomplete frame.
    Own(Vec<u8>),
    /// A buffer of the pool, for a frame that did not fit into [`STASH_BYTES`].
    Grown(Buffer, Claim),
}

impl Store {
    fn bytes(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Own(bytes) => bytes,
            Self::Grown(buffer, _) => buffer,
        }
    }
}

impl Stash {
    /// Starts with bytes that were already read.
    pub(crate) fn new(pool: Pool, bytes: Vec<u8>) -> Self {
        Self {
            pool,
            store: Store::Own(bytes),
            start: 0,
            charge: None,
        }
    }

    /// The bytes to decode.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = match &self.store {
            Store::Own(bytes) => bytes,
            Store::Grown(buffer, _) => buffer,
        };
        bytes.get(self.start..).unwrap_or_default()
    }

    /// Drops `count` bytes at the front.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
    }

    /// Moves up to `count` bytes at the front to the end of `out`.
    pub(crate) fn move_to(&mut self, out: &mut Vec<u8>, count: usize) {
        let bytes = self.bytes();
        let taken = bytes.get(..count).unwrap_or(bytes);
        out.extend_from_slice(taken);
        let count = taken.len();
        self.consume(count);
    }

    /// Reads once, at most `limit` bytes. Returns the number of bytes (0: the peer has closed the connection), and whether the
    /// socket is drained.
    pub(crate) async fn fill(
        &mut self,
        reader: &mut Reading,
        limit: usize,
    ) -> io::Result<(usize, bool)> {
        poll_fn(|context| {
            self.prepare();
            let bytes = self.store.bytes();
            let room = limit.min(bytes.capacity() - bytes.len());
            let mut target = bytes.limit(room);
            let read = pin!(reader.read_buf(&mut target)).poll(context);
            match read {
                Poll::Ready(read) => Poll::Ready(read.map(|count| (count, count < room))),
                Poll::Pending => match self.park() {
                    true => Poll::Pending,
                    false => Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())),
                },
            }
        })
        .await
    }

    /// Reads once from a socket that is set aside (read periodically, see `net::sides`). Returns `None` if nothing is available,
    /// otherwise the same as [`Stash::fill`].
    pub(crate) fn fill_aside(&mut self, reader: &Reading) -> io::Result<Option<(usize, bool)>> {
        self.prepare();
        let bytes = self.store.bytes();
        let room = bytes.capacity() - bytes.len();
        let read = reader.read_aside(bytes);
        if let Ok(None) = read
            && !self.park()
        {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(read?.map(|count| (count, count < room)))
    }

    /// Whether the frame at the front fills the whole buffer.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes().len() >= STASH_BYTES
            && match &self.store {
                Store::Own(bytes) => self.bytes().len() == bytes.capacity(),
                Store::Grown(buffer, _) => self.bytes().len() == buffer.capacity(),
            }
    }

    /// The claim on memory of the pool, if the buffer was grown for a large frame.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        match &self.store {
            Store::Own(_) => None,
            Store::Grown(_, claim) => Some(claim),
        }
    }

    /// The number of bytes of memory held while the connection waits.
    pub(crate) fn held(&self) -> usize {
        match &self.store {
            Store::Own(bytes) => bytes.len(),
            Store::Grown(buffer, _) => buffer.capacity(),
        }
    }

    /// Grows the buffer fourfold for a frame of up to `bytes_max` bytes. Returns false if there is no memory.
    pub(crate) async fn grow(&mut self, bytes_max: usize) -> bool {
        let bytes = (self.bytes().len() * 4).min(bytes_max + STASH_BYTES);
        let growing = async {
            if let Store::Grown(buffer, claim) = &mut self.store {
                return buffer.grow_more(claim, bytes).await;
            }
            let claim = self.pool.claim(bytes);
            let mut grown = claim.reserve(bytes).await;
            grown.extend_from_slice(self.bytes());
            self.release();
            self.store = Store::Grown(grown, claim);
            true
        };
        patiently(growing).await.unwrap_or(false)
    }

    /// Gives memory back to the pool if no bytes are left.
    pub(crate) fn shrink(&mut self) {
        if self.bytes().is_empty() && self.claim().is_some() {
            self.release();
        }
    }

    /// Makes space for a read: moves the bytes to the front of a buffer that is large enough.
    fn prepare(&mut self) {
        self.charge = None;
        let waiting = self.bytes().len();
        let fits = match &self.store {
            Store::Own(bytes) => bytes.capacity() >= STASH_BYTES,
            Store::Grown(..) => waiting > STASH_BYTES / 2,
        };
        if !fits {
            let mut bytes = FREE
                .with_borrow_mut(Vec::pop)
                .unwrap_or_else(|| Vec::with_capacity(STASH_BYTES));
            bytes.extend_from_slice(self.bytes());
            self.release();
            self.store = Store::Own(bytes);
        } else if self.start > 0 {
            let start = self.start;
            let bytes = self.store.bytes();
            bytes.copy_within(start.., 0);
            bytes.truncate(waiting);
            self.start = 0;
        }
    }

    /// Gives the buffer back to the free list of the thread while there is nothing to read. Moves an incomplete frame of up to
    /// [`MOVED_BYTES_MAX`] bytes to a vector. Returns false if there is no memory for the bytes that remain.
    fn park(&mut self) -> bool {
        let waiting = self.bytes();
        let count = waiting.len();
        if count <= MOVED_BYTES_MAX {
            let few = waiting.to_vec();
            self.release();
            self.store = Store::Own(few);
        }
        if let Store::Own(bytes) = &self.store
            && count > FEW_BYTES
        {
            self.charge = self.pool.charge(bytes.capacity());
            return self.charge.is_some();
        }
        true
    }

    fn release(&mut self) {
        self.start = 0;
        if let Store::Own(mut bytes) = std::mem::replace(&mut self.store, Store::Own(Vec::new()))
            && bytes.capacity() >= STASH_BYTES
        {
            bytes.clear();
            FREE.with_borrow_mut(|free| {
                if free.len() < FREE_MAX {
                    free.push(bytes);
                }
            });
        }
    }
}

impl Drop for Stash {
    fn drop(&mut self) {
        self.release();
    }
}
