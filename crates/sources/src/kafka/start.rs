//! Finds where to begin reading a partition.
//!
//! | partitions | next channel | begins at |
//! |---|---|---|
//! | fixed | disk | the offset of the channel, otherwise that of the group, otherwise `start` |
//! | fixed | memory | the offset of the group, otherwise `start` |
//! | assigned by the group | disk | the larger offset of group and channel, otherwise `start` |
//! | assigned by the group | memory | the offset of the group, otherwise `start` |
//!
//! If the partition does not have that offset (because the topic was recreated, or the oldest records were deleted), the source
//! reports this and begins at the oldest record.

use std::time::Duration;

use millstream_kafka::{Consumer, Error, Partition};
use millstream_pipeline::outlet::Outlet;
use millstream_record::FileId;

use super::options::Start;

/// How long a broker may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// The known offsets of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The offset of the group.
    pub(super) committed: Option<u64>,
    /// The offset of the channel. With several channels, the lowest of their offsets.
    pub(super) kept: Option<u64>,
    /// Whether the partition is fixed.
    pub(super) fixed: bool,
}

impl Known {
    /// The offset to begin at, if one is known.
    pub(super) fn offset(self) -> Option<u64> {
        match (self.fixed, self.kept) {
            (true, Some(kept)) => Some(kept),
            (true, None) => self.committed,
            (false, kept) => self.committed.max(kept),
        }
    }
}

/// The lowest offset that the channels of an outlet have for a partition. None if one of the
/// channels is not durable or does not know the partition.
pub(super) fn lowest_kept(outlet: &Outlet, id: FileId) -> Option<u64> {
    let origins = outlet.file_origins()?.into_iter();
    origins
        .filter(|(file, _)| *file == id)
        .map(|(_, next)| next)
        .next()
}

/// Where a partition begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) offset: u64,
    /// A warning for the operator.
    pub(super) warning: Option<String>,
    /// Whether the channel has an offset that must be set to the new beginning, because the known offset was beyond the end of the
    /// partition.
    pub(super) anew: bool,
}

/// Finds where a partition begins. `answer`: how long a broker may take to answer.
pub(super) fn find(
    consumer: &mut dyn Consumer,
    partition: &Partition,
    known: Known,
    start: Start,
    answer: Duration,
) -> Result<Begin, Error> {
    let (low, high) = consumer.bounds(partition, answer)?;
    let (offset, found) = match (known.offset(), start) {
        (Some(offset), _) => (offset, true),
        (None, Start::Beginning) => (low, false),
        (None, Start::End) => (high, false),
        (None, Start::Time(time)) => (consumer.offset_at(partition, time, answer)?, false),
    };
    // If a transaction is open, `high` lies before its records, and the end of the partition lies after them. A known offset
    // between the two may come from a reset of the group's offsets, or from a reader of uncommitted records.
    let end = if found && offset > high {
        consumer.end(partition, answer)?
    } else {
        high
    };
    let Partition { topic, number } = partition;
    let begin = |warning: String, anew| Begin {
        offset: low,
        warning: Some(warning),
        anew,
    };
    Ok(if found && offset > end {
        begin(
            format!(
                "{topic}/{number} ends at offset {end}, but reading should continue at {offset}: the topic was recreated; it is read \
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
