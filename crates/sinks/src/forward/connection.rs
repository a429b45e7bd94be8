//! One connection to a server: writes chunks and reads acks at the same time.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! Payloads go from the batch's body to the socket by vectored writes, without a copy in this process. An ack counts only for a
//! chunk that was wholly written to this connection. Any other answer ends the connection, because after one wrong ack no later
//! answer can be trusted. Several chunks are in flight at a time; the window bounds their bytes.
//!
//! Without acks (`ack: false`) a chunk is delivered when the peer's system has acknowledged its bytes, on a connection that has proven
//! itself (`crate::sending::Trust`).

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    os::fd::AsFd,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use millstream_net::{LOOKUP_AGE, Socket, Stream};
use millstream_sys::unsent::unsent_bytes;
use millstream_wire::{forward::read_ack, msgpack::ReadError};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{auth::is_handshake, endpoint::Endpoint, window::SLICES_MAX};
use crate::sending::{ShortLived, TLS_BYTES, Trust};

/// Size of the buffer for one read: about a hundred acks.
const READ_BYTES: usize = 8 << 10;
/// An answer longer than this is not an ack: our ids have fewer than 200 bytes.
const ACK_BYTES_MAX: usize = 4 << 10;
/// How often the system is asked what the peer's system has acknowledged, while a peer that sends no acks may have unacknowledged bytes.
const ASK: Duration = Duration::from_millis(10);
/// Time limit for the orderly end of a TLS connection.
const GOODBYE: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it.
    Closed,
    /// The server is not needed any more, and everything is acked.
    Retired,
    /// The server's name has lost the address of this connection, and everything that was written is acked.
    Moved,
    /// The socket failed.
    Failed(io::Error),
    /// The peer acked a chunk that was not sent or not wholly sent, or that the peer had acked before.
    WrongAck,
    /// The peer sent something that is not an ack.
    NoAck,
    /// The peer demands a handshake with a shared key.
    Handshake,
    /// The peer does not answer heartbeats.
    Unanswering,
    /// For this time no byte could be written and no ack arrived.
    Silent(Duration),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Retired => f.write_str("it is not needed any more"),
            Self::Moved => f.write_str("its name has another address"),
            Self::Failed(error) => write!(f, "{error}"),
            Self::WrongAck => f.write_str("it acked a chunk that was not waiting for an ack"),
            Self::NoAck => {
                f.write_str("it sent something that is not an ack; is it a forward receiver?")
            }
            Self::Handshake => f.write_str("it demands a shared key: set `auth`"),
            Self::Unanswering => f.write_str("it does not answer heartbeats"),
            Self::Silent(limit) => write!(f, "no ack for {limit:?} (ack_timeout)"),
        }
    }
}

/// An open connection to a server.
pub(super) struct Connection<'a> {
    stream: Stream,
    server: &'a Endpoint,
    /// The start of an answer that is not complete.
    answer: Vec<u8>,
    /// When a byte was last written or an ack received, or when the connection was last woken while it was idle.
    moved: Instant,
    /// Whether anything has been acked (or, without acks, delivered).
    progress: bool,
    /// Without acks: the trust in this connection, and the bytes of the chunks that were delivered on it.
    trust: Option<(Trust, u64)>,
}

impl<'a> Connection<'a> {
    /// `failed`: how often connections to this server have failed soon after they were made.
    pub(super) fn new(stream: Stream, server: &'a Endpoint, failed: ShortLived) -> Self {
        let acks = server.common.settings.ack;
        Self {
            trust: (!acks).then(|| (Trust::new(failed), 0)),
            stream,
            server,
            answer: Vec::new(),
            moved: Instant::now(),
            progress: false,
        }
    }

    /// Sends and receives until the connection ends. Returns the reason, and whether anything was delivered.
    pub(super) async fn run(mut self) -> (End, bool) {
        let end = match self.talk().await {
            Ok(end) => end,
            Err(error) => End::Failed(error),
        };
        if let Some((trust, _)) = &mut self.trust {
            let hidden = match self.stream {
                Stream::Plain(_) => 0,
                Stream::Tls(_) => TLS_BYTES,
            };
            let read = matches!(end, End::Closed) && trust.has_proof();
            let bytes = trust.ended(unsent(&self.stream) + hidden, read);
            self.deliver(bytes);
        }
        if let (End::Retired, Stream::Tls(stream)) = (&end, &mut self.stream) {
            let _ = timeout(GOODBYE, stream.shutdown()).await;
        }
        (end, self.progress)
    }

    async fn talk(&mut self) -> io::Result<End> {
        let server = self.server;
        let settings = &server.common.settings;
        let limit = settings.ack_timeout;
        let mut timer = pin!(sleep(limit));
        let lasting = settings.retry.first.as_duration();
        let (mut lasted, mut has_lasted) = (pin!(sleep(lasting)), false);
        let (mut moved, mut has_moved) = (pin!(self.moved_away()), false);
        loop {
            let (busy, begun, amid, unwritten) = {
                let window = server.window.borrow();
                let (begun, amid) = (window.has_begun(), window.is_amid());
                (!window.is_empty(), begun, amid, window.has_unwritten())
            };
            let writing = unwritten && self.room() > 0 && (amid || !has_moved);
            if has_moved && !begun {
                return Ok(End::Moved);
            }
            let asks = busy && self.trust.is_some();
            if !busy && !server.is_wanted() {
                return Ok(End::Retired);
            }
            if server.is_silent() {
                return Ok(End::Unanswering);
            }
            tokio::select! {
                biased;
                end = self.exchange(writing) => {
                    if let Some(end) = end? {
                        return Ok(end);
                    }
                }
                () = server.woken() => {
                    if !busy {
                        self.moved = Instant::now();
                    }
                }
                () = sleep(ASK), if asks => {
                    // Under TLS, `exchange` does this, after a flush.
                    if let Stream::Plain(_) = self.stream {
                        self.finish_written();
                    }
                }
                () = &mut moved, if !has_moved => has_moved = true,
                () = &mut lasted, if !(has_lasted || busy) => {
                    has_lasted = true;
                    server.standing.lasted(settings.ack);
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

    /// Returns when the server's name has lost the address of this connection. Looks the name up every [`LOOKUP_AGE`].
    fn moved_away(&self) -> impl Future<Output = ()> + 'static {
        let peer = SockRef::from(&self.stream).peer_addr().ok();
        let peer = peer.and_then(|peer| peer.as_socket());
        let address = self.server.address.clone();
        async move {
            let Some(peer) = peer else {
                return std::future::pending().await;
            };
            loop {
                sleep(LOOKUP_AGE).await;
                if millstream_net::has_moved(&address, peer).await {
                    return;
                }
            }
        }
    }

    /// Waits until the connection is writable or readable, then writes and reads without blocking. Dropping the future loses
    /// nothing.
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
            self.finish_written();
        }
        let Stream::Plain(Socket::Tcp(stream)) = &self.stream else {
            return Ok(None);
        };
        if !ready.is_readable() {
            return Ok(None);
        }
        let mut bytes = [0; READ_BYTES];
        match stream.try_read(&mut bytes) {
            Ok(count) => Ok(self.received(bytes.get(..count).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does the work of [`Connection::exchange`] for all streams except plain TCP. TLS buffers bytes in both directions, so the
    /// readiness of the socket is not enough.
    fn poll_exchange(
        &mut self,
        context: &mut Context<'_>,
        writing: bool,
    ) -> Poll<io::Result<Option<End>>> {
        let mut moved = false;
        if writing {
            let written = {
                let window = self.server.window.borrow();
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let used = window.unwritten(&mut slices, self.room());
                let slices = slices.get(..used).unwrap_or_default();
                Pin::new(&mut self.stream).poll_write_vectored(context, slices)?
            };
            if let Poll::Ready(taken) = written {
                self.wrote(taken);
                moved = true;
            }
        }
        if Pin::new(&mut self.stream).poll_flush(context)?.is_ready() {
            self.finish_written();
        }
        let mut bytes = [0; READ_BYTES];
        let mut target = ReadBuf::new(&mut bytes);
        if Pin::new(&mut self.stream)
            .poll_read(context, &mut target)?
            .is_ready()
        {
            if let Some(end) = self.received(target.filled()) {
                return Poll::Ready(Ok(Some(end)));
            }
            moved = true;
        }
        match moved {
            true => Poll::Ready(Ok(None)),
            false => Poll::Pending,
        }
    }

    /// Writes the bytes that the socket accepts now; returns their number.
    fn write(&self, stream: &TcpStream) -> io::Result<usize> {
        let window = self.server.window.borrow();
        let mut taken = 0;
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let used = window.unwritten(&mut slices, self.room());
        let slices = slices.get(..used).unwrap_or_default();
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let written = stream.try_io(Interest::WRITABLE, || {
            taken = SockRef::from(stream).send_vectored(slices)?;
            // A short write means a full buffer: another attempt now would waste a system call.
            if taken < offered {
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

    /// Counts the bytes that the socket took.
    fn wrote(&mut self, taken: usize) {
        if taken == 0 {
            return;
        }
        self.moved = Instant::now();
        if let Some((trust, _)) = &mut self.trust {
            trust.wrote(taken);
        }
        let meters = &self.server.common.meters;
        self.server.window.borrow_mut().wrote(taken, |chunk| {
            meters.chunks_sent.add(1);
            if chunk.again {
                meters.chunks_resent.add(1);
            }
        });
    }

    /// Without acks, finishes the chunks that are delivered. Everything that was written must be flushed.
    fn finish_written(&mut self) {
        if let Some((trust, _)) = &mut self.trust {
            let bytes = trust.note(unsent(&self.stream));
            self.deliver(bytes);
        }
    }

    /// Finishes the chunks in the first `bytes` bytes that were written to this connection.
    fn deliver(&mut self, bytes: u64) {
        let Some((_, delivered)) = &mut self.trust else {
            return;
        };
        let window = &self.server.window;
        loop {
            let left = bytes.saturating_sub(*delivered);
            let Some(chunk) = window.borrow_mut().remove_first_written(left) else {
                return;
            };
            *delivered += chunk.len() as u64;
            self.progress = true;
            self.server.standing.proven();
            self.server.finish(&chunk);
        }
    }

    /// How many bytes may be written now.
    fn room(&self) -> usize {
        self.trust
            .as_ref()
            .map_or(usize::MAX, |(trust, _)| trust.room())
    }

    /// Handles bytes that were read; an empty slice is the end of the stream. Returns why the connection has to end, or None if it
    /// stays open.
    fn received(&mut self, fresh: &[u8]) -> Option<End> {
        if fresh.is_empty() {
            return Some(End::Closed);
        }
        if !self.server.common.settings.ack {
            // Acks are off: everything but a handshake is ignored.
            return is_handshake(fresh).then_some(End::Handshake);
        }
        let mut held = std::mem::take(&mut self.answer);
        held.extend_from_slice(fresh);
        let (used, end) = self.acks(&held);
        held.drain(..used);
        self.answer = held;
        end
    }

    /// Handles the complete acks at the start of `input`. Returns their length in bytes, and why the connection has to end, or None
    /// if it stays open.
    fn acks(&mut self, input: &[u8]) -> (usize, Option<End>) {
        let mut used = 0;
        loop {
            let unread = input.get(used..).unwrap_or_default();
            match read_ack(unread) {
                Ok(ack) => {
                    let Some(chunk) = self.server.window.borrow_mut().remove_acked(ack.chunk)
                    else {
                        return (used, Some(End::WrongAck));
                    };
                    used += ack.length;
                    self.progress = true;
                    self.server.standing.proven();
                    self.moved = Instant::now();
                    self.server.common.meters.chunks_acked.add(1);
                    self.server.finish(&chunk);
                }
                Err(ReadError::Short) if unread.len() <= ACK_BYTES_MAX => return (used, None),
                Err(_) if is_handshake(unread) => return (used, Some(End::Handshake)),
                Err(_) => return (used, Some(End::NoAck)),
            }
        }
    }
}

/// The bytes that the peer's system has not acknowledged.
fn unsent(stream: &Stream) -> u64 {
    unsent_bytes(stream.as_fd()).unwrap_or(0)
}
