//! Rotation: when a file gets another name, and what becomes of old ones.
//!
//! `take -> encode -> [write] -> settle`
//!
//! The new name is in the journal before the file has it, and in the directory, durably, before another file can take the old
//! one. A rotated file leaves the journal with the next commit; only then can `keep` remove one.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use millstream_pipeline::failure::Failure;
use millstream_record::Time;

use super::{files::Files, naming, output::Output, table::Change, trouble, writer::Writer};
use crate::directories::directory_of;

/// A file nothing was written to for so long is closed, so that one that was removed gives its room back, and leaves the
/// journal, unless a rule has to remember it.
const CLOSE_AFTER: Duration = Duration::from_secs(60);
/// The clock is looked at no more often, however many files are due one after the other.
const TICK_MIN: Duration = Duration::from_millis(50);

/// What the clock asks of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Rotate,
    Close,
}

/// When files are rotated; 0 = no such rule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rotate {
    /// Before a record would make it larger.
    pub(super) size: u64,
    /// After so many records.
    pub(super) records: u64,
    /// So long after its first record.
    pub(super) interval: Duration,
    /// So long after its last record.
    pub(super) idle: Duration,
    /// So many rotated files stay.
    pub(super) keep: usize,
}

impl Rotate {
    /// Whether there is any rule.
    pub(super) fn is_any(&self) -> bool {
        self.size > 0 || self.records > 0 || !self.interval.is_zero() || !self.idle.is_zero()
    }

    /// Whether `bytes` more in `records` records fit behind what a file holds and what waits for it. The first record of a
    /// file always does, however long it is.
    pub(super) fn fits(&self, output: &Output, bytes: u64, records: u64) -> bool {
        let (length, count) = (
            output.length + output.chain.bytes,
            output.records + output.chain.records,
        );
        let under = |limit: u64, sum: u64| limit == 0 || sum <= limit;
        under(self.size, length + bytes) && under(self.records, count + records)
    }

    /// Whether a good part of the size of a file, and a record, are left.
    pub(super) fn has_room(&self, output: &Output) -> bool {
        let left = self.size.saturating_sub(output.length);
        left > self.size / 16 && (self.records == 0 || output.records < self.records)
    }

    /// Whether the time of a file is up when a batch comes that was received at `received`. By that time and not by the clock, so
    /// that a backlog is cut where it would have been cut in time.
    pub(super) fn is_old(&self, output: &Output, received: Time) -> bool {
        !self.interval.is_zero()
            && output.length + output.chain.bytes > 0
            && later(output.since, self.interval) <= received
    }

    /// No file that is written now is due before this.
    pub(super) fn soonest(&self, now: Instant) -> Instant {
        let rules = [self.interval, self.idle]
            .into_iter()
            .filter(|rule| !rule.is_zero());
        now + rules.min().unwrap_or(CLOSE_AFTER).min(CLOSE_AFTER)
    }

    /// When a file is due, and for what. By a clock that never jumps: after a jump of the wall clock `is_old` may be wrong for as
    /// long as the jump was.
    fn due(&self, output: &Output) -> Option<(Instant, Due)> {
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

    /// Whether a rule asks what was written to a file long ago.
    fn remembers(&self, output: &Output) -> bool {
        output.length > 0 && (self.records > 0 || !self.interval.is_zero() || !self.idle.is_zero())
    }
}

/// A time some while after another.
fn later(time: Time, by: Duration) -> Time {
    Time(
        time.0
            .saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)),
    )
}

impl Writer {
    /// Whether so many more bytes in so many records fit into the file.
    pub(super) fn fits(&self, id: u32, bytes: usize, records: u32) -> bool {
        let output = self.files.get(id);
        let header = match output.length {
            0 => self.style.header.len(),
            _ => 0,
        };
        let bytes = (header + bytes) as u64;
        self.rotate.fits(output, bytes, u64::from(records))
    }

    /// Whether a compressed file has turned out short enough to take a good deal more, as its text would not have been.
    pub(super) fn has_room(&self, id: u32) -> bool {
        let output = self.files.get(id);
        self.holds() && !output.let_go && self.rotate.has_room(output)
    }

    /// Gives file `id` its rotated name; nothing waits for it. The next record makes a new file.
    pub(super) fn rotate(&mut self, id: u32, time: Time) -> Result<(), Failure> {
        if self.files.get(id).let_go {
            return Ok(());
        }
        let id = self.files.ready(id)?;
        let output = self.files.get(id);
        // What was moved away by somebody else meanwhile needs no other name.
        if output.length == 0 {
            return Ok(());
        }
        let path = output.path.clone();
        self.enter(id);
        let to = loop {
            let to = naming::rotated(&path, time, self.table.number);
            self.change(Change::Number(self.table.number + 1));
            match self.files.disk.metadata(&to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break to,
                Err(error) => return Err(trouble("look at", &to, &error)),
                Ok(_) => {}
            }
        };
        self.change(Change::Rename(id, to.clone()));
        self.note()?;
        self.files.close(&[id])?;
        self.files
            .disk
            .rename(&path, &to)
            .map_err(|error| trouble("rotate", &path, &error))?;
        let directory = directory_of(&path);
        self.files
            .disk
            .sync_directory(directory)
            .map_err(|error| trouble("sync the directory", directory, &error))?;
        self.files.retire(id);
        self.rotated_files.add(1);
        if self.rotate.keep > 0 && !self.rotated.contains(&path) {
            self.rotated.push(path);
        }
        Ok(())
    }

    /// Removes old rotations of what was rotated since the last commit. A failure costs nothing but room.
    pub(super) fn prune(&mut self) {
        for path in std::mem::take(&mut self.rotated) {
            if let Err((at, error)) = prune(&self.files, &path, self.rotate.keep) {
                self.reporter
                    .warn("prune", trouble("remove the old file", &at, &error));
            }
        }
    }

    /// Rotates and closes what is due by the clock; nothing waits. Returns when to come again, if ever.
    pub(super) fn tick(&mut self) -> Result<Option<Instant>, Failure> {
        let now = self.files.now;
        let mut rotated = false;
        for (id, due, what) in self.dues() {
            if due > now {
                continue;
            }
            if what == Due::Rotate {
                self.rotate(id, Time::now())?;
                rotated = true;
                continue;
            }
            self.files.close(&[id])?;
            let output = self.files.get(id);
            if output.is_clean() && !self.rotate.remembers(output) {
                if output.entered {
                    self.change(Change::Leave(id));
                }
                self.files.remove(id);
            }
        }
        // Between two commits only: else the next one is near.
        if self.is_clean() {
            if rotated {
                self.commit(None)?;
            }
            self.note()?;
        }
        let next = self.dues().into_iter().map(|(_, due, _)| due).min();
        Ok(next.map(|due| due.max(now + TICK_MIN)))
    }

    fn dues(&self) -> Vec<(u32, Instant, Due)> {
        let dues = self.files.iter().filter_map(|(id, output)| {
            let (due, what) = self.rotate.due(output)?;
            Some((id, due, what))
        });
        dues.collect()
    }
}

fn prune(files: &Files, path: &Path, keep: usize) -> Result<(), (std::path::PathBuf, io::Error)> {
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
