//! Servers for the sink `http`: one that stores its input and can be restarted, one that imitates other servers' answers,
//! and a proxy whose connections can be cut.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    /// The body after decompression.
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// Reads one request. Returns `None` if the connection has ended or breaks within the request.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = || {
        let mut text = String::new();
        (reader.read_line(&mut text).ok()? > 0).then(|| text.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let header = line()?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ")?;
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut request = Request {
        method,
        path,
        headers,
        body: Vec::new(),
    };
    request.body = vec![0; request.header("content-length")?.parse().ok()?];
    reader.read_exact(&mut request.body).ok()?;
    request.body = match request.header("content-encoding") {
        None => request.body,
        Some("gzip") => unpacked("gzip", &request.body),
        Some("zstd") => unpacked("zstd", &request.body),
        Some(other) => panic!("Content-Encoding: {other}"),
    };
    Some(request)
}

/// Decompresses bytes with a third-party tool.
fn unpacked(tool: &str, bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(tool);
    let piped = command
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = piped
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}: run `make deps`"));
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{tool} cannot read a body");
    output.stdout
}

/// An answer: the status, further header lines, and the body.
pub type Said = (u16, String, String);

/// Answers requests on a port. Stops when dropped.
pub struct Service {
    port: u16,
    stopped: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    listening: Option<thread::JoinHandle<()>>,
}

impl Service {
    /// Starts the service. Port 0 selects any free port.
    pub fn start(port: u16, answer: impl Fn(&Request) -> Said + Send + Sync + 'static) -> Self {
        let listener = bind(port);
        let port = listener.local_addr().unwrap().port();
        let (stopped, streams) = (
            Arc::new(AtomicBool::new(false)),
            Arc::<Mutex<Vec<TcpStream>>>::default(),
        );
        let (stop, open, answer) = (stopped.clone(), streams.clone(), Arc::new(answer));
        let listening = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                open.lock().unwrap().push(stream.try_clone().unwrap());
                let answer = answer.clone();
                thread::spawn(move || serve(stream, &*answer));
            }
        });
        Self {
            port,
            stopped,
            streams,
            listening: Some(listening),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Binds a port. While no service listens on the port, the kernel may assign it to an outgoing connection, even to a connection
/// that leads to this very port. So this function retries until the port is free.
fn bind(port: u16) -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(error) => assert!(
                error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline,
                "port {port}: {error}"
            ),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // The thread checks `stopped` only when it accepts a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: TcpStream, answer: &(dyn Fn(&Request) -> Said + Send + Sync)) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let (status, headers, body) = answer(&request);
        let length = body.len();
        let text =
            format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// A server that appends the body of each request to a file and syncs the file before it answers 200.
pub struct Keeper {
    file: Arc<Mutex<File>>,
    service: Option<Service>,
    port: u16,
}

impl Keeper {
    pub fn start(path: PathBuf) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        let file = Arc::new(Mutex::new(file));
        let service = Self::serve(0, file.clone());
        Self {
            port: service.port(),
            service: Some(service),
            file,
        }
    }

    fn serve(port: u16, file: Arc<Mutex<File>>) -> Service {
        Service::start(port, move |request| {
            let mut file = file.lock().unwrap();
            file.write_all(&request.body).unwrap();
            file.sync_data().unwrap();
            (200, String::new(), String::new())
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Breaks every connection and restarts the server.
    pub fn restart(&mut self) {
        self.service = None;
        self.service = Some(Self::serve(self.port, self.file.clone()));
    }
}

/// A proxy to a loopback port. While the connection is cut, no bytes pass, and neither end is notified.
pub struct Cut {
    port: u16,
    held: Arc<AtomicBool>,
}

impl Cut {
    pub fn before(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held = Arc::new(AtomicBool::new(false));
        let shared = held.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (one, other) = (shared.clone(), shared.clone());
                thread::spawn(move || copy(near, far, &one));
                thread::spawn(move || copy(far_again, near_again, &other));
            }
        });
        Self { port, held }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while held.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(10));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
