//! Which tags no consumer takes. Their records are kept and settled, and reach no sink; so they are counted.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use millstream_pipeline::{channel::Consumer, tags::TagFilter};
use millstream_record::{Batch, Tag};

/// Verdicts to remember. Peers choose tags, so the number of tags has no bound of its own.
const VERDICTS_MAX: usize = 4096;

/// The tag filters of all consumers, and what passed none of them.
#[derive(Default)]
pub(super) struct Claims {
    /// Empty where every tag is taken, or where there is no consumer: then everything is held.
    filters: Vec<TagFilter>,
    /// Whether a tag is taken.
    verdicts: HashMap<Tag, bool, RandomState>,
    unclaimed: Option<Unclaimed>,
}

/// Records that no consumer takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// How many were kept since the last look.
    pub records: u64,
    /// The tag of the newest of them.
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
        let before = self.take().map_or(0, |unclaimed| unclaimed.records);
        self.unclaimed = Some(Unclaimed {
            records: before + u64::from(batch.count),
            tag: batch.tag.clone(),
        });
    }

    /// What was counted since the last call.
    pub(super) fn take(&mut self) -> Option<Unclaimed> {
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
