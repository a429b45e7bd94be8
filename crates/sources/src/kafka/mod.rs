//! The source `kafka`: records of topics, in a group or from fixed partitions.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! ```text
//! own thread:  consumer -> gather (one buffer, a batch per partition) -> piece
//! data thread: piece -> outlet -> receipts -> settled offsets
//! own thread:  settled offsets -> commit
//! ```
//! `reader` is the source's own thread. `gather` and `decode` turn the records of one poll into batches. The batches of one poll
//! are a piece. `start` finds where to begin a partition, `waiting` has the partitions that have no
//! leader, `identity` makes the partition's id for a durable channel, and `progress`
//! is the state that both threads share.
//!
//! An offset is committed for the group only after everything before it is kept (with a memory channel: settled). A revoked
//! partition is released after the records read from it are kept and committed, or after a time limit (`reader`). With fixed
//! partitions and a disk channel, every record is kept exactly once: the channel keeps the offset with the data.

mod decode;
mod gather;
mod identity;
mod options;
mod progress;
mod reader;
mod start;
#[cfg(test)]
mod tests;
mod waiting;

use std::{collections::HashMap, sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_kafka as kafka;
use millstream_pipeline::{
    failure::Failure,
    node::{Build, Checked, Component, LocalFuture, Source, SourceContext},
    promise::{Guarantee, Promise},
    reject,
};
use tokio::sync::mpsc;

use crate::flight::Flight;
use gather::Piece;
use options::Config;
use progress::{Assigned, Progress};
use reader::Reader;

/// The entry in the list of sources.
pub const COMPONENT: Component = Component {
    name: "kafka",
    summary: "Reads Kafka topics: in a group, or from fixed partitions.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Source(build),
};

/// The length of the queue between the reading thread and the data thread, in pieces: about 4 MiB in total.
const PIECES: usize = 4;
/// The interval at which answers are collected while no piece arrives.
const LOOK: Duration = Duration::from_millis(20);

/// The source.
struct Kafka {
    config: Arc<Config>,
    client: Arc<dyn kafka::Connect>,
}

fn build(_name: &str, node: &Node) -> Checked<Box<dyn Source>> {
    Ok(Box::new(Kafka::new(node, kafka::connect())?))
}

impl Kafka {
    fn new(node: &Node, client: Arc<dyn kafka::Connect>) -> Checked<Self> {
        let config: Config = node.read()?;
        let problems = config.problems(node);
        if !problems.is_empty() {
            return Err(problems);
        }
        let config = Arc::new(config);
        Ok(Self { config, client })
    }
}

impl Kafka {
    /// Reads with one client. Returns whether to begin again with a new one.
    async fn read(&self, context: SourceContext) -> Result<bool, Failure> {
        context.outlet.until_kept(context.stop.clone()).await;
        let (sender, pieces) = mpsc::channel(PIECES);
        let progress = Arc::new(Progress::default());
        let reader = Reader::new(
            self.config.clone(),
            self.client.clone(),
            context.clone(),
            progress.clone(),
        );
        reader.start(sender)?;
        let mut sending = Sending {
            context,
            progress: progress.clone(),
            flights: HashMap::new(),
        };
        let sent = sending.send_all(pieces).await;
        // Even after a failure, the reading thread commits the settled offsets and leaves the group.
        progress.land();
        progress.ended().await?;
        sent.map(|()| progress.begins_again())
    }
}

impl Source for Kafka {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        // The source binds nothing on this machine, and an unreachable cluster must not prevent the start.
        Ok(())
    }

    fn run<'a>(&'a mut self, context: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            while self.read(context.clone()).await? {}
            Ok(())
        })
    }

    fn reads(&self) -> Option<&'static str> {
        Some("partitions")
    }

    fn values(&self) -> &'static [&'static str] {
        options::VALUES
    }

    fn promise(&self, durable: bool) -> Promise {
        match (durable, self.config.partitions.is_some()) {
            (true, true) => Promise::new(
                Guarantee::ExactlyOnce,
                "no other instance reads these partitions into another channel",
            ),
            (true, false) => Promise::new(
                Guarantee::AtLeastOnce,
                "records of a partition that moves to another member before its offset is committed are read twice; exactly once \
                 with `partitions`",
            ),
            (false, _) => Promise::new(
                Guarantee::AtLeastOnce,
                "without a disk channel behind it, records that were read shortly before a crash are read again",
            ),
        }
    }
}

/// The state of the data thread.
struct Sending {
    context: SourceContext,
    progress: Arc<Progress>,
    flights: HashMap<Assigned, Flight<u64>>,
}

impl Sending {
    /// Sends the pieces of the reading thread until that thread ends, then waits for all answers.
    async fn send_all(&mut self, mut pieces: mpsc::Receiver<Piece>) -> Result<(), Failure> {
        loop {
            tokio::select! {
                biased;
                piece = pieces.recv() => match piece {
                    Some(piece) => self.send(piece).await?,
                    None => break,
                },
                () = tokio::time::sleep(LOOK), if !self.flights.is_empty() => {}
            }
            self.collect()?;
        }
        let mut landed = Ok(());
        for (assigned, flight) in &mut self.flights {
            if flight.land().await.is_err() {
                landed = Err(dropped());
            }
            self.progress.settle(assigned, flight.settled());
        }
        landed
    }

    async fn send(&mut self, piece: Piece) -> Result<(), Failure> {
        for batch in piece.batches {
            let flight = self
                .flights
                .entry(batch.of.clone())
                .or_insert_with(|| Flight::new(batch.begin));
            for (record, reason) in &batch.rejected {
                let name = &*self.context.name;
                let rejected = reject::batch(name, &batch.batch, [record.as_slice()], reason);
                let receipt = self.context.rejects.send(rejected, false).await;
                flight.push(receipt, batch.begin);
            }
            let awaited = flight.is_half_full();
            let receipt = self.context.outlet.send(batch.batch, awaited).await;
            flight.push(receipt, batch.next);
            while flight.is_full() {
                flight.answered().await;
                flight.collect().map_err(|_| dropped())?;
            }
        }
        Ok(())
    }

    /// Collects the answers that have arrived.
    fn collect(&mut self) -> Result<(), Failure> {
        let (progress, mut failed) = (&self.progress, false);
        self.flights.retain(|assigned, flight| {
            match flight.collect() {
                Ok(true) => progress.settle(assigned, flight.settled()),
                Ok(false) => {}
                Err(_) => failed = true,
            }
            progress.is_assigned(assigned)
        });
        if failed { Err(dropped()) } else { Ok(()) }
    }
}

fn dropped() -> Failure {
    Failure::us(
        "records were dropped before they were settled; reading restarts at the last settled offset",
    )
}
