//! Implements [`Consumer`](crate::Consumer) with librdkafka: `consumer` reads, `context` receives the client's events.

mod consumer;
mod context;

pub(crate) use consumer::Librdkafka;

use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
};

use crate::{Error, Kind, Settings};

fn config(settings: &Settings) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in settings.properties() {
        config.set(name, value);
    }
    config
}

/// The error for a client that could not be created.
fn unfit(error: &KafkaError) -> Error {
    Error::new(Kind::Settings, error.to_string())
}

/// How to handle an error code.
fn kind(code: RDKafkaErrorCode) -> Kind {
    use RDKafkaErrorCode as Code;
    match code {
        Code::Fenced => Kind::Fenced,
        Code::Fatal => Kind::Fatal,
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::InvalidTopic
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition => Kind::Refused,
        Code::InvalidArgument | Code::InvalidConfig => Kind::Settings,
        _ => Kind::Again,
    }
}

/// Converts an error that librdkafka returned.
fn told(error: &KafkaError) -> Error {
    let sorted = error.rdkafka_error_code().map_or(Kind::Again, kind);
    Error::new(sorted, error.to_string())
}
