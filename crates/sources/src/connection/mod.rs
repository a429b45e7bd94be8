//! What the sources that serve connections have in common: the read buffer, the pace of reading, what ends a connection
//! beside its peer, and answers in their order.
//!
//! `[read] -> decode -> send -> keep`
//!
//! It leaves to others: sockets (`net`), protocols (each source).

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
