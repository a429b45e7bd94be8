//! The lookups that sending depends on: the producer's identity, the partitions of topics, and the partitions that belong to
//! the transaction. At most one request of each kind is in flight.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    accumulator::{Accumulator, Place},
    codes::{self, Todo},
    messages::{AddPartitionsToTxn, Coordinates, InitProducerId, Metadata, TopicMetadata},
    session::Session,
};
use crate::{Error, Kind};

/// How long a topic or a partition may be unknown before its records fail. After a topic or partition is created, some brokers do not know
/// it for a while.
pub(super) const PROPAGATION: Duration = Duration::from_secs(30);
/// How long a topic or a partition may be unknown before this is reported.
const NOTICE: Duration = Duration::from_secs(2);

/// A request for metadata that follows another one within this time repeats it: the last answer was
/// of no use.
const REPETITION: Duration = Duration::from_secs(5);
/// The pause between two requests for metadata.
pub(super) const METADATA_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Lookups {
    session: Rc<Session>,
    pub(super) is_identifying: Cell<bool>,
    pub(super) is_adding: Cell<bool>,
    pub(super) is_asking_metadata: Cell<bool>,
    /// When metadata was requested last.
    asked_at: Cell<Option<Instant>>,
    /// Topics whose partitions are to be requested.
    pub(super) wanted: RefCell<BTreeSet<usize>>,
}

impl Lookups {
    pub(super) fn new(session: Rc<Session>) -> Self {
        Self {
            session,
            is_identifying: Cell::new(false),
            is_adding: Cell::new(false),
            is_asking_metadata: Cell::new(false),
            asked_at: Cell::new(None),
            wanted: RefCell::default(),
        }
    }

    /// Requests an identity for a producer without transactions.
    pub(super) async fn identify(self: Rc<Self>) {
        let request = InitProducerId {
            transactional_id: None,
            timeout_ms: i32::MAX,
        };
        loop {
            let (code, identity) = self.session.cluster.ask_any(&request).await;
            if code == codes::NONE {
                self.session.identity.set(Some(identity));
                self.is_identifying.set(false);
                self.session.shared.work.notify_one();
                return;
            }
            if let Todo::Fail(_) = codes::todo(code) {
                let error = codes::error(code, "no identity for an idempotent producer", None);
                self.session.shared.lock().take_back(None, &error);
                self.session.shared.progress.notify_all();
            }
            self.session.cluster.turn();
            sleep(METADATA_WAIT).await;
        }
    }

    /// Requests the partitions of the wanted topics.
    pub(super) async fn ask_metadata(self: Rc<Self>) {
        let topics: Vec<String> = {
            let (state, wanted) = (self.session.shared.lock(), self.wanted.borrow());
            let topics = wanted.iter().filter_map(|topic| state.topics.get(*topic));
            let names = topics.map(|topic| topic.name.as_ref().to_owned());
            // A topic that was evicted in the meantime has an empty name.
            names.filter(|name| !name.is_empty()).collect()
        };
        let brokers = &self.session.cluster;
        let last = self.asked_at.replace(Some(Instant::now()));
        if last.is_some_and(|last| last.elapsed() < REPETITION) {
            brokers.turn();
        }
        let request = Metadata {
            topics: &topics,
            creates: true,
        };
        let cluster = brokers.ask_any(&request).await;
        brokers.learn(cluster.brokers, cluster.controller);
        self.wanted.borrow_mut().clear();
        self.learn(cluster.topics);
        self.session.shared.progress.notify_all();
        // If partitions or their leaders are still unknown, `Engine::dispatch` requests the topics again after this pause.
        sleep(METADATA_WAIT).await;
        self.is_asking_metadata.set(false);
        self.session.shared.work.notify_one();
    }

    fn learn(&self, topics: Vec<TopicMetadata>) {
        let now = Instant::now();
        let mut state = self.session.shared.lock();
        for found in topics {
            let Some(topic) = state.known(&found.name) else {
                continue;
            };
            match codes::todo(found.error) {
                _ if found.error == codes::NONE => {
                    state.learn(topic, &found.partitions, now);
                    miss_partitions(&mut state, topic, now);
                }
                Todo::Fail(kind) if kind != Kind::Again => {
                    let error = codes::error(found.error, &format!("topic {}", found.name), None);
                    state.take_back(Some(topic), &error);
                }
                _ => miss(&mut state, topic, found.error, now),
            }
        }
    }

    /// Adds partitions to the transaction.
    pub(super) async fn add_partitions(self: Rc<Self>, places: Vec<Place>) {
        if let (Some(id), Some(identity)) = (
            &self.session.options.transactional_id,
            self.session.identity.get(),
        ) {
            let mut topics = BTreeMap::<String, Vec<i32>>::new();
            {
                let state = self.session.shared.lock();
                for (topic, partition) in &places {
                    if let Some(topic) = state.topics.get(*topic) {
                        let numbers = topics.entry(topic.name.as_ref().to_owned()).or_default();
                        numbers.push(number(*partition));
                    }
                }
            }
            let request = AddPartitionsToTxn {
                transactional_id: id,
                identity,
                topics: topics.into_iter().collect(),
            };
            let worst = |answer: &Vec<(String, i32, i16)>| worst(answer.iter().map(|one| one.2));
            let (of, cluster) = (Coordinates::Transaction, &self.session.cluster);
            let added = cluster.ask_coordinator(of, id, &request, worst).await;
            self.added(added);
        }
        self.is_adding.set(false);
        self.session.shared.progress.notify_all();
        self.session.shared.work.notify_one();
    }

    fn added(&self, added: Result<Vec<(String, i32, i16)>, Error>) {
        let mut state = self.session.shared.lock();
        let answers = match added {
            Ok(answers) => answers,
            Err(error) => return state.take_back(None, &error),
        };
        for (name, partition, code) in answers {
            let Some(topic) = state.known(&name) else {
                continue;
            };
            if code == codes::NONE {
                state.registered.partitions = true;
                let place = usize::try_from(partition).map(|partition| (topic, partition));
                if let Some(partition) = place.ok().and_then(|place| state.partition(place)) {
                    partition.added = true;
                }
            } else {
                let text = format!("the transaction does not accept topic {name}");
                state.take_back(Some(topic), &codes::error(code, &text, None));
            }
        }
    }
}

/// Handles a topic that does not exist or has no leaders yet.
fn miss(state: &mut Accumulator, topic: usize, code: i16, now: Instant) {
    let Some(found) = state.topics.get_mut(topic) else {
        return;
    };
    let since = *found.missing_since.get_or_insert(now);
    if since + NOTICE <= now {
        let said = codes::error(code, &format!("topic {}", found.name), None);
        state.complaint = Some(format!("{said}; retrying"));
    }
    if code == codes::UNKNOWN_TOPIC_OR_PARTITION && since + PROPAGATION <= now {
        found.missing_since = None;
        let text = format!("topic {}: {}", found.name, codes::name(code));
        state.take_back(Some(topic), &Error::new(Kind::Refused, text));
    }
}

/// Handles partitions that do not exist any more, because the topic was recreated with fewer of them. This producer cannot move the records
/// of these partitions to other partitions, because a broker may have written some of the records. A new producer can.
pub(super) fn miss_partitions(state: &mut Accumulator, topic: usize, now: Instant) {
    let Some(found) = state.topics.get(topic) else {
        return;
    };
    let name = found.name.clone();
    let partitions = found.partitions.iter().enumerate();
    let missing: Vec<(usize, Instant)> = partitions
        .filter(|(_, partition)| partition.open.is_some() || !partition.ready.is_empty())
        .filter_map(|(number, partition)| Some((number, partition.missing_since?)))
        .collect();
    for (number, since) in missing {
        let text = format!("topic {name}: partition {number} does not exist any more");
        if since + PROPAGATION <= now {
            state.take_back_partition((topic, number), &Error::new(Kind::Fatal, text));
        } else if since + NOTICE <= now {
            state.complaint = Some(format!("{text}; retrying"));
        }
    }
}

/// The code that decides the outcome of a request for several partitions. It is a retriable error if there is one, otherwise another error
/// if there is one, otherwise [`codes::NONE`].
fn worst(codes: impl Iterator<Item = i16> + Clone) -> i16 {
    let patient = |code: &i16| *code != codes::NONE && !matches!(codes::todo(*code), Todo::Fail(_));
    let bad = |code: &i16| *code != codes::NONE;
    codes
        .clone()
        .find(patient)
        .or_else(|| codes.clone().find(bad))
        .unwrap_or(codes::NONE)
}

/// The number of a partition, which has 32 bits in Kafka.
pub(super) fn number(partition: usize) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
