//! The disk as a trait: directories and files for everything that must survive a power cut.
//!
//! Segments, cursors, journals and the outputs of the file sink are written through [`Disk`]. [`HostDisk`] is the real one; `testkit` has
//! a simulated one that loses any subset of what was not synced. Dynamic dispatch costs next to nothing here: there is a call for each
//! batch or group, never for a record.

use std::{
    ffi::OsString,
    fs, io,
    io::IoSlice,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{fs::FallocateFlags, io::ReadWriteFlags};

use crate::{
    allocator::{PAGE_BYTES, SLOW_DISTANCES},
    private::{DIRECTORY_MODE, FILE_MODE},
    writeback,
};

/// The metadata of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Length in bytes.
    pub len: u64,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Whether it is a directory.
    pub directory: bool,
    /// Whether it is a regular file, not a pipe, socket or device.
    pub file: bool,
}

/// The capacity of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub total: u64,
    /// Bytes that this process may still use.
    pub free: u64,
    /// Files (inodes) that this process may still create. `None` if the file system has no fixed number.
    pub free_files: Option<u64>,
}

/// How [`Disk::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A new file, for reading and writing. Only the user of the process may access it. Fails if the name is taken.
    Create,
    /// A new output file: like [`Open::Create`], but other users may access it as far as the mode permits.
    Output(OutputMode),
}

/// The permissions of outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputMode {
    /// The permissions that the umask of the process leaves.
    #[default]
    Umask,
    /// Exactly these permissions for a file. A directory has them too, and users who may read may also enter it.
    Exactly(u32),
}

/// The operations on names and directories. A name is durable only after [`Disk::sync_directory`] of its directory.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>>;
    /// Renames a file, replacing the one that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory that only the user of the process may enter. Its parent must exist. Succeeds if the directory exists.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory for outputs.
    fn create_output_directory(&self, path: &Path, _mode: OutputMode) -> io::Result<()> {
        self.create_directory(path)
    }
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;
    /// The metadata of a name. Follows symbolic links.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;
    /// The capacity of the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Makes the symbolic link `link` to `target`. Fails if the name is taken.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()>;
    /// The target of a symbolic link. Fails with `InvalidInput` if the name is not a symbolic link.
    fn read_link(&self, link: &Path) -> io::Result<PathBuf>;
}

/// An open file. Bytes are durable only after [`File::sync`].
pub trait File: Send + Sync {
    /// Appends up to `bytes` bytes from `offset` on to `buffer`, as far as the file reaches; returns how many.
    fn read_at(&self, buffer: &mut Vec<u8>, bytes: usize, offset: u64) -> io::Result<usize>;
    /// Writes all parts, one after the other, from `offset` on. After an error some of the bytes may be written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Writes like [`File::write_at`]. If the kernel and the file system support it (RWF_DONTCACHE, Linux 6.14), the written pages do not
    /// stay in the page cache. Fresh page-cache memory is the largest cost of a large write.
    fn write_uncached_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Allocates the first `bytes` bytes of the file, so that a full disk causes an error here and not when data is written. The file is
    /// at least that long afterwards.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Truncates or extends the file.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// Makes the data and the length durable (fdatasync). After an error, nothing written since the last successful sync may be
    /// considered durable, and a second sync that succeeds proves nothing: the kernel has marked the pages clean.
    fn sync(&self) -> io::Result<()>;
    /// Starts the writeback of `bytes` bytes from `offset` on and does not wait. The caller may ignore an error, because [`File::sync`]
    /// reports it.
    fn start_writeback(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    /// Waits until the disk has taken `bytes` bytes from `offset` on, so that their memory can be reclaimed. This does not make the bytes
    /// durable. Treat an error like an error of [`File::sync`], because the next sync does not necessarily report it again.
    fn finish_writeback(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Drops pages from the page cache: those that lie completely in the `bytes` bytes from `offset` on, and are on the disk. The caller
    /// may ignore an error.
    fn let_go(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    /// The metadata of the open file.
    fn metadata(&self) -> io::Result<Metadata>;
    /// Takes the exclusive lock of the file (flock), which is released when the file is dropped or the process ends. Returns false if the
    /// lock is held through another open file.
    fn try_lock(&self) -> io::Result<bool>;
    /// Whether the file still has a name in any directory.
    fn is_linked(&self) -> io::Result<bool> {
        Ok(true)
    }
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDisk;

impl Disk for HostDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match how {
            Open::Read => {}
            Open::Write => {
                options.write(true);
            }
            Open::Create | Open::Output(OutputMode::Exactly(_)) => {
                options.write(true).create_new(true).mode(FILE_MODE);
            }
            Open::Output(OutputMode::Umask) => {
                options.write(true).create_new(true);
            }
        }
        let file = options.open(path)?;
        if let Open::Output(OutputMode::Exactly(mode)) = how {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        Ok(Arc::new(HostFile::new(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        make_directory(path, DIRECTORY_MODE)
    }

    fn create_output_directory(&self, path: &Path, mode: OutputMode) -> io::Result<()> {
        match mode {
            OutputMode::Umask => make_directory(path, 0o777),
            OutputMode::Exactly(mode) => {
                make_directory(path, DIRECTORY_MODE)?;
                let enter = (mode & 0o444) >> 2;
                fs::set_permissions(path, fs::Permissions::from_mode(mode | enter))
            }
        }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let mut names = fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        fs::metadata(path).map(|of| metadata(&of))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let of = rustix::fs::statvfs(path)?;
        Ok(Space {
            total: of.f_blocks.saturating_mul(of.f_frsize),
            free: of.f_bavail.saturating_mul(of.f_frsize),
            free_files: (of.f_files > 0).then_some(of.f_favail),
        })
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        fs::read_link(link)
    }
}

/// Makes a directory with at most these permissions. Succeeds if it exists.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

struct HostFile {
    file: fs::File,
    /// Whether RWF_DONTCACHE was refused for this file. It is then not used for the file any more.
    cached_only: AtomicBool,
    locked: AtomicBool,
}

impl HostFile {
    fn new(file: fs::File) -> Self {
        Self {
            file,
            cached_only: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        }
    }
}

impl Drop for HostFile {
    /// Releases the lock. Closing the file is not enough: a child process that is being started holds all open files between `fork` and
    /// `exec`, and until then the lock would still be held.
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
        }
    }
}

/// RWF_DONTCACHE of `pwritev2(2)`; rustix has no name for it yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

impl File for HostFile {
    fn read_at(&self, buffer: &mut Vec<u8>, bytes: usize, offset: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, bytes, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        write_all(parts, offset, |parts, at| {
            rustix::io::pwritev(&self.file, parts, at)
        })
    }

    fn write_uncached_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        write_all(parts, offset, |parts, at| {
            if !self.cached_only.load(Ordering::Relaxed) {
                match rustix::io::pwritev2(&self.file, parts, at, DONTCACHE) {
                    Err(
                        rustix::io::Errno::OPNOTSUPP
                        | rustix::io::Errno::INVAL
                        | rustix::io::Errno::NOSYS,
                    ) => {
                        self.cached_only.store(true, Ordering::Relaxed);
                    }
                    other => return other,
                }
            }
            rustix::io::pwritev(&self.file, parts, at)
        })
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            // This file system cannot allocate space in advance. A caller that relies on the space writes the whole file first.
            Err(rustix::io::Errno::OPNOTSUPP) if self.file.metadata()?.len() < bytes => {
                self.file.set_len(bytes)
            }
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn start_writeback(&self, offset: u64, bytes: u64) -> io::Result<()> {
        writeback::start(&self.file, offset, bytes)
    }

    fn finish_writeback(&self, offset: u64, bytes: u64) -> io::Result<()> {
        writeback::finish(&self.file, offset, bytes)
    }

    fn let_go(&self, offset: u64, bytes: u64) -> io::Result<()> {
        writeback::let_go(&self.file, offset, bytes)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata().map(|of| metadata(&of))
    }

    fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(
            &self.file,
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        ) {
            Ok(()) => {
                self.locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }
}

/// Appends up to `bytes` bytes from `offset` on to `buffer`, as far as the file reaches; returns how many.
///
/// In the page cache, the address of the byte at `offset` equals `offset` modulo a page, so the distance between source and destination is
/// known. At the slow distances ([`crate::allocator`]) the bytes are read to an address that is [`DETOUR_BYTES`] higher, and then moved to
/// their destination.
pub fn read_at(
    file: &fs::File,
    buffer: &mut Vec<u8>,
    bytes: usize,
    offset: u64,
) -> io::Result<usize> {
    buffer.reserve(bytes);
    let start = buffer.len();
    loop {
        let have = buffer.len() - start;
        if have == bytes {
            return Ok(have);
        }
        // The spare capacity may be larger than requested.
        let room = &mut buffer.spare_capacity_mut()[..bytes - have];
        let from = offset + have as u64;
        let detour = match room.len() > DETOUR_ROOM_MIN && is_slow_copy(from, room.as_ptr().addr())
        {
            true => DETOUR_BYTES,
            false => 0,
        };
        let read = match rustix::io::pread(file, &mut room[detour..], from) {
            Ok((filled, _)) => filled.len(),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if read == 0 {
            return Ok(have);
        }
        if detour > 0 {
            room.copy_within(detour..detour + read, 0);
        }
        commit(buffer, read);
    }
}

/// A read that the kernel would copy slowly is made to an address that is this much higher; then the bytes are moved.
const DETOUR_BYTES: usize = 64;
/// A read of at most this size takes no detour: the second copy, and the second read for the last bytes, would cost more.
const DETOUR_ROOM_MIN: usize = 16 << 10;

/// Whether the kernel copies slowly from this offset of a file to this address.
fn is_slow_copy(offset: u64, address: usize) -> bool {
    let page = PAGE_BYTES as u64;
    let distance = (address as u64).wrapping_sub(offset) % page;
    SLOW_DISTANCES.contains(&distance)
}

/// Extends the buffer by `read` bytes of its spare capacity.
#[allow(unsafe_code)]
fn commit(buffer: &mut Vec<u8>, read: usize) {
    debug_assert!(read <= buffer.capacity() - buffer.len());
    // SAFETY: pread has initialized `read` bytes, which are at the front of the spare capacity.
    unsafe { buffer.set_len(buffer.len() + read) };
}

/// Calls `write` until all parts are written. After a short write it continues after the bytes that were written.
fn write_all(
    parts: &[IoSlice<'_>],
    offset: u64,
    write: impl Fn(&[IoSlice<'_>], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    let mut owned: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut owned[..];
    let mut at = offset;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        // IOV_MAX: the maximum number of parts in one call.
        let parts = &left[..left.len().min(1024)];
        match write(parts, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn metadata(of: &fs::Metadata) -> Metadata {
    Metadata {
        len: of.len(),
        device: of.dev(),
        inode: of.ino(),
        directory: of.is_dir(),
        file: of.is_file(),
    }
}

/// The most symbolic links that are followed in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// The absolute path without symbolic links, `.` and `..`. Its last parts need not exist. Nothing below a mount of Millstream is
/// looked up: while one program hands such a mount over to the next one, no program answers.
pub fn resolved(path: &Path) -> PathBuf {
    let mounts = crate::fuse::mounts();
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut left: Vec<OsString> = parts(&absolute);
    let mut full = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        match Path::new(&part).components().next() {
            // The path so far has no link in it, so its last part can be dropped.
            Some(Component::ParentDir) => drop(full.pop()),
            Some(Component::CurDir) => {}
            _ => full.push(part),
        }
        if links == LINKS_MAX || mounts.iter().any(|mount| full.starts_with(mount)) {
            continue;
        }
        if let Ok(target) = fs::read_link(&full) {
            links += 1;
            full.pop();
            left.extend(parts(&target));
        }
    }
    full
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_a_path_are_followed_and_what_is_missing_stays() {
        let place = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(place.path()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a/b", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("link"), root.join("more")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        for (path, expected) in [
            ("link/../x", "a/x"),
            ("more/./y/z", "a/b/y/z"),
            ("no/../link", "a/b"),
            ("a/b", "a/b"),
        ] {
            assert_eq!(resolved(&root.join(path)), root.join(expected), "{path}");
        }
        assert_eq!(resolved(Path::new("/../..")), Path::new("/"));
        assert_eq!(resolved(&root.join("loop")), root.join("loop"));
    }

    #[test]
    fn bytes_written_in_parts_are_read_back_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let file = HostDisk.open(&path, Open::Create).unwrap();
        file.allocate(100).unwrap();
        file.write_at(
            &[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cd")],
            3,
        )
        .unwrap();
        file.write_uncached_at(&[IoSlice::new(b"ef")], 7).unwrap();
        file.sync().unwrap();
        let mut buffer = b"x".to_vec();
        assert_eq!(file.read_at(&mut buffer, 6, 3).unwrap(), 6);
        assert_eq!(buffer, b"xabcdef");
        assert_eq!(file.metadata().unwrap().len, 100);
        assert_eq!(file.read_at(&mut buffer, 60, 90).unwrap(), 10);
    }

    #[test]
    fn bytes_are_read_whole_at_every_distance_from_their_place_in_the_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let content: Vec<u8> = (0_u32..100_000).flat_map(|n| n.to_le_bytes()).collect();
        fs::write(&path, &content).unwrap();
        let file = fs::File::open(&path).unwrap();
        let mut slow = 0;
        for offset in (0..200).chain(1900..2300).chain(4000..4200) {
            let mut buffer = Vec::with_capacity(70_000);
            buffer.push(b'x');
            let address = buffer.as_ptr().addr() + 1;
            slow += usize::from(is_slow_copy(offset, address));
            assert_eq!(read_at(&file, &mut buffer, 66_000, offset).unwrap(), 66_000);
            let offset = offset as usize;
            assert!(buffer[1..] == content[offset..offset + 66_000], "{offset}");
        }
        // Large buffers begin in the middle of a page, so of all these offsets only 15 consecutive ones are slow.
        assert_eq!(slow, 15);
        // These reads end at the end of the file.
        for offset in content.len() - 33_000..content.len() - 32_500 {
            let mut buffer = Vec::with_capacity(66_000);
            let left = content.len() - offset;
            assert_eq!(
                read_at(&file, &mut buffer, 66_000, offset as u64).unwrap(),
                left
            );
            assert!(buffer == content[offset..], "{offset}");
        }
    }

    #[test]
    fn a_lock_is_exclusive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = HostDisk.open(&path, Open::Create).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(
            !HostDisk
                .open(&path, Open::Write)
                .unwrap()
                .try_lock()
                .unwrap()
        );
        drop(first);
        assert!(
            HostDisk
                .open(&path, Open::Write)
                .unwrap()
                .try_lock()
                .unwrap()
        );
    }

    #[test]
    fn a_dropped_file_is_unlocked_even_if_a_starting_process_still_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let file = fs::File::create(&path).unwrap();
        let held = file.try_clone().unwrap();
        let first = HostFile::new(file);
        assert!(first.try_lock().unwrap());
        drop(first);
        let next = HostDisk.open(&path, Open::Write).unwrap();
        assert!(next.try_lock().unwrap());
        drop(held);
    }
}
