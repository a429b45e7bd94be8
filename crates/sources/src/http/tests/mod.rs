//! A server on a unix socket, and a client that writes requests byte for byte.

mod bounds;
mod keep;
mod otlp;
mod texts;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use millstream_record::Batch;
use serde_json::Value;
use tempfile::TempDir;

use super::COMPONENT;
use crate::rig::{Downstream, Running, connect, until};

struct Rig {
    directory: TempDir,
    downstream: Downstream,
    running: Running,
}

impl Rig {
    /// Starts a server. `options`: JSON that is inserted after `listen`.
    fn new(options: &str) -> Self {
        Self::before(Downstream::memory(), options)
    }

    fn before(downstream: Downstream, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let options = format!("{{\"listen\": \"unix://{}\"{options}}}", socket.display());
        let running = Running::start(&COMPONENT, &options, &downstream, directory.path());
        Self {
            directory,
            downstream,
            running,
        }
    }

    fn connect(&self) -> Client {
        Client::new(self.directory.path().join("s"))
    }

    /// Posts a body on a new connection.
    fn post(&self, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        let mut client = self.connect();
        client.post(path, headers, body);
        client.answer()
    }

    /// All records as JSON.
    fn records(&self) -> Vec<Value> {
        records(&self.downstream.batches())
    }

    /// The rejected parts: reason and message.
    fn rejected(&self) -> Vec<(String, String)> {
        let text = |record: &Value, name: &str| record[name].as_str().unwrap().to_owned();
        let all = records(&self.running.rejected.batches());
        all.iter()
            .map(|record| (text(record, "reason"), text(record, "message")))
            .collect()
    }
}

fn records(batches: &[Batch]) -> Vec<Value> {
    let mut all = Vec::new();
    for batch in batches {
        let before = all.len();
        for (_, event) in millstream_wire::record::records(batch) {
            let millstream_wire::record::Record::Packed(map) = event.record else {
                panic!("{event:?}");
            };
            let mut text = Vec::new();
            millstream_wire::json::write_value(map, 0, &mut text).unwrap();
            all.push(serde_json::from_slice(&text).unwrap());
        }
        assert_eq!(all.len() - before, batch.count as usize);
    }
    all
}

struct Client(BufReader<UnixStream>);

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn has(&self, header: &str) -> bool {
        self.headers
            .iter()
            .any(|line| line.eq_ignore_ascii_case(header))
    }
}

impl Client {
    fn new(socket: PathBuf) -> Self {
        let stream = connect(&socket);
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self(BufReader::new(stream))
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn post(&mut self, path: &str, headers: &[&str], body: &[u8]) {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n",
            body.len()
        );
        for header in headers {
            request.push_str(header);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        self.write(&[request.as_bytes(), body].concat());
    }

    fn answer(&mut self) -> Answer {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines.first().expect("an answer").split(' ').nth(1).unwrap();
        let length = lines
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        Answer {
            status: status.parse().unwrap(),
            headers: lines.split_off(1),
            body,
        }
    }

    /// Whether the server has sent no byte so far.
    fn is_silent(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let read = self.0.fill_buf().map(<[u8]>::len);
        self.0.get_ref().set_nonblocking(false).unwrap();
        read.is_err()
    }

    /// Whether the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}
