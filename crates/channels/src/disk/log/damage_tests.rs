//! Random damage to each kind of file of a channel: intact batches are not destroyed, no wrong batch is read, every missing batch is
//! reported, and a second start finds the same batches.
//!
//! `make storm` runs ten times as many cases. A failing test prints the seed; set the variable SEED to repeat it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use millstream_record::Position;
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::{Crash, Random, SimulatedDisk};

use super::{
    Behind, ChannelId, Error, Item, Log, Missing, Recovered, Sync,
    losses::{Loss, Losses},
    record::record_path,
    tests::{at, batch, keep, options, reader},
};

const HERE: &str = "/data/channels/buffer";
/// Number of batches that are kept. The seq of each is its number plus one.
const BATCHES: u64 = 60;
/// The seq up to which the consumer had settled when the stale copies of the files were taken.
const SETTLED_BEFORE: u64 = 15;
/// The seq up to which the consumer had settled at the end.
const SETTLED: u64 = 30;

/// The kinds of files, by the ends of their names.
const KINDS: [&str; 6] = [".seg", ".ids", ".cursor", "channel", ".record", ".losses"];

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A channel that was stopped or killed, with earlier copies of its files.
struct World {
    disk: SimulatedDisk,
    stale: Files,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let disk = SimulatedDisk::new(1);
        for directory in ["/data", "/data/channels"] {
            disk.create_directory(Path::new(directory)).unwrap();
        }
        let mut world = Self {
            disk,
            stale: Files::new(),
        };
        let (mut log, _) = world.open().unwrap();
        // The list of losses holds one loss, which no operator has accepted.
        let losses = Losses::read(Arc::new(world.disk.clone()), &record_path(Path::new(HERE)));
        losses.unwrap().add(world.old_loss()).unwrap();
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..BATCHES / 2).unwrap();
        sink.commit(position(SETTLED_BEFORE)).unwrap();
        world.stale = world.files();
        keep(&mut log, BATCHES / 2..BATCHES).unwrap();
        sink.commit(position(SETTLED)).unwrap();
        drop(sink);
        if random.chance(1, 2) {
            log.close(at(BATCHES)).unwrap();
        } else {
            drop(log);
            world.disk.restart(Crash::Kill);
        }
        world
    }

    fn old_loss(&self) -> Loss {
        Loss {
            missing: Missing::Newest,
            channel: ChannelId([9; 16]),
            after: position(3),
            to: position(7),
            records: 4,
        }
    }

    fn open(&self) -> Result<(Log, Recovered), Error> {
        let disk = Arc::new(self.disk.clone());
        Log::open(
            disk,
            Path::new(HERE),
            options(Sync::Batch),
            ChannelId([1; 16]),
        )
    }

    /// All files of the channel and their contents.
    fn files(&self) -> Files {
        let record = record_path(Path::new(HERE));
        let directories = [Path::new(HERE), record.parent().unwrap()];
        let paths = directories.into_iter().flat_map(|directory| {
            let names = self.disk.list(directory).unwrap();
            names.into_iter().map(move |name| directory.join(name))
        });
        paths.map(|path| (path.clone(), self.read(&path))).collect()
    }

    fn read(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        let file = self.disk.open(path, Open::Read).unwrap();
        file.read_at(&mut bytes, 1 << 20, 0).unwrap();
        bytes
    }

    fn write(&self, path: &Path, bytes: &[u8]) {
        let _ = self.disk.remove(path);
        let file = self.disk.open(path, Open::Create).unwrap();
        file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }

    /// The numbers of the batches whose bytes are in any file.
    fn held(&self) -> BTreeSet<u64> {
        let mut held = BTreeSet::new();
        for bytes in self.files().values() {
            // A body consists of eight digits, followed by dots.
            let dots = (8..bytes.len()).filter(|at| bytes[*at] == b'.' && bytes[at - 1] != b'.');
            for at in dots {
                let digits = std::str::from_utf8(&bytes[at - 8..at]).unwrap_or_default();
                let number = digits.parse().unwrap_or(BATCHES);
                let body = batch(number, 1000).body;
                if number < BATCHES && bytes[at - 8..].starts_with(&body) {
                    held.insert(number);
                }
            }
        }
        held
    }

    /// Damages a file of this kind in one of several ways. Returns a description of the damage.
    fn damage(&self, random: &mut Random, kind: &str) -> String {
        let files = self.files();
        let of_kind = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(kind) && !name.starts_with("free-")
        };
        let paths: Vec<&PathBuf> = files.keys().filter(of_kind).collect();
        let path = *random.pick(&paths).expect(kind);
        let mut bytes = files[path].clone();
        // Only the used part is damaged, because most of a segment and of a slot is zeros.
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
        let place = random.below(used) as usize;
        let what = random.below(8);
        match what {
            0 | 1 => bytes[place] ^= 1 << random.below(8),
            2 => {
                let end = bytes.len().min(place + 1 + random.below(5000) as usize);
                bytes[place..end].fill(0);
            }
            3 => bytes.truncate(place),
            4 => {
                self.disk.remove(path).unwrap();
                return format!("remove {path:?}");
            }
            5 => {
                let other = *random.pick(&paths).expect(kind);
                self.write(path, &files[other]);
                self.write(other, &bytes);
                return format!("swap {path:?} and {other:?}");
            }
            6 => {
                let copy = match kind {
                    ".seg" | ".ids" => path.with_file_name(format!("0000000099{kind}")),
                    _ => path.with_file_name(format!("copy{kind}")),
                };
                self.write(&copy, &bytes);
                return format!("{copy:?} is a copy of {path:?}");
            }
            _ => match self.stale.get(path) {
                Some(stale) => bytes.clone_from(stale),
                None => bytes.clear(),
            },
        }
        self.write(path, &bytes);
        format!("damage {what} at {place} of {path:?}")
    }

    /// Opens the channel, reads it to its end, and checks what it reports. Returns the numbers of the batches that were read; `None` if the
    /// channel cannot be opened.
    fn check(&self, kind: &str, how: &str) -> Option<BTreeSet<u64>> {
        let before = self.held();
        let (log, found) = match self.open() {
            Ok(opened) => opened,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(HERE), "{how}: {text} names no file");
                assert_eq!(self.held(), before, "{how}: {text}");
                return None;
            }
        };
        let mut sink = reader(&log, Behind::default());
        let (mut read, mut named) = (BTreeSet::new(), Vec::new());
        let mut last = None;
        while let Some(item) = sink.read().unwrap() {
            match item {
                Item::Batch(at, found) => {
                    let number = at.seq - 1;
                    assert_eq!(found.body, batch(number, 1000).body, "{how}");
                    assert!(last < Some(number), "{how}: {number} after {last:?}");
                    last = Some(number);
                    read.insert(number);
                }
                Item::Lost(lost) => named.push((lost.after.seq, lost.before.seq - 1)),
            }
        }
        let losses = found.losses.iter();
        named.extend(losses.map(|loss| (loss.after.seq, loss.to.seq)));
        for number in (SETTLED..BATCHES).filter(|number| !read.contains(number)) {
            let is_named = named
                .iter()
                .any(|(after, to)| (*after..*to).contains(&number));
            assert!(
                is_named,
                "{how}: {number} is missing, and only {named:?} is named"
            );
        }
        let again = read.iter().filter(|number| **number < SETTLED).count();
        let may_repeat = kind == ".cursor";
        assert!(
            again == 0 || may_repeat,
            "{how}: {again} settled batches were read again"
        );
        let known = found.losses.contains(&self.old_loss());
        let unreadable = found
            .losses
            .iter()
            .any(|loss| loss.missing == Missing::Unreadable);
        let may_be_gone = kind == ".losses" && how.contains(": remove");
        assert!(
            known || unreadable || may_be_gone,
            "{how}: the open loss is forgotten"
        );
        assert!(
            before.is_subset(&self.held()),
            "{how}: bytes of batches were destroyed"
        );
        Some(read)
    }
}

fn position(seq: u64) -> Position {
    Position { epoch: 1, seq }
}

#[test]
fn damage_to_a_file_neither_destroys_intact_batches_nor_loses_one_silently() {
    let cases = if std::env::var_os("STORM").is_some() {
        300
    } else {
        30
    };
    let mut random = Random::from_environment();
    for kind in KINDS {
        for case in 0..cases {
            let world = World::new(&mut random);
            let how = format!("{kind} case {case}: {}", world.damage(&mut random, kind));
            let first = world.check(kind, &how);
            // The second start does the same as the first: it fails and removes nothing, or it finds the same batches.
            assert_eq!(world.check(kind, &how), first, "{how}, second start");
            if first.is_some() {
                let (mut log, _) = world.open().unwrap();
                keep(&mut log, 100..101).unwrap();
            }
        }
    }
}
