//! Ships the files that programs wrote to the plain directory at the mount point while nothing was mounted, and removes them. A
//! mount hides this directory and its files, so both are called *below the mount*. Files that were there before the first mount are
//! treated as `given.rs` says: they stay, or they are shipped and kept aside.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! A program may have opened such a file before the directory was mounted, and may still write to the file. So a file is followed
//! until no process has it open for writing. It is removed once all its bytes are kept (with a durable channel) or settled (with
//! a memory channel). A durable channel remembers up to which offset it has kept a file, so a restart continues there and repeats
//! nothing. A file that became shorter was truncated, and is read from its start. Before a file is removed, it is renamed to a name
//! that no program opens.

use std::{
    cell::LazyCell,
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

use super::{
    below::Below, cutter::HEADROOM, given::Right, open_file::OpenFile, parcel::Parcel,
    patience::Patience, shipper::Shipper,
};
use crate::compressed::{is_binary, is_compressed};

/// The largest size of one read, and so of a batch, in bytes.
const READ_BYTES: usize = 512 << 10;
/// The number of bytes at the start of a file that show whether it is compressed or binary.
const START_BYTES: usize = 8 << 10;
/// The interval at which files that are still being written are checked.
const POLL: Duration = Duration::from_millis(200);
/// The interval between two searches for new files while no file is followed. A program whose working directory is below the
/// mount can still create files there.
const POLL_FOR_NEW: Duration = Duration::from_secs(5);
/// The suffix of the name of a file that is about to be removed. The inode number of the file follows it. The number makes the name
/// unique: after a crash, an older file with the same original name may still wait for its removal.
const TAKEN: &[u8] = b".millstream-taken";

/// Device and inode of a file.
type Key = (u64, u64);

/// A file in the directory below the mount.
struct Followed {
    path: PathBuf,
    /// The path of the file relative to the mount point, as the programs that wrote the file know it.
    name: String,
    file: fs::File,
    /// The identity of the file in origins. `None` with a memory channel, which needs no origins. Also `None` if the file system
    /// stores no birth time: a later file with the same inode could then not be distinguished from this one.
    id: Option<FileId>,
    /// The offset up to which the file was read.
    read: u64,
    /// The offset up to which the file was sent as records.
    sent: u64,
    /// The offsets up to which the downstream channels had kept the file when it was opened. A batch must end at each of these
    /// offsets. If a batch held records on both sides of a channel's offset, the channel could not tell which of the records it has
    /// already kept.
    marks: Vec<u64>,
    open: OpenFile,
    right: Right,
}

/// The result of checking a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A process may still write to the file.
    Open,
    /// All of the file was sent. The file was removed or moved aside, or it stays below the mount.
    Done,
}

/// Follows the files below the mount until `stop`. With `once`, returns after sending the current content of the files.
pub(super) async fn follow(below: &Below, shipper: &Arc<Shipper>, mut stop: Stop, once: bool) {
    let reporter = &shipper.context.reporter;
    let mut followed: HashMap<Key, Followed> = HashMap::new();
    let mut refused = HashSet::new();
    loop {
        let files = below.scan().map(|scanned| scanned.files);
        if let Err(error) = &files {
            let text = format_args!("cannot read the directory below the mount: {error}");
            reporter.error("below", text);
        }
        // The offsets are read anew in each scan: a file that failed is opened again, and the channel may have kept more of it
        // since the last scan.
        let origins = LazyCell::new(|| {
            let origins = shipper.context.outlet.file_origins();
            HashMap::<_, _>::from_iter(origins.unwrap_or_default())
        });
        let kept = |id: FileId| origins.get(&id).copied();
        for path in files.unwrap_or_default() {
            match Followed::open(below, &path, shipper, kept, &followed) {
                Ok(Some((key, file))) => {
                    followed.insert(key, file);
                }
                Ok(None) => {}
                Err(error) => {
                    let text = format_args!("{} below the mount: {error}", path.display());
                    if refused.insert(path.clone()) {
                        reporter.error("below", text);
                    }
                }
            }
        }
        let mut done = Vec::new();
        for (key, file) in &mut followed {
            match file.step(below, shipper, &stop).await {
                Ok(Step::Open) => {}
                Ok(Step::Done) => done.push(*key),
                Err(error) => {
                    let text = format_args!("{} below the mount: {error}", file.path.display());
                    reporter.error("below", text);
                    // The next scan opens the file again. Reading then continues at the offset up to which a durable channel has
                    // kept the file. If there is no such offset, it begins at the start of the file.
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
            POLL_FOR_NEW
        } else {
            POLL
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.stopped() => return,
        }
    }
}

impl Followed {
    /// Opens a file. Returns `None` if it is already followed, or if nothing of it may be shipped now. `kept` returns the offset
    /// up to which a durable channel has kept a file.
    fn open(
        below: &Below,
        path: &Path,
        shipper: &Arc<Shipper>,
        kept: impl Fn(FileId) -> Option<u64>,
        followed: &HashMap<Key, Self>,
    ) -> io::Result<Option<(Key, Self)>> {
        let metadata = below.file_metadata(path)?;
        let key = (metadata.dev(), metadata.ino());
        let right = shipper.given.right(&metadata);
        if followed.contains_key(&key) || right == Right::Leave(metadata.len()) {
            return Ok(None);
        }
        let file = below.open_file(path)?;
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        let birth = metadata.created().ok();
        let birth = birth.and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let birth = birth.and_then(|birth| i64::try_from(birth.as_nanos()).ok());
        let id = birth.map(|birth| FileId {
            device: key.0,
            inode: key.1,
            birth,
            head: 0,
        });
        let left = match right {
            // A file that is shorter was truncated: its content is new.
            Right::Leave(bytes) if bytes <= metadata.len() => bytes,
            _ => 0,
        };
        let sent = id.and_then(kept).unwrap_or(0).max(left);
        let marks = id.map(|id| shipper.context.outlet.file_marks(id));
        let name = path.as_os_str().as_bytes();
        let name = original(name).unwrap_or(name);
        let name = String::from_utf8_lossy(name).into_owned();
        let open = OpenFile::of_file(shipper, &name);
        let mut start = Vec::new();
        read_at(&file, &mut start, START_BYTES, 0)?;
        if let Some(why) = unfit(shipper, &open, &name, &start, right) {
            return Err(io::Error::other(why));
        }
        let file = Self {
            path: path.to_owned(),
            name,
            file,
            id: id.filter(|_| shipper.durable),
            read: sent,
            sent,
            marks: marks.unwrap_or_default(),
            open,
            right,
        };
        Ok(Some((key, file)))
    }

    /// Sends the data that the file has now. Then removes the file or moves it aside, if no process has it open for writing.
    async fn step(&mut self, below: &Below, shipper: &Shipper, stop: &Stop) -> io::Result<Step> {
        self.send_new(shipper, stop).await?;
        let quiet = self.open.stream()?.quiet()?;
        if let Some(parcel) = quiet {
            self.send(parcel).await?;
        }
        if stop.is_stopped() || is_being_written(&self.file) != Some(false) {
            return Ok(Step::Open);
        }
        if !matches!(self.right, Right::Leave(_)) {
            self.hide(below)?;
            self.send_new(shipper, stop).await?;
            // A process may have opened the file just before it was renamed.
            if stop.is_stopped() || is_being_written(&self.file) != Some(false) {
                return Ok(Step::Open);
            }
        }
        let end = self.open.stream()?.finish()?;
        self.send(end).await?;
        self.open.land().await?;
        self.put_away(below, shipper)?;
        Ok(Step::Done)
    }

    /// Removes the file, moves it aside or leaves it, because all of it is kept.
    fn put_away(&self, below: &Below, shipper: &Shipper) -> io::Result<()> {
        let (name, read) = (&self.name, self.read);
        let reporter = &shipper.context.reporter;
        match self.right {
            Right::Remove => {
                below.remove_file(&self.path)?;
                let text = format_args!(
                    "shipped what was written below the mount to {name}: {read} bytes"
                );
                reporter.info("below", text);
            }
            Right::Leave(_) => shipper.given.leave(&self.file.metadata()?, read)?,
            Right::SetAside => {
                let path = original(self.path.as_os_str().as_bytes());
                let path = path.map_or(&*self.path, |path| Path::new(OsStr::from_bytes(path)));
                let moved = shipper.given.set_aside(below, &self.path, path)?;
                if let Some(to) = moved {
                    let to = to.display();
                    let text = format_args!("shipped {name}: {read} bytes; it is now {to}");
                    reporter.info("below", text);
                    return Ok(());
                }
                below.rename(&self.path, path)?;
                shipper.given.leave(&self.file.metadata()?, read)?;
                let text = format_args!(
                    "shipped {name}: {read} bytes; it stays below the mount, because no directory for adopted files is on its file \
                     system"
                );
                reporter.warn("below", text);
            }
        }
        Ok(())
    }

    /// Renames the file to a name that no program opens.
    fn hide(&mut self, below: &Below) -> io::Result<()> {
        if original(self.path.as_os_str().as_bytes()).is_some() {
            return Ok(());
        }
        let hidden = hidden(&self.path, self.file.metadata()?.ino());
        below.rename(&self.path, &hidden)?;
        self.path = hidden;
        Ok(())
    }

    /// Reads and sends the bytes written since the last read.
    async fn send_new(&mut self, shipper: &Shipper, stop: &Stop) -> io::Result<()> {
        loop {
            let length = self.file.metadata()?.len();
            if length < self.read {
                self.start_again(shipper).await?;
            }
            let new = length.saturating_sub(self.read);
            if new == 0 || stop.is_stopped() {
                return Ok(());
            }
            let marks = self.marks.iter().copied();
            let mark = marks.filter(|mark| *mark > self.read).min();
            let readable = mark.map_or(new, |mark| new.min(mark - self.read));
            let wanted = usize::try_from(readable)
                .unwrap_or(READ_BYTES)
                .min(READ_BYTES);
            let mut buffer = shipper.context.pool.reserve(HEADROOM + wanted).await;
            buffer.resize(HEADROOM, 0);
            let read = read_at(&self.file, &mut buffer, wanted, self.read)?;
            if read == 0 {
                return Ok(());
            }
            self.read += read as u64;
            let data = HEADROOM..buffer.len();
            let parcel = self.open.stream()?.write(&mut Some(buffer), data, 0)?;
            self.send(parcel).await?;
            if mark == Some(self.read) {
                let rest = self.open.stream()?.finish()?;
                self.send(rest).await?;
                // If the rule dropped all records before the mark, no batch ended at the mark, and `sent` is still lower.
                self.sent = self.read;
            }
        }
    }

    /// Continues at the start of the file, because it was truncated.
    async fn start_again(&mut self, shipper: &Shipper) -> io::Result<()> {
        let rest = self.open.stream()?.finish()?;
        self.send(rest).await?;
        let text = format_args!(
            "{} was truncated below the mount after {} bytes; it is read from its start",
            self.name, self.read
        );
        shipper.context.reporter.info("below", text);
        (self.read, self.sent) = (0, 0);
        self.marks.clear();
        if self.id.is_some() {
            // An empty batch sets the offset that a durable channel has for the file, even if the new offset is lower.
            let empty = self.open.stream()?.empty()?;
            self.send(empty).await?;
        }
        Ok(())
    }

    async fn send(&mut self, mut parcel: Parcel) -> io::Result<()> {
        let next = self.read - parcel.unfinished_bytes() as u64;
        if let (Some(batch), Some(file)) = (&mut parcel.batch, self.id) {
            batch.origins.push(Origin::File(FileOrigin {
                file,
                begin: self.sent,
                next,
            }));
            self.sent = next;
        }
        self.open.send(parcel, Patience::ENDLESS).await?;
        Ok(())
    }
}

/// Why a file stays below the mount and is not shipped. `start`: its first bytes.
fn unfit(
    shipper: &Shipper,
    open: &OpenFile,
    name: &str,
    start: &[u8],
    right: Right,
) -> Option<&'static str> {
    let is_compressed = is_compressed(start);
    if right != Right::Remove && (is_compressed || is_binary(start)) {
        return Some("it is not a text, so it stays there and is not shipped");
    }
    if shipper.options().rules.leaves_out(name) {
        return Some(
            "its name is that of an editor's file, so it stays there and is not shipped (option `leave_out`)",
        );
    }
    if is_compressed && open.stream().is_ok_and(|stream| stream.rule().filters()) {
        return Some(
            "it is compressed, so its rule cannot filter it: it stays there and is not shipped; while Millstream is stopped, \
             decompress it or remove it",
        );
    }
    if is_compressed && shipper.options().skips_compressed {
        return Some("it is compressed, so it stays there and is not shipped (option `leave_out`)");
    }
    None
}

/// The name of a file that is about to be removed.
fn hidden(path: &Path, inode: u64) -> PathBuf {
    let mut hidden = OsString::from(path);
    hidden.push(OsStr::from_bytes(TAKEN));
    hidden.push(format!("-{inode}"));
    hidden.into()
}

/// The name that a file had before [`Followed::hide`] renamed it. `None` if `name` is not the name of such a file.
fn original(name: &[u8]) -> Option<&[u8]> {
    let at = memchr::memmem::rfind(name, TAKEN)?;
    let (original, suffix) = (&name[..at], &name[at + TAKEN.len()..]);
    let is_number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    let ours = suffix.is_empty() || suffix.strip_prefix(b"-").is_some_and(is_number);
    ours.then_some(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_get_different_names_before_they_are_removed() {
        let (old, new) = (hidden(Path::new("d/a"), 7), hidden(Path::new("d/a"), 8));
        assert_ne!(old, new);
        for hidden in [&old, &new] {
            assert_eq!(original(hidden.as_os_str().as_bytes()), Some(&b"d/a"[..]));
        }
        // Earlier versions gave names without an inode.
        assert_eq!(original(b"a.millstream-taken"), Some(&b"a"[..]));
        assert_eq!(original(b"a.millstream-taken.log"), None);
        assert_eq!(original(b"a"), None);
    }
}
