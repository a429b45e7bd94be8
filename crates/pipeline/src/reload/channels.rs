//! The durable channels of a pipeline: those of the running plan, and those that have left it and are not closed yet.

use std::sync::{Arc, Weak};

use crate::{channel::Channel, failure::Failure, stop::Stop};

/// A durable channel: running, or unusable.
pub(super) struct ChannelState {
    pub(super) id: Option<u128>,
    pub(super) channel: Weak<dyn Channel>,
    /// Resolves when the channel is closed.
    pub(super) ended: Stop,
    /// The reason why the channel could not be opened; `None` if it runs.
    pub(super) unusable: Option<String>,
}

/// A channel that is not in the running plan.
pub(super) struct Closing {
    pub(super) name: Arc<str>,
    pub(super) channel: Weak<dyn Channel>,
    /// Resolves when it is closed.
    pub(super) ended: Stop,
}

/// The failure of a reload that adds a channel while an earlier channel of this name is not closed. `readers` still read it.
pub(super) fn still_closes(channel: &str, readers: &str) -> Failure {
    let why = match readers {
        "" => "a source or a processor still waits for it; reload again in some seconds".to_owned(),
        readers => format!(
            "what is left in it still goes to {readers}; reload again when they have ended, or give it up now with `millstream reload \
             --forget NAME` for each of them, without {channel} in the configuration"
        ),
    };
    Failure::config(format!("an earlier channel {channel} still closes: {why}"))
}
