//! A producer of librdkafka.
//!
//! Four traps are stepped around. The client's own waiting (`flush`, and `commit_transaction` with records in flight) goes in
//! steps of 100 ms, so in-flight records are waited for by `millstream_sys::kafka` before anything else. And reports of
//! success cost more than the records are worth: only failures are reported, and nothing in flight means all is well. And the
//! binding names a topic by its text for every record, which is copied and looked up under a lock: `millstream_sys::kafka`
//! has it looked up once. The fourth is the binding's own waiting ([`Native::look`]).

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use millstream_sys::kafka::{Outbound, Sender, Topic};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::RDKafkaErrorCode,
    producer::{Producer as _, PurgeConfig},
};

use super::{admin, config, context::Context, kind, told, unfit};
use crate::{Error, Failed, Kind, Outgoing, Producer, Sent, Settings, Store};

/// Between two looks for failures while something is in flight; the last answer is told at once.
const STEP: Duration = Duration::from_millis(10);

pub(super) struct Native {
    settings: Settings,
    sender: Sender<Context>,
    /// Every topic that was written to; a name that the client does not take is None.
    topics: HashMap<String, Option<Topic>>,
    /// Knows the groups of positions; joins none. Made when first needed.
    positions: Option<(String, BaseConsumer)>,
    /// Whether the position of this transaction is sent: a commit that is asked for again goes on from there.
    position_sent: bool,
}

impl Native {
    pub(super) fn new(settings: &Settings) -> Result<Self, Error> {
        let mut config = config(settings);
        config.set("delivery.report.only.error", "true");
        let producer = config.create_with_context(Context::default());
        let producer = producer.map_err(|error| unfit(&error))?;
        Ok(Self {
            sender: Sender::new(producer),
            topics: HashMap::new(),
            settings: settings.clone(),
            positions: None,
            position_sent: false,
        })
    }

    /// The consumer that stands for a group of positions. Its metadata is all that is wanted of it.
    fn positions(&mut self, group: &str) -> Result<&BaseConsumer, Error> {
        if self.positions.as_ref().is_none_or(|(of, _)| of != group) {
            let mut config = config(&self.settings.access());
            config.set("group.id", group);
            config.set("enable.auto.commit", "false");
            // What a predecessor has left open is not waited for: `init` ends it, and it is asked after that.
            config.set("isolation.level", "read_uncommitted");
            let consumer: Result<BaseConsumer, _> = config.create();
            let consumer = consumer.map_err(|error| unfit(&error))?;
            self.positions = Some((group.to_owned(), consumer));
        }
        let found = self.positions.as_ref().map(|(_, consumer)| consumer);
        found.ok_or_else(|| Error::new(Kind::Fatal, "no consumer for positions"))
    }

    /// Adds the position to the transaction.
    fn send_position(
        &mut self,
        store: &Store,
        text: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut list = place(store);
        list.set_all_offsets(Offset::Offset(number))
            .map_err(|error| told(&error))?;
        for element in &mut list.elements() {
            element.set_metadata(text);
        }
        let consumer = self.positions(&store.group)?;
        let group = consumer
            .group_metadata()
            .ok_or_else(|| Error::new(Kind::Fatal, "the client knows no group"))?;
        let offsets = self
            .sender
            .producer()
            .send_offsets_to_transaction(&list, &group, timeout);
        offsets.map_err(|error| told(&error))
    }

    /// The client's topic of this name.
    fn topic(&mut self, name: &str) -> Option<Topic> {
        if let Some(known) = self.topics.get(name) {
            return *known;
        }
        let topic = self.sender.topic(name);
        self.topics.insert(name.to_owned(), topic);
        topic
    }

    /// Hears what the client has to tell, and sleeps. The binding's own waiting rounds what is left down to milliseconds, and spends the
    /// last one asking again and again.
    fn look(&self, wait: Duration) {
        self.sender.producer().poll(Duration::ZERO);
        if !wait.is_zero() {
            thread::sleep(wait);
        }
    }

    fn drain(&self, timeout: Duration) -> Result<(), Error> {
        let until = Instant::now() + timeout;
        while self.sender.producer().in_flight_count() > 0 {
            if Instant::now() >= until {
                return Err(Error::new(Kind::Again, "records are still in flight"));
            }
            self.sender.flush(STEP);
            self.look(Duration::ZERO);
        }
        Ok(())
    }
}

fn place(store: &Store) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(&store.topic, 0);
    list
}

impl Producer for Native {
    fn init(&mut self, timeout: Duration) -> Result<(), Error> {
        let begun = self.sender.producer().init_transactions(timeout);
        begun.map_err(|error| told(&error))
    }

    fn committed(&mut self, store: &Store, timeout: Duration) -> Result<Option<String>, Error> {
        let consumer = self.positions(&store.group)?;
        let list = consumer.committed_offsets(place(store), timeout);
        let list = list.map_err(|error| told(&error))?;
        let element = list.elements().into_iter().next();
        Ok(element.and_then(|element| match element.offset() {
            Offset::Offset(_) => Some(element.metadata().to_owned()),
            _ => None,
        }))
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.position_sent = false;
        let begun = self.sender.producer().begin_transaction();
        begun.map_err(|error| told(&error))
    }

    fn send(&mut self, outgoing: &Outgoing, from: usize) -> Sent {
        let (mut taken, mut last) = (0, (usize::MAX, None));
        for (index, record) in outgoing.records.iter().enumerate().skip(from) {
            if last.0 != record.topic {
                let name = outgoing.topics.get(record.topic);
                last = (record.topic, name.and_then(|name| self.topic(name)));
            }
            let Some(topic) = last.1 else {
                let refused =
                    Error::new(Kind::Refused, "the client does not take the topic's name");
                return Sent {
                    taken,
                    refused: Some(refused),
                };
            };
            let outbound = Outbound {
                topic,
                key: record.key.as_ref().map(|key| outgoing.slice(key)),
                value: outgoing.slice(&record.value),
                timestamp: record.timestamp,
                number: record.number,
            };
            let values = outgoing.headers_of(index).iter();
            let headers = values
                .zip(&outgoing.header_names)
                .map(|(value, name)| (name.as_str(), outgoing.slice(value)));
            match self.sender.send(outbound, headers) {
                Ok(()) => taken += 1,
                Err(code) => {
                    let refused = refusal(code);
                    return Sent { taken, refused };
                }
            }
        }
        Sent {
            taken,
            refused: None,
        }
    }

    fn serve(&mut self, wait: Duration) {
        self.look(wait);
    }

    fn flush(&mut self, wait: Duration) {
        self.sender.flush(wait);
        self.look(Duration::ZERO);
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.sender.producer().in_flight_count()).unwrap_or(0)
    }

    fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.sender.producer().context().heard().failed)
    }

    fn commit(
        &mut self,
        store: &Store,
        text: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.drain(timeout)?;
        if !self.position_sent {
            self.send_position(store, text, number, timeout)?;
            self.position_sent = true;
        }
        let committed = self.sender.producer().commit_transaction(timeout);
        committed.map_err(|error| told(&error))
    }

    fn abort(&mut self, timeout: Duration) -> Result<(), Error> {
        let aborted = self.sender.producer().abort_transaction(timeout);
        aborted.map_err(|error| told(&error))?;
        self.drain(timeout)
    }

    fn purge(&mut self) {
        let all = PurgeConfig::default().queue().inflight();
        self.sender.producer().purge(all);
    }

    fn record_max(&mut self, topic: &str, timeout: Duration) -> Result<usize, Error> {
        admin::record_max(&self.settings, topic, timeout)
    }

    fn make_topic(&mut self, topic: &str, timeout: Duration) -> Result<(), Error> {
        admin::make_topic(&self.settings, topic, timeout)
    }

    fn complaint(&mut self) -> Option<String> {
        self.sender.producer().context().heard().complaint.take()
    }
}

/// Why a record is not taken; None: the queue is full.
fn refusal(code: RDKafkaErrorCode) -> Option<Error> {
    if code == RDKafkaErrorCode::QueueFull {
        return None;
    }
    let sorted = match kind(code) {
        // What is wrong with the state of the transaction is no fault of the record.
        Kind::Again => Kind::Abort,
        sorted => sorted,
    };
    Some(Error::new(sorted, format!("cannot send: {code}")))
}
