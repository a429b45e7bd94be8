//! A forward receiver for tests. It has its own parser for frames, and treats each frame as the test decides.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use millstream_wire::msgpack::{ReadError, Reader};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// How a server treats a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Stores and acks it.
    Ack,
    /// Stores it and acks it after a while; continues to read meanwhile.
    AckLate(Duration),
    /// Stores it and closes the connection without an ack.
    StoreAndClose,
    /// Closes the connection; the frame is lost.
    Close,
    /// Stores and acks it, then closes the connection.
    AckAndClose,
    /// Stores it and acks a different id.
    AckWrong,
    /// Stores it and acks it twice.
    AckTwice,
    /// Stores it and does not answer.
    Silence,
    /// Stores it and answers something that is not an ack.
    Babble,
}

/// A frame as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Received {
    pub(super) connection: usize,
    pub(super) tag: String,
    /// The MessagePack value of `chunk`; empty if there is none.
    pub(super) id: Vec<u8>,
    /// The MessagePack marker of the payload.
    pub(super) marker: u8,
    pub(super) payload: Vec<u8>,
    /// The option map of the frame.
    pub(super) options: rmpv::Value,
}

impl Received {
    /// The option of this name.
    pub(super) fn option(&self, name: &str) -> Option<&rmpv::Value> {
        let entries = self.options.as_map()?;
        entries
            .iter()
            .find(|(key, _)| key.as_str() == Some(name))
            .map(|(_, value)| value)
    }

    /// The `message` of every entry of a packed payload.
    pub(super) fn messages(&self) -> Vec<String> {
        let mut rest = &self.payload[..];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let entry = rmpv::decode::read_value(&mut rest).unwrap();
            let record = entry.as_array().unwrap()[1].as_map().unwrap();
            messages.push(record[0].1.as_str().unwrap().to_owned());
        }
        messages
    }
}

/// A server that stops when it is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    shared: Rc<Shared>,
    task: JoinHandle<()>,
}

/// Decides how to treat a frame.
type Decide = dyn FnMut(&Received) -> Act;

struct Shared {
    received: RefCell<Vec<Received>>,
    connections: Cell<usize>,
    open: Cell<usize>,
    act: RefCell<Box<Decide>>,
    changed: Notify,
}

impl Server {
    /// Starts a server on a free port that treats each frame as `act` returns.
    pub(super) async fn start(act: impl FnMut(&Received) -> Act + 'static) -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), act).await
    }

    /// [`Server::start`] on a given port.
    pub(super) async fn start_on(
        address: SocketAddr,
        act: impl FnMut(&Received) -> Act + 'static,
    ) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(64).unwrap();
        let shared = Rc::new(Shared {
            received: RefCell::default(),
            connections: Cell::new(0),
            open: Cell::new(0),
            act: RefCell::new(Box::new(act)),
            changed: Notify::new(),
        });
        Self {
            address: listener.local_addr().unwrap(),
            task: tokio::task::spawn_local(accept(listener, shared.clone())),
            shared,
        }
    }

    /// All frames so far.
    pub(super) fn received(&self) -> Vec<Received> {
        self.shared.received.borrow().clone()
    }

    /// The number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.shared.connections.get()
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        self.shared.open.get()
    }

    /// Changes how frames are treated.
    pub(super) fn act(&self, act: impl FnMut(&Received) -> Act + 'static) {
        *self.shared.act.borrow_mut() = Box::new(act);
    }

    /// Returns when `count` frames have arrived.
    pub(super) async fn has(&self, count: usize) {
        while self.shared.received.borrow().len() < count {
            self.shared.changed.notified().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Rc<Shared>) {
    // Aborting this task drops the set, which closes the connections, as when a process is killed.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let number = shared.connections.get();
        shared.connections.set(number + 1);
        connections.spawn_local(serve(stream, number, shared.clone()));
    }
}

async fn serve(mut stream: TcpStream, connection: usize, shared: Rc<Shared>) {
    shared.open.set(shared.open.get() + 1);
    let _ = serve_frames(&mut stream, connection, &shared).await;
    shared.open.set(shared.open.get() - 1);
    shared.changed.notify_waiters();
}

async fn serve_frames(
    stream: &mut TcpStream,
    connection: usize,
    shared: &Shared,
) -> std::io::Result<()> {
    let mut input = Vec::new();
    let mut late: Vec<(tokio::time::Instant, Vec<u8>)> = Vec::new();
    loop {
        while let Some((length, frame)) = frame(&input, connection) {
            input.drain(..length);
            let act = (shared.act.borrow_mut())(&frame);
            if act != Act::Close {
                shared.received.borrow_mut().push(frame.clone());
                shared.changed.notify_one();
            }
            match act {
                Act::Ack => stream.write_all(&ack(&frame.id)).await?,
                Act::AckLate(wait) => {
                    late.push((tokio::time::Instant::now() + wait, ack(&frame.id)))
                }
                Act::StoreAndClose | Act::Close => return Ok(()),
                Act::AckAndClose => return stream.write_all(&ack(&frame.id)).await,
                Act::AckWrong => stream.write_all(&ack(b"\xa5wrong")).await?,
                Act::AckTwice => {
                    stream
                        .write_all(&[ack(&frame.id), ack(&frame.id)].concat())
                        .await?
                }
                Act::Silence => {}
                Act::Babble => {
                    stream
                        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        .await?
                }
            }
        }
        let next = late.first().map(|(due, _)| *due);
        tokio::select! {
            read = stream.read_buf(&mut input) => if read? == 0 { return Ok(()) },
            () = async { tokio::time::sleep_until(next.unwrap()).await }, if next.is_some() => {
                let (_, ack) = late.remove(0);
                stream.write_all(&ack).await?;
            }
        }
    }
}

/// Parses the frame at the start of `input`. Returns its length and the frame, or None if it is incomplete.
fn frame(input: &[u8], connection: usize) -> Option<(usize, Received)> {
    let mut reader = Reader::new(input);
    match reader.skip() {
        Ok(()) => {}
        Err(ReadError::Short) => return None,
        Err(error) => panic!("the sink wrote invalid MessagePack: {error}"),
    }
    let length = reader.position();
    let mut reader = Reader::new(input);
    assert_eq!(reader.array_len().unwrap(), 3);
    let tag = String::from_utf8(reader.bytes().unwrap().to_vec()).unwrap();
    let marker = reader.peek().unwrap();
    let payload = match marker {
        0xc9 => reader.ext().unwrap().1.to_vec(),
        _ => reader.bytes().unwrap().to_vec(),
    };
    let options = rmpv::decode::read_value(&mut &input[reader.position()..]).unwrap();
    let mut id = Vec::new();
    for _ in 0..reader.map_len().unwrap() {
        let key = reader.bytes().unwrap();
        let value = reader.value().unwrap();
        if key == b"chunk" {
            id = value.to_vec();
        }
    }
    let received = Received {
        connection,
        tag,
        id,
        marker,
        payload,
        options,
    };
    Some((length, received))
}

fn ack(id: &[u8]) -> Vec<u8> {
    [b"\x81\xa3ack", id].concat()
}
