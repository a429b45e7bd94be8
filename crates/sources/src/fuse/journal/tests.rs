//! What survives a crash, and what does not come back.

use super::*;

fn open(folder: &Path) -> (Journal, Vec<Left>) {
    Journal::open(folder, |_| None).unwrap()
}

fn tails(left: &[Left]) -> Vec<(&str, &[u8])> {
    left.iter()
        .map(|left| (&*left.path, &left.tail[..]))
        .collect()
}

#[test]
fn what_was_unfinished_is_there_after_a_crash_and_after_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, left) = open(folder.path());
    assert!(left.is_empty());
    let (a, first) = journal.begin("a.log").unwrap();
    journal.append(a, first, b"un").unwrap();
    journal.append(a, first, b"fin").unwrap();
    journal.append(a, first + 1, b"next").unwrap();
    let (b, second) = journal.begin("b/c").unwrap();
    journal.append(b, second, b"x").unwrap();
    journal.note_done(b, second + 1).unwrap();
    let identity = journal.identity();
    drop(journal);
    for _ in 0..2 {
        let (journal, left) = open(folder.path());
        assert_eq!(journal.identity(), identity);
        // What stands behind the first generation was answered for, too.
        assert_eq!(tails(&left), [("a.log", &b"unfin"[..]), ("a.log", b"next")]);
        // No generation is ever used again.
        assert!(left[0].generation > first + 1);
    }
}

#[test]
fn what_a_durable_channel_has_kept_is_not_left() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (a, first) = journal.begin("a").unwrap();
    journal.append(a, first, b"kept").unwrap();
    journal.append(a, first + 1, b"left").unwrap();
    let file = journal.identity().file(a);
    drop(journal);
    let kept = |asked: &FileId| (*asked == file).then_some(first + 1);
    let (_, left) = Journal::open(folder.path(), kept).unwrap();
    assert_eq!(tails(&left), [("a", &b"left"[..])]);
}

#[test]
fn behind_memory_all_that_is_not_done_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (a, first) = journal.begin("a").unwrap();
    for (generation, text) in (first..).zip(["done", "one", "two"]) {
        journal.append(a, generation, text.as_bytes()).unwrap();
    }
    journal.note_done(a, first + 1).unwrap();
    let (_, left) = Journal::open(folder.path(), |_| None).unwrap();
    assert_eq!(tails(&left), [("a", &b"one"[..]), ("a", b"two")]);
}

#[test]
fn a_torn_end_is_left_out_and_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (slot, first) = journal.begin("a").unwrap();
    journal.append(slot, first, b"one").unwrap();
    journal.append(slot, first, b"two").unwrap();
    let path = folder.path().join(NAME);
    let whole = fs::read(&path).unwrap();
    for cut in 1..27 {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        assert_eq!(tails(&open(folder.path()).1), [("a", &b"one"[..])], "{cut}");
    }
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Journal::open(folder.path(), |_| None).unwrap_err().message
    };
    let mut newer = whole.clone();
    newer[7] = b'3';
    assert!(refused(&newer).contains("newer"));
    assert!(refused(b"rubbish").contains("damaged"));
}

#[test]
fn it_stays_small_and_keeps_what_is_live() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (quiet, first) = journal.begin("quiet").unwrap();
    journal.append(quiet, first, b"waits").unwrap();
    let (busy, mut generation) = journal.begin("busy").unwrap();
    for _ in 0..100 {
        journal.append(busy, generation, &[b'x'; 100_000]).unwrap();
        generation += 1;
        journal.done(busy, generation);
    }
    journal.append(busy, generation, b"last").unwrap();
    let size = fs::metadata(folder.path().join(NAME)).unwrap().len();
    assert!(size < BYTES_MAX + 200_000, "{size}");
    let file = journal.identity().file(busy);
    drop(journal);
    let kept = |asked: &FileId| (*asked == file).then_some(generation);
    let (_, left) = Journal::open(folder.path(), kept).unwrap();
    assert_eq!(tails(&left), [("quiet", &b"waits"[..]), ("busy", b"last")]);
}

#[test]
fn what_stays_goes_on_in_a_generation_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (a, first) = journal.begin("a").unwrap();
    for text in ["1 one\n", " at", " b\n2 t", "w"] {
        journal.append(a, first, text.as_bytes()).unwrap();
    }
    journal.part(a, first + 1, 4).unwrap();
    journal.append(a, first + 1, b"o").unwrap();
    let file = journal.identity().file(a);
    let left = |next: u64| {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(folder.path().join(NAME), copy.path().join(NAME)).unwrap();
        let kept = |asked: &FileId| (*asked == file).then_some(next);
        let (_, left) = Journal::open(copy.path(), kept).unwrap();
        let tails = left.into_iter().map(|left| left.tail);
        tails
            .map(|tail| String::from_utf8(tail).unwrap())
            .collect::<Vec<_>>()
    };
    let parted = ["1 one\n at b\n", "2 two"];
    assert_eq!(left(0), parted);
    assert_eq!(left(first + 1), parted[1..]);
    journal.write_anew().unwrap();
    assert_eq!(left(0), parted);
    // More than one generation stays, and all of it.
    journal.append(a, first + 2, b"!").unwrap();
    journal.part(a, first + 3, 5).unwrap();
    assert_eq!(left(0), ["1 one\n at b\n", "2", " two!"]);
    journal.write_anew().unwrap();
    assert_eq!(left(first + 3), [" two!"]);
    let size = fs::metadata(folder.path().join(NAME)).unwrap().len();
    let begin = (HEADER_BYTES + HEAD_BYTES + "a".len()) as u64;
    assert_eq!(journal.live, size - begin);
    journal.done(a, first + 4);
    assert_eq!(journal.live, 0);
}

#[test]
fn the_version_before_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(folder.path());
    let (slot, first) = journal.begin("a").unwrap();
    journal.append(slot, first, b"one").unwrap();
    let path = folder.path().join(NAME);
    let mut before = fs::read(&path).unwrap();
    before[7] = b'1';
    let crc = format::crc32c(&before[..32]);
    before[32..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, before).unwrap();
    assert_eq!(tails(&open(folder.path()).1), [("a", &b"one"[..])]);
}
