//! The consumers of a channel that no sink reads for: the sink was renamed or removed while Millstream was stopped, or a reload removed it
//! and records for it arrived later. The channel holds everything for such a consumer until it is full. A condition says so, and how
//! to end it.

use std::{collections::BTreeMap, sync::Arc};

use millstream_pipeline::{
    channel::Consumer,
    condition::{Condition, Trouble},
    meters::Meter,
    node::ChannelContext,
    report::Reporter,
};

use super::log::Log;

/// The consumers without a sink, each with its condition.
pub(super) struct Abandoned {
    channel: Arc<str>,
    reporter: Reporter,
    held: BTreeMap<String, Condition>,
    count: Meter,
}

impl Abandoned {
    pub(super) fn new(context: &ChannelContext) -> Self {
        Self {
            channel: context.name.clone(),
            reporter: context.reporter.clone(),
            held: BTreeMap::new(),
            count: context.meters.gauge("consumers_without_sink"),
        }
    }

    /// Raises the condition of each consumer of the log that is not among `read`, the consumers that a sink reads for, and clears those
    /// of all others.
    pub(super) fn look(&mut self, log: &Log, read: &[Consumer]) {
        let mut unread = log.consumers();
        unread.retain(|(name, _)| read.iter().all(|consumer| *consumer.name != **name));
        self.held
            .retain(|held, _| unread.iter().any(|(name, _)| name == held));
        for (name, position) in unread {
            if self.held.contains_key(&name) {
                continue;
            }
            // A separate rate limit, so that each consumer is logged.
            let condition = self.reporter.apart().condition("consumer");
            let remedy = remedy(&name, &self.channel);
            condition.raise(
                Trouble::Degraded,
                format_args!(
                    "no sink reads for the consumer {name}, which has settled up to {position}: the channel holds everything \
                     after that until it is full and its sources wait{remedy}"
                ),
            );
            self.held.insert(name, condition);
        }
        self.count.set(self.held.len() as u64);
    }

    /// The advice about a consumer; `None` if a sink reads for it.
    pub(super) fn remedy(&self, consumer: &str) -> Option<String> {
        let is_held = self.held.contains_key(consumer);
        is_held.then(|| remedy(consumer, &self.channel))
    }
}

fn remedy(consumer: &str, channel: &str) -> String {
    format!(
        "; give a sink behind the channel this name again, or drop what only this consumer still needs with `millstream channel \
         forget --running --consumer {consumer} {channel}`"
    )
}
