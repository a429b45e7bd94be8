//! Why a connection ends, and how that is reported.

use std::fmt;

use super::endpoint::Endpoint;
use crate::connection::Unanswered;

/// Why a connection ends.
pub(super) enum End {
    /// The peer closed the connection between two calls.
    Closed,
    /// The peer closed the connection within a call.
    Cut,
    /// The source stops.
    Stopped,
    /// The peer was silent for too long.
    Idle,
    /// The peer does not speak the protocol.
    Refused(String),
    /// There is no memory for a call.
    NoMemory,
    /// The peer sends a call too slowly.
    Slow,
    /// The connection broke.
    Broken,
    /// Answers cannot be written, or must not be written because a batch was lost.
    Unanswered(Unanswered),
}

/// Counts and reports the end of a connection, unless it is ordinary.
pub(super) fn report(end: &End, peer: &str, endpoint: &Endpoint) {
    let (reporter, meters) = (&endpoint.context.reporter, &endpoint.meters);
    let refused = |kind, why: fmt::Arguments<'_>| {
        meters.connections_refused.add(1);
        reporter.warn(kind, format_args!("{peer}: {why}; connection closed"));
    };
    match end {
        End::Closed | End::Stopped | End::Idle | End::Broken => {}
        End::Cut => {
            meters.calls_cut.add(1);
            let text = format_args!(
                "{peer} closed the connection within a call; nothing of the call is kept"
            );
            reporter.warn("cut", text);
        }
        End::Refused(reason) => refused("refused", format_args!("{reason}")),
        End::NoMemory => refused(
            "memory",
            format_args!("no memory for its call (memory_max)"),
        ),
        End::Slow => {
            let why = format_args!("too few bytes per second within a call (limits.progress)");
            refused("slow", why);
        }
        End::Unanswered(Unanswered::Write(error)) => {
            let text = format_args!("cannot answer {peer}: {error}");
            reporter.info("unanswered", text);
        }
        End::Unanswered(Unanswered::Unsettled) => {
            let text = format_args!(
                "{peer}: a batch was lost within Millstream and is not answered; its agent sends it again"
            );
            reporter.warn("unsettled", text);
        }
    }
}
