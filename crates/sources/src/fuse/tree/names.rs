//! Names in the tree: looked up, made, removed, moved.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use millstream_record::Time;
use millstream_wire::fuse::Attributes;
use rustix::io::Errno;

use super::{
    CopyState, DIRECTORY, Directory, FILE, Kind, LINK, NAME_BYTES_MAX, NODES_MAX, ROOT, TYPE_MASK,
    Tree, Who, Window,
};

/// The new name must be free (`renameat2`).
const NO_REPLACE: u32 = 1;

impl Tree {
    /// Looks a name up. The kernel has the node in mind once more.
    pub(in super::super) fn lookup(
        &mut self,
        directory: u64,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let number = self.find(directory, name)?;
        self.get_mut(number)?.lookups += 1;
        self.attributes(number)
    }

    fn find(&self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        let names = &self.directory(directory)?.by_name;
        names
            .get(OsStr::from_bytes(name))
            .copied()
            .ok_or(Errno::NOENT)
    }

    /// Makes a directory, a file or (with `target`) a link. The kernel has it in mind.
    pub(in super::super) fn make(
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
            FILE | 0 => Kind::File {
                size: 0,
                window: Window::starting_at(0),
                copy: CopyState::Open,
            },
            LINK => Kind::Link(OsStr::from_bytes(target.unwrap_or_default()).to_owned()),
            // Pipes, sockets and devices carry nothing through here.
            _ => return Err(Errno::PERM),
        };
        match self.find(directory, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        // A directory that was removed while somebody stood in it takes no names any more.
        if directory != ROOT && self.get(directory)?.place.is_none() {
            return Err(Errno::NOENT);
        }
        if self.nodes.len() >= NODES_MAX {
            self.forget_files();
        }
        let number = self.next_node;
        self.next_node += 1;
        let mut node = self.node(kind, None, mode, who, now);
        node.lookups = 1;
        self.nodes.insert(number, node);
        self.put(number, directory, OsStr::from_bytes(name), now)?;
        self.attributes(number)
    }

    fn put(&mut self, number: u64, into: u64, name: &OsStr, now: Time) -> Result<(), Errno> {
        let directory = self.directory_mut(into)?;
        directory.by_name.insert(name.to_owned(), number);
        directory.by_node.insert(number, name.to_owned());
        self.get_mut(into)?.wrote(now);
        let node = self.get_mut(number)?;
        node.place = Some((into, name.to_owned()));
        node.times[2] = now;
        Ok(())
    }

    /// Takes a node out of its directory.
    fn take(&mut self, number: u64, now: Time) -> Result<(), Errno> {
        let Some((from, name)) = self.get_mut(number)?.place.take() else {
            return Err(Errno::NOENT);
        };
        let directory = self.directory_mut(from)?;
        directory.by_name.remove(&name);
        directory.by_node.remove(&number);
        self.get_mut(from)?.wrote(now);
        self.get_mut(number)?.times[2] = now;
        Ok(())
    }

    /// Removes the name of a file or link.
    pub(in super::super) fn unlink(
        &mut self,
        directory: u64,
        name: &[u8],
        now: Time,
    ) -> Result<(), Errno> {
        let number = self.find(directory, name)?;
        if self.get(number)?.is_directory() {
            return Err(Errno::ISDIR);
        }
        self.take(number, now)?;
        self.drop_if_unused(number);
        Ok(())
    }

    /// Removes an empty directory.
    pub(in super::super) fn remove_directory(
        &mut self,
        directory: u64,
        name: &[u8],
        now: Time,
    ) -> Result<(), Errno> {
        let number = self.find(directory, name)?;
        if !self.directory(number)?.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.take(number, now)?;
        self.drop_if_unused(number);
        Ok(())
    }

    /// Moves a name, replacing what has the new one.
    pub(in super::super) fn rename(
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
        let number = self.find(from.0, from.1)?;
        if self.is_within(to.0, number) {
            return Err(Errno::INVAL);
        }
        match self.find(to.0, to.1) {
            Ok(other) if other == number => return Ok(()),
            Ok(_) if flags & NO_REPLACE != 0 => return Err(Errno::EXIST),
            Ok(other) => self.make_way(other, self.get(number)?.is_directory(), now)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.take(number, now)?;
        self.put(number, to.0, OsStr::from_bytes(to.1), now)
    }

    /// Removes what has the name that another gets.
    fn make_way(&mut self, other: u64, for_directory: bool, now: Time) -> Result<(), Errno> {
        match (&self.get(other)?.kind, for_directory) {
            (Kind::Directory(_), false) => return Err(Errno::ISDIR),
            (Kind::Directory(directory), true) if !directory.by_name.is_empty() => {
                return Err(Errno::NOTEMPTY);
            }
            (Kind::Directory(_), true) => {}
            (_, true) => return Err(Errno::NOTDIR),
            (_, false) => {}
        }
        self.take(other, now)?;
        self.drop_if_unused(other);
        Ok(())
    }

    /// The node that has this name.
    pub(in super::super) fn number(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.find(directory, name).ok()
    }

    /// Whether a directory has this name.
    pub(in super::super) fn is_directory(&self, directory: u64, name: &[u8]) -> bool {
        let found = self
            .find(directory, name)
            .and_then(|number| self.get(number));
        found.is_ok_and(super::Node::is_directory)
    }

    /// Whether `node` is `directory` or stands somewhere below it.
    fn is_within(&self, node: u64, directory: u64) -> bool {
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

    /// Forgets a tenth of the files: those that are not open and were written longest ago.
    fn forget_files(&mut self) {
        let closed = self.nodes.iter().filter(|(number, node)| {
            **number != ROOT && node.opens == 0 && !node.is_directory() && node.place.is_some()
        });
        let mut closed: Vec<_> = closed
            .map(|(number, node)| (node.times[1], *number))
            .collect();
        closed.sort_unstable();
        for (written, number) in closed.into_iter().take(NODES_MAX / 10) {
            // Its directory is not changed by this: programs watch the times of directories.
            if self.take(number, written).is_ok() {
                self.drop_if_unused(number);
            }
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
