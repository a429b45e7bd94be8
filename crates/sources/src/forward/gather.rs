//! The batch that small frames are gathered in.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_record::{Batch, Buffer, ChunkOrigin, Encoding, Origin, Tag, Time, Values};

/// A gathered batch leaves when it has so many bytes: large enough that its own cost vanishes, small enough that it is
/// still in the cache when the next hop reads it.
pub(super) const GATHER_BYTES: usize = 256 << 10;
/// A smaller batch gets memory of its size, so that a slow stream does not hold buffers of the pool.
pub(super) const OWN_BYTES_MAX: usize = 16 << 10;
/// A batch leaves when the ids of its chunks have so many bytes: ids are written by the peer, so they need a bound.
const IDS_BYTES_MAX: usize = 64 << 10;

/// The open batch: all its frames have one tag and one encoding.
#[derive(Default)]
pub(super) struct Gather {
    open: Option<Open>,
    /// The head that the messages of the open batch begin with, empty if they are not alike.
    head: Vec<u8>,
}

struct Open {
    tag: Tag,
    encoding: Encoding,
    /// No record has metadata beside its time.
    plain: bool,
    body: Buffer,
    count: u32,
    received: Time,
    spans: Vec<Span>,
    /// The ids of the chunks, one behind the other.
    ids: Vec<u8>,
    acks: Vec<u8>,
    acked: u64,
}

/// A chunk within the batch.
struct Span {
    id: Range<usize>,
    length: u32,
    checksum: u32,
    start: u32,
    end: u32,
    records: u32,
}

/// A frame that was appended, with its id.
pub(super) struct Chunk<'a> {
    /// The id as it came.
    pub id: &'a [u8],
    /// Bytes of its payload as received.
    pub length: usize,
    /// CRC-32C of its payload as received.
    pub checksum: u32,
    /// Where it starts in the body; it goes to the end.
    pub start: usize,
    /// Its records.
    pub records: u32,
}

/// A batch that leaves, and what its peer is told when it is done.
pub(super) struct Leaving {
    pub batch: Batch,
    pub acks: Vec<u8>,
    pub acked: u64,
}

impl Gather {
    /// Whether frames of this kind and so many bytes can be appended to the open batch.
    pub(super) fn takes(&self, tag: &Tag, encoding: Encoding, bytes: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.tag == *tag
                && open.encoding == encoding
                && open.body.capacity() - open.body.len() >= bytes
                && open.body.len() < GATHER_BYTES
                && open.ids.len() < IDS_BYTES_MAX
        })
    }

    /// Opens a batch in `body`. The one before has left.
    pub(super) fn start(&mut self, tag: Tag, encoding: Encoding, received: Time, body: Buffer) {
        self.head.clear();
        self.open = Some(Open {
            tag,
            encoding,
            plain: true,
            body,
            count: 0,
            received,
            spans: Vec::new(),
            ids: Vec::new(),
            acks: Vec::new(),
            acked: 0,
        });
    }

    /// The open batch's body and count, to append to.
    pub(super) fn body(&mut self) -> Option<(&mut Vec<u8>, &mut u32)> {
        let open = self.open.as_mut()?;
        Some((&mut open.body, &mut open.count))
    }

    /// What was appended last holds metadata beside a time.
    pub(super) fn set_nested(&mut self) {
        if let Some(open) = &mut self.open {
            open.plain = false;
        }
    }

    /// The body, the count, and the head that messages of the open batch begin with.
    pub(super) fn run(&mut self) -> Option<(&mut Vec<u8>, &mut u32, &[u8])> {
        if self.head.is_empty() {
            return None;
        }
        let open = self.open.as_mut()?;
        Some((&mut open.body, &mut open.count, &self.head))
    }

    /// Messages of the open batch may begin with `head`.
    pub(super) fn set_head(&mut self, head: &[u8]) {
        self.head.clear();
        self.head.extend_from_slice(head);
    }

    /// Notes the chunk that was appended last. `origins`: whether somebody behind can tell repeats.
    pub(super) fn chunk(
        &mut self,
        chunk: &Chunk<'_>,
        origins: bool,
        ack: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(open) = self.open.as_mut() else {
            return;
        };
        ack(&mut open.acks);
        open.acked += 1;
        if !origins {
            return;
        }
        let from = open.ids.len();
        open.ids.extend_from_slice(chunk.id);
        open.spans.push(Span {
            id: from..open.ids.len(),
            length: chunk.length as u32,
            checksum: chunk.checksum,
            start: chunk.start as u32,
            end: open.body.len() as u32,
            records: chunk.records,
        });
    }

    /// Closes the batch; None: there was none.
    pub(super) fn leave(&mut self, connection: u64, values: &Arc<Values>) -> Option<Leaving> {
        let open = self.open.take()?;
        self.head.clear();
        let ids = Bytes::from(open.ids);
        let origin = |span: Span| {
            Origin::Chunk(ChunkOrigin {
                id: ids.slice(span.id),
                connection,
                length: span.length,
                checksum: span.checksum,
                start: span.start,
                end: span.end,
                records: span.records,
            })
        };
        let batch = Batch {
            tag: open.tag,
            plain: open.plain,
            encoding: open.encoding,
            body: if open.body.len() <= OWN_BYTES_MAX {
                Bytes::copy_from_slice(&open.body)
            } else {
                open.body.freeze()
            },
            count: open.count,
            received: open.received,
            values: values.clone(),
            origins: open.spans.into_iter().map(origin).collect(),
        };
        Some(Leaving {
            batch,
            acks: open.acks,
            acked: open.acked,
        })
    }
}
