//! Copies of records: into a file outside the mount, or back into the mount, where another rule treats them.

use std::{
    borrow::Cow,
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding};
use millstream_wire::format::{Format, Options};

/// The target of the copies of one open file.
#[derive(Debug)]
pub(super) enum Tee {
    File(Arc<TeeFile>),
    /// A path below the mount. The records do not pass the kernel: a request to the own mount could wait for itself.
    Inside(String),
}

impl Tee {
    /// Makes everything durable that was written to a file.
    pub(super) async fn sync(&self) -> io::Result<()> {
        let Self::File(file) = self else {
            return Ok(());
        };
        let file = file.clone();
        blocking(move || file.sync()).await
    }
}

async fn blocking(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

/// A file that gets copies. After log rotation has moved the file away, the path is opened again. If there is no file at the
/// path, one is created.
#[derive(Debug)]
pub(super) struct TeeFile {
    path: PathBuf,
    file: Mutex<Option<fs::File>>,
}

impl TeeFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: Mutex::default(),
        }
    }

    /// [`TeeFile::write`] on a thread that may block.
    pub(super) async fn write_in_background(self: Arc<Self>, batch: Batch) -> io::Result<()> {
        blocking(move || self.write(&batch)).await
    }

    /// Appends the records of a batch, with one write if the kernel takes all bytes at once. Blocks.
    fn write(&self, batch: &Batch) -> io::Result<()> {
        let mut open = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = open.as_ref().is_some_and(|file| self.is_current(file));
        let file = match open.take().filter(|_| is_current) {
            Some(file) => file,
            None => self.open()?,
        };
        let text = text(batch);
        let written = (&file).write_all(&text);
        *open = Some(file);
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }

    /// Syncs the file if it is open.
    fn sync(&self) -> io::Result<()> {
        let open = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map_or(Ok(()), fs::File::sync_data)
    }

    /// Whether the path still leads to this file.
    fn is_current(&self, file: &fs::File) -> bool {
        match (file.metadata(), fs::metadata(&self.path)) {
            (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }

    fn open(&self) -> io::Result<fs::File> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut options = fs::File::options();
        let open = options.append(true).create(true).open(&self.path);
        open.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }
}

/// The records of a batch as they were written, each followed by a newline.
pub(super) fn text(batch: &Batch) -> Cow<'_, [u8]> {
    if batch.encoding == Encoding::Lines {
        return Cow::Borrowed(&batch.body);
    }
    let raw = Options {
        format: Format::Raw,
        ..Options::default()
    };
    let mut text = Vec::new();
    if let Ok(mut encoder) = raw.encoder(&TimeZone::UTC) {
        encoder.encode(batch, &mut text, &mut Vec::new());
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_copy_that_was_moved_away_is_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/copy");
        let tee = TeeFile::new(path.clone());
        let batch = |body: &'static str| Batch {
            tag: "t".into(),
            plain: false,
            encoding: Encoding::Lines,
            body: body.into(),
            count: 1,
            received: millstream_record::Time(0),
            values: Arc::default(),
            origins: Vec::new(),
        };
        tee.write(&batch("a\n")).unwrap();
        tee.write(&batch("b\n")).unwrap();
        let moved = directory.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        tee.write(&batch("c\n")).unwrap();
        assert_eq!(fs::read(moved).unwrap(), b"a\nb\n");
        assert_eq!(fs::read(path).unwrap(), b"c\n");
    }
}
