//! Requests that are answered at once: names, attributes, opening, reading.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use millstream_record::Time;
use millstream_wire::fuse::{self, FileSystem, Header, Operation, capability, open_flag};
use rustix::io::Errno;

use super::{
    handles::Handle,
    mounted::Mounted,
    session::{Reply, WRITE_BYTES_MAX},
    stream::Stream,
    tree::{DIRECTORY, LINK, NAME_BYTES_MAX, NODES_MAX, TYPE_MASK, Who},
};

/// How long the system may believe what it was told, in seconds: it knows itself what is changed through it, but not when
/// old files are forgotten.
const VALID: u64 = 1;
/// What is asked of the system, as far as it offers it.
const CAPABILITIES: u32 = capability::ATOMIC_O_TRUNC
    | capability::BIG_WRITES
    | capability::PARALLEL_DIROPS
    | capability::MAX_PAGES
    | capability::HANDLE_KILLPRIV_V2;
/// `open(2)`.
const ACCESS_MODE: u32 = 3;
const TRUNCATE: u32 = 0o1_000;
/// `fallocate(2)`: the size stays.
const KEEP_SIZE: u32 = 1;
/// LINK: a file has one path, by which its rule is found.
const HARD_LINK: u32 = 13;
/// What `statfs` shows as free, in blocks: the room is that of the channel behind, and of what comes after it.
const FREE_BLOCKS: u64 = 1 << 28;
const BLOCK_BYTES: u32 = 4096;

type Body = Result<Vec<u8>, Errno>;

impl Mounted {
    /// Answers a request.
    pub(super) fn answer(&self, header: Header, operation: Operation<'_>, reply: Reply) {
        match operation {
            Operation::Forget { lookups } => {
                self.tree().forget(header.node, lookups);
                reply.none();
            }
            Operation::BatchForget(all) => {
                let mut tree = self.tree();
                for (node, lookups) in all {
                    tree.forget(node, lookups);
                }
                reply.none();
            }
            Operation::Interrupt { unique } if self.waiting.interrupt(unique) => reply.none(),
            // It may not wait yet, or no more: the system asks again, and knows which.
            Operation::Interrupt { .. } => reply.answer(Err::<[u8; 0], _>(Errno::AGAIN)),
            operation => reply.answer(self.body(header, operation)),
        }
    }

    fn body(&self, header: Header, operation: Operation<'_>) -> Body {
        let node = header.node;
        let now = Time::now();
        match operation {
            Operation::Init { major, flags, .. } => self.init(major, flags),
            Operation::Lookup { name } => self.entry(|tree| tree.lookup(node, name)),
            Operation::GetAttributes => self.attributes(|tree| tree.attributes(node)),
            Operation::SetAttributes(set) => {
                let shown = self.attributes(|tree| tree.set(node, &set, now))?;
                if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
                    self.directory_changed(node);
                }
                Ok(shown)
            }
            Operation::ReadLink => Ok(self.tree().target(node)?.to_vec()),
            Operation::SymLink { name, target } => {
                self.make(header, name, LINK | 0o777, Some(target))
            }
            Operation::MakeNode { name, mode } => self.make(header, name, mode, None),
            Operation::MakeDirectory { name, mode } => {
                let made = self.make(header, name, DIRECTORY | mode & 0o7777, None)?;
                self.directory_made(node, name);
                Ok(made)
            }
            Operation::Unlink { name } => {
                self.tree().unlink(node, name, now)?;
                Ok(Vec::new())
            }
            Operation::RemoveDirectory { name } => self.remove_directory(node, name),
            Operation::Rename {
                name,
                to_node,
                to_name,
                flags,
            } => self.rename((node, name), (to_node, to_name), flags),
            Operation::Open { flags } => self.open(node, flags),
            Operation::Create { name, mode, flags } => self.create(header, name, mode, flags),
            Operation::Read { offset, size, .. } => {
                let mut tree = self.tree();
                tree.was_read(node, header.thread);
                tree.read(node, offset, size)
            }
            Operation::Statistics => Ok(self.statistics()),
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

    fn init(&self, major: u32, offered: u32) -> Body {
        if major != fuse::MAJOR {
            return Err(Errno::PROTO);
        }
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(BLOCK_BYTES);
        Ok(fuse::init(offered & CAPABILITIES, WRITE_BYTES_MAX, page))
    }

    fn entry(
        &self,
        of: impl FnOnce(&mut super::tree::Tree) -> Result<fuse::Attributes, Errno>,
    ) -> Body {
        Ok(fuse::entry(&of(&mut self.tree())?, VALID))
    }

    fn attributes(
        &self,
        of: impl FnOnce(&mut super::tree::Tree) -> Result<fuse::Attributes, Errno>,
    ) -> Body {
        Ok(fuse::attributes(&of(&mut self.tree())?, VALID))
    }

    fn make(&self, header: Header, name: &[u8], mode: u32, target: Option<&[u8]>) -> Body {
        let now = Time::now();
        self.entry(|tree| tree.make(header.node, name, mode, target, who(header), now))
    }

    /// The plain directory below gets the directory, too: what is written while nobody is here finds its place.
    fn directory_made(&self, above: u64, name: &[u8]) {
        let tree = self.tree();
        let made = tree.number(above, name);
        let path = made.and_then(|made| tree.path(made));
        drop(tree);
        if let (Some(made), Some(path)) = (made, path) {
            self.below.make_directory(&path, 0o700);
            self.directory_changed(made);
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
        let mut tree = self.tree();
        let is_directory = tree.is_directory(from.0, from.1);
        let paths = tree.path(from.0).zip(tree.path(to.0));
        tree.rename(from, to, flags, Time::now())?;
        drop(tree);
        if let Some((above, into)) = paths.filter(|_| is_directory) {
            self.below.rename_directory(
                &above.join(OsStr::from_bytes(from.1)),
                &into.join(OsStr::from_bytes(to.1)),
            );
        }
        Ok(Vec::new())
    }

    /// Opens a file; the number of the open file.
    fn opened(&self, node: u64, flags: u32) -> Result<u64, Errno> {
        let mut tree = self.tree();
        tree.open(node)?;
        if flags & TRUNCATE != 0 {
            tree.resize(node, 0, Time::now())?;
        }
        let path = tree.path(node);
        drop(tree);
        let stream = (flags & ACCESS_MODE != 0).then(|| {
            let path = path.unwrap_or_default();
            Stream::new(&self.ship, &path.to_string_lossy())
        });
        let handle = self.handles.add(Handle::new(node, stream));
        self.ship.meters.open.set(self.handles.len() as u64);
        Ok(handle)
    }

    fn open(&self, node: u64, flags: u32) -> Body {
        Ok(fuse::opened(self.opened(node, flags)?, OPENED))
    }

    fn create(&self, header: Header, name: &[u8], mode: u32, flags: u32) -> Body {
        let now = Time::now();
        let made = self
            .tree()
            .make(header.node, name, mode, None, who(header), now)?;
        let handle = self.opened(made.node, flags)?;
        Ok(fuse::created(&made, VALID, handle, OPENED))
    }

    fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32) -> Body {
        match mode {
            0 => {
                let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
                self.tree().extend(node, end, Time::now())?;
                Ok(Vec::new())
            }
            KEEP_SIZE => Ok(Vec::new()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn statistics(&self) -> Vec<u8> {
        let nodes = NODES_MAX as u64;
        fuse::statistics(&FileSystem {
            block_bytes: BLOCK_BYTES,
            blocks: (FREE_BLOCKS, FREE_BLOCKS),
            nodes: (nodes, nodes.saturating_sub(self.tree().len() as u64)),
            name_bytes_max: NAME_BYTES_MAX as u32,
        })
    }
}

/// Every write comes here as it is made, so its end is known and its error told.
const OPENED: u32 = open_flag::DIRECT_IO | open_flag::NO_FLUSH;

fn who(header: Header) -> Who {
    Who {
        uid: header.uid,
        gid: header.gid,
    }
}
