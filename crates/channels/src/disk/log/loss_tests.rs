//! Missing batches are reported with their positions until an operator accepts the loss, and intact batches are read.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millstream_record::{Pool, Position};
use millstream_sys::disk::{Disk, Open};
use millstream_testkit::{Crash, SimulatedDisk};

use super::{
    Behind, ChannelId, Log, Loss, Missing, Recovered, Sync, Then,
    inspect::{self, Directory, Seen, Span},
    segment::segment_name,
    tests::{at, drain, keep, names, open, options, reader},
};

const HERE: &str = "/data/channels/buffer";

/// A disk with a channel in a data_dir.
struct Place {
    disk: SimulatedDisk,
    directory: PathBuf,
}

impl Place {
    fn new() -> Self {
        let disk = SimulatedDisk::new(1);
        disk.create_directory(Path::new("/data")).unwrap();
        disk.create_directory(Path::new("/data/channels")).unwrap();
        disk.sync_directory(Path::new("/")).unwrap();
        disk.sync_directory(Path::new("/data")).unwrap();
        Self {
            disk,
            directory: HERE.into(),
        }
    }

    fn open_as(&self, id: u8) -> (Log, Recovered) {
        let disk = Arc::new(self.disk.clone());
        Log::open(
            disk,
            &self.directory,
            options(Sync::Batch),
            ChannelId([id; 16]),
        )
        .unwrap()
    }

    /// Opens the channel again. The id 9 is for a new channel only; an existing one keeps the id that it was created with (1).
    fn open(&self) -> (Log, Recovered) {
        self.open_as(9)
    }

    /// A channel with 60 batches in several segments. Its consumer has settled the first 10. The channel was stopped (`clean`) or killed.
    fn filled(clean: bool) -> Self {
        let place = Self::new();
        let (mut log, found) = place.open_as(1);
        assert_eq!((found.losses.len(), found.damage.len()), (0, 0));
        let mut sink = reader(&log, Behind::default());
        keep(&mut log, 0..60).unwrap();
        sink.commit(position(10)).unwrap();
        drop(sink);
        match clean {
            true => log.close(at(60)).unwrap(),
            false => {
                drop(log);
                place.disk.restart(Crash::Kill);
            }
        }
        place
    }

    fn segments(&self) -> Vec<PathBuf> {
        let names = self.disk.list(&self.directory).unwrap();
        let paths = names.iter().map(|name| self.directory.join(name));
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "seg"))
            .collect()
    }

    /// The losses that `millstream channel verify` finds.
    fn verified(&self) -> Vec<Loss> {
        if let Some(gone) = inspect::gone(&self.disk, &self.directory).unwrap() {
            return vec![gone];
        }
        let directory = Directory::open(&self.disk, &self.directory).unwrap();
        let mut span = Span::default();
        for seen in directory.read(Position::default()) {
            if let Seen::Frame(frame) = seen.unwrap() {
                span.see(frame.position);
            }
        }
        directory
            .missing(&self.disk, &self.directory, &span)
            .unwrap()
    }

    /// Checks that exactly one loss is reported: of the kind `missing`, with every seq above `after` up to `to`. `verify` and every start
    /// must report it until an operator accepts it, even if more batches are kept in between. Also checks that a sink reads exactly the
    /// batches whose numbers are in `left`.
    fn misses(&self, missing: Missing, after: u64, to: u64, left: &[u64]) {
        let seqs = |losses: &[Loss]| -> Vec<(Missing, u64, u64)> {
            let losses = losses.iter();
            losses
                .map(|loss| (loss.missing, loss.after.seq, loss.to.seq))
                .collect()
        };
        let expected = [(missing, after, to)];
        assert_eq!(seqs(&self.verified()), expected, "verify");
        let (mut log, found) = self.open();
        assert_eq!(seqs(&found.losses), expected, "start");
        assert_eq!(found.losses[0].records, to - after, "one record each");
        let mut sink = reader(&log, Behind::default());
        assert_eq!(drain(&mut sink).0, left);
        // More batches are kept and settled, and the channel is stopped: the loss is not forgotten.
        for next in (100..160).step_by(5) {
            sink.commit(sink.position()).unwrap();
            keep(&mut log, next..next + 5).unwrap();
            assert_eq!(drain(&mut sink).0, numbers(next..next + 5));
        }
        sink.commit(sink.position()).unwrap();
        log.commit(at(160)).unwrap();
        drop(sink);
        log.close(at(160)).unwrap();
        let (log, found) = self.open();
        assert_eq!(seqs(&found.losses), expected, "the next start");
        drop(log);
        let accepted =
            inspect::accept_losses(Arc::new(self.disk.clone()), &self.directory).unwrap();
        assert_eq!(seqs(&accepted), expected, "accepted");
        for _ in 0..2 {
            let (log, found) = self.open();
            assert_eq!(found.losses, [], "it was accepted");
            drop(log);
            let found = self.verified();
            let disk = Arc::new(self.disk.clone());
            assert_eq!(
                inspect::unaccepted(disk, &self.directory, found).unwrap(),
                []
            );
        }
    }
}

fn position(seq: u64) -> Position {
    Position { epoch: 1, seq }
}

fn numbers(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

/// The first seq of each segment.
fn firsts(place: &Place) -> Vec<u64> {
    let directory = Directory::open(&place.disk, &place.directory).unwrap();
    directory
        .segments
        .iter()
        .map(|found| found.first.seq)
        .collect()
}

#[test]
fn nothing_is_missing_after_a_stop_or_a_kill() {
    for clean in [true, false] {
        let place = Place::filled(clean);
        assert_eq!(place.verified(), []);
        let (log, found) = place.open();
        assert_eq!((found.losses, found.damage), (vec![], vec![]));
        drop(log);
        // When the directory of a channel is renamed, the channel's record file stays behind under the old name. This is not a loss,
        // even if a new channel takes the old name.
        let renamed = Place {
            disk: place.disk.clone(),
            directory: "/data/channels/renamed".into(),
        };
        renamed.disk.create_directory(&renamed.directory).unwrap();
        for name in place.disk.list(&place.directory).unwrap() {
            let (from, to) = (place.directory.join(&name), renamed.directory.join(&name));
            place.disk.rename(&from, &to).unwrap();
        }
        let (log, found) = renamed.open();
        assert_eq!(found.losses, []);
        assert_eq!(
            drain(&mut reader(&log, Behind::default())).0,
            numbers(10..60)
        );
        let (_log, found) = place.open_as(2);
        assert_eq!(found.losses, []);
    }
}

#[test]
fn a_missing_directory_is_reported() {
    for clean in [true, false] {
        let place = Place::filled(clean);
        for name in place.disk.list(&place.directory).unwrap() {
            place.disk.remove(&place.directory.join(name)).unwrap();
        }
        if clean {
            place.misses(Missing::Directory, 10, 60, &[]);
        } else {
            // After a kill, the record file does not know what was settled since the start, so the loss begins before batch 10.
            let (_log, found) = place.open_as(2);
            assert_eq!(found.losses.len(), 1);
            assert_eq!(found.losses[0].missing, Missing::Directory);
            assert!(found.losses[0].to.seq > 40, "{:?}", found.losses);
        }
    }
}

#[test]
fn a_missing_segment_is_reported_wherever_it_was() {
    for clean in [true, false] {
        let place = Place::filled(clean);
        let (segments, firsts) = (place.segments(), firsts(&place));
        assert!(segments.len() >= 5, "{segments:?}");
        // The oldest segment that is still needed holds the first unsettled batch: number 10, counted from 0, which has seq 11.
        let oldest = firsts.iter().rposition(|first| *first <= 11).unwrap();
        place.disk.remove(&segments[oldest]).unwrap();
        let behind = firsts[oldest + 1] - 1;
        if oldest == 0 {
            place.misses(Missing::Oldest, 10, behind, &numbers(behind..60));
        } else {
            place.misses(Missing::Middle, 10, behind, &numbers(behind..60));
        }

        let place = Place::filled(clean);
        let (middle, end) = (firsts[3] - 1, firsts[4] - 1);
        place.disk.remove(&segments[3]).unwrap();
        let left = [numbers(10..middle), numbers(end..60)].concat();
        place.misses(Missing::Middle, middle, end, &left);
    }
    let place = Place::filled(true);
    let segments = place.segments();
    let last = firsts(&place).last().unwrap() - 1;
    place.disk.remove(segments.last().unwrap()).unwrap();
    place.misses(Missing::Newest, last, 60, &numbers(10..last));
}

#[test]
fn a_newest_segment_that_was_cut_or_zeroed_after_a_clean_stop_is_reported() {
    let intact = Place::filled(true);
    let last = firsts(&intact).last().unwrap() - 1;
    for cut in [100, 4000, 4096, 4096 + 500] {
        let place = Place::filled(true);
        let path = place.segments().pop().unwrap();
        let file = place.disk.open(&path, Open::Write).unwrap();
        file.truncate(cut).unwrap();
        drop(file);
        if cut == 100 {
            // 100 bytes are enough for the header of the segment (80 bytes), but not for a frame. So the segment is valid and empty, and
            // the log ends where this segment begins.
            assert_eq!(place.open().1.kept.seq, last);
        }
        place.misses(Missing::Newest, last, 60, &numbers(10..last));
    }
    let place = Place::filled(true);
    let path = place.segments().pop().unwrap();
    let file = place.disk.open(&path, Open::Write).unwrap();
    let zeros = vec![0; file.metadata().unwrap().len as usize];
    file.write_at(&[IoSlice::new(&zeros)], 0).unwrap();
    drop(file);
    place.misses(Missing::Newest, last, 60, &numbers(10..last));
    let aside = path.with_extension("bad");
    assert!(place.disk.metadata(&aside).is_ok(), "it is renamed to .bad");
}

#[test]
fn a_closed_segment_that_was_cut_is_reported() {
    let place = Place::filled(true);
    let firsts = firsts(&place);
    let path = place.segments().remove(3);
    let file = place.disk.open(&path, Open::Write).unwrap();
    file.truncate(4096 + 1500).unwrap();
    drop(file);
    // One batch in the segment is complete.
    let (after, to) = (firsts[3], firsts[4] - 1);
    let left = [numbers(10..after), numbers(to..60)].concat();
    place.misses(Missing::Middle, after, to, &left);
}

#[test]
fn swapped_segments_get_their_names_back_and_a_copy_is_renamed_to_bad() {
    let place = Place::filled(true);
    let segments = place.segments();
    let (one, two) = (&segments[1], &segments[4]);
    let aside = place.directory.join("aside");
    place.disk.rename(one, &aside).unwrap();
    place.disk.rename(two, one).unwrap();
    place.disk.rename(&aside, two).unwrap();
    assert_eq!(place.verified(), []);
    let (log, found) = place.open();
    assert_eq!(found.losses, []);
    assert_eq!(found.damage.len(), 2, "{:?}", found.damage);
    assert_eq!(
        drain(&mut reader(&log, Behind::default())).0,
        numbers(10..60)
    );
    drop(log);

    // Add a stale copy of the third segment under an unused name.
    let third = place.disk.open(&segments[2], Open::Read).unwrap();
    let mut bytes = Vec::new();
    third.read_at(&mut bytes, 1 << 20, 0).unwrap();
    let copy = place.directory.join(segment_name(99));
    let file = place.disk.open(&copy, Open::Create).unwrap();
    file.write_at(&[IoSlice::new(&bytes)], 0).unwrap();
    drop((file, third));
    let (log, found) = place.open();
    assert_eq!((found.losses.len(), found.damage.len()), (0, 1));
    assert_eq!(
        drain(&mut reader(&log, Behind::default())).0,
        numbers(10..60)
    );
    let kept = place.disk.list(&place.directory).unwrap();
    let bad = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".bad");
    assert_eq!(kept.iter().filter(|name| bad(name)).count(), 1);
}

#[test]
fn a_cursor_beyond_the_end_is_reported_and_no_position_is_used_twice() {
    let place = Place::filled(false);
    let (log, _) = place.open();
    let mut sink = reader(&log, Behind::default());
    sink.commit(position(70)).unwrap();
    drop((log, sink));
    assert_eq!(place.verified()[0].missing, Missing::Newest);
    let (mut log, found) = place.open();
    assert_eq!(
        (found.losses[0].after.seq, found.losses[0].to.seq),
        (60, 70)
    );
    let mut other = log
        .reader("other", Behind::default(), Pool::new(1 << 20))
        .unwrap();
    keep(&mut log, 60..61).unwrap();
    assert!(log.kept() > position(70));
    assert_eq!(drain(&mut other).0, numbers(0..61));
}

#[test]
fn skipped_batches_are_not_a_loss_at_the_next_start() {
    let place = Place::new();
    let behind = Behind {
        size: 0,
        age: Duration::ZERO,
        then: Then::Skip,
    };
    let (mut log, _) = place.open();
    let sink = reader(&log, behind);
    keep(&mut log, 0..400).unwrap();
    drop((log, sink));
    place.disk.restart(Crash::Power);
    assert_eq!(place.open().1.losses, []);
}

#[test]
fn the_id_of_a_channel_is_restored_from_its_record_file() {
    let place = Place::filled(true);
    place.disk.remove(&place.directory.join("channel")).unwrap();
    let (log, found) = place.open();
    assert_eq!(found.channel, ChannelId([1; 16]));
    assert_eq!(found.losses, []);
    assert_eq!(
        drain(&mut reader(&log, Behind::default())).0,
        numbers(10..60)
    );
}

#[test]
fn a_channel_outside_of_a_data_dir_has_its_record_file_beside_its_directory() {
    let disk = SimulatedDisk::new(1);
    drop(open(&disk));
    let beside = disk.list(Path::new("/")).unwrap();
    assert_eq!(beside, ["c", "c.record"]);
    assert!(names(&disk).contains(&"channel".to_owned()));
}
