//! librdkafka behind the traits of this crate.
//!
//! `producer` writes, `consumer` reads, `admin` asks about topics, `context` hears what the client has to say.

mod admin;
mod consumer;
mod context;
mod producer;

use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
};

use crate::{Connect, Consumer, Error, Kind, Producer, Settings};

/// Makes clients of librdkafka.
pub(crate) struct Librdkafka;

impl Connect for Librdkafka {
    fn producer(&self, settings: &Settings) -> Result<Box<dyn Producer>, Error> {
        Ok(Box::new(producer::Native::new(settings)?))
    }

    fn consumer(&self, settings: &Settings) -> Result<Box<dyn Consumer>, Error> {
        Ok(Box::new(consumer::Native::new(settings)?))
    }
}

fn config(settings: &Settings) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in settings.properties() {
        config.set(name, value);
    }
    config
}

/// The error of a client that could not be made.
fn unfit(error: &KafkaError) -> Error {
    Error::new(Kind::Settings, error.to_string())
}

/// What an error code says is to be done.
fn kind(code: RDKafkaErrorCode) -> Kind {
    use RDKafkaErrorCode as Code;
    match code {
        // The last one is about `segment.bytes`; smaller batches help there, too.
        Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge => {
            Kind::TooLarge
        }
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => Kind::Fenced,
        Code::Fatal
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerIdMapping => Kind::Fatal,
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::InvalidTopic
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        // Policies are about topics: whoever may make one, and how.
        | Code::PolicyViolation => Kind::Refused,
        // Where a broker names the bad records of a batch (since 2.4), the client gives all others the code for neighbours.
        Code::InvalidRecord | Code::InvalidTimestamp => Kind::Suspect,
        Code::InvalidDifferentRecord => Kind::Neighbour,
        Code::InvalidArgument | Code::InvalidConfig => Kind::Settings,
        _ => Kind::Again,
    }
}

/// Sorts an error of a call.
fn told(error: &KafkaError) -> Error {
    if let KafkaError::Transaction(inner) = error {
        let sorted = match kind(inner.code()) {
            Kind::Fenced => Kind::Fenced,
            _ if inner.is_fatal() => Kind::Fatal,
            _ if inner.txn_requires_abort() => Kind::Abort,
            _ if inner.is_retriable() => Kind::Again,
            Kind::Again => Kind::Fatal,
            other => other,
        };
        return Error::new(sorted, inner.string());
    }
    let sorted = error.rdkafka_error_code().map_or(Kind::Again, kind);
    Error::new(sorted, error.to_string())
}
