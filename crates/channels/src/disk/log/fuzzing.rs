//! The function that the fuzz target `disk_frame` calls.

use super::{
    ChannelId,
    frame::{Lengths, Place, decode_head, seal},
};

/// Reads `bytes` as the head of a frame: first unchanged, then with a correct checksum, so that the decoder also reads the fields.
///
/// # Panics
/// If a decoded head describes more bytes than there are.
pub fn read_frame(bytes: &[u8]) {
    let place = Place {
        channel: ChannelId([3; 16]),
        segment: 7,
        offset: 8192,
    };
    let _ = decode_head(bytes, &place);
    let Some(lengths) = Lengths::peek(bytes) else {
        return;
    };
    let Some(head) = bytes.get(..lengths.head) else {
        return;
    };
    let (mut head, body) = (head.to_vec(), &bytes[lengths.head..]);
    seal(&mut head, &place, 0);
    let Ok(head) = decode_head(&head, &place) else {
        return;
    };
    assert!(head.part < head.parts);
    assert!(head.tag.as_str().len() + head.values.len() + head.origins.len() <= bytes.len());
    if head.fits_body(body)
        && let Some(batch) = head.batch(body.to_vec().into())
    {
        assert_eq!(batch.body.len(), body.len());
    }
}
