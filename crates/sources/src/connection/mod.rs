//! Parts of every source that serves connections: the read buffer, the pace of reading, timeouts, and answers in order.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep`
//!
//! Sockets are in `net`; each source has its own protocol.

mod answers;
mod pace;
mod progress;
mod stash;
mod watch;

pub(crate) use answers::{Answer, Answers, Unanswered, answers};
pub(crate) use pace::Pace;
pub(crate) use progress::Progress;
pub(crate) use stash::{STASH_BYTES, Stash, is_no_memory, patiently};
pub(crate) use watch::{NEVER, Patience, Quit, Watch};
