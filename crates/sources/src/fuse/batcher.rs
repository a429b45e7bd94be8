//! Makes batches of the records of one open file.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_pipeline::{meters::Meter, reject};
use millstream_record::{Batch, Buffer, Encoding, Tag, Time, Values};
use millstream_wire::{
    lines,
    msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time},
};

use super::{
    cutter::{Boundaries, RecordEnd, Records},
    rules::Rule,
};

/// Records that together have at most this many bytes are copied out of the buffer that they were read into. A larger batch takes
/// the buffer. Each buffer has room for the largest request, so a batch of a few lines would waste memory if it took a buffer.
const COPY_BYTES_MAX: usize = 256 << 10;

/// The properties that the batches of one open file share.
pub(super) struct Batcher {
    node: Arc<str>,
    tag: Tag,
    rule: Arc<Rule>,
    filtered: Meter,
}

impl Batcher {
    pub(super) fn new(node: Arc<str>, tag: Tag, rule: Arc<Rule>, filtered: Meter) -> Self {
        Self {
            node,
            tag,
            rule,
            filtered,
        }
    }

    /// The batch of these records. `None` if the rule lets no record through. Takes the buffer if the records stay in it.
    pub(super) fn batch(
        &self,
        records: Records,
        buffer: &mut Option<Buffer>,
        values: Arc<Values>,
    ) -> Option<Batch> {
        let filter = &self.rule.filter;
        let (body, count, encoding) = match records {
            Records::None => return None,
            Records::Separate(mut records) => {
                self.trim(&mut records);
                let (body, count) = self.packed(&records)?;
                (body, count, Encoding::Packed)
            }
            Records::Lines(text) => {
                let trimmed = self.rule.boundaries.cr.trim_all(&text);
                self.lines(trimmed.unwrap_or(text))?
            }
            Records::InPlace(range) => {
                let text = buffer.as_ref().and_then(|buffer| buffer.get(range.clone()));
                let text = text.unwrap_or_default();
                match self.rule.boundaries.cr.trim_all(text) {
                    Some(lines) => self.lines(lines)?,
                    None if !filter.is_empty() => self.filtered(text)?,
                    None => {
                        let body = share(buffer, range);
                        let count = lines::count(&body);
                        (body, count, Encoding::Lines)
                    }
                }
            }
        };
        Some(self.envelope(body, count, encoding, values))
    }

    /// A batch without records.
    pub(super) fn empty(&self, values: Arc<Values>) -> Batch {
        self.envelope(Bytes::new(), 0, Encoding::Lines, values)
    }

    /// The batch of rejected pieces. `None` if there are none.
    pub(super) fn rejected(&self, pieces: &[Vec<u8>], values: &Arc<Values>) -> Option<Batch> {
        (!pieces.is_empty()).then(|| {
            let line_max = self.rule.boundaries.line_max;
            let reason = format!("it is longer than line_max ({line_max} bytes)");
            let from = self.empty(values.clone());
            let pieces = pieces.iter().map(Vec::as_slice);
            reject::batch(&self.node, &from, pieces, &reason)
        })
    }

    fn lines(&self, text: Vec<u8>) -> Option<(Bytes, u32, Encoding)> {
        if !self.rule.filter.is_empty() {
            return self.filtered(&text);
        }
        let count = lines::count(&text);
        Some((text.into(), count, Encoding::Lines))
    }

    fn filtered(&self, text: &[u8]) -> Option<(Bytes, u32, Encoding)> {
        let filtered = self.rule.filter.lines(text);
        self.filtered.add(u64::from(filtered.dropped));
        (filtered.left > 0).then(|| (filtered.text.into(), filtered.left, Encoding::Lines))
    }

    /// Removes the CRs at the ends of lines from joined records.
    fn trim(&self, records: &mut [Vec<u8>]) {
        let Boundaries { end, cr, .. } = &*self.rule.boundaries;
        if !matches!(end, RecordEnd::Start(..)) {
            return;
        }
        for record in records {
            record.truncate(cr.trim(record).len());
            if let Some(trimmed) = cr.trim_all(record) {
                *record = trimmed;
            }
        }
    }

    /// Encodes records that may hold newlines: each becomes `{"message": record}`. Returns the body and the number of records.
    /// `None` if the rule lets no record through.
    fn packed(&self, records: &[Vec<u8>]) -> Option<(Bytes, u32)> {
        let (mut body, mut count) = (Vec::new(), 0);
        let now = Time::now();
        for record in records {
            let Some(record) = self.rule.filter.record(record) else {
                self.filtered.add(1);
                continue;
            };
            write_array_len(&mut body, 2);
            write_time(&mut body, now);
            write_map_len(&mut body, 1);
            write_str(&mut body, b"message");
            match std::str::from_utf8(&record) {
                Ok(text) => write_str(&mut body, text.as_bytes()),
                Err(_) => write_bin(&mut body, &record),
            }
            count += 1;
        }
        (count > 0).then(|| (body.into(), count))
    }

    fn envelope(&self, body: Bytes, count: u32, encoding: Encoding, values: Arc<Values>) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: false,
            encoding,
            body,
            count,
            received: Time::now(),
            values,
            origins: Vec::new(),
        }
    }
}

/// The bytes in `range` of a buffer. Takes the buffer if the bytes are too many to copy.
fn share(buffer: &mut Option<Buffer>, range: Range<usize>) -> Bytes {
    match buffer.take_if(|_| range.len() > COPY_BYTES_MAX) {
        Some(buffer) => buffer.freeze().slice(range),
        None => {
            let bytes = buffer.as_ref().and_then(|buffer| buffer.get(range));
            Bytes::copy_from_slice(bytes.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Pool;

    use super::*;
    use crate::{
        framing::{Cr, TooLong},
        fuse::{
            filter::Filter,
            rules::{NAMES, patterns},
        },
        tagging::Tagging,
    };

    fn batcher(deny: &[&str]) -> Batcher {
        let rule = Rule {
            paths: patterns([].into_iter()).unwrap(),
            directories: Vec::new(),
            samples: Vec::new(),
            tag: Tagging::new(None, &NAMES).unwrap(),
            boundaries: Arc::new(Boundaries {
                end: RecordEnd::Line,
                line_max: 9,
                too_long: TooLong::Reject,
                cr: Cr::Drop,
            }),
            filter: Filter::new([].into_iter(), deny.iter().copied(), [].into_iter()).unwrap(),
            tee: None,
            exec: None,
            ships: true,
        };
        Batcher::new("drop".into(), "t".into(), Arc::new(rule), Meter::default())
    }

    #[test]
    fn batches_contain_only_lines_and_records_that_the_rule_lets_through() {
        let batcher = batcher(&["no"]);
        let batch = |records| batcher.batch(records, &mut None, Arc::default());
        let lines = batch(Records::Lines(b"a\nno\nb\n".to_vec())).unwrap();
        assert_eq!((&lines.body[..], lines.count), (&b"a\nb\n"[..], 2));
        let records = vec![b"a\nb".to_vec(), b"no".to_vec()];
        let packed = batch(Records::Separate(records)).unwrap();
        assert_eq!((packed.count, packed.encoding), (1, Encoding::Packed));
        assert!(batch(Records::Lines(b"no\n".to_vec())).is_none());
        assert!(batch(Records::None).is_none());
        assert_eq!(batcher.filtered.get(), 3);
        let rejected = batcher.rejected(&[b"too long".to_vec()], &Arc::default());
        assert!(String::from_utf8_lossy(&rejected.unwrap().body).contains("line_max (9 bytes)"));
        assert!(batcher.rejected(&[], &Arc::default()).is_none());
    }

    #[test]
    fn the_cr_at_the_end_of_a_line_is_no_part_of_the_record() {
        let batcher = batcher(&["no$"]);
        let batch = |records| batcher.batch(records, &mut None, Arc::default());
        let lines = batch(Records::Lines(b"a\r\nno\r\n\rb\n".to_vec())).unwrap();
        assert_eq!((&lines.body[..], lines.count), (&b"a\n\rb\n"[..], 2));
        let mut buffer = Pool::new(1 << 20).take(9);
        buffer.extend_from_slice(b"xa\r\nb\r\n");
        let mut buffer = Some(buffer);
        let lines = batcher.batch(Records::InPlace(1..7), &mut buffer, Arc::default());
        assert_eq!(&lines.unwrap().body[..], b"a\nb\n");
        // The bytes that are read back from the file are unchanged.
        assert_eq!(&buffer.unwrap()[..], b"xa\r\nb\r\n");
    }

    #[test]
    fn large_records_keep_the_buffer_and_small_ones_are_copied() {
        let pool = Pool::new(4 << 20);
        for (bytes, is_kept) in [(COPY_BYTES_MAX, false), (COPY_BYTES_MAX + 1, true)] {
            let mut buffer = pool.take(bytes);
            buffer.resize(bytes, b'\n');
            let mut buffer = Some(buffer);
            let records = Records::InPlace(0..bytes);
            let batch = batcher(&[]).batch(records, &mut buffer, Arc::default());
            assert_eq!(batch.unwrap().body.len(), bytes);
            assert_eq!(buffer.is_none(), is_kept);
        }
    }
}
