//! Peers for the tests in `faults.rs`: a Millstream that receives, an HTTP server with a configurable answer, a port that discards its
//! input.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

use millstream_testkit::Authority;
use tempfile::TempDir;

use crate::program::{Program, wait_until};

/// A Millstream that receives with the forward protocol. It has two certificates: `server`, which is signed by `root.pem`, and
/// `other`, which is signed by `other-root.pem`.
pub struct Receiver {
    directory: TempDir,
    port: u16,
    program: Program,
}

impl Receiver {
    /// Starts a receiver with these options of its source.
    pub fn start(port: u16, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (root, name) in [("root", "server"), ("other-root", "other")] {
            let authority = Authority::new(root);
            authority.write_root(directory.path(), root);
            let hosts = ["localhost", "127.0.0.1"];
            authority.issue(directory.path(), name, &hosts);
            authority.issue_expired(directory.path(), &format!("{name}-expired"), &hosts);
        }
        let program = Self::run(directory.path(), port, options);
        Self {
            directory,
            port,
            program,
        }
    }

    fn run(place: &Path, port: u16, options: &str) -> Program {
        let config = format!(
            "data_dir: {}/data\nthreads: 1\napi: {{ listen: [] }}\nsources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\"{options} }}\n\
             sinks:\n  out: {{ type: discard, inputs: [in] }}\n",
            place.display()
        );
        Program::start(place, &config)
    }

    /// The directory with the certificates.
    pub fn place(&self) -> &Path {
        self.directory.path()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until it listens.
    pub fn ready(&self) {
        wait_until("the receiver listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// Restarts the receiver with other options.
    pub fn restart(self, options: &str) -> Self {
        let Self {
            directory,
            port,
            program,
        } = self;
        program.kill();
        let program = Self::run(directory.path(), port, options);
        Self {
            directory,
            port,
            program,
        }
    }
}

/// An HTTP server that gives every request the same answer.
pub struct Server {
    port: u16,
    code: Arc<AtomicU16>,
}

impl Server {
    /// Starts a server that answers with the status `code`.
    pub fn start(port: u16, code: u16) -> Self {
        let code = Arc::new(AtomicU16::new(code));
        let answer = Arc::clone(&code);
        let listener = listen(port);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve(stream, &answer));
            }
        });
        Self { port, code }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes the status that the server answers.
    pub fn answer(&self, code: u16) {
        self.code.store(code, Ordering::Relaxed);
    }
}

/// Answers requests, which must have a Content-Length, until the peer closes the connection.
fn serve(mut stream: TcpStream, code: &AtomicU16) {
    let mut held = Vec::new();
    let mut bytes = [0; 64 << 10];
    loop {
        let text = String::from_utf8_lossy(&held).to_ascii_lowercase();
        let Some(head) = text.find("\r\n\r\n") else {
            match stream.read(&mut bytes) {
                Ok(count) if count > 0 => held.extend_from_slice(&bytes[..count]),
                _ => return,
            }
            continue;
        };
        let length = text[..head]
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
        while held.len() < head + 4 + length {
            match stream.read(&mut bytes) {
                Ok(count) if count > 0 => held.extend_from_slice(&bytes[..count]),
                _ => return,
            }
        }
        held.drain(..head + 4 + length);
        let code = code.load(Ordering::Relaxed);
        let reason = match code {
            200 => "OK",
            401 => "Unauthorized",
            404 => "Not Found",
            _ => "Service Unavailable",
        };
        let answer = format!("HTTP/1.1 {code} {reason}\r\nContent-Length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Accepts every connection to a port and discards everything that arrives.
pub fn swallow(port: u16) {
    let listener = listen(port);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
}

/// Binds a port. Retries while its previous owner still holds it.
pub fn listen(port: u16) -> TcpListener {
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
