//! The files without a reader. They are known from a durable channel, from the stored positions, and from readers that ended.
//!
//! A file that a scan finds is compared with the known files. The result is a [`Verdict`]: the file continues, its inode holds
//! another content, or the file is new. A head is a checksum of the first line, a generation numbers the contents of one inode, and
//! a mark is an offset with a checksum of the bytes before it (`identity.rs`).

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use millstream_record::FileId;

use super::{
    identity::{Candidate, Inode, Mark, Stat, begins_as, generation, head_key, read_start},
    names::is_rotated,
    positions::{self, Entry},
};

/// A file as its last reader left it.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub id: FileId,
    /// Where reading continues.
    pub offset: u64,
    /// A mark at or before the offset. None if a durable channel has the offset, but no mark was stored.
    pub mark: Option<Mark>,
    seen: u64,
    /// The length of the file, if it was not read to its end, or may still grow. None if nothing more is expected of it.
    left: Option<u64>,
    path: String,
}

impl Past {
    /// Whether the file was seen, but nothing of it was sent: it has no head yet.
    pub(super) fn is_unsent(&self) -> bool {
        self.id.head == 0
    }

    /// Whether the file, whose bytes before the offset have changed, was overwritten in place after log rotation gave it the name
    /// `path`. Otherwise the inode holds another content, which is to be read: it was truncated, or still has its name.
    pub(super) fn is_overwritten(&self, stat: &Stat, path: &Path) -> bool {
        let before = Path::new(&self.path);
        let is_same = stat.inode.birth != 0 && stat.inode.birth == self.id.birth;
        is_same && stat.len >= self.offset && is_rotated(path, before)
    }

    /// The mark, unless it is at offset 0: there, all files have the same mark.
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> + use<> {
        self.mark.filter(|mark| mark.offset > 0).into_iter()
    }
}

/// The known files, by inode number and birth time. Device numbers may change when the machine boots, so they are not in the
/// key.
#[derive(Debug, Default)]
pub(super) struct Known {
    files: HashMap<(u64, i64), Vec<Past>>,
    /// Contents that were truncated after the positions were last stored. The positions have these contents, but the channel has a
    /// later content of the same inode. The next scan may find copies of the former contents.
    former: HashMap<(u64, i64), Vec<Past>>,
}

/// The relation of a found file to the known ones.
#[derive(Debug)]
pub(super) enum Verdict {
    /// No part of the file was read.
    New,
    /// The file is known. Reading continues at the mark.
    Continues(FileId, Mark),
    /// The inode of the file held another content before.
    Replaced(Past),
}

impl Known {
    /// Built from a durable channel and the stored positions. If both know a file, the offset of the channel applies.
    pub(super) fn new(origins: Vec<(FileId, u64)>, entries: Vec<Entry>) -> Self {
        let mut known = Self::default();
        for Entry {
            id,
            mark,
            seen,
            left,
            path,
        } in entries
        {
            let _ = known.put(Past {
                id,
                offset: mark.offset,
                mark: Some(mark),
                seen,
                left,
                path,
            });
        }
        let mut origins = origins;
        origins.sort_unstable_by_key(|(id, _)| generation(id));
        for (id, offset) in origins {
            let displaced = known.put(Past {
                id,
                offset,
                mark: None,
                seen: positions::now(),
                left: None,
                path: String::new(),
            });
            if let Some(past) = displaced.filter(|past| !past.is_unsent()) {
                let former = known.former.entry((id.inode, id.birth)).or_default();
                // A copy of a content without a mark is recognized only by its name. Only copies of the last content are recognized
                // by their name, so older contents without a mark are dropped.
                former.retain(|other| other.marks().next().is_some());
                former.push(past);
            }
        }
        known
    }

    /// Removes and returns the contents of an inode that were truncated after the positions were last stored, oldest first.
    pub(super) fn remove_former(&mut self, inode: Inode) -> Vec<Past> {
        let former = self.former.remove(&(inode.number, inode.birth));
        let mut former = former.unwrap_or_default();
        former.retain(|past| inode.birth != 0 || past.id.device == inode.device);
        former
    }

    /// Sets where reading of a file continues. `left` is its length if more of it is expected.
    pub(super) fn set(&mut self, id: FileId, mark: Mark, left: Option<u64>, path: &Path) {
        let _ = self.put(Past {
            id,
            offset: mark.offset,
            mark: Some(mark),
            seen: positions::now(),
            left,
            path: path.to_string_lossy().into_owned(),
        });
    }

    /// Adds a file of which nothing was sent yet, unless its inode is known. The file will be read from its beginning, even if it
    /// has another name by then.
    pub(super) fn expect(&mut self, stat: &Stat, path: &Path) {
        let inode = stat.inode;
        if self.find(inode).is_none() {
            let id = FileId {
                device: inode.device,
                inode: inode.number,
                birth: inode.birth,
                head: 0,
            };
            self.set(id, Mark::default(), Some(stat.len), path);
        }
    }

    /// Adds or updates a content. An older content of the same inode can no longer exist, so it is replaced and returned. A content
    /// that is older than the known one is ignored.
    fn put(&mut self, mut past: Past) -> Option<Past> {
        let all = self
            .files
            .entry((past.id.inode, past.id.birth))
            .or_default();
        let same = all
            .iter_mut()
            .find(|other| other.id.device == past.id.device);
        // The first name shows what later names, also of compressed copies, come from.
        if let Some(other) = &same
            && is_rotated(Path::new(&past.path), Path::new(&other.path))
        {
            past.path.clone_from(&other.path);
        }
        match same {
            Some(other) if other.id == past.id => {
                past.mark = past
                    .mark
                    .or(other.mark)
                    .filter(|mark| mark.offset <= past.offset);
                // A durable channel does not know the path and the length.
                if past.path.is_empty() {
                    past.path = std::mem::take(&mut other.path);
                    past.left = other.left;
                }
                *other = past;
                None
            }
            Some(other) if generation(&past.id) >= generation(&other.id) => {
                Some(std::mem::replace(other, past))
            }
            Some(_) => None,
            None => {
                all.push(past);
                None
            }
        }
    }

    /// Notes that a file is gone, and that this was reported.
    pub(super) fn give_up(&mut self, inode: Inode) {
        let files = self.files.get_mut(&(inode.number, inode.birth));
        for past in files.into_iter().flatten() {
            past.left = None;
        }
    }

    /// Notes that a scan has seen an inode.
    pub(super) fn touch(&mut self, inode: Inode) {
        let now = positions::now();
        for past in self
            .files
            .get_mut(&(inode.number, inode.birth))
            .into_iter()
            .flatten()
        {
            past.seen = now;
        }
    }

    /// The known file of an inode.
    pub(super) fn find(&self, inode: Inode) -> Option<&Past> {
        let all = self.files.get(&(inode.number, inode.birth))?;
        let same = all.iter().find(|past| past.id.device == inode.device);
        // Device numbers may have changed, so an equal inode number with an equal birth time suffices. Without a birth time, an
        // equal inode number on another device proves nothing.
        same.or_else(|| all.first().filter(|_| inode.birth != 0))
    }

    /// The positions of files that have this head.
    pub(super) fn alike(&self, head: u64) -> impl Iterator<Item = Candidate> {
        let all = self.files.values().flatten();
        all.filter(move |past| head_key(&past.id) == head)
            .map(|past| Candidate {
                path: PathBuf::from(&past.path),
                offset: past.offset,
                mark: past.mark,
            })
    }

    /// Compares an open file with the known ones.
    pub(super) fn judge(&self, file: &fs::File, stat: &Stat) -> io::Result<Verdict> {
        let Some(past) = self.find(stat.inode) else {
            return Ok(Verdict::New);
        };
        if past.is_unsent() {
            return Ok(Verdict::New);
        }
        let replaced = || Ok(Verdict::Replaced(past.clone()));
        if stat.len < past.offset || !begins_as(&past.id, &read_start(file)?) {
            return replaced();
        }
        if let Some(mark) = past.mark.filter(|mark| mark.offset > 0)
            && Mark::read(file, mark.offset)? != Some(mark)
        {
            return replaced();
        }
        match Mark::read(file, past.offset)? {
            Some(mark) => Ok(Verdict::Continues(past.id, mark)),
            None => replaced(),
        }
    }

    /// The entries to be stored.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let all = self.files.values().flatten();
        all.filter_map(|past| {
            Some(Entry {
                id: past.id,
                mark: past.mark?,
                seen: past.seen,
                left: past.left,
                path: past.path.clone(),
            })
        })
        .collect()
    }
}
