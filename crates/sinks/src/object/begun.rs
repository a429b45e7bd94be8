//! A local journal of the multipart uploads that this sink has begun and not yet published.
//!
//! ```text
//! SINK/uploads     a `millstream_state::Journal`: "+ID PATH" for an upload that was begun, "-ID" for one that was published
//! ```
//! Version 1 was a text with a line `ID PATH` for each upload.
//!
//! The next start aborts the uploads in the journal. A lost entry only leaves an unfinished upload in the object store. So
//! appended entries are not synced, and an unreadable journal counts as empty.

use std::{collections::HashSet, io, path::PathBuf, sync::Arc};

use millstream_state::{Error, Format, Journal, JournalFormat, Recovered};
use millstream_sys::disk::{Disk, HostDisk};

/// The format of the journal, with room for about 100,000 uploads.
const FORMAT: JournalFormat = JournalFormat {
    format: Format {
        magic: b"MILLUPLD",
        version: 2,
        bytes_max: 16 << 20,
        // A damaged journal is not reported: it counts as empty.
        remedy: "",
    },
    record_bytes_max: 64 << 10,
    copied: false,
};
/// The journal is replaced when it is longer than this.
const GROWN_BYTES: u64 = 64 << 10;

/// The uploads, as ids and paths.
type Uploads = Vec<(String, String)>;

/// The journal of uploads.
pub(super) struct Begun {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// The journal and its uploads; opened when they are first needed.
    open: Option<(Journal, Uploads)>,
    /// Ids of the uploads published since the last [`Begun::forget`].
    done: HashSet<String>,
}

impl Begun {
    pub(super) fn at(path: PathBuf) -> Self {
        Self::on(Arc::new(HostDisk), path)
    }

    fn on(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self {
            disk,
            path,
            open: None,
            done: HashSet::new(),
        }
    }

    /// Returns the uploads that were begun and not published.
    pub(super) fn all(&mut self) -> Uploads {
        // An unreadable journal counts as empty.
        let opened = self.open();
        opened.map_or_else(|_| Vec::new(), |(_, uploads)| uploads.clone())
    }

    /// Notes an upload that was begun.
    pub(super) fn note(&mut self, id: &str, path: &str) -> io::Result<()> {
        let (journal, uploads) = self.open()?;
        uploads.push((id.to_owned(), path.to_owned()));
        if journal.needs_replace() {
            replace(journal, uploads)?;
        } else {
            journal.append(&[b"+", id.as_bytes(), b" ", path.as_bytes()])?;
        }
        Ok(())
    }

    /// Marks an upload as published. The next [`Begun::forget`] removes it from the journal.
    pub(super) fn done(&mut self, id: String) {
        self.done.insert(id);
    }

    /// Removes the published uploads.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        let done = std::mem::take(&mut self.done);
        let (journal, uploads) = self.open()?;
        let before = uploads.len();
        uploads.retain(|(id, _)| !done.contains(id));
        if uploads.len() == before {
            return Ok(());
        }
        if journal.needs_replace() || journal.bytes() > GROWN_BYTES {
            replace(journal, uploads)?;
            return Ok(());
        }
        for id in &done {
            journal.append(&[b"-", id.as_bytes()])?;
        }
        Ok(())
    }

    /// Replaces the content of the journal with these uploads. Removes the journal if there are none.
    pub(super) fn keep(&mut self, left: &[(String, String)]) -> io::Result<()> {
        let path = self.path.clone();
        let disk = self.disk.clone();
        let (journal, uploads) = self.open()?;
        left.clone_into(uploads);
        if !left.is_empty() {
            replace(journal, uploads)?;
            return Ok(());
        }
        journal.invalidate();
        match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn open(&mut self) -> Result<&mut (Journal, Uploads), Error> {
        if let Some(opened) = self.open.take() {
            return Ok(self.open.insert(opened));
        }
        let open = || Journal::open(self.disk.clone(), self.path.clone(), FORMAT, older);
        let (journal, recovered) = match open() {
            Err(Error::TooLarge { .. } | Error::Newer { .. }) => {
                let _ = self.disk.remove(&self.path);
                open()?
            }
            opened => opened?,
        };
        let uploads = uploads(&recovered.unwrap_or_default());
        Ok(self.open.insert((journal, uploads)))
    }
}

fn replace(journal: &mut Journal, uploads: &Uploads) -> Result<(), Error> {
    let mut records = journal.replacement();
    for (id, path) in uploads {
        records.add(&[b"+", id.as_bytes(), b" ", path.as_bytes()]);
    }
    journal.replace(records)
}

/// Replays the records of a journal: returns the uploads that were begun and not published.
fn uploads(recovered: &Recovered) -> Uploads {
    let mut uploads = Uploads::new();
    for record in &recovered.records {
        let Ok(text) = std::str::from_utf8(&record.body) else {
            continue;
        };
        if let Some((id, path)) = text.strip_prefix('+').and_then(|text| text.split_once(' ')) {
            uploads.push((id.to_owned(), path.to_owned()));
        } else if let Some(done) = text.strip_prefix('-') {
            uploads.retain(|(id, _)| id != done);
        }
    }
    uploads
}

/// Converts a journal of version 1. Any other content counts as empty.
fn older([bytes, _]: [Option<&[u8]>; 2]) -> Option<Recovered> {
    let text = std::str::from_utf8(bytes?).unwrap_or_default();
    let lines = text.lines().filter(|line| line.contains(' '));
    let bodies = lines.map(|line| format!("+{line}").into_bytes());
    Some(Recovered::of(bodies.collect()))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use millstream_testkit::trial::{DIRECTORY, DurableState, Trial};

    use super::*;

    #[test]
    fn published_uploads_leave_the_journal_and_the_others_stay_for_the_next_start() {
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

    #[test]
    fn a_journal_of_version_1_is_read_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("uploads");
        fs::write(&file, "1 a b\n2 c\n").unwrap();
        let pair = |id: &str, path: &str| (id.to_owned(), path.to_owned());
        let mut begun = Begun::at(file.clone());
        assert_eq!(begun.all(), [pair("1", "a b"), pair("2", "c")]);
        begun.note("3", "d").unwrap();
        assert!(fs::read(&file).unwrap().starts_with(FORMAT.format.magic));
        let all = [pair("1", "a b"), pair("2", "c"), pair("3", "d")];
        assert_eq!(Begun::at(file).all(), all);
    }

    #[test]
    fn the_journal_stays_short_while_uploads_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("uploads");
        let mut begun = Begun::at(file.clone());
        for number in 0..3000 {
            begun.note(&number.to_string(), &"path".repeat(20)).unwrap();
            begun.done(number.to_string());
            begun.forget().unwrap();
        }
        assert!(fs::metadata(&file).unwrap().len() < 2 * GROWN_BYTES);
        assert!(Begun::at(file).all().is_empty());
    }

    impl DurableState for Begun {
        fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
            let mut begun = Self::on(disk, Path::new(DIRECTORY).join("uploads"));
            begun.all();
            Ok(begun)
        }

        /// Returns the id of the newest upload; the last three uploads stay in the journal.
        fn number(&self) -> u64 {
            let uploads = self.open.as_ref().map(|(_, uploads)| uploads);
            let newest = uploads.and_then(|uploads| uploads.last());
            newest.map_or(0, |(id, path)| {
                assert_eq!(*path, format!("path {id}"));
                id.parse().unwrap()
            })
        }

        fn advance(&mut self, number: u64) -> Result<(), String> {
            self.note(&number.to_string(), &format!("path {number}"))
                .map_err(|error| error.to_string())?;
            self.done(number.saturating_sub(3).to_string());
            self.forget().map_err(|error| error.to_string())
        }
    }

    #[test]
    fn the_journal_never_names_an_upload_that_was_not_begun() {
        Trial {
            durable: false,
            ..Trial::default()
        }
        .run::<Begun>();
    }
}
