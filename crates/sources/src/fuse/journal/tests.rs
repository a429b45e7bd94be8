//! What survives a crash, and what does not come back.

use millstream_testkit::Random;

use super::{format::HEADER_BYTES, *};

fn open(directory: &Path) -> (Journal, Vec<Left>) {
    opened(directory, |_| None)
}

/// Opens a journal that is not damaged.
fn opened(directory: &Path, kept: impl Fn(&FileId) -> Option<u64>) -> (Journal, Vec<Left>) {
    let opened = Journal::open(directory, kept).unwrap();
    assert_eq!((opened.mended, opened.doubtful), (None, None));
    (opened.journal, opened.left)
}

fn tails(left: &[Left]) -> Vec<(&str, &[u8])> {
    left.iter()
        .map(|left| (&*left.path, &left.tail[..]))
        .collect()
}

#[test]
fn what_was_unfinished_is_there_after_a_crash_and_after_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, left) = open(directory.path());
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
        let (journal, left) = open(directory.path());
        assert_eq!(journal.identity(), identity);
        // What stands behind the first generation was answered for, too.
        assert_eq!(tails(&left), [("a.log", &b"unfin"[..]), ("a.log", b"next")]);
        // No generation is ever used again.
        assert!(left[0].generation > first + 1);
    }
}

#[test]
fn what_a_durable_channel_has_kept_is_not_left() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (a, first) = journal.begin("a").unwrap();
    journal.append(a, first, b"kept").unwrap();
    journal.append(a, first + 1, b"left").unwrap();
    let file = journal.identity().file(a);
    drop(journal);
    let kept = |asked: &FileId| (*asked == file).then_some(first + 1);
    let (_, left) = opened(directory.path(), kept);
    assert_eq!(tails(&left), [("a", &b"left"[..])]);
}

#[test]
fn behind_memory_all_that_is_not_done_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (a, first) = journal.begin("a").unwrap();
    for (generation, text) in (first..).zip(["done", "one", "two"]) {
        journal.append(a, generation, text.as_bytes()).unwrap();
    }
    journal.note_done(a, first + 1).unwrap();
    let (_, left) = open(directory.path());
    assert_eq!(tails(&left), [("a", &b"one"[..]), ("a", b"two")]);
}

/// Both files of the journal.
fn files(directory: &Path) -> [PathBuf; 2] {
    [NAME, COPY_NAME].map(|name| directory.join(name))
}

#[test]
fn a_torn_end_is_left_out_and_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (slot, first) = journal.begin("a").unwrap();
    journal.append(slot, first, b"one").unwrap();
    journal.append(slot, first, b"two").unwrap();
    let [path, copy] = files(directory.path());
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole, fs::read(&copy).unwrap());
    let two = whole.len() - 27;
    for end in two + 1..whole.len() {
        // The copy is written after the journal.
        fs::write(&path, &whole[..end]).unwrap();
        fs::write(&copy, &whole[..two]).unwrap();
        assert_eq!(
            tails(&open(directory.path()).1),
            [("a", &b"one"[..])],
            "{end}"
        );
        fs::write(&path, &whole).unwrap();
        fs::write(&copy, &whole[..end]).unwrap();
        let opened = Journal::open(directory.path(), |_| None).unwrap();
        assert_eq!(tails(&opened.left), [("a", &b"onetwo"[..])], "{end}");
        fs::write(&path, &whole).unwrap();
        fs::write(&copy, &whole[..two]).unwrap();
        assert_eq!(tails(&open(directory.path()).1), [("a", &b"onetwo"[..])]);
    }
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        fs::write(&copy, bytes).unwrap();
        let failure = Journal::open(directory.path(), |_| None).unwrap_err();
        assert_eq!(failure.who, millstream_pipeline::failure::Who::State);
        failure.message
    };
    let mut newer = whole.clone();
    newer[7] = b'4';
    assert!(refused(&newer).contains("newer"));
    let mut flipped = whole.clone();
    flipped[20] ^= 1;
    assert!(refused(&flipped).contains("damaged"));
    assert!(refused(b"rubbish").contains("damaged"));
    fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
    fs::remove_file(&copy).unwrap();
    let failure = Journal::open(directory.path(), |_| None).unwrap_err();
    assert!(failure.message.contains("at most 256MiB"), "{failure}");
}

#[test]
fn it_stays_small_and_keeps_what_is_live() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (quiet, first) = journal.begin("quiet").unwrap();
    journal.append(quiet, first, b"waits").unwrap();
    let (busy, mut generation) = journal.begin("busy").unwrap();
    for _ in 0..100 {
        journal.append(busy, generation, &[b'x'; 100_000]).unwrap();
        generation += 1;
        journal.done(busy, generation);
    }
    journal.append(busy, generation, b"last").unwrap();
    let size = fs::metadata(directory.path().join(NAME)).unwrap().len();
    assert!(size < BYTES_MAX + 200_000, "{size}");
    let file = journal.identity().file(busy);
    drop(journal);
    let kept = |asked: &FileId| (*asked == file).then_some(generation);
    let (_, left) = opened(directory.path(), kept);
    assert_eq!(tails(&left), [("quiet", &b"waits"[..]), ("busy", b"last")]);
}

#[test]
fn what_stays_goes_on_in_a_generation_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (a, first) = journal.begin("a").unwrap();
    for text in ["1 one\n", " at", " b\n2 t", "w"] {
        journal.append(a, first, text.as_bytes()).unwrap();
    }
    journal.part(a, first + 1, 4).unwrap();
    journal.append(a, first + 1, b"o").unwrap();
    let file = journal.identity().file(a);
    let left = |next: u64| {
        let copy = tempfile::tempdir().unwrap();
        for name in [NAME, COPY_NAME] {
            fs::copy(directory.path().join(name), copy.path().join(name)).unwrap();
        }
        let kept = |asked: &FileId| (*asked == file).then_some(next);
        let (_, left) = opened(copy.path(), kept);
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
    let size = fs::metadata(directory.path().join(NAME)).unwrap().len();
    let begin = (HEADER_BYTES + HEAD_BYTES + "a".len()) as u64;
    assert_eq!(journal.live, size - begin);
    journal.done(a, first + 4);
    assert_eq!(journal.live, 0);
}

#[test]
fn the_versions_before_are_read() {
    for version in [b'1', b'2'] {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(directory.path());
        let (slot, first) = journal.begin("a").unwrap();
        journal.append(slot, first, b"one").unwrap();
        let [path, copy] = files(directory.path());
        let whole = fs::read(&path).unwrap();
        let mut before = whole[..32].to_vec();
        before[7] = version;
        let crc = format::crc32c(&before);
        before.extend(crc.to_le_bytes());
        // The checksums of its records say nothing of their places.
        for record in [
            &whole[HEADER_BYTES..][..HEAD_BYTES + 1],
            &whole[HEADER_BYTES..][HEAD_BYTES + 1..],
        ] {
            before.extend(format::crc32c(&record[4..]).to_le_bytes());
            before.extend(&record[4..]);
        }
        fs::write(&path, before).unwrap();
        fs::remove_file(&copy).unwrap();
        assert_eq!(tails(&open(directory.path()).1), [("a", &b"one"[..])]);
    }
}

/// A journal with lines of three files, and what is left of it: what was done is not.
fn filled(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut journal, _) = open(directory);
    let mut lines = Vec::new();
    for (number, path) in (0_u8..).zip(["a", "b/c", "d"]) {
        let (slot, first) = journal.begin(path).unwrap();
        journal.append(slot, first, b"this was done").unwrap();
        journal.note_done(slot, first + 1).unwrap();
        for piece in 0..4 {
            let text = vec![b'0' + number; 1 + 40 * piece];
            journal.append(slot, first + 1, &text).unwrap();
        }
        lines.push((path.to_owned(), vec![b'0' + number; 244]));
    }
    lines
}

fn owned(left: Vec<Left>) -> Vec<(String, Vec<u8>)> {
    left.into_iter()
        .map(|left| (left.path, left.tail))
        .collect()
}

/// Damages one of the two files in one of many ways, and says how.
fn damage(random: &mut Random, paths: &[PathBuf; 2], stale: &[u8]) -> String {
    let path = &paths[random.below(2) as usize];
    let mut bytes = fs::read(path).unwrap();
    let at = random.below(bytes.len() as u64) as usize;
    let what = random.below(8);
    match what {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => {
            let end = bytes.len().min(at + 1 + random.below(300) as usize);
            bytes[at..end].fill(0);
        }
        3 => bytes.truncate(at),
        4 => bytes = stale.to_vec(),
        5 => bytes.extend_from_within(at..),
        6 => {
            let between = paths[0].with_extension("between");
            fs::rename(&paths[0], &between).unwrap();
            fs::rename(&paths[1], &paths[0]).unwrap();
            fs::rename(&between, &paths[1]).unwrap();
            return "swap".to_owned();
        }
        _ => {
            fs::remove_file(path).unwrap();
            if random.below(2) == 0 {
                // Neither root nor anybody else can read or write a directory.
                fs::create_dir(path).unwrap();
                return format!("a directory in the place of {path:?}");
            }
            return format!("remove {path:?}");
        }
    }
    fs::write(path, bytes).unwrap();
    format!("damage {what} at {at} of {path:?}")
}

#[test]
fn damage_to_either_file_of_the_journal_loses_no_line_and_sends_no_wrong_one() {
    let cases = if std::env::var_os("STORM").is_some() {
        300
    } else {
        30
    };
    let mut random = Random::from_environment();
    for case in 0..cases {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()));
        let stale = fs::read(directory.path().join(NAME)).unwrap();
        let lines = filled(directory.path());
        let paths = files(directory.path());
        let how = damage(&mut random, &paths, &stale);
        for path in paths.iter().filter(|path| path.is_dir()) {
            // The copy is not needed to go on; the journal is.
            let opened = Journal::open(directory.path(), |_| None);
            let refused = opened
                .err()
                .map_or(String::new(), |failure| failure.message);
            assert_eq!(
                refused.contains("directory"),
                path.ends_with(NAME),
                "{refused}"
            );
            fs::remove_dir(path).unwrap();
        }
        let opened = Journal::open(directory.path(), |_| None).unwrap();
        assert_eq!(owned(opened.left), lines, "case {case}: {how}");
        assert_eq!(opened.doubtful, None, "case {case}: {how}");
        drop(opened.journal);
        // Both are whole again.
        assert_eq!(owned(open(directory.path()).1), lines, "case {case}: {how}");
    }
}

#[test]
fn lines_of_a_journal_that_is_damaged_twice_are_put_aside_and_named_until_they_are_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let lines = filled(directory.path());
    for path in files(directory.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    for _ in 0..2 {
        let opened = Journal::open(directory.path(), |_| None).unwrap();
        assert_eq!(opened.left, [], "one of them may have a hole");
        let text = opened.doubtful.unwrap();
        assert!(text.contains("unfinished.damaged.1 (3 lines; "), "{text}");
    }
    let aside = directory.path().join("unfinished.damaged.1");
    let text = fs::read_to_string(&aside).unwrap();
    let (path, line) = &lines[2];
    let line = String::from_utf8(line.clone()).unwrap();
    assert!(
        text.contains(&format!("--- {path}: 244 bytes\n{line}\n")),
        "{text}"
    );
    fs::remove_file(aside).unwrap();
    open(directory.path());
}
