//! Counts the records whose tag no consumer takes: they are kept and settled, and reach no sink.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use millstream_pipeline::{channel::Consumer, tags::TagFilter};
use millstream_record::{Batch, Tag};

/// The maximum number of entries in [`Claims::verdicts`]. Peers choose the tags, so nothing else limits the number of tags.
const VERDICTS_MAX: usize = 4096;

/// The tag filters of all consumers, and the records that passed none of them.
#[derive(Default)]
pub(super) struct Claims {
    /// The filters of all consumers. Empty if some consumer takes every tag, or if there is no consumer; in both cases no record counts as
    /// unclaimed.
    filters: Vec<TagFilter>,
    /// For each tag seen so far, whether some consumer takes it.
    verdicts: HashMap<Tag, bool, RandomState>,
    unclaimed: Option<Unclaimed>,
}

/// Records that no consumer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// How many were kept since the last call of [`super::Log::drain_unclaimed`].
    pub records: u64,
    /// The tag of the newest of these records.
    pub tag: Tag,
}

impl Claims {
    pub(super) fn of(consumers: &[Consumer]) -> Self {
        let filters: Option<Vec<_>> = consumers.iter().map(|c| c.tags.clone()).collect();
        Self {
            filters: filters.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Counts a batch that has just been kept.
    pub(super) fn count(&mut self, batch: &Batch) {
        if self.filters.is_empty() || batch.count == 0 || self.is_taken(&batch.tag) {
            return;
        }
        let before = self.drain().map_or(0, |unclaimed| unclaimed.records);
        self.unclaimed = Some(Unclaimed {
            records: before + u64::from(batch.count),
            tag: batch.tag.clone(),
        });
    }

    /// The records counted since the last call; `None` if there are none.
    pub(super) fn drain(&mut self) -> Option<Unclaimed> {
        self.unclaimed.take()
    }

    fn is_taken(&mut self, tag: &Tag) -> bool {
        if let Some(verdict) = self.verdicts.get(tag) {
            return *verdict;
        }
        let verdict = self.filters.iter().any(|filter| filter.takes(tag.as_str()));
        if self.verdicts.len() >= VERDICTS_MAX {
            self.verdicts.clear();
        }
        self.verdicts.insert(tag.clone(), verdict);
        verdict
    }
}
