//! How a connection ends, and how that is counted and logged.

use std::{fmt, io};

use millstream_wire::forward::Refusal;

use super::service::Service;
use crate::connection::{Quit, Unanswered, is_no_memory};

/// Why a connection ends.
pub(super) enum End {
    /// The peer closed the connection between two frames.
    Closed,
    /// The peer closed the connection within a frame.
    Cut,
    /// The process stops.
    Stopped,
    /// The peer was silent for too long.
    Idle,
    /// The peer has wrong credentials, or did not prove them in time. Holds the reason.
    Unauthenticated(String),
    /// The peer does not speak the protocol.
    Refused(Refusal),
    /// A chunk that cannot be decoded was refused; its sender may retry. Holds the reason.
    Poisoned(String),
    /// There is no memory for the frame, because other connections hold the memory.
    NoMemory,
    /// The peer does not finish the frame that it has begun.
    Slow,
    /// The connection broke.
    Broken,
    /// Acks cannot be written, or must not be written because a chunk was lost.
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

/// The end of a connection, with a hint for the durable channel.
pub(super) struct Last {
    pub(super) end: End,
    /// Whether the peer closed the connection after the last ack was written. None if it never sent the id of a chunk.
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

/// Counts the end. Logs it unless it is ordinary.
pub(super) fn report(end: &End, peer: &str, service: &Service) {
    let (reporter, meters) = (&service.context.reporter, &service.meters);
    let refused = |kind, why: fmt::Arguments<'_>| {
        meters.connections_refused.add(1);
        reporter.warn(kind, format_args!("{peer}: {why}; connection closed"));
    };
    match end {
        End::Closed | End::Stopped | End::Idle | End::Broken => {}
        End::Cut => {
            meters.frames_cut.add(1);
            let text = format_args!("{peer} closed within a frame: nothing of it is kept or acked");
            reporter.warn("cut", text);
        }
        End::Unauthenticated(reason) => {
            meters.unauthenticated.add(1);
            let text = format_args!("{peer} was not authenticated: {reason}; connection closed");
            reporter.warn("auth", text);
        }
        End::Refused(refusal) => refused("refused", format_args!("{refusal}")),
        End::Poisoned(reason) => {
            meters.chunks_refused.add(1);
            reporter.warn(
                "poison",
                format_args!("{peer}: a chunk was refused: {reason}"),
            );
        }
        End::NoMemory => {
            let why = "no memory for its frame, because other connections hold it (memory_max)";
            refused("memory", format_args!("{why}"));
        }
        End::Slow => {
            let why = format_args!("sends a frame too slowly (limits.progress)");
            refused("slow", why);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            reporter.info(
                "unanswered",
                format_args!("{peer} does not take acks any more: {error}"),
            );
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: a chunk was dropped within Millstream and is not acked; its sender must send it again"
            );
            reporter.warn("unsettled", text);
        }
    }
}
