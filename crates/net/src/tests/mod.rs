//! Servers on free ports, and clients with TLS, incomplete TLS or no TLS.

mod listening;
mod room;
mod tls;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use millstream_config::{Node, OneOrMany};
use millstream_pipeline::{
    failure::Failure,
    meters::{Meters, NodeMeters},
    node::{Checked, SourceContext},
    outlet::Outlet,
    report::Reporter,
    stop::{Stopper, stop},
    threads::Threads,
};
use millstream_record::Pool;
use millstream_testkit::Authority;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Connection, Limits, Listen, Scheme, Server, SocketAccess, Takes, Tls};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

const TAKES: Takes = &[
    (Scheme::Tcp, Some(24224)),
    (Scheme::Unix, None),
    (Scheme::Udp, None),
    (Scheme::Unixgram, None),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    listen: OneOrMany<Listen>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    tls: Tls,
    #[serde(default)]
    socket: SocketAccess,
}

/// A server with the options in `text`, written to a file in `directory`.
fn check(directory: &Path, text: &str) -> Checked<Server> {
    let file = directory.join("t.yaml");
    let options = Node::parse(file.to_str().unwrap(), text).unwrap();
    let config: Config = options.read()?;
    let Config {
        listen,
        limits,
        tls,
        socket,
    } = &config;
    Server::check(&options, listen, TAKES, limits, tls, socket)
}

fn context(threads: &Threads) -> (SourceContext, Stopper) {
    let meters = Meters::default().of("in");
    let (stopper, stop) = stop();
    let context = SourceContext {
        name: "in".into(),
        follows: [].into(),
        outlet: Outlet::new(Vec::new(), &meters, false),
        rejects: Outlet::new(Vec::new(), &meters, true),
        threads: threads.clone(),
        stop,
        once: false,
        pool: Pool::new(1 << 20),
        meters,
        reporter: Reporter::new("in"),
        host: "here".into(),
        directory: "unused".into(),
    };
    (context, stopper)
}

/// A server that echoes what it reads until its peer closes the connection.
struct Echo {
    address: SocketAddr,
    meters: NodeMeters,
    reporter: Reporter,
    stopper: Stopper,
    ended: mpsc::Receiver<Result<(), Failure>>,
    _threads: Threads,
}

async fn echo(mut connection: Connection) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = connection.stream.read(&mut bytes).await {
        let _ = connection.stream.write_all(&bytes[..count]).await;
        let _ = connection.stream.flush().await;
    }
    let _ = connection.stream.shutdown().await;
}

impl Echo {
    /// Listens on a free port, with further `options`.
    fn start(directory: &Path, options: &str) -> Self {
        Self::serve(
            check(
                directory,
                &format!("{{ listen: 'tcp://127.0.0.1:0', {options} }}"),
            )
            .unwrap(),
        )
    }

    fn serve(mut server: Server) -> Self {
        let threads = Threads::start(2).unwrap();
        let (context, stopper) = context(&threads);
        server.bind(&context).unwrap();
        let (_, address) = server.addresses()[0];
        let (sender, ended) = mpsc::sync_channel(1);
        let (meters, reporter) = (context.meters.clone(), context.reporter.clone());
        let run = async move || {
            let _ = sender.send(server.serve(&context, echo).await);
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(threads.spawn_on(0, &reporter, run));
        Self {
            address,
            meters,
            reporter,
            stopper,
            ended,
            _threads: threads,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn open(&self) -> u64 {
        self.meters.gauge("connections").get()
    }

    fn failed(&self) -> u64 {
        self.meters.counter("handshakes_failed").get()
    }
}

/// Waits until `holds` returns true.
fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes the bytes and reads them back.
fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, bytes);
    Ok(())
}

/// A directory with `ca.pem`, and certificate and key of a server and a client.
fn certificates() -> (tempfile::TempDir, Authority) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["localhost", "127.0.0.1"]);
    authority.issue(directory.path(), "client", &["client"]);
    (directory, authority)
}
