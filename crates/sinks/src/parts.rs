//! Cuts batches into parts, between records: always in the same places.

use std::ops::Range;

use millstream_record::Batch;

/// The parts of a batch, each as large as `fits` (bytes, records) allows and of one record at least.
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
