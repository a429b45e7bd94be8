//! The bootstrap brokers, TLS and the credentials, derived from the options of a producer.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::ClientConfig;

use crate::{Auth, Error, Kind, ProducerOptions, Tls};

/// The settings that a connection needs.
pub(super) struct Access {
    /// The bootstrap brokers, each as `host:port`.
    pub(super) brokers: Vec<String>,
    pub(super) client: String,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) auth: Option<Auth>,
}

impl Access {
    /// # Errors
    ///
    /// Invalid certificates.
    pub(super) fn new(options: &ProducerOptions) -> Result<Self, Error> {
        let tls = match &options.tls {
            None | Some(Tls::Switch(false)) => None,
            Some(Tls::Switch(true)) => Some(millstream_net::client_config(None, None, true)),
            Some(Tls::Block(tls)) => {
                let file = |path: &Option<String>| path.as_ref().map(PathBuf::from);
                let own = file(&tls.cert).zip(file(&tls.key));
                Some(millstream_net::client_config(
                    file(&tls.ca),
                    own,
                    tls.verify,
                ))
            }
        };
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
