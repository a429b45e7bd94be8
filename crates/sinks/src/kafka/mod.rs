//! The sink `kafka`: writes records to topics, exactly once behind a disk channel.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> encode -> [write] -> settle`
//!
//! - `shape`: turns batches into Kafka records (`topics`, `connect`).
//! - `exact`: delivers from a disk channel, in transactions that include the position (`session`, `end`, `carried`, `position`,
//!   `ownership`, `timeout`, `progress`, `given_up`).
//! - `plain`: delivers from memory, without transactions.
//! - `link`: wraps the producer for `exact` and `plain`. `verdict`: finds the records that brokers refuse permanently.
//!
//! The sink promises: if it reads from a disk channel, readers of committed records see every record once, even if processes are
//! killed. If it reads from memory, a batch is settled when all in-sync replicas have its records. Records that Kafka refuses
//! permanently leave by the port `rejected`.

mod carried;
mod connect;
mod end;
mod exact;
mod given_up;
mod link;
mod options;
mod ownership;
mod plain;
mod position;
mod progress;
mod session;
mod shape;
mod sink;
#[cfg(test)]
mod tests;
mod timeout;
mod topics;
mod verdict;

use std::{sync::Arc, time::Duration};

use millstream_config::Node;
use millstream_kafka as kafka;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};

use options::Config;
use sink::Kafka;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "kafka",
    summary: "Writes records to Kafka, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Sink(build),
};

/// Time limit of `check --connect` for a broker.
const PROBE: Duration = Duration::from_secs(5);

fn build(_name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(Kafka::new(node, kafka::connect())?))
}

impl Sink for Kafka {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }

    fn run<'a>(
        &'a self,
        inlet: &'a mut Inlet,
        context: SinkContext,
    ) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match inlet.channel_id() {
                Some(channel) => exact::run(self, inlet, context, channel).await,
                None => plain::run(self, inlet, context).await,
            }
        })
    }

    fn promise(&self, durable: bool) -> Promise {
        if durable {
            Promise::new(
                Guarantee::ExactlyOnce,
                "for readers of committed records (isolation.level=read_committed)",
            )
        } else {
            Promise::new(Guarantee::AtLeastOnce, "acked by all in-sync replicas")
        }
    }

    fn probe(&self) -> Option<Result<String, Failure>> {
        let brokers = self.config.brokers.join(", ");
        let failed = |error: kafka::Error| Failure::peer(format!("{brokers}: {error}"));
        let reached = || {
            let options = self.config.producer(usize::MAX);
            let mut producer = self.client.producer(options).map_err(failed)?;
            let cluster = producer.cluster(PROBE).map_err(failed)?;
            Ok(format!("connected to {brokers} (cluster {cluster})"))
        };
        Some(reached())
    }
}
