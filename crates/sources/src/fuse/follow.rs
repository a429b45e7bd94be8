//! Ships the files that were written below the mount point while nobody was here, and removes them.
//!
//! `[read] -> [decode] -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! A program may have opened such a file before the mount and go on writing: a file is followed until nobody has it open
//! for writing any more, and removed when all of it is kept (behind memory: settled). A durable channel holds how far a file
//! was read, so that none of it comes twice. It gets another name before it is removed, so that nobody opens it any more.

use std::{
    collections::{HashMap, HashSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use millstream_pipeline::stop::Stop;
use millstream_record::{FileId, FileOrigin, Origin};
use millstream_sys::{disk::read_at, fuse::is_being_written};
use rustix::io::Errno;

use super::{
    below::Below, config::WhenFull, handles::Handle, parcel::Parcel, session::HEADROOM,
    stream::Stream, write::Ship,
};
use crate::compressed::is_compressed;

/// Bytes of one read, and so of a batch.
const READ_BYTES: usize = 512 << 10;
/// As many first bytes tell what is compressed.
const START_BYTES: usize = 16;
/// How often a file is looked at that somebody still writes.
const LOOK: Duration = Duration::from_millis(200);
/// How often it is looked for new ones: programs whose working directory is below can still make some.
const LOOK_FOR_NEW: Duration = Duration::from_secs(5);
/// Stands behind the name of a file that is about to be removed; its number follows, so that no two ever get one name: after
/// a crash an older one of the same name may still be there.
const TAKEN: &[u8] = b".millstream-taken";

/// A file below.
struct Followed {
    path: PathBuf,
    /// Its path as its writer knows it.
    name: String,
    file: fs::File,
    /// None: the file system cannot tell it from one that has its number later.
    id: Option<FileId>,
    /// Up to where it is read, and up to where that has become records.
    read: u64,
    sent: u64,
    handle: Handle,
}

/// How far a look at a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Somebody still writes it, or may do so.
    Open,
    /// It is done and removed.
    Done,
}

/// Follows what is there until it is told to stop; `once`: until all that is there is sent.
pub(super) async fn follow(below: &Below, ship: &Arc<Ship>, mut stop: Stop, once: bool) {
    let origins = ship.context.outlet.file_origins().unwrap_or_default();
    let origins: HashMap<_, _> = origins.into_iter().collect();
    let mut followed: HashMap<(u64, u64), Followed> = HashMap::new();
    let mut refused = HashSet::new();
    loop {
        let found = below.scan().map(|found| found.files);
        if let Err(error) = &found {
            let text = format_args!("the directory below the mount cannot be read: {error}");
            ship.context.reporter.error("below", text);
        }
        for path in found.unwrap_or_default() {
            match Followed::open(below, &path, ship, &origins, &followed) {
                Ok(Some((key, file))) => {
                    followed.insert(key, file);
                }
                Ok(None) => {}
                Err(error) => {
                    let text = format_args!("{} below the mount: {error}", path.display());
                    if refused.insert(path.clone()) {
                        ship.context.reporter.error("below", text);
                    }
                }
            }
        }
        let mut done = Vec::new();
        for (key, file) in &mut followed {
            match file.step(below, ship, &stop).await {
                Ok(Step::Open) => {}
                Ok(Step::Done) => done.push(*key),
                Err(error) => {
                    let text = format_args!("{} below the mount: {error}", file.path.display());
                    ship.context.reporter.error("below", text);
                    // It is begun again where the channel knows it, behind memory at its start.
                    done.push(*key);
                }
            }
        }
        for key in done {
            followed.remove(&key);
        }
        if once || stop.is_stopped() {
            return;
        }
        let pause = if followed.is_empty() {
            LOOK_FOR_NEW
        } else {
            LOOK
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.stopped() => return,
        }
    }
}

impl Followed {
    /// Opens a file that is not followed yet.
    fn open(
        below: &Below,
        path: &Path,
        ship: &Arc<Ship>,
        origins: &HashMap<FileId, u64>,
        followed: &HashMap<(u64, u64), Self>,
    ) -> io::Result<Option<((u64, u64), Self)>> {
        let full = below.path(path);
        let found = fs::symlink_metadata(&full)?;
        let key = (found.dev(), found.ino());
        if followed.contains_key(&key) {
            return Ok(None);
        }
        let file = fs::File::open(full)?;
        let birth = file.metadata()?.created().ok();
        let birth = birth.and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let birth = birth.and_then(|birth| i64::try_from(birth.as_nanos()).ok());
        let id = birth.map(|birth| FileId {
            device: key.0,
            inode: key.1,
            birth,
            head: 0,
        });
        let sent = id.and_then(|id| origins.get(&id)).copied().unwrap_or(0);
        let name = path.as_os_str().as_bytes();
        let name = taken(name).unwrap_or(name);
        let name = String::from_utf8_lossy(name).into_owned();
        let stream = Stream::of_file(ship, &name);
        let mut start = Vec::new();
        read_at(&file, &mut start, START_BYTES, 0)?;
        if stream.rule.filters() && is_compressed(&start) {
            return Err(io::Error::other(
                "it is compressed, so its rule cannot filter it: it stays there and is not shipped; while Millstream is stopped, \
                 decompress it, or remove it",
            ));
        }
        let file = Self {
            path: path.to_owned(),
            name,
            file,
            id: id.filter(|_| ship.durable),
            read: sent,
            sent,
            handle: Handle::new(0, Some(stream)),
        };
        Ok(Some((key, file)))
    }

    /// Sends what is there; removes the file if that is all there will ever be.
    async fn step(&mut self, below: &Below, ship: &Ship, stop: &Stop) -> io::Result<Step> {
        self.read_on(ship, stop).await?;
        let quiet = self.handle.stream().map(|mut stream| stream.quiet());
        if let Some(parcel) = quiet.transpose()?.flatten() {
            self.send(ship, parcel).await?;
        }
        if stop.is_stopped() || is_being_written(&self.file) != Some(false) {
            return Ok(Step::Open);
        }
        self.hide(below)?;
        self.read_on(ship, stop).await?;
        // Somebody may have opened it just before.
        if stop.is_stopped() || is_being_written(&self.file) != Some(false) {
            return Ok(Step::Open);
        }
        let parcel = self.handle.stream().map(|mut stream| stream.finish());
        if let Some(parcel) = parcel {
            self.send(ship, parcel?).await?;
        }
        let landed = self.handle.flight.lock().await.land().await;
        landed.map_err(|_| Errno::IO)?;
        fs::remove_file(below.path(&self.path))?;
        let text = format_args!(
            "what was written below the mount to {} is shipped: {} bytes",
            self.name, self.read
        );
        ship.context.reporter.info("below", text);
        Ok(Step::Done)
    }

    /// Gives it a name that nobody opens.
    fn hide(&mut self, below: &Below) -> io::Result<()> {
        if taken(self.path.as_os_str().as_bytes()).is_some() {
            return Ok(());
        }
        let hidden = hidden(&self.path, self.file.metadata()?.ino());
        fs::rename(below.path(&self.path), below.path(&hidden))?;
        self.path = hidden;
        Ok(())
    }

    /// Sends what is there.
    async fn read_on(&mut self, ship: &Ship, stop: &Stop) -> io::Result<()> {
        loop {
            let there = self.file.metadata()?.len().saturating_sub(self.read);
            if there == 0 || stop.is_stopped() {
                return Ok(());
            }
            let wanted = usize::try_from(there).unwrap_or(READ_BYTES).min(READ_BYTES);
            let mut buffer = ship.context.pool.reserve(HEADROOM + wanted).await;
            buffer.resize(HEADROOM, 0);
            let read = read_at(&self.file, &mut buffer, wanted, self.read)?;
            if read == 0 {
                return Ok(());
            }
            self.read += read as u64;
            let data = HEADROOM..buffer.len();
            let parcel = self
                .handle
                .stream()
                .map(|mut stream| stream.take(&mut Some(buffer), data, 0));
            if let Some(parcel) = parcel {
                self.send(ship, parcel?).await?;
            }
        }
    }

    async fn send(&mut self, ship: &Ship, mut parcel: Parcel) -> io::Result<()> {
        let next = self.read - parcel.unfinished() as u64;
        if let (Some(batch), Some(file)) = (&mut parcel.batch, self.id) {
            batch.origins.push(Origin::File(FileOrigin {
                file,
                begin: self.sent,
                next,
            }));
            self.sent = next;
        }
        ship.send(&self.handle, parcel, WhenFull::Block).await?;
        Ok(())
    }
}

/// The name that a file gets before it is removed.
fn hidden(path: &Path, inode: u64) -> PathBuf {
    let mut hidden = OsString::from(path);
    hidden.push(OsStr::from_bytes(TAKEN));
    hidden.push(format!("-{inode}"));
    hidden.into()
}

/// What a file was called before it got such a name.
fn taken(name: &[u8]) -> Option<&[u8]> {
    let at = memchr::memmem::rfind(name, TAKEN)?;
    let (before, number) = (&name[..at], &name[at + TAKEN.len()..]);
    let is_number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    let ours = number.is_empty() || number.strip_prefix(b"-").is_some_and(is_number);
    ours.then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_files_get_one_name_before_they_are_removed() {
        let (old, new) = (hidden(Path::new("d/a"), 7), hidden(Path::new("d/a"), 8));
        assert_ne!(old, new);
        for hidden in [&old, &new] {
            assert_eq!(taken(hidden.as_os_str().as_bytes()), Some(&b"d/a"[..]));
        }
        // As earlier versions named them.
        assert_eq!(taken(b"a.millstream-taken"), Some(&b"a"[..]));
        assert_eq!(taken(b"a.millstream-taken.log"), None);
        assert_eq!(taken(b"a"), None);
    }
}
