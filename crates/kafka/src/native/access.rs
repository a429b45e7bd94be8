//! The bootstrap brokers, TLS and the credentials, derived from the options of a producer.

use millstream_net::ClientFiles;

use crate::{Auth, Error, Kind, ProducerOptions, Tls};

/// The settings that a connection needs.
pub(super) struct Access {
    /// The bootstrap brokers, each as `host:port`.
    pub(super) brokers: Vec<String>,
    pub(super) client: String,
    /// Read again for a connection if the files have changed.
    pub(super) tls: Option<ClientFiles>,
    pub(super) auth: Option<Auth>,
}

impl Access {
    /// # Errors
    ///
    /// Invalid certificates.
    pub(super) fn new(options: &ProducerOptions) -> Result<Self, Error> {
        let tls = options.tls.as_ref().and_then(Tls::read);
        let tls = tls.transpose();
        Ok(Self {
            brokers: options.brokers.iter().map(|name| with_port(name)).collect(),
            client: options.client_id.clone(),
            tls: tls.map_err(|text| Error::new(Kind::Settings, text))?,
            auth: options.auth.clone(),
        })
    }
}

/// Adds Kafka's default port if the address has no port.
fn with_port(broker: &str) -> String {
    let broker = broker.trim();
    let name = broker.rsplit_once(']').map_or(broker, |(_, rest)| rest);
    if name.contains(':') {
        broker.to_owned()
    } else {
        format!("{broker}:9092")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_without_a_port_get_kafkas_default_port() {
        let named = ["a", " b:1", "[::1]", "[::1]:2"].map(with_port);
        assert_eq!(named, ["a:9092", "b:1", "[::1]:9092", "[::1]:2"]);
    }
}
