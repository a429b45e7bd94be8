//! A connection's socket, shared by the side that reads and the side that writes, both on one thread.
//!
//! A socket that the runtime watches wakes its thread for every segment that comes, also while the connection waits on
//! purpose. So a busy connection is set aside: nobody watches it, it is read by the clock, and it is watched again when
//! nothing more comes.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use rustix::{buffer::spare_capacity, io::Errno};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A connected socket as std has it: not watched, not blocking.
pub(super) enum Plain {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

enum Watched {
    Tcp(TcpStream),
    Unix(UnixStream),
}

enum Place {
    Watched(Watched),
    Aside(Plain),
    /// Watching it has failed.
    Lost,
}

struct Shared {
    place: RefCell<Place>,
    /// Who wants to write while it is set aside.
    writer: Cell<Option<Waker>>,
}

/// The side that reads.
pub(super) struct Reading(Rc<Shared>);

/// The side that writes.
pub(super) struct Writing(Rc<Shared>);

/// Both sides of a socket, watched by the runtime of this thread.
pub(super) fn share(socket: Plain) -> io::Result<(Reading, Writing)> {
    let shared = Rc::new(Shared {
        place: RefCell::new(Place::Watched(socket.watch()?)),
        writer: Cell::new(None),
    });
    Ok((Reading(shared.clone()), Writing(shared)))
}

impl Plain {
    fn watch(self) -> io::Result<Watched> {
        Ok(match self {
            Self::Tcp(stream) => Watched::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Watched::Unix(UnixStream::from_std(stream)?),
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Watched {
    fn set_aside(self) -> io::Result<Plain> {
        Ok(match self {
            Self::Tcp(stream) => Plain::Tcp(stream.into_std()?),
            Self::Unix(stream) => Plain::Unix(stream.into_std()?),
        })
    }
}

impl Reading {
    /// From now on it is only read by [`Reading::read_aside`], and not written.
    pub(super) fn set_aside(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Watched(watched) => Place::Aside(watched.set_aside()?),
            other => other,
        };
        Ok(())
    }

    /// Whether it is set aside.
    pub(super) fn is_aside(&self) -> bool {
        matches!(*self.0.place.borrow(), Place::Aside(_))
    }

    /// Reads what is there into the spare room of `out`; `None`: nothing is there.
    pub(super) fn read_aside(&self, out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let Place::Aside(plain) = &*self.0.place.borrow() else {
            return Ok(None);
        };
        loop {
            match rustix::io::read(plain.fd(), spare_capacity(out)) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// It is watched again, and may be written.
    pub(super) fn watch(&self) -> io::Result<()> {
        let mut place = self.0.place.borrow_mut();
        *place = match std::mem::replace(&mut *place, Place::Lost) {
            Place::Aside(plain) => Place::Watched(plain.watch()?),
            other => other,
        };
        if let Some(writer) = self.0.writer.take() {
            writer.wake();
        }
        Ok(())
    }
}

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self.0.place.borrow_mut() {
            Place::Watched(Watched::Tcp(stream)) => Pin::new(stream).poll_read(context, buffer),
            Place::Watched(Watched::Unix(stream)) => Pin::new(stream).poll_read(context, buffer),
            Place::Aside(_) | Place::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
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
            Place::Watched(Watched::Tcp(stream)) => act(Pin::new(stream), context),
            Place::Watched(Watched::Unix(stream)) => act(Pin::new(stream), context),
            Place::Aside(_) => {
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
