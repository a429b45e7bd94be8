//! The log as a whole: what is kept, read, settled, skipped and recovered.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use millstream_pipeline::tags::TagFilter;
use millstream_record::{Batch, ChunkOrigin, Encoding, Origin, Pool, Position, Tag, Time, Values};
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::{Call, Crash, SimulatedDisk};

use super::{
    Behind, ChannelId, Error, Item, Log, Lost, Options, Reader, Skipped, Sync, Then,
    directory::{LogDirectory, take_lock},
    inspect::{self, Directory, Seen},
    unsettled,
};

pub(super) const SEGMENT: u64 = 16 << 10;
pub(super) const DIRECTORY: &str = "/c";

pub(super) fn options(sync: Sync) -> Options {
    Options {
        sync,
        size_max: 10 * SEGMENT,
        segment_bytes: SEGMENT,
        hot_bytes: 0,
        ..Options::default()
    }
}

pub(super) fn open(disk: &SimulatedDisk) -> Log {
    open_with(disk, options(Sync::Batch))
}

pub(super) fn open_with(disk: &SimulatedDisk, options: Options) -> Log {
    let disk = Arc::new(disk.clone());
    let opened = Log::open(disk, Path::new(DIRECTORY), options, ChannelId([1; 16]));
    opened.unwrap().0
}

pub(super) fn reader(log: &Log, behind: Behind) -> Reader {
    log.reader("sink", behind, Pool::new(1 << 20)).unwrap()
}

pub(super) fn batch(number: u64, bytes: usize) -> Batch {
    let mut body = format!("{number:08}").into_bytes();
    body.resize(bytes, b'.');
    let origin = ChunkOrigin {
        id: Bytes::from(format!("\u{18}{number:024}").into_bytes()),
        tag: Tag::from("t"),
        connection: 1,
        length: bytes as u32,
        checksum: 7,
        start: 0,
        end: bytes as u32,
        records: 1,
    };
    let id = Bytes::from([&[0xb8][..], &origin.id[1..]].concat());
    Batch {
        tag: Tag::from("t"),
        plain: false,
        encoding: Encoding::Lines,
        body: Bytes::from(body),
        count: 1,
        received: Time(0),
        values: Arc::new(Values::new()),
        origins: vec![Origin::Chunk(ChunkOrigin { id, ..origin })],
    }
}

/// An empty channel directory, for tests of the parts of a log.
pub(super) fn directory(disk: &SimulatedDisk) -> LogDirectory {
    let path = Path::new(DIRECTORY);
    let lock = take_lock(disk, path).unwrap();
    LogDirectory {
        disk: Arc::new(disk.clone()),
        path: path.to_owned(),
        channel: ChannelId([1; 16]),
        lock,
    }
}

/// Copies a file from `testdata` to a simulated disk.
pub(super) fn put_golden(disk: &SimulatedDisk, path: &Path, name: &str) {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/disk/log/testdata");
    let bytes = std::fs::read(testdata.join(name)).unwrap();
    let file = disk.open(path, Open::Create).unwrap();
    file.write_at(&[IoSlice::new(&bytes)], 0).unwrap();
}

/// Keeps the batches with these numbers, one commit per batch.
pub(super) fn keep(log: &mut Log, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    for number in numbers {
        log.append(vec![batch(number, 1000)], at(number)).unwrap();
        log.commit(at(number))?;
    }
    Ok(())
}

/// The keep time of batch `number`: there is one batch per second.
pub(super) fn at(number: u64) -> Time {
    Time::from_parts(1_000_000 + number as i64, 0)
}

/// Reads to the end. Returns the numbers of the batches, and the gaps.
pub(super) fn drain(reader: &mut Reader) -> (Vec<u64>, Vec<Lost>) {
    let (mut numbers, mut lost) = (Vec::new(), Vec::new());
    while let Some(item) = reader.read().unwrap() {
        match item {
            Item::Batch(_, batch) => {
                let digits = std::str::from_utf8(&batch.body[..8]).unwrap();
                numbers.push(digits.parse().unwrap());
            }
            Item::Lost(gap) => lost.push(gap),
        }
    }
    (numbers, lost)
}

pub(super) fn names(disk: &SimulatedDisk) -> Vec<String> {
    let names = disk.list(Path::new(DIRECTORY)).unwrap();
    names
        .into_iter()
        .map(|n| n.into_string().unwrap())
        .collect()
}

#[test]
fn unsettled_batches_are_read_again_after_a_restart_and_settled_segments_are_reused() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut first = reader(&log, Behind::default());
    for round in 0..20 {
        keep(&mut log, round * 10..round * 10 + 10).unwrap();
        assert_eq!(
            drain(&mut first).0,
            (round * 10..round * 10 + 10).collect::<Vec<_>>()
        );
        let position = first.position();
        first.commit(position).unwrap();
    }
    let files = names(&disk).iter().filter(|n| n.ends_with(".seg")).count();
    assert!(files <= 4, "{:?}", names(&disk));
    keep(&mut log, 200..205).unwrap();
    drop((log, first));
    let log = open(&disk);
    assert_eq!(
        drain(&mut reader(&log, Behind::default())).0,
        (200..205).collect::<Vec<_>>()
    );
}

#[test]
fn the_age_of_a_backlog_is_known_until_its_consumer_takes_it() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    assert_eq!(log.oldest_of("sink"), None);
    keep(&mut log, 0..10).unwrap();
    let oldest = log.oldest_of("sink").unwrap();
    assert!(oldest <= at(0), "{oldest:?}");
    // After the reader has handed out the batches, the log no longer reports their age: the pipeline knows it exactly.
    assert_eq!(drain(&mut sink).0.len(), 10);
    assert_eq!(log.oldest_of("sink"), None);
    sink.commit(sink.position()).unwrap();
    assert_eq!(log.oldest_of("sink"), None);
    assert_eq!(log.oldest_of("other"), None);
}

#[test]
fn the_age_of_a_backlog_that_is_no_longer_in_memory_is_exact() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    // Ten batches in one segment, one per minute.
    for number in 0..10 {
        let received = at(60 * number);
        let one = Batch {
            received,
            ..batch(number, 1000)
        };
        log.append(vec![one], received).unwrap();
        log.commit(received).unwrap();
    }
    for settled in 0..10 {
        // The sink has failed with some batches settled, and takes the rest again.
        assert_eq!(log.oldest_of("sink"), Some(at(60 * settled)), "{settled}");
        assert_eq!(drain(&mut sink).0.len() as u64, 10 - settled);
        sink.commit(Position {
            epoch: 1,
            seq: settled + 1,
        })
        .unwrap();
        sink.restart();
    }
    assert_eq!(log.oldest_of("sink"), None);
}

#[test]
fn a_full_channel_waits_for_its_consumer() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut reader = reader(&log, Behind::default());
    let error = keep(&mut log, 0..200).unwrap_err();
    assert!(
        matches!(&error, Error::Full { consumer: Some(name), .. } if name == "sink"),
        "{error}"
    );
    let kept = log.kept().seq;
    assert_eq!(drain(&mut reader).0.len() as u64, kept);
    reader.commit(reader.position()).unwrap();
    log.commit(at(200)).unwrap();
    assert_eq!(drain(&mut reader).0, [kept]);
}

#[test]
fn a_program_that_is_killed_repeatedly_does_not_fill_its_channel_with_empty_segments() {
    let disk = SimulatedDisk::new(1);
    let options = Options {
        size_max: 10 * 16 * SEGMENT,
        segment_bytes: 16 * SEGMENT,
        ..options(Sync::Batch)
    };
    // There is space for ten segments, and each of thirty starts opens a new one.
    for start in 0..30 {
        let mut log = open_with(&disk, options);
        drop(reader(&log, Behind::default()));
        keep(&mut log, start..start + 1).unwrap();
    }
    let log = open_with(&disk, options);
    assert_eq!(
        drain(&mut reader(&log, Behind::default())),
        ((0..30).collect::<Vec<_>>(), Vec::new())
    );
}

#[test]
fn a_consumer_that_may_skip_loses_the_oldest_batches_and_they_are_counted() {
    let disk = SimulatedDisk::new(1);
    for behind in [
        Behind {
            size: 3 * SEGMENT,
            age: Duration::ZERO,
            then: Then::Skip,
        },
        Behind {
            size: 0,
            age: Duration::from_secs(40),
            then: Then::Skip,
        },
        Behind {
            size: 0,
            age: Duration::ZERO,
            then: Then::Skip,
        },
    ] {
        let mut log = open(&disk);
        let mut reader = reader(&log, behind);
        let before = log.kept().seq;
        keep(&mut log, before..before + 400).unwrap();
        let (numbers, lost) = drain(&mut reader);
        assert_eq!(
            numbers.last(),
            Some(&(before + 399)),
            "the newest batches are still there"
        );
        assert_eq!(
            numbers.len() as u64,
            numbers.last().unwrap() - numbers[0] + 1
        );
        assert_eq!(lost, [], "skipped batches are counted, and are not a gap");
        let few = numbers.len();
        let records = 400 - few as u64;
        let bytes = records * 1000;
        assert_eq!(log.skipped("sink"), Skipped { records, bytes });
        match (behind.size, behind.age.as_secs()) {
            (0, 0) => assert!((60..150).contains(&few), "{few}"),
            _ => assert!((20..80).contains(&few), "{few}"),
        }
        reader.commit(reader.position()).unwrap();
        drop(reader);
        log.close(at(1000)).unwrap();
    }
}

#[test]
fn a_consumer_that_is_too_far_behind_blocks_the_sources() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let behind = Behind {
        size: 2 * SEGMENT,
        age: Duration::ZERO,
        then: Then::Block,
    };
    let _reader = reader(&log, behind);
    let error = keep(&mut log, 0..200).unwrap_err();
    assert!(error.is_for_now() && log.kept().seq < 50, "{error}");
}

#[test]
fn damage_is_reported_and_skipped_and_the_segment_is_renamed_to_bad() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..60).unwrap();
    let damaged = PathBuf::from(format!("{DIRECTORY}/0000000002.seg"));
    assert!(disk.damage(&damaged, 4096 + 3000));
    let (numbers, lost) = drain(&mut sink);
    assert_eq!((numbers.len(), lost.len()), (59, 1), "{lost:?}");
    assert_eq!(lost[0].damaged.as_ref(), Some(&damaged));
    assert_eq!(lost[0].before.seq - lost[0].after.seq, 2);
    sink.commit(sink.position()).unwrap();
    log.commit(at(60)).unwrap();
    assert!(
        names(&disk).contains(&"0000000002.bad".to_owned()),
        "{:?}",
        names(&disk)
    );
}

#[test]
fn damage_below_the_last_synced_end_is_not_a_torn_tail() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    keep(&mut log, 0..8).unwrap();
    drop(log);
    disk.restart(Crash::Kill);
    let path = PathBuf::from(format!("{DIRECTORY}/0000000001.seg"));
    assert!(disk.damage(&path, 4096 + 3000));
    let (log, recovered) = Log::open(
        Arc::new(disk.clone()),
        Path::new(DIRECTORY),
        options(Sync::Batch),
        ChannelId([9; 16]),
    )
    .unwrap();
    assert_eq!((recovered.kept.seq, recovered.epoch), (8, 2));
    assert_eq!(recovered.damage.len(), 1);
    let (numbers, lost) = drain(&mut reader(&log, Behind::default()));
    assert_eq!((numbers.len(), lost.len()), (7, 1));
}

#[test]
fn chunk_ids_outlive_their_segments_and_restarts() {
    let disk = SimulatedDisk::new(1);
    for round in 0..3 {
        let mut log = open(&disk);
        let mut sink = reader(&log, Behind::default());
        if round == 0 {
            for some in 0..20 {
                keep(&mut log, some * 10..some * 10 + 10).unwrap();
                drain(&mut sink);
                sink.commit(sink.position()).unwrap();
            }
        }
        for number in 0..200 {
            let seq = log.append(vec![batch(number, 1000)], at(300)).unwrap();
            assert_eq!(seq, 0, "round {round}: {number} is kept already");
        }
        assert_eq!(log.repeats(), 200);
        drop((log, sink));
        disk.restart(Crash::Power);
    }
}

#[test]
fn a_group_that_is_larger_than_a_segment_gets_a_larger_one() {
    let disk = SimulatedDisk::new(1);
    let larger = Options {
        size_max: 20 * SEGMENT,
        ..options(Sync::Batch)
    };
    let mut log = open_with(&disk, larger);
    let mut sink = reader(&log, Behind::default());
    let group = (0..5).map(|number| batch(number, 20_000)).collect();
    log.append(group, at(0)).unwrap();
    log.commit(at(0)).unwrap();
    keep(&mut log, 5..20).unwrap();
    assert_eq!(drain(&mut sink).0, (0..20).collect::<Vec<_>>());
    let huge = vec![Batch {
        body: Bytes::from(vec![0; (1 << 30) + 1]),
        ..batch(0, 8)
    }];
    assert!(matches!(
        log.append(huge, at(0)),
        Err(Error::TooLarge { .. })
    ));
}

#[test]
fn batches_kept_without_a_sync_are_read_back_when_the_sync_fails() {
    let disk = SimulatedDisk::new(1);
    let mut log = open_with(&disk, options(Sync::Every(Duration::from_secs(3600))));
    keep(&mut log, 0..5).unwrap();
    disk.fail(Call::Sync, 1, 5);
    log.sync().unwrap();
    assert_eq!(log.drain_lost(), []);
    drop(log);
    disk.restart(Crash::Power);
    let log = open(&disk);
    assert_eq!(
        drain(&mut reader(&log, Behind::default())).0,
        [0, 1, 2, 3, 4]
    );
}

#[test]
fn a_second_process_cannot_open_the_channel() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    keep(&mut log, 0..1).unwrap();
    let again = |options| {
        let opened = Log::open(
            Arc::new(disk.clone()),
            Path::new(DIRECTORY),
            options,
            ChannelId([1; 16]),
        );
        opened.map(|_| ()).unwrap_err()
    };
    assert!(matches!(again(options(Sync::Batch)), Error::Locked(_)));
    let _sink = reader(&log, Behind::default());
    drop(log);
    assert!(
        matches!(again(options(Sync::Batch)), Error::Locked(_)),
        "a reader still writes its cursor"
    );
}

/// A file with one flipped bit in its version must not look like the file of a newer program.
#[test]
fn a_flipped_version_is_damage_and_does_not_prevent_a_start() {
    for name in ["0000000001.seg", "sink.cursor", "channel"] {
        let disk = SimulatedDisk::new(1);
        let mut log = open(&disk);
        drop(reader(&log, Behind::default()));
        keep(&mut log, 0..3).unwrap();
        log.close(at(3)).unwrap();
        // The version follows the magic.
        assert!(disk.damage(&Path::new("/c").join(name), 8));
        let log = open(&disk);
        let mut sink = reader(&log, Behind::default());
        assert_eq!(drain(&mut sink).0, [0, 1, 2], "{name}");
    }
}

#[test]
fn a_consumer_without_a_reader_holds_its_data_until_it_is_forgotten() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    drop(reader(&log, Behind::default()));
    assert!(keep(&mut log, 0..200).unwrap_err().is_for_now());
    assert_eq!(log.consumers().len(), 1);
    log.forget("sink").unwrap();
    assert!(matches!(log.forget("sink"), Err(Error::Consumer(_))));
    let mut other = log
        .reader("other", Behind::default(), Pool::new(1 << 20))
        .unwrap();
    let numbers = drain(&mut other).0;
    assert_eq!(numbers[0], 0, "a new consumer begins at the oldest");
    other.commit(other.position()).unwrap();
    log.commit(at(200)).unwrap();
    assert!(log.reader("../x", Behind::default(), Pool::new(1)).is_err());
}

#[test]
fn the_position_of_a_sink_wins_over_the_cursor() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..20).unwrap();
    drain(&mut sink);
    sink.commit(Position { epoch: 1, seq: 10 }).unwrap();
    sink.seek(Position { epoch: 1, seq: 15 });
    assert_eq!(drain(&mut sink).0, [15, 16, 17, 18, 19]);
    sink.seek(Position { epoch: 1, seq: 4 });
    assert_eq!(drain(&mut sink).0[0], 4);
}

/// When the channel is full, the oldest batches are skipped for the consumer.
const SKIP: Behind = Behind {
    size: 0,
    age: Duration::ZERO,
    then: Then::Skip,
};

fn next_number(reader: &mut Reader) -> Option<u64> {
    match reader.read().unwrap()? {
        Item::Batch(_, batch) => std::str::from_utf8(&batch.body[..8]).unwrap().parse().ok(),
        Item::Lost(gap) => panic!("{gap:?}"),
    }
}

#[test]
fn a_consumer_moves_past_records_durably_or_not_at_all() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    keep(&mut log, 0..60).unwrap();
    assert_eq!(next_number(&mut sink), Some(0));
    let (kept, to) = (sink.kept(), Position { epoch: 1, seq: 30 });
    let unsettled = unsettled(&log.watch(), ChannelId([1; 16]), "sink", to);
    assert_eq!(unsettled.records, 30, "with the one in flight");
    let beyond = log.skip_to("sink", kept.next());
    assert!(matches!(beyond, Err(Error::NotKept { .. })));
    let unknown = log.skip_to("other", to);
    assert!(matches!(unknown, Err(Error::Consumer(_))));
    disk.fail(Call::Write, 1, 5);
    log.skip_to("sink", to).unwrap_err();
    sink.restart();
    assert_eq!(next_number(&mut sink), Some(0), "it did not move");
    log.skip_to("sink", to).unwrap();
    // The sink has stored an earlier position, or none.
    for own in [Some(Position { epoch: 1, seq: 5 }), None] {
        match own {
            Some(own) => sink.seek(own),
            None => sink.restart(),
        }
        assert_eq!(next_number(&mut sink), Some(30));
    }
    drop((log, sink));
    disk.restart(Crash::Power);
    let log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    sink.seek(Position { epoch: 1, seq: 5 });
    assert_eq!(next_number(&mut sink), Some(30));
}

#[test]
fn a_segment_is_skipped_durably_or_not_at_all() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, SKIP);
    keep(&mut log, 0..60).unwrap();
    let position = |log: &Log| log.index.lock().consumers.get("sink").unwrap().position;
    let before = position(&log);
    disk.fail(Call::Write, 1, 28);
    super::skip::skip_segment(&log.index, &log.directory, "sink").unwrap_err();
    assert_eq!(position(&log), before, "the cursor on disk did not move");
    assert_eq!(next_number(&mut sink), Some(0));
    assert!(super::skip::skip_segment(&log.index, &log.directory, "sink").unwrap());
    assert!(position(&log) > before);
}

/// A sink that stops in the middle of a segment has unsettled batches, and its reader has read ahead.
#[test]
fn batches_that_a_sink_holds_are_skipped_only_if_it_gives_them_back() {
    // `None`: the sink commits the batches. `Some`: it gives them back, and has stored this position (`Some(None)`: no
    // position).
    for gives_back in [None, Some(Some(0)), Some(None), Some(Some(2))] {
        let disk = SimulatedDisk::new(1);
        let mut log = open(&disk);
        let mut sink = reader(&log, SKIP);
        keep(&mut log, 0..12).unwrap();
        let taken: Vec<_> = (0..5).map(|_| next_number(&mut sink).unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        let held = sink.position();
        keep(&mut log, 12..400).unwrap();
        let mut delivered = 0;
        match gives_back {
            Some(Some(done)) => {
                sink.seek(Position {
                    epoch: 1,
                    seq: done,
                });
                delivered += done;
            }
            Some(None) => sink.restart(),
            None => {
                sink.commit(held).unwrap();
                delivered += 5;
            }
        }
        let (numbers, lost) = drain(&mut sink);
        assert_eq!(lost, []);
        assert_eq!(numbers.last(), Some(&399));
        delivered += numbers.len() as u64;
        let records = 400 - delivered;
        let bytes = records * 1000;
        assert_eq!(log.skipped("sink"), Skipped { records, bytes });
        // A restart skips the same batches, because the cursor was moved before the segments were released.
        drop((log, sink));
        let log = open(&disk);
        let mut sink = reader(&log, SKIP);
        sink.seek(Position::default());
        assert_eq!(drain(&mut sink), (numbers, Vec::new()));
    }
}

#[test]
fn a_consumer_that_skips_has_caught_up_when_it_settles_again_and_is_close() {
    let disk = SimulatedDisk::new(1);
    // The segments are large, so that the reserve at the end of each is a small part of it.
    let options = Options {
        size_max: 10 * 16 * SEGMENT,
        segment_bytes: 16 * SEGMENT,
        ..options(Sync::Batch)
    };
    let mut log = open_with(&disk, options);
    let mut sink = reader(&log, SKIP);
    keep(&mut log, 0..4000).unwrap();
    assert!(!log.has_caught_up("sink", at(4000)));
    next_number(&mut sink).unwrap();
    sink.commit(sink.position()).unwrap();
    assert!(!log.has_caught_up("sink", at(4000)), "it is far behind");
    drain(&mut sink);
    sink.commit(sink.position()).unwrap();
    assert!(log.has_caught_up("sink", at(4000)));
}

#[test]
fn batches_with_other_tags_do_not_count_as_skipped() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let filter = TagFilter::new(["web.**"]).unwrap();
    let mut sink = reader(&log, SKIP).with_tags(Some(filter));
    for number in 0..400 {
        let mut batch = batch(number, 1000);
        batch.tag = Tag::from(["t", "web"][number as usize % 2]);
        log.append(vec![batch], at(number)).unwrap();
        log.commit(at(number)).unwrap();
    }
    let (numbers, _) = drain(&mut sink);
    let taken = numbers.iter().filter(|number| *number % 2 == 1).count();
    let records = 200 - taken as u64;
    let bytes = records * 1000;
    assert_eq!(log.skipped("sink"), Skipped { records, bytes });
}

#[test]
fn an_operator_lists_reads_and_skips_batches_and_sees_damage() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    drop(reader(&log, Behind::default()));
    keep(&mut log, 0..30).unwrap();
    log.close(at(30)).unwrap();
    let directory = Directory::open(&disk, Path::new(DIRECTORY)).unwrap();
    assert_eq!(
        directory.consumers,
        [("sink".to_owned(), Some(Position::default()))]
    );
    assert!(directory.segments.len() > 2);
    let mut frames = 0;
    for seen in directory.read(Position { epoch: 1, seq: 10 }) {
        match seen.unwrap() {
            Seen::Frame(frame) => frames += usize::from(frame.position.seq > 10),
            Seen::End { torn_bytes, clean } => assert!(torn_bytes == 0 && clean),
            Seen::Damage(damage) => panic!("{damage:?}"),
        }
    }
    assert_eq!(frames, 20);
    let to = Position { epoch: 1, seq: 25 };
    let passed = inspect::skip::<Error>(&disk, Path::new(DIRECTORY), "sink", to, |_| Ok(()));
    assert_eq!(passed.unwrap(), 25);
    let log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    assert_eq!(drain(&mut sink).0, [25, 26, 27, 28, 29]);
    drop((sink, log));
    a_sink_cannot_resume_before_a_skip(&disk);
    assert!(disk.damage(&directory.segments[0].path, 4096 + 3000));
    let seen: Vec<_> = directory
        .read(Position::default())
        .map(Result::unwrap)
        .collect();
    let damage = seen.iter().filter(|seen| matches!(seen, Seen::Damage(_)));
    assert_eq!((damage.count(), seen.len()), (1, 29 + 1 + 1));
}

#[test]
fn an_operator_finds_positions() {
    let disk = SimulatedDisk::new(1);
    let directory = || Directory::open(&disk, Path::new(DIRECTORY));
    assert!(matches!(directory(), Err(Error::NoChannel(_))));
    let log = open(&disk);
    drop(reader(&log, Behind::default()));
    drop(log);
    assert_eq!(directory().unwrap().span().unwrap(), None);
    // The log is dropped without a clean stop, so the next start begins a new epoch.
    keep(&mut open(&disk), 0..20).unwrap();
    let mut log = open(&disk);
    keep(&mut log, 20..40).unwrap();
    log.close(at(40)).unwrap();
    let directory = directory().unwrap();
    let position = |epoch, seq| Position { epoch, seq };
    let (first, last) = (position(1, 1), position(2, 40));
    assert_eq!(directory.span().unwrap(), Some((first, last)));
    for (asked, before, behind) in [
        (position(0, 9), None, Some(first)),
        (
            position(1, 17),
            Some(position(1, 17)),
            Some(position(1, 18)),
        ),
        (
            position(1, 21),
            Some(position(1, 20)),
            Some(position(2, 21)),
        ),
        (position(2, 7), Some(position(1, 20)), Some(position(2, 21))),
        (position(2, 80), Some(last), None),
        (position(3, 1), Some(last), None),
    ] {
        assert_eq!(
            directory.around(asked).unwrap(),
            (before, behind),
            "{asked}"
        );
    }
}

#[test]
fn a_consumer_can_be_forgotten_when_no_sink_reads_for_it() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    drop(reader(&log, Behind::default()));
    keep(&mut log, 0..5).unwrap();
    log.note_unread();
    log.close(at(5)).unwrap();
    let forget = |name, force| inspect::forget(&disk, Path::new(DIRECTORY), name, force);
    match forget("other", true) {
        Err(Error::UnknownConsumer { known, .. }) => assert_eq!(known, ["sink"]),
        other => panic!("{other:?}"),
    }
    let log = open(&disk);
    let sink = reader(&log, Behind::default());
    log.note_unread();
    drop((log, sink));
    assert!(matches!(forget("sink", false), Err(Error::Configured(_))));
    let log = open(&disk);
    log.note_unread();
    drop(log);
    forget("sink", false).unwrap();
    drop(reader(&open(&disk), Behind::default()));
    forget("sink", true).unwrap();
}

/// Checks that a sink that has stored a position before the skip resumes after the skip.
fn a_sink_cannot_resume_before_a_skip(disk: &SimulatedDisk) {
    for (settled, next) in [(26, 25), (26, 26)] {
        let log = open(disk);
        let mut sink = reader(&log, Behind::default());
        sink.seek(Position { epoch: 1, seq: 4 });
        assert_eq!(drain(&mut sink).0[0], next);
        sink.commit(Position {
            epoch: 1,
            seq: settled,
        })
        .unwrap();
    }
}

/// A batch of several chunks, each with one byte in the body.
fn gathered(numbers: &[u64]) -> Batch {
    let mut origins = Vec::new();
    for (start, number) in (0..).zip(numbers) {
        let Some(Origin::Chunk(chunk)) = batch(*number, 8).origins.pop() else {
            unreachable!("it has one")
        };
        origins.push(Origin::Chunk(ChunkOrigin {
            start,
            end: start + 1,
            ..chunk
        }));
    }
    Batch {
        body: numbers.iter().map(|number| b'a' + *number as u8).collect(),
        count: numbers.len() as u32,
        origins,
        ..batch(0, 8)
    }
}

#[test]
fn only_the_repeats_are_cut_out_of_a_batch_of_several_chunks() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk);
    let mut sink = reader(&log, Behind::default());
    for numbers in [&[0, 2, 4][..], &[1, 2, 3, 3, 4, 5]] {
        log.append(vec![gathered(numbers)], at(0)).unwrap();
    }
    log.commit(at(0)).unwrap();
    let mut found = Vec::new();
    while let Some(Item::Batch(_, batch)) = sink.read().unwrap() {
        for origin in &batch.origins {
            let Origin::Chunk(chunk) = origin else {
                panic!("{origin:?}")
            };
            let number = batch.body[chunk.start as usize] - b'a';
            assert_eq!(chunk.end, chunk.start + 1);
            assert!(chunk.id.ends_with(format!("{number}").as_bytes()));
        }
        found.push((batch.body, batch.count));
    }
    assert_eq!(found, [(Bytes::from("ace"), 3), (Bytes::from("bdf"), 3)]);
    assert_eq!(log.repeats(), 3);
}

/// The bodies of all batches that a new consumer reads.
fn bodies(log: &Log) -> Vec<Bytes> {
    let pool = Pool::new(1 << 20);
    let mut reader = log.reader("all", Behind::default(), pool).unwrap();
    let mut found = Vec::new();
    while let Some(Item::Batch(_, batch)) = reader.read().unwrap() {
        found.push(batch.body);
    }
    found
}

#[test]
fn a_chunk_in_several_parts_is_kept_once_under_any_tags() {
    let disk = SimulatedDisk::new(1);
    let content = [b"\xd9\x20".as_slice(), &[b'a'; 32]].concat();
    // The group repeats chunk 2. The last two chunks are different ones with the same content, and their id is a hash of this content.
    let group = |tags: [&str; 2], connection| {
        let part = |tag: &str| {
            let mut part = gathered(&[1, 2, 2, 3, 3]);
            for origin in &mut part.origins {
                let Origin::Chunk(chunk) = origin else {
                    panic!("{origin:?}")
                };
                chunk.connection = connection;
                if chunk.start >= 3 {
                    chunk.id = content.clone().into();
                }
            }
            part.tag = tag.into();
            part
        };
        tags.map(part).to_vec()
    };
    let mut log = open(&disk);
    log.append(group(["t", "u"], 1), at(0)).unwrap();
    log.append(group(["v", "v"], 2), at(0)).unwrap();
    log.commit(at(0)).unwrap();
    // The connection 1 is not known to be broken, so the last chunks of the second group may be different ones with the same
    // content.
    let kept = ["bcdd", "bcdd", "dd", "dd"].map(Bytes::from);
    assert_eq!(bodies(&log), kept);
    drop(log);
    let mut log = open(&disk);
    log.append(group(["w", "t"], 3), at(0)).unwrap();
    log.commit(at(0)).unwrap();
    assert_eq!(bodies(&log), kept);
}

/// Copies files of `testdata` into a directory.
fn copy_golden(version: &str, names: &[&str], directory: &Path) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/disk/log/testdata");
    for name in names {
        std::fs::copy(golden.join(version).join(name), directory.join(name)).unwrap();
    }
}

/// `testdata/version-3` is a channel that has kept the chunk `PdjoG1yfRwmC9QbEo1eNzA==`, which arrived under the tag `t`.
#[test]
fn a_chunk_kept_in_format_version_3_is_recognized_as_a_repeat() {
    let directory = tempfile::tempdir().unwrap();
    copy_golden(
        "version-3",
        &["0000000001.seg", "channel"],
        directory.path(),
    );
    let disk = Arc::new(millstream_sys::disk::HostDisk);
    let options = options(Sync::Batch);
    let opened = Log::open(disk, directory.path(), options, ChannelId([1; 16]));
    let (mut log, recovered) = opened.unwrap();
    assert!(recovered.clean && recovered.damage.is_empty());
    let chunk = ChunkOrigin {
        id: Bytes::from_static(b"\xb8PdjoG1yfRwmC9QbEo1eNzA=="),
        tag: "t".into(),
        connection: 2,
        length: 10,
        checksum: 0x2503_0876,
        start: 0,
        end: 8,
        records: 1,
    };
    let again = |tag: &str, chunk| Batch {
        tag: tag.into(),
        origins: vec![Origin::Chunk(chunk)],
        ..batch(0, 8)
    };
    let other = ChunkOrigin {
        tag: "u".into(),
        ..chunk.clone()
    };
    log.append(vec![again("u", chunk)], at(0)).unwrap();
    assert_eq!(log.repeats(), 1);
    log.append(vec![again("t", other)], at(0)).unwrap();
    log.commit(at(0)).unwrap();
    assert_eq!((log.repeats(), bodies(&log).len()), (1, 2));
}

/// `testdata/version-1` is a channel of Millstream 0.1, whose frames had no receive time.
#[test]
fn a_channel_of_format_version_1_is_read_and_continues_in_version_4() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["0000000001.seg", "channel", "out.cursor"];
    copy_golden("version-1", &names, directory.path());
    let open = || {
        let disk = Arc::new(millstream_sys::disk::HostDisk);
        let options = options(Sync::Batch);
        Log::open(disk, directory.path(), options, ChannelId([1; 16])).unwrap()
    };
    let (mut log, recovered) = open();
    assert!(
        recovered.clean && recovered.damage.is_empty(),
        "{recovered:?}"
    );
    assert_eq!(recovered.kept, Position { epoch: 1, seq: 1 });
    let kept = Time(1795396052883141407);
    assert_eq!(log.keep_time(), kept);
    // A consumer that has settled nothing holds the old segment.
    drop(
        log.reader("new", Behind::default(), Pool::new(1 << 20))
            .unwrap(),
    );
    let new = Batch {
        received: Time(5),
        ..batch(1, 100)
    };
    log.append(vec![new], kept).unwrap();
    log.commit(kept).unwrap();
    log.close(kept).unwrap();
    let (log, recovered) = open();
    assert_eq!(recovered.kept, Position { epoch: 1, seq: 2 });
    let mut found = Vec::new();
    let mut reader = log
        .reader("new", Behind::default(), Pool::new(1 << 20))
        .unwrap();
    while let Some(Item::Batch(_, batch)) = reader.read().unwrap() {
        found.push((batch.received, batch.count));
    }
    // The old frame has only its keep time. The new one has its receive time, which does not depend on the keep clock.
    assert_eq!(found, [(kept, 2), (Time(5), 1)]);
    let segment = std::fs::read(directory.path().join("0000000002.seg")).unwrap();
    assert_eq!(segment[8..12], 4_u32.to_le_bytes());
}
