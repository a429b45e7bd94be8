//! Taps: samples of the records that pass a node, for a user who watches it.
//!
//! Batches pass a [`Point`] where they leave a source or a processor, enter a channel, reach a sink or are rejected. While no tap
//! is open, a point costs one relaxed load of an atomic per batch. While a [`Tap`] is open, the point copies records, up to the number
//! per second that the tap asks for. Each copy is cut at [`RECORD_BYTES_MAX`]. A point never waits. It skips records for which the
//! tap's queue has no space, and batches that arrive while another thread holds the lock.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use millstream_record::{Batch, Encoding, Tag, Time};
use millstream_wire::{
    msgpack::{Reader, write_map_len, write_str},
    record::{Record, records},
};
use tokio::sync::mpsc;

/// The maximum number of bytes that are shown of a record.
pub const RECORD_BYTES_MAX: usize = 16 << 10;
/// In a map longer than [`RECORD_BYTES_MAX`], each value with more bytes than this is replaced by its length.
const FIELD_BYTES_MAX: usize = 1 << 10;
/// The maximum number of records that wait for the reader of a tap.
const WAITING_MAX: usize = 64;
/// The maximum number of taps that are open at the same time.
const TAPS_MAX: usize = 32;
/// The maximum number of parts into which a second is divided, so that the samples are spread over the second.
const PARTS: u32 = 10;
/// If several chains feed a port, a tap shows the records of only one of them. It turns to another chain after the shown chain has been
/// silent for this long.
const SILENCE: Duration = Duration::from_secs(2);

/// The port by which records leave a source or a processor.
pub const OUT: &str = "out";
/// The port by which records enter a channel or a sink.
pub const IN: &str = "in";
/// The port by which rejected records leave.
pub const REJECTED: &str = "rejected";

/// All points. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Taps(Arc<Mutex<BTreeMap<Arc<str>, Point>>>);

/// The place where batches of one node are sampled. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Point(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    is_watched: AtomicBool,
    viewers: Mutex<Vec<Viewer>>,
}

/// A record that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The port.
    pub port: Arc<str>,
    /// The tag of its batch.
    pub tag: Tag,
    /// Its event time, or the receive time if it has none.
    pub time: Time,
    /// A line without its newline, or a MessagePack map.
    pub record: Vec<u8>,
    /// The encoding of `record`.
    pub encoding: Encoding,
    /// Whether the original record is longer than `record`. A long line is cut. In a long map, long values are replaced by their
    /// length.
    pub is_cut: bool,
}

/// Receives samples of one node until it is dropped.
#[derive(Debug)]
pub struct Tap {
    samples: mpsc::Receiver<Sample>,
    point: Weak<Watched>,
    id: Arc<()>,
}

/// The other end of a [`Tap`].
#[derive(Debug)]
struct Viewer {
    samples: mpsc::Sender<Sample>,
    id: Weak<()>,
    /// The maximum number of records that the tap receives in each part of a second.
    share: u32,
    part: Duration,
    began: Instant,
    taken: u32,
    /// For each port: the chain whose records are shown, and the time of the last one.
    chains: Vec<(Arc<str>, usize, Instant)>,
}

/// The reason why a tap cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTap {
    /// No node of that name has records to show.
    Unknown,
    /// Too many taps are open.
    Busy,
}

impl Taps {
    /// Returns the point of a node. Calls with the same name return the same point.
    pub fn point(&self, node: &Arc<str>) -> Point {
        self.points().entry(node.clone()).or_default().clone()
    }

    /// Opens a tap on a node, for at most `per_second` records in a second.
    pub fn open(&self, node: &str, per_second: u32) -> Result<Tap, NoTap> {
        let points = self.points();
        let open = points.values().map(|point| point.0.viewers().len());
        let is_busy = open.sum::<usize>() >= TAPS_MAX;
        let point = points.get(node).ok_or(NoTap::Unknown)?.clone();
        drop(points);
        match is_busy {
            true => Err(NoTap::Busy),
            false => Ok(point.open(per_second)),
        }
    }

    /// The nodes that have a point.
    pub fn nodes(&self) -> Vec<Arc<str>> {
        self.points().keys().cloned().collect()
    }

    /// Forgets a node that no longer exists. Its taps end.
    pub(crate) fn forget(&self, node: &str) {
        if let Some(point) = self.points().remove(node) {
            point.0.viewers().clear();
        }
    }

    fn points(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Point>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn viewers(&self) -> MutexGuard<'_, Vec<Viewer>> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Point {
    fn open(&self, per_second: u32) -> Tap {
        let per_second = per_second.max(1);
        let parts = per_second.min(PARTS);
        let (sender, samples) = mpsc::channel(WAITING_MAX);
        let id = Arc::new(());
        let viewer = Viewer {
            samples: sender,
            id: Arc::downgrade(&id),
            share: per_second.div_ceil(parts),
            part: Duration::from_secs(1) / parts,
            began: Instant::now(),
            taken: 0,
            chains: Vec::new(),
        };
        self.0.viewers().push(viewer);
        self.0.is_watched.store(true, Ordering::Relaxed);
        Tap {
            samples,
            point: Arc::downgrade(&self.0),
            id,
        }
    }

    /// Samples batches that pass by `port`.
    #[inline]
    pub fn see(&self, port: &str, batches: &[Batch]) {
        if self.is_watched() {
            let all = batches.iter();
            all.for_each(|batch| self.show(port, 0, batch));
        }
    }

    /// Whether a tap is open.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.0.is_watched.load(Ordering::Relaxed)
    }

    /// Samples a batch that passes by `port`. `chain` identifies the chain that sends it, because several chains may send copies of the
    /// same records.
    #[cold]
    pub(crate) fn show(&self, port: &str, chain: usize, batch: &Batch) {
        // If another thread holds the lock, because it samples a batch or opens or closes a tap, this batch is skipped.
        if let Ok(mut viewers) = self.0.viewers.try_lock() {
            let now = Instant::now();
            for viewer in &mut *viewers {
                viewer.show(port, chain, batch, now);
            }
        }
    }
}

impl Viewer {
    fn show(&mut self, port: &str, chain: usize, batch: &Batch, now: Instant) {
        if now.duration_since(self.began) >= self.part {
            (self.began, self.taken) = (now, 0);
        }
        let left = self.share.saturating_sub(self.taken);
        if left == 0 {
            return;
        }
        let Some(port) = self.port(port, chain, now) else {
            return;
        };
        for (_, event) in records(batch).take(left as usize) {
            let Some((record, is_cut)) = copy(event.record) else {
                continue;
            };
            let sample = Sample {
                port: port.clone(),
                tag: batch.tag.clone(),
                time: event.time,
                record,
                encoding: batch.encoding,
                is_cut,
            };
            if self.samples.try_send(sample).is_err() {
                return;
            }
            self.taken += 1;
        }
    }

    /// Returns the port; `None` if this viewer shows the records of another chain for this port.
    fn port(&mut self, port: &str, chain: usize, now: Instant) -> Option<Arc<str>> {
        let found = self.chains.iter_mut().find(|(name, ..)| &**name == port);
        let Some((name, shown, last)) = found else {
            let name: Arc<str> = port.into();
            self.chains.push((name.clone(), chain, now));
            return Some(name);
        };
        if *shown != chain && now.duration_since(*last) < SILENCE {
            return None;
        }
        (*shown, *last) = (chain, now);
        Some(name.clone())
    }
}

impl Tap {
    /// The next record; `None` when the node no longer exists.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Sample>> {
        self.samples.poll_recv(context)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let Some(point) = self.point.upgrade() else {
            return;
        };
        let mut viewers = point.viewers();
        let own = Arc::downgrade(&self.id);
        viewers.retain(|viewer| !viewer.id.ptr_eq(&own));
        point
            .is_watched
            .store(!viewers.is_empty(), Ordering::Relaxed);
    }
}

/// Returns a copy of a record, and whether it was cut; `None` if there is no record to show.
fn copy(record: Record<'_>) -> Option<(Vec<u8>, bool)> {
    match record {
        Record::None => None,
        Record::Line(line) => {
            let end = line.len().min(RECORD_BYTES_MAX);
            Some((line[..end].to_vec(), end < line.len()))
        }
        Record::Packed(bytes) => {
            let map = Reader::new(bytes).value().ok()?;
            match map.len() <= RECORD_BYTES_MAX {
                true => Some((map.to_vec(), false)),
                false => Some((shortened(map)?, true)),
            }
        }
    }
}

/// Returns a copy of a long map: long values are replaced by their length, and fields beyond the limit are left out.
fn shortened(map: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(map);
    let (mut fields, mut count) = (Vec::new(), 0);
    for _ in 0..reader.map_len().ok()? {
        let (key, value) = (reader.value().ok()?, reader.value().ok()?);
        if fields.len() + key.len() + value.len().min(FIELD_BYTES_MAX) > RECORD_BYTES_MAX {
            break;
        }
        fields.extend_from_slice(key);
        match value.len() <= FIELD_BYTES_MAX {
            true => fields.extend_from_slice(value),
            false => {
                let told = format!("({} bytes)", value.len());
                write_str(&mut fields, told.as_bytes());
            }
        }
        count += 1;
    }
    let mut out = Vec::with_capacity(fields.len() + 5);
    write_map_len(&mut out, count);
    out.append(&mut fields);
    Some(out)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_wire::msgpack::{write_array_len, write_uint};

    use super::*;

    fn batch(encoding: Encoding, body: impl Into<Bytes>, count: u32) -> Batch {
        Batch {
            tag: "t".into(),
            encoding,
            plain: false,
            body: body.into(),
            count,
            received: Time(7),
            values: Arc::default(),
            origins: Vec::new(),
        }
    }

    fn lines(text: &str) -> Batch {
        batch(
            Encoding::Lines,
            text.to_owned(),
            text.lines().count() as u32,
        )
    }

    fn drain(tap: &mut Tap) -> Vec<Sample> {
        std::iter::from_fn(|| tap.samples.try_recv().ok()).collect()
    }

    fn tapped(per_second: u32) -> (Taps, Point, Tap) {
        let taps = Taps::default();
        let point = taps.point(&"in".into());
        let tap = taps.open("in", per_second).unwrap();
        (taps, point, tap)
    }

    #[test]
    fn records_are_shown_while_a_tap_is_open() {
        let (taps, point, mut tap) = tapped(100);
        point.see(OUT, &[lines("a\nb\n"), lines("c\n")]);
        let samples = drain(&mut tap);
        let texts: Vec<_> = samples.iter().map(|it| &it.record[..]).collect();
        assert_eq!(texts, [b"a", b"b", b"c"]);
        assert_eq!((&*samples[0].port, samples[0].time), (OUT, Time(7)));
        let mut second = taps.open("in", 1).unwrap();
        drop(tap);
        assert!(point.is_watched());
        point.see(REJECTED, &[lines("d\n")]);
        assert_eq!(drain(&mut second).len(), 1);
        drop(second);
        assert!(!point.is_watched());
        assert!(point.0.viewers().is_empty());
        assert_eq!(taps.open("other", 1).unwrap_err(), NoTap::Unknown);
    }

    #[test]
    fn a_sample_is_bounded_and_never_waits() {
        let (_taps, point, mut tap) = tapped(20);
        let many = lines(&"x\n".repeat(100_000));
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(350) {
            point.see(OUT, std::slice::from_ref(&many));
        }
        let count = drain(&mut tap).len();
        assert!((2..=10).contains(&count), "{count} of at most 2 in 100 ms");
        let (_taps, point, mut tap) = tapped(1_000_000);
        point.see(OUT, &[many]);
        assert_eq!(drain(&mut tap).len(), WAITING_MAX);
    }

    #[test]
    fn of_several_chains_one_shows_the_records_of_a_port() {
        let (_taps, point, mut tap) = tapped(100);
        point.show("a", 1, &lines("1\n"));
        point.show("a", 2, &lines("2\n"));
        point.show("b", 2, &lines("3\n"));
        point.show("a", 1, &lines("4\n"));
        let samples = drain(&mut tap);
        let texts: Vec<_> = samples.iter().map(|it| &it.record[..]).collect();
        assert_eq!(texts, [b"1", b"3", b"4"]);
    }

    #[test]
    fn long_records_are_cut_and_stay_records() {
        let (_taps, point, mut tap) = tapped(100);
        let mut body = Vec::new();
        write_array_len(&mut body, 2);
        write_uint(&mut body, 5);
        write_map_len(&mut body, 3);
        for (key, length) in [("a", 10), ("b", 100_000), ("c", 20)] {
            write_str(&mut body, key.as_bytes());
            write_str(&mut body, &vec![b'x'; length]);
        }
        point.see(
            IN,
            &[batch(Encoding::Packed, body, 1), lines(&"y".repeat(50_000))],
        );
        let samples = drain(&mut tap);
        assert!(samples.iter().all(|sample| sample.is_cut));
        assert_eq!(samples[0].time, Time(5_000_000_000));
        let mut reader = Reader::new(&samples[0].record);
        assert_eq!(reader.map_len(), Ok(3));
        let texts: Vec<_> = (0..6).map(|_| reader.bytes().unwrap().len()).collect();
        assert_eq!(texts, [1, 10, 1, "(100003 bytes)".len(), 1, 20]);
        assert_eq!(samples[1].record.len(), RECORD_BYTES_MAX);
        // A map of many fields is cut at the bound, too.
        let mut map = Vec::new();
        write_map_len(&mut map, 5000);
        for _ in 0..10_000 {
            write_str(&mut map, b"0123456789");
        }
        assert!(shortened(&map).unwrap().len() <= RECORD_BYTES_MAX + 5);
        for cut in 0..100 {
            assert_eq!(shortened(&map[..cut]), None);
        }
    }

    #[test]
    fn taps_have_a_bound_and_end_with_their_node() {
        let taps = Taps::default();
        taps.point(&"in".into());
        let mut open: Vec<_> = (0..TAPS_MAX).map(|_| taps.open("in", 1).unwrap()).collect();
        assert_eq!(taps.open("in", 1).unwrap_err(), NoTap::Busy);
        taps.forget("in");
        let gone = open[0].samples.try_recv();
        assert_eq!(gone, Err(mpsc::error::TryRecvError::Disconnected));
    }
}
