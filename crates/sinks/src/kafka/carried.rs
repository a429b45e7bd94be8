//! The state of a sink that outlives a session, if the sink reads from a disk channel.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use millstream_pipeline::node::SinkContext;
use millstream_record::Position;

use super::{
    end::End, ownership::Ownership, progress::Changed, sink::Kafka, timeout::Timeout,
    verdict::Verdicts,
};

/// A record: its position, and its index among the records at this position.
pub(super) type Place = (Option<Position>, usize);

/// Records that cannot be written, each with the reason.
pub(super) type Unfit = BTreeMap<Place, String>;

/// State that outlives a session.
pub(super) struct Carried<'a> {
    pub(super) sink: &'a Kafka,
    pub(super) context: SinkContext,
    pub(super) ownership: Ownership,
    pub(super) verdicts: Verdicts,
    /// Unsettled records that brokers refuse permanently.
    pub(super) unfit: Unfit,
    /// Unsettled records that may have spoiled their batch. Each is sent in a separate batch.
    pub(super) suspects: BTreeSet<Place>,
    pub(super) timeout: Timeout,
    /// Set if the last session has found that a frame is not the one whose first part Kafka has.
    pub(super) is_changed: bool,
}

impl<'a> Carried<'a> {
    pub(super) fn new(sink: &'a Kafka, context: SinkContext, ownership: Ownership) -> Self {
        Self {
            sink,
            context,
            ownership,
            verdicts: Verdicts::default(),
            unfit: Unfit::new(),
            suspects: BTreeSet::new(),
            timeout: Timeout::new(sink.config.transaction_timeout.as_duration()),
            is_changed: false,
        }
    }

    /// Whether some records are sent in separate batches.
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    pub(super) fn is_suspected(&self, position: Option<Position>) -> bool {
        let own = (position, 0)..=(position, usize::MAX);
        !self.suspects.is_empty() && self.suspects.range(own).next().is_some()
    }

    /// Lets the next session write a whole frame again whose first part Kafka already has.
    pub(super) fn write_again(&mut self, _: Changed) -> End {
        self.is_changed = true;
        let text = "Kafka has the first part of a frame, and the processors before this sink now make something else of the \
                    frame: the whole frame is written again, so the records of its first part are in Kafka twice. This happens if \
                    the processors were changed meanwhile, or do not repeat their work (`exec`, `window` with timers)";
        self.context.reporter.error("transaction", text);
        End::Learned
    }

    /// Forgets what is settled with everything up to `position`.
    pub(super) fn settled(&mut self, position: Option<Position>) {
        self.suspects = self.suspects.split_off(&(position, usize::MAX));
        self.unfit = self.unfit.split_off(&(position, usize::MAX));
    }

    pub(super) fn patience(&self) -> Duration {
        self.sink.config.retry.timeout.as_duration()
    }
}
