//! What the producer is told, read from [`Settings`]: properties by the names that librdkafka and Kafka have for them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_rustls::rustls::ClientConfig;

use super::{compress::Compression, partitioner::Partitioner};
use crate::{Auth, Error, Kind, Mechanism, Settings};

/// Where the cluster is asked for first, and who we are.
#[derive(Default)]
pub(super) struct Access {
    pub(super) brokers: Vec<String>,
    pub(super) client: String,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) auth: Option<Auth>,
}

/// How records are written.
pub(super) struct Options {
    pub(super) access: Access,
    pub(super) transactional_id: Option<String>,
    pub(super) transaction_timeout: Duration,
    /// How long a record may wait; None: for ever.
    pub(super) message_timeout: Option<Duration>,
    pub(super) partitioner: Partitioner,
    pub(super) compression: Compression,
    /// Bytes of a record at most: key, value, headers.
    pub(super) record_bytes: usize,
    pub(super) batch_bytes: usize,
    pub(super) batch_records: usize,
    pub(super) linger: Duration,
    /// Bytes of records that are taken and not settled.
    pub(super) buffer_bytes: usize,
}

impl Options {
    /// # Errors
    /// A property that the producer does not know, a value that it cannot use.
    pub(super) fn read(settings: &Settings) -> Result<Self, Error> {
        let mut options = Self {
            access: Access {
                brokers: Vec::new(),
                client: "millstream".to_owned(),
                tls: None,
                auth: None,
            },
            transactional_id: None,
            transaction_timeout: Duration::from_secs(60),
            message_timeout: None,
            partitioner: Partitioner::default(),
            compression: Compression::default(),
            record_bytes: 1_000_000,
            batch_bytes: 1_000_000,
            batch_records: 1_000_000,
            linger: Duration::from_millis(5),
            buffer_bytes: 4 << 20,
        };
        for (name, value) in settings.properties() {
            options.set(name, value)?;
        }
        options.access.secure(settings)?;
        if options.transactional_id.is_some() && options.message_timeout.is_none() {
            // Beyond it the coordinator has given the transaction up.
            options.message_timeout = Some(options.transaction_timeout);
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let wrong = || Error::new(Kind::Settings, format!("`{value}` is no value of `{name}`"));
        let number = || value.parse::<usize>().map_err(|_| wrong());
        let millis = || number().map(|millis| Duration::from_millis(millis as u64));
        match name {
            "bootstrap.servers" => {
                let brokers = value
                    .split(',')
                    .map(str::trim)
                    .filter(|one| !one.is_empty());
                self.access.brokers = brokers.map(with_port).collect();
            }
            "client.id" => value.clone_into(&mut self.access.client),
            "transactional.id" => self.transactional_id = Some(value.to_owned()),
            "transaction.timeout.ms" => self.transaction_timeout = millis()?,
            "message.timeout.ms" => {
                self.message_timeout = Some(millis()?).filter(|wait| !wait.is_zero());
            }
            "partitioner" => self.partitioner = Partitioner::named(value).ok_or_else(wrong)?,
            "compression.type" => self.compression = Compression::named(value).ok_or_else(wrong)?,
            "message.max.bytes" => self.record_bytes = number()?,
            "batch.size" => self.batch_bytes = number()?,
            "batch.num.messages" => self.batch_records = number()?.max(1),
            "linger.ms" => self.linger = millis()?,
            "queue.buffering.max.kbytes" => self.buffer_bytes = number()?.saturating_mul(1024),
            // Read together: `secure`.
            _ if name.starts_with("ssl.") || name.starts_with("sasl.") => {}
            "security.protocol" | "enable.ssl.certificate.verification" => {}
            _ => {
                let text = format!("the producer has no property `{name}`");
                return Err(Error::new(Kind::Settings, text));
            }
        }
        Ok(())
    }
}

impl Access {
    fn secure(&mut self, settings: &Settings) -> Result<(), Error> {
        let protocol = settings.get("security.protocol").unwrap_or("plaintext");
        if protocol.contains("ssl") {
            let file = |name| settings.get(name).map(PathBuf::from);
            let own = file("ssl.certificate.location").zip(file("ssl.key.location"));
            let verify = settings.get("enable.ssl.certificate.verification") != Some("false");
            let made = millstream_net::client_config(file("ssl.ca.location"), own, verify);
            self.tls = Some(made.map_err(|text| Error::new(Kind::Settings, text))?);
        }
        if protocol.starts_with("sasl") {
            let named = settings.get("sasl.mechanism").and_then(Mechanism::named);
            let user = settings
                .get("sasl.username")
                .zip(settings.get("sasl.password"));
            let (Some(sasl), Some((username, password))) = (named, user) else {
                return Err(Error::new(
                    Kind::Settings,
                    "SASL needs a mechanism, a name and a password",
                ));
            };
            self.auth = Some(Auth {
                sasl,
                username: username.to_owned(),
                password: millstream_config::Secret::new(password),
            });
        }
        Ok(())
    }
}

/// Kafka's port where none is named.
fn with_port(broker: &str) -> String {
    let name = broker.rsplit_once(']').map_or(broker, |(_, rest)| rest);
    if name.contains(':') {
        broker.to_owned()
    } else {
        format!("{broker}:9092")
    }
}
