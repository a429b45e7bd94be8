//! The error codes of brokers: their names, and how to handle them.
//!
//! Source: `Errors.java` of Apache Kafka. The table holds the codes that a producer can receive.

use crate::{Error, Kind};

pub(super) const NONE: i16 = 0;
pub(super) const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
pub(super) const TOPIC_ALREADY_EXISTS: i16 = 36;
pub(super) const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
/// The previous transaction is still being completed, which takes a moment after every commit.
pub(super) const CONCURRENT_TRANSACTIONS: i16 = 51;

/// How to handle a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Retry after a pause.
    Retry,
    /// The leader or the coordinator has moved. Look it up again, and retry there.
    Seek,
    /// The failure is permanent.
    Fail(Kind),
}

const TABLE: &[(i16, &str, Todo)] = &[
    (2, "CORRUPT_MESSAGE", Todo::Retry),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", Todo::Seek),
    (5, "LEADER_NOT_AVAILABLE", Todo::Seek),
    (6, "NOT_LEADER_OR_FOLLOWER", Todo::Seek),
    (7, "REQUEST_TIMED_OUT", Todo::Retry),
    (8, "BROKER_NOT_AVAILABLE", Todo::Seek),
    (9, "REPLICA_NOT_AVAILABLE", Todo::Seek),
    (10, "MESSAGE_TOO_LARGE", Todo::Fail(Kind::TooLarge)),
    (12, "OFFSET_METADATA_TOO_LARGE", Todo::Fail(Kind::Fatal)),
    (13, "NETWORK_EXCEPTION", Todo::Seek),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", Todo::Retry),
    (15, "COORDINATOR_NOT_AVAILABLE", Todo::Seek),
    (16, "NOT_COORDINATOR", Todo::Seek),
    (17, "INVALID_TOPIC_EXCEPTION", Todo::Fail(Kind::Refused)),
    // The batch exceeds the topic's `segment.bytes`. As with code 10, smaller batches help.
    (18, "RECORD_LIST_TOO_LARGE", Todo::Fail(Kind::TooLarge)),
    (19, "NOT_ENOUGH_REPLICAS", Todo::Retry),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Todo::Retry),
    (22, "ILLEGAL_GENERATION", Todo::Fail(Kind::Abort)),
    (25, "UNKNOWN_MEMBER_ID", Todo::Fail(Kind::Abort)),
    (29, "TOPIC_AUTHORIZATION_FAILED", Todo::Fail(Kind::Refused)),
    (30, "GROUP_AUTHORIZATION_FAILED", Todo::Fail(Kind::Refused)),
    (
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        Todo::Fail(Kind::Refused),
    ),
    (32, "INVALID_TIMESTAMP", Todo::Fail(Kind::Suspect)),
    (33, "UNSUPPORTED_SASL_MECHANISM", Todo::Fail(Kind::Refused)),
    (36, "TOPIC_ALREADY_EXISTS", Todo::Fail(Kind::Refused)),
    (41, "NOT_CONTROLLER", Todo::Seek),
    (44, "POLICY_VIOLATION", Todo::Fail(Kind::Refused)),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", Todo::Fail(Kind::Fatal)),
    (46, "DUPLICATE_SEQUENCE_NUMBER", Todo::Fail(Kind::Fatal)),
    (47, "INVALID_PRODUCER_EPOCH", Todo::Fail(Kind::Fenced)),
    (48, "INVALID_TXN_STATE", Todo::Fail(Kind::Abort)),
    (49, "INVALID_PRODUCER_ID_MAPPING", Todo::Fail(Kind::Fatal)),
    // The transaction timeout is larger than the broker's transaction.max.timeout.ms.
    (
        50,
        "INVALID_TRANSACTION_TIMEOUT",
        Todo::Fail(Kind::Settings),
    ),
    (51, "CONCURRENT_TRANSACTIONS", Todo::Retry),
    (
        53,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        Todo::Fail(Kind::Refused),
    ),
    (55, "OPERATION_NOT_ATTEMPTED", Todo::Fail(Kind::Abort)),
    (56, "KAFKA_STORAGE_ERROR", Todo::Seek),
    (58, "SASL_AUTHENTICATION_FAILED", Todo::Fail(Kind::Refused)),
    (59, "UNKNOWN_PRODUCER_ID", Todo::Fail(Kind::Fatal)),
    (67, "REASSIGNMENT_IN_PROGRESS", Todo::Retry),
    (74, "FENCED_LEADER_EPOCH", Todo::Seek),
    (75, "UNKNOWN_LEADER_EPOCH", Todo::Seek),
    (
        76,
        "UNSUPPORTED_COMPRESSION_TYPE",
        Todo::Fail(Kind::Settings),
    ),
    (87, "INVALID_RECORD", Todo::Fail(Kind::Suspect)),
    (88, "UNSTABLE_OFFSET_COMMIT", Todo::Retry),
    (89, "THROTTLING_QUOTA_EXCEEDED", Todo::Retry),
    (90, "PRODUCER_FENCED", Todo::Fail(Kind::Fenced)),
    (120, "TRANSACTION_ABORTABLE", Todo::Fail(Kind::Abort)),
];

/// How to handle a code. An unknown code fails the request with [`Kind::Again`], because a new attempt may help.
pub(super) fn todo(code: i16) -> Todo {
    let found = TABLE.iter().find(|(known, _, _)| *known == code);
    found.map_or(Todo::Fail(Kind::Again), |(_, _, todo)| *todo)
}

/// The name of a code.
pub(super) fn name(code: i16) -> String {
    let found = TABLE.iter().find(|(known, _, _)| *known == code);
    found.map_or_else(
        || format!("error {code}"),
        |(_, name, _)| (*name).to_owned(),
    )
}

/// The error for a code. `what`: the subject or the operation that failed; `text`: the broker's message.
pub(super) fn error(code: i16, what: &str, text: Option<&str>) -> Error {
    let kind = match todo(code) {
        Todo::Retry | Todo::Seek => Kind::Again,
        Todo::Fail(kind) => kind,
    };
    let name = name(code);
    Error::new(
        kind,
        match text {
            Some(text) if !text.is_empty() => format!("{what}: {text} ({name})"),
            _ => format!("{what}: {name}"),
        },
    )
}
