//! Replays rejected records: sends them again through the input of the node that rejected them.
//!
//! The files of the node are renamed first, so that nothing is appended to them. Their records are sent in order. A file is removed
//! when all of its records are settled or, where a durable channel follows, kept. After a crash or a failure before that, the next
//! replay sends all records of the file again: a replay may repeat records, but never loses any. Records that the node rejects
//! again are appended to its files as new ones.
//!
//! A processor may be in the chains of several consumers, and a sink may share a durable channel with others. So batches carry the
//! name of the node ([`ADDRESS`]): each chain passes these batches directly to the processor of this name. In front of a sink of this name,
//! they skip the chain. All other nodes ignore them. The address also names the consumers whose chains led to the processor when the replay
//! began. If a reload or a restart removes the processor before the batches are read, those consumers reject them.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::msgpack::{entry_head, skip};
use tokio::sync::mpsc;

use crate::{
    channel::pump_of,
    outlet::Outlet,
    reject::Rejected,
    rejected::{NodeFiles, RejectedFile},
    stop::Stop,
};

/// The name of the value that holds a batch's address: the node that the batch is for, followed by the consumers whose chains lead to
/// that node, separated by spaces. No peer may set it.
pub const ADDRESS: &str = "replay.to";
/// The name of the value of records that were set aside in front of their consumer's chain (`probation`). A replay passes them through
/// this chain.
pub(crate) const UNPROCESSED: &str = "replay.unprocessed";
/// The maximum number of bytes of records in one batch.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// The number of parts of a file that are read ahead.
const AHEAD: usize = 2;

/// A prepared replay of one node.
pub struct Replay {
    node: Arc<str>,
    outlet: Outlet,
    /// The address that batches carry; `None` if only the node itself receives them.
    address: Option<Arc<str>>,
    files: NodeFiles,
}

/// The progress of a replay. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    settled: AtomicU64,
    left: AtomicU64,
}

impl Progress {
    /// Returns the number of records that are settled or kept.
    pub fn settled(&self) -> u64 {
        self.0.settled.load(Ordering::Relaxed)
    }

    /// Returns the number of records that cannot be sent again and stay in files.
    pub fn left(&self) -> u64 {
        self.0.left.load(Ordering::Relaxed)
    }
}

/// Returns the node that a batch is addressed to; `None` if it has no address.
#[inline]
pub(crate) fn address(batch: &Batch) -> Option<&str> {
    let address = batch.values.get(ADDRESS)?;
    Some(address.split_once(' ').map_or(address, |(node, _)| node))
}

/// Whether the address of a batch names `consumer` as one whose chain led to the node when the replay began.
pub(crate) fn is_by_way_of(batch: &Batch, consumer: &str) -> bool {
    let address = batch.values.get(ADDRESS).unwrap_or_default();
    address.split(' ').skip(1).any(|name| name == consumer)
}

/// Returns the address of batches for `node`, to which the chains of `consumers` lead.
pub(crate) fn address_of(node: &str, consumers: &[Arc<str>]) -> Arc<str> {
    let names = consumers.iter().map(|name| &**name);
    let names: Vec<_> = [node].into_iter().chain(names).collect();
    names.join(" ").into()
}

/// Whether a batch for `node` is for the reader of `consumer`: its sink, or the pump of a channel.
pub(crate) fn is_of(node: &str, consumer: &str) -> bool {
    node == consumer || *pump_of(node) == *consumer
}

/// Removes the note that the records were set aside in front of a chain. Returns whether the batch had it.
pub(crate) fn take_unprocessed(batch: &mut Batch) -> bool {
    let is_unprocessed = batch.values.get(UNPROCESSED).is_some();
    if is_unprocessed {
        Arc::make_mut(&mut batch.values).remove(UNPROCESSED);
    }
    is_unprocessed
}

/// Returns the batch without its address.
pub(crate) fn unaddressed(mut batch: Batch) -> Batch {
    Arc::make_mut(&mut batch.values).remove(ADDRESS);
    batch
}

/// A part of a file of rejected records.
enum Part {
    Batch(Batch),
    /// A value that cannot be sent again.
    Left(Vec<u8>),
}

impl Replay {
    /// Returns a replay of the records that `node` rejected, through `outlet`, in batches with this address.
    pub(crate) fn new(
        node: &Arc<str>,
        outlet: Outlet,
        address: Option<Arc<str>>,
        files: NodeFiles,
    ) -> Self {
        Self {
            node: node.clone(),
            outlet,
            address,
            files,
        }
    }

    /// Sends all records that were rejected before the replay began. Returns when all of them are settled. On failure, returns the reason;
    /// each file whose records are not all settled stays. When the sources stop, the replay ends early, because otherwise it would keep the
    /// downstream channels open.
    pub async fn run(self, mut stop: Stop, progress: &Progress) -> Result<(), String> {
        let files = self.files.clone();
        let _turn = files
            .begin()
            .ok_or_else(|| format!("a replay of {} runs already", self.node))?;
        let paths = blocking(move || files.set_aside()).await?;
        for path in paths {
            tokio::select! {
                sent = self.send(&path, progress) => sent?,
                () = stop.stopped() => {
                    return Err("Millstream stops; the rest stays for the next replay".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Sends the records of one file and removes it.
    async fn send(&self, path: &Path, progress: &Progress) -> Result<(), String> {
        let (sender, mut parts) = mpsc::channel(AHEAD);
        let (from, address) = (path.to_owned(), self.address.clone());
        let reading = tokio::task::spawn_blocking(move || read(&from, address.as_ref(), &sender));
        let mut left = Vec::new();
        while let Some(part) = parts.recv().await {
            match part {
                Part::Batch(batch) => {
                    let records = u64::from(batch.count);
                    let receipt = self.outlet.send(batch, true).await;
                    receipt.await.map_err(|_| {
                        let path = path.display();
                        format!("a batch was dropped before it was settled; {path} stays, replay it again")
                    })?;
                    progress.0.settled.fetch_add(records, Ordering::Relaxed);
                }
                Part::Left(record) => {
                    progress.0.left.fetch_add(1, Ordering::Relaxed);
                    left.push(record);
                }
            }
        }
        let read = reading.await.map_err(io::Error::other).flatten();
        let partial = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let (files, path) = (self.files.clone(), path.to_owned());
        blocking(move || files.finish(&path, &left, partial)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(io::Error::other).flatten();
    done.map_err(|error| format!("the files of rejected records: {error}"))
}

/// Reads a file and sends its parts to `parts`. Returns the number of bytes after its last whole record.
fn read(path: &Path, address: Option<&Arc<str>>, parts: &mpsc::Sender<Part>) -> io::Result<u64> {
    let send = |part| {
        parts
            .blocking_send(part)
            .map_err(|_| io::Error::from(io::ErrorKind::Interrupted))
    };
    let mut gather = Gather::default();
    let mut file = RejectedFile::open(path)?;
    let (_, partial) = file.values(|value| {
        let records = Rejected::read(value)
            .map(Rejected::split)
            .unwrap_or_default();
        let forms = records.iter().map(|record| form(&record.message));
        let Some(forms) = forms
            .collect::<Option<Vec<_>>>()
            .filter(|forms| !forms.is_empty())
        else {
            return send(Part::Left(value.to_vec()));
        };
        for (record, encoding) in records.iter().zip(forms) {
            if let Some(full) = gather.add(record, encoding, address) {
                send(Part::Batch(full))?;
            }
        }
        Ok::<_, io::Error>(())
    })?;
    match gather.take() {
        Some(rest) => send(Part::Batch(rest)).map(|()| partial),
        None => Ok(partial),
    }
}

/// Returns the encoding of the original bytes of a record; `None` if they are neither one entry nor one line.
fn form(message: &[u8]) -> Option<Encoding> {
    if let Ok(head) = entry_head(message, 0) {
        let mut open = 1;
        let end = skip(message, head.record, &mut open);
        if open == 0 && end == Ok(message.len()) {
            return Some(Encoding::Packed);
        }
    }
    let line = message.strip_suffix(b"\n").unwrap_or(message);
    (!line.contains(&b'\n')).then_some(Encoding::Lines)
}

/// Gathers records of the same kind (tag, encoding, receive time and values) in a batch.
#[derive(Default)]
struct Gather {
    batch: Option<Batch>,
    body: Vec<u8>,
}

impl Gather {
    /// Adds a record. Returns the batch gathered so far if it is full or the record is of another kind; the record then begins a new
    /// batch.
    fn add(
        &mut self,
        record: &Rejected<'_>,
        encoding: Encoding,
        address: Option<&Arc<str>>,
    ) -> Option<Batch> {
        let is_like = |batch: &Batch| {
            let values = batch.values.iter().filter(|(name, _)| *name != ADDRESS);
            batch.tag.as_str() == record.tag
                && batch.encoding == encoding
                && batch.received == record.time
                && values.eq(record.values.iter().copied())
        };
        let fits = self.batch.as_ref().is_some_and(is_like) && self.body.len() < BATCH_BYTES_MAX;
        let full = match fits {
            true => None,
            false => self.take(),
        };
        let batch = self
            .batch
            .get_or_insert_with(|| empty(record, encoding, address));
        batch.count += 1;
        self.body.extend_from_slice(&record.message);
        if encoding == Encoding::Lines && !record.message.ends_with(b"\n") {
            self.body.push(b'\n');
        }
        full
    }

    fn take(&mut self) -> Option<Batch> {
        let body = Bytes::from(std::mem::take(&mut self.body));
        let batch = self.batch.take()?;
        Some(Batch { body, ..batch })
    }
}

fn empty(record: &Rejected<'_>, encoding: Encoding, address: Option<&Arc<str>>) -> Batch {
    let mut values = Values::new();
    for (name, value) in &record.values {
        values.set(name, *value);
    }
    if let Some(address) = address {
        values.set(ADDRESS, &**address);
    }
    Batch {
        tag: record.tag.into(),
        encoding,
        plain: false,
        body: Bytes::new(),
        count: 0,
        received: Time(record.time.0),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reject;

    fn record<'a>(tag: &'a str, message: &'a [u8]) -> Rejected<'a> {
        Rejected {
            time: Time(7),
            node: "n",
            reason: "why",
            tag,
            values: vec![("peer", "p")],
            records: 1,
            message: message.into(),
        }
    }

    #[test]
    fn original_bytes_that_are_neither_one_line_nor_one_entry_have_no_encoding() {
        let entry = b"\x92\xce\x60\x00\x00\x00\x81\xa1n\x01";
        assert_eq!(form(entry), Some(Encoding::Packed));
        assert_eq!(form(b"a line\n"), Some(Encoding::Lines));
        assert_eq!(form(b"a line"), Some(Encoding::Lines));
        assert_eq!(form(b""), Some(Encoding::Lines));
        assert_eq!(form(b"two\nlines\n"), None);
        assert_eq!(form(&entry[..5]), Some(Encoding::Lines));
        assert_eq!(form(b"\x92\x00\x81\x0a\x0a\x00"), None);
    }

    #[test]
    fn records_of_one_kind_share_a_batch_with_their_address() {
        let mut gather = Gather::default();
        let to = address_of("n", &["one".into(), "two".into()]);
        let mut add = |tag, message| {
            let record = record(tag, message);
            gather.add(&record, Encoding::Lines, Some(&to))
        };
        assert!(add("a", b"1\n").is_none());
        assert!(add("a", b"2").is_none());
        let first = add("b", b"3").unwrap();
        assert_eq!((&first.body[..], first.count), (&b"1\n2\n"[..], 2));
        assert_eq!((first.tag.as_str(), first.received), ("a", Time(7)));
        assert_eq!(address(&first), Some("n"));
        let leads = ["n", "one", "two", "tw"].map(|name| is_by_way_of(&first, name));
        assert_eq!(leads, [false, true, true, false]);
        let bare = unaddressed(first);
        assert_eq!((address(&bare), bare.values.get("peer")), (None, Some("p")));
        assert_eq!(gather.take().unwrap().count, 1);
        assert!(gather.take().is_none());
    }

    #[test]
    fn a_full_batch_is_returned_when_the_next_record_is_added() {
        let mut gather = Gather::default();
        let long = vec![b'x'; BATCH_BYTES_MAX];
        assert!(
            gather
                .add(&record("a", &long), Encoding::Lines, None)
                .is_none()
        );
        let full = gather.add(&record("a", b"y"), Encoding::Lines, None);
        assert_eq!(full.unwrap().count, 1);
    }

    #[test]
    fn joined_records_are_sent_again_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n.msgpack");
        let from = empty(&record(&"t".repeat(8192), b""), Encoding::Lines, None);
        let rejected = reject::batch("n", &from, vec![&b"x\n"[..]; 5000], "why");
        assert!(rejected.count < 5000);
        std::fs::write(&path, &rejected.body).unwrap();
        let (sender, mut parts) = mpsc::channel(5000);
        read(&path, None, &sender).unwrap();
        let mut count = 0;
        while let Ok(part) = parts.try_recv() {
            let Part::Batch(batch) = part else {
                panic!("a record is left");
            };
            assert_eq!(batch.len(), 2 * batch.count as usize);
            count += batch.count;
        }
        assert_eq!(count, 5000);
    }
}
