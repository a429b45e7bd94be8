//! Tests of lines that survive a crash, and of lines that are not sent again.

use std::{fs, path::PathBuf};

use millstream_sys::{checksum::crc32c_of, disk::HostDisk};
use millstream_testkit::{
    Random,
    trial::{DIRECTORY, DurableState, Trial},
};

use super::*;

const COPY_NAME: &str = "unfinished.copy";

fn reopen(directory: &Path) -> Result<Opened, Failure> {
    Journal::open(Arc::new(HostDisk), directory, |_| None)
}

fn open(directory: &Path) -> (Journal, Vec<Left>) {
    opened(directory, |_| None)
}

/// Opens a journal that is not damaged.
fn opened(directory: &Path, kept: impl Fn(&FileId) -> Option<u64>) -> (Journal, Vec<Left>) {
    let opened = Journal::open(Arc::new(HostDisk), directory, kept).unwrap();
    assert_eq!((opened.mended, opened.doubtful), (None, None));
    (opened.journal, opened.left)
}

fn tails(left: &[Left]) -> Vec<(&str, &[u8])> {
    left.iter()
        .map(|left| (&*left.path, &left.tail[..]))
        .collect()
}

#[test]
fn unfinished_lines_survive_a_crash_and_the_next_one() {
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
        // The bytes of the second generation were acknowledged, too.
        assert_eq!(tails(&left), [("a.log", &b"unfin"[..]), ("a.log", b"next")]);
        // No generation is ever reused.
        assert!(left[0].generation > first + 1);
    }
}

#[test]
fn lines_that_a_durable_channel_has_kept_are_not_recovered() {
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
fn with_a_memory_channel_every_line_that_is_not_settled_is_recovered() {
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
fn a_torn_end_is_ignored_and_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (slot, first) = journal.begin("a").unwrap();
    journal.append(slot, first, b"one").unwrap();
    journal.append(slot, first, b"two").unwrap();
    let [path, copy] = files(directory.path());
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole, fs::read(&copy).unwrap());
    let two = whole.len() - frame_bytes(3) as usize;
    for end in two + 1..two + 8 + HEAD_BYTES + 3 {
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
        let opened = reopen(directory.path()).unwrap();
        assert_eq!(tails(&opened.left), [("a", &b"onetwo"[..])], "{end}");
        fs::write(&path, &whole).unwrap();
        fs::write(&copy, &whole[..two]).unwrap();
        assert_eq!(tails(&open(directory.path()).1), [("a", &b"onetwo"[..])]);
    }
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        fs::write(&copy, bytes).unwrap();
        let failure = reopen(directory.path()).err().unwrap();
        assert_eq!(failure.who, millstream_pipeline::failure::Who::State);
        failure.message
    };
    let mut newer = whole.clone();
    newer[8] += 1;
    let checksum = crc32c_of(&[&newer[..12], &newer[16..24]]);
    newer[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert!(refused(&newer).contains("newer"));
    let mut flipped = whole.clone();
    flipped[20] ^= 1;
    assert!(refused(&flipped).contains("damaged"));
    assert!(refused(b"rubbish").contains("damaged"));
    fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
    fs::remove_file(&copy).unwrap();
    let failure = reopen(directory.path()).err().unwrap();
    assert!(failure.message.contains("at most 256MiB"), "{failure}");
}

#[test]
fn the_journal_stays_small_and_keeps_live_bytes() {
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
fn bytes_that_stay_move_to_a_new_generation() {
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
    journal.rewrite().unwrap();
    assert_eq!(left(0), parted);
    // Bytes of more than one generation move.
    journal.append(a, first + 2, b"!").unwrap();
    journal.part(a, first + 3, 5).unwrap();
    assert_eq!(left(0), ["1 one\n at b\n", "2", " two!"]);
    journal.rewrite().unwrap();
    assert_eq!(left(first + 3), [" two!"]);
    let size = fs::metadata(directory.path().join(NAME)).unwrap().len();
    let begin = 24 + frame_bytes(16) + frame_bytes("a".len());
    assert_eq!(journal.live, size - begin);
    journal.done(a, first + 4);
    assert_eq!(journal.live, 0);
}

/// Journals of versions 1 to 3, in hexadecimal. They hold generations 5 and 6 of `app/a.log`, and generation 6 of `b`.
const OLDER: [&str; 3] = [
    "4d53465553453031887766554433221100002a36fe9c971705000000000000003125f4a7bd1fcb5709000000010000000000 \
     000005000000000000006170702f612e6c6f6799f1eff007000000020000000000000005000000000000006f6e650a207477 \
     d612127001000000020000000000000006000000000000006fa80e6a06010000000100000001000000050000000000000062 \
     4e6eae340700000002000000010000000500000000000000736574746c6564de9a292d000000000300000001000000060000 \
     0000000000e6f2b9ee04000000020000000100000006000000000000006c656674",
    "4d53465553453032887766554433221100002a36fe9c971705000000000000009679a9d5bd1fcb5709000000010000000000 \
     000005000000000000006170702f612e6c6f6799f1eff007000000020000000000000005000000000000006f6e650a207477 \
     a9926beb08000000040000000000000006000000000000000300000000000000d61212700100000002000000000000000600 \
     0000000000006fa80e6a060100000001000000010000000500000000000000624e6eae340700000002000000010000000500 \
     000000000000736574746c6564de9a292d0000000003000000010000000600000000000000e6f2b9ee040000000200000001 \
     00000006000000000000006c656674",
    "4d53465553453033887766554433221100002a36fe9c97170500000000000000020000000000000082f6ada2187033a90900 \
     0000010000000000000005000000000000006170702f612e6c6f678f6d7cff07000000020000000000000005000000000000 \
     006f6e650a207477a8dba98b08000000040000000000000006000000000000000300000000000000d497b5a0010000000200 \
     00000000000006000000000000006f6ed3f9100100000001000000010000000500000000000000629399ee82070000000200 \
     0000010000000500000000000000736574746c6564ab6e00e70000000003000000010000000600000000000000cd59948204 \
     000000020000000100000006000000000000006c656674",
];

fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<_> = hexadecimal.split_whitespace().collect();
    let digits = digits.concat();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn journals_of_older_versions_are_read_and_converted() {
    for (version, older) in (1..).zip(OLDER) {
        let directory = tempfile::tempdir().unwrap();
        let [path, copy] = files(directory.path());
        let older = bytes_of(older);
        fs::write(&path, &older).unwrap();
        if version == 3 {
            fs::write(&copy, &older).unwrap();
        }
        let (journal, left) = open(directory.path());
        let expected: [(&str, &[u8]); 3] = match version {
            // Version 1 could not divide a generation.
            1 => [
                ("app/a.log", b"one\n tw"),
                ("app/a.log", b"o"),
                ("b", b"left"),
            ],
            _ => [
                ("app/a.log", b"one\n"),
                ("app/a.log", b" two"),
                ("b", b"left"),
            ],
        };
        assert_eq!(tails(&left), expected, "version {version}");
        assert!(left[0].generation > 6);
        let file = journal.identity().file(0);
        assert_eq!(file.head, 0x1122_3344_5566_7788);
        assert_eq!(file.birth, 1_700_000_000_000_000_000);
        assert!(fs::read(&path).unwrap().starts_with(b"MILLFUSE"));
        assert_eq!(tails(&open(directory.path()).1), expected);
        // The conversion keeps the identity of the journal, so the origins in a channel still match its slots.
        fs::write(&path, &older).unwrap();
        match version {
            3 => fs::write(&copy, &older).unwrap(),
            _ => fs::remove_file(&copy).unwrap(),
        }
        let kept = |asked: &FileId| (*asked == file).then_some(6);
        assert_eq!(tails(&opened(directory.path(), kept).1), expected[1..]);
    }
}

#[test]
fn damage_to_either_file_of_an_older_journal_loses_no_line() {
    let older = bytes_of(OLDER[2]);
    for damaged in 0..older.len() {
        let directory = tempfile::tempdir().unwrap();
        let mut other = older.clone();
        other[damaged] ^= 1;
        let [path, copy] = files(directory.path());
        let (first, second) = match damaged % 2 {
            0 => (&older, &other),
            _ => (&other, &older),
        };
        fs::write(path, first).unwrap();
        fs::write(copy, second).unwrap();
        let opened = reopen(directory.path()).unwrap();
        assert_eq!(opened.left.len(), 3, "byte {damaged}");
        assert!(opened.mended.is_some() && opened.doubtful.is_none());
    }
}

/// Fills a journal with lines of three files. Returns the lines that are unfinished.
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
        let sync = journal.begin_sync().unwrap();
        sync.run().unwrap();
        journal.end_sync(&sync, true);
    }
    // Each record that is written after the sync states the offset up to which the file was durable.
    let (slot, first) = journal.begin("empty").unwrap();
    journal.append(slot, first, b"done").unwrap();
    journal.note_done(slot, first + 1).unwrap();
    lines
}

fn owned(left: Vec<Left>) -> Vec<(String, Vec<u8>)> {
    left.into_iter()
        .map(|left| (left.path, left.tail))
        .collect()
}

/// Damages one of the two files in one of many ways. Returns a description.
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
                // A directory cannot be read or written as a file, not even by root.
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
            // A journal that cannot be read is an error; a copy that cannot be read is not.
            let opened = reopen(directory.path());
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
        let opened = reopen(directory.path()).unwrap();
        assert_eq!(owned(opened.left), lines, "case {case}: {how}");
        assert_eq!(opened.doubtful, None, "case {case}: {how}");
        drop(opened.journal);
        // Both files are whole again.
        assert_eq!(owned(open(directory.path()).1), lines, "case {case}: {how}");
    }
}

#[test]
fn if_both_files_are_damaged_the_lines_go_to_a_file_that_is_reported_until_it_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let lines = filled(directory.path());
    for path in files(directory.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    for _ in 0..2 {
        let opened = reopen(directory.path()).unwrap();
        assert_eq!(opened.left, [], "one of them may lack a part");
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

#[test]
fn a_write_lost_in_a_power_cut_does_not_lose_a_durable_line() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (a, first) = journal.begin("a").unwrap();
    journal.append(a, first, b"durable").unwrap();
    let sync = journal.begin_sync().unwrap();
    sync.run().unwrap();
    journal.end_sync(&sync, true);
    let lost = journal.stored.bytes() as usize;
    journal.append(a, first, b", lost").unwrap();
    journal.append(a, first, b", torn").unwrap();
    drop(journal);
    for path in files(directory.path()) {
        let mut bytes = fs::read(&path).unwrap();
        bytes[lost..lost + 16].fill(0);
        fs::write(&path, bytes).unwrap();
    }
    let opened = reopen(directory.path()).unwrap();
    assert_eq!(tails(&opened.left), [("a", &b"durable"[..])]);
    // The line without its lost part is written to a file for the operator.
    let text = fs::read_to_string(directory.path().join("unfinished.damaged.1")).unwrap();
    assert!(text.ends_with("--- a: 13 bytes\ndurable, torn\n"), "{text}");
    assert!(opened.doubtful.is_some());
}

#[test]
fn after_a_failed_sync_the_journal_is_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let (a, first) = journal.begin("a").unwrap();
    journal.append(a, first, b"one").unwrap();
    let (sync, path) = (journal.begin_sync().unwrap(), directory.path().join(NAME));
    journal.end_sync(&sync, false);
    fs::remove_file(&path).unwrap();
    journal.append(a, first, b"two").unwrap();
    assert!(path.exists());
    // The end of a sync of the replaced file has no effect on the new file.
    journal.end_sync(&sync, false);
    assert!(!journal.stored.needs_replace());
    assert_eq!(tails(&open(directory.path()).1), [("a", &b"onetwo"[..])]);
}

/// A state that stores each number as a line in a new generation.
struct Numbered {
    journal: Journal,
    place: Option<(u32, u64)>,
    number: u64,
}

impl DurableState for Numbered {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let opened = Journal::open(disk, Path::new(DIRECTORY), |_| None);
        let Opened { journal, left, .. } = opened.map_err(|failure| failure.message)?;
        let mut state = Self {
            journal,
            place: None,
            number: 0,
        };
        for line in left {
            let number = u64::from_le_bytes(*line.tail.first_chunk().unwrap());
            assert_eq!(line.tail, number.to_le_bytes().repeat(150));
            assert!(state.number <= number, "lines out of order");
            state.number = number;
            state.place = Some((line.slot, line.generation));
        }
        Ok(state)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        let mut advance = || -> io::Result<()> {
            let (slot, generation) = match &mut self.place {
                Some(place) => place,
                None => self.place.insert(self.journal.begin("f")?),
            };
            *generation += 1;
            let text = number.to_le_bytes().repeat(150);
            self.journal.append(*slot, *generation, &text)?;
            self.journal.note_done(*slot, *generation)?;
            if number.is_multiple_of(5) {
                self.journal.rewrite()?;
            }
            let sync = self.journal.begin_sync()?;
            let synced = sync.run();
            self.journal.end_sync(&sync, synced.is_ok());
            synced
        };
        advance().map_err(|error| error.to_string())?;
        self.number = number;
        Ok(())
    }
}

#[test]
fn a_line_that_was_synced_survives_every_power_cut_and_damage_to_one_file() {
    Trial {
        has_copy: true,
        ..Trial::default()
    }
    .run::<Numbered>();
}
