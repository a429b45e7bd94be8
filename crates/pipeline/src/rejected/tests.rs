//! The store: torn files, full shares of nodes and peers, removal of the oldest records, power cuts.

use std::{fs, io::Write};

use millstream_record::{Encoding, Time, Values};
use millstream_sys::disk::Disk;
use millstream_testkit::{
    Call, SimulatedDisk,
    trial::{DIRECTORY, DurableState, Trial},
};

use super::*;
use crate::{delivery, reject};

/// Limits of `node_max` bytes for the node, and of `peer_max` bytes for each of its peers.
fn limits(node_max: u64, peer_max: u64, full: WhenRejectedFull) -> RejectedLimits {
    RejectedLimits {
        node_max: Size::bytes(node_max),
        peer_max: Size::bytes(peer_max),
        full,
    }
}

fn counts() -> Counts {
    Counts {
        kept: Meter::default(),
        dropped: Meter::default(),
    }
}

fn store(directory: &Path, limits: RejectedLimits) -> Store {
    let files = NodeFiles::new(directory.to_owned(), "in", &limits);
    Store::new(files, "in", &limits, Reporter::new("in"), counts())
}

/// A batch with this body.
fn body(peer: Option<&str>, body: &[u8]) -> Batch {
    let mut values = Values::default();
    if let Some(peer) = peer {
        values.set("peer", peer);
    }
    Batch {
        tag: "web".into(),
        plain: false,
        encoding: Encoding::Packed,
        body: bytes::Bytes::copy_from_slice(body),
        count: 1,
        received: Time(0),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

fn keep(store: &Store, peer: Option<&str>, bytes: &[u8]) -> bool {
    match store.keep(&[body(peer, bytes)]) {
        Ok(()) => true,
        Err(Refused::Full(_)) => false,
        Err(Refused::Disk(error)) => panic!("{error}"),
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_continues_after_its_last_whole_record_and_a_torn_file_is_renamed_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("in.msgpack");
    let record: &[u8] = &[0x92, 1, 0xa1, b'a'];
    let first = store(directory.path(), RejectedLimits::default());
    assert!(keep(&first, None, &record.repeat(2)));
    // The disk became full in the middle of the next record.
    let mut torn = fs::OpenOptions::new().append(true).open(&file).unwrap();
    torn.write_all(&record[..3]).unwrap();
    assert!(keep(&first, None, record));
    assert_eq!(fs::read(&file).unwrap(), record.repeat(3));
    // An operator moved the file away.
    fs::rename(&file, directory.path().join("read")).unwrap();
    assert!(keep(&first, None, record));
    assert_eq!(fs::read(&file).unwrap(), record);
    // Another run continues the file. If it ends with an incomplete record, the run renames it and begins a new one.
    assert!(keep(
        &store(directory.path(), RejectedLimits::default()),
        None,
        record
    ));
    assert_eq!(fs::read(&file).unwrap(), record.repeat(2));
    fs::write(&file, [record, &record[..3]].concat()).unwrap();
    assert!(keep(
        &store(directory.path(), RejectedLimits::default()),
        None,
        record
    ));
    assert_eq!(fs::read(&file).unwrap(), record);
    let names = fs::read_dir(directory.path()).unwrap();
    let aside = names
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("in.torn-"));
    assert_eq!(
        fs::read(aside.unwrap()).unwrap(),
        [record, &record[..3]].concat()
    );
}

#[test]
fn whole_records_of_a_torn_file_are_replayed_once_and_the_incomplete_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let record = record(1);
    let torn = [&record[..], &record[..100]].concat();
    fs::write(directory.path().join("in.peer-a.msgpack"), &torn).unwrap();
    let store = store(directory.path(), RejectedLimits::default());
    // The first new record renames the torn file.
    assert!(keep(&store, Some("a"), &record));
    let aside = &store.files;
    let files = aside.set_aside().unwrap();
    let contents: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(contents, [torn, record.clone()]);
    aside.finish(&files[0], &[], 100).unwrap();
    aside.finish(&files[1], &[], 0).unwrap();
    let left = names(directory.path());
    let is_torn = left[0].starts_with("in.peer-a.torn-") && !left[0].contains("replay");
    assert!(left.len() == 1 && is_torn, "{left:?}");
    let end = fs::read(directory.path().join(&left[0])).unwrap();
    assert_eq!(end, record[..100]);
    assert_eq!(aside.set_aside().unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_replay_that_cannot_copy_an_incomplete_record_leaves_no_copy_of_it() {
    let failures = [
        // The disk is full.
        (Call::Write, 28),
        (Call::Sync, 5),
        (Call::SyncDirectory, 5),
    ];
    let record = record(1);
    for (call, errno) in failures {
        let disk = SimulatedDisk::new(0);
        let directory = Path::new("/rejected");
        let mut streams = Streams::new(Arc::new(disk.clone()), directory.into(), "in", None);
        streams.create_directory().unwrap();
        streams
            .append("in", &[&record[..], &record[..100]])
            .unwrap();
        let aside = streams.set_aside().unwrap().remove(0);
        for _ in 0..2 {
            disk.fail(call, 1, errno);
            streams.finish(&aside, &[], 100).unwrap_err();
            assert_eq!(
                disk.list(directory).unwrap(),
                [aside.file_name().unwrap()],
                "{call:?}"
            );
        }
        streams.finish(&aside, &[], 100).unwrap();
        let left = disk.list(directory).unwrap();
        let is_torn = left[0].to_string_lossy().contains(".torn-");
        assert!(left.len() == 1 && is_torn, "{left:?}");
    }
}

#[test]
fn a_full_share_of_a_node_or_peer_does_not_stop_others() {
    let directory = tempfile::tempdir().unwrap();
    // Another node has a full share.
    let other = fs::File::create(directory.path().join("other.msgpack")).unwrap();
    other.set_len(1 << 30).unwrap();
    let store = store(directory.path(), limits(300, 100, WhenRejectedFull::Wait));
    let (one, two) = (Some("10.0.0.1"), Some("2001:db8::2"));
    for _ in 0..10 {
        assert!(keep(&store, one, &[1; 10]));
    }
    assert!(
        !keep(&store, one, &[1; 10]),
        "a peer holds more than its share"
    );
    assert!(keep(&store, two, &[2; 100]) && !keep(&store, two, &[2]));
    assert!(
        keep(&store, None, &[3; 100]),
        "records without a peer have the remaining share of the node"
    );
    assert!(
        !keep(&store, None, &[3]),
        "a node holds more than its share"
    );
    assert!(!keep(&store, Some("10.0.0.3"), &[4]));
    assert_eq!(
        names(directory.path()),
        [
            "in.msgpack",
            "in.peer-10_0_0_1.msgpack",
            "in.peer-2001:db8::2.msgpack",
            "other.msgpack"
        ]
    );
    // If one batch of a group does not fit, no batch of the group is kept.
    fs::remove_file(directory.path().join("in.msgpack")).unwrap();
    let group = [body(None, &[3; 50]), body(one, &[1])];
    assert!(matches!(store.keep(&group), Err(Refused::Full(_))));
    assert!(!directory.path().join("in.msgpack").exists());
    assert!(keep(&store, None, &[3; 100]));
}

#[test]
fn records_that_are_larger_than_a_limit_are_kept_if_nothing_else_is_there() {
    for full in [WhenRejectedFull::Wait, WhenRejectedFull::DropOldest] {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path(), limits(300, 100, full));
        let drops = full == WhenRejectedFull::DropOldest;
        let (one, two) = (Some("10.0.0.1"), Some("10.0.0.2"));
        assert!(keep(&store, one, &[1; 200]));
        assert_eq!(keep(&store, one, &[2; 150]), drops, "{full:?}");
        let group = [body(one, &[3; 200]), body(two, &[4; 200])];
        assert_eq!(store.keep(&group).is_ok(), drops, "{full:?}");
        for name in names(directory.path()) {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        assert!(store.keep(&group).is_ok(), "{full:?}");
        assert_eq!(store.usage().unwrap().total(), 400);
    }
}

#[test]
fn the_oldest_records_of_a_share_are_removed_if_the_option_allows_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(
        directory.path(),
        limits(2000, 800, WhenRejectedFull::DropOldest),
    );
    let quiet = Some("10.0.0.9");
    assert!(keep(&store, quiet, &[9; 50]));
    for n in 1..=60 {
        assert!(keep(&store, Some("10.0.0.1"), &[n; 100]));
        assert!(keep(&store, None, &[n; 40]));
    }
    let held = store.usage().unwrap();
    assert!(
        held.of("in.peer-10_0_0_1") <= 800 && held.total() <= 2000,
        "{held:?}"
    );
    assert!(held.of("in.peer-10_0_0_1") >= 600, "{held:?}");
    assert_eq!(
        held.of("in.peer-10_0_0_9"),
        50,
        "another peer's records were removed"
    );
    assert_eq!(store.counts.dropped.get() + held.total(), 50 + 60 * 140);
    let newest = names(directory.path()).into_iter().any(|name| {
        let bytes = fs::read(directory.path().join(name)).unwrap();
        bytes.ends_with(&[60; 100])
    });
    assert!(newest, "the newest records were removed");
}

#[test]
fn a_share_that_is_nearly_full_is_a_condition_and_a_full_one_waits_for_space() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, kept) = (Reporter::new("in"), Meter::default());
    let counts = Counts {
        kept: kept.clone(),
        dropped: Meter::default(),
    };
    let from = body(None, b"");
    let rejected = || reject::batch("in", &from, [&b"a"[..]], "why");
    let bytes = rejected().body.len() as u64;
    let limits = limits(bytes * 10, bytes * 10, WhenRejectedFull::Wait);
    let files = NodeFiles::new(directory.path().to_owned(), "in", &limits);
    let store = RejectedStore::open(files, "in", &limits, reporter.clone(), counts);
    let put = || {
        let (token, receipt) = delivery::receipt(true, 1, Meter::default());
        let batches = vec![rejected()];
        let put = store.put(Group::new(batches, token));
        async move {
            put.await;
            receipt.await.unwrap();
        }
    };
    let until = async |done: &dyn Fn() -> bool| {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let conditions = || reporter.conditions();
    runtime.block_on(async {
        for _ in 0..8 {
            put().await;
        }
        assert_eq!(conditions(), []);
        put().await;
        assert_eq!(conditions().len(), 1);
        assert!(conditions()[0].why.contains("hold"), "{:?}", conditions());
        assert!(!store.is_full());
        put().await;
        let move_away = async {
            until(&|| store.is_full()).await;
            let held = conditions();
            assert!(held.iter().all(|held| held.trouble == Trouble::Blocked));
            let is_limit = held
                .iter()
                .any(|held| held.why.contains("`rejected.node_max`"));
            assert!(is_limit, "{held:?}");
            assert_eq!(kept.get(), 10);
            let old = directory.path().join("in.msgpack");
            fs::rename(old, directory.path().join("read")).unwrap();
        };
        tokio::join!(put(), move_away);
        until(&|| conditions().is_empty()).await;
        // The condition is also cleared when nothing more is rejected.
        for _ in 0..8 {
            put().await;
        }
        assert_eq!(conditions().len(), 1);
        fs::remove_dir_all(directory.path()).unwrap();
        until(&|| conditions().is_empty()).await;
    });
    assert_eq!((kept.get(), store.is_full()), (19, false));
}

#[test]
fn a_partial_record_at_the_end_is_distinguished_from_whole_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.msgpack");
    // [1, "aaa..."], longer than one read.
    let mut record = vec![0x92, 1, 0xdb, 0, 0x18, 0, 0];
    record.resize(record.len() + 0x18_0000, b'a');
    let two = [&record[..], &record[..]].concat();
    for (kept, whole) in [
        (two.len(), two.len()),
        (two.len() - 1, record.len()),
        (record.len() + 1, record.len()),
        (record.len(), record.len()),
        (record.len() - 1, 0),
        (0, 0),
    ] {
        fs::write(&path, &two[..kept]).unwrap();
        let mut values = 0;
        let mut file = RejectedFile::open(&path).unwrap();
        let found = file.values(|value| {
            values += value.len();
            assert_eq!(value, record);
            Ok::<_, io::Error>(())
        });
        let partial = kept - whole;
        assert_eq!(found.unwrap(), (whole as u64, partial as u64), "{kept}");
        assert_eq!(values, whole);
    }
}

/// Encodes a number as a record of some hundred bytes: an array that repeats the number.
fn record(number: u64) -> Vec<u8> {
    let mut record = vec![0xdc, 0, 70];
    for _ in 0..70 {
        record.push(0xcf);
        record.extend(number.to_be_bytes());
    }
    record
}

/// Streams that rotate after every third record.
struct Numbers {
    streams: Streams,
    number: u64,
}

impl DurableState for Numbers {
    fn open(disk: Arc<dyn Disk>) -> Result<Self, String> {
        let directory = Path::new(DIRECTORY).join("rejected");
        let mut numbers = Vec::new();
        for name in disk.list(&directory).unwrap_or_default() {
            let read = RejectedFile::open_on(&*disk, &directory.join(name)).and_then(|mut file| {
                file.values(|value| {
                    // Remains of a write that a power cut interrupted may look like values, but are not records.
                    let number = value.get(4..12).and_then(|number| number.first_chunk());
                    let number = number.map_or(0, |number| u64::from_be_bytes(*number));
                    if value == record(number) {
                        numbers.push(number);
                    }
                    Ok::<_, io::Error>(())
                })
            });
            read.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            streams: Streams::new(disk, directory, "in", Some(1500)),
            number: numbers.into_iter().max().unwrap_or(0),
        })
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn advance(&mut self, number: u64) -> Result<(), String> {
        let advance = |streams: &mut Streams| {
            streams.create_directory()?;
            let record = record(number);
            let (head, tail) = record.split_at(100);
            streams.append("in", &[head, tail])
        };
        advance(&mut self.streams).map_err(|error| error.to_string())?;
        self.number = number;
        Ok(())
    }
}

#[test]
fn kept_records_survive_power_cuts_and_failing_disks() {
    // Damage to files is not tested: they have no checksums, because other programs read them.
    let trial = Trial::default();
    trial.crash_everywhere::<Numbers>();
    trial.fail_calls::<Numbers>();
    trial.fill_the_disk::<Numbers>();
}

#[test]
fn the_oldest_file_of_a_share_is_removed_first() {
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(0));
    let mut streams = Streams::new(disk.clone(), "/rejected".into(), "in", Some(1000));
    streams.create_directory().unwrap();
    for number in 1..=7 {
        streams.append("in", &[&record(number)]).unwrap();
    }
    let mut removed = Vec::new();
    while let Some((_, bytes)) = streams.remove_oldest("in").unwrap() {
        removed.push(bytes);
    }
    let bytes = record(0).len() as u64;
    // Three full files of two records each, and the file that is being written.
    assert_eq!(removed, [2 * bytes, 2 * bytes, 2 * bytes, bytes]);
}
