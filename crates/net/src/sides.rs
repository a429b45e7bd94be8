//! A connection as two sides, one that reads and one that writes, both on one thread.
//!
//! A socket that the runtime watches wakes its thread for every segment that comes, also while the connection waits on
//! purpose. So a busy connection is set aside: nobody watches it, it is read by the clock, and it is watched again when
//! nothing more comes. Under TLS it stays watched and only nobody waits for it.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::BufMut;
use rustix::{buffer::spare_capacity, io::Errno};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

use crate::stream::{Secure, Socket, Stream, Unwatched};

enum Place {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Secure>),
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
}

/// The side that reads.
pub struct Reading(Rc<Shared>);

/// The side that writes. What is written under TLS is on its way only after a flush.
pub struct Writing(Rc<Shared>);

impl Stream {
    /// Both sides of it.
    #[must_use]
    pub fn into_sides(self) -> (Reading, Writing) {
        let shared = Rc::new(Shared {
            place: RefCell::new(match self {
                Self::Plain(socket) => socket.into(),
                Self::Tls(stream) => Place::Tls(stream),
            }),
            writer: Cell::new(None),
        });
        (Reading(shared.clone()), Writing(shared))
    }
}

impl From<Socket> for Place {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Tcp(stream) => Self::Tcp(stream),
            Socket::Unix(stream) => Self::Unix(stream),
        }
    }
}

impl Reading {
    /// From now on it is only read by [`Reading::read_aside`], and not written.
    pub fn set_aside(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Tcp(stream) => Place::Aside(Unwatched::Tcp(stream.into_std()?)),
            Place::Unix(stream) => Place::Aside(Unwatched::Unix(stream.into_std()?)),
            Place::Tls(stream) => Place::AsideTls(stream),
            other => other,
        };
        Ok(())
    }

    /// Whether it is set aside.
    #[must_use]
    pub fn is_aside(&self) -> bool {
        matches!(*self.0.place.borrow(), Place::Aside(_) | Place::AsideTls(_))
    }

    /// Reads what is there into the spare room of `out`; `None`: nothing is there.
    pub fn read_aside(&self, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match &mut *self.0.place.borrow_mut() {
            Place::Aside(socket) => loop {
                match rustix::io::read(&*socket, spare_capacity(out)) {
                    Ok(count) => return Ok(Some(count)),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            },
            Place::AsideTls(stream) => read_once(stream, out),
            _ => Ok(None),
        }
    }

    /// It is watched again, and may be written.
    pub fn watch(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Aside(socket) => socket.watch()?.into(),
            Place::AsideTls(stream) => Place::Tls(stream),
            other => other,
        };
        if let Some(writer) = self.0.writer.take() {
            writer.wake();
        }
        Ok(())
    }
}

/// Reads what is there; nobody is woken when more comes.
fn read_once(stream: &mut Secure, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
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
        match &mut *self.0.place.borrow_mut() {
            Place::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Place::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
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
            Place::Tcp(stream) => act(Pin::new(stream), context),
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
