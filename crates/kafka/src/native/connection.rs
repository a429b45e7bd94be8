//! A connection to one broker: TLS, protocol versions, authentication, then requests and their answers in order.
//!
//! Source: the protocol guide of Apache Kafka. A broker answers in the order of the requests, so the next answer
//! belongs to the oldest request. Memory is bounded: the buffer of an answer grows as its bytes arrive, up to
//! [`ANSWER_MAX`].

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf},
    sync::{Notify, mpsc, oneshot},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    access::Access,
    messages::{ApiVersions, Request, SaslAuthenticate, SaslHandshake},
    sasl::Scram,
    wire::{Put, Take},
};
use crate::Mechanism;

/// The largest accepted answer. Metadata of ten thousand topics is about 1 MB.
const ANSWER_MAX: u64 = 64 << 20;
/// Timeout for connecting, including TLS and authentication.
const CONNECT: Duration = Duration::from_secs(10);
/// The time that a broker may take for a request. A Produce request passes it to the broker as its timeout. The
/// connection waits for the answer for this time plus [`CONNECT`].
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// The maximum number of requests that wait to be written.
const QUEUE: usize = 16;
/// Pieces up to this size are copied together into one write; larger ones are written without a copy.
const WRITE: usize = 16 * 1024;

/// The reason why there is no answer.
#[derive(Clone, Debug)]
pub(super) struct Fault(pub(super) String);

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// A piece of a request.
pub(super) enum Piece {
    Own(Vec<u8>),
    Shared(Arc<Vec<u8>>),
}

/// Where the answer to a request goes.
type Waiting = oneshot::Sender<Result<Vec<u8>, Fault>>;

struct Order {
    pieces: Vec<Piece>,
    answer: Waiting,
}

/// A connection that is ready for requests. Dropping this value closes the connection.
pub(super) struct Connection {
    address: String,
    orders: mpsc::Sender<Order>,
    line: Rc<Line>,
    tasks: [AbortHandle; 2],
    versions: HashMap<i16, (i16, i16)>,
    client: String,
    next: Cell<i32>,
}

/// Shared by the two tasks of a connection.
#[derive(Default)]
struct Line {
    /// Requests without an answer, in order.
    waiting: RefCell<VecDeque<(i32, Waiting)>>,
    broken: RefCell<Option<Fault>>,
    /// Notified when the connection breaks.
    end: Notify,
}

impl Line {
    fn fail(&self, fault: Fault) {
        for (_, answer) in self.waiting.borrow_mut().drain(..) {
            // The receiver may be gone.
            drop(answer.send(Err(fault.clone())));
        }
        self.broken.borrow_mut().get_or_insert(fault);
        self.end.notify_waiters();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.line
            .fail(Fault("the connection was closed".to_owned()));
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Socket for S {}

impl Connection {
    /// Connects to `host:port` and authenticates.
    pub(super) async fn open(address: &str, access: &Access) -> Result<Self, Fault> {
        let opened = timeout(CONNECT, Self::greet(address, access)).await;
        let late = || Fault(format!("{address}: no answer within {CONNECT:?}"));
        opened.map_err(|_| late()).flatten()
    }

    async fn greet(address: &str, access: &Access) -> Result<Self, Fault> {
        let told = |text: String| Fault(format!("{address}: {text}"));
        let tcp = millstream_net::connect(address, CONNECT, 0).await;
        let tcp = tcp.map_err(|error| told(error.to_string()))?;
        let socket: Box<dyn Socket> = match &access.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(host.to_owned());
                let name = name.map_err(|error| told(error.to_string()))?;
                let shaken = TlsConnector::from(tls.current()).connect(name, tcp).await;
                let said = |error| told(format!("the TLS handshake failed: {error}"));
                Box::new(shaken.map_err(said)?)
            }
        };
        let mut connection = Self::start(address, socket, access.client.clone());
        let versions = connection.ask(&ApiVersions).await?;
        if versions.error != 0 {
            return Err(connection.fault("it does not report its versions"));
        }
        let apis = versions.apis.into_iter();
        connection.versions = apis
            .map(|(key, oldest, newest)| (key, (oldest, newest)))
            .collect();
        if let Some(auth) = &access.auth {
            connection.authenticate(auth).await?;
        }
        Ok(connection)
    }

    fn start(address: &str, socket: Box<dyn Socket>, client: String) -> Self {
        let (read, write) = tokio::io::split(socket);
        let (orders, ordered) = mpsc::channel(QUEUE);
        let line = Rc::<Line>::default();
        let writer = tokio::task::spawn_local(write_all(write, ordered, line.clone()));
        let reader = tokio::task::spawn_local(read_all(read, line.clone()));
        Self {
            address: address.to_owned(),
            orders,
            line,
            tasks: [writer.abort_handle(), reader.abort_handle()],
            versions: HashMap::new(),
            client,
            next: Cell::new(0),
        }
    }

    /// Whether the connection accepts no more requests.
    pub(super) fn is_broken(&self) -> bool {
        self.line.broken.borrow().is_some()
    }

    /// The newest of `versions` that the broker supports.
    pub(super) fn version(&self, name: &str, key: i16, versions: &[i16]) -> Result<i16, Fault> {
        let (oldest, newest) = self.versions.get(&key).copied().unwrap_or((0, -1));
        let spoken = versions
            .iter()
            .rev()
            .find(|version| (oldest..=newest).contains(*version));
        spoken.copied().ok_or_else(|| {
            self.fault(&format!(
                "the broker does not support {name} in version {versions:?}, only {oldest} to {newest}: Kafka 2.4 or later \
                 is needed"
            ))
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask<R: Request>(&self, request: &R) -> Result<R::Answer, Fault> {
        // The version of these requests is not checked. For ApiVersions, the broker's versions are not known yet.
        let unchecked = [ApiVersions::KEY, SaslHandshake::KEY, SaslAuthenticate::KEY];
        let version = match R::VERSIONS {
            [only] if unchecked.contains(&R::KEY) => *only,
            versions => self.version(R::NAME, R::KEY, versions)?,
        };
        let mut body = self.head(R::KEY, version);
        request.write(version, &mut body);
        let answer = self.send(vec![Piece::Own(body)]).await?;
        let read = R::read(version, &mut Take(&answer));
        read.ok_or_else(|| self.fail(&format!("an answer to {} that cannot be read", R::NAME)))
    }

    pub(super) fn fault(&self, text: &str) -> Fault {
        Fault(format!("{}: {text}", self.address))
    }

    /// Makes the head of a request, to which the caller appends the body. [`Connection::send`] sets the length in the
    /// head.
    pub(super) fn head(&self, key: i16, version: i16) -> Vec<u8> {
        let mut out = vec![0; 4];
        let correlation = self.next.get();
        self.next.set(correlation.wrapping_add(1));
        out.i16(key);
        out.i16(version);
        out.i32(correlation);
        out.nullable(Some(&self.client));
        out
    }

    /// Sends a request in pieces, and returns the body of the answer. The first piece begins with the request's
    /// [`head`](Self::head). Requests are sent in the order in which their heads were made.
    pub(super) async fn send(&self, mut pieces: Vec<Piece>) -> Result<Vec<u8>, Fault> {
        let bytes: usize = pieces.iter().map(|piece| piece.bytes().len()).sum();
        if let Some(Piece::Own(first)) = pieces.first_mut()
            && let Some(place) = first.first_chunk_mut::<4>()
        {
            *place = i32::try_from(bytes - 4).unwrap_or(i32::MAX).to_be_bytes();
        }
        let (answer, answered) = oneshot::channel();
        let broken = || {
            self.line
                .broken
                .borrow()
                .as_ref()
                .map(|fault| self.fault(&fault.0))
        };
        let closed = || broken().unwrap_or_else(|| self.fault("the connection was closed"));
        if self.is_broken() || self.orders.send(Order { pieces, answer }).await.is_err() {
            return Err(closed());
        }
        // The broker's own timeout, plus time for the round trip.
        match timeout(ANSWER + CONNECT, answered).await {
            Ok(Ok(answer)) => answer.map_err(|fault| self.fault(&fault.0)),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(self.fail("no answer in time")),
        }
    }

    /// Ends the connection. Called after an answer that is late or cannot be parsed, because later answers cannot be
    /// relied on.
    pub(super) fn fail(&self, text: &str) -> Fault {
        self.line.fail(Fault(text.to_owned()));
        self.fault(text)
    }

    async fn authenticate(&self, auth: &crate::Auth) -> Result<(), Fault> {
        let mechanism = auth.sasl.name();
        let (error, known) = self.ask(&SaslHandshake { mechanism }).await?;
        if error != 0 {
            let text = format!(
                "authentication failed: the broker does not support {mechanism}; it supports {}",
                known.join(", ")
            );
            return Err(self.fault(&text));
        }
        let password = auth.password.expose();
        if auth.sasl == Mechanism::Plain {
            let bytes = format!("\0{}\0{password}", auth.username);
            self.show(bytes.as_bytes()).await?;
            return Ok(());
        }
        let mut scram = Scram::new(auth.sasl, &auth.username, password);
        let first = self.show(scram.first().as_bytes()).await?;
        let proof = scram.proof(&first).map_err(|text| self.fault(&text))?;
        let last = self.show(proof.as_bytes()).await?;
        scram.check(&last).map_err(|text| self.fault(&text))
    }

    async fn show(&self, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        let (error, text, answer) = self.ask(&SaslAuthenticate { bytes }).await?;
        if error == 0 {
            return Ok(answer);
        }
        let text = text.unwrap_or_else(|| super::codes::name(error));
        Err(self.fault(&format!("authentication failed: {text}")))
    }
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

async fn write_all(
    socket: WriteHalf<Box<dyn Socket>>,
    mut orders: mpsc::Receiver<Order>,
    line: Rc<Line>,
) {
    let mut socket = BufWriter::with_capacity(WRITE, socket);
    while let Some(order) = orders.recv().await {
        if line.broken.borrow().is_some() {
            return;
        }
        let first = order.pieces.first().map(Piece::bytes).unwrap_or_default();
        let correlation = Take(first.get(8..).unwrap_or_default()).i32();
        let waiting = (correlation.unwrap_or(-1), order.answer);
        line.waiting.borrow_mut().push_back(waiting);
        let write = async {
            for piece in &order.pieces {
                socket.write_all(piece.bytes()).await?;
            }
            if orders.is_empty() {
                socket.flush().await?;
            }
            io::Result::Ok(())
        };
        // If the broker stops reading, the timeout of an answer ends the connection.
        let end = line.end.notified();
        let written = tokio::select! {
            written = write => written,
            () = end => return,
        };
        if let Err(error) = written {
            line.fail(error.into());
            return;
        }
    }
}

async fn read_all(mut socket: ReadHalf<Box<dyn Socket>>, line: Rc<Line>) {
    loop {
        let end = line.end.notified();
        let next = tokio::select! {
            next = next(&mut socket) => next,
            () = end => return,
        };
        let (correlation, body) = match next {
            Ok(next) => next,
            Err(fault) => return line.fail(fault),
        };
        let waiting = line.waiting.borrow_mut().pop_front();
        match waiting {
            Some((expected, answer)) if expected == correlation => {
                // The receiver may be gone.
                drop(answer.send(Ok(body)));
            }
            _ => return line.fail(Fault("an answer to an unknown request".to_owned())),
        }
    }
}

/// The next answer: the number of its request, and its body.
async fn next(socket: &mut ReadHalf<Box<dyn Socket>>) -> Result<(i32, Vec<u8>), Fault> {
    let mut head = [0; 4];
    socket.read_exact(&mut head).await?;
    let length = u64::from(u32::from_be_bytes(head));
    if !(4..=ANSWER_MAX).contains(&length) {
        let text = format!(
            "an answer of {length} bytes: is this a Kafka broker, and does it expect this `tls` setting?"
        );
        return Err(Fault(text));
    }
    let correlation = socket.read_i32().await?;
    let mut body = Vec::new();
    // The buffer grows as bytes arrive. The announced length may be wrong, so that length is not allocated in advance.
    socket.take(length - 4).read_to_end(&mut body).await?;
    if body.len() as u64 != length - 4 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok((correlation, body))
}
