//! Tests of the tree.

use std::fs;

use millstream_pipeline::{meters::Meter, report::Reporter};

use super::*;
use crate::fuse::recent::{Limits, Restored};

const WHO: Who = Who { uid: 7, gid: 8 };
const NOW: Time = Time(5_000_000_000);

/// The only thread of the writing process is thread 1.
fn is_writer(thread: u32) -> bool {
    thread == 1
}

fn tree() -> Tree {
    Tree::new(Owner::default(), None, WHO, 0o755, NOW)
}

/// A tree whose files can be read back from this directory.
fn readable_tree(directory: &Path) -> (Tree, Vec<Restored>) {
    let limits = Limits {
        file: 1 << 20,
        all: 1 << 20,
    };
    let reporter = Reporter::new("fuse");
    let (recent, restored) = Recent::open(
        directory.to_owned(),
        limits,
        &[],
        reporter,
        Meter::default(),
    )
    .unwrap();
    let tree = Tree::new(Owner::default(), Some(recent), WHO, 0o755, NOW);
    (tree, restored)
}

/// Lets the spills follow the changes of a tree.
fn follow(tree: &mut Tree) {
    for change in tree.take_changes() {
        match change {
            Change::Head(node, spill) => spill.save(|| tree.head(node)),
            Change::Size(size, spill) => spill.resize(size),
        }
    }
}

/// Writes as a mount does.
fn write(tree: &mut Tree, node: u64, offset: u64, data: &[u8]) -> WriteKind {
    let suspicion = tree.judge(node, offset, data, is_writer).unwrap();
    let kind = tree.judged(node, suspicion.resolve(offset, data)).unwrap();
    if let Some(spill) = tree.content(node).unwrap().1 {
        spill.write(offset, data);
    }
    let bytes = data.len() as u64;
    assert_eq!(tree.begin_write(node, offset, bytes, false), Ok(offset));
    tree.end_write(node, offset + bytes, true, NOW);
    kind
}

fn file(tree: &mut Tree, directory: u64, name: &str) -> u64 {
    let made = tree.make(directory, name.as_bytes(), FILE | 0o644, None, WHO, NOW);
    made.unwrap().node
}

fn directory(tree: &mut Tree, above: u64, name: &str) -> u64 {
    let made = tree.make(above, name.as_bytes(), DIRECTORY | 0o750, None, WHO, NOW);
    made.unwrap().node
}

fn names(tree: &Tree, directory: u64) -> Vec<String> {
    let names = tree.nodes.directory(directory).unwrap().by_name.keys();
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_rename_replaces_a_file_but_not_a_directory_with_entries() {
    let mut tree = tree();
    let (a, b) = (file(&mut tree, ROOT, "a"), file(&mut tree, ROOT, "b"));
    tree.rename((ROOT, b"a"), (ROOT, b"b"), 0, NOW).unwrap();
    assert_eq!(names(&tree, ROOT), ["b"]);
    assert_eq!(tree.path(a), Some("b".into()));
    // The replaced file has no name, but the kernel still has a reference to it.
    assert_eq!(tree.attributes(b).unwrap().links, 0);
    tree.forget(b, 1);
    assert_eq!(tree.attributes(b), Err(Errno::STALE));
    let (x, y) = (
        directory(&mut tree, ROOT, "x"),
        directory(&mut tree, ROOT, "y"),
    );
    file(&mut tree, y, "c");
    let rename =
        |tree: &mut Tree, from: &[u8], to: &[u8]| tree.rename((ROOT, from), (ROOT, to), 0, NOW);
    assert_eq!(rename(&mut tree, b"x", b"y"), Err(Errno::NOTEMPTY));
    assert_eq!(rename(&mut tree, b"x", b"b"), Err(Errno::NOTDIR));
    assert_eq!(rename(&mut tree, b"b", b"x"), Err(Errno::ISDIR));
    assert_eq!(
        tree.rename((ROOT, b"y"), (y, b"z"), 0, NOW),
        Err(Errno::INVAL)
    );
    assert_eq!(rename(&mut tree, b"y", b"x"), Ok(()));
    assert_eq!(tree.path(y), Some("x".into()));
    assert_eq!(tree.attributes(x).unwrap().links, 0);
}

#[test]
fn a_listing_continues_where_it_was_while_names_are_removed() {
    let mut tree = tree();
    for n in 0..20 {
        file(&mut tree, ROOT, &format!("file-{n:02}"));
    }
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let bytes = tree.list(ROOT, offset, 100).unwrap();
        if bytes.is_empty() {
            break;
        }
        let mut at = 0;
        while at < bytes.len() {
            let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
            let length = number(at + 16) as u32 as usize;
            let name = String::from_utf8_lossy(&bytes[at + 24..at + 24 + length]).into_owned();
            offset = number(at + 8);
            at += (24 + length).next_multiple_of(8);
            if name.starts_with("file") {
                tree.unlink(ROOT, name.as_bytes(), NOW).unwrap();
            }
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), 22);
    assert!(names(&tree, ROOT).is_empty());
}

#[test]
fn a_file_has_the_size_that_was_written_and_a_copy_of_nothing_begins_anew() {
    let mut tree = tree();
    let node = file(&mut tree, ROOT, "a");
    write(&mut tree, node, 10, b"abcdef");
    assert_eq!(tree.attributes(node).unwrap().size, 16);
    tree.extend(node, 12, NOW).unwrap();
    assert_eq!(tree.attributes(node).unwrap().size, 16);
    tree.resize(node, 12, NOW).unwrap();
    assert_eq!(tree.attributes(node).unwrap().size, 12);
    let refused = tree.judge(node, u64::MAX, b"x", is_writer);
    assert_eq!(refused.unwrap_err(), Errno::FBIG);
}

#[test]
fn writes_that_are_appended_at_the_same_time_follow_each_other() {
    let mut tree = tree();
    let node = file(&mut tree, ROOT, "a");
    let size = |tree: &Tree| tree.attributes(node).unwrap().size;
    assert_eq!(tree.begin_write(node, 0, 10, true), Ok(0));
    assert_eq!(tree.begin_write(node, 0, 5, true), Ok(10));
    assert_eq!(size(&tree), 0);
    // The first one is refused.
    assert_eq!(tree.end_write(node, 15, true, NOW), (15, false));
    assert_eq!(tree.end_write(node, 0, false, NOW), (15, true));
    assert_eq!(tree.begin_write(node, 0, 5, true), Ok(15));
    assert_eq!(tree.end_write(node, 15, false, NOW), (15, true));
    assert_eq!(tree.begin_write(node, 3, 5, true), Ok(15));
    assert_eq!(size(&tree), 15);
}

#[test]
fn names_and_attributes_are_there_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (mut old, _) = readable_tree(directory.path());
    let app = super::tests::directory(&mut old, ROOT, "app");
    let log = file(&mut old, app, "x.log");
    write(&mut old, log, 0, b"one\ntwo\n");
    let rotated = file(&mut old, app, "x.log.1");
    write(&mut old, rotated, 3, b"zero\n");
    let gone = file(&mut old, ROOT, "gone");
    let replaced = file(&mut old, ROOT, "replaced");
    let link = old.make(ROOT, b"link", LINK | 0o777, Some(b"app/x.log"), WHO, NOW);
    follow(&mut old);
    let set = SetAttributes {
        mode: Some(0o600),
        uid: Some(33),
        ..SetAttributes::default()
    };
    old.set(log, &set, NOW).unwrap();
    old.unlink(ROOT, b"gone", NOW).unwrap();
    old.rename((app, b"x.log.1"), (ROOT, b"replaced"), 0, NOW)
        .unwrap();
    old.rename((ROOT, b"app"), (ROOT, b"moved"), 0, NOW)
        .unwrap();
    follow(&mut old);
    let shown = old.attributes(log).unwrap();
    // As after SIGKILL: nothing is dropped in order.
    std::mem::forget(old);
    let (mut new, restored) = readable_tree(directory.path());
    new.reserve(&restored);
    let other = super::tests::directory(&mut new, ROOT, "other");
    new.restore(restored);
    follow(&mut new);
    assert!(![log, rotated, gone, replaced].contains(&other));
    assert_eq!(names(&new, ROOT), ["link", "moved", "other", "replaced"]);
    let moved = new.lookup(ROOT, b"moved").unwrap().node;
    assert_eq!(names(&new, moved), ["x.log"]);
    let again = new.attributes(log).unwrap();
    assert_eq!((again.mode, again.uid, again.size), (shown.mode, 33, 8));
    assert_eq!(again.times[1], shown.times[1]);
    assert_eq!(new.attributes(rotated).unwrap().size, 8);
    assert_eq!(new.path(rotated), Some("replaced".into()));
    assert_eq!(new.target(link.unwrap().node), Ok(&b"app/x.log"[..]));
    let (size, spill) = new.content(rotated).unwrap();
    assert!(spill.unwrap().holds(size, 0, b"\0\0\0zero\n", false));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn beyond_the_bound_closed_files_are_forgotten_and_open_ones_stay() {
    let mut tree = tree();
    let open = file(&mut tree, ROOT, "open");
    tree.open(open).unwrap();
    for n in 0..NODES_MAX + 10 {
        let node = file(&mut tree, ROOT, &format!("f{n}"));
        tree.forget(node, 1);
    }
    assert!(tree.len() <= NODES_MAX);
    assert!(tree.lookup(ROOT, b"open").is_ok());
    assert_eq!(tree.lookup(ROOT, b"f0"), Err(Errno::NOENT));
    let last = format!("f{}", NODES_MAX + 9);
    assert!(tree.lookup(ROOT, last.as_bytes()).is_ok());
}

#[test]
fn permissions_and_owners_follow_the_options() {
    let owner = Owner {
        uid: Some(1),
        gid: None,
        umask: 0o027,
    };
    let mut tree = Tree::new(owner, None, WHO, 0o777, NOW);
    let node = file(&mut tree, ROOT, "a");
    let shown = tree.attributes(node).unwrap();
    assert_eq!((shown.uid, shown.gid, shown.mode), (1, 8, FILE | 0o640));
    let set = SetAttributes {
        mode: Some(0o777),
        mtime: Some(TimeSet::At(3, 4)),
        ..SetAttributes::default()
    };
    let shown = tree.set(node, &set, NOW).unwrap();
    assert_eq!((shown.mode, shown.times[1]), (FILE | 0o750, (3, 4)));
}

#[test]
fn a_copy_is_recognised_by_its_name_and_its_bytes_as_long_as_they_are_equal() {
    let directory = tempfile::tempdir().unwrap();
    let (mut tree, _) = readable_tree(directory.path());
    let original = file(&mut tree, ROOT, "a.log");
    write(&mut tree, original, 0, b"one\ntwo\n");
    write(&mut tree, original, 20, b"end\n");
    let mut written = |name: &str, reader: u32, parts: &[(u64, &[u8])]| {
        let node = file(&mut tree, ROOT, name);
        tree.was_read(original, reader);
        let parts = parts.iter();
        parts
            .map(|(offset, data)| write(&mut tree, node, *offset, data))
            .collect::<Vec<_>>()
    };
    use WriteKind::{Compressed, CompressedBegins, Copy, CopyBegins, New};
    let packed: &[(u64, &[u8])] = &[(0, b"\x1f\x8b\x08\0"), (4, b"any\n")];
    assert_eq!(written("c.gz", 2, packed), [CompressedBegins, Compressed]);
    let whole: &[(u64, &[u8])] = &[(0, b"one\n"), (4, b"two\n")];
    assert_eq!(
        written("a.log.0", 2, whole),
        [New, New],
        "another process has read it"
    );
    assert_eq!(written("a.log.1", 1, whole), [CopyBegins, Copy]);
    assert_eq!(written("a.logs", 1, whole), [New, New], "another name");
    assert_eq!(written("b.log", 1, whole), [New, New]);
    let changed: &[(u64, &[u8])] = &[(0, b"one\n"), (4, b"2\n"), (6, b"o\n")];
    assert_eq!(written("a.log.2", 1, changed), [CopyBegins, New, New]);
    let sparse: &[(u64, &[u8])] = &[(4, b"two\n"), (20, b"end\n")];
    assert_eq!(written("a.log.4", 1, sparse), [CopyBegins, Copy], "a hole");
    let more: &[(u64, &[u8])] = &[(0, b"one\ntwo\n"), (8, b"three\n")];
    assert_eq!(written("a.log.3", 1, more), [CopyBegins, New]);
    assert_eq!(written("a.log.gz", 1, packed), [CopyBegins, Copy]);
    assert_eq!(written("a.1.gz", 1, packed), [CopyBegins, Copy]);
}
