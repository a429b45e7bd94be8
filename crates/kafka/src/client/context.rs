//! Events that librdkafka reports in callbacks, stored until the consumer fetches them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};

use crate::Partition;

/// Receives the events of a client.
#[derive(Default)]
pub(super) struct Context(Mutex<Heard>);

#[derive(Default)]
pub(super) struct Heard {
    /// The client's last complaint.
    pub(super) complaint: Option<String>,
    /// Decisions of the group: true = assigned, false = revoked.
    pub(super) rebalances: Vec<(bool, Vec<Partition>)>,
    /// Whether the consumer is leaving the group. If so, decisions of the group are answered immediately, because librdkafka waits for the
    /// answers before it ends.
    pub(super) leaving: bool,
}

impl Context {
    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        // No code panics in the middle of a change, so the state is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
        // Messages below the level `warning` are reported elsewhere or do not help an operator.
        if (level as i32) <= RDKafkaLogLevel::Warning as i32 {
            self.heard().complaint = Some(message.to_owned());
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if code != Some(RDKafkaErrorCode::PartitionEOF) {
            self.heard().complaint = Some(reason.to_owned());
        }
    }
}

impl ConsumerContext for Context {
    /// Only stores the decision. The source polls it, commits its offsets, and then answers the decision.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let dealt = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.heard().leaving {
            agree(consumer, dealt, partitions);
            return;
        }
        let all = partitions.elements();
        let all = all.iter().map(|element| Partition {
            topic: element.topic().to_owned(),
            number: element.partition(),
        });
        self.heard().rebalances.push((dealt, all.collect()));
    }

    fn commit_callback(&self, result: Result<(), KafkaError>, _: &TopicPartitionList) {
        if let Err(error) = result
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            self.heard().complaint = Some(format!("cannot commit offsets: {error}"));
        }
    }
}

/// Answers a decision of the group while the consumer is leaving: declines assigned partitions and releases revoked ones.
pub(super) fn agree(
    consumer: &BaseConsumer<Context>,
    dealt: bool,
    partitions: &TopicPartitionList,
) {
    let cooperative = matches!(
        consumer.rebalance_protocol(),
        RebalanceProtocol::Cooperative
    );
    // A failure means that there is nothing to release. In this case `unassign` answers the decision.
    let agreed = match (cooperative, dealt) {
        (true, true) => consumer.incremental_assign(&TopicPartitionList::new()),
        (true, false) => consumer.incremental_unassign(partitions),
        (false, _) => consumer.unassign(),
    };
    if agreed.is_err() {
        drop(consumer.unassign());
    }
}
