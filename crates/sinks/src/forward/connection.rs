//! One connection: chunks out, acks in, at the same time.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Payloads go from the batch's body to the socket by vectored writes, without a copy of ours. It promises that an ack
//! counts only for a chunk that is wholly written here, and that any other answer ends the connection: after one wrong
//! ack nothing that follows can be trusted. Several chunks are under way at once, bounded in bytes by the window.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::pin,
    time::Duration,
};

use millstream_wire::{forward::read_ack, msgpack::ReadError};
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{link::Link, window::SLICES_MAX};

/// What one read of answers takes: some hundred acks.
const READ_BYTES: usize = 8 << 10;
/// An answer longer than this is no ack: our ids are below 100 bytes.
const ACK_BYTES_MAX: usize = 4 << 10;

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
            Self::Handshake => f.write_str("it wants a shared key, which this version cannot give"),
            Self::Silent(limit) => write!(f, "no ack for {limit:?} (ack_timeout)"),
        }
    }
}

/// A connection that is open.
pub(super) struct Connection<'a> {
    stream: &'a TcpStream,
    link: &'a Link,
    /// The start of an answer whose rest is still to come.
    answer: Vec<u8>,
    /// The last time anything went forward.
    moved: Instant,
    /// Whether anything has been acked (or, without acks, written).
    progress: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(stream: &'a TcpStream, link: &'a Link) -> Self {
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
        (end, self.progress)
    }

    async fn talk(&mut self) -> io::Result<End> {
        let limit = self.link.settings.ack_timeout;
        let mut timer = pin!(sleep(limit));
        loop {
            let (busy, writing) = {
                let window = self.link.window.borrow();
                (!window.is_empty(), window.has_unwritten())
            };
            if !busy && !self.link.is_wanted() {
                return Ok(End::Retired);
            }
            let interest = if writing {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            tokio::select! {
                biased;
                ready = self.stream.ready(interest) => {
                    let ready = ready?;
                    if writing && ready.is_writable() {
                        self.write()?;
                    }
                    if ready.is_readable() && let Some(end) = self.read()? {
                        return Ok(end);
                    }
                }
                () = self.link.woken() => {
                    if !busy {
                        self.moved = Instant::now();
                    }
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

    /// Writes what the socket takes now.
    fn write(&mut self) -> io::Result<()> {
        let mut window = self.link.window.borrow_mut();
        let mut taken = 0;
        let written = {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let used = window.unwritten(&mut slices);
            let slices = slices.get(..used).unwrap_or_default();
            let wished: usize = slices.iter().map(|slice| slice.len()).sum();
            self.stream.try_io(Interest::WRITABLE, || {
                taken = SockRef::from(self.stream).send_vectored(slices)?;
                // A write cut short means a full buffer: asking again at once would be a system call for nothing.
                if taken < wished {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(())
                }
            })
        };
        match written {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ if taken == 0 => return Ok(()),
            _ => {}
        }
        self.moved = Instant::now();
        let meters = &self.link.meters;
        window.wrote(taken, |chunk| {
            meters.chunks_sent.add(1);
            if chunk.again {
                meters.chunks_resent.add(1);
            }
        });
        if !self.link.settings.ack {
            // In the kernel's hands is all that can be known.
            while let Some(chunk) = window.first_written() {
                self.progress = true;
                self.link.hub.done.borrow_mut().push(chunk.number);
                self.link.hub.changed.notify_one();
            }
        }
        Ok(())
    }

    /// Takes in what answers there are; says so when they end the connection.
    fn read(&mut self) -> io::Result<Option<End>> {
        let mut bytes = [0; READ_BYTES];
        let count = match self.stream.try_read(&mut bytes) {
            Ok(0) => return Ok(Some(End::Closed)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let fresh = bytes.get(..count).unwrap_or_default();
        if !self.link.settings.ack {
            // Nothing was asked for, so whatever it says is taken for small talk; all but a handshake.
            return Ok(is_handshake(fresh).then_some(End::Handshake));
        }
        let mut held = std::mem::take(&mut self.answer);
        held.extend_from_slice(fresh);
        let (used, end) = self.acks(&held);
        held.drain(..used);
        self.answer = held;
        Ok(end)
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
fn is_handshake(answer: &[u8]) -> bool {
    answer.starts_with(b"\x92\xa4HELO")
}
