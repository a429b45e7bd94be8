//! Damage to the journal, on the simulated disk: settled records stay in the outputs, and an error is logged if records may be
//! in the outputs twice.

use std::{
    collections::BTreeMap,
    io::IoSlice,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use millstream_sys::disk::{Disk, Open};
use millstream_testkit::{Crash, Random, SimulatedDisk};

use super::crash::{
    CSV_ROTATED, Case, DIRECTORIES, GZIP, ONE_FILE, ROTATED, State, ZSTD_ROTATED, files, records,
};

const JOURNALS: [&str; 2] = ["/data/sinks/sink/journal.0", "/data/sinks/sink/journal.1"];

/// Damage to one or both files of the journal.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip(u64),
    Zero(u64, u64),
    Cut(u64),
    Remove,
}

impl Damage {
    fn random(random: &mut Random) -> Self {
        match random.below(10) {
            0..5 => Self::Flip(random.below(700)),
            5..8 => Self::Zero(random.below(700), 1 + random.below(700)),
            8 => Self::Cut(random.below(700)),
            _ => Self::Remove,
        }
    }

    fn apply(self, disk: &SimulatedDisk, path: &Path) {
        let open = || disk.open(path, Open::Write).unwrap();
        match self {
            Self::Flip(at) => assert!(disk.damage(path, at)),
            Self::Zero(at, bytes) => {
                let zeros = vec![0; bytes as usize];
                let file = open();
                file.write_at(&[IoSlice::new(&zeros)], at).unwrap();
                file.sync().unwrap();
            }
            Self::Cut(at) => {
                let file = open();
                file.truncate(at).unwrap();
                file.sync().unwrap();
            }
            Self::Remove => {
                disk.remove(path).unwrap();
                disk.sync_directory(path.parent().unwrap()).unwrap();
            }
        }
    }
}

fn read(disk: &SimulatedDisk, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = disk.open(path, Open::Read).unwrap();
    file.read_at(&mut bytes, 1 << 20, 0).unwrap();
    bytes
}

/// How often each line is in the outputs. `torn`: files may end within a record.
fn count(disk: &SimulatedDisk, torn: bool) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for path in files(disk, Path::new("/out")) {
        let mut bytes = read(disk, &path);
        if torn {
            let whole = bytes.iter().rposition(|byte| *byte == b'\n');
            bytes.truncate(whole.map_or(0, |at| at + 1));
        }
        for line in records(&path, bytes).lines() {
            *found.entry(line.to_owned()).or_default() += 1;
        }
    }
    found
}

/// A count of one for every line that was sent.
fn sent() -> BTreeMap<String, u32> {
    let mut lines = BTreeMap::new();
    for batch in Case::batches() {
        let text = String::from_utf8(batch.body.to_vec()).unwrap();
        lines.extend(text.lines().map(|line| (line.to_owned(), 1)));
    }
    lines
}

fn damage_all(disk: &SimulatedDisk, which: u64, damage: Damage) {
    for (n, path) in JOURNALS.iter().enumerate() {
        if which == 2 || which == n as u64 {
            damage.apply(disk, Path::new(path));
        }
    }
}

/// Damages the journal after an orderly stop. Everything is committed then, so no record may be lost or repeated.
fn damage_after_a_stop(case: &Case, which: u64, damage: Damage) {
    let what = format!("{}, {damage:?} of {which}", case.options);
    let disk = SimulatedDisk::new(1);
    let state = Arc::new(Mutex::new(State::default()));
    let mut first = Case::batches();
    first.truncate(8);
    case.run_over(first.clone(), &disk, &state).unwrap();
    assert_eq!(state.lock().unwrap().settled, first.len());
    let before: Vec<(PathBuf, Vec<u8>)> = files(&disk, Path::new("/out"))
        .into_iter()
        .map(|path| (path.clone(), read(&disk, &path)))
        .collect();
    disk.restart(Crash::Kill);
    damage_all(&disk, which, damage);
    disk.restart(Crash::Kill);
    case.run_over(first, &disk, &state).unwrap();
    let after: Vec<Vec<u8>> = files(&disk, Path::new("/out"))
        .iter()
        .map(|path| read(&disk, path))
        .collect();
    for (path, bytes) in before {
        assert!(after.contains(&bytes), "{what}: {path:?} was changed");
    }
    case.run_to_the_end(&disk, &state);
    assert_eq!(count(&disk, false), sent(), "{what}");
    disk.restart(Crash::Kill);
    case.run_to_the_end(&disk, &state);
    assert_eq!(count(&disk, false), sent(), "{what}, then in order");
}

#[test]
fn no_flipped_bit_in_the_journal_of_a_stopped_sink_loses_or_repeats_a_record() {
    for case in [ONE_FILE, ROTATED] {
        // The flipped bits are spread over the first 700 bytes of the file, so that they hit the header and the entries.
        for at in (0..700).step_by(7) {
            for which in 0..2 {
                damage_after_a_stop(&case, which, Damage::Flip(at));
            }
        }
    }
}

#[test]
fn no_damage_to_the_journal_of_a_stopped_sink_loses_or_repeats_a_record() {
    let cases = [
        ONE_FILE,
        DIRECTORIES,
        ROTATED,
        GZIP,
        ZSTD_ROTATED,
        CSV_ROTATED,
    ];
    for (seed, case) in (0..600).zip(cases.iter().cycle()) {
        let mut random = Random::new(seed);
        damage_after_a_stop(case, random.below(3), Damage::random(&mut random));
    }
}

#[test]
fn damage_to_the_journal_after_a_crash_loses_no_record_and_repeats_are_logged() {
    let (mut doubled, mut exact) = (0, 0);
    for seed in 0..600 {
        let case = &[ONE_FILE, DIRECTORIES, ROTATED][seed as usize % 3];
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(seed);
        let state = Arc::new(Mutex::new(State::default()));
        disk.crash_at(60 + random.below(90));
        let _ = case.run(&disk, &state);
        disk.restart(Crash::Kill);
        // If no record was settled, a missing journal is not noticed: a new sink has no journal either.
        if state.lock().unwrap().settled == 0 {
            continue;
        }
        state.lock().unwrap().errors.clear();
        let damage = Damage::random(&mut random);
        let which = random.below(3);
        damage_all(&disk, which, damage);
        disk.restart(Crash::Kill);
        case.run_to_the_end(&disk, &state);
        let what = format!("seed {seed}: {}, {damage:?} of {which}", case.options);
        let named = !state.lock().unwrap().errors.is_empty();
        let (found, sent) = (count(&disk, named), sent());
        assert!(
            found.keys().eq(sent.keys()),
            "{what}: lines were lost or mixed up"
        );
        match found == sent {
            true => exact += 1,
            false => {
                assert!(named, "{what}: lines came twice and no error says so");
                doubled += 1;
            }
        }
    }
    assert!(doubled > 20 && exact > 20, "{doubled} and {exact}");
}

#[test]
fn an_old_copy_of_the_journal_truncates_nothing() {
    let disk = SimulatedDisk::new(1);
    let state = Arc::new(Mutex::new(State::default()));
    let mut batches = Case::batches();
    batches.truncate(4);
    ONE_FILE.run_over(batches, &disk, &state).unwrap();
    disk.restart(Crash::Kill);
    let copies = JOURNALS.map(|path| read_whole(&disk, Path::new(path)));
    ONE_FILE.run(&disk, &state).unwrap();
    disk.restart(Crash::Kill);
    for (path, copy) in JOURNALS.iter().zip(copies) {
        let file = disk.open(Path::new(path), Open::Write).unwrap();
        file.write_at(&[IoSlice::new(&copy)], 0).unwrap();
        file.sync().unwrap();
    }
    disk.restart(Crash::Kill);
    ONE_FILE.run(&disk, &state).unwrap();
    assert_eq!(count(&disk, false), sent());
    let errors = state.lock().unwrap().errors.clone();
    assert!(errors[0].contains("has settled up to 1.12"), "{errors:?}");
    assert!(
        errors[0].contains("/out/all is now /out/all.1970"),
        "{errors:?}"
    );
}

fn read_whole(disk: &SimulatedDisk, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = disk.open(path, Open::Read).unwrap();
    file.read_at(&mut bytes, 2 << 20, 0).unwrap();
    bytes
}

/// The whole data_dir, including the channel, is an old copy: the journal and the cursor agree, but the outputs are newer.
#[test]
fn a_file_with_bytes_that_no_batch_explains_is_put_aside() {
    let disk = SimulatedDisk::new(1);
    let state = Arc::new(Mutex::new(State::default()));
    let mut batches = Case::batches();
    batches.truncate(4);
    ONE_FILE.run_over(batches.clone(), &disk, &state).unwrap();
    disk.restart(Crash::Kill);
    let file = disk.open(Path::new("/out/all"), Open::Write).unwrap();
    let end = file.metadata().unwrap().len;
    file.write_at(&[IoSlice::new(b"a 99 0 later\n")], end)
        .unwrap();
    file.sync().unwrap();
    disk.restart(Crash::Kill);
    ONE_FILE.run_over(batches, &disk, &state).unwrap();
    ONE_FILE.run(&disk, &state).unwrap();
    let mut found = count(&disk, false);
    assert_eq!(found.remove("a 99 0 later"), Some(1));
    assert_eq!(found, sent());
    let errors = state.lock().unwrap().errors.clone();
    assert!(
        errors[0].contains("nothing in the channel explains"),
        "{errors:?}"
    );
}
