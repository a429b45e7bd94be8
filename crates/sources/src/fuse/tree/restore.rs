//! The names of files and symbolic links after a restart: what a spill needs for it, and how the tree gets them back.

use std::path::Path;

use super::*;
use crate::fuse::recent::{Head, Restored};

/// The permissions of a directory that is missing below the mount. It has the owner of its file.
const MISSING_MODE: u32 = 0o755;

impl Tree {
    /// The head that the spill of a node should have, and the time of the last write. `None` if its name was removed.
    pub(in crate::fuse) fn head(&self, number: u64) -> Option<(Head, Time)> {
        let node = self.nodes.get(number).ok()?;
        let head = Head {
            path: self.path(number)?,
            target: match &node.kind {
                Kind::Link(target) => Some(target.clone()),
                _ => None,
            },
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
        };
        Some((head, node.times[1]))
    }

    /// Keeps the numbers of earlier files free, before other nodes are made.
    pub(in crate::fuse) fn reserve(&mut self, restored: &[Restored]) {
        for found in restored {
            self.nodes.skip(found.number);
        }
    }

    /// Puts the files and symbolic links of an earlier run into the tree. If two have the same path, the later one stays.
    pub(in crate::fuse) fn restore(&mut self, restored: Vec<Restored>) {
        for found in restored {
            // A name that cannot be restored is not in the mount. Its spill is deleted.
            if self.restore_one(&found).is_err() {
                found.spill.save(|| None);
            }
        }
    }

    fn restore_one(&mut self, found: &Restored) -> Result<(), Errno> {
        let (head, now) = (&found.head, found.written);
        let name = head.path.file_name().ok_or(Errno::INVAL)?;
        let who = Who {
            uid: head.uid,
            gid: head.gid,
        };
        let mut above = ROOT;
        for part in head.path.parent().unwrap_or(Path::new("")) {
            above = match self.nodes.find(above, part) {
                Ok(there) => there,
                Err(_) => {
                    let mode = DIRECTORY | MISSING_MODE;
                    let made = self.make(above, part.as_bytes(), mode, None, who, now)?;
                    self.forget(made.node, 1);
                    made.node
                }
            };
        }
        if let Ok(older) = self.nodes.find(above, name) {
            if self.nodes.get(older)?.is_directory() {
                return Err(Errno::EXIST);
            }
            self.remove(older, now)?;
        }
        let kind = match &head.target {
            Some(target) => Kind::Link(target.clone()),
            None => Kind::File(File {
                size: found.size,
                copy: if found.size > 0 {
                    CopyState::No
                } else {
                    CopyState::Unknown
                },
                first_name: name.to_owned(),
                ..File::default()
            }),
        };
        let owner = Owner::default();
        let mut node = Node::new(owner, kind, head.mode, who, now);
        node.spill = Some(found.spill.clone());
        self.nodes.restore(found.number, node);
        self.link(found.number, above, name, now)
    }
}
