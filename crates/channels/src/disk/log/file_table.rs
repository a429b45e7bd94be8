//! The table of tailed files: the offset up to which the channel holds each file.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_record::{FileId, FileOrigin};

type Offsets = HashMap<FileId, u64, foldhash::fast::RandomState>;

/// Maximum number of files in the table. Their entries take 40 MB in the header of every segment, which is below the limit for a header.
/// Above this number, the older half of the files (by their birth time) is forgotten; forgotten files that still exist are read again.
const FILES_MAX: usize = 1_000_000;

/// The offset of the next byte of every tailed file, separately for frames that are staged, written and kept.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    /// The offsets after frames that are staged and not yet written.
    staged: Offsets,
    /// The offsets after frames that are written. The header of the next segment holds this table.
    written: Offsets,
    /// The offsets after frames that are kept. Sources read this table from other threads.
    kept: KeptFiles,
}

/// The offset up to which every tailed file is kept; shared with other threads.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptFiles(Arc<Mutex<Offsets>>);

impl KeptFiles {
    pub(super) fn lock(&self) -> MutexGuard<'_, Offsets> {
        // No holder of the lock can panic in the middle of a change, so the data is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileTable {
    /// The offset after the last byte of `file` that is in a frame, staged frames included; `None` if the file is unknown.
    pub(super) fn next(&self, file: &FileId) -> Option<u64> {
        let staged = self.staged.get(file);
        staged.or_else(|| self.written.get(file)).copied()
    }

    /// The number of files in the header of the next segment.
    pub(super) fn len(&self) -> usize {
        self.written.len()
    }

    /// The table of kept files, to share with other threads.
    pub(super) fn kept(&self) -> &KeptFiles {
        &self.kept
    }

    /// Adds the table from the header of a segment.
    pub(super) fn restore(&mut self, files: &[(FileId, u64)]) {
        self.written.extend(files.iter().copied());
    }

    /// Ends a recovery: all restored offsets now count as kept.
    pub(super) fn keep_restored(&mut self) {
        self.kept.lock().extend(&self.written);
    }

    /// Notes that a frame with this origin is staged.
    pub(super) fn stage(&mut self, origin: &FileOrigin) {
        self.staged.insert(origin.file, origin.next);
    }

    /// Whether a staged frame advances this file.
    pub(super) fn is_staged(&self, file: &FileId) -> bool {
        self.staged.contains_key(file)
    }

    /// Notes that frames with these origins are staged, and no others.
    pub(super) fn restage<'a>(&mut self, origins: impl Iterator<Item = &'a FileOrigin>) {
        self.clear_staged();
        origins.for_each(|origin| self.stage(origin));
    }

    /// Notes that no frame is staged any more.
    pub(super) fn clear_staged(&mut self) {
        self.staged.clear();
    }

    /// Notes that a frame with this origin is written. Returns the offset of the file before this frame; `None` if the file was unknown.
    pub(super) fn write(&mut self, origin: &FileOrigin) -> Option<u64> {
        let before = self.written.insert(origin.file, origin.next);
        if self.written.len() > FILES_MAX {
            self.forget_older_half();
        }
        before
    }

    fn forget_older_half(&mut self) {
        let mut births: Vec<i64> = self.written.keys().map(|file| file.birth).collect();
        let middle = births.len() / 2;
        let (_, median, _) = births.select_nth_unstable(middle);
        let median = *median;
        self.written.retain(|file, _| file.birth > median);
    }

    /// Undoes frames that turned out not to be durable. `advanced` holds an entry for each frame, in order: the file, and the offset of the
    /// file before the frame.
    pub(super) fn undo(&mut self, advanced: Vec<(FileId, Option<u64>)>) {
        for (file, before) in advanced.into_iter().rev() {
            match before {
                Some(next) => self.written.insert(file, next),
                None => self.written.remove(&file),
            };
        }
    }

    /// All written entries, sorted, so that equal runs write equal bytes.
    pub(super) fn sorted(&self) -> Vec<(FileId, u64)> {
        let entries = self.written.iter().map(|(file, next)| (*file, *next));
        let mut all: Vec<_> = entries.collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(inode: u64, begin: u64, next: u64) -> FileOrigin {
        let file = FileId {
            device: 1,
            inode,
            birth: 5,
            head: 9,
        };
        FileOrigin { file, begin, next }
    }

    #[test]
    fn a_staged_offset_counts_until_it_is_cleared_and_a_written_one_can_be_undone() {
        let mut table = FileTable::default();
        let (first, second) = (origin(1, 0, 10), origin(1, 10, 25));
        assert_eq!(table.write(&first), None);
        table.stage(&second);
        assert_eq!(table.next(&second.file), Some(25));
        table.clear_staged();
        assert_eq!(table.next(&second.file), Some(10));
        let before = table.write(&second);
        assert_eq!(table.sorted(), [(second.file, 25)]);
        table.undo(vec![(first.file, None), (second.file, before)]);
        assert_eq!(table.next(&second.file), None);
    }
}
