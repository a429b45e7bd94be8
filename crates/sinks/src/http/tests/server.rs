//! A server that stores its requests and answers them as scripted.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A scripted answer.
#[derive(Clone)]
pub(super) enum Said {
    /// Closes the connection.
    Nothing,
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
        after: Duration,
    },
}

impl Said {
    pub(super) fn status(status: u16) -> Self {
        Self::Answer {
            status,
            headers: Vec::new(),
            body: String::new(),
            after: Duration::ZERO,
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.to_owned()));
        }
        self
    }

    pub(super) fn body(mut self, text: &str) -> Self {
        if let Self::Answer { body, .. } = &mut self {
            *body = text.to_owned();
        }
        self
    }

    pub(super) fn after(mut self, wait: Duration) -> Self {
        if let Self::Answer { after, .. } = &mut self {
            *after = wait;
        }
        self
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) line: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether an earlier request had the same first line.
    pub(super) is_again: bool,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

type Script = Box<dyn Fn(&Request, usize) -> Said + Send + Sync>;

struct State {
    script: Script,
    requests: Mutex<Vec<Request>>,
    lines: Mutex<HashSet<String>>,
}

/// The server. Its threads end with the process.
pub(super) struct Scripted {
    port: u16,
    state: Arc<State>,
}

impl Scripted {
    /// Answers request `n`, counted from 0, with `script(n)`.
    pub(super) fn start(script: impl Fn(usize) -> Said + Send + Sync + 'static) -> Self {
        Self::run(Box::new(move |_, n| script(n)))
    }

    /// Answers each request with `script(request)`.
    pub(super) fn answering(script: impl Fn(&Request) -> Said + Send + Sync + 'static) -> Self {
        Self::run(Box::new(move |request, _| script(request)))
    }

    fn run(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            script,
            requests: Mutex::default(),
            lines: Mutex::default(),
        });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { port, state }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(super) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.state.requests.lock().unwrap())
    }
}

fn serve(stream: TcpStream, state: &State) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(mut request) = read(&mut reader) {
        let said = {
            let mut requests = state.requests.lock().unwrap();
            request.is_again = !state.lines.lock().unwrap().insert(request.line.clone());
            let said = (state.script)(&request, requests.len());
            requests.push(request);
            said
        };
        let Said::Answer {
            status,
            headers,
            body,
            after,
        } = said
        else {
            return;
        };
        thread::sleep(after);
        let mut answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            answer += &format!("{name}: {value}\r\n");
        }
        answer += "\r\n";
        answer += &body;
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = || {
        let mut text = String::new();
        (reader.read_line(&mut text).ok()? > 0).then(|| text.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = Vec::new();
    loop {
        let header = line()?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ")?;
        headers.push((name.to_owned(), value.to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        line: first,
        headers,
        body,
        is_again: false,
    })
}
