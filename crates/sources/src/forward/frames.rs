//! Turns frames into batches. Small frames are gathered. Frames that are long, compressed or faulty, or that bring values such as
//! `host` from another Millstream, become separate batches.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`

use bytes::Bytes;
use millstream_record::{Claim, Encoding, Tag};
use millstream_sys::checksum::crc32c;
use millstream_wire::{
    compression::Codec,
    forward::{
        Check, Compressed, Form, Frame, Options, Signal, message_head, sift, sifted_bytes_max,
        write_timed,
    },
    msgpack::{Reader, Shape, is_nested},
};

use super::{
    bundle,
    content::Content,
    end::End,
    outgoing::{Outgoing, YIELD_BYTES},
    poison::Key,
};

/// Maximum number of bytes by which a message grows when its nil time is replaced and an array marker is added.
const TIME_BYTES: usize = 16;

/// Up to this many bad values of a payload are rejected one by one. If there are more, all of them become one record, because
/// each record costs about a hundred bytes.
const REJECTED_SINGLY_MAX: u32 = 1024;

/// A payload that was received completely.
pub(super) struct Payload {
    pub(super) tag: Tag,
    pub(super) encoding: Encoding,
    pub(super) body: Bytes,
    /// The bytes of pool memory that `body` holds.
    pub(super) held: usize,
    /// The result of checking `body`, if it is not compressed.
    pub(super) check: Check,
    /// Whether `body` is MessagePack to its end, if it is not compressed.
    pub(super) sound: bool,
    /// The claim on memory for the payload.
    pub(super) claim: Claim,
}

/// Handles a frame. `input` starts with its bytes.
pub(super) async fn frame(out: &mut Outgoing, frame: &Frame<'_>, input: &[u8]) -> Result<(), End> {
    out.acks.note(frame.options.chunk);
    if frame.options.signal != Signal::Logs {
        return drop_signal(out, frame.options.chunk).await;
    }
    let (encoding, plain) = match frame.form {
        Form::Message(shape) => return message(out, frame, shape, input).await,
        Form::Forward(_) => (Encoding::Packed, true),
        Form::Packed => (Encoding::Packed, frame.is_plain()),
        Form::Lines => (Encoding::Lines, frame.is_plain()),
    };
    let mut check = Check::new(encoding);
    let sound = check.feed(frame.body).is_ok();
    let whole = sound && check.whole() == frame.body.len() && check.misfits() == 0;
    let ours = frame.options.values.is_some() || frame.options.received.is_some();
    if !plain || !whole || ours {
        return alone(out, frame, encoding, check, sound).await;
    }
    if frame.body.is_empty() {
        // The TCP heartbeat `["", []]` or an empty chunk: there is nothing to keep.
        out.flush().await;
        out.acks.answer(Vec::new(), frame.options.chunk).await;
        return Ok(());
    }
    out.prepare(frame.tag, encoding, frame.body.len()).await?;
    let Some((body, count)) = out.gather.body() else {
        return Ok(());
    };
    let start = body.len();
    body.extend_from_slice(frame.body);
    *count += check.records();
    if !check.is_plain() {
        out.gather.set_nested();
    }
    out.note_chunk(frame, start, check.records());
    Ok(())
}

/// Handles a message: one record with its time.
async fn message(
    out: &mut Outgoing,
    frame: &Frame<'_>,
    shape: Shape,
    input: &[u8],
) -> Result<(), End> {
    let chunk = frame.options.chunk;
    if shape == Shape::Mark {
        // It begins or ends a group of Fluent Bit, and is no record.
        out.flush().await;
        out.acks.answer(Vec::new(), chunk).await;
        return Ok(());
    }
    if shape == Shape::Misfit {
        out.flush().await;
        let tag = out.tag(frame.tag);
        let reason = "the time is not a time or the record is not a map";
        out.reject_whole(tag, frame.body, reason, chunk).await;
        return Ok(());
    }
    let bytes = frame.body.len() + TIME_BYTES;
    out.prepare(frame.tag, Encoding::Packed, bytes).await?;
    let now = out.now;
    let Some((body, count)) = out.gather.body() else {
        return Ok(());
    };
    let start = body.len();
    body.push(0x92);
    if shape == Shape::Timeless {
        write_timed(frame.body, now, body);
    } else {
        body.extend_from_slice(frame.body);
    }
    *count += 1;
    if is_nested(frame.body) {
        out.gather.set_nested();
    }
    out.note_chunk(frame, start, 1);
    if chunk.is_none()
        && !out.acks.json
        && let Some(head) = message_head(input)
    {
        out.gather.set_head(head);
    }
    Ok(())
}

/// Handles a frame that cannot be gathered, because it is compressed, has faults, or has the option `millstream`.
async fn alone(
    out: &mut Outgoing,
    frame: &Frame<'_>,
    encoding: Encoding,
    check: Check,
    sound: bool,
) -> Result<(), End> {
    out.flush().await;
    let mut options = frame.options.clone();
    if let Form::Forward(_) = frame.form {
        options.compressed = Default::default();
    }
    let claim = out.service.context.pool.claim(0);
    let payload = Payload {
        tag: out.tag(frame.tag),
        encoding,
        body: own(out, frame.body, &claim).await?,
        held: 0,
        check,
        sound,
        claim,
    };
    deliver(out, payload, &options).await
}

/// Copies the bytes of a frame into separate memory.
async fn own(out: &Outgoing, body: &[u8], claim: &Claim) -> Result<Bytes, End> {
    if body.len() <= YIELD_BYTES {
        return Ok(Bytes::copy_from_slice(body));
    }
    let mut buffer = out.memory(body.len(), claim).await?;
    buffer.extend_from_slice(body);
    Ok(buffer.freeze())
}

/// Rejects an array that is not a frame.
pub(super) async fn misfit(out: &mut Outgoing, value: &[u8], chunk: Option<&[u8]>) {
    out.acks.note(chunk);
    out.flush().await;
    let reason = "an array that is not a frame of the forward protocol";
    out.reject_whole(Tag::from(""), value, reason, chunk).await;
}

/// Drops a frame of metrics, traces or another signal that is not logs: counts and acks it. Such a frame has no records. If it left by
/// the port `rejected`, it would fill the store of rejected records, and then also hold up the logs of its connection.
#[cold]
async fn drop_signal(out: &mut Outgoing, chunk: Option<&[u8]>) -> Result<(), End> {
    out.flush().await;
    let service = &out.service;
    service.meters.frames_dropped.add(1);
    let text = "a sender sends metrics or traces of Fluent Bit, which are dropped: let only logs match its output";
    service.context.reporter.warn("signal", text);
    out.acks.answer(Vec::new(), chunk).await;
    Ok(())
}

/// Sends a payload once its options are known. The gathered batch must have been sent before.
pub(super) async fn deliver(
    out: &mut Outgoing,
    payload: Payload,
    options: &Options<'_>,
) -> Result<(), End> {
    out.acks.note(options.chunk);
    let (encoding, body) = (payload.encoding, payload.body);
    if options.signal != Signal::Logs {
        return drop_signal(out, options.chunk).await;
    }
    let codec = match options.compressed {
        Compressed::No => None,
        Compressed::Gzip => Some(Codec::Gzip),
        Compressed::Zstd => Some(Codec::Zstd),
        Compressed::Unknown => {
            let reason = "`compressed` is not text, gzip or zstd";
            return broken(out, payload.tag, &body, reason, options).await;
        }
    };
    let content = match codec {
        None => Content {
            body: body.clone(),
            check: payload.check,
            sound: payload.sound,
        },
        Some(codec) => match Content::inflate(out, codec, encoding, &body, &payload.claim).await? {
            Ok(content) => content,
            Err(reason) => return broken(out, payload.tag, &body, &reason, options).await,
        },
    };
    if !content.is_whole() && refuses(out, &body, options) {
        return Err(End::Poisoned(content.fault()));
    }
    if !content.is_whole() || content.check.misfits() > 0 {
        let kind = (payload.tag, encoding);
        return sort(out, kind, &body, content, options, &payload.claim).await;
    }
    let mut receipts = Vec::new();
    if !content.body.is_empty() {
        let records = (content.check.records(), content.check.is_plain());
        let batch = out.batch(payload.tag, encoding, content.body, &body, options, records);
        receipts.push(out.send(batch, options.chunk.is_some()).await);
    }
    out.acks.answer(receipts, options.chunk).await;
    Ok(())
}

/// Sends the batches of a bundle as one group.
async fn bundle(
    out: &mut Outgoing,
    tag: Tag,
    content: &Bytes,
    received: &Bytes,
    options: &Options<'_>,
) -> Result<(), End> {
    let Some(batches) = bundle::batches(out, content, received, options) else {
        let reason = "a bundle whose content is not the frames that its options state";
        return broken(out, tag, received, reason, options).await;
    };
    let outlet = &out.service.context.outlet;
    let receipt = outlet.send_group(batches, options.chunk.is_some()).await;
    out.acks.answer(vec![receipt], options.chunk).await;
    tokio::task::yield_now().await;
    Ok(())
}

/// Handles a payload with faults or with groups of Fluent Bit, or a bundle: sends the good records, rejects faults, then acks the
/// payload.
async fn sort(
    out: &mut Outgoing,
    (tag, encoding): (Tag, Encoding),
    received: &Bytes,
    content: Content,
    options: &Options<'_>,
    claim: &Claim,
) -> Result<(), End> {
    // The frames in a bundle are not entries.
    if options.frames.is_some() {
        return bundle(out, tag, &content.body, received, options).await;
    }
    let end = content.check.whole();
    let behind = content.body.slice(end..);
    let (mut good, mut records) = (content.body.slice(..end), content.check.records());
    let mut bad = Bytes::new();
    let mut misfits = 0;
    if encoding == Encoding::Packed && content.check.misfits() > 0 {
        // The metadata of a group are repeated in each of its records.
        let (bytes, bytes_max) = (sifted_bytes_max(&good), out.service.decompressed_bytes_max);
        if bytes > bytes_max.max(end) {
            let reason =
                format!("its groups have more than {bytes_max} bytes (limits.decompressed)");
            out.reject_whole(tag, received, &reason, options.chunk)
                .await;
            return Ok(());
        }
        let mut sifted = out.memory(bytes, claim).await?;
        let mut misfit = out.service.context.pool.take(end);
        let received = options.received.unwrap_or(out.now);
        let counts = sift(&good, received, &mut sifted, &mut misfit);
        (good, bad) = (sifted.freeze(), misfit.freeze());
        (records, misfits) = (counts.good, counts.bad);
    }
    let mut receipts = Vec::new();
    if !bad.is_empty() || !behind.is_empty() {
        let singly = (misfits <= REJECTED_SINGLY_MAX)
            .then(|| values(&bad))
            .into_iter()
            .flatten();
        let at_once = (misfits > REJECTED_SINGLY_MAX).then_some(&bad[..]);
        let items = singly
            .chain(at_once)
            .chain((!behind.is_empty()).then_some(&behind[..]));
        let reason = content.fault();
        receipts.push(out.reject(tag.clone(), items, &reason, options.chunk).await);
    }
    if records > 0 {
        let records = (records, content.check.is_plain());
        let batch = out.batch(tag, encoding, good, received, options, records);
        receipts.push(out.send(batch, options.chunk.is_some()).await);
    }
    out.acks.answer(receipts, options.chunk).await;
    Ok(())
}

/// Handles a payload that cannot be decompressed: refuses it a few times, then rejects all of it.
async fn broken(
    out: &Outgoing,
    tag: Tag,
    body: &Bytes,
    reason: &str,
    options: &Options<'_>,
) -> Result<(), End> {
    if refuses(out, body, options) {
        return Err(End::Poisoned(reason.to_owned()));
    }
    out.reject_whole(tag, body, reason, options.chunk).await;
    Ok(())
}

/// Whether to refuse the payload this time. A refusal closes the connection, so that the sender resends the payload. A payload
/// without an id is never refused, because its sender would not resend it.
fn refuses(out: &Outgoing, body: &[u8], options: &Options<'_>) -> bool {
    options.chunk.is_some_and(|id| {
        out.service.poison.refuses(Key {
            id: id.to_vec(),
            length: body.len(),
            checksum: crc32c(body),
        })
    })
}

/// Iterates over the values of a stream that consists of complete values.
fn values(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(stream);
    std::iter::from_fn(move || reader.value().ok())
}
