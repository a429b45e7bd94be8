//! Hostile peers announce large messages, hold back the rest of a message, or never read their answers. Meanwhile honest
//! senders are served and lose nothing, and memory stays bounded.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use millstream_wire::compression::{Codec, compress};

use super::{
    ONE_CROWD, PoisonError,
    clients::{Client, call, command, post},
    deliver, open_files, raise_open_files,
};
use crate::program::{PATIENCE, Program, free_port, wait_until};

/// Memory that the process may use beyond `memory_max` (docs/security.md).
const OVERHEAD_BYTES: u64 = 128 << 20;
/// Memory that the process may use in addition for each idle connection.
const OVERHEAD_BYTES_EACH: u64 = 16 << 10;
const MEMORY_MAX: u64 = 64 << 20;

/// The peak memory of a process.
fn most_memory(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// A configuration with these sources, each given by its type, scheme, port and options, and with one file sink.
fn config(directory: &Path, api: u16, sources: &[(&str, &str, u16, &str)]) -> String {
    let place = directory.display();
    let mut config = format!(
        "data_dir: {place}/data\napi: {{ listen: [\"127.0.0.1:{api}\"] }}\nthreads: 2\nmemory_max: 64MiB\nsources:\n"
    );
    for (source, scheme, port, options) in sources {
        config += &format!(
            "  in{port}: {{ type: {source}, listen: \"{scheme}://127.0.0.1:{port}\", {options} }}\n"
        );
    }
    let inputs: Vec<String> = sources
        .iter()
        .map(|source| format!("in{}", source.2))
        .collect();
    let inputs = inputs.join(", ");
    config
        + &format!(
            "channels:\n  kept: {{ type: disk, inputs: [{inputs}] }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], path: \"{place}/out.log\" }}\n"
        )
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(40)))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn client(port: u16) -> Client {
    Client {
        stream: connect(port),
        delivered: 0,
    }
}

/// Reads until the peer closes the connection. Returns false if the read timeout passes first.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The head of a forward frame that announces 16 MiB.
const ANNOUNCEMENT: &[u8] = b"\x93\xa1t\xdb\x00\xff\xff\xff";

#[test]
fn announced_payloads_take_no_memory_from_honest_senders() {
    let (directory, forward, http, api) = (
        tempfile::tempdir().unwrap(),
        free_port(),
        free_port(),
        free_port(),
    );
    let sources = [("forward", "tcp", forward, ""), ("http", "tcp", http, "")];
    let config = config(directory.path(), api, &sources);
    let program = Program::start(directory.path(), &config)
        .listens(http)
        .listens(forward);
    let hostile: Vec<TcpStream> = (0..15)
        .map(|number| {
            let mut stream = connect(forward);
            stream.write_all(ANNOUNCEMENT).unwrap();
            // All hostile peers but the first also send some bytes of the payload.
            stream.write_all(&[0x92].repeat(number * 200)).unwrap();
            stream
        })
        .collect();
    sleep(Duration::from_millis(500));
    for number in 0..20 {
        deliver(&mut connect(forward), &format!("chunk {number}"));
        post(&mut client(http));
    }
    drop(hostile);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn large_bodies_that_do_not_fit_into_memory_together_all_arrive() {
    const BODY_BYTES: usize = 12 << 20;
    let (directory, port, api) = (tempfile::tempdir().unwrap(), free_port(), free_port());
    let config = config(directory.path(), api, &[("http", "tcp", port, "wait: 60s")]);
    let program = Program::start(directory.path(), &config).listens(port);
    let mut body = b"{\"message\":\"".to_vec();
    body.resize(BODY_BYTES - 2, b'x');
    body.extend_from_slice(b"\"}");
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    );
    let send = || {
        for _ in 0..3 {
            let mut stream = connect(port);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            // Send slowly enough that all bodies are incomplete at the same time.
            for piece in body.chunks(1 << 20) {
                stream.write_all(piece).unwrap();
                sleep(Duration::from_millis(10));
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    };
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(send);
        }
    });
    let most = most_memory(&program);
    assert!(most < MEMORY_MAX + OVERHEAD_BYTES, "{most} bytes of memory");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn with_few_descriptors_silent_peers_lock_out_neither_senders_nor_the_interface() {
    let (directory, forward, http, api) = (
        tempfile::tempdir().unwrap(),
        free_port(),
        free_port(),
        free_port(),
    );
    let sources = [("forward", "tcp", forward, ""), ("http", "tcp", http, "")];
    let config = config(directory.path(), api, &sources);
    let shell = ["sh", "-c", "ulimit -n 72; exec \"$@\"", "sh"];
    let program = Program::start_after(directory.path(), &config, &shell)
        .listens(http)
        .listens(forward);
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(forward)).collect();
    for number in 0..3 {
        deliver(&mut connect(forward), &format!("chunk {number}"));
        post(&mut client(http));
        let mut interface = connect(api);
        interface
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        interface.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(silent);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn every_listener_closes_connections_whose_message_makes_no_progress() {
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let half: [(&str, &str, &[u8]); 5] = [
        ("forward", "tcp", ANNOUNCEMENT),
        ("http", "tcp", b"POST / HTTP/1.1\r\nHost: x\r\n"),
        (
            "http",
            "tcp",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        ),
        ("syslog", "relp", b"1 open 85 relp_version=0"),
        ("flume", "tcp", &[0, 0, 0, 1, 0, 0, 0, 1, 0]),
    ];
    let ports = half.map(|_| free_port());
    let mut sources: Vec<_> = half
        .iter()
        .zip(ports)
        .map(|((source, scheme, _), port)| (*source, *scheme, port, "limits: { progress: 1s }"))
        .collect();
    let syslog = free_port();
    sources.push(("syslog", "tcp", syslog, "limits: { progress: 1s }"));
    let config = config(directory.path(), api, &sources);
    let mut program = Program::start(directory.path(), &config);
    for (_, _, port, _) in &sources {
        program = program.listens(*port);
    }
    let mut open: Vec<TcpStream> = half
        .iter()
        .zip(ports)
        .map(|((.., bytes), port)| {
            let mut stream = connect(port);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    let mut message = connect(syslog);
    message
        .write_all(b"<13>Nov 21 06:40:30 h a: no end")
        .unwrap();
    open.push(message);
    // Bytes that trickle in do not count as progress.
    let trickle = AtomicBool::new(true);
    let writers: Vec<TcpStream> = open
        .iter()
        .map(|stream| stream.try_clone().unwrap())
        .collect();
    scope(|scope| {
        scope.spawn(|| {
            while trickle.load(Ordering::Relaxed) {
                for mut writer in &writers {
                    let _ = writer.write_all(b"1");
                }
                sleep(Duration::from_millis(300));
            }
        });
        let closed: Vec<bool> = open.iter_mut().map(is_closed).collect();
        trickle.store(false, Ordering::Relaxed);
        assert_eq!(closed, [true; 6]);
    });
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn connections_of_peers_that_never_read_their_answers_are_closed() {
    let (directory, forward, http, api) = (
        tempfile::tempdir().unwrap(),
        free_port(),
        free_port(),
        free_port(),
    );
    let options = "limits: { progress: 1s }";
    let sources = [
        ("forward", "tcp", forward, options),
        ("http", "tcp", http, options),
    ];
    let config = config(directory.path(), api, &sources);
    let program = Program::start(directory.path(), &config)
        .listens(http)
        .listens(forward);
    let id = "i".repeat(200);
    let chunk = [
        b"\x93\xa1t\xc4\x05\x92\x01\x81\xa0\xc0\x81\xa5chunk\xd9\xc8",
        id.as_bytes(),
    ]
    .concat();
    let request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n".as_slice();
    for (port, bytes) in [(forward, chunk.as_slice()), (http, request)] {
        let mut stream = connect(port);
        stream
            .set_write_timeout(Some(Duration::from_secs(40)))
            .unwrap();
        let many = bytes.repeat(1000);
        // The unread answers fill every buffer on the path. Then the program closes the connection, and writing fails.
        let mut refused = None;
        for _ in 0..100_000 {
            if let Err(error) = stream.write_all(&many) {
                refused = Some(error.kind());
                break;
            }
        }
        let refused = refused.expect("the program does not close the connection");
        assert!(
            !matches!(
                refused,
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ),
            "{refused}"
        );
    }
    assert_eq!(program.stop(), Some(0));
}

/// Compression bombs: 400 MiB of spaces, compressed to a few hundred kilobytes, as a chunk and as a request.
fn bombs() -> (Vec<u8>, Vec<u8>) {
    let mut bomb = Vec::new();
    compress(Codec::Gzip, &vec![b' '; 400 << 20], &mut bomb).unwrap();
    let length = u32::try_from(bomb.len()).unwrap().to_be_bytes();
    let options = b"\x82\xa5chunk\xa1b\xaacompressed\xa4gzip";
    let frame = [b"\x93\xa1t\xc6".as_slice(), &length, &bomb, options].concat();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        bomb.len()
    );
    (frame, [head.into_bytes(), bomb].concat())
}

/// Sends incomplete frames or requests of a few hundred kilobytes, and adds single bytes until the program closes the connections.
fn send_halves(port: u16, head: &[u8], busy: &AtomicBool) {
    while busy.load(Ordering::Relaxed) {
        let mut all: Vec<TcpStream> = (0..50).map(|_| connect(port)).collect();
        for stream in &mut all {
            let _ = stream.write_all(head);
            let _ = stream.write_all(&[0x92; 300 << 10]);
        }
        let mut any = true;
        while any && busy.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(500));
            any = false;
            for stream in &mut all {
                any |= stream.write_all(&[0x92]).is_ok();
            }
        }
    }
}

fn send_bombs(port: u16, bomb: &[u8], busy: &AtomicBool) {
    while busy.load(Ordering::Relaxed) {
        let mut stream = connect(port);
        let _ = stream.write_all(bomb);
        let _ = stream.read(&mut [0; 100]);
        // Without a pause, the bombs would use up the CPU time: to decompress a bomb costs as much as to process records of its full size.
        sleep(Duration::from_millis(500));
    }
}

/// The number of deliveries of each honest sender: few in `make test`, many in `make storm`.
fn deliveries() -> usize {
    match is_storm() {
        true => 3000,
        false => 100,
    }
}

fn is_storm() -> bool {
    std::env::var("STORM").is_ok_and(|how| how == "full")
}

fn send_chunks(port: u16, numbers: Range<usize>) {
    let mut stream = connect(port);
    for number in numbers {
        deliver(&mut stream, &format!("honest {number}"));
    }
}

fn send_requests(port: u16, numbers: Range<usize>) {
    let mut client = client(port);
    numbers.for_each(|_| post(&mut client));
}

fn send_relp(port: u16, numbers: Range<usize>) {
    let mut client = client(port);
    let offers = "relp_version=0\nrelp_software=test\ncommands=syslog";
    command(&mut client, "open", offers);
    for number in numbers {
        let message = format!("<13>Nov 21 06:40:30 h a: relp {number}.");
        command(&mut client, "syslog", &message);
    }
}

fn send_events(port: u16, numbers: Range<usize>) {
    let mut client = client(port);
    call(&mut client, b"", None);
    for number in numbers {
        client.delivered += 1;
        let event = format!("flume {number}.");
        call(&mut client, b"append", Some(event.as_bytes()));
    }
}

/// Delivers with all protocols at the same time. Returns the time that each protocol took.
fn send_all(ports: [u16; 4], numbers: &Range<usize>) -> [Duration; 4] {
    let all = [send_chunks, send_requests, send_relp, send_events];
    scope(|scope| {
        let mut place = 0;
        all.map(|send| {
            let port = ports[place];
            place += 1;
            scope.spawn(move || {
                let start = Instant::now();
                send(port, numbers.clone());
                start.elapsed()
            })
        })
        .map(|sender| sender.join().unwrap())
    })
}

/// Stops the hostile peers when dropped, so also if a sender panics.
struct Calm<'b>(&'b AtomicBool);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Counts the different numbers that follow `what` in the output.
fn numbered(written: &str, what: &str) -> usize {
    let all = written.lines().filter_map(|line| {
        let rest = line.split_once(what)?.1;
        rest.split_once('.')?.0.parse::<usize>().ok()
    });
    all.collect::<BTreeSet<_>>().len()
}

#[test]
fn honest_senders_lose_nothing_and_memory_is_bounded_beside_hostile_peers_of_every_kind() {
    const SILENT: usize = 5000;
    let _alone = ONE_CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    raise_open_files();
    let (directory, api) = (tempfile::tempdir().unwrap(), free_port());
    let ports = [(); 4].map(|()| free_port());
    let [forward, http, ..] = ports;
    let options = "limits: { progress: 2s, decompressed: 16MiB }";
    let kinds = [
        ("forward", "tcp"),
        ("http", "tcp"),
        ("syslog", "relp"),
        ("flume", "tcp"),
    ];
    let sources: Vec<_> = kinds
        .iter()
        .zip(ports)
        .map(|((source, scheme), port)| (*source, *scheme, port, options))
        .collect();
    let config = config(directory.path(), api, &sources);
    let mut program = Program::start(directory.path(), &config);
    for port in ports {
        program = program.listens(port);
    }
    let numbers = 0..deliveries();
    // `make storm` also measures the time without hostile peers. The test only prints the times, because they depend on other load on
    // the machine.
    let later = numbers.end..2 * numbers.end;
    let alone = is_storm().then(|| send_all(ports, &later));
    let silent: Vec<TcpStream> = (0..SILENT)
        .map(|number| connect(ports[number % 4]))
        .collect();
    wait_until("the silent peers are connected", || {
        open_files(&program) >= SILENT
    });
    let busy = &AtomicBool::new(true);
    let (frame_bomb, body_bomb) = bombs();
    let request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n";
    let beside = scope(|scope| {
        scope.spawn(|| send_halves(forward, ANNOUNCEMENT, busy));
        scope.spawn(|| send_halves(http, request, busy));
        scope.spawn(|| send_bombs(forward, &frame_bomb, busy));
        scope.spawn(|| send_bombs(http, &body_bomb, busy));
        let _end = Calm(busy);
        send_all(ports, &numbers)
    });
    println!("alone: {alone:?}, beside hostile peers: {beside:?}");
    let most = most_memory(&program);
    println!("{most} bytes of memory");
    let connections = (SILENT + 200) as u64;
    let bound = MEMORY_MAX + OVERHEAD_BYTES + connections * OVERHEAD_BYTES_EACH;
    assert!(most < bound, "{most} bytes of memory");
    drop(silent);
    assert_eq!(program.stop(), Some(0));
    let written = fs::read_to_string(directory.path().join("out.log")).unwrap();
    let delivered = numbers.len() * (1 + usize::from(is_storm()));
    assert_eq!(numbered(&written, "relp "), delivered);
    assert_eq!(numbered(&written, "flume "), delivered);
    let texts = written.matches(&"x".repeat(80)).count();
    assert_eq!(texts, 1000 * delivered);
}
