//! What is known of files from before: from a durable channel, from the positions, from readers that have let go.
//!
//! A file that was found is held against it: it goes on, it begins anew in the same inode, or it is new.

use std::{collections::HashMap, fs, io, path::Path};

use millstream_record::FileId;

use super::{
    gzip::Candidate,
    heads::key,
    identity::{Inode, Mark, Stat, begins_as, generation, read_start},
    positions::{self, Entry},
};

/// One file as it was left.
#[derive(Clone, Debug)]
pub(super) struct Past {
    /// Which.
    pub id: FileId,
    /// Where reading goes on.
    pub offset: u64,
    /// A mark at or before that, if we know one: a durable channel says the offset only.
    pub mark: Option<Mark>,
    seen: u64,
    path: String,
}

impl Past {
    /// The file was seen, and nothing of it was sent: it has no head yet.
    pub(super) fn is_unsent(&self) -> bool {
        self.id.head == 0
    }

    /// The mark, if it says anything: at offset 0 every file has the same.
    pub(super) fn marks(&self) -> impl Iterator<Item = Mark> + use<> {
        self.mark.filter(|mark| mark.offset > 0).into_iter()
    }
}

/// All of them, by inode number and birth: device numbers may change when the machine starts.
#[derive(Debug, Default)]
pub(super) struct Known {
    files: HashMap<(u64, i64), Vec<Past>>,
    /// Contents that were truncated after the positions were last stored: the channel knows a later generation of their inode. The
    /// next scan may find their copies.
    former: HashMap<(u64, i64), Vec<Past>>,
}

/// What a file that was found is.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Nothing of it was ever read.
    New,
    /// It goes on at the mark.
    Continues(FileId, Mark),
    /// Its inode was read before as another content, which is gone.
    Replaced(Past),
}

impl Known {
    /// From what a durable channel and the positions say; the channel is right where both speak.
    pub(super) fn new(origins: Vec<(FileId, u64)>, entries: Vec<Entry>) -> Self {
        let mut known = Self::default();
        for Entry {
            id,
            mark,
            seen,
            path,
        } in entries
        {
            let _ = known.put(Past {
                id,
                offset: mark.offset,
                mark: Some(mark),
                seen,
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
                path: String::new(),
            });
            if let Some(past) = displaced.filter(|past| !past.is_unsent()) {
                let former = known.former.entry((id.inode, id.birth)).or_default();
                // Without a mark only the name of a copy shows what it is a copy of: the last content, if any.
                former.retain(|other| other.marks().next().is_some());
                former.push(past);
            }
        }
        known
    }

    /// The contents that an inode held and that were truncated after the positions were last stored, oldest first. Each is
    /// returned once.
    pub(super) fn take_former(&mut self, inode: Inode) -> Vec<Past> {
        let former = self.former.remove(&(inode.number, inode.birth));
        let mut former = former.unwrap_or_default();
        former.retain(|past| inode.birth != 0 || past.id.device == inode.device);
        former
    }

    /// Notes where a file goes on.
    pub(super) fn set(&mut self, id: FileId, mark: Mark, path: &Path) {
        let _ = self.put(Past {
            id,
            offset: mark.offset,
            mark: Some(mark),
            seen: positions::now(),
            path: path.to_string_lossy().into_owned(),
        });
    }

    /// Notes a file of which nothing was sent yet: it is read from its beginning, whatever its name is by then.
    pub(super) fn expect(&mut self, inode: Inode, path: &Path) {
        if self.find(inode).is_none() {
            let id = FileId {
                device: inode.device,
                inode: inode.number,
                birth: inode.birth,
                head: 0,
            };
            self.set(id, Mark::default(), path);
        }
    }

    /// Of the contents that one inode had, only the newest can still be there; returns an older one that was known until now.
    fn put(&mut self, mut past: Past) -> Option<Past> {
        let all = self
            .files
            .entry((past.id.inode, past.id.birth))
            .or_default();
        match all
            .iter_mut()
            .find(|other| other.id.device == past.id.device)
        {
            Some(other) if other.id == past.id => {
                past.mark = past
                    .mark
                    .or(other.mark)
                    .filter(|mark| mark.offset <= past.offset);
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

    /// What is known of an inode.
    pub(super) fn find(&self, inode: Inode) -> Option<&Past> {
        let all = self.files.get(&(inode.number, inode.birth))?;
        let same = all.iter().find(|past| past.id.device == inode.device);
        // Without a birth time an equal number on another device means nothing.
        same.or_else(|| all.first().filter(|_| inode.birth != 0))
    }

    /// Where files go on that begin with this head, and a mark before that.
    pub(super) fn alike(&self, head: u64) -> impl Iterator<Item = Candidate> {
        let all = self.files.values().flatten();
        all.filter(move |past| key(&past.id) == head)
            .map(|past| Candidate {
                offset: past.offset,
                mark: past.mark,
            })
    }

    /// Holds an open file against what is known.
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

    /// All, to be stored.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let all = self.files.values().flatten();
        all.filter_map(|past| {
            Some(Entry {
                id: past.id,
                mark: past.mark?,
                seen: past.seen,
                path: past.path.clone(),
            })
        })
        .collect()
    }
}
