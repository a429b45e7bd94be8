//! Tests of the tree.

use super::*;

const WHO: Who = Who { uid: 7, gid: 8 };
const NOW: Time = Time(5_000_000_000);

/// The only thread of the writing process is thread 1.
fn is_writer(thread: u32) -> bool {
    thread == 1
}

fn tree() -> Tree {
    let recent = Recent { file: 8, all: 100 };
    Tree::new(Owner::default(), recent, WHO, 0o755, NOW)
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
fn a_file_has_the_size_that_was_written_and_its_last_bytes_can_be_read() {
    let mut tree = tree();
    let node = file(&mut tree, ROOT, "a");
    let read = |tree: &Tree, from, bytes| tree.read(node, from, bytes);
    tree.write(node, 0, b"0123456789", false, is_writer, NOW)
        .unwrap();
    tree.write(node, 10, b"abcdef", false, is_writer, NOW)
        .unwrap();
    assert_eq!(tree.attributes(node).unwrap().size, 16);
    assert_eq!(read(&tree, 8, 100), Ok(b"89abcdef".to_vec()));
    assert_eq!(read(&tree, 12, 2), Ok(b"cd".to_vec()));
    assert_eq!(read(&tree, 0, 4), Err(Errno::NODATA));
    assert_eq!(read(&tree, 16, 4), Ok(Vec::new()));
    tree.write(node, 14, b"XYZ", false, is_writer, NOW).unwrap();
    assert_eq!(read(&tree, 10, 10), Ok(b"abcdXYZ".to_vec()));
    tree.resize(node, 12, NOW).unwrap();
    tree.resize(node, 14, NOW).unwrap();
    assert_eq!(read(&tree, 10, 10), Ok(b"ab\0\0".to_vec()));
    tree.resize(node, 0, NOW).unwrap();
    assert_eq!(read(&tree, 0, 10), Ok(Vec::new()));
    assert_eq!(
        tree.write(node, u64::MAX, b"x", false, is_writer, NOW),
        Err(Errno::FBIG)
    );
}

#[test]
fn the_readable_bytes_of_all_files_together_are_bounded() {
    let mut tree = tree();
    let nodes: Vec<_> = (0..40)
        .map(|n| file(&mut tree, ROOT, &n.to_string()))
        .collect();
    for (n, node) in nodes.iter().enumerate() {
        let now = Time(n as i64);
        tree.write(*node, 0, b"01234567", false, is_writer, now)
            .unwrap();
        assert!(tree.recent_bytes <= 100);
    }
    assert_eq!(tree.read(nodes[0], 0, 8), Err(Errno::NODATA));
    assert_eq!(tree.read(nodes[39], 0, 8), Ok(b"01234567".to_vec()));
    for (n, node) in nodes.into_iter().enumerate() {
        tree.unlink(ROOT, n.to_string().as_bytes(), NOW).unwrap();
        tree.forget(node, 1);
    }
    assert_eq!((tree.recent_bytes, tree.len()), (0, 1));
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
    let recent = Recent { file: 8, all: 8 };
    let mut tree = Tree::new(owner, recent, WHO, 0o777, NOW);
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
fn only_the_newlines_of_masked_writes_can_be_read() {
    let mut tree = tree();
    let node = file(&mut tree, ROOT, "a");
    tree.write(node, 0, b"key=1\nab", true, is_writer, NOW)
        .unwrap();
    assert_eq!(tree.read(node, 0, 8), Ok(b"*****\n**".to_vec()));
    // After a write that is longer than the window, the last bytes can be read.
    tree.write(node, 8, b"0123456789\nx", true, is_writer, NOW)
        .unwrap();
    assert_eq!(tree.read(node, 17, 3), Ok(b"*\n*".to_vec()));
}

#[test]
fn a_copy_is_recognised_by_its_name_and_its_bytes_as_long_as_they_are_equal() {
    let mut tree = tree();
    let original = file(&mut tree, ROOT, "a.log");
    tree.write(original, 0, b"one\ntwo\n", false, is_writer, NOW)
        .unwrap();
    let mut write = |name: &str, reader: u32, parts: &[(u64, &[u8])]| {
        let node = file(&mut tree, ROOT, name);
        tree.was_read(original, reader);
        let wrote = parts
            .iter()
            .map(|(offset, data)| tree.write(node, *offset, data, false, is_writer, NOW));
        wrote.map(Result::unwrap).collect::<Vec<_>>()
    };
    use WriteKind::{Copy, CopyBegins, New};
    let whole: &[(u64, &[u8])] = &[(0, b"one\n"), (4, b"two\n")];
    assert_eq!(
        write("a.log.0", 2, whole),
        [New, New],
        "another process has read it"
    );
    assert_eq!(write("a.log.1", 1, whole), [CopyBegins, Copy]);
    assert_eq!(write("a.logs", 1, whole), [New, New], "another name");
    assert_eq!(write("b.log", 1, whole), [New, New]);
    let changed: &[(u64, &[u8])] = &[(0, b"one\n"), (4, b"2\n"), (6, b"o\n")];
    assert_eq!(write("a.log.2", 1, changed), [CopyBegins, New, New]);
    let more: &[(u64, &[u8])] = &[(0, b"one\ntwo\n"), (8, b"three\n")];
    assert_eq!(write("a.log.3", 1, more), [CopyBegins, New]);
    let packed: &[(u64, &[u8])] = &[(0, b"\x1f\x8b\x08\0"), (4, b"any\n")];
    assert_eq!(write("a.log.gz", 1, packed), [CopyBegins, Copy]);
    assert_eq!(write("c.gz", 1, packed), [New, New]);
}
