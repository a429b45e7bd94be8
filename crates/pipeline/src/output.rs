//! The output of a processor for one batch: records that are passed on, new ones, filtered and rejected ones.
//!
//! While the records that are passed on are adjacent in the input, the output shares the bytes of the input. These records are copied only
//! when a new record goes between them, or when a record between them is left out (`body.rs`).

mod body;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, ops::Range, sync::Arc};

use millstream_record::{Batch, Encoding, Pool, Tag, Values};

use self::body::{Body, Buffers};
use crate::reject::Rejects;

/// The records of a batch may always grow by this much.
const FREE_BYTES: usize = 4 << 20;

/// The output of one processor for one batch.
pub struct Out<'a> {
    node: &'a str,
    batch: &'a Batch,
    /// The memory of the output.
    buffers: Buffers<'a>,
    /// The range of the batch's body that the processor works on now.
    given: Range<usize>,
    given_count: u32,
    /// The number, in the chain's input, of the record in `given`. `None` if the chain does not number records.
    from: Option<u32>,
    ports: Vec<Port>,
    rejected: Rejects,
    counts: Counts,
    /// The number of bytes that were appended.
    appended_bytes: usize,
    comes_again: bool,
}

/// The numbers of records of one batch, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that left by a port that has a consumer.
    pub sent: u64,
    /// Records that were left out on purpose, or left by a port that has no consumer.
    pub filtered: u64,
    /// Records that left by `NAME.rejected`.
    pub rejected: u64,
    /// Records that could not be processed and were passed on unchanged.
    pub failed: u64,
}

/// A finished output.
#[derive(Debug)]
pub struct Made {
    /// The batches of each port, in order.
    pub ports: Vec<Vec<Batch>>,
    /// For each batch in `ports`, the numbers of its records in the chain's input. Each list is empty unless the chain numbers records.
    pub(crate) numbers: Vec<Vec<Arc<[u32]>>>,
    /// The batch for `NAME.rejected`, if there is one.
    pub rejected: Option<Batch>,
    /// The numbers of records, by outcome.
    pub counts: Counts,
}

/// The tag and the values of new records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    /// Their tag.
    pub tag: Tag,
    /// The values that they share.
    pub values: Arc<Values>,
}

/// A map by tag and values. A batch may have as many different heads as records, so a linear search would be too slow.
pub(crate) type ByHead<T> = HashMap<Head, T, foldhash::fast::RandomState>;

impl Head {
    /// The tag and the values of a batch.
    pub(crate) fn of(batch: &Batch) -> Self {
        Self {
            tag: batch.tag.clone(),
            values: batch.values.clone(),
        }
    }

    fn is_of(&self, batch: &Batch) -> bool {
        self.tag.as_str() == batch.tag.as_str()
            && (Arc::ptr_eq(&self.values, &batch.values) || self.values == batch.values)
    }
}

/// Which chains need the records of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// In this chain. Ports with the same next steps share one output; this is the index of the first of these ports.
    Here(usize),
    /// Only in the chains of other consumers, which process the batch themselves.
    Elsewhere,
    /// Nowhere: the records are filtered.
    None,
}

/// A port while a batch is processed.
struct Port {
    used: Use,
    /// The finished batches, and the numbers of their records.
    done: Vec<(Batch, Vec<u32>)>,
    /// The batches that are being filled, the newest last, at most one for each head. If a batch is finished early, an empty batch stays
    /// in its place, and a new batch for the same head is added at the end.
    open: Vec<Open>,
    /// For each head, the index of its batch in `open`.
    places: ByHead<usize>,
    /// The index of the batch that took the last records.
    last: usize,
}

/// A batch that is being filled.
struct Open {
    head: Head,
    encoding: Encoding,
    plain: bool,
    /// Adjacent records of the input that are not copied yet.
    kept: Range<usize>,
    /// The number of records in `kept`.
    kept_count: u32,
    /// Everything before `kept`.
    body: Body,
    /// The number of records in `body`.
    count: u32,
    /// The numbers of the batch's records in the chain's input; empty if the chain does not number records.
    numbers: Vec<u32>,
}

impl<'a> Out<'a> {
    /// The output of the node `node` for `batch`, in buffers of `pool`.
    pub(crate) fn new(
        node: &'a str,
        batch: &'a Batch,
        pool: &'a Pool,
        uses: impl Iterator<Item = Use>,
    ) -> Self {
        let port = |used| Port {
            used,
            done: Vec::new(),
            open: Vec::new(),
            places: ByHead::default(),
            last: 0,
        };
        Self {
            node,
            batch,
            buffers: Buffers::new(pool, batch.len()),
            given: 0..batch.len(),
            given_count: batch.count,
            from: None,
            ports: uses.map(port).collect(),
            rejected: Rejects::default(),
            counts: Counts::default(),
            appended_bytes: 0,
            comes_again: true,
        }
    }

    pub(crate) fn set_comes_again(&mut self, comes_again: bool) {
        self.comes_again = comes_again;
    }

    /// Whether the batch is processed again if the task fails: its source can send it again, or a durable channel keeps it. Otherwise, a
    /// failure loses its records.
    pub fn comes_again(&self) -> bool {
        self.comes_again
    }

    /// Moves on to the range `given` of the body, which holds `count` records. Their number in the chain's input is `number`.
    pub(crate) fn turn_to(&mut self, given: Range<usize>, count: u32, number: u32) {
        (self.given, self.given_count, self.from) = (given, count, Some(number));
    }

    /// Returns the index of the current record in the batch that entered the chain. It is the same in every replay and for any number
    /// of tasks. Valid only for a processor whose [`crate::processor::Processor::uses_places`] returns true.
    pub fn place(&self) -> u32 {
        self.from.unwrap_or(0)
    }

    /// Passes the whole batch on unchanged.
    pub fn pass(&mut self, port: usize) {
        self.keep(port, 0..self.given.len(), self.given_count);
    }

    /// Passes adjacent records of the batch on unchanged: the bytes `range` of its body, which hold `count` records.
    pub fn keep(&mut self, port: usize, range: Range<usize>, count: u32) {
        self.keep_under(port, None, range, count);
    }

    /// Like [`Out::keep`], with the tag and the values of `head`.
    pub fn keep_as(&mut self, port: usize, head: &Head, range: Range<usize>, count: u32) {
        self.keep_under(port, Some(head), range, count);
    }

    fn keep_under(&mut self, port: usize, head: Option<&Head>, range: Range<usize>, count: u32) {
        if count == 0 {
            return;
        }
        let Some(port) = self.count(port, count) else {
            return;
        };
        let batch = self.batch;
        let range = range.start + self.given.start..range.end + self.given.start;
        let open = self.ports[port].open_of(batch, head, batch.encoding, &mut self.buffers);
        open.plain &= batch.plain;
        open.number(self.from, count);
        if open.kept_count > 0 && open.kept.end == range.start {
            open.kept.end = range.end;
            open.kept_count += count;
        } else {
            open.copy_kept(batch, &mut self.buffers);
            (open.kept, open.kept_count) = (range, count);
        }
    }

    /// Returns the number of bytes that new records of this batch may still take. A processor whose records grow with values that a peer
    /// chooses (such as the tag) rejects the records for which there is no space left. The limit depends only on the batch and on
    /// `memory_max`, so a replay rejects the same records. It is at most a quarter of `memory_max`, the part for code that drains memory,
    /// unless the batch itself is almost as large.
    pub fn left_bytes(&self) -> usize {
        let most = self.buffers.bytes_max() / 4;
        let most = most.max(self.batch.len() + FREE_BYTES);
        let bytes_max = self.batch.grown_bytes_max().min(most);
        bytes_max.saturating_sub(self.appended_bytes)
    }

    /// Appends new records. `write` appends packed entries to the buffer and returns their number; if it fails, everything that it
    /// appended is removed and the error is returned. The entries may have metadata only if the entries of the input batch may have it.
    /// `head` has the tag and the values of the new records. If it is `None`, they get the tag and the values of the input batch.
    pub fn append<E>(
        &mut self,
        port: usize,
        head: Option<&Head>,
        write: impl FnOnce(&mut Vec<u8>) -> Result<u32, E>,
    ) -> Result<(), E> {
        let batch = self.batch;
        let used = self.ports[port].used;
        let into = match used {
            Use::Here(joined) => joined,
            Use::Elsewhere | Use::None => port,
        };
        let open = self.ports[into].open_of(batch, head, Encoding::Packed, &mut self.buffers);
        open.copy_kept(batch, &mut self.buffers);
        let body = open.body.for_writing(&mut self.buffers);
        let before = body.len();
        let written = write(body);
        match (&written, used) {
            (Ok(count), Use::Here(_)) => {
                self.appended_bytes += body.len() - before;
                open.count += count;
                open.number(self.from, *count);
            }
            // This chain does not need the entries, or `write` failed: the next record reuses the buffer.
            _ => body.truncate(before),
        }
        written.map(|count| {
            self.count(port, count);
        })
    }

    /// Counts `count` records that are left out on purpose.
    pub fn filter(&mut self, count: u32) {
        self.counts.filtered += u64::from(count);
    }

    /// Counts `count` records that could not be processed and are passed on unchanged.
    pub fn fail(&mut self, count: u32) {
        self.counts.failed += u64::from(count);
    }

    /// Rejects one record, whose original bytes are `record`.
    pub fn reject(&mut self, record: &[u8], reason: &str) {
        self.rejected.add(self.node, self.batch, record, reason);
        self.counts.rejected += 1;
    }

    /// Counts records that leave by a port. Returns the port of this chain that takes them, or `None` if the chain does not need them.
    fn count(&mut self, port: usize, count: u32) -> Option<usize> {
        let used = self.ports[port].used;
        let counter = match used {
            Use::Here(_) | Use::Elsewhere => &mut self.counts.sent,
            Use::None => &mut self.counts.filtered,
        };
        *counter += u64::from(count);
        match used {
            Use::Here(joined) => Some(joined),
            Use::Elsewhere | Use::None => None,
        }
    }

    /// Finishes and returns the output.
    pub fn finish(self) -> Made {
        let (batch, mut buffers) = (self.batch, self.buffers);
        let close = |mut port: Port| {
            let open = port.open.drain(..);
            let open = open.filter_map(|open| open.close(batch, &mut buffers));
            port.done.extend(open);
            let done = port.done.into_iter();
            done.map(|(batch, numbers)| (batch, numbers.into())).unzip()
        };
        let rejected =
            (self.counts.rejected > 0).then(|| self.rejected.into_batch(self.node, batch));
        let (ports, numbers) = self.ports.into_iter().map(close).unzip();
        Made {
            ports,
            numbers,
            rejected,
            counts: self.counts,
        }
    }
}

impl Port {
    /// Returns the open batch for records with this head and encoding. The head `None` stands for the tag and the values of the input
    /// batch.
    fn open_of(
        &mut self,
        batch: &Batch,
        head: Option<&Head>,
        encoding: Encoding,
        buffers: &mut Buffers<'_>,
    ) -> &mut Open {
        let fits = |open: &Open| {
            open.encoding == encoding
                && match head {
                    None => open.head.is_of(batch),
                    Some(head) => open.head == *head,
                }
        };
        if !self.open.get(self.last).is_some_and(fits) {
            self.last = match head {
                None => self.place_of(batch, &Head::of(batch), encoding, buffers),
                Some(head) => self.place_of(batch, head, encoding, buffers),
            };
        }
        &mut self.open[self.last]
    }

    /// Returns the index of the open batch for records with this head and encoding.
    fn place_of(
        &mut self,
        batch: &Batch,
        head: &Head,
        encoding: Encoding,
        buffers: &mut Buffers<'_>,
    ) -> usize {
        if let Some(at) = self.places.get(head) {
            let open = &mut self.open[*at];
            if open.encoding == encoding {
                return *at;
            }
            // Lines and packed entries cannot share a batch, so the batch with the other encoding is finished first.
            let empty = Open::new(head.clone(), encoding, batch);
            let finished = std::mem::replace(open, empty);
            self.done.extend(finished.close(batch, buffers));
        }
        let at = self.open.len();
        self.open.push(Open::new(head.clone(), encoding, batch));
        self.places.insert(head.clone(), at);
        at
    }
}

impl Open {
    /// A batch without records, made from `batch`.
    fn new(head: Head, encoding: Encoding, batch: &Batch) -> Self {
        Self {
            head,
            encoding,
            // Plain: no record has metadata. A new record may carry the metadata of the record from which it was made.
            plain: encoding == Encoding::Packed
                && (batch.plain || batch.encoding == Encoding::Lines),
            kept: 0..0,
            kept_count: 0,
            body: Body::Empty,
            count: 0,
            numbers: Vec::new(),
        }
    }

    fn copy_kept(&mut self, batch: &Batch, buffers: &mut Buffers<'_>) {
        if self.kept_count > 0 {
            let body = self.body.for_writing(buffers);
            body.extend_from_slice(&batch.body[self.kept.clone()]);
            self.count += self.kept_count;
            self.kept_count = 0;
        }
    }

    fn number(&mut self, number: Option<u32>, count: u32) {
        if let Some(number) = number {
            let more = std::iter::repeat_n(number, count as usize);
            self.numbers.extend(more);
        }
    }

    fn close(mut self, batch: &Batch, buffers: &mut Buffers<'_>) -> Option<(Batch, Vec<u32>)> {
        let body = if self.count == 0 {
            self.count = self.kept_count;
            batch.body.slice(self.kept)
        } else {
            self.copy_kept(batch, buffers);
            self.body.share()
        };
        let made = Batch {
            tag: self.head.tag,
            encoding: self.encoding,
            plain: self.plain,
            body,
            count: self.count,
            received: batch.received,
            values: self.head.values,
            origins: Vec::new(),
        };
        (self.count > 0).then_some((made, self.numbers))
    }
}
