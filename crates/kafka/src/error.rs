//! What goes wrong with Kafka, sorted by what is to be done about it.

/// A failure of the client or of a broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What to do about it.
    pub kind: Kind,
    /// What the client or the broker says.
    pub message: String,
}

/// What is to be done about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nobody answers, or not in time: call again.
    Again,
    /// The transaction is lost: abort it and begin anew.
    Abort,
    /// The client is of no use any more: make a new one.
    Fatal,
    /// Another producer has the same transactional id (or the broker gave this one up after `transaction.timeout.ms`).
    Fenced,
    /// A record, or the batch that it was sent in, is larger than its topic takes.
    TooLarge,
    /// The broker refuses: rights, a name, a policy. Somebody has to change something there.
    Refused,
    /// The broker will never take this record or another one of its batch, for what it is (no key in a compacted topic, a
    /// time too far ahead). It was this one if the broker names the bad ones, so that others are [`Kind::Neighbour`], or if
    /// it was alone in its batch.
    Suspect,
    /// Nothing is wrong with this record: another one of its batch was refused, and the whole batch with it.
    Neighbour,
    /// The settings cannot work.
    Settings,
}

impl Error {
    /// An error.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}
