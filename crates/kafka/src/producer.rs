//! The producer, as the sink uses it.

use std::{ops::Range, time::Duration};

use crate::{Auth, Compression, Error, Outgoing, Partitioner, Tls};

/// The options of a producer. `Debug` does not show secrets.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// The bootstrap brokers, each as `host` or `host:port`.
    pub brokers: Vec<String>,
    /// The client's name in the brokers' logs and quotas.
    pub client_id: String,
    /// Encryption.
    pub tls: Option<Tls>,
    /// Authentication.
    pub auth: Option<Auth>,
    /// If set, everything is written in transactions.
    pub transactional_id: Option<String>,
    /// The age at which the coordinator aborts an open transaction.
    pub transaction_timeout: Duration,
    /// How the partition of a record is computed from its key.
    pub partitioner: Partitioner,
    /// Compression of batches.
    pub compression: Compression,
    /// The maximum number of bytes of a record: key, value and headers.
    pub record_bytes: usize,
    /// The maximum number of bytes of a batch before compression. A larger record gets its own batch.
    pub batch_bytes: usize,
    /// The maximum number of records of a batch.
    pub batch_records: usize,
    /// How long the first record of a batch waits for more records.
    pub linger: Duration,
    /// The maximum number of bytes of accepted records that are neither acknowledged nor failed.
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
    /// How long a record may wait before it fails. With transactions, this is the transaction timeout. Without transactions, it is `None`:
    /// a record may wait forever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let transactional = self.transactional_id.as_ref();
        transactional.map(|_| self.transaction_timeout)
    }
}

/// Writes records to Kafka idempotently, and in transactions if it has a transactional id. A producer belongs to one thread,
/// which it may block.
pub trait Producer: Send {
    /// Aborts the open transaction of an earlier producer with the same transactional id, and fences that producer. Must be the first
    /// call if there is a transactional id. May be called again after [`Kind::Again`](crate::Kind::Again).
    fn init(&mut self, timeout: Duration) -> Result<(), Error>;

    /// The text that was committed last in `store`; `None` if there is none.
    ///
    /// A broker may report a transaction as completed before the position that it commits can be read. If `stable` is true and brokers
    /// support this (Kafka 2.5), the call waits until every transaction that commits in `store` is completed. Only [`Producer::init`] ends
    /// a transaction that an earlier producer left open, so `stable` is for calls after `init`. If `stable` is false or brokers do
    /// not support this, an open transaction has no effect on the result.
    fn committed(
        &mut self,
        store: &Store,
        stable: bool,
        timeout: Duration,
    ) -> Result<Option<String>, Error>;

    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Error>;

    /// Accepts the records with these indexes, until the queue is full or a record is refused.
    /// Never blocks.
    fn send(&mut self, outgoing: &Outgoing, which: Range<usize>) -> Sent;

    /// Waits up to `wait` until a record is acknowledged or fails.
    fn serve(&mut self, wait: Duration);

    /// Sends everything without lingering. Waits up to `wait` until nothing is in flight or a record has failed.
    fn flush(&mut self, wait: Duration);

    /// The number of accepted records that are neither acknowledged nor failed. If it is 0, every record was acknowledged or has failed.
    /// The next call of [`Producer::take_failed`] reports the failed records that were not reported before.
    fn in_flight(&self) -> usize;

    /// Records that have failed since the last call. If a retry can help, the client has already retried the record.
    fn take_failed(&mut self) -> Vec<Failed>;

    /// Commits the transaction together with the position: `text` becomes the metadata in `store`, `number` the offset. Nothing
    /// may be in flight. May be called again after [`Kind::Again`](crate::Kind::Again).
    fn commit(
        &mut self,
        store: &Store,
        text: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(), Error>;

    /// Aborts the transaction. Records in flight fail.
    fn abort(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Fails all records that are not acknowledged. A broker may have written some of them nevertheless.
    fn purge(&mut self);

    /// The largest batch that the topic accepts (`max.message.bytes`).
    fn record_max(&mut self, topic: &str, timeout: Duration) -> Result<usize, Error>;

    /// Creates a topic with one partition unless it exists.
    fn make_topic(&mut self, topic: &str, timeout: Duration) -> Result<(), Error>;

    /// The id of the cluster.
    fn cluster(&mut self, timeout: Duration) -> Result<String, Error>;

    /// The last complaint of the client since the previous call, for example that no broker answers. `None` if there was no complaint.
    fn complaint(&mut self) -> Option<String>;
}

/// Where the sink's position (a text) is committed. A consumer group without members holds an offset for an existing partition. The
/// position is the metadata of this offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The group.
    pub group: String,
    /// The topic whose partition 0 is used; it must exist at the time of a commit.
    pub topic: String,
}

/// The outcome of [`Producer::send`].
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    /// The number of accepted records.
    pub taken: usize,
    /// Why the next record was refused. `None` if all records were accepted, or if the queue is full for now.
    pub refused: Option<Error>,
}

/// A record that could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its number.
    pub number: usize,
    /// Its topic.
    pub topic: String,
    /// Whether it was the only record of its batch, so that the error concerns no other record.
    pub alone: bool,
    /// Why it could not be written.
    pub error: Error,
}
