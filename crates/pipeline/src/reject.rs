//! What a node rejects, as records: `[time, {"node", "reason", "tag", "message"}]`, `message` being the original bytes.

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Values};
use millstream_wire::msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time};

/// What a record takes beside its texts, at most.
const BESIDE_BYTES: usize = 96;

/// The batch that leaves by `NODE.rejected` for `records` of `from` (their original bytes, one item each).
pub fn batch<'a>(
    node: &str,
    from: &Batch,
    records: impl IntoIterator<Item = &'a [u8]>,
    reason: &str,
) -> Batch {
    let mut body = Vec::new();
    let mut count = 0;
    for record in records {
        write(&mut body, node, from, record, reason);
        count += 1;
    }
    envelope(node, from, body.into(), count)
}

/// So many bytes [`write`] appends at most: for who counts them in a pool.
pub fn bytes(node: &str, from: &Batch, record: &[u8], reason: &str) -> usize {
    node.len() + from.tag.as_str().len() + reason.len() + record.len() + BESIDE_BYTES
}

/// Appends a record to a body for [`envelope`].
pub fn write(body: &mut Vec<u8>, node: &str, from: &Batch, record: &[u8], reason: &str) {
    write_array_len(body, 2);
    write_time(body, from.received);
    write_map_len(body, 4);
    for (key, value) in [
        ("node", node),
        ("reason", reason),
        ("tag", from.tag.as_str()),
    ] {
        write_str(body, key.as_bytes());
        write_str(body, value.as_bytes());
    }
    write_str(body, b"message");
    write_bin(body, record);
}

/// The batch of a body that was written so.
pub fn envelope(node: &str, from: &Batch, body: Bytes, count: u32) -> Batch {
    Batch {
        tag: format!("{node}.rejected").as_str().into(),
        encoding: Encoding::Packed,
        body,
        count,
        received: from.received,
        values: std::sync::Arc::new(Values::new()),
        origins: Vec::new(),
    }
}
