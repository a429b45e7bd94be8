//! Decides which of the files below the mount the source may ship and remove. (A mount hides the plain directory at
//! the mount point; the files in it are *below the mount*.)
//!
//! Files that programs write to the plain directory between two mounts are shipped and removed. A file that was there before the
//! first mount was never given to Millstream. So the first start refuses such files, unless the configuration says how to treat
//! them. The files that were found then are stored as a list in the source's directory before the mount is made. The list
//! holds the identity of each file (inode and birth time) and its size. So every later start, after a crash, too, can tell these files from those
//! that were written between the mounts.

use std::{
    collections::HashMap,
    ffi::OsString,
    fmt, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use millstream_pipeline::{failure::Failure, node::SourceContext, report::Reporter};
use millstream_state::{Fields, Format, WholeFile};
use millstream_sys::disk::HostDisk;
use rustix::io::Errno;

use super::{below::Below, config::Existing};

/// The largest number of files that a message names.
const NAMED_MAX: usize = 5;
/// The largest number of files of one name that are kept aside.
const SAME_NAME_MAX: u32 = 10_000;
/// The directory for shipped files, in the source's directory.
const ADOPTED: &str = "adopted";
const NAME: &str = "below";
const FORMAT: Format = Format {
    magic: b"MILLBELO",
    version: 1,
    bytes_max: 256 << 20,
    remedy: "restore it from a backup, or remove it: the next start is then a first start, which refuses files below the mount",
};
/// The name of the journal of unfinished lines. It exists without a list if a version without lists has run.
const JOURNAL: &str = "unfinished";

/// The identity of a file that outlives a rename and a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    inode: u64,
    /// 0 if the file system has no birth times.
    birth: i64,
    /// The device, if there is no birth time. Device numbers change when a system starts, so it is otherwise 0.
    device: u64,
}

impl Key {
    fn of(metadata: &fs::Metadata) -> Self {
        let birth = metadata.created().ok();
        let birth = birth.and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let birth = birth.and_then(|birth| i64::try_from(birth.as_nanos()).ok());
        Self {
            inode: metadata.ino(),
            birth: birth.unwrap_or(0),
            device: birth.map_or(metadata.dev(), |_| 0),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.inode.to_le_bytes());
        out.extend(self.birth.to_le_bytes());
        out.extend(self.device.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            inode: fields.u64()?,
            birth: fields.i64()?,
            device: fields.u64()?,
        })
    }
}

/// How the source may treat a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// It was written between two mounts: it is shipped and removed.
    Remove,
    /// It was there before the first mount, and is adopted: it is shipped and kept aside.
    SetAside,
    /// It was there before the first mount, and stays. Only what is written to it after this offset is shipped.
    Leave(u64),
}

/// A file that was there before the first mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// Up to this offset, the file is not shipped, unless it is adopted.
    bytes: u64,
    is_adopted: bool,
}

/// The list.
#[derive(Debug, PartialEq, Eq)]
struct List {
    /// The plain directory, and the canonical path of the mount point.
    of: (Key, PathBuf),
    found: HashMap<Key, Found>,
}

impl List {
    fn encode(&self) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt;
        let mut out = Vec::new();
        let (key, path) = &self.of;
        key.encode(&mut out);
        let path = path.as_os_str().as_bytes();
        out.extend(u32::try_from(path.len()).unwrap_or(0).to_le_bytes());
        out.extend(path);
        for (key, found) in &self.found {
            key.encode(&mut out);
            out.extend(found.bytes.to_le_bytes());
            out.push(u8::from(found.is_adopted));
        }
        out
    }

    fn decode(body: &[u8]) -> Option<Self> {
        use std::os::unix::ffi::OsStringExt;
        let mut fields = Fields::new(body);
        let key = Key::decode(&mut fields)?;
        let length = usize::try_from(fields.u32()?).ok()?;
        let path = OsString::from_vec(fields.take(length)?.to_vec());
        let mut found = HashMap::new();
        while !fields.rest().is_empty() {
            let key = Key::decode(&mut fields)?;
            let bytes = fields.u64()?;
            let is_adopted = fields.u8()? != 0;
            found.insert(key, Found { bytes, is_adopted });
        }
        Some(Self {
            of: (key, path.into()),
            found,
        })
    }
}

/// The stored list of one source.
pub(super) struct Given {
    file: Mutex<WholeFile>,
    list: Mutex<List>,
    /// The directories for adopted files, in the order in which they are tried: a file can only be moved within its file system.
    aside: [PathBuf; 2],
}

/// Files that a first start must not touch.
struct Refused {
    names: String,
    aside: PathBuf,
}

impl Refused {
    fn text(&self, mount: &Path) -> String {
        format!(
            "{} is not empty, and this is the first start with this directory: {}. Millstream would ship and remove these files. \
             Move them away, or set `below: keep` (they stay below the mount and are not shipped) or `adopt: true` (they are \
             shipped, and then moved to {})",
            mount.display(),
            self.names,
            self.aside.display()
        )
    }
}

/// Why the source cannot start over this directory, without changing anything. `directory`: the source's directory.
pub(super) fn obstacle(mount: &Path, directory: &Path, existing: Existing) -> Option<String> {
    let below = Below::open(mount).ok()?;
    let full = fs::canonicalize(mount).ok()?;
    let of = (Key::of(&below.metadata().ok()?), full.clone());
    // A list that cannot be read is an error of the start.
    let is_known = match read(&list_file(directory)).ok()? {
        Some(list) => list.of == of,
        None => directory.join(JOURNAL).exists(),
    };
    if is_known {
        return None;
    }
    let refused = first(&below, existing, directory, of).ok()?.err()?;
    Some(refused.text(&full))
}

fn list_file(directory: &Path) -> WholeFile {
    WholeFile::new(Arc::new(HostDisk), directory.join(NAME), FORMAT)
}

fn read(file: &WholeFile) -> Result<Option<List>, millstream_state::Error> {
    let Some(body) = file.load(|_| None)? else {
        return Ok(None);
    };
    let list = List::decode(&body).ok_or_else(|| file.damaged("its content is not a list"))?;
    Ok(Some(list))
}

/// The list of a first start, or the files that it must not touch.
fn first(
    below: &Below,
    existing: Existing,
    directory: &Path,
    of: (Key, PathBuf),
) -> io::Result<Result<List, Refused>> {
    let scanned = below.scan()?;
    let unreadable = scanned.unreadable.iter();
    let names: Vec<_> = scanned.files.iter().chain(unreadable).collect();
    if existing == Existing::Refuse && !names.is_empty() {
        return Ok(Err(Refused {
            names: named(&names),
            aside: directory.join(ADOPTED),
        }));
    }
    let mut found = HashMap::new();
    for path in &scanned.files {
        let metadata = match below.file_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let file = Found {
            bytes: metadata.len(),
            is_adopted: existing == Existing::Adopt,
        };
        found.insert(Key::of(&metadata), file);
    }
    Ok(Ok(List { of, found }))
}

/// Names some files and counts the others. A name cannot forge a line.
fn named(paths: &[&PathBuf]) -> String {
    let shown = paths.iter().take(NAMED_MAX);
    let shown: Vec<_> = shown
        .map(|path| path.to_string_lossy().escape_debug().to_string())
        .collect();
    let shown = shown.join(", ");
    match paths.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").finish_non_exhaustive()
    }
}

impl Given {
    /// Reads the list, or makes it if this is the first start. The list is durable when this returns.
    pub(super) fn open(
        below: &Below,
        existing: Existing,
        context: &SourceContext,
    ) -> Result<Self, Failure> {
        let (directory, reporter) = (&*context.directory, &context.reporter);
        let failed = |error: io::Error| {
            Failure::disk(format!("cannot read the directory to mount: {error}"))
        };
        let full = &*below.full().map_err(failed)?;
        let mut file = list_file(directory);
        let of = (Key::of(&below.metadata().map_err(failed)?), full.to_owned());
        let stored = read(&file)?;
        let is_older = stored.is_none() && directory.join(JOURNAL).exists();
        let list = match stored.filter(|list| list.of == of) {
            Some(list) => list,
            None => {
                let list = match is_older {
                    // A version without lists shipped and removed everything that it found.
                    true => Ok(List {
                        of,
                        found: HashMap::new(),
                    }),
                    false => first(below, existing, directory, of).map_err(failed)?,
                };
                let list = list.map_err(|refused| Failure::config(refused.text(full)))?;
                file.store(&list.encode())?;
                announce(&list, full, existing, reporter);
                list
            }
        };
        let mut sibling = full.as_os_str().to_owned();
        sibling.push(".adopted");
        Ok(Self {
            file: Mutex::new(file),
            list: Mutex::new(list),
            aside: [directory.join(ADOPTED), sibling.into()],
        })
    }

    /// How the source may treat the file that has this metadata.
    pub(super) fn right(&self, metadata: &fs::Metadata) -> Right {
        match self.list().found.get(&Key::of(metadata)) {
            None => Right::Remove,
            Some(found) if found.is_adopted => Right::SetAside,
            Some(found) => Right::Leave(found.bytes),
        }
    }

    /// Notes that a file stays below the mount, and that nothing before this offset is shipped again. Blocks.
    pub(super) fn leave(&self, metadata: &fs::Metadata, bytes: u64) -> io::Result<()> {
        let body = {
            let mut list = self.list();
            let file = Found {
                bytes,
                is_adopted: false,
            };
            list.found.insert(Key::of(metadata), file);
            list.encode()
        };
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.store(&body).map_err(io::Error::other)
    }

    /// Moves a shipped file aside. Returns its new path, or `None` if no directory for such files is on its file system. `name`:
    /// the path that the file had below the mount.
    pub(super) fn set_aside(
        &self,
        below: &Below,
        path: &Path,
        name: &Path,
    ) -> io::Result<Option<PathBuf>> {
        for directory in &self.aside {
            let to = directory.join(name);
            let mut builder = fs::DirBuilder::new();
            let above = to.parent().unwrap_or(directory);
            builder.recursive(true).mode(0o700).create(above)?;
            match move_out(below, path, &to) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
                moved => return moved.map(Some),
            }
        }
        Ok(None)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves a file to `to`, or to `to.1` and so on if a file with that name exists.
fn move_out(below: &Below, path: &Path, to: &Path) -> io::Result<PathBuf> {
    for number in 0..SAME_NAME_MAX {
        let mut to = to.as_os_str().to_owned();
        if number > 0 {
            to.push(format!(".{number}"));
        }
        let to = PathBuf::from(to);
        match below.move_out(path, &to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            moved => return moved.map(|()| to),
        }
    }
    Err(Errno::EXIST.into())
}

fn announce(list: &List, mount: &Path, existing: Existing, reporter: &Reporter) {
    let (files, mount) = (list.found.len(), mount.display());
    if files == 0 {
        return;
    }
    let text = match existing {
        Existing::Adopt => format!("adopts {files} files that were in {mount}"),
        _ => format!("{files} files that were in {mount} stay below the mount"),
    };
    reporter.info("below", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_stored_is_read_as_it_was() {
        let key = |inode| Key {
            inode,
            birth: -7,
            device: 0,
        };
        let found = |bytes, is_adopted| Found { bytes, is_adopted };
        let list = List {
            of: (key(1), "/srv/logs".into()),
            found: HashMap::from([(key(2), found(9, true)), (key(3), found(0, false))]),
        };
        let mut bytes = list.encode();
        assert_eq!(List::decode(&bytes), Some(list));
        bytes.pop();
        assert_eq!(List::decode(&bytes), None);
    }

    #[test]
    fn a_message_names_a_few_files_and_counts_the_others() {
        let paths: Vec<_> = (0..7).map(|n| PathBuf::from(format!("f{n}\n"))).collect();
        let names = named(&paths.iter().collect::<Vec<_>>());
        assert_eq!(names, "f0\\n, f1\\n, f2\\n, f3\\n, f4\\n and 2 more");
    }
}
