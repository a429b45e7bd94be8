//! One connection: chunks out, acks in, at the same time.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Payloads go from the batch's body to the socket by vectored writes, without a copy of ours. It promises that an ack
//! counts only for a chunk that is wholly written here, and that any other answer ends the connection: after one wrong
//! ack nothing that follows can be trusted. Several chunks are under way at once, bounded in bytes by the window.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use millstream_net::{Socket, Stream};
use millstream_wire::{forward::read_ack, msgpack::ReadError};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{link::Link, window::SLICES_MAX};

/// What one read of answers takes: some hundred acks.
const READ_BYTES: usize = 8 << 10;
/// An answer longer than this is no ack: our ids are below 100 bytes.
const ACK_BYTES_MAX: usize = 4 << 10;
/// How long the end of a TLS connection may take to tell the peer of it.
const GOODBYE: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// It is not wanted any more, and everything is acked.
    Retired,
    /// The system says so.
    Failed(io::Error),
    /// It acked what was not sent, or not yet, or was acked before.
    WrongAck,
    /// It sent something that is no ack.
    NoAck,
    /// It wants a handshake with a shared key.
    Handshake,
    /// It does not answer heartbeats.
    Unanswering,
    /// Neither a byte was taken nor an ack sent for this long.
    Silent(Duration),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Retired => f.write_str("it is not needed any more"),
            Self::Failed(error) => write!(f, "{error}"),
            Self::WrongAck => f.write_str("it acked a chunk that was not waiting for an ack"),
            Self::NoAck => {
                f.write_str("it sent something that is no ack; is it a forward receiver?")
            }
            Self::Handshake => f.write_str("it wants a shared key: give `auth`"),
            Self::Unanswering => f.write_str("it does not answer heartbeats"),
            Self::Silent(limit) => write!(f, "no ack for {limit:?} (ack_timeout)"),
        }
    }
}

/// A connection that is open.
pub(super) struct Connection<'a> {
    stream: Stream,
    link: &'a Link,
    /// The start of an answer whose rest is still to come.
    answer: Vec<u8>,
    /// The last time anything went forward.
    moved: Instant,
    /// Whether anything has been acked (or, without acks, written).
    progress: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(stream: Stream, link: &'a Link) -> Self {
        Self {
            stream,
            link,
            answer: Vec::new(),
            moved: Instant::now(),
            progress: false,
        }
    }

    /// Talks until it ends; says why, and whether it did some work.
    pub(super) async fn run(mut self) -> (End, bool) {
        let end = match self.talk().await {
            Ok(end) => end,
            Err(error) => End::Failed(error),
        };
        if let (End::Retired, Stream::Tls(stream)) = (&end, &mut self.stream) {
            let _ = timeout(GOODBYE, stream.shutdown()).await;
        }
        (end, self.progress)
    }

    async fn talk(&mut self) -> io::Result<End> {
        let link = self.link;
        let limit = link.settings.ack_timeout;
        let mut timer = pin!(sleep(limit));
        let (mut lasted, mut has_lasted) = (pin!(sleep(link.settings.retry_first)), false);
        loop {
            let (busy, writing) = {
                let window = self.link.window.borrow();
                (!window.is_empty(), window.has_unwritten())
            };
            if !busy && !self.link.is_wanted() {
                return Ok(End::Retired);
            }
            if link.is_silent() {
                return Ok(End::Unanswering);
            }
            tokio::select! {
                biased;
                end = self.exchange(writing) => {
                    if let Some(end) = end? {
                        return Ok(end);
                    }
                }
                () = link.woken() => {
                    if !busy {
                        self.moved = Instant::now();
                    }
                }
                () = &mut lasted, if !(has_lasted || busy && link.settings.ack) => {
                    has_lasted = true;
                    link.lasted();
                }
                () = &mut timer, if busy => {
                    if self.moved.elapsed() >= limit {
                        return Ok(End::Silent(limit));
                    }
                    timer.as_mut().reset(self.moved + limit);
                }
            }
        }
    }

    /// Writes what the connection takes and reads what is there, once either can be done. Nothing is lost if it is
    /// dropped before.
    async fn exchange(&mut self, writing: bool) -> io::Result<Option<End>> {
        let Stream::Plain(Socket::Tcp(stream)) = &self.stream else {
            return poll_fn(|context| self.poll_exchange(context, writing)).await;
        };
        let interest = if writing {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let ready = stream.ready(interest).await?;
        if writing && ready.is_writable() {
            let taken = self.write(stream)?;
            self.wrote(taken);
            self.settle_written();
        }
        let Stream::Plain(Socket::Tcp(stream)) = &self.stream else {
            return Ok(None);
        };
        if !ready.is_readable() {
            return Ok(None);
        }
        let mut bytes = [0; READ_BYTES];
        match stream.try_read(&mut bytes) {
            Ok(count) => Ok(self.took(bytes.get(..count).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same for what is no plain TCP socket: TLS holds bytes of its own on both ways.
    fn poll_exchange(
        &mut self,
        context: &mut Context<'_>,
        writing: bool,
    ) -> Poll<io::Result<Option<End>>> {
        let mut moved = false;
        if writing {
            let written = {
                let window = self.link.window.borrow();
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let used = window.unwritten(&mut slices);
                let slices = slices.get(..used).unwrap_or_default();
                Pin::new(&mut self.stream).poll_write_vectored(context, slices)?
            };
            if let Poll::Ready(taken) = written {
                self.wrote(taken);
                moved = true;
            }
        }
        if Pin::new(&mut self.stream).poll_flush(context)?.is_ready() {
            self.settle_written();
        }
        let mut bytes = [0; READ_BYTES];
        let mut target = ReadBuf::new(&mut bytes);
        if Pin::new(&mut self.stream)
            .poll_read(context, &mut target)?
            .is_ready()
        {
            if let Some(end) = self.took(target.filled()) {
                return Poll::Ready(Ok(Some(end)));
            }
            moved = true;
        }
        match moved {
            true => Poll::Ready(Ok(None)),
            false => Poll::Pending,
        }
    }

    /// Writes what the socket takes now; how many bytes that is.
    fn write(&self, stream: &TcpStream) -> io::Result<usize> {
        let window = self.link.window.borrow();
        let mut taken = 0;
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = window.unwritten(&mut slices);
        let slices = slices.get(..used).unwrap_or_default();
        let wished: usize = slices.iter().map(|slice| slice.len()).sum();
        let written = stream.try_io(Interest::WRITABLE, || {
            taken = SockRef::from(stream).send_vectored(slices)?;
            // A write cut short means a full buffer: asking again at once would be a system call for nothing.
            if taken < wished {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(())
            }
        });
        match written {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Notes that so many bytes went out.
    fn wrote(&mut self, taken: usize) {
        if taken == 0 {
            return;
        }
        self.moved = Instant::now();
        let meters = &self.link.meters;
        self.link.window.borrow_mut().wrote(taken, |chunk| {
            meters.chunks_sent.add(1);
            if chunk.again {
                meters.chunks_resent.add(1);
            }
        });
    }

    /// Without acks: what is written is done. In the kernel's hands is all that can be known.
    fn settle_written(&mut self) {
        if self.link.settings.ack {
            return;
        }
        while let Some(chunk) = self.link.window.borrow_mut().first_written() {
            self.progress = true;
            self.link.hub.done.borrow_mut().push(chunk.number);
            self.link.hub.changed.notify_one();
        }
    }

    /// Takes in what was read, 0 bytes at the end; says so when it ends the connection.
    fn took(&mut self, fresh: &[u8]) -> Option<End> {
        if fresh.is_empty() {
            return Some(End::Closed);
        }
        if !self.link.settings.ack {
            // Nothing was asked for, so whatever it says is taken for small talk; all but a handshake.
            return is_handshake(fresh).then_some(End::Handshake);
        }
        let mut held = std::mem::take(&mut self.answer);
        held.extend_from_slice(fresh);
        let (used, end) = self.acks(&held);
        held.drain(..used);
        self.answer = held;
        end
    }

    /// Takes in the whole acks at the start of `input`: how many bytes they have, and why the connection has to end.
    fn acks(&mut self, input: &[u8]) -> (usize, Option<End>) {
        let mut used = 0;
        loop {
            let rest = input.get(used..).unwrap_or_default();
            match read_ack(rest) {
                Ok(ack) => {
                    let Some(chunk) = self.link.window.borrow_mut().acked(ack.chunk) else {
                        return (used, Some(End::WrongAck));
                    };
                    used += ack.length;
                    self.progress = true;
                    self.link.proven();
                    self.moved = Instant::now();
                    self.link.meters.chunks_acked.add(1);
                    self.link.hub.done.borrow_mut().push(chunk.number);
                    self.link.hub.changed.notify_one();
                }
                Err(ReadError::Short) if rest.len() <= ACK_BYTES_MAX => return (used, None),
                Err(_) if is_handshake(rest) => return (used, Some(End::Handshake)),
                Err(_) => return (used, Some(End::NoAck)),
            }
        }
    }
}

/// Whether a server with a shared key greets: `["HELO", {...}]`.
pub(super) fn is_handshake(answer: &[u8]) -> bool {
    answer.starts_with(b"\x92\xa4HELO")
}
