//! What the sink asks of a producer.

use std::time::Duration;

use crate::{Auth, Compression, Error, Outgoing, Partitioner, Tls};

/// What a producer is told. Secrets are not shown by `Debug`.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// Where the cluster is asked for first: `host`, `host:port`.
    pub brokers: Vec<String>,
    /// What brokers call us in their logs, and count our quota by.
    pub client_id: String,
    /// How connections are encrypted.
    pub tls: Option<Tls>,
    /// Who we are.
    pub auth: Option<Auth>,
    /// With one, everything is written in transactions.
    pub transactional_id: Option<String>,
    /// When the coordinator aborts a transaction that is still open.
    pub transaction_timeout: Duration,
    /// Which partition a key belongs to.
    pub partitioner: Partitioner,
    /// How batches are compressed.
    pub compression: Compression,
    /// Bytes of a record at most: key, value, headers.
    pub record_bytes: usize,
    /// Bytes of a batch at most, before compression; a larger record has one of its own.
    pub batch_bytes: usize,
    /// Records of a batch at most.
    pub batch_records: usize,
    /// How long the first record of a batch waits for more.
    pub linger: Duration,
    /// Bytes of records that are taken and not settled.
    pub buffer_bytes: usize,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            client_id: "millstream".to_owned(),
            tls: None,
            auth: None,
            transactional_id: None,
            transaction_timeout: Duration::from_secs(60),
            partitioner: Partitioner::default(),
            compression: Compression::default(),
            record_bytes: 1_000_000,
            batch_bytes: 1_000_000,
            batch_records: usize::MAX,
            linger: Duration::from_millis(5),
            buffer_bytes: 4 << 20,
        }
    }
}

impl ProducerOptions {
    /// How long a record may wait until it comes back as failed: as long as its transaction lives, else for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let transactional = self.transactional_id.as_ref();
        transactional.map(|_| self.transaction_timeout)
    }
}

/// Writes records to Kafka: idempotent, and in transactions if it has a transactional id. It belongs to one thread, which
/// it may block.
pub trait Producer: Send {
    /// With a transactional id, before anything else: ends what an earlier producer of the same id has left open, and
    /// fences that one off. May be called again after [`Kind::Again`](crate::Kind::Again).
    fn init(&mut self, timeout: Duration) -> Result<(), Error>;

    /// The text that was committed last in `store`; None if there is none. Of a transaction that is still open it sees
    /// nothing.
    fn committed(&mut self, store: &Store, timeout: Duration) -> Result<Option<String>, Error>;

    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Error>;

    /// Takes the records from the one at `from` on, until the queue is full or one is refused at once. Never blocks.
    fn send(&mut self, outgoing: &Outgoing, from: usize) -> Sent;

    /// Lets the client tell what it has learned, and waits so long.
    fn serve(&mut self, wait: Duration);

    /// Has everything sent that was taken, without waiting for more to go with it, and waits until nothing is in flight, so
    /// long at most.
    fn flush(&mut self, wait: Duration);

    /// Records that were taken and whose fate is open. When it is 0, every one of them was acknowledged or is among
    /// [`Producer::take_failed`].
    fn in_flight(&self) -> usize;

    /// Records that could not be written, since the last call. The client has done what retrying can do.
    fn take_failed(&mut self) -> Vec<Failed>;

    /// Commits the transaction, and `text` in `store` with it; `number` is shown as the offset. Nothing may be in flight.
    /// May be called again after [`Kind::Again`](crate::Kind::Again).
    fn commit(
        &mut self,
        store: &Store,
        text: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(), Error>;

    /// Gives the transaction up. What is in flight comes back as failed.
    fn abort(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Takes back what was taken and is not acknowledged: it comes back as failed. A broker may have it all the same.
    fn purge(&mut self);

    /// The largest batch of records that the topic takes (`max.message.bytes`).
    fn record_max(&mut self, topic: &str, timeout: Duration) -> Result<usize, Error>;

    /// Makes a topic of one partition unless it is there.
    fn make_topic(&mut self, topic: &str, timeout: Duration) -> Result<(), Error>;

    /// The id of the cluster.
    fn cluster(&mut self, timeout: Duration) -> Result<String, Error>;

    /// What the client complains of since the last call (brokers that do not answer), if anything.
    fn complaint(&mut self) -> Option<String>;
}

/// Where a position is committed: as the offset of a partition that exists, in a group without members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The group.
    pub group: String,
    /// The topic whose partition 0 stands for it; it must exist when something is committed.
    pub topic: String,
}

/// What [`Producer::send`] did.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    /// So many records were taken.
    pub taken: usize,
    /// Why the next one was not: None if all were taken or the queue is full, which passes.
    pub refused: Option<Error>,
}

/// A record that could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its number.
    pub number: usize,
    /// Its topic.
    pub topic: String,
    /// Why.
    pub error: Error,
}
