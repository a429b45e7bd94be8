//! Rotation: when a file is renamed, how, and which old files are removed.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `encode -> [write] -> settle`
//!
//! The new name is written to the journal before the file is renamed, and the directory is synced before another file can take the
//! old name. A rotated file leaves the journal with the next commit; only then can `keep` remove it.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use millstream_pipeline::{failure::Failure, meters::Meter, report::Reporter};
use millstream_record::Time;

use super::{
    failure::cannot, files::Files, ledger::Ledger, naming, numbering::Numbering, output::Output,
    table::Change,
};
use crate::directories::directory_of;

/// A file that gets no writes for this long is closed: if another process has removed the file, that frees its space. The file also
/// leaves the journal, unless a rule still needs its record count or times.
const CLOSE_AFTER: Duration = Duration::from_secs(60);

/// The action that is due for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Rotate,
    Close,
}

/// When files are rotated. 0 turns a rule off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// Maximum size of a file: the file is rotated before a record would exceed this size.
    pub(super) size: u64,
    /// Maximum number of records in a file.
    pub(super) records: u64,
    /// Maximum time from the first record of a file to its rotation.
    pub(super) interval: Duration,
    /// Maximum time from the last record of a file to its rotation.
    pub(super) idle: Duration,
    /// Number of rotated files to keep for each path.
    pub(super) keep: usize,
}

impl Rules {
    /// Whether there is any rule.
    pub(super) fn is_any(&self) -> bool {
        self.size > 0 || self.records > 0 || !self.interval.is_zero() || !self.idle.is_zero()
    }

    /// Whether `records` more records with `bytes` bytes fit into the file after its content and its pending records.
    pub(super) fn fits(&self, output: &Output, bytes: u64, records: u64) -> bool {
        let (length, count) = (
            output.length + output.chain.bytes,
            output.records + output.chain.records,
        );
        let under = |limit: u64, sum: u64| limit == 0 || sum <= limit;
        under(self.size, length + bytes) && under(self.records, count + records)
    }

    /// Whether the file has room for more than a sixteenth of the maximum size, and for one more record.
    pub(super) fn has_room(&self, output: &Output) -> bool {
        let left = self.size.saturating_sub(output.length);
        left > self.size / 16 && (self.records == 0 || output.records < self.records)
    }

    /// Whether the file is too old for a batch received at `received` (`interval`). Receive times and not the clock decide, so that
    /// a backlog is divided as if it had been written on time.
    pub(super) fn is_old(&self, output: &Output, received: Time) -> bool {
        !self.interval.is_zero()
            && output.length + output.chain.bytes > 0
            && later(output.since, self.interval) <= received
    }

    /// Returns a time before which no file that is written now becomes due for rotation or closing.
    pub(super) fn soonest(&self, now: Instant) -> Instant {
        let rules = [self.interval, self.idle]
            .into_iter()
            .filter(|rule| !rule.is_zero());
        now + rules.min().unwrap_or(CLOSE_AFTER).min(CLOSE_AFTER)
    }

    /// Returns the next action that is due for a file, and when. Uses the monotonic clock; `is_old` uses wall-clock times, so a
    /// jump of the wall clock can make a rotation by `is_old` early or late.
    pub(super) fn due(&self, output: &Output) -> Option<(Instant, Due)> {
        if output.let_go {
            return None;
        }
        let interval = (!self.interval.is_zero()).then(|| output.begun + self.interval);
        let idle = (!self.idle.is_zero()).then(|| output.written + self.idle);
        let rotate = interval
            .into_iter()
            .chain(idle)
            .min()
            .filter(|_| output.length > 0);
        let closes = output.file.is_some() || !self.remembers(output);
        let close = closes.then(|| output.written + CLOSE_AFTER);
        match (rotate, close) {
            (Some(rotate), Some(close)) if close < rotate => Some((close, Due::Close)),
            (Some(rotate), _) => Some((rotate, Due::Rotate)),
            (None, close) => Some((close?, Due::Close)),
        }
    }

    /// Whether a rule needs the record count or the times of a file, even long after its last write.
    pub(super) fn remembers(&self, output: &Output) -> bool {
        output.length > 0 && (self.records > 0 || !self.interval.is_zero() || !self.idle.is_zero())
    }
}

/// Returns `time` plus `by`.
fn later(time: Time, by: Duration) -> Time {
    Time(
        time.0
            .saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)),
    )
}

/// Renames files and removes old ones.
pub(super) struct Rotation {
    pub(super) rules: Rules,
    numbering: Numbering,
    /// Paths rotated since the last commit. After the next commit their old rotated files can be removed.
    rotated: Vec<PathBuf>,
    count: Meter,
}

impl Rotation {
    /// `count` counts the rotated files.
    pub(super) fn new(rules: Rules, count: Meter) -> Self {
        Self {
            rules,
            numbering: Numbering::default(),
            rotated: Vec::new(),
            count,
        }
    }

    /// Gives file `id`, which has no pending records, its rotated name. The next record creates a new file.
    pub(super) fn rotate(
        &mut self,
        files: &mut Files,
        ledger: &mut Ledger,
        mut id: u32,
        time: Time,
    ) -> Result<(), Failure> {
        if files.outputs.get(id).let_go {
            return Ok(());
        }
        files.ready(&mut id)?;
        let output = files.outputs.get_mut(id);
        // If another process has moved the file away in the meantime, `id` is a new, empty file, which is not rotated.
        if output.length == 0 {
            return Ok(());
        }
        let path = output.path.clone();
        ledger.enter(id, output);
        let mut number = ledger.table().number;
        let to = self
            .numbering
            .name(&*files.disk, &path, time, &mut number)?;
        ledger.change(Change::Number(number));
        ledger.change(Change::Rename(id, to.clone()));
        ledger.note()?;
        files.close(&[id])?;
        files
            .disk
            .rename(&path, &to)
            .map_err(|error| cannot("rotate", &path, &error))?;
        let directory = directory_of(&path);
        files
            .disk
            .sync_directory(directory)
            .map_err(|error| cannot("sync the directory", directory, &error))?;
        files.outputs.retire(id);
        self.count.add(1);
        if self.rules.keep > 0 && !self.rotated.contains(&path) {
            self.rotated.push(path);
        }
        Ok(())
    }

    /// Removes old rotated files of the paths rotated since the last commit. A failure is only logged, because its only cost is
    /// disk space.
    pub(super) fn prune(&mut self, files: &Files, reporter: &Reporter) {
        for path in std::mem::take(&mut self.rotated) {
            if let Err((at, error)) = prune(files, &path, self.rules.keep) {
                reporter.warn("prune", cannot("remove the old file", &at, &error));
            }
        }
    }
}

fn prune(files: &Files, path: &Path, keep: usize) -> Result<(), (PathBuf, io::Error)> {
    let (directory, Some(name)) = (directory_of(path), path.file_name()) else {
        return Ok(());
    };
    let names = files
        .disk
        .list(directory)
        .map_err(|error| (directory.to_owned(), error))?;
    for old in naming::superfluous(name, names, keep) {
        let old = directory.join(old);
        files.disk.remove(&old).map_err(|error| (old, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_file_is_due_for_rotation_and_an_empty_one_for_closing() {
        let now = Instant::now();
        let mut output = Output::new(Path::new("/a"), Time(0), now);
        let rules = Rules {
            idle: Duration::from_secs(5),
            ..Rules::default()
        };
        assert_eq!(rules.due(&output), Some((now + CLOSE_AFTER, Due::Close)));
        output.length = 1;
        let soon = now + Duration::from_secs(5);
        assert_eq!(rules.due(&output), Some((soon, Due::Rotate)));
        output.let_go = true;
        assert_eq!(rules.due(&output), None);
    }
}
