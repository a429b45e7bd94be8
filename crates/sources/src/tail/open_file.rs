//! The open file of a reader.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use millstream_pipeline::meters::Meter;

use super::{
    identity::{Inode, Seen, Stat},
    turns::Turn,
};

/// A file is closed if it was not written for this time. It is opened again after the next write.
const CLOSE_AFTER: Duration = Duration::from_secs(600);

/// A file that is opened on demand.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: Option<(fs::File, Turn)>,
    open_files: Meter,
}

impl OpenFile {
    /// A file that is not open yet. The gauge `open_files` counts it while it is open.
    pub(super) fn new(open_files: Meter) -> Self {
        Self {
            file: None,
            open_files,
        }
    }

    /// The file, if it is open.
    pub(super) fn get(&self) -> Option<&fs::File> {
        self.file.as_ref().map(|(file, _)| file)
    }

    /// Opens the file for the time of `turn`, unless it is open. Returns false if the path does not exist or now leads to another
    /// file.
    pub(super) fn open(&mut self, path: &Path, inode: Inode, turn: Turn) -> io::Result<bool> {
        if self.file.is_some() {
            return Ok(true);
        }
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if Stat::of(&file)?.inode != inode {
            return Ok(false);
        }
        self.open_files.add(1);
        self.file = Some((file, turn));
        Ok(true)
    }

    /// Closes the file if it has not been written for a long time.
    pub(super) fn close_if_old(&mut self) {
        let is_old = |file| Stat::of(file).is_ok_and(|stat| stat.age() > CLOSE_AFTER);
        if self.get().is_some_and(is_old) {
            self.close();
        }
    }

    /// Whether the file can be opened again: it is open, and `path` leads to it.
    pub(super) fn is_at(&self, path: &Path, inode: Inode) -> bool {
        self.get().is_some() && Stat::at(path).is_ok_and(|stat| stat.inode == inode)
    }

    /// Whether other files may have their turn.
    pub(super) fn had_turn(&self) -> bool {
        self.file.as_ref().is_some_and(|(_, turn)| turn.is_over())
    }

    /// Closes the file.
    pub(super) fn close(&mut self) {
        if self.file.take().is_some() {
            self.open_files.sub(1);
        }
    }

    /// The current length of the file and the time of its last write, if it is open.
    pub(super) fn seen(&self) -> Option<Seen> {
        Some(Stat::of(self.get()?).ok()?.seen())
    }

    /// When the file was last written. None if the file is closed, or if that time lies in the future because the clock was set
    /// back.
    pub(super) fn written_at(&self) -> Option<Instant> {
        Stat::of(self.get()?).ok()?.written_at()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_under_the_same_name_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&path, "first").unwrap();
        let inode = Stat::at(&path).unwrap().inode;
        let meter = Meter::default();
        let mut file = OpenFile::new(meter.clone());
        let turn = || Turn::now().unwrap();
        assert!(file.open(&path, inode, turn()).unwrap());
        assert!(file.open(&path, inode, turn()).unwrap());
        assert_eq!(file.seen(), Some(Stat::at(&path).unwrap().seen()));
        assert_eq!(meter.get(), 1);
        assert!(file.is_at(&path, inode) && !file.is_at(&other, inode));
        file.close_if_old();
        assert!(file.get().is_some(), "it was just written");
        drop(file);
        assert_eq!(meter.get(), 0);
        let mut file = OpenFile::new(meter.clone());
        fs::rename(&path, &other).unwrap();
        assert!(!file.open(&path, inode, turn()).unwrap());
        fs::write(&path, "second").unwrap();
        assert!(!file.open(&path, inode, turn()).unwrap());
        assert!(file.open(&other, inode, turn()).unwrap());
    }
}
