//! Tests of the eviction: which connection is closed when no permit is left.

use std::{io::ErrorKind, os::unix::net::UnixStream as StdUnixStream, sync::Arc};

use tokio::net::UnixStream;

use super::*;
use crate::room::{Room, Silence, poll_read};

fn closed(server: &Echo) -> u64 {
    server.meters.counter("silent_connections_closed").get()
}

/// Whether the connection is still open. It must have no unread bytes.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = (&*stream).read(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn the_connection_that_has_been_silent_longest_is_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Echo::start(directory.path(), "limits: { connections: 3 }");
    let mut first = server.connect();
    exchange(&mut first, b"not silent").unwrap();
    let mut silent = server.connect();
    until("it is accepted", || server.open() == 2);
    let other = server.connect();
    exchange(&mut server.connect(), b"served").unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    assert!(is_open(&other));
    assert_eq!(closed(&server), 1);
    exchange(&mut first, b"still there").unwrap();
}

#[test]
fn a_silent_peer_of_one_listener_is_evicted_for_a_peer_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.sock");
    let listen = format!("listen: ['tcp://127.0.0.1:0', 'unix://{}']", path.display());
    let options = format!("{{ {listen}, limits: {{ connections: 1 }} }}");
    let server = Echo::serve(check(directory.path(), &options).unwrap());
    let mut silent = StdUnixStream::connect(&path).unwrap();
    until("it is accepted", || server.open() == 1);
    let mut speaks = server.connect();
    exchange(&mut speaks, b"served").unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_peer_that_does_not_begin_its_tls_handshake_is_evicted() {
    let (directory, _) = certificates();
    let options =
        "limits: { connections: 1, handshake: 1h }, tls: { cert: server.pem, key: server.key }";
    let server = Echo::start(directory.path(), options);
    let mut silent = server.connect();
    until("it is accepted", || server.open() == 1);
    let mut next = server.connect();
    // These bytes are not a handshake, so the server answers with a TLS alert.
    next.write_all(b"nonsense").unwrap();
    let mut answer = Vec::new();
    let _ = next.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&21));
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    assert_eq!(closed(&server), 1);
}

#[test]
fn a_connection_that_sent_its_first_byte_is_not_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Echo::start(directory.path(), "limits: { connections: 2 }");
    let mut both = [server.connect(), server.connect()];
    for stream in &mut both {
        exchange(stream, b"x").unwrap();
    }
    let mut next = server.connect();
    next.write_all(b"waits").unwrap();
    // Longer than the grace period of a silent connection.
    std::thread::sleep(Duration::from_secs(2));
    assert!(is_open(&next));
    for stream in &mut both {
        exchange(stream, b"still there").unwrap();
    }
    let [gone, _stays] = both;
    drop(gone);
    let mut back = [0; 5];
    next.read_exact(&mut back).unwrap();
    assert_eq!(closed(&server), 0);
}

/// Polls one read of one byte. Returns the number of bytes (0: the end), or `None` if the read is pending.
async fn read_now(silence: &mut Option<Silence>, socket: &mut UnixStream) -> Option<usize> {
    let mut byte = [0];
    let mut buffer = tokio::io::ReadBuf::new(&mut byte);
    std::future::poll_fn(|context| {
        let read = poll_read(silence, socket, context, &mut buffer);
        std::task::Poll::Ready(read.is_ready())
    })
    .await
    .then(|| buffer.filled().len())
}

/// Two peers are silent when a third one arrives. The first one is asked to close, but its first byte has already arrived, so the
/// second one is evicted instead. `seen`: the runtime has noticed this byte.
async fn meet(seen: bool) {
    let threads = Threads::start(1).unwrap();
    let (context, _stopper) = context(&threads);
    let room = Arc::new(Room::new(2, &context));
    let arrive = || {
        let (theirs, ours) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        (theirs, ours, Some(room.silence("peer".into())))
    };
    let places = (room.place().await.unwrap(), room.place().await.unwrap());
    let (mut one, mut speaks, mut its) = arrive();
    let (_other, mut goes, mut others) = arrive();
    assert_eq!(read_now(&mut its, &mut speaks).await, None);
    assert_eq!(read_now(&mut others, &mut goes).await, None);
    let asked = async |left| {
        while room.silent_count() > left {
            tokio::task::yield_now().await;
        }
    };
    let meeting = async {
        asked(1).await;
        one.write_all(b"x").unwrap();
        if seen {
            speaks.readable().await.unwrap();
        }
        let read = read_now(&mut its, &mut speaks).await;
        assert_eq!(read, seen.then_some(1));
        asked(0).await;
        assert_eq!(read_now(&mut others, &mut goes).await, Some(0));
        drop(places.1);
    };
    let (place, ()) = tokio::join!(room.place(), meeting);
    assert!(place.is_ok());
    if !seen {
        assert_eq!(read_now(&mut its, &mut speaks).await, Some(1));
    }
    assert_eq!(read_now(&mut others, &mut goes).await, Some(0));
    let closed = context.meters.counter("silent_connections_closed");
    assert_eq!(closed.get(), 1);
}

#[tokio::test]
async fn a_connection_whose_first_byte_has_arrived_is_not_evicted() {
    meet(false).await;
    meet(true).await;
}
