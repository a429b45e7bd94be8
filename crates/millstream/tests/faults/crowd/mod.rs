//! Ten thousand connections that send nothing, one byte per second, or garbage: memory stays bounded and real senders
//! are served. If the source requires a handshake, these connections are closed at the deadline of the handshake.

mod clients;
mod hostile;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::program::{PATIENCE, Program, free_port, wait_until};
use clients::{Client, call, command, post};
use millstream_testkit::Authority;
use millstream_wire::forward::handshake::{Ping, digest, read_helo, read_pong, write_ping};
use rmpv::{Value, encode::write_value};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The default of `limits.connections`: the crowd occupies every slot until a real sender connects.
const CROWD: usize = 10_000;
/// Memory per idle connection: its task, its socket's share in this process, its slot in the runtime.
const CONNECTION_BYTES_MAX: u64 = 16 << 10;
/// Memory per idle HTTP connection, which also has hyper's state and buffers.
const HTTP_CONNECTION_BYTES_MAX: u64 = 32 << 10;
const KEY: &str = "open sesame";

/// Only one crowd exists at a time, because two crowds would need twice as many open files.
static ONE_CROWD: Mutex<()> = Mutex::new(());

/// Raises the limit of open files for the sockets of the crowd.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let enough = limit
        .current
        .is_none_or(|files| files >= CROWD as u64 + 500);
    assert!(
        enough,
        "this test needs {CROWD} open files: raise `ulimit -Hn`"
    );
}

/// The resident memory of a process in bytes.
fn memory(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

fn open_files(program: &Program) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap();
    files.count()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A chunk of 1000 records, with its id.
fn chunk(id: &str) -> Vec<u8> {
    let record = |n: u32| {
        Value::Map(vec![
            ("n".into(), n.into()),
            ("text".into(), "x".repeat(80).into()),
        ])
    };
    let mut payload = Vec::new();
    for n in 0..1000 {
        let entry = Value::Array(vec![1_700_000_000.into(), record(n)]);
        write_value(&mut payload, &entry).unwrap();
    }
    let option = Value::Map(vec![("chunk".into(), id.into())]);
    let frame = Value::Array(vec!["t".into(), Value::Binary(payload), option]);
    let mut out = Vec::new();
    write_value(&mut out, &frame).unwrap();
    out
}

/// Sends a chunk and waits for its ack.
fn deliver(stream: &mut (impl Read + Write), id: &str) {
    stream.write_all(&chunk(id)).unwrap();
    stream.flush().unwrap();
    let ack = rmpv::decode::read_value(stream).unwrap();
    assert_eq!(ack, Value::Map(vec![("ack".into(), id.into())]));
}

/// The first bytes of a frame with a long payload.
const BEGINNING: &[u8] = b"\x93\xa1t\xdb\x00\xff\xff\xff";
/// Bytes that no forward receiver understands.
const GARBAGE: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends the crowd's traffic of one second: half of the peers send nothing, a quarter send one byte of `beginning`, and a quarter send
/// `garbage`.
fn pester(crowd: &mut [TcpStream], second: usize, beginning: &[u8], garbage: &[u8]) {
    for (number, stream) in crowd.iter_mut().enumerate() {
        // A closed connection cannot be written to, which is fine.
        let _ = match number % 4 {
            0 | 1 => Ok(()),
            2 => stream.write_all(&beginning[second..=second]),
            _ => stream.write_all(garbage),
        };
    }
}

fn configuration(directory: &Path, port: u16, options: &str) -> String {
    let place = directory.display();
    format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 2\nmemory_max: 64MiB\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\", {options} }}\n\
         sinks:\n  out: {{ type: discard, inputs: [in] }}\n"
    )
}

/// A source, the traffic of its crowd, and the way a real client delivers to it.
struct Way {
    /// The type of the source.
    source: &'static str,
    scheme: &'static str,
    /// The start of a valid message, sent one byte per second.
    beginning: &'static [u8],
    garbage: &'static [u8],
    /// The handshake, where the protocol has one.
    greet: fn(&mut Client),
    /// Sends a record and waits for the answer of the source.
    deliver: fn(&mut Client, &Path),
}

impl Way {
    fn client(&self, port: u16) -> Client {
        let stream = connect(port);
        let mut client = Client {
            stream,
            delivered: 0,
        };
        (self.greet)(&mut client);
        client
    }

    /// Connects ten thousand useless peers, and real senders among them.
    fn meet_the_crowd(&self) {
        let _alone = ONE_CROWD.lock().unwrap_or_else(PoisonError::into_inner);
        raise_open_files();
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let (source, scheme, place) = (self.source, self.scheme, directory.path());
        let config = format!(
            "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\nmemory_max: 64MiB\n\
             sources:\n  in: {{ type: {source}, listen: \"{scheme}://127.0.0.1:{port}\" }}\n\
             sinks:\n  out: {{ type: file, inputs: [in], path: \"{0}/out.log\", format: raw }}\n",
            place.display()
        );
        let program = Program::start(place, &config).listens(port);
        let mut early = self.client(port);
        (self.deliver)(&mut early, place);
        let before = memory(&program);
        let mut crowd: Vec<_> = (0..CROWD).map(|_| connect(port)).collect();
        wait_until("the crowd has every connection", || {
            open_files(&program) >= CROWD
        });
        (self.deliver)(&mut self.client(port), place);
        for second in 0..4 {
            let since = Instant::now();
            pester(&mut crowd, second, self.beginning, self.garbage);
            for _ in 0..20 {
                (self.deliver)(&mut early, place);
                (self.deliver)(&mut self.client(port), place);
            }
            std::thread::sleep(Duration::from_secs(1).saturating_sub(since.elapsed()));
        }
        let grown = memory(&program).saturating_sub(before);
        let each = match source {
            "http" => HTTP_CONNECTION_BYTES_MAX,
            _ => CONNECTION_BYTES_MAX,
        };
        let most = CROWD as u64 * each;
        println!(
            "{source} {scheme}: {} bytes per connection",
            grown / CROWD as u64
        );
        assert!(grown < most, "{grown} bytes for {CROWD} connections");
        drop(crowd);
        (self.deliver)(&mut self.client(port), place);
        drop(early);
        assert_eq!(program.stop(), Some(0));
    }
}

#[test]
fn ten_thousand_idle_slow_or_babbling_forward_peers_cost_little_and_others_are_served() {
    Way {
        source: "forward",
        scheme: "tcp",
        beginning: BEGINNING,
        garbage: GARBAGE,
        greet: |_| (),
        deliver: |client, _| {
            client.delivered += 1;
            let port = client.stream.local_addr().unwrap().port();
            let id = format!("the chunk of {port}, {}", client.delivered);
            deliver(&mut client.stream, &id);
        },
    }
    .meet_the_crowd();
}

#[test]
fn ten_thousand_idle_slow_or_babbling_flume_peers_cost_little_and_others_are_served() {
    Way {
        source: "flume",
        scheme: "tcp",
        beginning: &[0, 0, 0, 1],
        garbage: GARBAGE,
        greet: |client| call(client, b"", None),
        deliver: |client, _| {
            client.delivered += 1;
            call(client, b"append", Some(b"an event"));
        },
    }
    .meet_the_crowd();
}

#[test]
fn ten_thousand_idle_slow_or_babbling_http_peers_cost_little_and_others_are_served() {
    Way {
        source: "http",
        scheme: "tcp",
        beginning: b"POST",
        garbage: b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n",
        greet: |_| (),
        deliver: |client, _| post(client),
    }
    .meet_the_crowd();
}

#[test]
fn ten_thousand_idle_slow_or_babbling_relp_peers_cost_little_and_others_are_served() {
    Way {
        source: "syslog",
        scheme: "relp",
        beginning: b"1 op",
        garbage: GARBAGE,
        greet: |client| {
            command(
                client,
                "open",
                "relp_version=0\nrelp_software=test\ncommands=syslog",
            )
        },
        deliver: |client, _| command(client, "syslog", "<13>Nov 21 06:40:30 h a: x"),
    }
    .meet_the_crowd();
}

#[test]
fn ten_thousand_idle_slow_or_babbling_syslog_peers_cost_little_and_others_are_served() {
    Way {
        source: "syslog",
        scheme: "tcp",
        beginning: b"<13>",
        // This source takes every line as a message, so the garbage has no newline.
        garbage: b"\x16\x03\x01\x02\x00 nonsense",
        greet: |_| (),
        deliver: |client, place| {
            client.delivered += 1;
            let port = client.stream.local_addr().unwrap().port();
            let text = format!("message {} of {port}", client.delivered);
            let message = format!("<13>Nov 21 06:40:30 h a: {text}\n");
            client.stream.write_all(message.as_bytes()).unwrap();
            wait_until("the message is in the file", || {
                let written = fs::read_to_string(place.join("out.log")).unwrap_or_default();
                written.lines().any(|line| line == text)
            });
        },
    }
    .meet_the_crowd();
}

/// Performs the handshake with the shared key.
fn greet(stream: &mut (impl Read + Write)) {
    let mut bytes = Vec::new();
    let mut receive = |stream: &mut dyn Read, is_whole: &dyn Fn(&[u8]) -> bool| {
        bytes.clear();
        while !is_whole(&bytes) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        bytes.clone()
    };
    let helo = receive(stream, &|bytes| read_helo(bytes).is_ok());
    let (helo, _) = read_helo(&helo).unwrap();
    let ping = Ping {
        hostname: b"web",
        salt: b"salt",
        key_digest: &digest(&[b"salt", b"web", helo.nonce, KEY.as_bytes()]),
        user: b"",
        password_digest: b"",
    };
    let mut out = Vec::new();
    write_ping(&mut out, &ping);
    stream.write_all(&out).unwrap();
    stream.flush().unwrap();
    let pong = receive(stream, &|bytes| read_pong(bytes).is_ok());
    assert_eq!(pong[6], 0xc3, "let in");
}

/// A TLS client that trusts the CA in `directory`.
fn secure(directory: &Path, port: u16) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(directory.join("ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    rustls::StreamOwned::new(session, connect(port))
}

#[test]
fn a_crowd_that_does_not_finish_the_tls_handshake_is_closed_at_the_deadline() {
    let _alone = ONE_CROWD.lock().unwrap_or_else(PoisonError::into_inner);
    raise_open_files();
    let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
    let authority = Authority::new("root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["localhost"]);
    let options = format!(
        "limits: {{ handshake: 20s }}, auth: {{ shared_key: {KEY} }}, tls: {{ cert: server.pem, key: server.key }}"
    );
    let config = configuration(directory.path(), port, &options);
    let program = Program::start(directory.path(), &config).listens(port);
    let mut early = secure(directory.path(), port);
    greet(&mut early);
    deliver(&mut early, "first");
    let before = memory(&program);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| connect(port)).collect();
    for second in 0..3 {
        pester(&mut crowd, second, BEGINNING, GARBAGE);
        deliver(&mut early, &format!("early {second}"));
        let mut new = secure(directory.path(), port);
        greet(&mut new);
        deliver(&mut new, &format!("new {second}"));
    }
    let grown = memory(&program).saturating_sub(before);
    let most = CROWD as u64 * CONNECTION_BYTES_MAX;
    assert!(grown < most, "{grown} bytes for {CROWD} connections");
    // Only the sockets of the real senders and the other files of the process remain open.
    wait_until("the crowd is closed", || open_files(&program) < 100);
    deliver(&mut early, "last");
    assert_eq!(program.stop(), Some(0));
}
