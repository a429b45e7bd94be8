//! The read buffer of a connection: for heads, small frames, and what was read beyond a payload.
//!
//! Thousands of silent connections hold none: while nothing is there to be read the buffer lies in a list of its thread,
//! and a few bytes of a frame that is cut stay in a vector of their size.

use std::{
    cell::RefCell, future::Future, future::poll_fn, io, pin::pin, task::Poll, time::Duration,
};

use bytes::BufMut;
use millstream_net::sides::Reading;
use millstream_record::{Buffer, Pool};
use tokio::io::AsyncReadExt;

/// Bytes of the buffer. Larger ones gain a tenth at most (reference: bench `decoder`), smaller ones cost system calls.
pub(crate) const STASH_BYTES: usize = 64 << 10;
/// A cut frame of no more bytes than this is moved out of the buffer while the connection waits.
const FEW_BYTES: usize = 1 << 10;
/// So many buffers lie ready on a thread.
const FREE_MAX: usize = 16;
/// How long a connection that holds memory waits for more of it. Then it gives up what it holds, as all who hold some
/// could be waiting for each other.
const MEMORY_WAIT: Duration = Duration::from_secs(30);

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of `bytes` for a connection that holds others; None: there was no memory for a long while.
pub(crate) async fn reserve_while_holding(pool: &Pool, bytes: usize) -> Option<Buffer> {
    tokio::time::timeout(MEMORY_WAIT, pool.reserve(bytes))
        .await
        .ok()
}

/// What was read and not yet decoded.
#[derive(Default)]
pub(crate) struct Stash {
    store: Store,
    /// Bytes at the front that were consumed.
    start: usize,
}

/// Where the bytes stand.
enum Store {
    /// A buffer of [`STASH_BYTES`], or less when a few bytes wait.
    Own(Vec<u8>),
    /// A frame that did not fit.
    Grown(Buffer),
}

impl Default for Store {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Store {
    fn bytes(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Own(bytes) => bytes,
            Self::Grown(buffer) => buffer,
        }
    }
}

impl From<Vec<u8>> for Stash {
    /// What was read already.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            store: Store::Own(bytes),
            start: 0,
        }
    }
}

impl Stash {
    /// What waits to be decoded.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = match &self.store {
            Store::Own(bytes) => bytes,
            Store::Grown(buffer) => buffer,
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

    /// Reads once, at most `limit` bytes; 0: the peer has closed. Also tells whether all that was there was read.
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
                Poll::Pending => {
                    self.rest();
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Reads once from a socket that is set aside; `None`: nothing is there. Else as [`Stash::fill`].
    pub(crate) fn fill_aside(&mut self, reader: &Reading) -> io::Result<Option<(usize, bool)>> {
        self.prepare();
        let bytes = self.store.bytes();
        let room = bytes.capacity() - bytes.len();
        let read = reader.read_aside(bytes);
        if let Ok(None) = read {
            self.rest();
        }
        Ok(read?.map(|count| (count, count < room)))
    }

    /// Whether the frame at the front fills the buffer.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes().len() >= STASH_BYTES
            && match &self.store {
                Store::Own(bytes) => self.bytes().len() == bytes.capacity(),
                Store::Grown(buffer) => self.bytes().len() == buffer.capacity(),
            }
    }

    /// Whether it holds a buffer of the pool.
    pub(crate) fn is_grown(&self) -> bool {
        matches!(self.store, Store::Grown(_))
    }

    /// Makes room for a frame of up to `bytes_max` bytes, by four times; false: there is no memory.
    pub(crate) async fn grow(&mut self, pool: &Pool, bytes_max: usize) -> bool {
        let bytes = (self.bytes().len() * 4).min(bytes_max + STASH_BYTES);
        let Some(mut grown) = reserve_while_holding(pool, bytes).await else {
            return false;
        };
        grown.extend_from_slice(self.bytes());
        self.release();
        self.store = Store::Grown(grown);
        true
    }

    /// A buffer with room, and what waits at its front.
    fn prepare(&mut self) {
        let waiting = self.bytes().len();
        let fits = match &self.store {
            Store::Own(bytes) => bytes.capacity() >= STASH_BYTES,
            Store::Grown(_) => waiting > STASH_BYTES / 2,
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

    /// Gives the buffer back while nothing is there to be read.
    fn rest(&mut self) {
        let waiting = self.bytes();
        if waiting.len() <= FEW_BYTES {
            let few = waiting.to_vec();
            self.release();
            self.store = Store::Own(few);
        }
    }

    fn release(&mut self) {
        self.start = 0;
        if let Store::Own(mut bytes) = std::mem::take(&mut self.store)
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
