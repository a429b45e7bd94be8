//! The one Kafka client: producers with transactions and consumers in groups, behind two small traits.
//!
//! Stands beside the line, below the sink and the source `kafka`. The traits [`Producer`] and [`Consumer`] are what those
//! need and nothing else; librdkafka is behind them with the feature `librdkafka`, and the feature `fake` has a broker in
//! memory for unit tests. It promises that nothing handed to a producer is forgotten silently: it is acknowledged, or it is
//! among [`Producer::take_failed`]. Every call may block: use it on a thread that may. What to do about a failure is left
//! to the sink and the source.

mod access;
#[cfg(feature = "librdkafka")]
mod client;
mod consumer;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod outgoing;
mod producer;
mod settings;
mod topics;

use std::sync::Arc;

pub use access::{Auth, Mechanism, Tls, TlsBlock};
pub use consumer::{Consumer, Incoming, Partition, Polled, Taken};
pub use error::{Error, Kind};
pub use outgoing::{Outgoing, Record};
pub use producer::{Failed, Producer, Sent, Store};
pub use settings::Settings;
pub use topics::{Topics, topic_fault};

/// Makes clients.
pub trait Connect: Send + Sync {
    /// A producer; with `transactional.id` among the settings, one that writes in transactions.
    ///
    /// # Errors
    /// Settings that the client refuses. Brokers that do not answer are no error here.
    fn producer(&self, settings: &Settings) -> Result<Box<dyn Producer>, Error>;

    /// A consumer.
    ///
    /// # Errors
    /// Settings that the client refuses. Brokers that do not answer are no error here.
    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error>;
}

/// The client that is built in.
#[cfg(feature = "librdkafka")]
pub fn connect() -> Arc<dyn Connect> {
    Arc::new(client::Librdkafka)
}

/// The client that is built in: none. What it makes are errors that say so.
#[cfg(not(feature = "librdkafka"))]
pub fn connect() -> Arc<dyn Connect> {
    Arc::new(NotBuilt)
}

/// Whether there is a client in this build.
pub const BUILT_IN: bool = cfg!(feature = "librdkafka");

/// What to do about a build without the client.
pub const NOT_BUILT: &str = "this program was built without the Kafka client; install libssl-dev, zlib1g-dev and pkg-config and \
     build it with `cargo build --release --features millstream/kafka`";

#[cfg(not(feature = "librdkafka"))]
struct NotBuilt;

#[cfg(not(feature = "librdkafka"))]
impl Connect for NotBuilt {
    fn producer(&self, _: &Settings) -> Result<Box<dyn Producer>, Error> {
        Err(Error::new(Kind::Refused, NOT_BUILT))
    }

    fn consumer(&self, _: &Settings) -> Result<Box<dyn Consumer>, Error> {
        Err(Error::new(Kind::Refused, NOT_BUILT))
    }
}
