//! Errors of Kafka, sorted by how to handle them.

/// A failure of the client or of a broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// How to handle it.
    pub kind: Kind,
    /// The message of the client or the broker.
    pub message: String,
}

/// How to handle an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A temporary failure, such as an answer that is late or missing. Call again.
    Again,
    /// The transaction is lost: abort it and begin another one.
    Abort,
    /// The client is unusable: create a new one.
    Fatal,
    /// Another producer uses the same transactional id. Brokers report the same error after they have aborted a transaction at
    /// `transaction.timeout.ms`.
    Fenced,
    /// The record, or its batch, is larger than the topic accepts.
    TooLarge,
    /// The broker refuses the request because of permissions, a name or a policy. A retry helps only after an operator has changed
    /// something.
    Refused,
    /// The broker will never accept this record, or another record of the same batch, because of its content (no key in a compacted topic,
    /// a time too far in the future). If the broker names the bad records, only these get this kind, and the other records of the batch get
    /// [`Kind::Neighbour`]. If the broker does not name the bad records, all records of the batch get this kind. In that case, a record is
    /// certainly bad only if it was alone in its batch.
    Suspect,
    /// The record is fine, but the broker rejected the whole batch because of another record.
    Neighbour,
    /// The settings cannot work.
    Settings,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}
