//! The sink `kafka`: records to topics, exactly once behind a disk channel.
//!
//! `read -> decode -> send -> keep -> take -> process -> encode -> [write] -> settle`
//!
//! Where to look: `shape` makes records of batches (`topics`, `connect`), `exact` writes them in transactions with the
//! position (`session`, `position`), `plain` without, behind memory; `link` is what both do with a
//! producer, `verdict` tells the records that brokers refuse for good.
//!
//! It promises: behind a disk channel readers of committed records see every record once, whatever is killed; behind memory
//! a batch is settled when all in-sync replicas have its records. What Kafka refuses for good leaves by `.rejected`.

mod connect;
mod exact;
mod given_up;
mod link;
mod options;
mod plain;
mod position;
mod session;
mod shape;
#[cfg(test)]
mod tests;
mod topics;
mod verdict;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millstream_config::Node;
use millstream_kafka as kafka;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{Build, Checked, Component, LocalFuture, Placement, Sink, SinkContext},
    promise::{Guarantee, Promise},
};

use link::{Halt, Link};
use options::Config;
use topics::Limits;

/// The entry in the list of sinks.
pub const COMPONENT: Component = Component {
    name: "kafka",
    summary: "Writes records to Kafka, exactly once behind a disk channel.",
    readme: include_str!("README.md"),
    example: include_str!("example.yaml"),
    schema: || schemars::schema_for!(Config),
    build: Build::Sink(build),
};

/// How long `check --connect` waits for a broker.
const PROBE: Duration = Duration::from_secs(5);

/// The checked sink.
struct Kafka {
    config: Config,
    client: Arc<dyn kafka::Connect>,
    /// What topics have refused as too large; it outlives a failure.
    limits: Mutex<Limits>,
}

fn build(_name: &str, node: &Node) -> Checked<Arc<dyn Sink>> {
    Ok(Arc::new(Kafka::new(node, kafka::connect())?))
}

impl Kafka {
    fn new(node: &Node, client: Arc<dyn kafka::Connect>) -> Checked<Self> {
        let config: Config = node.read()?;
        let problems = config.problems(node);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            config,
            client,
            limits: Mutex::default(),
        })
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks what a topic takes that has refused something as too large.
    fn learn(&self, link: &mut Link, topic: &str, patience: Duration) -> Result<(), Halt> {
        let asked = link.patiently(patience, |producer, _| producer.record_max(topic, patience));
        let max = asked.map_err(|halt| match halt {
            Halt::Failed(error) => Halt::Failed(kafka::Error::new(
                error.kind,
                format!(
                    "the topic {topic} refuses a batch as too large, and what it takes cannot be asked ({error}): allow \
                     DescribeConfigs, or set `record_max` to its max.message.bytes"
                ),
            )),
            stopped => stopped,
        })?;
        self.limits().learn(topic, max);
        Ok(())
    }
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
