//! A connection as two sides, one that reads and one that writes, both on one thread.
//!
//! A socket that the runtime watches wakes its thread for every segment that comes, also while the connection waits on
//! purpose. So a busy connection is set aside: it is read by the clock, and watched again when nothing more comes. TCP wakes
//! early when enough is there; a unix socket, which cannot tell, is not watched meanwhile; under TLS only nobody waits.
//! Who knows how much must come can ask TCP to wake no earlier ([`Reading::wake_from`]).

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

/// A connection that is set aside wakes when this many bytes are there, at first: a hundred messages make a wake-up cheap.
const ENOUGH_BYTES: usize = 16 << 10;
/// It wakes from no fewer bytes than this.
const ENOUGH_BYTES_MIN: usize = 4 << 10;

enum Place {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Secure>),
    /// Set aside; wakes when enough is there.
    Gathering(TcpStream),
    /// Set aside.
    Aside(Unwatched),
    /// The same under TLS.
    AsideTls(Box<Secure>),
    /// Watching it has failed.
    Lost,
}

struct Shared {
    place: RefCell<Place>,
    /// Who wants to write while it is set aside.
    writer: Cell<Option<Waker>>,
    /// From how many bytes on TCP wakes.
    wake: Cell<usize>,
    /// From how many bytes on it wakes while it is set aside.
    enough: Cell<usize>,
    /// Whether the last wait for enough bytes took the whole time.
    waited: Cell<bool>,
    /// Of a peer that has not sent anything without TLS.
    silence: RefCell<Option<Silence>>,
}

/// The side that reads.
pub struct Reading(Rc<Shared>);

/// The side that writes. What is written under TLS is on its way only after a flush.
pub struct Writing(Rc<Shared>);

impl Shared {
    fn set_wake(&self, stream: &TcpStream, bytes: usize) -> io::Result<()> {
        if self.wake.replace(bytes) == bytes {
            return Ok(());
        }
        wake_from(stream.as_fd(), i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    /// Learns from a read of `bytes` bytes how many are enough. A sender with a small send buffer, of which a short message
    /// takes a kilobyte, may have no room for as many as are waited for: it then rests for the whole time, and whoever
    /// reads does its work when it lets it go on. One that is faster than the reader leaves many more.
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
    /// Both sides of it.
    #[must_use]
    pub fn into_sides(self) -> (Reading, Writing) {
        let (place, silence) = match self {
            Self::Plain(Socket::Accepted(accepted)) => (accepted.socket.into(), accepted.silence),
            Self::Plain(socket) => (socket.into(), None),
            Self::Tls(stream) => (Place::Tls(stream), None),
        };
        let shared = Rc::new(Shared {
            place: RefCell::new(place),
            writer: Cell::new(None),
            wake: Cell::new(1),
            enough: Cell::new(ENOUGH_BYTES),
            waited: Cell::new(false),
            silence: RefCell::new(silence),
        });
        (Reading(shared.clone()), Writing(shared))
    }
}

impl From<Socket> for Place {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Tcp(stream) => Self::Tcp(stream),
            Socket::Unix(stream) => Self::Unix(stream),
            Socket::Accepted(accepted) => accepted.socket.into(),
        }
    }
}

impl Reading {
    /// From now on it is only read by [`Reading::read_aside`]; what is not TCP is not written either.
    pub fn set_aside(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Tcp(stream) => {
                self.0.set_wake(&stream, self.0.enough.get())?;
                Place::Gathering(stream)
            }
            Place::Unix(stream) => Place::Aside(Unwatched::Unix(stream.into_std()?)),
            Place::Tls(stream) => Place::AsideTls(stream),
            other => other,
        };
        Ok(())
    }

    /// Whether it is set aside.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        matches!(
            *self.0.place.borrow(),
            Place::Gathering(_) | Place::Aside(_) | Place::AsideTls(_)
        )
    }

    /// Reads what is there into the spare room of `out`; `None`: nothing is there.
    pub fn read_aside(&self, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match &mut *self.0.place.borrow_mut() {
            Place::Gathering(stream) => {
                let read = match read_once(stream, out)? {
                    None => read_now(stream.as_fd(), out)?,
                    read => read,
                };
                self.0.adapt(stream, read.unwrap_or(0))?;
                Ok(read)
            }
            Place::Aside(socket) => read_now(socket.as_fd(), out),
            Place::AsideTls(stream) => read_once(stream, out),
            _ => Ok(None),
        }
    }

    /// While it is set aside: waits for `time`, or less when enough is there before.
    pub async fn gather(&self, time: Duration) {
        let enough = poll_fn(|context| match &*self.0.place.borrow() {
            Place::Gathering(stream) => stream.poll_read_ready(context).map(|_| ()),
            _ => Poll::Pending,
        });
        self.0.waited.set(timeout(time, enough).await.is_err());
    }

    /// Who waits to read is woken when `bytes` are there (1: as usual), as far as the socket can tell: TCP without TLS.
    /// The end of the connection wakes at any time, and so does a system that has no room for so many bytes.
    pub fn wake_from(&self, bytes: usize) -> io::Result<()> {
        match &*self.0.place.borrow() {
            Place::Tcp(stream) => self.0.set_wake(stream, bytes),
            _ => Ok(()),
        }
    }

    /// It is watched again, and may be written.
    pub fn watch(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Aside(socket) => socket.watch()?.into(),
            Place::AsideTls(stream) => Place::Tls(stream),
            Place::Gathering(stream) => {
                self.0.set_wake(&stream, 1)?;
                Place::Tcp(stream)
            }
            other => other,
        };
        if let Some(writer) = self.0.writer.take() {
            writer.wake();
        }
        Ok(())
    }
}

/// Reads what is there.
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

/// Reads what is there as far as the runtime knows of it; nobody is woken when more comes.
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
        match &mut *self.0.place.borrow_mut() {
            Place::Tcp(stream) | Place::Gathering(stream) => {
                poll_read(silence, stream, context, buffer)
            }
            Place::Unix(stream) => poll_read(silence, stream, context, buffer),
            Place::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
            Place::Aside(_) | Place::AsideTls(_) | Place::Lost => {
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
        match &mut *self.0.place.borrow_mut() {
            Place::Tcp(stream) | Place::Gathering(stream) => act(Pin::new(stream), context),
            Place::Unix(stream) => act(Pin::new(stream), context),
            Place::Tls(stream) => act(Pin::new(&mut **stream), context),
            Place::Aside(_) | Place::AsideTls(_) => {
                self.0.writer.set(Some(context.waker().clone()));
                Poll::Pending
            }
            Place::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
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

    /// Long enough to tell a wait that takes it all from one that does not, on a busy machine.
    const TIME: Duration = Duration::from_millis(500);

    /// Sends `bytes` bytes, waits for them as a connection that is set aside does, and reads them; whether the wait ended
    /// before its time.
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
    async fn a_sender_that_has_room_for_less_than_is_waited_for_is_read_before_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut sender = TcpStream::connect(address).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let (reading, _writing) = Stream::Plain(Socket::Tcp(socket)).into_sides();
        reading.set_aside().unwrap();
        // The runtime takes a new socket for readable until a read finds nothing.
        assert_eq!(
            reading.read_aside(&mut Vec::with_capacity(1)).unwrap(),
            None
        );
        // It rests with 6 KB out, twice, until fewer bytes are taken for enough.
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
        // What is watched again and set aside once more has not forgotten.
        reading.watch().unwrap();
        reading.set_aside().unwrap();
        assert!(is_woken_by(&mut sender, &reading, 6_000).await);
        // A sender that is faster than its reader makes it wait for more again.
        assert!(is_woken_by(&mut sender, &reading, 40_000).await);
        assert!(is_woken_by(&mut sender, &reading, 40_000).await);
        assert!(!is_woken_by(&mut sender, &reading, 6_000).await);
        // A trickle is waited for in full, and changes nothing.
        assert!(!is_woken_by(&mut sender, &reading, 100).await);
    }
}
