//! The reasons for which a session ends.

use millstream_kafka::Error;
use millstream_pipeline::failure::Failure;

use super::link::Halt;

/// Why a session ended.
pub(super) enum End {
    /// The process stops.
    Stopped,
    /// The session learned something that changes the next attempt, which follows without a back-off.
    Learned,
    /// A failure that is retried after a wait.
    Trouble(Error),
    /// A failure that ends the sink. The supervisor decides what follows.
    Failure(Failure),
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Stopped => Self::Stopped,
            Halt::Failed(error) => Self::Trouble(error),
        }
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
