//! Reports the losses of a channel until an operator accepts them.

use std::{path::PathBuf, sync::Arc};

use millstream_pipeline::{
    condition::{Condition, Trouble},
    node::ChannelContext,
    report::Reporter,
};
use millstream_record::Position;

use super::log::{ChannelId, Log, Loss, Losses, Missing, Sync};

/// The maximum number of losses that are described one by one.
const LOSSES_NAMED: usize = 5;

/// Keeps the channel unhealthy as long as a loss is not accepted.
pub(super) struct LossReport {
    channel: ChannelId,
    directory: PathBuf,
    sync: Sync,
    losses: Arc<Losses>,
    condition: Condition,
    reporter: Reporter,
}

impl LossReport {
    pub(super) fn new(context: &ChannelContext, log: &Log) -> Self {
        Self {
            channel: log.id(),
            directory: context.directory.clone(),
            sync: log.options().sync,
            losses: log.losses(),
            condition: context.reporter.condition("missing"),
            reporter: context.reporter.clone(),
        }
    }

    /// Raises the condition if at least one loss is not accepted.
    pub(super) fn report(&self) {
        let open = self.losses.open();
        if open.is_empty() {
            return;
        }
        let named = open.iter().take(LOSSES_NAMED).map(Loss::to_string);
        let mut named = named.collect::<Vec<_>>().join("; ");
        if let more @ 1.. = open.len().saturating_sub(LOSSES_NAMED) {
            named.push_str(&format!("; and {more} more losses"));
        }
        let directory = self.directory.display();
        self.condition.raise(
            Trouble::Losing,
            format_args!(
                "{directory}: {named}. Restore what is missing from a backup while Millstream is stopped, or stop it and accept \
                 the loss with `millstream channel forget --accept-loss {directory}`"
            ),
        );
    }

    /// Adds the loss of the positions after `after` up to `to`, which were kept and are missing now.
    pub(super) fn add(&self, missing: Missing, after: Position, to: Position) {
        let loss = Loss {
            missing,
            channel: self.channel,
            after,
            to,
            records: 0,
        };
        // If the list cannot be written, the loss is still reported now, and the next start finds it again.
        let _ = self.losses.add(loss);
        self.report();
    }

    /// Compares the position that a sink has committed with the end of the channel. Returns the position after which the sink continues.
    /// This position is at most `end`, because after a higher position the sink would miss the batches that are kept next.
    pub(super) fn check(&self, sink: &str, committed: Position, end: Position) -> Position {
        if committed <= end {
            return committed;
        }
        if self.sync == Sync::Batch {
            self.add(Missing::Committed, end, committed);
        } else {
            self.reporter.warn(
                "power",
                format_args!(
                    "{sink} has committed up to {committed} and the channel ends at {end}: a power cut has taken what was not \
                     synced (the option `sync`)"
                ),
            );
        }
        end
    }
}
