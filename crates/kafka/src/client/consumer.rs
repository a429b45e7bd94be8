//! A consumer of librdkafka.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _, RebalanceProtocol},
    error::{KafkaError, RDKafkaErrorCode},
    message::{BorrowedMessage, Headers},
};

use super::{
    config,
    context::{Context, agree},
    is_passing, told, unfit,
};
use crate::{Consumer, Error, Incoming, Kind, Partition, Polled, Settings, Taken, Topics};

pub(crate) struct Librdkafka {
    consumer: BaseConsumer<Context>,
    settings: Settings,
    /// Whether a group assigns the partitions.
    in_group: bool,
    /// The assigned partitions, each with the offset at which its reading began.
    assigned: BTreeMap<Partition, u64>,
}

impl Librdkafka {
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let consumer = config(settings).create_with_context(Context::default());
        Ok(Self {
            consumer: consumer.map_err(|error| unfit(&error))?,
            settings: settings.clone(),
            in_group: false,
            assigned: BTreeMap::new(),
        })
    }

    /// Returns the oldest decision of the group (partitions are assigned or revoked) that was not passed to the source yet.
    fn rebalance(&self) -> Option<Polled> {
        let mut heard = self.consumer.context().heard();
        if heard.rebalances.is_empty() {
            return None;
        }
        let (dealt, partitions) = heard.rebalances.remove(0);
        drop(heard);
        Some(if dealt {
            Polled::Assigned(partitions)
        } else {
            let lost = self.consumer.assignment_lost();
            Polled::Revoked { partitions, lost }
        })
    }

    /// The assigned partitions, each with the offset of its next record.
    fn positions(&self) -> Result<Vec<(Partition, u64)>, Error> {
        let positions = self.consumer.position().map_err(|error| told(&error))?;
        let all = self.assigned.iter();
        let at = |(partition, begin): (&Partition, &u64)| {
            let found = positions.find_partition(&partition.topic, partition.number);
            let next = found.and_then(|element| known(element.offset()));
            (partition.clone(), next.unwrap_or(*begin))
        };
        Ok(all.map(at).collect())
    }

    /// Whether the group uses the cooperative protocol, in which a rebalance revokes only the partitions that move. In the eager protocol,
    /// it revokes all partitions.
    fn is_cooperative(&self) -> bool {
        matches!(
            self.consumer.rebalance_protocol(),
            RebalanceProtocol::Cooperative
        )
    }
}

impl Drop for Librdkafka {
    /// Answers all pending decisions of the group, because librdkafka ends only when they are answered.
    fn drop(&mut self) {
        let pending = {
            let mut heard = self.consumer.context().heard();
            heard.leaving = true;
            std::mem::take(&mut heard.rebalances)
        };
        for (dealt, partitions) in pending {
            agree(&self.consumer, dealt, &list(&partitions));
        }
    }
}

fn list<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(&partition.topic, partition.number);
    }
    list
}

fn list_at(offsets: &[(Partition, u64)]) -> Result<TopicPartitionList, Error> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        let offset = Offset::Offset(i64::try_from(*offset).unwrap_or(i64::MAX));
        list.add_partition_offset(&partition.topic, partition.number, offset)
            .map_err(|error| told(&error))?;
    }
    Ok(list)
}

fn known(offset: Offset) -> Option<u64> {
    match offset {
        Offset::Offset(offset) => u64::try_from(offset).ok(),
        _ => None,
    }
}

impl Consumer for Librdkafka {
    fn subscribe(&mut self, topics: &[String]) -> Result<(), Error> {
        self.in_group = true;
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let joined = self.consumer.subscribe(&topics);
        joined.map_err(|error| told(&error))
    }

    fn partitions(
        &mut self,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<Partition>, Error> {
        let metadata = self.consumer.fetch_metadata(None, timeout);
        let metadata = metadata.map_err(|error| told(&error))?;
        let wanted = Topics::new(topics)?;
        let mut all = Vec::new();
        for topic in metadata.topics() {
            if topic.error().is_none() && wanted.takes(topic.name()) {
                all.extend(topic.partitions().iter().map(|partition| Partition {
                    topic: topic.name().to_owned(),
                    number: partition.id(),
                }));
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    fn cluster(&mut self, timeout: Duration) -> Result<String, Error> {
        let cluster = self.consumer.client().fetch_cluster_id(timeout);
        cluster.ok_or_else(|| Error::new(Kind::Again, "no broker answers"))
    }

    fn committed(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<u64>>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.consumer.committed_offsets(list(partitions), timeout);
        let found = found.map_err(|error| told(&error))?;
        let offset = |partition: &Partition| {
            known(
                found
                    .find_partition(&partition.topic, partition.number)?
                    .offset(),
            )
        };
        Ok(partitions.iter().map(offset).collect())
    }

    fn without_leader(
        &mut self,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<BTreeSet<Partition>, Error> {
        let topics: BTreeSet<&str> = partitions.iter().map(|one| one.topic.as_str()).collect();
        let only = topics.first().filter(|_| topics.len() == 1);
        let metadata = self.consumer.fetch_metadata(only.copied(), timeout);
        let metadata = metadata.map_err(|error| told(&error))?;
        let mut all: BTreeSet<Partition> = partitions.iter().cloned().collect();
        for topic in metadata.topics() {
            let led = topic.partitions().iter().filter(|one| one.leader() >= 0);
            for partition in led {
                all.remove(&Partition {
                    topic: topic.name().to_owned(),
                    number: partition.id(),
                });
            }
        }
        Ok(all)
    }

    fn bounds(&mut self, partition: &Partition, timeout: Duration) -> Result<(u64, u64), Error> {
        let bounds = self
            .consumer
            .fetch_watermarks(&partition.topic, partition.number, timeout);
        let (low, high) = bounds.map_err(|error| told(&error))?;
        Ok((
            u64::try_from(low).unwrap_or(0),
            u64::try_from(high).unwrap_or(0),
        ))
    }

    fn end(&mut self, partition: &Partition, timeout: Duration) -> Result<u64, Error> {
        // The end offset that librdkafka requests depends on the isolation level of the client. So a second client with `read_uncommitted`
        // requests it.
        let mut settings = self.settings.clone();
        settings.set("isolation.level", "read_uncommitted");
        let (_, end) = Self::new(&settings)?.bounds(partition, timeout)?;
        Ok(end)
    }

    fn offset_at(
        &mut self,
        partition: &Partition,
        time: i64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&partition.topic, partition.number, Offset::Offset(time))
            .map_err(|error| told(&error))?;
        let found = self.consumer.offsets_for_times(list, timeout);
        let found = found.map_err(|error| told(&error))?;
        let offset = found
            .find_partition(&partition.topic, partition.number)
            .and_then(|element| known(element.offset()));
        match offset {
            Some(offset) => Ok(offset),
            None => Ok(self.bounds(partition, timeout)?.1),
        }
    }

    fn assign(&mut self, partitions: &[(Partition, u64)]) -> Result<(), Error> {
        let is_eager = self.in_group && !self.is_cooperative();
        let assigned = if is_eager {
            // This protocol knows only whole assignments.
            let mut all = self.positions()?;
            all.extend_from_slice(partitions);
            self.consumer.assign(&list_at(&all)?)
        } else if !self.in_group && self.assigned.is_empty() {
            self.consumer.assign(&list_at(partitions)?)
        } else {
            self.consumer.incremental_assign(&list_at(partitions)?)
        };
        assigned.map_err(|error| told(&error))?;
        self.assigned.extend(partitions.iter().cloned());
        Ok(())
    }

    fn unassign(&mut self, partitions: &[Partition]) -> Result<(), Error> {
        let given_up = if self.is_cooperative() {
            // librdkafka refuses the whole list if one partition was never assigned here.
            let own = partitions
                .iter()
                .filter(|partition| self.assigned.contains_key(partition));
            self.consumer.incremental_unassign(&list(own))
        } else {
            self.consumer.unassign()
        };
        given_up.map_err(|error| told(&error))?;
        for partition in partitions {
            self.assigned.remove(partition);
        }
        Ok(())
    }

    fn poll(
        &mut self,
        wait: Duration,
        take: &mut dyn FnMut(Incoming<'_>) -> Taken,
    ) -> Result<Polled, Error> {
        let mut wait = wait;
        loop {
            let polled = self.consumer.poll(wait);
            if let Some(decided) = self.rebalance() {
                // A record that arrives together with a decision belongs to a partition that was assigned earlier, so the record is
                // delivered before the decision.
                if let Some(Ok(message)) = &polled {
                    give(message, take);
                }
                return Ok(decided);
            }
            match polled {
                None => return Ok(Polled::Records),
                Some(Ok(message)) => {
                    if give(&message, take) == Taken::Enough {
                        return Ok(Polled::Records);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(number))) => {
                    return Ok(Polled::End(number));
                }
                Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown))) => {
                    return Ok(Polled::Unreachable);
                }
                // No topic matches a subscribed name or pattern, or access to a topic is denied. librdkafka reads the other topics, and
                // later also the missing or denied topic, as soon as that topic exists or access is allowed. `complaint` returns the
                // error text with the name of the topic.
                Some(Err(KafkaError::MessageConsumption(
                    RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::TopicAuthorizationFailed,
                ))) => {}
                Some(Err(KafkaError::MessageConsumption(code))) if is_passing(code) => {
                    let mut heard = self.consumer.context().heard();
                    heard.complaint.get_or_insert_with(|| code.to_string());
                }
                Some(Err(error)) => {
                    let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
                    let mut error = told(&error);
                    if fatal {
                        error.kind = Kind::Fatal;
                    }
                    return Err(error);
                }
            }
            wait = Duration::ZERO;
        }
    }

    fn commit(&mut self, offsets: &[(Partition, u64)], wait: bool) -> Result<(), Error> {
        if offsets.is_empty() {
            return Ok(());
        }
        let mode = if wait {
            CommitMode::Sync
        } else {
            CommitMode::Async
        };
        match self.consumer.commit(&list_at(offsets)?, mode) {
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NoOffset) => Ok(()),
            other => other.map_err(|error| told(&error)),
        }
    }

    fn pause(&mut self, paused: bool) -> Result<(), Error> {
        let assigned = list(self.assigned.keys());
        let changed = if paused {
            self.consumer.pause(&assigned)
        } else {
            self.consumer.resume(&assigned)
        };
        changed.map_err(|error| told(&error))
    }

    fn close(&mut self) {
        // Closing revokes all partitions. With `leaving`, `Context` answers these revocations immediately.
        self.consumer.context().heard().leaving = true;
        self.consumer.unsubscribe();
    }

    fn complaint(&mut self) -> Option<String> {
        self.consumer.context().heard().complaint.take()
    }
}

/// Passes a record to the source.
fn give(message: &BorrowedMessage<'_>, take: &mut dyn FnMut(Incoming<'_>) -> Taken) -> Taken {
    let headers: Vec<(&str, Option<&[u8]>)> = match message.headers() {
        Some(headers) => headers
            .iter()
            .map(|header| (header.key, header.value))
            .collect(),
        None => Vec::new(),
    };
    take(Incoming {
        topic: message.topic(),
        partition: message.partition(),
        offset: u64::try_from(message.offset()).unwrap_or(0),
        timestamp: message.timestamp().to_millis(),
        key: message.key(),
        value: message.payload(),
        headers: &headers,
    })
}
