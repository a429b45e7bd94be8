//! Splits a connection into a reading and a writing side, both on one thread.
//!
//! The runtime wakes the thread for every arriving segment of a socket that it watches, even while the reader pauses on purpose. So a
//! busy connection is *set aside*: its reader polls it periodically, and watches it again when no more bytes arrive. While the
//! connection is set aside, a TCP socket wakes the reader only when enough bytes have arrived. A unix socket cannot do this, so the
//! runtime does not watch it meanwhile. Under TLS the socket stays watched, but no task waits for it. A reader that knows how many
//! bytes must still arrive can suppress earlier wake-ups on TCP ([`Reading::wake_from`]).

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::BufMut;
use millstream_sys::wake::wake_from;
use rustix::{buffer::spare_capacity, io::Errno};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use crate::{
    room::{Silence, poll_read},
    stream::{Secure, Socket, Stream, Unwatched},
};

/// A TCP connection that is set aside wakes its reader when a threshold of bytes has arrived. This is the initial and the maximum
/// threshold: about a hundred messages.
const ENOUGH_BYTES: usize = 16 << 10;
/// The minimum threshold.
const ENOUGH_BYTES_MIN: usize = 4 << 10;

enum Registration {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Secure>),
    /// Set aside; wakes the reader when enough bytes have arrived.
    Gathering(TcpStream),
    /// Set aside: a unix socket that the runtime does not watch.
    Aside(Unwatched),
    /// Set aside, under TLS.
    AsideTls(Box<Secure>),
    /// The socket could not be registered again.
    Lost,
}

struct Sides {
    registration: RefCell<Registration>,
    /// The task that waits to write while the connection is set aside.
    writer: Cell<Option<Waker>>,
    /// The number of bytes at which a TCP socket currently wakes its reader.
    wake: Cell<usize>,
    /// The number of bytes at which a TCP socket wakes its reader while the connection is set aside.
    enough: Cell<usize>,
    /// Whether the last wait for enough bytes timed out.
    waited: Cell<bool>,
    /// Marks the peer as silent until its first byte is read. Always `None` under TLS, where the socket holds the mark.
    silence: RefCell<Option<Silence>>,
}

/// The reading side.
pub struct Reading(Rc<Sides>);

/// The writing side. Under TLS, written bytes are sent only by a flush.
pub struct Writing(Rc<Sides>);

impl Sides {
    fn set_wake(&self, stream: &TcpStream, bytes: usize) -> io::Result<()> {
        if self.wake.replace(bytes) == bytes {
            return Ok(());
        }
        wake_from(stream.as_fd(), i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    /// Adapts the threshold `enough` after a read of `bytes` bytes. Halves the threshold if the wait timed out although at
    /// least [`ENOUGH_BYTES_MIN`] bytes had arrived. In this case the sender's send buffer may be smaller than the
    /// threshold: each short message takes a kilobyte of that buffer. Such a sender stalls for the full wait. Doubles the threshold if at least twice the threshold had arrived, because the sender is faster than the
    /// reader.
    fn adapt(&self, stream: &TcpStream, bytes: usize) -> io::Result<()> {
        let enough = self.enough.get();
        let next = if self.waited.take() && (ENOUGH_BYTES_MIN..enough).contains(&bytes) {
            enough / 2
        } else if bytes >= 2 * enough {
            (2 * enough).min(ENOUGH_BYTES)
        } else {
            return Ok(());
        };
        self.enough.set(next);
        self.set_wake(stream, next)
    }
}

impl Stream {
    /// Splits the connection.
    #[must_use]
    pub fn into_sides(self) -> (Reading, Writing) {
        let (registration, silence) = match self {
            Self::Plain(Socket::Accepted(accepted)) => (accepted.socket.into(), accepted.silence),
            Self::Plain(socket) => (socket.into(), None),
            Self::Tls(stream) => (Registration::Tls(stream), None),
        };
        let shared = Rc::new(Sides {
            registration: RefCell::new(registration),
            writer: Cell::new(None),
            wake: Cell::new(1),
            enough: Cell::new(ENOUGH_BYTES),
            waited: Cell::new(false),
            silence: RefCell::new(silence),
        });
        (Reading(shared.clone()), Writing(shared))
    }
}

impl From<Socket> for Registration {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Tcp(stream) => Self::Tcp(stream),
            Socket::Unix(stream) => Self::Unix(stream),
            Socket::Accepted(accepted) => accepted.socket.into(),
        }
    }
}

impl Reading {
    /// Sets the connection aside. Until [`Reading::watch`] is called, only [`Reading::read_aside`] can read. Writes also wait until
    /// then, except on TCP without TLS.
    pub fn set_aside(&self) -> io::Result<()> {
        let mut registration = self.0.registration.borrow_mut();
        *registration = match std::mem::replace(&mut *registration, Registration::Lost) {
            Registration::Tcp(stream) => {
                self.0.set_wake(&stream, self.0.enough.get())?;
                Registration::Gathering(stream)
            }
            Registration::Unix(stream) => Registration::Aside(Unwatched::Unix(stream.into_std()?)),
            Registration::Tls(stream) => Registration::AsideTls(stream),
            other => other,
        };
        Ok(())
    }

    /// Whether the connection is set aside.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        matches!(
            *self.0.registration.borrow(),
            Registration::Gathering(_) | Registration::Aside(_) | Registration::AsideTls(_)
        )
    }

    /// Reads available bytes into the spare capacity of `out`. Returns `None` if there are none, and 0 at the end of the stream.
    pub fn read_aside(&self, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match &mut *self.0.registration.borrow_mut() {
            Registration::Gathering(stream) => {
                let read = match read_once(stream, out)? {
                    None => read_now(stream.as_fd(), out)?,
                    read => read,
                };
                self.0.adapt(stream, read.unwrap_or(0))?;
                Ok(read)
            }
            Registration::Aside(socket) => read_now(socket.as_fd(), out),
            Registration::AsideTls(stream) => read_once(stream, out),
            _ => Ok(None),
        }
    }

    /// Waits for `time`. On TCP without TLS, the wait ends early once enough bytes have arrived. The connection must be set aside.
    pub async fn gather(&self, time: Duration) {
        let enough = poll_fn(|context| match &*self.0.registration.borrow() {
            Registration::Gathering(stream) => stream.poll_read_ready(context).map(|_| ()),
            _ => Poll::Pending,
        });
        self.0.waited.set(timeout(time, enough).await.is_err());
    }

    /// Wakes the reading task only when `bytes` bytes have arrived (default: 1). This has an effect only on TCP without TLS.
    /// The task also wakes when the connection ends, or when the kernel's buffer cannot hold `bytes` bytes.
    pub fn wake_from(&self, bytes: usize) -> io::Result<()> {
        match &*self.0.registration.borrow() {
            Registration::Tcp(stream) => self.0.set_wake(stream, bytes),
            _ => Ok(()),
        }
    }

    /// Watches the connection again, which resumes writing.
    pub fn watch(&self) -> io::Result<()> {
        let mut registration = self.0.registration.borrow_mut();
        *registration = match std::mem::replace(&mut *registration, Registration::Lost) {
            Registration::Aside(socket) => socket.watch()?.into(),
            Registration::AsideTls(stream) => Registration::Tls(stream),
            Registration::Gathering(stream) => {
                self.0.set_wake(&stream, 1)?;
                Registration::Tcp(stream)
            }
            other => other,
        };
        if let Some(writer) = self.0.writer.take() {
            writer.wake();
        }
        Ok(())
    }
}

/// Reads available bytes; `None` if there are none.
fn read_now(socket: BorrowedFd<'_>, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(socket, spare_capacity(out)) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads available bytes. Returns `None` if there are none, or if the runtime has not yet noticed that the stream is readable. Does not
/// register a wake-up.
fn read_once(
    stream: &mut (impl AsyncRead + Unpin),
    out: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    let room = out.capacity() - out.len();
    let mut target = out.limit(room);
    let read = pin!(stream.read_buf(&mut target));
    match read.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => read.map(Some),
        Poll::Pending => Ok(None),
    }
}

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let silence = &mut *self.0.silence.borrow_mut();
        match &mut *self.0.registration.borrow_mut() {
            Registration::Tcp(stream) | Registration::Gathering(stream) => {
                poll_read(silence, stream, context, buffer)
            }
            Registration::Unix(stream) => poll_read(silence, stream, context, buffer),
            Registration::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
            Registration::Aside(_) | Registration::AsideTls(_) | Registration::Lost => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }
}

impl Writing {
    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut (dyn AsyncWrite + Unpin)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.0.registration.borrow_mut() {
            Registration::Tcp(stream) | Registration::Gathering(stream) => {
                act(Pin::new(stream), context)
            }
            Registration::Unix(stream) => act(Pin::new(stream), context),
            Registration::Tls(stream) => act(Pin::new(&mut **stream), context),
            Registration::Aside(_) | Registration::AsideTls(_) => {
                self.0.writer.set(Some(context.waker().clone()));
                Poll::Pending
            }
            Registration::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    /// Long enough to tell a full wait from a shorter one on a busy machine.
    const TIME: Duration = Duration::from_millis(500);

    /// Sends `bytes` bytes, waits for them like a connection that is set aside, and reads them. Returns whether the wait ended
    /// early.
    async fn is_woken_by(sender: &mut TcpStream, reading: &Reading, bytes: usize) -> bool {
        sender.write_all(&vec![b'x'; bytes]).await.unwrap();
        let start = Instant::now();
        reading.gather(TIME).await;
        let early = start.elapsed() < TIME;
        let mut out = Vec::with_capacity(64 << 10);
        while out.len() < bytes {
            if reading.read_aside(&mut out).unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        }
        early
    }

    #[tokio::test]
    async fn a_sender_with_a_small_buffer_does_not_stall_for_the_full_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut sender = TcpStream::connect(address).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let (reading, _writing) = Stream::Plain(Socket::Tcp(socket)).into_sides();
        reading.set_aside().unwrap();
        // The runtime considers a new socket readable until a read finds nothing.
        assert_eq!(
            reading.read_aside(&mut Vec::with_capacity(1)).unwrap(),
            None
        );
        // The sender stalls with 6 KB in flight, twice, until the threshold is low enough.
        let mut waits = 0;
        while !is_woken_by(&mut sender, &reading, 6_000).await {
            waits += 1;
            assert!(
                waits <= 2,
                "it is held up for the whole time again and again"
            );
        }
        assert_eq!(waits, 2);
        assert!(is_woken_by(&mut sender, &reading, 6_000).await);
        // Watching the connection in between does not reset the threshold.
        reading.watch().unwrap();
        reading.set_aside().unwrap();
        assert!(is_woken_by(&mut sender, &reading, 6_000).await);
        // A sender that is faster than its reader raises the threshold again.
        assert!(is_woken_by(&mut sender, &reading, 40_000).await);
        assert!(is_woken_by(&mut sender, &reading, 40_000).await);
        assert!(!is_woken_by(&mut sender, &reading, 6_000).await);
        // A trickle waits for the full time and does not change the threshold.
        assert!(!is_woken_by(&mut sender, &reading, 100).await);
    }
}
