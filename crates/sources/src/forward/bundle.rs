//! A bundle from another Millstream: a frame whose payload is several frames.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`
//!
//! Its batches form one group, which a disk channel keeps as a whole or not at all. All of them have the id of the bundle.

use bytes::Bytes;
use millstream_record::{Batch, ChunkOrigin, Encoding, Origin};
use millstream_sys::checksum::crc32c;
use millstream_wire::forward::{BUNDLE_FRAMES_MAX, Check, Decoder, Form, Frame, Options, Step};

use super::outgoing::Outgoing;

/// The batches of a bundle with this content; `None` if the content is anything else than the number of frames that the options state.
/// `received`: the payload before decompression.
pub(super) fn batches(
    out: &mut Outgoing,
    content: &Bytes,
    received: &[u8],
    options: &Options<'_>,
) -> Option<Vec<Batch>> {
    let frames = usize::try_from(options.frames?).ok()?;
    if frames > BUNDLE_FRAMES_MAX {
        return None;
    }
    let id = options.chunk.filter(|_| out.service.durable);
    let id = id.map(|id| (Bytes::copy_from_slice(id), crc32c(received)));
    let mut decoder = Decoder::new(content.len());
    let (mut batches, mut at) = (Vec::with_capacity(frames), 0);
    while at < content.len() {
        let (consumed, Step::Frame(frame)) = decoder.next(&content[at..]).ok()? else {
            return None;
        };
        at += consumed;
        let mut batch = batch(out, content, &frame)?;
        batch.origins.extend(id.as_ref().map(|(id, checksum)| {
            Origin::Chunk(ChunkOrigin {
                id: id.clone(),
                tag: batch.tag.clone(),
                connection: out.number(),
                length: received.len() as u32,
                checksum: *checksum,
                start: 0,
                end: batch.body.len() as u32,
                records: batch.count,
            })
        }));
        batches.push(batch);
    }
    (batches.len() == frames).then_some(batches)
}

/// The batch of one frame, without origins; `None` if the frame is no part of a bundle.
fn batch(out: &mut Outgoing, content: &Bytes, frame: &Frame<'_>) -> Option<Batch> {
    let encoding = match frame.form {
        Form::Packed => Encoding::Packed,
        Form::Lines => Encoding::Lines,
        Form::Forward(_) | Form::Message(_) => return None,
    };
    let mut check = Check::new(encoding);
    let is_sound = check.feed(frame.body).is_ok() && check.whole() == frame.body.len();
    let is_good = is_sound && check.misfits() == 0 && frame.is_plain() && check.records() > 0;
    if !is_good || frame.options.chunk.is_some() {
        return None;
    }
    let tag = out.tag(frame.tag);
    let body = content.slice_ref(frame.body);
    let records = (check.records(), check.is_plain());
    Some(out.batch(tag, encoding, body, &[], &frame.options, records))
}
