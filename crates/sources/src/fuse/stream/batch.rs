//! The batches that the records of a stream become.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> encode -> write -> settle`

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_record::{Batch, Buffer, Encoding, FileOrigin, Origin, Time, Values};
use millstream_wire::{
    lines,
    msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time},
};

use super::{
    super::{cutter::Records, parcel::Place},
    Stream,
};

/// Records of fewer bytes are copied out of the buffer they were read into: it has room for the largest request, and a few
/// lines must not hold the room of many.
const COPY_BYTES_MAX: usize = 256 << 10;
impl Stream {
    /// The batch that records become; None if nothing is left of them.
    pub(super) fn batch(
        &self,
        records: Records,
        buffer: &mut Option<Buffer>,
        values: Arc<Values>,
        took: Option<Place>,
    ) -> Option<Batch> {
        let filter = &self.rule.filter;
        let (body, count, encoding) = match records {
            Records::None => return None,
            Records::Any(records) => {
                let (body, count) = self.packed(&records)?;
                (body, count, Encoding::Packed)
            }
            Records::Lines(text) if filter.is_empty() => {
                let count = lines::count(&text);
                (text.into(), count, Encoding::Lines)
            }
            Records::Lines(text) => self.filtered(&text)?,
            Records::InPlace(range) if !filter.is_empty() => {
                let found = buffer.as_ref().and_then(|buffer| buffer.get(range));
                self.filtered(found.unwrap_or_default())?
            }
            Records::InPlace(range) => {
                let body = share(buffer, range);
                let count = lines::count(&body);
                (body, count, Encoding::Lines)
            }
        };
        let mut batch = self.envelope(body, count, encoding, values);
        if let Some(place) = took.filter(|_| self.ship.durable) {
            batch.origins.push(Origin::File(FileOrigin {
                file: self.ship.identity.file(place.slot),
                begin: place.generation,
                next: place.generation + 1,
            }));
        }
        Some(batch)
    }

    fn filtered(&self, text: &[u8]) -> Option<(Bytes, u32, Encoding)> {
        let found = self.rule.filter.lines(text);
        self.ship.meters.filtered.add(u64::from(found.dropped));
        (found.left > 0).then(|| (found.text.into(), found.left, Encoding::Lines))
    }

    /// Records that may hold newlines, as `{"message": record}`.
    fn packed(&self, records: &[Vec<u8>]) -> Option<(Bytes, u32)> {
        let (mut body, mut count) = (Vec::new(), 0);
        let now = Time::now();
        for record in records {
            let Some(record) = self.rule.filter.record(record) else {
                self.ship.meters.filtered.add(1);
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

    pub(super) fn envelope(
        &self,
        body: Bytes,
        count: u32,
        encoding: Encoding,
        values: Arc<Values>,
    ) -> Batch {
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

/// The body that stands in `range` of a buffer.
fn share(buffer: &mut Option<Buffer>, range: Range<usize>) -> Bytes {
    match buffer.take_if(|_| range.len() > COPY_BYTES_MAX) {
        Some(buffer) => buffer.freeze().slice(range),
        None => {
            let found = buffer.as_ref().and_then(|buffer| buffer.get(range));
            Bytes::copy_from_slice(found.unwrap_or_default())
        }
    }
}
