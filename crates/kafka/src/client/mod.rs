//! Implements [`Consumer`](crate::Consumer) with librdkafka: `consumer` reads, `context` receives the client's events.

mod consumer;
mod context;
#[cfg(test)]
mod tests;

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

/// Whether librdkafka handles an error itself, so that it is only information: a connection that
/// failed, a leader or a coordinator that has moved, a rebalance.
fn is_passing(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::OperationTimedOut
            | Code::MessageTimedOut
            | Code::TimedOutQueue
            | Code::Retry
            | Code::NodeUpdate
            | Code::WaitingForCoordinator
            | Code::WaitCache
            | Code::InProgress
            | Code::PreviousInProgress
            | Code::PollExceeded
            | Code::AssignmentLost
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::NetworkException
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::RebalanceInProgress
            | Code::KafkaStorageError
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable
    )
}

/// Converts an error that librdkafka returned.
fn told(error: &KafkaError) -> Error {
    let sorted = error.rdkafka_error_code().map_or(Kind::Again, kind);
    Error::new(sorted, error.to_string())
}
