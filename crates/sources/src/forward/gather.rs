//! The batch in which small frames are gathered.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_record::{Batch, Buffer, ChunkOrigin, Encoding, Origin, Tag, Time, Values};

/// A gathered batch is sent when it has this many bytes. The size is large enough to make the cost per batch negligible, and small
/// enough that the batch is still in the cache when the next hop reads it.
pub(super) const GATHER_BYTES: usize = 256 << 10;
/// A batch of up to this size is copied into an allocation of its exact size, so that a slow stream does not hold buffers of the
/// pool.
pub(super) const OWN_BYTES_MAX: usize = 16 << 10;
/// A batch is sent when the ids of its chunks have this many bytes together. Peers choose the ids, so their size must be bounded.
const IDS_BYTES_MAX: usize = 64 << 10;

/// The batch that is being gathered. All its frames have the same tag and encoding.
#[derive(Default)]
pub(super) struct Gather {
    batch: Option<Gathered>,
    /// The first bytes of a message of the batch, as the last [`Gather::set_head`] noted them. Empty if none are noted.
    head: Vec<u8>,
}

struct Gathered {
    tag: Tag,
    encoding: Encoding,
    /// `true` if no record has metadata other than its time.
    plain: bool,
    body: Buffer,
    count: u32,
    received: Time,
    spans: Vec<Span>,
    /// The ids of the chunks, concatenated.
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

/// A chunk that has an id and was appended to the batch.
pub(super) struct Chunk<'a> {
    /// The id as received.
    pub id: &'a [u8],
    /// The size of its payload as received, in bytes.
    pub length: usize,
    /// CRC-32C of its payload as received.
    pub checksum: u32,
    /// The offset in the body at which the chunk starts. The chunk reaches to the end of the body.
    pub start: usize,
    /// The number of its records.
    pub records: u32,
}

/// A batch to send, with the acks of its chunks.
pub(super) struct Gone {
    pub batch: Batch,
    pub acks: Vec<u8>,
    pub acked: u64,
}

impl Gather {
    /// Whether a frame of this kind and size can be appended.
    pub(super) fn takes(&self, tag: &Tag, encoding: Encoding, bytes: usize) -> bool {
        self.batch.as_ref().is_some_and(|batch| {
            batch.tag == *tag
                && batch.encoding == encoding
                && batch.body.capacity() - batch.body.len() >= bytes
                && batch.body.len() < GATHER_BYTES
                && batch.ids.len() < IDS_BYTES_MAX
        })
    }

    /// Starts a batch in `body`. The previous batch must have been taken.
    pub(super) fn start(&mut self, tag: Tag, encoding: Encoding, received: Time, body: Buffer) {
        self.head.clear();
        self.batch = Some(Gathered {
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

    /// The body and the number of records, to append to.
    pub(super) fn body(&mut self) -> Option<(&mut Vec<u8>, &mut u32)> {
        let batch = self.batch.as_mut()?;
        Some((&mut batch.body, &mut batch.count))
    }

    /// Notes that a record of the last frame has metadata in addition to its time.
    pub(super) fn set_nested(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.plain = false;
        }
    }

    /// The body, the number of records, and the bytes of the last [`Gather::set_head`]. None if there are no such bytes.
    pub(super) fn alike(&mut self) -> Option<(&mut Vec<u8>, &mut u32, &[u8])> {
        if self.head.is_empty() {
            return None;
        }
        let batch = self.batch.as_mut()?;
        Some((&mut batch.body, &mut batch.count, &self.head))
    }

    /// Notes that a message of the batch began with `head`. The decoder has a fast path for further messages that begin with the
    /// same bytes.
    pub(super) fn set_head(&mut self, head: &[u8]) {
        self.head.clear();
        self.head.extend_from_slice(head);
    }

    /// Notes the chunk that was appended last. `origins`: whether the batch carries origins, by which the channel recognizes chunks
    /// that arrive again.
    pub(super) fn chunk(
        &mut self,
        chunk: &Chunk<'_>,
        origins: bool,
        ack: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(batch) = self.batch.as_mut() else {
            return;
        };
        ack(&mut batch.acks);
        batch.acked += 1;
        if !origins {
            return;
        }
        let from = batch.ids.len();
        batch.ids.extend_from_slice(chunk.id);
        batch.spans.push(Span {
            id: from..batch.ids.len(),
            length: chunk.length as u32,
            checksum: chunk.checksum,
            start: chunk.start as u32,
            end: batch.body.len() as u32,
            records: chunk.records,
        });
    }

    /// Takes the batch; None if there is none. `connection` is the number of the connection, for the origins.
    pub(super) fn take(&mut self, connection: u64, values: &Arc<Values>) -> Option<Gone> {
        let gathered = self.batch.take()?;
        self.head.clear();
        let ids = Bytes::from(gathered.ids);
        let origin = |span: Span| {
            Origin::Chunk(ChunkOrigin {
                id: ids.slice(span.id),
                tag: gathered.tag.clone(),
                connection,
                length: span.length,
                checksum: span.checksum,
                start: span.start,
                end: span.end,
                records: span.records,
            })
        };
        let origins = gathered.spans.into_iter().map(origin).collect();
        let batch = Batch {
            tag: gathered.tag,
            plain: gathered.plain,
            encoding: gathered.encoding,
            body: if gathered.body.len() <= OWN_BYTES_MAX {
                Bytes::copy_from_slice(&gathered.body)
            } else {
                gathered.body.freeze()
            },
            count: gathered.count,
            received: gathered.received,
            values: values.clone(),
            origins,
        };
        Some(Gone {
            batch,
            acks: gathered.acks,
            acked: gathered.acked,
        })
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    use super::*;

    #[tokio::test]
    async fn chunks_of_one_tag_become_one_batch_that_knows_where_each_one_is() {
        let pool = Pool::new(1 << 20);
        let (mut gather, tag) = (Gather::default(), Tag::from("a"));
        assert!(!gather.takes(&tag, Encoding::Lines, 2));
        let body = pool.reserve(GATHER_BYTES).await;
        gather.start(tag.clone(), Encoding::Lines, Time(5), body);
        for (id, text) in [(b"1", "a\n"), (b"2", "b\n")] {
            assert!(gather.takes(&tag, Encoding::Lines, text.len()));
            let (body, count) = gather.body().unwrap();
            let start = body.len();
            body.extend_from_slice(text.as_bytes());
            *count += 1;
            let chunk = Chunk {
                id,
                length: text.len(),
                checksum: 0,
                start,
                records: 1,
            };
            gather.chunk(&chunk, true, |acks| acks.push(id[0]));
        }
        assert!(!gather.takes(&"b".into(), Encoding::Lines, 2));
        assert!(!gather.takes(&tag, Encoding::Packed, 2));
        let gone = gather.take(7, &Arc::new(Values::new())).unwrap();
        assert_eq!((&gone.acks[..], gone.acked), (&b"12"[..], 2));
        assert_eq!(
            (&gone.batch.body[..], gone.batch.count),
            (&b"a\nb\n"[..], 2)
        );
        let Origin::Chunk(second) = &gone.batch.origins[1] else {
            panic!("the origin of a chunk")
        };
        assert_eq!(
            (&second.id[..], second.start, second.end),
            (&b"2"[..], 2, 4)
        );
        assert!(gather.take(7, &Arc::new(Values::new())).is_none());
    }
}
