//! Failures that cross the contract: who is at fault, and whether to try again.

use std::fmt;

/// Who is at fault.
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
    /// What the node keeps below `data_dir`. Only this node fails; all others run.
    State,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At once.
    Now,
    /// After a back-off.
    Later,
    /// Not before somebody has changed something.
    Never,
}

/// Why a node stopped. Its text names the thing and the place, and says what to do next where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Who is at fault.
    pub who: Who,
    /// Whether to try again.
    pub again: Again,
    /// The text for the operator.
    pub message: String,
}

impl Failure {
    /// The disk fails, perhaps only for now (full, slow, a vanished directory).
    pub fn disk(message: impl Into<String>) -> Self {
        Self {
            who: Who::Disk,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// The peer fails, perhaps only for now.
    pub fn peer(message: impl Into<String>) -> Self {
        Self {
            who: Who::Peer,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// The configuration asks for what cannot be had.
    pub fn config(message: impl Into<String>) -> Self {
        Self {
            who: Who::Config,
            again: Again::Never,
            message: message.into(),
        }
    }

    /// A fault of ours.
    pub fn us(message: impl Into<String>) -> Self {
        Self {
            who: Who::Us,
            again: Again::Later,
            message: message.into(),
        }
    }

    /// What the node keeps below `data_dir` cannot be used: it is damaged, or another version wrote it. The text names the
    /// file and the step that helps. The node does not run until then; every other node does.
    pub fn state(message: impl Into<String>) -> Self {
        Self {
            who: Who::State,
            again: Again::Never,
            message: message.into(),
        }
    }

    /// The same, but trying again cannot help.
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
