//! The tree as one program leaves it to the next one: everything that the kernel and open files refer to.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    sync::Arc,
};

use millstream_record::Time;
use serde::{Deserialize, Serialize};

use super::{
    Owner, Recent, Tree,
    copies::RecentReads,
    node::{CopyState, Directory, File, Kind, Node, Nodes},
};
use crate::fuse::recent::Restored;

/// A tree. The data that can be read back are in the spills (`recent/`).
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fuse) struct KeptTree {
    /// The number of the next node.
    next: u64,
    nodes: Vec<KeptNode>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptNode {
    number: u64,
    kind: KeptKind,
    place: Option<(u64, Vec<u8>)>,
    mode: u32,
    uid: u32,
    gid: u32,
    times: [i64; 3],
    lookups: u64,
    opens: u32,
}

#[derive(Debug, Serialize, Deserialize)]
enum KeptKind {
    Directory,
    Link(Vec<u8>),
    File {
        size: u64,
        copy: CopyState,
        first_name: Vec<u8>,
    },
}

/// The state of a tree.
pub(in crate::fuse) fn keep(tree: &Tree) -> KeptTree {
    let nodes = tree.nodes.iter().map(|(number, node)| KeptNode {
        number,
        kind: match &node.kind {
            Kind::Directory(_) => KeptKind::Directory,
            Kind::Link(target) => KeptKind::Link(target.as_bytes().to_vec()),
            Kind::File(file) => KeptKind::File {
                size: file.size,
                copy: file.copy,
                first_name: file.first_name.as_bytes().to_vec(),
            },
        },
        place: node
            .place
            .as_ref()
            .map(|(above, name)| (*above, name.as_bytes().to_vec())),
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
        times: node.times.map(|time| time.0),
        lookups: node.lookups,
        opens: node.opens,
    });
    KeptTree {
        nodes: nodes.collect(),
        next: tree.nodes.next(),
    }
}

impl KeptTree {
    /// The nodes whose spills are needed.
    pub(in crate::fuse) fn spilled(&self) -> Vec<u64> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|node| !matches!(node.kind, KeptKind::Directory));
        nodes.map(|node| node.number).collect()
    }
}

/// The tree with this state, and with the spills of an earlier run. `None` if the state contradicts itself.
pub(in crate::fuse) fn take_over(
    kept: KeptTree,
    owner: Owner,
    recent: Option<Arc<Recent>>,
    restored: Vec<Restored>,
) -> Option<Tree> {
    let mut nodes = Nodes::empty(kept.next);
    let mut places = Vec::new();
    let restored = restored.into_iter();
    let mut spills: HashMap<_, _> = restored.map(|found| (found.number, found.spill)).collect();
    for kept in kept.nodes {
        let number = kept.number;
        let mut node = node(kept);
        if let Some((above, name)) = &node.place {
            places.push((number, *above, name.clone()));
        }
        if let Some(recent) = recent.as_ref().filter(|_| !node.is_directory()) {
            let spill = spills.remove(&number);
            let spill = spill.unwrap_or_else(|| recent.spill(number));
            if node.place.is_none() {
                // It is deleted once the file is closed.
                spill.save(|| None);
            }
            node.spill = Some(spill);
        }
        nodes.restore(number, node);
    }
    for (number, above, name) in places {
        let directory = nodes.directory_mut(above).ok()?;
        directory.by_name.insert(name.clone(), number);
        directory.by_node.insert(number, name);
    }
    nodes.directory(super::ROOT).ok()?;
    Some(Tree {
        nodes,
        owner,
        recent,
        reads: RecentReads::default(),
        changes: Vec::new(),
    })
}

fn node(kept: KeptNode) -> Node {
    Node {
        kind: match kept.kind {
            KeptKind::Directory => Kind::Directory(Directory::default()),
            KeptKind::Link(target) => Kind::Link(OsString::from_vec(target)),
            KeptKind::File {
                size,
                copy,
                first_name,
            } => Kind::File(File {
                size,
                copy,
                first_name: OsString::from_vec(first_name),
                ..File::default()
            }),
        },
        place: kept
            .place
            .map(|(above, name)| (above, OsString::from_vec(name))),
        mode: kept.mode,
        uid: kept.uid,
        gid: kept.gid,
        times: kept.times.map(Time),
        lookups: kept.lookups,
        opens: kept.opens,
        spill: None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::*, keep, take_over};

    #[test]
    fn a_tree_that_is_left_and_taken_over_is_the_same() {
        let who = Who { uid: 1, gid: 2 };
        let (owner, now) = (Owner::default(), Time(5));
        let mut tree = Tree::new(owner, None, who, 0o755, now);
        let mut make = |above, name: &[u8], mode, target| {
            let made = tree.make(above, name, mode, target, who, now);
            made.unwrap().node
        };
        let directory = make(ROOT, b"d", DIRECTORY | 0o700, None);
        let file = make(directory, b"f\xff", FILE | 0o640, None);
        make(ROOT, b"l", LINK | 0o777, Some(b"d"));
        let gone = make(ROOT, b"gone", FILE, None);
        tree.open(file).unwrap();
        tree.resize(file, 21, now).unwrap();
        // A file without a name lives on while it is open.
        tree.open(gone).unwrap();
        tree.unlink(ROOT, b"gone", now).unwrap();
        let kept = serde_json::to_vec(&keep(&tree)).unwrap();
        let kept: KeptTree = serde_json::from_slice(&kept).unwrap();
        assert_eq!(kept.spilled().len(), 3);
        let mut again = take_over(kept, owner, None, Vec::new()).unwrap();
        assert_eq!(again.len(), tree.len());
        for node in [ROOT, directory, file, gone] {
            assert_eq!(again.attributes(node), tree.attributes(node));
            assert_eq!(again.path(node), tree.path(node));
            assert_eq!(again.list(node, 0, 999), tree.list(node, 0, 999));
        }
        assert_eq!(again.path(file).unwrap().parent(), Some(Path::new("d")));
        assert_eq!(again.lookup(ROOT, b"l").unwrap().mode, LINK | 0o777);
        again.close(gone);
        again.forget(gone, 1);
        assert_eq!(again.attributes(gone), Err(Errno::STALE));
        let new = again.make(ROOT, b"new", FILE, None, who, now).unwrap();
        assert!(new.node > gone);
    }
}
