//! Tests of the source through its sockets: messages become records, none is lost, and an answer means that a message is kept.

mod relp;
mod sockets;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::mpsc,
    time::Duration,
};

use millstream_net::Scheme;
use millstream_pipeline::{
    failure::Failure,
    node::{Checked, LocalFuture, Source, SourceContext},
    promise::Promise,
};
use rmpv::Value;

use super::{COMPONENT, Syslog};
use crate::rig::{Downstream, Running, node, try_build, until};

/// The source, which reports the addresses that it listens on.
struct Telling {
    source: Syslog,
    tell: mpsc::SyncSender<Vec<(Scheme, SocketAddr)>>,
}

impl Source for Telling {
    fn bind(&mut self, context: &SourceContext) -> Result<(), Failure> {
        self.source.bind(context)?;
        self.tell.send(self.source.server.addresses()).unwrap();
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        self.source.run(context)
    }

    fn values(&self) -> &'static [&'static str] {
        self.source.values()
    }

    fn promise(&self, durable: bool) -> Promise {
        self.source.promise(durable)
    }
}

fn build(options: &str) -> Checked<Syslog> {
    Syslog::new(&node(serde_json::from_str(options).unwrap()))
}

/// Runs the source. The addresses are in the order of `listen`, without those of unix sockets.
fn start(options: &str, downstream: &Downstream, directory: &Path) -> (Running, Vec<SocketAddr>) {
    let (tell, told) = mpsc::sync_channel(1);
    let source = build(options).unwrap();
    let running = Running::of(
        Box::new(Telling { source, tell }),
        downstream,
        directory,
        false,
    );
    let addresses = told.recv_timeout(Duration::from_secs(20)).unwrap();
    (
        running,
        addresses.into_iter().map(|(_, address)| address).collect(),
    )
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// Every record so far.
fn records(downstream: &Downstream) -> Vec<Value> {
    let mut all = Vec::new();
    for batch in downstream.batches() {
        let (mut rest, before) = (&batch.body[..], all.len());
        while !rest.is_empty() {
            all.push(rmpv::decode::read_value(&mut rest).unwrap());
        }
        assert_eq!(all.len() - before, batch.count as usize);
    }
    all
}

/// A field of every record; empty where it is missing.
fn field(downstream: &Downstream, name: &str) -> Vec<String> {
    let of = |record: &Value| {
        let map = record[1].as_map().unwrap();
        let found = map.iter().find(|(key, _)| key.as_str() == Some(name));
        found.map_or(String::new(), |(_, value)| match value {
            Value::Binary(bytes) => bytes.escape_ascii().to_string(),
            value => value.as_str().unwrap().to_owned(),
        })
    };
    records(downstream).iter().map(of).collect()
}

#[test]
fn valid_options_are_accepted_and_invalid_ones_are_refused() {
    let problems = |options: &str| try_build(&COMPONENT, options).err().unwrap_or_default();
    assert_eq!(problems(r#"{"listen": "udp://127.0.0.1"}"#), [""; 0]);
    assert_eq!(problems(r#"{"listen": "relp://127.0.0.1"}"#).len(), 1);
    let wrong = r#"{"listen": "tcp://127.0.0.1", "line_max": 0, "timezone": "Mars/Olympus"}"#;
    assert_eq!(problems(wrong).len(), 2);
    assert_eq!(
        problems(r#"{"listen": "tcp://127.0.0.1", "framing": "cri"}"#).len(),
        1
    );
}

#[test]
fn the_promise_depends_on_the_protocol() {
    let promise = |listen: &str| {
        let source = build(&format!(r#"{{"listen": {listen}}}"#)).unwrap();
        format!("{:?}", source.promise(true).guarantee)
    };
    assert_eq!(promise(r#""relp://127.0.0.1:0""#), "AtLeastOnce");
    assert_eq!(
        promise(r#"["relp://127.0.0.1:0", "tcp://127.0.0.1"]"#),
        "AtMostOnce"
    );
    assert_eq!(promise(r#""udp://127.0.0.1""#), "AtMostOnce");
}

/// Reads until `count` newlines have arrived.
fn lines(stream: &mut TcpStream, count: usize) -> String {
    let (mut text, mut byte, mut left) = (Vec::new(), [0], count);
    while left > 0 {
        let read = stream.read(&mut byte).unwrap();
        assert_eq!(read, 1, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
        left -= usize::from(byte[0] == b'\n');
    }
    String::from_utf8(text).unwrap()
}

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}
