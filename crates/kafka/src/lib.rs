//! The Kafka client of all components: producers with transactions, and consumers in groups.
//!
//! The sink and the source `kafka` use this client through the traits [`Producer`] and [`Consumer`]. The traits have only the methods that
//! the sink and the source need. The producer is our own (`native`) and builds the broker's format directly from the sink's buffers. The
//! consumer uses librdkafka (`client`) and needs the feature `librdkafka`. The feature `fake` adds a broker in memory for unit tests.
//!
//! A producer loses no record silently: each record is acknowledged, or [`Producer::take_failed`] returns it. Every call may block, so
//! producers and consumers belong on a thread that may block. The sink and the source decide how to handle a failure.

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

/// Creates clients.
pub trait Connect: Send + Sync {
    /// Creates a producer.
    ///
    /// # Errors
    ///
    /// Options that cannot be used, such as a certificate that cannot be read. Brokers that do not answer are
    /// not an error here.
    fn producer(&self, options: ProducerOptions) -> Result<Box<dyn Producer>, Error>;

    /// Creates a consumer.
    ///
    /// # Errors
    ///
    /// Settings that the client rejects. Brokers that do not answer are not an error here.
    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error>;
}

/// The built-in client.
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
        let text = "this program was built without the Kafka consumer; install libssl-dev, zlib1g-dev and pkg-config and \
                    build it with `cargo build --release --features millstream/kafka`";
        Err(Error::new(Kind::Refused, text))
    }
}
