//! The checked sink: its options, its client, and the learned limits of topics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millstream_config::Node;
use millstream_kafka::{Connect, Error};
use millstream_pipeline::node::Checked;

use super::{
    link::{Halt, Link},
    options::Config,
    topics::Limits,
};

/// The checked sink.
pub(super) struct Kafka {
    pub(super) config: Config,
    pub(super) client: Arc<dyn Connect>,
    /// Learned limits of topics. They outlive a failed run.
    limits: Mutex<Limits>,
}

impl Kafka {
    /// Reads and checks the options.
    pub(super) fn new(node: &Node, client: Arc<dyn Connect>) -> Checked<Self> {
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

    pub(super) fn limits(&self) -> MutexGuard<'_, Limits> {
        // A panic cannot leave the limits half changed: no code that holds the lock panics.
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.forget_old();
        limits
    }

    /// Asks for the largest batch that a topic accepts, after the topic has refused one as too large.
    pub(super) fn learn(
        &self,
        link: &mut Link,
        topic: &str,
        patience: Duration,
    ) -> Result<(), Halt> {
        let asked = link.patiently(patience, |producer, _| producer.record_max(topic, patience));
        let max = asked.map_err(|halt| match halt {
            Halt::Failed(error) => Halt::Failed(Error::new(
                error.kind,
                format!(
                    "the topic {topic} refuses a batch as too large, and its limit cannot be asked for ({error}): allow \
                     DescribeConfigs, or set `record_max` to the topic's max.message.bytes"
                ),
            )),
            stopped => stopped,
        })?;
        self.limits().learn(topic, max);
        Ok(())
    }
}
