//! The checked sink: its options, its client, and the learned limits of topics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millstream_config::Node;
use millstream_kafka::{Connect, Failed, Kind};
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

    /// Learns from records that their topic has refused as too large. Asks for the topic's limit.
    /// Most producers may not ask (DescribeConfigs): then batches are halved until they fit.
    /// Returns the number and the reason of each record that is too large even alone.
    pub(super) fn learn(
        &self,
        link: &mut Link,
        failed: &[Failed],
        patience: Duration,
    ) -> Result<Vec<(usize, String)>, Halt> {
        let is_large = |failed: &&Failed| failed.error.kind == Kind::TooLarge;
        let Some(first) = failed.iter().find(is_large) else {
            return Ok(Vec::new());
        };
        if !self.limits().untold {
            let topic = first.topic.as_str();
            match link.patiently(patience, |producer, time| producer.record_max(topic, time)) {
                Ok(max) => {
                    self.limits().learn(topic, max);
                    return Ok(Vec::new());
                }
                Err(Halt::Stopped) => return Err(Halt::Stopped),
                Err(Halt::Failed(error)) => {
                    self.limits().untold = true;
                    let text = format_args!(
                        "the topic {topic} refuses a batch as too large, and its limit cannot be asked for ({error}): batches are halved \
                         until it accepts them; to avoid this, allow DescribeConfigs, or set `batch.size` below the topic's \
                         max.message.bytes"
                    );
                    link.context.reporter.warn("too-large", text);
                }
            }
        }
        let mut limits = self.limits();
        if failed.iter().filter(is_large).any(|failed| !failed.alone) {
            let bytes = self.config.producer(limits.batch_max).batch_bytes;
            limits.halve(bytes);
        }
        let alone = failed.iter().filter(is_large).filter(|one| one.alone);
        let reason = |failed: &Failed| {
            let Failed { topic, error, .. } = failed;
            let text = format!(
                "the topic {topic} refuses the record as too large, although it was alone in its batch (max.message.bytes): {error}"
            );
            (failed.number, text)
        };
        Ok(alone.map(reason).collect())
    }
}
