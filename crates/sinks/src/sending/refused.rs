//! Records that a destination never accepts, and why.

use std::ops::Range;

use millstream_record::Batch;

/// The byte range of a record in its batch's body, and the reason why it is rejected.
pub(crate) type Refused = (Range<usize>, String);

/// Groups neighboring records with the same reason. Yields the reason and the bytes of each record.
pub(crate) fn by_reason<'a>(
    batch: &'a Batch,
    refused: &'a [Refused],
) -> impl Iterator<Item = (&'a str, impl Iterator<Item = &'a [u8]>)> {
    refused.chunk_by(|a, b| a.1 == b.1).map(|group| {
        let records = group
            .iter()
            .filter_map(|(range, _)| batch.body.get(range.clone()));
        (group.first().map_or("", |(_, reason)| reason), records)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::lines;

    #[test]
    fn neighbours_with_the_same_reason_leave_together() {
        let batch = lines("t", "a\nb\nc\n");
        let refused = [(0, "x"), (2, "x"), (4, "y")]
            .map(|(start, reason)| (start..start + 2, reason.to_owned()));
        let groups: Vec<_> = by_reason(&batch, &refused)
            .map(|(reason, records)| (reason, records.collect::<Vec<_>>().concat()))
            .collect();
        assert_eq!(groups, [("x", b"a\nb\n".to_vec()), ("y", b"c\n".to_vec())]);
    }
}
