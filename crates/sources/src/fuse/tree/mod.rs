//! The tree of names below the mount point: directories, files with the size that was written, links. All in memory.
//!
//! Pure: it is told the time and what is asked, and never waits. The kernel checks permissions (`default_permissions`) and
//! most of what may not be; what it cannot know is checked here. What is written goes through elsewhere; of each file the
//! tree keeps the size and the last bytes (contents.rs, window.rs). Changes of names are in names.rs.

mod contents;
mod copies;
mod names;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::OsString,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use copies::CopyState;
pub(super) use copies::Wrote;
use millstream_record::Time;
use millstream_wire::fuse::{Attributes, Entries, ROOT, SetAttributes, TimeSet};
use rustix::io::Errno;

use window::Window;

pub(super) const TYPE_MASK: u32 = 0o170_000;
pub(super) const DIRECTORY: u32 = 0o040_000;
pub(super) const FILE: u32 = 0o100_000;
pub(super) const LINK: u32 = 0o120_000;
/// Programs that look at it write in pieces of this size: one request each.
const BLOCK_BYTES: u32 = 1 << 20;
/// Names are told apart from the two that every directory has by their nodes' numbers.
const FIRST_NODE: u64 = 16;
/// As many files are remembered. Beyond it those are forgotten that are not open and were written longest ago.
pub(super) const NODES_MAX: usize = 100_000;
/// The longest name.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// How much of what was written can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recent {
    /// Of each file.
    pub file: usize,
    /// Of all together.
    pub all: usize,
}

/// Whom new nodes belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner {
    /// Everybody's nodes get this user.
    pub uid: Option<u32>,
    /// And this group.
    pub gid: Option<u32>,
    /// Permissions that no node gets.
    pub umask: u32,
}

/// Who makes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub uid: u32,
    pub gid: u32,
}

/// What a node is.
#[derive(Debug)]
enum Kind {
    Directory(Directory),
    File {
        size: u64,
        window: Window,
        copy: CopyState,
    },
    Link(OsString),
}

/// The names in a directory, by name and in the order of their nodes, in which they are listed.
#[derive(Debug, Default)]
struct Directory {
    by_name: BTreeMap<OsString, u64>,
    by_node: BTreeMap<u64, OsString>,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    /// The directory it stands in, and its name there. None: the root, or removed.
    place: Option<(u64, OsString)>,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Last read, write, change.
    times: [Time; 3],
    /// How often the kernel has it in mind.
    lookups: u64,
    /// How often it is open.
    opens: u32,
}

impl Node {
    fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    fn wrote(&mut self, now: Time) {
        self.times[1] = now;
        self.times[2] = now;
    }
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    next_node: u64,
    owner: Owner,
    recent: Recent,
    /// Bytes in all windows.
    recent_bytes: usize,
    /// Files that were read lately, by which thread, the last one first: what it writes elsewhere may be a copy of them.
    read_lately: VecDeque<(u64, u32)>,
}

impl Tree {
    /// An empty one.
    pub(super) fn new(owner: Owner, recent: Recent, who: Who, mode: u32, now: Time) -> Self {
        let mut tree = Self {
            nodes: HashMap::new(),
            next_node: FIRST_NODE,
            owner,
            recent,
            recent_bytes: 0,
            read_lately: VecDeque::new(),
        };
        let root = tree.node(Kind::Directory(Directory::default()), None, mode, who, now);
        tree.nodes.insert(ROOT, root);
        tree
    }

    fn node(
        &self,
        kind: Kind,
        place: Option<(u64, OsString)>,
        mode: u32,
        who: Who,
        now: Time,
    ) -> Node {
        Node {
            kind,
            place,
            mode: mode & 0o7777 & !self.owner.umask,
            uid: self.owner.uid.unwrap_or(who.uid),
            gid: self.owner.gid.unwrap_or(who.gid),
            times: [now; 3],
            lookups: 0,
            opens: 0,
        }
    }

    fn get(&self, node: u64) -> Result<&Node, Errno> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    fn get_mut(&mut self, node: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    fn directory(&self, node: u64) -> Result<&Directory, Errno> {
        match &self.get(node)?.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn directory_mut(&mut self, node: u64) -> Result<&mut Directory, Errno> {
        match &mut self.get_mut(node)?.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// What `stat` shows of a node.
    pub(super) fn attributes(&self, number: u64) -> Result<Attributes, Errno> {
        let node = self.get(number)?;
        let (kind, size, links) = match &node.kind {
            Kind::Directory(directory) => {
                let below = directory.by_node.keys().filter_map(|n| self.nodes.get(n));
                let directories = below.filter(|node| node.is_directory()).count();
                (
                    DIRECTORY,
                    4096,
                    2 + u32::try_from(directories).unwrap_or(u32::MAX),
                )
            }
            Kind::File { size, .. } => (FILE, *size, 1),
            Kind::Link(target) => (LINK, target.len() as u64, 1),
        };
        let removed = node.place.is_none() && number != ROOT;
        Ok(Attributes {
            node: number,
            size,
            times: node.times.map(|time| (time.seconds(), time.subsec_nanos())),
            mode: kind | node.mode,
            links: if removed { 0 } else { links },
            uid: node.uid,
            gid: node.gid,
            block_bytes: BLOCK_BYTES,
        })
    }

    /// Changes what is asked; what `stat` shows then.
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
        let node = self.get_mut(number)?;
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
        self.attributes(number)
    }

    /// What a link points to.
    pub(super) fn target(&self, number: u64) -> Result<&[u8], Errno> {
        match &self.get(number)?.kind {
            Kind::Link(target) => Ok(target.as_bytes()),
            _ => Err(Errno::INVAL),
        }
    }

    /// The names in a directory behind `offset`, which is the number of the last node that was listed.
    pub(super) fn list(&self, number: u64, offset: u64, bytes: u32) -> Result<Vec<u8>, Errno> {
        let directory = self.directory(number)?;
        let above = self.get(number)?.place.as_ref();
        let above = above.map_or(ROOT, |(above, _)| *above);
        let mut entries = Entries::new(bytes);
        let own = [(1, number, &b"."[..]), (2, above, b"..")];
        let mut fits = own
            .iter()
            .filter(|(next, ..)| *next > offset)
            .all(|(next, node, name)| entries.add(*node, *next, DIRECTORY, name));
        for (node, name) in directory.by_node.range(offset.max(2) + 1..) {
            let mode = match self.nodes.get(node).map(|node| &node.kind) {
                Some(Kind::Directory(_)) => DIRECTORY,
                Some(Kind::Link(_)) => LINK,
                _ => FILE,
            };
            fits = fits && entries.add(*node, *node, mode, name.as_bytes());
            if !fits {
                break;
            }
        }
        Ok(entries.finish())
    }

    /// Where a node stands below the mount point; None if it was removed.
    pub(super) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (above, name) = self.nodes.get(&at)?.place.as_ref()?;
            parts.push(name);
            at = *above;
        }
        Some(parts.into_iter().rev().collect())
    }

    /// A file is opened; it stays even if its name goes.
    pub(super) fn open(&mut self, number: u64) -> Result<(), Errno> {
        let node = self.get_mut(number)?;
        match node.kind {
            Kind::File { .. } => {
                node.opens += 1;
                Ok(())
            }
            Kind::Directory(_) => Err(Errno::ISDIR),
            Kind::Link(_) => Err(Errno::LOOP),
        }
    }

    /// It is closed.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.opens = node.opens.saturating_sub(1);
        }
        self.drop_if_unused(number);
    }

    /// The kernel has forgotten a node so many times.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.drop_if_unused(number);
    }

    fn drop_if_unused(&mut self, number: u64) {
        let unused = |node: &Node| node.place.is_none() && node.lookups == 0 && node.opens == 0;
        if number != ROOT && self.nodes.get(&number).is_some_and(unused) {
            self.remove_node(number);
        }
    }

    fn remove_node(&mut self, number: u64) {
        if let Some(Node {
            kind: Kind::File { window, .. },
            ..
        }) = self.nodes.remove(&number)
        {
            self.recent_bytes -= window.len();
        }
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}
