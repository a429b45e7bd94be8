//! Where the reading of a partition begins.
//!
//! | partitions | behind | begins at |
//! |---|---|---|
//! | fixed | a disk channel | the channel's offset, else the group's, else `start` |
//! | fixed | memory | the group's offset, else `start` |
//! | dealt by the group | a disk channel | the larger of the group's and the channel's, else `start` |
//! | dealt by the group | memory | the group's offset, else `start` |
//!
//! An offset that the partition does not hold (it was made anew, or its oldest records were deleted) is told, and reading
//! begins at the oldest record there is.

use std::time::Duration;

use millstream_kafka::{Consumer, Error, Partition};

use super::options::Start;

/// How long a broker may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// What is known about the place where a partition goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The group's offset.
    pub(super) committed: Option<u64>,
    /// The channel's; the lowest if there are several.
    pub(super) kept: Option<u64>,
    /// Whether the partition is fixed.
    pub(super) fixed: bool,
}

impl Known {
    /// The offset that somebody has, if anybody has one.
    pub(super) fn offset(self) -> Option<u64> {
        match (self.fixed, self.kept) {
            (true, Some(kept)) => Some(kept),
            (true, None) => self.committed,
            (false, kept) => self.committed.max(kept),
        }
    }
}

/// Where a partition begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) offset: u64,
    /// What the operator should know.
    pub(super) warning: Option<String>,
    /// Whether a channel knows an offset that the partition has not reached: it must be told of the new beginning.
    pub(super) anew: bool,
}

/// Finds it out.
pub(super) fn find(
    consumer: &mut dyn Consumer,
    partition: &Partition,
    known: Known,
    start: Start,
) -> Result<Begin, Error> {
    let (low, high) = consumer.bounds(partition, ANSWER)?;
    let (offset, found) = match (known.offset(), start) {
        (Some(offset), _) => (offset, true),
        (None, Start::Beginning) => (low, false),
        (None, Start::End) => (high, false),
        (None, Start::Time(time)) => (consumer.offset_at(partition, time, ANSWER)?, false),
    };
    let Partition { topic, number } = partition;
    let begin = |warning: String, anew| Begin {
        offset: low,
        warning: Some(warning),
        anew,
    };
    Ok(if found && offset > high {
        begin(
            format!(
                "{topic}/{number} ends at offset {high}, and reading was to go on at {offset}: the topic was made anew; it is read \
                 from offset {low}"
            ),
            known.kept.is_some(),
        )
    } else if found && offset < low {
        begin(
            format!(
                "{topic}/{number}: offsets {offset} to {} were deleted before they were read",
                low - 1
            ),
            false,
        )
    } else {
        Begin {
            offset,
            warning: None,
            anew: false,
        }
    })
}
