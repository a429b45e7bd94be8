//! Sends one flow (a numbered sequence of records) over the forward protocol or as syslog. Reconnects until the flow is complete.
//!
//! With acks, a chunk that is not acknowledged when its connection ends is sent again on the next connection, until its ack arrives.
//! Its bytes and its id stay the same. If there is a ledger, a record counts as acknowledged only when the ledger on disk contains
//! it. Without acks, a chunk whose write failed is sent again as a whole. Earlier chunks that the server had not read when the
//! connection broke are lost, as with any sender without acks. The summary counts the broken connections.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::ToSocketAddrs as _,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustls::ClientConfig;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{
    chunk::{Chunk, ID_LEN, Span},
    ledger::Ledger,
    plan::{Next, Pace, Plan},
};
use crate::{msgpack, record::Kind, tls::Wire};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`
    Tcp(String),
    /// A unix socket's path.
    Unix(String),
    /// `HOST:PORT`, over UDP.
    Udp(String),
}

impl Address {
    /// Parses `HOST:PORT`, `tcp://HOST:PORT`, `unix:///path` or `/path`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Self::Unix(path.to_owned()));
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(text.to_owned()));
        }
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(address.to_owned()))
            }
            _ => Err(format!(
                "`{text}` is not an address; write HOST:PORT, for example 127.0.0.1:24224, or the path of a unix socket"
            )),
        }
    }

    /// Parses the address of a syslog server: `udp://HOST:PORT`, or anything that `parse` accepts.
    pub fn parse_syslog(text: &str) -> Result<Self, String> {
        match text.strip_prefix("udp://") {
            Some(address) => match Self::parse(address)? {
                Self::Tcp(address) => Ok(Self::Udp(address)),
                _ => Err(format!("`{text}` is not an address; write udp://HOST:PORT")),
            },
            None => Self::parse(text),
        }
    }

    fn resolve(&self) -> io::Result<(Domain, SockAddr)> {
        match self {
            Self::Unix(path) => Ok((Domain::UNIX, SockAddr::unix(path)?)),
            Self::Tcp(address) | Self::Udp(address) => {
                let first = address.to_socket_addrs()?.next().ok_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
                })?;
                Ok((Domain::for_address(first), first.into()))
            }
        }
    }

    /// Connects once.
    pub fn connect(&self, send_buffer: usize, congestion: Option<&str>) -> io::Result<Socket> {
        let (domain, address) = self.resolve()?;
        let kind = match self {
            Self::Udp(_) => Type::DGRAM,
            Self::Tcp(_) | Self::Unix(_) => Type::STREAM,
        };
        let socket = Socket::new(domain, kind, None)?;
        if send_buffer > 0 {
            socket.set_send_buffer_size(send_buffer)?;
        }
        if let (Self::Tcp(_), Some(name)) = (self, congestion) {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        socket.connect(&address)?;
        if matches!(self, Self::Tcp(_)) {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(socket)
    }
}

/// How connections are made and used.
#[derive(Clone, Debug)]
pub struct Manner {
    /// The address.
    pub address: Address,
    /// SO_SNDBUF in bytes, as passed to setsockopt (the kernel doubles it); 0 keeps the system's default.
    pub send_buffer: usize,
    /// TCP congestion control; `None` keeps the system's default.
    pub congestion_control: Option<String>,
    /// Whether to wait for acks.
    pub acks: bool,
    /// The maximum number of chunks in flight. While this number is in flight, the sender waits for an ack before it sends the next
    /// chunk.
    pub window: usize,
    /// Timeout of an ack. After it, the connection is closed and all chunks in flight are sent again.
    pub ack_timeout: Duration,
    /// One write per record, instead of one per chunk.
    pub single_writes: bool,
    /// Whether to send the first chunk's records in every chunk: faster, but the output cannot be verified.
    pub repeat: bool,
    /// The TLS configuration; `None` for no TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// The flow fails if connections keep failing and no ack arrives for this time. `None`: it retries forever.
    pub give_up: Option<Duration>,
}

/// The summary of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Data records, each counted once.
    pub records: u64,
    /// Bytes written, resends included.
    pub bytes: u64,
    /// Chunks sent more than once.
    pub resent: u64,
    /// Connections that broke, or timed out.
    pub broken: u64,
    /// Acks that belong to no chunk in flight.
    pub strange_acks: u64,
    /// Whether the server closed the connection cleanly after the last byte, which shows that it has read everything. Always true with
    /// UDP.
    pub drained: bool,
}

/// A chunk in flight.
struct Flight {
    span: Span,
    missing: VecDeque<[u8; ID_LEN]>,
}

/// A flow that is being sent.
pub struct Sender<'a> {
    /// The flow's number in the ledger.
    pub flow: u16,
    /// How connections are made and used.
    pub manner: &'a Manner,
    /// Decides the next records.
    pub plan: Plan,
    /// The end record. It is set when all data records are planned, and removed when it is in flight. `None` at all other times.
    pub end: Option<Span>,
    /// Holds the flow to its rate.
    pub pace: Pace,
    /// Builds the bytes.
    pub chunk: Chunk,
    /// Notes acks; `None` without a ledger.
    pub ledger: Option<&'a Ledger>,
}

/// Why a connection ended.
enum Broken {
    /// Retry on another connection.
    Connection(io::Error),
    /// The ledger cannot be written, so a retry cannot help.
    Fatal(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl Sender<'_> {
    /// Sends the whole flow.
    pub fn run(mut self) -> io::Result<Sent> {
        let mut sent = Sent::default();
        let mut flights = VecDeque::new();
        let mut progress = Instant::now();
        loop {
            let socket = self.connect(progress)?;
            let before = flights.len();
            let mut link = Link::new(socket, self.manner)?;
            match self.drive(&mut link, &mut flights, &mut sent) {
                Ok(()) => return Ok(sent),
                Err(Broken::Fatal(error)) => return Err(error),
                Err(Broken::Connection(error)) => {
                    sent.broken += 1;
                    if link.acked || flights.len() < before {
                        progress = Instant::now();
                    }
                    self.tired(progress, &error)?;
                    // Without a pause, a server that accepts and immediately closes connections would cause a busy loop.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Tries once to connect.
    fn dial(&self) -> io::Result<Socket> {
        let congestion = self.manner.congestion_control.as_deref();
        self.manner
            .address
            .connect(self.manner.send_buffer, congestion)
    }

    /// Connects. Retries until an attempt succeeds, or `give_up` has passed since `progress`.
    fn connect(&self, progress: Instant) -> io::Result<Socket> {
        let mut pause = Duration::from_millis(20);
        loop {
            match self.dial() {
                Ok(socket) => return Ok(socket),
                Err(error) => self.tired(progress, &error)?,
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    fn tired(&self, progress: Instant, error: &io::Error) -> io::Result<()> {
        match self.manner.give_up {
            Some(limit) if progress.elapsed() > limit => Err(io::Error::new(
                error.kind(),
                format!("gave up on {:?}: {error}", self.manner.address),
            )),
            _ => Ok(()),
        }
    }

    /// Sends over one connection: first the chunks that were in flight on the previous connection, then the rest of the plan.
    fn drive(
        &mut self,
        link: &mut Link,
        flights: &mut VecDeque<Flight>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        for flight in &*flights {
            sent.resent += 1;
            self.write(link, flight.span, sent)?;
        }
        if !self.manner.acks {
            flights.clear();
        }
        loop {
            while flights.len() >= self.manner.window {
                self.settle(link, flights, sent)?;
            }
            match self.plan.next() {
                Next::Data(span) => {
                    self.pace.wait(span.count);
                    sent.records += u64::from(span.count);
                    self.send(link, span, flights, sent)?;
                }
                // The end record is sent after all data is acknowledged. If this connection breaks first, the next connection sends
                // the end record.
                Next::End(span) => self.end = Some(span),
                Next::Nothing => break,
            }
        }
        while !flights.is_empty() {
            self.settle(link, flights, sent)?;
        }
        if let Some(span) = self.end.take() {
            if let Some(ledger) = self.ledger {
                ledger.ends(self.flow, span.first).map_err(Broken::Fatal)?;
            }
            self.send(link, span, flights, sent)?;
        }
        while !flights.is_empty() {
            self.settle(link, flights, sent)?;
        }
        // A datagram socket has no connection to close.
        sent.drained = matches!(self.manner.address, Address::Udp(_)) || link.drain();
        Ok(())
    }

    fn send(
        &mut self,
        link: &mut Link,
        span: Span,
        flights: &mut VecDeque<Flight>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let missing = match self.manner.acks {
            true => self.chunk.ids(span).collect(),
            false => VecDeque::new(),
        };
        // The chunk counts as in flight before its first byte is written, so that it is sent again if the write fails half way.
        flights.push_back(Flight { span, missing });
        self.write(link, span, sent)?;
        if !self.manner.acks {
            flights.pop_back();
        }
        Ok(())
    }

    fn write(&mut self, link: &mut Link, span: Span, sent: &mut Sent) -> io::Result<()> {
        let repeat = self.manner.repeat && span.kind == Kind::Data;
        let bytes = match repeat {
            true => self.chunk.again(span),
            false => self.chunk.fill(span),
        };
        sent.bytes += bytes.len() as u64;
        if self.manner.single_writes {
            let each = bytes.len() / span.count as usize;
            bytes
                .chunks(each)
                .try_for_each(|record| link.socket.write_all(record))
        } else {
            link.socket.write_all(bytes)
        }
    }

    /// Waits for one ack. If it was the last one missing for a chunk, notes the chunk in the ledger.
    fn settle(
        &mut self,
        link: &mut Link,
        flights: &mut VecDeque<Flight>,
        sent: &mut Sent,
    ) -> Result<(), Broken> {
        let id = link.ack()?;
        let found = flights.iter_mut().enumerate().find_map(|(at, flight)| {
            let id_at = flight.missing.iter().position(|missing| id == missing)?;
            flight.missing.remove(id_at);
            Some((at, flight.missing.is_empty()))
        });
        link.consume();
        match found {
            None => sent.strange_acks += 1,
            Some((_, false)) => {}
            Some((at, true)) => {
                let span = flights[at].span;
                if let Some(ledger) = self.ledger {
                    match span.kind {
                        Kind::Data => ledger.acked(self.flow, span.first, span.count),
                        Kind::End => ledger.ended(self.flow, span.first),
                    }
                    .map_err(Broken::Fatal)?;
                }
                flights.remove(at);
            }
        }
        Ok(())
    }
}

/// A connection and the bytes read from it.
struct Link {
    socket: Wire,
    buffer: Vec<u8>,
    /// The length of the ack that `ack` has found at the start of `buffer`; 0 after `consume` has removed this ack.
    ack_len: usize,
    /// Whether any ack has arrived.
    acked: bool,
}

/// The maximum number of bytes that are buffered while no ack is complete. Acks are small, so a server that sends more is not a
/// forward server.
const ANSWER_MAX: usize = 64 << 10;

impl Link {
    fn new(socket: Socket, manner: &Manner) -> io::Result<Self> {
        socket.set_read_timeout(Some(manner.ack_timeout.max(Duration::from_millis(1))))?;
        Ok(Self {
            socket: Wire::new(socket, manner.tls.as_ref())?,
            buffer: Vec::new(),
            ack_len: 0,
            acked: false,
        })
    }

    /// Waits for the next ack and returns its id. The ack stays in the buffer until `consume` removes it.
    fn ack(&mut self) -> io::Result<&[u8]> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        loop {
            let end =
                msgpack::skip(&self.buffer, 0).map_err(|_| bad("the answer is not MessagePack"))?;
            if let Some(end) = end {
                self.ack_len = end;
                self.acked = true;
                let map = msgpack::Map::read(&self.buffer[..end])
                    .ok_or_else(|| bad("the answer is not a map"))?;
                let id = map.get(b"ack").and_then(msgpack::text);
                return id.ok_or_else(|| bad("the answer holds no ack"));
            }
            if self.buffer.len() > ANSWER_MAX {
                return Err(bad("the answer is too long for an ack"));
            }
            let mut piece = [0; 4096];
            match self.socket.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.buffer.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn consume(&mut self) {
        self.buffer.drain(..self.ack_len);
        self.ack_len = 0;
    }

    /// Closes the sending side, and waits until the server has read everything and closes as well. Returns false if that fails or
    /// times out.
    fn drain(&mut self) -> bool {
        if self.socket.finish().is_err() {
            return false;
        }
        let mut piece = [0; 4096];
        loop {
            match self.socket.read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}
