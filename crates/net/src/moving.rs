//! A limit on silence: how long no byte of a connection may move, in either direction.
//!
//! A request over a slow line takes long although nothing is wrong, so its length is not limited. Bytes that the kernel has taken
//! still wait in its send buffer. So a byte moves when the program writes or reads it, and also when the peer's kernel acknowledges it.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::AsFd,
    pin::{Pin, pin},
    rc::{Rc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use millstream_sys::unsent::unsent_bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, timeout},
};

use crate::Stream;

/// How often a limit is checked while it lasts.
const LOOKS: u32 = 8;

/// A stream whose bytes are counted.
#[derive(Debug)]
pub struct Moving {
    stream: Rc<RefCell<Stream>>,
    moved: Rc<Cell<u64>>,
}

/// Shows whether the bytes of a [`Moving`] stream move. Does not keep the stream open.
#[derive(Clone, Debug)]
pub struct Motion {
    stream: Weak<RefCell<Stream>>,
    moved: Rc<Cell<u64>>,
}

impl Moving {
    /// Counts the bytes of this stream.
    #[must_use]
    pub fn new(stream: Stream) -> (Self, Motion) {
        let (stream, moved) = (Rc::new(RefCell::new(stream)), Rc::<Cell<u64>>::default());
        let motion = Motion {
            stream: Rc::downgrade(&stream),
            moved: moved.clone(),
        };
        (Self { stream, moved }, motion)
    }

    fn count(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }
}

impl Motion {
    /// Two numbers, of which at least one changes when a byte moves.
    #[must_use]
    pub fn now(&self) -> (u64, u64) {
        let stream = self.stream.upgrade();
        let unsent = stream.map_or(0, |stream| {
            unsent_bytes(stream.borrow().as_fd()).unwrap_or(0)
        });
        (self.moved.get(), unsent)
    }
}

/// Waits for `work`. Returns `None` if `seen` does not change for `limit`, or up to an eighth longer.
pub async fn while_moving<T, S: PartialEq>(
    limit: Duration,
    seen: impl Fn() -> S,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let (mut last, mut since) = (seen(), Instant::now());
    loop {
        if let Ok(done) = timeout(limit / LOOKS, work.as_mut()).await {
            return Some(done);
        }
        let now = seen();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= limit {
            return None;
        }
    }
}

impl AsyncRead for Moving {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer);
        self.count(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Moving {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes))?;
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.stream.borrow_mut();
        let written = ready!(Pin::new(&mut *stream).poll_write_vectored(context, bytes))?;
        drop(stream);
        self.count(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_may_last_as_long_as_something_moves() {
        let limit = Duration::from_secs(8);
        let moved = Cell::new(0);
        let work = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(7)).await;
                moved.set(moved.get() + 1);
            }
        };
        assert_eq!(while_moving(limit, || moved.get(), work).await, Some(()));
        let start = Instant::now();
        let silent = while_moving(limit, || 0, pending::<()>()).await;
        assert_eq!(silent, None);
        assert!((8..=9).contains(&start.elapsed().as_secs()));
    }
}
