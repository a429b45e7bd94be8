//! What the engine asks for when it is not known: who it is, where partitions are, whether they belong to the transaction.

use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    codes::{self, Todo},
    engine::{Engine, METADATA_WAIT, number},
    messages::{AddPartitionsToTxn, Coordinates, InitProducerId, Metadata, TopicMetadata},
    state::{Place, State},
};
use crate::{Error, Kind};

/// How long a topic may be said not to be there before its records come back: one that was just made is not known everywhere.
const PROPAGATION: Duration = Duration::from_secs(30);
/// How long that is nothing to speak of.
const NOTICE: Duration = Duration::from_secs(2);

impl Engine {
    /// Asks for an identity, without transactions.
    pub(super) async fn identify(self: Rc<Self>) {
        let request = InitProducerId {
            transactional_id: None,
            timeout_ms: i32::MAX,
        };
        loop {
            let (code, identity) = self.cluster.ask_any(&request).await;
            if code == codes::NONE {
                self.identity.set(Some(identity));
                self.identifying.set(false);
                self.shared.work.notify_one();
                return;
            }
            if let Todo::Fail(_) = codes::todo(code) {
                let error = codes::error(code, "no identity for an idempotent producer", None);
                self.shared.lock().take_back(None, &error);
                self.shared.settled.notify_all();
            }
            sleep(METADATA_WAIT).await;
        }
    }

    /// Asks for the partitions of the wanted topics.
    pub(super) async fn ask_metadata(self: Rc<Self>) {
        let topics: Vec<String> = {
            let (state, wanted) = (self.shared.lock(), self.wanted.borrow());
            let named = wanted.iter().filter_map(|topic| state.topics.get(*topic));
            named.map(|topic| topic.name.as_ref().to_owned()).collect()
        };
        let cluster = self.cluster.ask_any(&Metadata { topics: &topics }).await;
        self.cluster.learn(cluster.brokers, cluster.controller);
        self.wanted.borrow_mut().clear();
        self.learn(cluster.topics);
        self.shared.settled.notify_all();
        // Whatever is still wanted is asked for again, after a moment.
        sleep(METADATA_WAIT).await;
        self.asking.set(false);
        self.shared.work.notify_one();
    }

    fn learn(&self, topics: Vec<TopicMetadata>) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        for found in topics {
            let Some(topic) = state.known(&found.name) else {
                continue;
            };
            match codes::todo(found.error) {
                _ if found.error == codes::NONE => state.learn(topic, &found.partitions, now),
                Todo::Fail(kind) if kind != Kind::Again => {
                    let error = codes::error(found.error, &format!("topic {}", found.name), None);
                    state.take_back(Some(topic), &error);
                }
                _ => miss(&mut state, topic, found.error, now),
            }
        }
    }

    /// Tells the coordinator of partitions.
    pub(super) async fn add_partitions(self: Rc<Self>, places: Vec<Place>) {
        if let (Some(id), Some(identity)) = (&self.options.transactional_id, self.identity.get()) {
            let mut topics = BTreeMap::<String, Vec<i32>>::new();
            {
                let state = self.shared.lock();
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
            let (of, cluster) = (Coordinates::Transaction, &self.cluster);
            let added = cluster.ask_coordinator(of, id, &request, worst).await;
            self.added(added);
        }
        self.adding.set(false);
        self.shared.settled.notify_all();
        self.shared.work.notify_one();
    }

    fn added(&self, added: Result<Vec<(String, i32, i16)>, Error>) {
        let mut state = self.shared.lock();
        let answers = match added {
            Ok(answers) => answers,
            Err(error) => return state.take_back(None, &error),
        };
        for (name, partition, code) in answers {
            let Some(topic) = state.known(&name) else {
                continue;
            };
            if code == codes::NONE {
                state.told.partitions = true;
                let place = usize::try_from(partition).map(|partition| (topic, partition));
                if let Some(partition) = place.ok().and_then(|place| state.partition(place)) {
                    partition.added = true;
                }
            } else {
                let text = format!("the transaction does not take topic {name}");
                state.take_back(Some(topic), &codes::error(code, &text, None));
            }
        }
    }
}

/// A topic is not there, or has no leaders yet.
fn miss(state: &mut State, topic: usize, code: i16, now: Instant) {
    let Some(found) = state.topics.get_mut(topic) else {
        return;
    };
    let since = *found.missing_since.get_or_insert(now);
    if since + NOTICE <= now {
        let said = codes::error(code, &format!("topic {}", found.name), None);
        state.complaint = Some(format!("{said}; it is asked for again"));
    }
    if code == codes::UNKNOWN_TOPIC_OR_PARTITION && since + PROPAGATION <= now {
        found.missing_since = None;
        let text = format!("topic {}: {}", found.name, codes::name(code));
        state.take_back(Some(topic), &Error::new(Kind::Refused, text));
    }
}

/// The code by which a request for several partitions is judged: one that asks for patience before one that does not,
/// that before none.
fn worst(codes: impl Iterator<Item = i16> + Clone) -> i16 {
    let patient = |code: &i16| *code != codes::NONE && !matches!(codes::todo(*code), Todo::Fail(_));
    let bad = |code: &i16| *code != codes::NONE;
    codes
        .clone()
        .find(patient)
        .or_else(|| codes.clone().find(bad))
        .unwrap_or(codes::NONE)
}
