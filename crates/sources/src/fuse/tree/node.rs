//! The nodes of a tree: directories, files and symbolic links, by number.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    sync::Arc,
};

use millstream_record::Time;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Owner, Who};
use crate::fuse::recent::Spill;

/// The first number of a node. In listings, numbers below it stand for `.` and `..`.
const FIRST_NODE: u64 = 16;

/// The kind of a node.
#[derive(Debug)]
pub(super) enum Kind {
    Directory(Directory),
    File(File),
    /// A symbolic link to this target.
    Link(OsString),
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub size: u64,
    /// The writes that have begun and not ended, and the end of the last of them. Several wait only if the channel is full.
    pub writes: u32,
    pub end: u64,
    pub copy: CopyState,
    /// The name that the file was made with. `logrotate` renames a file before it copies it (option `renamecopy`).
    pub first_name: OsString,
}

impl File {
    /// Begins a write. Returns its offset: if it `is_appended`, it follows all writes that have begun.
    pub(super) fn begin_write(&mut self, offset: u64, bytes: u64, is_appended: bool) -> u64 {
        let end = match self.writes {
            0 => self.size,
            _ => self.end.max(self.size),
        };
        let offset = if is_appended { end } else { offset };
        self.writes += 1;
        self.end = end.max(offset.saturating_add(bytes));
        offset
    }

    /// Ends a write. If it `is_accepted`, the file now reaches at least to `end`. Returns the size of the file, and whether no other
    /// write has begun.
    pub(super) fn end_write(&mut self, end: u64, is_accepted: bool) -> (u64, bool) {
        self.writes = self.writes.saturating_sub(1);
        if is_accepted {
            self.size = self.size.max(end);
        }
        (self.size, self.writes == 0)
    }
}

/// Whether a file is a copy of another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fuse) enum CopyState {
    /// Nothing was written yet.
    #[default]
    Unknown,
    /// All bytes of the file are also in the file with this node number, at the same offsets.
    Of(u64),
    /// The file is a compressed copy, or is overwritten by `shred`.
    Compressed,
    /// The file is compressed and not a copy.
    NewCompressed,
    /// The file is not a copy.
    No,
}

/// The names in a directory, in two maps: by name, and by number of the node. Listings use the order of the numbers.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub by_name: BTreeMap<OsString, u64>,
    pub by_node: BTreeMap<u64, OsString>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub kind: Kind,
    /// The directory of the node, and its name in that directory. `None` for the root, and if the name was removed.
    pub place: Option<(u64, OsString)>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The times of the last read, write and change.
    pub times: [Time; 3],
    /// The number of references that the kernel holds.
    pub lookups: u64,
    /// The number of open files of this node.
    pub opens: u32,
    /// The name and data of the file or symbolic link on the disk. `None` for directories, and if nothing can be read back.
    pub spill: Option<Arc<Spill>>,
}

impl Node {
    /// A node without a name.
    pub(super) fn new(owner: Owner, kind: Kind, mode: u32, who: Who, now: Time) -> Self {
        Self {
            kind,
            place: None,
            mode: mode & 0o7777 & !owner.umask,
            uid: owner.uid.unwrap_or(who.uid),
            gid: owner.gid.unwrap_or(who.gid),
            times: [now; 3],
            lookups: 0,
            opens: 0,
            spill: None,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    /// Notes that the content of the node has changed.
    pub(super) fn touch(&mut self, now: Time) {
        self.times[1] = now;
        self.times[2] = now;
    }

    /// Whether the node has no name, no reference and no open file.
    pub(super) fn is_unused(&self) -> bool {
        self.place.is_none() && self.lookups == 0 && self.opens == 0
    }
}

/// All nodes, by number.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Nodes {
    /// A table with only this root.
    pub(super) fn new(number: u64, root: Node) -> Self {
        Self {
            nodes: HashMap::from([(number, root)]),
            next: FIRST_NODE,
        }
    }

    /// A table without nodes, not even a root. The next node gets the number `next`.
    pub(super) fn empty(next: u64) -> Self {
        Self {
            nodes: HashMap::new(),
            next,
        }
    }

    pub(super) fn add(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        number
    }

    /// Adds a node of an earlier run under its number.
    pub(super) fn restore(&mut self, number: u64, node: Node) {
        self.skip(number);
        self.nodes.insert(number, node);
    }

    /// Never gives this number to a new node.
    pub(super) fn skip(&mut self, number: u64) {
        self.next = self.next.max(number + 1);
    }

    /// The number that the next new node gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Node> {
        self.nodes.remove(&number)
    }

    pub(super) fn get(&self, number: u64) -> Result<&Node, Errno> {
        self.nodes.get(&number).ok_or(Errno::STALE)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::STALE)
    }

    pub(super) fn directory(&self, number: u64) -> Result<&Directory, Errno> {
        match &self.get(number)?.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn directory_mut(&mut self, number: u64) -> Result<&mut Directory, Errno> {
        match &mut self.get_mut(number)?.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn file(&self, number: u64) -> Result<&File, Errno> {
        match &self.get(number)?.kind {
            Kind::File(file) => Ok(file),
            _ => Err(Errno::BADF),
        }
    }

    /// The node with this name in a directory.
    pub(super) fn find(&self, directory: u64, name: &OsStr) -> Result<u64, Errno> {
        let names = &self.directory(directory)?.by_name;
        names.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Whether `node` is `directory` or below it.
    pub(super) fn is_within(&self, node: u64, directory: u64) -> bool {
        let mut at = node;
        loop {
            if at == directory {
                return true;
            }
            match self.nodes.get(&at).and_then(|node| node.place.as_ref()) {
                Some((above, _)) => at = *above,
                None => return false,
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes.iter().map(|(number, node)| (*number, node))
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_reused_and_wrong_kinds_are_refused() {
        let node = |kind| Node {
            kind,
            place: None,
            mode: 0,
            uid: 0,
            gid: 0,
            times: [Time(0); 3],
            lookups: 0,
            opens: 0,
            spill: None,
        };
        let mut nodes = Nodes::new(1, node(Kind::Directory(Directory::default())));
        let file = nodes.add(node(Kind::File(File::default())));
        assert!(nodes.file(file).is_ok() && nodes.directory(1).is_ok());
        assert_eq!(nodes.file(1).unwrap_err(), Errno::BADF);
        assert_eq!(nodes.directory(file).unwrap_err(), Errno::NOTDIR);
        assert!(nodes.remove(file).unwrap().is_unused());
        assert_eq!(nodes.get(file).unwrap_err(), Errno::STALE);
        assert_ne!(nodes.add(node(Kind::File(File::default()))), file);
    }
}
