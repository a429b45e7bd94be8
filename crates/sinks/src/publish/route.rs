//! Splits a batch into runs: neighboring records that go to the same directory.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! A directory that all records of a batch share is rendered once. A run is short, so that the encoded text of a large batch
//! is never in memory as a whole and an output does not exceed its size limit by much.

use std::ops::Range;

use millstream_record::{Batch, Encoding};
use millstream_wire::{
    format::{Reason, Reject},
    record::records,
    template::{Depends, Missing, Renderer},
};

/// A run that has this many bytes takes no more records.
const RUN_BYTES: usize = 256 << 10;

/// Neighboring records of a batch that go to the same directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The index of the directory in [`Routes::directories`].
    pub(super) directory: usize,
    /// The range of the records in the body of the batch.
    pub(super) range: Range<usize>,
}

/// A batch split into runs.
#[derive(Default)]
pub(super) struct Routes {
    /// The directories in the order of their first records.
    pub(super) directories: Vec<String>,
    /// The runs, in order.
    pub(super) runs: Vec<Run>,
    /// Records without a directory.
    pub(super) rejects: Vec<Reject>,
    name: Vec<u8>,
}

impl Routes {
    /// Finds the directory of every record.
    pub(super) fn take(&mut self, batch: &Batch, directory: &mut Renderer) {
        self.directories.clear();
        self.runs.clear();
        self.rejects.clear();
        let depends = directory.depends();
        // All lines of a batch have the same time.
        if depends < Depends::Time || depends == Depends::Time && batch.encoding == Encoding::Lines
        {
            self.take_whole(batch, directory);
        } else {
            self.take_apart(batch, directory);
        }
    }

    fn take_whole(&mut self, batch: &Batch, directory: &mut Renderer) {
        self.name.clear();
        if let Err(missing) = directory.render_batch(batch, &mut self.name) {
            let ranges = records(batch).map(|(range, _)| range);
            self.rejects
                .extend(ranges.map(|range| no_directory(range, &missing)));
            return;
        }
        self.enter();
        if batch.body.len() <= RUN_BYTES {
            self.runs.push(Run {
                directory: 0,
                range: 0..batch.body.len(),
            });
            return;
        }
        for (range, _) in records(batch) {
            self.push(0, range);
        }
    }

    /// Renders the directory of each record.
    fn take_apart(&mut self, batch: &Batch, directory: &mut Renderer) {
        let by_time = directory.depends() == Depends::Time;
        let mut known = None;
        for (range, event) in records(batch) {
            let same = by_time && known.is_some_and(|time| directory.same_time(time, event.time));
            if !same {
                self.name.clear();
                if let Err(missing) = directory.render(batch.into(), event, &mut self.name) {
                    self.rejects.push(no_directory(range, &missing));
                    known = None;
                    continue;
                }
                let current = self.directories.last();
                if current.is_none_or(|directory| directory.as_bytes() != self.name) {
                    self.enter();
                }
                known = Some(event.time);
            }
            self.push(self.directories.len() - 1, range);
        }
    }

    fn enter(&mut self) {
        let name = String::from_utf8_lossy(&self.name);
        self.directories.push(name.into_owned());
    }

    fn push(&mut self, directory: usize, range: Range<usize>) {
        match self.runs.last_mut() {
            Some(run)
                if run.directory == directory
                    && run.range.end == range.start
                    && run.range.len() < RUN_BYTES =>
            {
                run.range.end = range.end;
            }
            _ => self.runs.push(Run { directory, range }),
        }
    }
}

fn no_directory(range: Range<usize>, missing: &Missing) -> Reject {
    Reject {
        range,
        reason: Reason::Missing(missing.clone()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use millstream_wire::template::Template;

    use super::*;
    use crate::rig::{lines, packed};

    fn routes(template: &str, batch: &Batch) -> Routes {
        let template = Template::parse(template).unwrap();
        let mut routes = Routes::default();
        routes.take(batch, &mut Renderer::path(&template, TimeZone::UTC));
        routes
    }

    #[test]
    fn neighboring_records_of_one_directory_are_one_run() {
        let routes = routes("x/{.message}", &packed("t", "a\na\nb\na\n"));
        assert_eq!(routes.directories, ["x/a", "x/b", "x/a"]);
        assert_eq!(routes.runs.len(), 3);
        assert_eq!(routes.runs[0].range.end, routes.runs[1].range.start);
    }

    #[test]
    fn records_without_a_value_for_their_directory_are_rejected() {
        let routes = routes("{.message}/{host}", &packed("t", "a\nb\n"));
        assert!(routes.runs.is_empty());
        assert_eq!(routes.rejects.len(), 2);
    }

    #[test]
    fn a_large_batch_becomes_several_runs_of_whole_records() {
        let text = "0123456789abcde\n".repeat(100_000);
        let routes = routes("{tag}/%Y", &lines("web", &text));
        assert_eq!(routes.directories, ["web/2023"]);
        assert_eq!(routes.runs.len(), (16 * 100_000usize).div_ceil(RUN_BYTES));
        let mut end = 0;
        for run in &routes.runs {
            assert_eq!((run.range.start, run.range.end % 16), (end, 0));
            end = run.range.end;
        }
        assert_eq!(end, text.len());
    }
}
