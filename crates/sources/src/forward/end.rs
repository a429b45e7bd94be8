//! How connections end, and who is told.

use std::io;

use millstream_wire::forward::Refusal;

use super::Shared;
use crate::connection::{Quit, Unanswered, is_no_memory};

/// Why a connection ends.
pub(super) enum End {
    /// The peer has closed it, between two frames.
    Closed,
    /// The peer has closed it within a frame.
    Cut,
    /// The process wants to end.
    Stopped,
    /// Nothing came for too long.
    Idle,
    /// It does not have the key, or did not say so in time; with the reason that it was told.
    Unauthenticated(String),
    /// What came is not the protocol.
    Refused(Refusal),
    /// A chunk that cannot be read, refused this time; with why.
    Poisoned(String),
    /// There is no memory for its frame beside those of other connections.
    NoMemory,
    /// The peer does not go on with what it has begun.
    Slow,
    /// The connection broke.
    Broken,
    /// Acks cannot be written, or must not.
    Unanswered(Unanswered),
}

impl From<Quit> for End {
    fn from(quit: Quit) -> Self {
        match quit {
            Quit::Stopped => Self::Stopped,
            Quit::Idle => Self::Idle,
            Quit::Slow => Self::Slow,
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match is_no_memory(&error) {
            true => Self::NoMemory,
            false => Self::Broken,
        }
    }
}

/// The end, and what a channel behind should know of it.
pub(super) struct Last {
    pub(super) end: End,
    /// Whether the peer closed it after our last ack; `None`: it sent no chunk with an id, so nobody asks.
    pub(super) orderly: Option<bool>,
}

impl Last {
    pub(super) fn unanswered(unanswered: Unanswered) -> Self {
        Self {
            end: End::Unanswered(unanswered),
            orderly: Some(false),
        }
    }
}

/// Counts it and says so, where it is worth a line.
pub(super) fn report(end: &End, peer: &str, shared: &Shared) {
    let (reporter, meters) = (&shared.context.reporter, &shared.meters);
    match end {
        End::Closed | End::Stopped | End::Idle | End::Broken => {}
        End::Cut => {
            meters.frames_cut.add(1);
            let text = format_args!("{peer} closed within a frame: nothing of it is kept or acked");
            reporter.warn("cut", text);
        }
        End::Unauthenticated(reason) => {
            meters.unauthenticated.add(1);
            let text = format_args!("{peer} was not let in: {reason}; connection closed");
            reporter.warn("auth", text);
        }
        End::Refused(refusal) => {
            meters.connections_refused.add(1);
            reporter.warn(
                "refused",
                format_args!("{peer}: {refusal}; connection closed"),
            );
        }
        End::Poisoned(reason) => {
            meters.chunks_refused.add(1);
            reporter.warn(
                "poison",
                format_args!("{peer}: a chunk was refused: {reason}"),
            );
        }
        End::NoMemory => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: no memory for its frame beside those of other connections (memory_max); connection closed"
            );
            reporter.warn("memory", text);
        }
        End::Slow => {
            meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes a second of a frame that it has begun (limits.progress); connection closed"
            );
            reporter.warn("slow", text);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            reporter.info(
                "unanswered",
                format_args!("{peer} takes no more acks: {error}"),
            );
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: a chunk was lost on its way within Millstream and is not acked; its sender must send it again"
            );
            reporter.warn("unsettled", text);
        }
    }
}
