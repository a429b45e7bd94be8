//! The settings of a consumer: brokers, security, and properties by name.
//!
//! The names of properties are those in librdkafka's CONFIGURATION.md. If Kafka has the same property, it has the same
//! name there.

use std::fmt;

use crate::{Auth, Tls};

/// All settings of a consumer. `Debug` does not show secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Settings {
    properties: Vec<(String, String)>,
}

impl Settings {
    /// Settings for these brokers (`host:port`).
    pub fn new(brokers: &[String]) -> Self {
        let mut settings = Self::default();
        settings.set("bootstrap.servers", brokers.join(","));
        settings
    }

    /// Sets or replaces a property.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        match self.properties.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.properties.push((name.to_owned(), value)),
        }
    }

    /// A property.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.properties.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// All properties.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        self.properties
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets encryption and authentication.
    pub fn secure(&mut self, tls: Option<&Tls>, auth: Option<&Auth>) {
        let tls = tls.filter(|tls| !matches!(tls, Tls::Switch(false)));
        self.set(
            "security.protocol",
            match (tls, auth) {
                (None, None) => "plaintext",
                (Some(_), None) => "ssl",
                (None, Some(_)) => "sasl_plaintext",
                (Some(_), Some(_)) => "sasl_ssl",
            },
        );
        if let Some(Tls::Block(tls)) = tls {
            for (name, file) in [
                ("ssl.ca.location", &tls.ca),
                ("ssl.certificate.location", &tls.cert),
                ("ssl.key.location", &tls.key),
            ] {
                if let Some(file) = file {
                    self.set(name, file);
                }
            }
            if !tls.verify {
                self.set("enable.ssl.certificate.verification", "false");
            }
        }
        if let Some(auth) = auth {
            self.set("sasl.mechanism", auth.sasl.name());
            self.set("sasl.username", &auth.username);
            self.set("sasl.password", auth.password.expose());
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.properties().map(|(name, value)| match name {
            "sasl.password" | "ssl.key.password" => (name, "***"),
            _ => (name, value),
        });
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mechanism;

    #[test]
    fn passwords_are_not_shown() {
        let mut settings = Settings::new(&["a:1".to_owned(), "b:2".to_owned()]);
        let auth = Auth {
            sasl: Mechanism::ScramSha512,
            username: "me".into(),
            password: millstream_config::Secret::new("hunter2"),
        };
        settings.secure(Some(&Tls::Switch(true)), Some(&auth));
        let shown = format!("{settings:?}");
        assert!(shown.contains("a:1,b:2") && shown.contains("sasl_ssl"));
        assert!(shown.contains("***") && !shown.contains("hunter2"));
    }
}
