//! Failures that nodes return to the runtime: what caused them, and whether a retry can help.

use std::fmt;

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The other end of a connection, or a destination.
    Peer,
    /// A disk, a file, a directory.
    Disk,
    /// The configuration.
    Config,
    /// Millstream itself.
    Us,
    /// The node's own state below `data_dir`. Only this node fails; all others run.
    State,
}

/// Whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Retry immediately.
    Now,
    /// Retry after a back-off.
    Later,
    /// Do not retry: an operator has to change something first.
    Never,
}

/// The reason why a node stopped. The text names what failed, such as a file or an address, and what an operator can do, if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its cause.
    pub who: Who,
    /// Whether to retry.
    pub again: Again,
    /// The text for the operator.
    pub message: String,
}

impl Failure {
    /// A disk failed, perhaps temporarily (full, slow, a missing directory).
    pub fn disk(message: impl Into<String>) -> Self {
        Self {
            who: Who::Disk,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// A peer failed, perhaps temporarily.
    pub fn peer(message: impl Into<String>) -> Self {
        Self {
            who: Who::Peer,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// The configuration asks for something impossible.
    pub fn config(message: impl Into<String>) -> Self {
        Self {
            who: Who::Config,
            again: Again::Never,
            message: message.into(),
        }
    }

    /// A fault of Millstream itself.
    pub fn us(message: impl Into<String>) -> Self {
        Self {
            who: Who::Us,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// The node's state below `data_dir` cannot be used: it is damaged, or another version wrote it. The text names the
    /// file and the remedy. The node does not run until an operator has applied the remedy; every other node runs.
    pub fn state(message: impl Into<String>) -> Self {
        Self {
            who: Who::State,
            again: Again::Never,
            message: message.into(),
        }
    }

    /// Returns the same failure, marked as one that must not be retried.
    #[must_use]
    pub fn never_again(mut self) -> Self {
        self.again = Again::Never;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
