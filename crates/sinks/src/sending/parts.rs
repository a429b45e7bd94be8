//! Splits large batches. The same batch is always split between the same records.

use std::ops::Range;

use millstream_record::Batch;

/// Bytes of the tag and the values of a batch that each template may write at a time.
const SHARED_BYTES_MAX: usize = 8 << 20;

/// Returns how many records of a batch may be encoded at a time. Templates can write the tag and the values of the batch into each
/// record, which makes tiny records thousands of times longer.
pub(crate) fn records_max(batch: &Batch) -> usize {
    let values = batch.values.iter();
    let values: usize = values.map(|(_, value)| value.len()).sum();
    let shared = batch.tag.as_str().len() + values;
    (SHARED_BYTES_MAX / shared.max(1)).max(1)
}

/// Splits a batch into parts, each as large as `fits(bytes, records)` allows. A part has at least one record.
pub(crate) fn parts(batch: Batch, fits: impl Fn(usize, usize) -> bool) -> Vec<Batch> {
    if fits(batch.len(), batch.count as usize) {
        return vec![batch];
    }
    let part = |range: Range<usize>, records: usize| Batch {
        body: batch.body.slice(range),
        count: u32::try_from(records).unwrap_or(u32::MAX),
        origins: Vec::new(),
        tag: batch.tag.clone(),
        values: batch.values.clone(),
        ..batch
    };
    let mut parts = Vec::new();
    let (mut start, mut records) = (0, 0);
    for (range, _) in millstream_wire::record::records(&batch) {
        if records > 0 && !fits(range.end - start, records + 1) {
            parts.push(part(start..range.start, records));
            (start, records) = (range.start, 0);
        }
        records += 1;
    }
    parts.push(part(start..batch.len(), records));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{self, lines};

    #[test]
    fn parts_add_up_to_the_batch_and_a_large_record_is_its_own_part() {
        let batch = lines("t", "a\nbb\ncccccccc\nd\n");
        let parts = parts(batch.clone(), |bytes, _| bytes <= 5);
        let texts: Vec<&[u8]> = parts.iter().map(|part| &part.body[..]).collect();
        assert_eq!(texts, [&b"a\nbb\n"[..], b"cccccccc\n", b"d\n"]);
        assert_eq!(
            parts.iter().map(|part| part.count).sum::<u32>(),
            batch.count
        );
    }

    #[test]
    fn the_longer_the_tag_and_the_values_the_fewer_records_are_encoded_at_a_time() {
        let mut batch = lines("t", "a\n");
        assert_eq!(records_max(&batch), 8 << 20);
        batch.tag = rig::long_tag().as_str().into();
        assert_eq!(records_max(&batch), 1 << 10);
        let mut values = millstream_record::Values::new();
        values.set("peer", "x".repeat(8 << 10));
        batch.values = std::sync::Arc::new(values);
        assert_eq!(records_max(&batch), 1 << 9);
    }
}
