//! The note of uploads that were begun, on this machine: a line each, `ID PATH`.
//!
//! What is published leaves it again, so that it is no longer than what stands between two manifests. A note that is lost
//! costs room in the store, nothing else.

use std::{
    collections::HashSet,
    fs,
    io::{self, Write},
    path::PathBuf,
};

use millstream_pipeline::state;
use millstream_sys::private;

/// A larger note is damaged: 100,000 uploads stand in one of this size.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The note.
pub(super) struct Begun {
    file: PathBuf,
    /// Published since the last look: they can go.
    done: HashSet<String>,
}

impl Begun {
    pub(super) fn at(file: PathBuf) -> Self {
        Self {
            file,
            done: HashSet::new(),
        }
    }

    /// Notes an upload.
    pub(super) fn note(&self, id: &str, path: &str) -> io::Result<()> {
        if let Some(directory) = self.file.parent() {
            private::create_dir_all(directory)?;
        }
        let mut file = private::options()
            .append(true)
            .create(true)
            .open(&self.file)?;
        file.write_all(format!("{id} {path}\n").as_bytes())
    }

    /// An upload is published: the next [`Begun::forget`] leaves it out.
    pub(super) fn done(&mut self, id: String) {
        self.done.insert(id);
    }

    /// Forgets what is done.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        let done = std::mem::take(&mut self.done);
        let mut left = self.all();
        left.retain(|(id, _)| !done.contains(id));
        self.keep(&left)
    }

    /// All that is noted: ids and paths.
    pub(super) fn all(&self) -> Vec<(String, String)> {
        // A note that cannot be read is lost.
        let bytes = state::read(&self.file, FILE_BYTES_MAX, "").ok().flatten();
        let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .map(|(id, path)| (id.to_owned(), path.to_owned()))
            .collect()
    }

    /// Notes these alone.
    pub(super) fn keep(&self, uploads: &[(String, String)]) -> io::Result<()> {
        if uploads.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let lines = uploads.iter().map(|(id, path)| format!("{id} {path}\n"));
        let new = self.file.with_extension("new");
        private::write(&new, lines.collect::<String>().as_bytes())?;
        fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_leaves_the_note_and_the_rest_stays_for_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sink/uploads");
        let mut begun = Begun::at(file.clone());
        assert!(begun.all().is_empty());
        for (id, path) in [("1", "a b"), ("2", "c"), ("3", "d")] {
            begun.note(id, path).unwrap();
        }
        begun.done("1".to_owned());
        begun.done("3".to_owned());
        begun.forget().unwrap();
        let left = [("2".to_owned(), "c".to_owned())];
        assert_eq!(Begun::at(file.clone()).all(), left);
        begun.note("4", "a b").unwrap();
        begun.done("2".to_owned());
        begun.forget().unwrap();
        assert_eq!(begun.all(), [("4".to_owned(), "a b".to_owned())]);
        begun.keep(&[]).unwrap();
        begun.keep(&[]).unwrap();
        assert!(!file.exists());
    }
}
