//! The requests (orders) that the sink's thread waits for: identity, transactions, the sink's position (a text that is committed
//! with the records), and requests about topics.
//!
//! Sources: KIP-98 (transactions), KIP-447 (positions of a group without members). Every request is retried until it is answered. The
//! caller decides how long to wait for an order. The next order of the caller replaces an order that is still running.

use std::{rc::Rc, sync::mpsc::SyncSender, time::Duration};

use tokio::time::sleep;

use super::{
    codes::{self, Todo},
    connection::Fault,
    lookups::METADATA_WAIT,
    messages::{
        AddOffsetsToTxn, Coordinates, CreateTopic, DescribeTopic, EndTxn, Identity, InitProducerId,
        Metadata, OffsetFetch, TxnOffsetCommit,
    },
    session::Session,
};
use crate::{Error, Kind, Store};

/// The interval at which a task checks whether requests are still in flight.
const STEP: Duration = Duration::from_millis(5);
/// How long a broker may take to create a topic, in milliseconds.
const MAKING: i32 = 30_000;

/// A request of the sink's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Init,
    Committed {
        store: Store,
        stable: bool,
    },
    Commit {
        store: Store,
        text: String,
        number: i64,
    },
    Abort,
    RecordMax(String),
    MakeTopic(String),
    Cluster,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Text(Option<String>),
    Size(usize),
}

pub(super) struct Order {
    pub(super) what: What,
    pub(super) answer: SyncSender<Result<Answer, Error>>,
}

impl Order {
    pub(super) async fn run(self, session: Rc<Session>) {
        let transactions = Transactions { session };
        let done = |done: Result<(), Error>| done.map(|()| Answer::Done);
        let answer = match &self.what {
            What::Init => done(transactions.init().await),
            What::Committed { store, stable } => {
                let committed = transactions.committed(store, *stable).await;
                committed.map(Answer::Text)
            }
            What::Commit {
                store,
                text,
                number,
            } => done(transactions.commit(store, text, *number).await),
            What::Abort => done(transactions.abort().await),
            What::RecordMax(topic) => transactions.record_max(topic).await.map(Answer::Size),
            What::Cluster => Ok(Answer::Text(transactions.cluster_id().await)),
            What::MakeTopic(topic) => done(transactions.make_topic(topic).await),
        };
        // The sink may have stopped waiting.
        drop(self.answer.try_send(answer));
    }
}

/// Runs orders.
struct Transactions {
    session: Rc<Session>,
}

impl Transactions {
    fn transactional(&self) -> Result<&str, Error> {
        let id = self.session.options.transactional_id.as_deref();
        id.ok_or_else(|| {
            Error::new(
                Kind::Fatal,
                "a producer without a transactional.id has no transactions",
            )
        })
    }

    fn identified(&self) -> Result<(&str, Identity), Error> {
        let none = || Error::new(Kind::Fatal, "the producer has no identity yet");
        Ok((
            self.transactional()?,
            self.session.identity.get().ok_or_else(none)?,
        ))
    }

    async fn init(&self) -> Result<(), Error> {
        let id = self.transactional()?;
        let timeout = self.session.options.transaction_timeout.as_millis();
        let request = InitProducerId {
            transactional_id: Some(id),
            timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
        };
        let asked = self.session.cluster.ask_coordinator(
            Coordinates::Transaction,
            id,
            &request,
            |answer| answer.0,
        );
        let (code, identity) = asked.await?;
        check(code, "cannot begin with transactions", None)?;
        let mut state = self.session.shared.lock();
        state.renumber();
        state.begin();
        drop(state);
        self.session.identity.set(Some(identity));
        self.session.shared.work.notify_one();
        Ok(())
    }

    async fn committed(&self, store: &Store, stable: bool) -> Result<Option<String>, Error> {
        let (group, topic) = (&store.group, &store.topic);
        let request = OffsetFetch {
            group,
            topic,
            stable,
        };
        // If the topic does not exist, there is no position; this is not an error.
        let code = |code: i16| {
            if code == codes::UNKNOWN_TOPIC_OR_PARTITION {
                codes::NONE
            } else {
                code
            }
        };
        let asked =
            self.session
                .cluster
                .ask_coordinator(Coordinates::Group, group, &request, |found| {
                    code(found.error)
                });
        let found = asked.await?;
        check(code(found.error), "cannot read the position", None)?;
        Ok((found.offset >= 0).then_some(found.metadata))
    }

    async fn commit(&self, store: &Store, text: &str, number: i64) -> Result<(), Error> {
        let (id, identity) = self.identified()?;
        let (group, topic) = (&store.group, &store.topic);
        let (mut registered, spoiled) = {
            let state = self.session.shared.lock();
            (state.registered, state.spoiled)
        };
        if spoiled {
            let text = "a record of the transaction could not be written";
            return Err(Error::new(Kind::Abort, text));
        }
        if !registered.group {
            let request = AddOffsetsToTxn {
                transactional_id: id,
                identity,
                group,
            };
            let asked = self.session.cluster.ask_coordinator(
                Coordinates::Transaction,
                id,
                &request,
                |code| *code,
            );
            check(
                asked.await?,
                "cannot add the position to the transaction",
                None,
            )?;
            registered.group = true;
            self.session.shared.lock().registered.group = true;
        }
        if !registered.position {
            let request = TxnOffsetCommit {
                transactional_id: id,
                identity,
                group,
                topic,
                offset: number,
                metadata: text,
            };
            let code =
                |answer: &Vec<(String, i32, i16)>| answer.first().map_or(codes::NONE, |one| one.2);
            let asked =
                self.session
                    .cluster
                    .ask_coordinator(Coordinates::Group, group, &request, code);
            check(code(&asked.await?), "cannot write the position", None)?;
            self.session.shared.lock().registered.position = true;
        }
        self.end(id, identity, true).await
    }

    async fn abort(&self) -> Result<(), Error> {
        let (id, identity) = self.identified()?;
        // Waits until no records are in flight, because records must not arrive after the end of the transaction.
        while !self.session.is_quiet() {
            sleep(STEP).await;
        }
        let registered = self.session.shared.lock().registered;
        if !registered.partitions && !registered.group {
            return Ok(());
        }
        self.end(id, identity, false).await
    }

    async fn end(&self, id: &str, identity: Identity, commit: bool) -> Result<(), Error> {
        let request = EndTxn {
            transactional_id: id,
            identity,
            commit,
        };
        let asked =
            self.session
                .cluster
                .ask_coordinator(Coordinates::Transaction, id, &request, |code| *code);
        check(asked.await?, "cannot end the transaction", None)?;
        self.session.shared.lock().begin();
        Ok(())
    }

    async fn record_max(&self, topic: &str) -> Result<usize, Error> {
        let request = DescribeTopic {
            name: topic,
            setting: "max.message.bytes",
        };
        let (code, text, value) = self.session.cluster.ask_any(&request).await;
        if code != codes::NONE {
            // The caller may ask again. Another broker may know better.
            self.session.cluster.turn();
        }
        check(code, &format!("topic {topic}"), text.as_deref())?;
        value.and_then(|value| value.parse().ok()).ok_or_else(|| {
            let text = format!("topic {topic}: the broker does not report its max.message.bytes");
            Error::new(Kind::Refused, text)
        })
    }

    async fn cluster_id(&self) -> Option<String> {
        self.session
            .cluster
            .ask_any(&Metadata {
                topics: &[],
                creates: false,
            })
            .await
            .id
    }

    async fn make_topic(&self, topic: &str) -> Result<(), Error> {
        let cluster = &self.session.cluster;
        let request = CreateTopic {
            name: topic,
            timeout_ms: MAKING,
        };
        let mut refusals = 0;
        loop {
            // Most producers may not create topics, and with ZooKeeper only the controller can. So
            // creating is the last resort.
            if self.has_topic(topic).await? {
                return Ok(());
            }
            let (code, text) = cluster.ask_controller(&request).await;
            if matches!(code, codes::NONE | codes::TOPIC_ALREADY_EXISTS) {
                return Ok(());
            }
            let what = format!("cannot create the topic {topic}");
            let error = codes::error(code, &what, text.as_deref());
            // Before the topic is known everywhere, a broker may not know it although it exists. So
            // each is asked once.
            refusals += usize::from(matches!(codes::todo(code), Todo::Fail(_)));
            if refusals >= cluster.brokers().max(1) {
                return Err(error);
            }
            cluster.complain(&Fault(format!("{error}; retrying")));
            cluster.turn();
            sleep(METADATA_WAIT).await;
        }
    }

    /// Whether a broker knows the topic. Learns the controller from the same answer.
    async fn has_topic(&self, topic: &str) -> Result<bool, Error> {
        let request = Metadata {
            topics: &[topic.to_owned()],
            creates: false,
        };
        let found = self.session.cluster.ask_any(&request).await;
        self.session.cluster.learn(found.brokers, found.controller);
        let code = found.topics.first().map(|topic| topic.error);
        match code.map(|code| (code, codes::todo(code))) {
            None | Some((codes::UNKNOWN_TOPIC_OR_PARTITION, _)) => Ok(false),
            Some((code, Todo::Fail(kind))) if code != codes::NONE && kind != Kind::Again => {
                Err(codes::error(code, &format!("topic {topic}"), None))
            }
            // It exists, even if it has no leader at the moment.
            Some(_) => Ok(true),
        }
    }
}

fn check(code: i16, what: &str, text: Option<&str>) -> Result<(), Error> {
    if code == codes::NONE {
        return Ok(());
    }
    Err(codes::error(code, what, text))
}
