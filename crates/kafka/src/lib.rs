//! The one Kafka client: producers with transactions and consumers in groups, behind two small traits.
//!
//! Stands beside the line, below the sink and the source `kafka`. The traits [`Producer`] and [`Consumer`] are what those
//! need and nothing else. The producer is our own (`native`): what brokers store is made from the sink's buffers. The consumer
//! is librdkafka (`client`), with the feature `librdkafka`. The feature `fake` has a broker in memory for unit tests. It
//! promises that nothing handed to a producer is forgotten silently: it is acknowledged, or it is among
//! [`Producer::take_failed`]. Every call may block: use it on a thread that may. What to do about a failure is left
//! to the sink and the source.

mod access;
#[cfg(feature = "librdkafka")]
mod client;
mod consumer;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod native;
mod outgoing;
mod producer;
mod settings;
mod topics;

use std::sync::Arc;

pub use access::{Auth, Mechanism, Tls, TlsBlock};
pub use consumer::{Consumer, Incoming, Partition, Polled, Taken};
pub use error::{Error, Kind};
#[cfg(feature = "fuzzing")]
pub use native::read_each_answer;
pub use native::{Compression, Partitioner};
pub use outgoing::{Outgoing, Record};
pub use producer::{Failed, Producer, ProducerOptions, Sent, Store};
pub use settings::Settings;
pub use topics::{Topics, topic_fault};

/// Makes clients.
pub trait Connect: Send + Sync {
    /// A producer.
    ///
    /// # Errors
    /// Options that cannot be used, such as a certificate that cannot be read. Brokers that do not answer are no error here.
    fn producer(&self, options: ProducerOptions) -> Result<Box<dyn Producer>, Error>;

    /// A consumer.
    ///
    /// # Errors
    /// Settings that the client refuses. Brokers that do not answer are no error here.
    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error>;
}

/// The client that is built in.
pub fn connect() -> Arc<dyn Connect> {
    Arc::new(Client)
}

struct Client;

impl Connect for Client {
    fn producer(&self, options: ProducerOptions) -> Result<Box<dyn Producer>, Error> {
        Ok(Box::new(native::Native::new(options)?))
    }

    #[cfg(feature = "librdkafka")]
    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error> {
        Ok(Box::new(client::Librdkafka::new(settings)?))
    }

    #[cfg(not(feature = "librdkafka"))]
    fn consumer(&self, _: &Settings) -> Result<Box<dyn Consumer>, Error> {
        let text = "this program was built without what reads from Kafka; install libssl-dev, zlib1g-dev and pkg-config and \
                    build it with `cargo build --release --features millstream/kafka`";
        Err(Error::new(Kind::Refused, text))
    }
}
