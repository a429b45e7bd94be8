//! The tree of names below the mount point: directories, symbolic links, and files with their size.
//!
//! The tree does no I/O and reads no clock. The kernel checks permissions (`default_permissions`) and refuses most invalid requests.
//! The tree refuses the others. Written data does not pass through the tree. Data that can be read back, and the names of files after
//! a restart, are in the spills (`recent/`). The tree only notes which spills have to follow its changes.

mod copies;
mod kept;
mod node;
mod restore;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::Time;
use millstream_wire::fuse::{Attributes, Entries, ROOT, SetAttributes, TimeSet};
use rustix::io::Errno;

use super::recent::{Recent, Spill};
use copies::RecentReads;
pub(super) use copies::{Suspicion, WriteKind};
pub(super) use kept::{KeptTree, keep, take_over};
pub(super) use node::CopyState;
use node::{Directory, File, Kind, Node, Nodes};

pub(super) const TYPE_MASK: u32 = 0o170_000;
pub(super) const DIRECTORY: u32 = 0o040_000;
pub(super) const FILE: u32 = 0o100_000;
pub(super) const LINK: u32 = 0o120_000;
/// `st_blksize` of files. Programs that follow it write in pieces of this size, and each piece is one request.
const BLOCK_BYTES: u32 = 1 << 20;
/// The limit on nodes. When it is reached, files that are not open are forgotten, starting with those written longest ago.
pub(super) const NODES_MAX: usize = 100_000;
/// The longest name, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 255;
/// `renameat2(2)`: the new name must be free.
const NO_REPLACE: u32 = 1;
/// The largest size of a file in bytes. Offsets are signed.
const SIZE_MAX: u64 = i64::MAX as u64;

/// The owner and permissions of new nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner {
    /// `None` stands for the user that makes the node.
    pub uid: Option<u32>,
    /// `None` stands for the group of the process that makes the node.
    pub gid: Option<u32>,
    /// Permissions that no node gets.
    pub umask: u32,
}

/// The user and group that make a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub uid: u32,
    pub gid: u32,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Nodes,
    owner: Owner,
    /// Makes the spills of new files. `None` if nothing can be read back.
    recent: Option<Arc<Recent>>,
    reads: RecentReads,
    /// The changes that the spills have to follow.
    changes: Vec<Change>,
}

/// A change that a spill has to follow.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The name or an attribute of this node.
    Head(u64, Arc<Spill>),
    /// The size, which is now this.
    Size(u64, Arc<Spill>),
}

impl Tree {
    /// A tree with only its root.
    pub(super) fn new(
        owner: Owner,
        recent: Option<Arc<Recent>>,
        who: Who,
        mode: u32,
        now: Time,
    ) -> Self {
        let root = Kind::Directory(Directory::default());
        Self {
            nodes: Nodes::new(ROOT, Node::new(owner, root, mode, who, now)),
            owner,
            recent,
            reads: RecentReads::default(),
            changes: Vec::new(),
        }
    }

    /// Changes the owner and the permissions of new nodes.
    pub(super) fn change(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Takes the changes that the spills have to follow.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Notes that the name or an attribute of a node has changed.
    fn note_change(&mut self, number: u64) {
        if let Ok(node) = self.nodes.get(number)
            && let Some(spill) = &node.spill
        {
            self.changes.push(Change::Head(number, spill.clone()));
        }
    }

    /// Notes that the paths of a node and of all nodes below it have changed.
    fn note_moved(&mut self, number: u64) {
        self.note_change(number);
        let below = self.nodes.directory(number);
        let below: Vec<_> =
            below.map_or_else(|_| Vec::new(), |of| of.by_node.keys().copied().collect());
        for number in below {
            self.note_moved(number);
        }
    }

    // Names.

    /// The number of the node with a name.
    pub(super) fn find(&self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.nodes.find(directory, OsStr::from_bytes(name))
    }

    /// Looks up a name. The kernel then holds one more reference to the node.
    pub(super) fn lookup(&mut self, directory: u64, name: &[u8]) -> Result<Attributes, Errno> {
        let number = self.nodes.find(directory, OsStr::from_bytes(name))?;
        self.nodes.get_mut(number)?.lookups += 1;
        self.attributes(number)
    }

    /// Makes a directory, a file or (with `target`) a symbolic link. The kernel then holds a reference to it.
    pub(super) fn make(
        &mut self,
        directory: u64,
        name: &[u8],
        mode: u32,
        target: Option<&[u8]>,
        who: Who,
        now: Time,
    ) -> Result<Attributes, Errno> {
        check(name)?;
        let kind = match mode & TYPE_MASK {
            DIRECTORY => Kind::Directory(Directory::default()),
            FILE | 0 => Kind::File(File {
                first_name: OsStr::from_bytes(name).to_owned(),
                ..File::default()
            }),
            LINK => Kind::Link(OsStr::from_bytes(target.unwrap_or_default()).to_owned()),
            // Data in pipes, sockets and devices would bypass the source.
            _ => return Err(Errno::PERM),
        };
        let name = OsStr::from_bytes(name);
        match self.nodes.find(directory, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        // A directory that was removed while a process is in it takes no new names.
        if directory != ROOT && self.nodes.get(directory)?.place.is_none() {
            return Err(Errno::NOENT);
        }
        if self.nodes.len() >= NODES_MAX {
            self.forget_files();
        }
        let mut node = Node::new(self.owner, kind, mode, who, now);
        node.lookups = 1;
        if let Some(recent) = &self.recent
            && !node.is_directory()
        {
            node.spill = Some(recent.spill(self.nodes.next()));
        }
        let number = self.nodes.add(node);
        self.link(number, directory, name, now)?;
        self.note_change(number);
        self.attributes(number)
    }

    /// Makes a directory by its path, if the directory above exists. The kernel gets no reference to it.
    pub(super) fn make_path(&mut self, path: &Path, mode: u32, who: Who, now: Time) {
        let mut above = ROOT;
        let mut parts = path.iter().peekable();
        while let Some(part) = parts.next() {
            let made = match parts.peek() {
                Some(_) => self.lookup(above, part.as_bytes()),
                None => self.make(above, part.as_bytes(), mode, None, who, now),
            };
            let Ok(made) = made else { return };
            self.forget(made.node, 1);
            above = made.node;
        }
    }

    /// Removes the name of a file or symbolic link.
    pub(super) fn unlink(&mut self, directory: u64, name: &[u8], now: Time) -> Result<(), Errno> {
        let number = self.nodes.find(directory, OsStr::from_bytes(name))?;
        if self.nodes.get(number)?.is_directory() {
            return Err(Errno::ISDIR);
        }
        self.remove(number, now)
    }

    /// Removes an empty directory.
    pub(super) fn remove_directory(
        &mut self,
        directory: u64,
        name: &[u8],
        now: Time,
    ) -> Result<(), Errno> {
        let number = self.nodes.find(directory, OsStr::from_bytes(name))?;
        if !self.nodes.directory(number)?.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove(number, now)
    }

    /// Renames a node. Replaces a node that already has the new name.
    pub(super) fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        now: Time,
    ) -> Result<(), Errno> {
        check(to.1)?;
        if flags & !NO_REPLACE != 0 {
            return Err(Errno::INVAL);
        }
        let number = self.nodes.find(from.0, OsStr::from_bytes(from.1))?;
        if self.nodes.is_within(to.0, number) {
            return Err(Errno::INVAL);
        }
        let name = OsStr::from_bytes(to.1);
        match self.nodes.find(to.0, name) {
            Ok(other) if other == number => return Ok(()),
            Ok(_) if flags & NO_REPLACE != 0 => return Err(Errno::EXIST),
            Ok(other) => self.replace(other, self.nodes.get(number)?.is_directory(), now)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.unlink_node(number, now)?;
        self.link(number, to.0, name, now)?;
        self.note_moved(number);
        Ok(())
    }

    /// Removes a node because another one takes its name.
    fn replace(&mut self, other: u64, by_directory: bool, now: Time) -> Result<(), Errno> {
        match (&self.nodes.get(other)?.kind, by_directory) {
            (Kind::Directory(_), false) => return Err(Errno::ISDIR),
            (Kind::Directory(directory), true) if !directory.by_name.is_empty() => {
                return Err(Errno::NOTEMPTY);
            }
            (Kind::Directory(_), true) => {}
            (_, true) => return Err(Errno::NOTDIR),
            (_, false) => {}
        }
        self.remove(other, now)
    }

    /// Whether the entry `name` of a directory is a directory, too.
    pub(super) fn is_directory(&self, directory: u64, name: &[u8]) -> bool {
        let number = self.nodes.find(directory, OsStr::from_bytes(name));
        number.is_ok_and(|number| self.nodes.directory(number).is_ok())
    }

    /// The path of a node below the mount point. `None` if its name was removed.
    pub(super) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (above, name) = self.nodes.get(at).ok()?.place.as_ref()?;
            parts.push(name);
            at = *above;
        }
        Some(parts.into_iter().rev().collect())
    }

    /// Lists the entries of a directory whose node numbers are above `offset`. Returns the body of an answer, of at most `bytes` bytes.
    pub(super) fn list(&self, number: u64, offset: u64, bytes: u32) -> Result<Vec<u8>, Errno> {
        let directory = self.nodes.directory(number)?;
        let above = self.nodes.get(number)?.place.as_ref();
        let above = above.map_or(ROOT, |(above, _)| *above);
        let mut entries = Entries::new(bytes);
        let own = [(1, number, &b"."[..]), (2, above, b"..")];
        let mut fits = own
            .iter()
            .filter(|(next, ..)| *next > offset)
            .all(|(next, node, name)| entries.add(*node, *next, DIRECTORY, name));
        for (node, name) in directory.by_node.range(offset.max(2) + 1..) {
            let mode = match self.nodes.get(*node).map(|node| &node.kind) {
                Ok(Kind::Directory(_)) => DIRECTORY,
                Ok(Kind::Link(_)) => LINK,
                _ => FILE,
            };
            fits = fits && entries.add(*node, *node, mode, name.as_bytes());
            if !fits {
                break;
            }
        }
        Ok(entries.finish())
    }

    /// Puts a node into a directory.
    fn link(&mut self, number: u64, into: u64, name: &OsStr, now: Time) -> Result<(), Errno> {
        let directory = self.nodes.directory_mut(into)?;
        directory.by_name.insert(name.to_owned(), number);
        directory.by_node.insert(number, name.to_owned());
        self.nodes.get_mut(into)?.touch(now);
        let node = self.nodes.get_mut(number)?;
        node.place = Some((into, name.to_owned()));
        node.times[2] = now;
        Ok(())
    }

    /// Takes a node out of its directory.
    fn unlink_node(&mut self, number: u64, now: Time) -> Result<(), Errno> {
        let Some((from, name)) = self.nodes.get_mut(number)?.place.take() else {
            return Err(Errno::NOENT);
        };
        let directory = self.nodes.directory_mut(from)?;
        directory.by_name.remove(&name);
        directory.by_node.remove(&number);
        self.nodes.get_mut(from)?.touch(now);
        self.nodes.get_mut(number)?.times[2] = now;
        Ok(())
    }

    /// Takes a node out of its directory, and drops it if nothing else needs it.
    fn remove(&mut self, number: u64, now: Time) -> Result<(), Errno> {
        self.unlink_node(number, now)?;
        self.note_change(number);
        self.drop_if_unused(number);
        Ok(())
    }

    /// Forgets a tenth of the files: those that are not open and were written longest ago.
    fn forget_files(&mut self) {
        let closed = self.nodes.iter().filter(|(number, node)| {
            *number != ROOT && node.opens == 0 && !node.is_directory() && node.place.is_some()
        });
        let mut closed: Vec<_> = closed
            .map(|(number, node)| (node.times[1], number))
            .collect();
        closed.sort_unstable();
        for (written, number) in closed.into_iter().take(NODES_MAX / 10) {
            // The modification time of the directory becomes that of the file. Programs that watch this time for changes would take the
            // current time for a change.
            let _ = self.remove(number, written);
        }
    }

    // References.

    /// Notes that a file was opened. Its node then stays even if its name is removed.
    pub(super) fn open(&mut self, number: u64) -> Result<(), Errno> {
        let node = self.nodes.get_mut(number)?;
        match node.kind {
            Kind::File(_) => {
                node.opens += 1;
                Ok(())
            }
            Kind::Directory(_) => Err(Errno::ISDIR),
            Kind::Link(_) => Err(Errno::LOOP),
        }
    }

    /// Notes that an open file was closed.
    pub(super) fn close(&mut self, number: u64) {
        if let Ok(node) = self.nodes.get_mut(number) {
            node.opens = node.opens.saturating_sub(1);
        }
        self.drop_if_unused(number);
    }

    /// Drops `lookups` of the kernel's references to a node.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Ok(node) = self.nodes.get_mut(number) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.drop_if_unused(number);
    }

    fn drop_if_unused(&mut self, number: u64) {
        if number != ROOT && self.nodes.get(number).is_ok_and(Node::is_unused) {
            self.nodes.remove(number);
        }
    }

    // Attributes.

    /// The attributes of a node.
    pub(super) fn attributes(&self, number: u64) -> Result<Attributes, Errno> {
        let node = self.nodes.get(number)?;
        let (kind, size, links) = match &node.kind {
            Kind::Directory(directory) => {
                let below = directory.by_node.keys();
                let directories = below.filter(|node| self.nodes.directory(**node).is_ok());
                let directories = u32::try_from(directories.count()).unwrap_or(u32::MAX);
                (DIRECTORY, 4096, directories.saturating_add(2))
            }
            Kind::File(file) => (FILE, file.size, 1),
            Kind::Link(target) => (LINK, target.len() as u64, 1),
        };
        let is_removed = node.place.is_none() && number != ROOT;
        Ok(Attributes {
            node: number,
            size,
            times: node.times.map(|time| (time.seconds(), time.subsec_nanos())),
            mode: kind | node.mode,
            links: if is_removed { 0 } else { links },
            uid: node.uid,
            gid: node.gid,
            block_bytes: BLOCK_BYTES,
        })
    }

    /// Changes attributes. Returns the new ones.
    pub(super) fn set(
        &mut self,
        number: u64,
        set: &SetAttributes,
        now: Time,
    ) -> Result<Attributes, Errno> {
        if let Some(size) = set.size {
            self.resize(number, size, now)?;
        }
        let umask = self.owner.umask;
        let node = self.nodes.get_mut(number)?;
        let time = |set: TimeSet| match set {
            TimeSet::Now => now,
            TimeSet::At(seconds, nanos) => Time::from_parts(seconds, nanos.min(999_999_999)),
        };
        if let Some(mode) = set.mode {
            node.mode = mode & 0o7777 & !umask;
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        node.times[0] = set.atime.map_or(node.times[0], time);
        node.times[1] = set.mtime.map_or(node.times[1], time);
        node.times[2] = now;
        self.note_change(number);
        self.attributes(number)
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, number: u64) -> Result<&[u8], Errno> {
        match &self.nodes.get(number)?.kind {
            Kind::Link(target) => Ok(target.as_bytes()),
            _ => Err(Errno::INVAL),
        }
    }

    // Content.

    /// Truncates or extends a file.
    pub(super) fn resize(&mut self, number: u64, to: u64, now: Time) -> Result<(), Errno> {
        if to > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let node = self.nodes.get_mut(number)?;
        let Kind::File(file) = &mut node.kind else {
            return Err(if node.is_directory() {
                Errno::ISDIR
            } else {
                Errno::INVAL
            });
        };
        let is_changed = file.size != to;
        (file.size, file.end) = (to, to);
        if to == 0 {
            file.copy = CopyState::Unknown;
        }
        node.touch(now);
        if is_changed && let Some(spill) = &node.spill {
            self.changes.push(Change::Size(to, spill.clone()));
        }
        Ok(())
    }

    /// Makes a file at least this large, as `fallocate` does.
    pub(super) fn extend(&mut self, number: u64, to: u64, now: Time) -> Result<(), Errno> {
        if self.nodes.file(number)?.size < to {
            self.resize(number, to, now)?;
        }
        Ok(())
    }

    /// Finds out whether a write may be a part of a copy. Changes nothing. `is_writer` returns whether a thread belongs to the writing
    /// process.
    pub(super) fn judge(
        &self,
        number: u64,
        offset: u64,
        data: &[u8],
        is_writer: impl Fn(u32) -> bool,
    ) -> Result<Suspicion, Errno> {
        if offset.saturating_add(data.len() as u64) > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        self.reads.judge(&self.nodes, number, data, is_writer)
    }

    /// Notes whether a write is a part of a copy. Returns the kind of the write.
    pub(super) fn judged(&mut self, number: u64, copy: CopyState) -> Result<WriteKind, Errno> {
        let node = self.nodes.get_mut(number)?;
        let Kind::File(file) = &mut node.kind else {
            return Err(Errno::BADF);
        };
        let before = std::mem::replace(&mut file.copy, copy);
        Ok(WriteKind::of(copy, before))
    }

    /// Begins a write; see [`File::begin_write`]. The kernel's size of the file may be older (`alias.rs`).
    pub(super) fn begin_write(
        &mut self,
        number: u64,
        offset: u64,
        bytes: u64,
        is_appended: bool,
    ) -> Result<u64, Errno> {
        let Kind::File(file) = &mut self.nodes.get_mut(number)?.kind else {
            return Err(Errno::BADF);
        };
        Ok(file.begin_write(offset, bytes, is_appended))
    }

    /// Ends a write. If it `is_accepted`, the file now reaches at least to `end`. Returns the size of the file, and whether no other
    /// write has begun.
    pub(super) fn end_write(
        &mut self,
        number: u64,
        end: u64,
        is_accepted: bool,
        now: Time,
    ) -> (u64, bool) {
        let Ok(node) = self.nodes.get_mut(number) else {
            return (0, true);
        };
        let Kind::File(file) = &mut node.kind else {
            return (0, true);
        };
        let ended = file.end_write(end, is_accepted);
        if is_accepted {
            node.touch(now);
        }
        ended
    }

    /// Notes that a thread has read from a file.
    pub(super) fn was_read(&mut self, number: u64, thread: u32) {
        self.reads.note(number, thread);
    }

    /// The size and the spill of a file.
    pub(super) fn content(&self, number: u64) -> Result<(u64, Option<Arc<Spill>>), Errno> {
        let node = self.nodes.get(number)?;
        match &node.kind {
            Kind::File(file) => Ok((file.size, node.spill.clone())),
            Kind::Directory(_) => Err(Errno::ISDIR),
            Kind::Link(_) => Err(Errno::INVAL),
        }
    }
}

fn check(name: &[u8]) -> Result<(), Errno> {
    let reserved: [&[u8]; 3] = [b"", b".", b".."];
    if name.len() > NAME_BYTES_MAX {
        Err(Errno::NAMETOOLONG)
    } else if reserved.contains(&name) || name.contains(&b'/') {
        Err(Errno::INVAL)
    } else {
        Ok(())
    }
}
