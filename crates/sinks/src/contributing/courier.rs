//! The network sink that CONTRIBUTING.md walks through: lines over TCP, an acknowledgement for each. Tests only.

use std::{io, sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_net::connect;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};
use millstream_record::Batch;
use millstream_wire::format::{Encoder, Mark};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::{
    format::{Formatting, schema_with},
    sending::{Input, Lane, Outage, Refused, Retry, Then, unencoded},
};

pub const COMPONENT: Component = Component {
    name: "courier",
    summary: "Sends lines over TCP to a server that acknowledges each.",
    readme: include_str!("../discard/README.md"),
    example: include_str!("../discard/example.yaml"),
    schema: schema_with::<Config>,
    build: Build::Sink(build),
};

/// The options of `courier` in addition to those of the format.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Server: `host:port`.
    server: String,
    /// How a server that fails is retried.
    #[serde(default)]
    retry: Retry,
}

struct Courier {
    formatting: Formatting,
    config: Config,
}

fn build(_name: &str, options: &Node) -> Checked<Arc<dyn Sink>> {
    let (formatting, config) = Formatting::with::<Config>(options)?;
    Ok(Arc::new(Courier { formatting, config }))
}

/// The codec: the encoded lines of a batch, and where the batch holds the record of each line.
struct Lines {
    encoder: Encoder,
    text: Vec<u8>,
    marks: Vec<Mark>,
    refused: Vec<Refused>,
}

impl Lines {
    fn new(encoder: Encoder) -> Self {
        Self {
            encoder,
            text: Vec::new(),
            marks: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn encode(&mut self, batch: &Batch) {
        self.text.clear();
        self.marks.clear();
        let mut rejects = Vec::new();
        self.encoder
            .encode_each(batch, &mut self.text, &mut rejects, &mut self.marks);
        self.refused = rejects.into_iter().map(unencoded).collect();
    }

    /// The text of all lines but the first `acked`.
    fn unacked(&self, acked: usize) -> &[u8] {
        let last = acked.checked_sub(1).and_then(|last| self.marks.get(last));
        let start = last.map_or(0, |mark| mark.written);
        self.text.get(start..).unwrap_or_default()
    }

    /// The records of all lines but the first `acked`.
    fn records<'a>(&self, batch: &'a Batch, acked: usize) -> impl Iterator<Item = &'a [u8]> {
        let marks = self.marks.iter().skip(acked);
        marks.filter_map(|mark| batch.body.get(mark.start..mark.end))
    }
}

/// The connection: sends lines, and receives an `ok` for each.
struct Connection(TcpStream);

impl Connection {
    /// Sends the lines after the first `acked`. Adds each acknowledgement to `acked`, even if a later one fails.
    async fn send(&mut self, lines: &Lines, acked: &mut usize) -> io::Result<()> {
        let (read, mut write) = self.0.split();
        let (text, count) = (lines.unacked(*acked), lines.marks.len());
        let mut answers = BufReader::new(read).lines();
        let receive = async {
            while *acked < count {
                match answers.next_line().await? {
                    Some(answer) if answer == "ok" => *acked += 1,
                    Some(answer) => return Err(io::Error::other(format!("it says `{answer}`"))),
                    None => return Err(io::ErrorKind::ConnectionAborted.into()),
                }
            }
            Ok(())
        };
        // Concurrently: a server may stop reading until its answers are read.
        tokio::try_join!(write.write_all(text), receive)?;
        Ok(())
    }
}

impl Courier {
    async fn deliver(
        &self,
        connection: &mut Option<Connection>,
        lines: &Lines,
        acked: &mut usize,
    ) -> io::Result<()> {
        let limit = self.config.retry.timeout.as_duration();
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let stream = connect(&self.config.server, limit, 0).await?;
                connection.insert(Connection(stream))
            }
        };
        timeout(limit, connection.send(lines, acked)).await?
    }

    async fn send_all(&self, inlet: &mut Inlet, context: SinkContext) -> Result<(), Failure> {
        let mut lane = Lane::new(inlet, context);
        let retry = &self.config.retry;
        let mut outage = Outage::new(retry, &lane.context, lane.is_durable(), "server");
        let mut lines = Lines::new(self.formatting.encoder());
        let mut connection = None;
        lane.start()?;
        loop {
            match lane.next(true).await? {
                Input::Batch(batch, _) => {
                    let number = lane.begin(batch.received);
                    lines.encode(&batch);
                    lane.reject_refused(None, &batch, &lines.refused).await;
                    let mut acked = 0;
                    loop {
                        let delivered = self.deliver(&mut connection, &lines, &mut acked).await;
                        let Err(error) = delivered else {
                            outage.succeeded();
                            break;
                        };
                        connection = None;
                        let why = format_args!("{}: {error}", self.config.server);
                        match outage.retry(why, Duration::ZERO).await {
                            Then::Retry => {}
                            Then::GiveUp => {
                                let records = lines.records(&batch, acked);
                                let reason = "no server took it within `retry.give_up`";
                                lane.reject(None, &batch, records, reason).await;
                                break;
                            }
                            Then::Stop => return Ok(()),
                        }
                    }
                    lane.finish(number);
                }
                Input::Checkpoint | Input::Tick => {}
                Input::End => return Ok(()),
            }
            lane.settle().await?;
        }
    }
}

impl Sink for Courier {
    fn placement(&self) -> Placement {
        Placement::DataThreads
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(self.send_all(inlet, context))
    }

    fn promise(&self, _durable: bool) -> Promise {
        Promise::new(
            Guarantee::AtLeastOnce,
            "a line without an ack is sent again",
        )
    }

    fn settles_within(&self) -> Option<Duration> {
        // It depends on the server.
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        thread,
    };

    use super::*;
    use crate::rig::{Rig, Upstream, lines};

    /// Serves one connection after the other: acknowledges `acks[n]` lines on connection `n`, then closes it. The thread returns all
    /// lines received.
    fn server(acks: &'static [usize]) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = move || {
            let mut received = Vec::new();
            for acks in acks {
                let (mut stream, _) = listener.accept().unwrap();
                let mut input = BufReader::new(stream.try_clone().unwrap()).lines();
                for _ in 0..*acks {
                    received.push(input.next().unwrap().unwrap());
                    stream.write_all(b"ok\n").unwrap();
                }
            }
            received
        };
        (address, thread::spawn(serve))
    }

    fn rig(server: &str, upstream: &Upstream, give_up: &str) -> Rig {
        let options = format!(
            r#"{{"server": "{server}", "format": "raw", "retry": {{"first": "10ms", "give_up": "{give_up}"}}}}"#
        );
        Rig::new(&COMPONENT, &options, upstream, "unused".as_ref())
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn only_lines_without_an_ack_are_sent_again_when_a_connection_breaks() {
        let (address, server) = server(&[1, 2]);
        let upstream = Upstream::memory();
        let receipt = upstream.put(lines("t", "a\nb\nc\n"), true);
        upstream.close();
        block_on(rig(&address, &upstream, "never").run()).unwrap();
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
        assert_eq!(server.join().unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn records_that_no_server_takes_in_time_are_rejected_and_settled() {
        let (address, server) = server(&[]);
        server.join().unwrap();
        let upstream = Upstream::memory();
        let receipt = upstream.put(lines("t", "a\nb\n"), true);
        upstream.close();
        block_on(rig(&address, &upstream, "20ms").run()).unwrap();
        assert_eq!(receipt.try_outcome(), Some(Ok(())));
        let rejected = upstream.rejected();
        assert_eq!(rejected.iter().map(|batch| batch.count).sum::<u32>(), 2);
    }
}
