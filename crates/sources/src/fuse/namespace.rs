//! Answers requests about names and attributes, and requests to read.
//!
//! The tree in memory has all answers, so only a read of data that are not in memory waits. After a change of the tree, the spills
//! (`recent/`) follow it before the request is answered, and outside the tree's lock.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millstream_record::Time;
use millstream_wire::fuse::{
    self, Attributes, FileSystem, Header, Operation, SetAttributes, capability,
};
use rustix::io::Errno;

use super::{
    alias::node_of,
    below::Below,
    tree::{Change, DIRECTORY, LINK, NAME_BYTES_MAX, NODES_MAX, TYPE_MASK, Tree, Who},
};

/// How long the kernel may cache an answer, in seconds; names of files are not cached. The kernel requests all changes to the tree, with one exception: the tree
/// forgets old files when it has too many. Only after that can the kernel's cache be stale.
pub(super) const VALID_SECONDS: u64 = 1;
/// The largest write that the kernel may send, in bytes. The kernel's own limit is 256 pages.
pub(super) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The capabilities to request, if the kernel offers them. Not ATOMIC_O_TRUNC: with it, an `open` with O_TRUNC would truncate a
/// program that runs, before the kernel refuses it with ETXTBSY.
const CAPABILITIES: u32 = capability::BIG_WRITES
    | capability::PARALLEL_DIROPS
    | capability::MAX_PAGES
    | capability::HANDLE_KILLPRIV_V2;
/// `fallocate(2)`: do not change the size of the file.
const KEEP_SIZE: u32 = 1;
/// `lseek(2)`: seeks the next data (SEEK_DATA) or the next hole (SEEK_HOLE).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// The operation LINK. It is refused, because a file must have only one path, which determines its rule.
const HARD_LINK: u32 = 13;
/// The blocks that `statfs` reports if no next channel has a limit.
const UNLIMITED_BLOCKS: u64 = 1 << 28;
const BLOCK_BYTES: u64 = 4096;

/// The body of an answer.
pub(super) type Body = Result<Vec<u8>, Errno>;

/// The names in the mount, and the plain directory below the mount (the directory that the mount hides). Directories are made in
/// both.
pub(super) struct Namespace {
    tree: Mutex<Tree>,
    below: Arc<Below>,
}

impl Namespace {
    pub(super) fn new(tree: Tree, below: Arc<Below>) -> Self {
        Self {
            tree: Mutex::new(tree),
            below,
        }
    }

    /// Locks the tree. No method of the tree can panic between two changes, so the data are consistent even if the lock is
    /// poisoned.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the tree. The spills follow before this returns.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut Tree) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut tree = self.tree();
        let changed = change(&mut tree);
        let changes = tree.take_changes();
        drop(tree);
        for change in changes {
            match change {
                Change::Head(node, spill) => spill.save(|| self.tree().head(node)),
                Change::Size(size, spill) => spill.resize(size),
            }
        }
        changed
    }

    /// Notes that a write of `bytes` bytes at `offset` has ended, and that `accepted` of them were accepted. The others cannot be
    /// read back.
    pub(super) fn ended(&self, node: u64, offset: u64, accepted: u32, bytes: u32) {
        let end = offset + u64::from(accepted);
        let mut tree = self.tree();
        let (size, is_last) = tree.end_write(node, end, accepted > 0, Time::now());
        let content = tree.content(node);
        drop(tree);
        if accepted < bytes
            && let Ok((_, Some(spill))) = content
        {
            match is_last {
                true => spill.fit(size),
                false => spill.erase(size.max(end), offset + u64::from(bytes)),
            }
        }
    }

    /// Notes that an open file was closed.
    pub(super) fn closed(&self, node: u64, was_writer: bool) {
        let mut tree = self.tree();
        tree.close(node);
        let spill = tree.content(node).ok().and_then(|(_, spill)| spill);
        let head = tree.head(node);
        drop(tree);
        if was_writer && let Some((spill, (_, written))) = spill.zip(head) {
            spill.stamp(written);
        }
    }

    /// Waits until everything that was written to a file is in its spill.
    pub(super) fn flush(&self, node: u64) {
        let tree = self.tree();
        let spill = tree.content(node).ok().and_then(|(_, spill)| spill);
        let written = tree.attributes(node).ok().map(|of| of.times[1]);
        drop(tree);
        if let Some((spill, (seconds, nanos))) = spill.zip(written) {
            spill.stamp(Time::from_parts(seconds, nanos));
        }
    }

    /// READ. Data that are not held read as zeros.
    pub(super) async fn read(&self, header: Header, offset: u64, bytes: u32) -> Body {
        let content = {
            let mut tree = self.tree();
            tree.was_read(header.node, header.thread);
            tree.content(header.node)
        };
        let (size, spill) = content?;
        let bytes = size.saturating_sub(offset).min(u64::from(bytes));
        let bytes = usize::try_from(bytes).map_err(|_| Errno::INVAL)?;
        match spill {
            Some(spill) => spill.read(offset, bytes).await,
            None => Ok(vec![0; bytes]),
        }
    }

    /// LSEEK, which asks for data and holes.
    fn seek(&self, node: u64, offset: u64, whence: u32) -> Body {
        let (size, spill) = self.tree().content(node)?;
        let found = match (spill, whence) {
            (Some(spill), SEEK_DATA | SEEK_HOLE) => {
                spill.seek(size, offset, whence == SEEK_DATA)?
            }
            (None, SEEK_HOLE) if offset < size => offset,
            (None, SEEK_DATA | SEEK_HOLE) => return Err(Errno::NXIO),
            _ => return Err(Errno::INVAL),
        };
        Ok(fuse::sought(found).to_vec())
    }

    /// Handles FORGET and BATCH_FORGET. The kernel expects no answer to them.
    pub(super) fn forget(&self, node: u64, operation: Operation<'_>) {
        let mut tree = self.tree();
        match operation {
            Operation::Forget { lookups } => tree.forget(node, lookups),
            Operation::BatchForget(all) => {
                for (node, lookups) in all {
                    tree.forget(node_of(node), lookups);
                }
            }
            _ => {}
        }
    }

    /// The answer to INIT, or to a request about names (except LOOKUP), attributes, holes or the file system. None of these needs an
    /// open file.
    /// The answer to any other request is ENOSYS.
    /// `space` is the (used, limit) of the space for what is written, in bytes.
    pub(super) fn answer(
        &self,
        header: Header,
        operation: Operation<'_>,
        space: impl FnOnce() -> Option<(u64, u64)>,
    ) -> Body {
        let node = header.node;
        match operation {
            Operation::Init { major, flags, .. } => init(major, flags),
            Operation::GetAttributes => attributes(self.tree().attributes(node)),
            Operation::SetAttributes(set) => self.set(node, &set),
            Operation::ReadLink => Ok(self.tree().target(node)?.to_vec()),
            Operation::SymLink { name, target } => {
                made(self.make(header, name, LINK | 0o777, Some(target)))
            }
            Operation::MakeNode { name, mode } => made(self.make(header, name, mode, None)),
            Operation::MakeDirectory { name, mode } => {
                let directory = self.make(header, name, DIRECTORY | mode & 0o7777, None)?;
                self.directory_made(directory.node);
                made(Ok(directory))
            }
            Operation::Unlink { name } => {
                self.change(|tree| tree.unlink(node, name, Time::now()))?;
                Ok(Vec::new())
            }
            Operation::RemoveDirectory { name } => self.remove_directory(node, name),
            Operation::Rename {
                name,
                to_node,
                to_name,
                flags,
            } => self.rename((node, name), (to_node, to_name), flags),
            Operation::Seek { offset, whence, .. } => self.seek(node, offset, whence),
            Operation::Statistics => Ok(self.statistics(space())),
            Operation::OpenDirectory => Ok(fuse::opened(0, 0)),
            Operation::ReadDirectory { offset, size } => self.tree().list(node, offset, size),
            Operation::ReleaseDirectory | Operation::SyncDirectory | Operation::Destroy => {
                Ok(Vec::new())
            }
            Operation::Allocate {
                offset,
                length,
                mode,
                ..
            } => self.allocate(node, offset, length, mode),
            Operation::Other(HARD_LINK) => Err(Errno::PERM),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Makes a file, a directory or (with `target`) a symbolic link.
    pub(super) fn make(
        &self,
        header: Header,
        name: &[u8],
        mode: u32,
        target: Option<&[u8]>,
    ) -> Result<Attributes, Errno> {
        let who = Who {
            uid: header.uid,
            gid: header.gid,
        };
        let now = Time::now();
        self.change(|tree| tree.make(header.node, name, mode, target, who, now))
    }

    fn set(&self, node: u64, set: &SetAttributes) -> Body {
        let shown = self.change(|tree| tree.set(node, set, Time::now()));
        if shown.is_ok() && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            self.directory_changed(node);
        }
        attributes(shown)
    }

    /// Called after a directory was made in the mount. Makes the same directory in the plain directory below the mount, for
    /// programs that write there while nothing is mounted.
    fn directory_made(&self, node: u64) {
        let path = self.tree().path(node);
        if let Some(path) = path {
            self.below.make_directory(&path, 0o700);
            self.directory_changed(node);
        }
    }

    fn directory_changed(&self, node: u64) {
        let tree = self.tree();
        let shown = tree.attributes(node);
        let path = tree.path(node);
        drop(tree);
        if let (Ok(shown), Some(path)) = (shown, path)
            && shown.mode & TYPE_MASK == DIRECTORY
            && node != fuse::ROOT
        {
            let (uid, gid) = (shown.uid, shown.gid);
            self.below.change_directory(&path, shown.mode, uid, gid);
        }
    }

    fn remove_directory(&self, above: u64, name: &[u8]) -> Body {
        let mut tree = self.tree();
        tree.remove_directory(above, name, Time::now())?;
        let above = tree.path(above);
        drop(tree);
        if let Some(above) = above {
            self.below
                .remove_directory(&above.join(OsStr::from_bytes(name)));
        }
        Ok(Vec::new())
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Body {
        let (is_directory, paths) = self.change(|tree| {
            let is_directory = tree.is_directory(from.0, from.1);
            let paths = tree.path(from.0).zip(tree.path(to.0));
            tree.rename(from, to, flags, Time::now())?;
            Ok((is_directory, paths))
        })?;
        if let Some((above, into)) = paths.filter(|_| is_directory) {
            self.below.rename_directory(
                &above.join(OsStr::from_bytes(from.1)),
                &into.join(OsStr::from_bytes(to.1)),
            );
        }
        Ok(Vec::new())
    }

    fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32) -> Body {
        match mode {
            0 => {
                let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
                self.change(|tree| tree.extend(node, end, Time::now()))?;
                Ok(Vec::new())
            }
            KEEP_SIZE => Ok(Vec::new()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// The answer to STATFS: `df` shows how full the next channels are.
    fn statistics(&self, space: Option<(u64, u64)>) -> Vec<u8> {
        let nodes = NODES_MAX as u64;
        let blocks = space.map_or((UNLIMITED_BLOCKS, UNLIMITED_BLOCKS), |(used, limit)| {
            let (used, limit) = (used.div_ceil(BLOCK_BYTES), limit / BLOCK_BYTES);
            (limit, limit.saturating_sub(used))
        });
        fuse::statistics(&FileSystem {
            block_bytes: BLOCK_BYTES as u32,
            blocks,
            nodes: (nodes, nodes.saturating_sub(self.tree().len() as u64)),
            name_bytes_max: NAME_BYTES_MAX as u32,
        })
    }
}

fn init(major: u32, offered: u32) -> Body {
    if major != fuse::MAJOR {
        return Err(Errno::PROTO);
    }
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(BLOCK_BYTES as u32);
    Ok(fuse::init(offered & CAPABILITIES, WRITE_BYTES_MAX, page))
}

/// The answer to a request that made a node.
fn made(of: Result<Attributes, Errno>) -> Body {
    let of = of?;
    Ok(entry(&of, of.node))
}

/// The answer to a lookup of a node, which the kernel knows as `number`.
pub(super) fn entry(of: &Attributes, number: u64) -> Vec<u8> {
    fuse::entry(of, number, name_seconds(of.mode), VALID_SECONDS)
}

/// How long the kernel may cache the name of a node, in seconds. It looks up the name of a file each time (`alias.rs`).
pub(super) fn name_seconds(mode: u32) -> u64 {
    match mode & TYPE_MASK {
        DIRECTORY | LINK => VALID_SECONDS,
        _ => 0,
    }
}

fn attributes(of: Result<Attributes, Errno>) -> Body {
    Ok(fuse::attributes(&of?, VALID_SECONDS))
}
