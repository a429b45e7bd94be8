//! Files that are done with: removed or renamed when everything of them is kept or settled (`when_done`).
//!
//! For directories into which whole files are put. A file is done with when it was read to its end and nothing was written to
//! it for `rotate_wait`; what is written to it after that is not promised to be read.

use std::{fs, io, path::Path};

use rustix::{fs::RenameFlags, io::Errno};

use super::{identity::Stat, options::WhenDone, reader::Reader};

/// What is added to the names of files that are done with.
pub(super) const SUFFIX: &str = ".done";
/// So many names are tried where others are taken.
const NAMES_MAX: u32 = 10_000;

impl Reader {
    /// Whether something is to be done with the file once it is read.
    pub(super) fn is_to_be_done(&self) -> bool {
        self.common.options.when_done != WhenDone::Keep && !self.stays
    }

    /// All of the file was sent and it was quiet: waits for the answers, then does what `when_done` says. True: the reader
    /// is done with the file.
    pub(super) async fn be_done(&mut self) -> bool {
        if !self.is_to_be_done() || self.tracked.state().rotated.is_some() {
            return true;
        }
        let sent = self.next;
        if self.flight.land().await.is_err() {
            self.go_back().await;
            return false;
        }
        self.publish();
        if self.flight.settled() != sent || self.stop.is_stopped() {
            return self.stop.is_stopped();
        }
        let path = self.tracked.state().path.clone();
        match self.is_at_end(&path) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => return self.troubled(&error).await,
        }
        let done = match self.common.options.when_done {
            WhenDone::Keep => Ok(()),
            WhenDone::Delete => fs::remove_file(&path),
            WhenDone::Rename => rename(&path),
        };
        if let Err(error) = done {
            let text = format_args!(
                "cannot remove or rename {}: {error}; it stays",
                path.display()
            );
            self.context.reporter.error("when_done", text);
            self.stays = true;
            return self.context.once;
        }
        self.common.done.add(1);
        // What was written at the last moment is read through the open handle.
        !matches!(self.is_read(), Ok(false))
    }

    /// Whether the name still leads to the file, and all of it was read.
    fn is_at_end(&mut self, path: &Path) -> io::Result<bool> {
        if self.file.is_none() && !self.open()? {
            return Ok(false);
        }
        Ok(Stat::at(path)?.inode == self.tracked.inode && self.is_read()?)
    }

    fn is_read(&self) -> io::Result<bool> {
        let Some(file) = &self.file else {
            return Ok(true);
        };
        let read = self.compressed_len().unwrap_or(self.next.offset);
        Ok(Stat::of(file)?.len == read)
    }
}

/// Adds the suffix to a name; a number before it where that name is taken.
fn rename(path: &Path) -> io::Result<()> {
    for number in 0..NAMES_MAX {
        let mut name = path.as_os_str().to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name.push(SUFFIX);
        let renamed = rustix::fs::renameat_with(
            rustix::fs::CWD,
            path,
            rustix::fs::CWD,
            Path::new(&name),
            RenameFlags::NOREPLACE,
        );
        match renamed {
            Err(Errno::EXIST) => {}
            // A file system without this flag: the name may be taken only by somebody who is as quick.
            Err(Errno::INVAL) if !Path::new(&name).exists() => return fs::rename(path, &name),
            renamed => return Ok(renamed?),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
