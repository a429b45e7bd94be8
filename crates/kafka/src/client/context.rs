//! What librdkafka says from its own threads: kept until somebody asks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};

use crate::Partition;

/// Hears a client.
#[derive(Default)]
pub(super) struct Context(Mutex<Heard>);

#[derive(Default)]
pub(super) struct Heard {
    /// The last thing that the client complained of.
    pub(super) complaint: Option<String>,
    /// What the group has decided: true = dealt, false = taken away.
    pub(super) rebalances: Vec<(bool, Vec<Partition>)>,
    /// Whether the consumer leaves: what the group decides now is agreed to at once. Its end waits for that.
    pub(super) leaving: bool,
}

impl Context {
    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        // Nothing in here can panic half way, so a poisoned lock is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
        // What is below a warning is said elsewhere, or of no use to an operator.
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
    /// Only notes what was decided: the source answers when it has committed what it must.
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

/// Takes none of what is dealt, and gives back what is taken away.
pub(super) fn agree(
    consumer: &BaseConsumer<Context>,
    dealt: bool,
    partitions: &TopicPartitionList,
) {
    let cooperative = matches!(
        consumer.rebalance_protocol(),
        RebalanceProtocol::Cooperative
    );
    // What fails here fails because there is nothing to give back.
    let agreed = match (cooperative, dealt) {
        (true, true) => consumer.incremental_assign(&TopicPartitionList::new()),
        (true, false) => consumer.incremental_unassign(partitions),
        (false, _) => consumer.unassign(),
    };
    if agreed.is_err() {
        drop(consumer.unassign());
    }
}
