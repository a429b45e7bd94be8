//! What a node rejects, as records: `[time, {"node", "reason", "tag", "message"}]`, `message` being the original bytes. The
//! values of its batch (`peer`, `host`, `path`) are fields, too: they say who sent it.

use bytes::Bytes;
use millstream_record::{Batch, Encoding};
use millstream_wire::msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time};

/// What a record takes beside its texts, at most.
const BESIDE_BYTES: usize = 96;
/// What a value and its name take beside their bytes, at most.
const BESIDE_VALUE_BYTES: usize = 10;
/// Fields that no value replaces.
const OWN: [&str; 4] = ["node", "reason", "tag", "message"];

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
    let values = values(from).map(|(name, value)| name.len() + value.len() + BESIDE_VALUE_BYTES);
    let texts = node.len() + from.tag.as_str().len() + reason.len() + record.len();
    texts + values.sum::<usize>() + BESIDE_BYTES
}

fn values(from: &Batch) -> impl Iterator<Item = (&str, &str)> {
    let values = from.values.iter();
    values.filter(|(name, _)| !OWN.contains(name))
}

/// Appends a record to a body for [`envelope`].
pub fn write(body: &mut Vec<u8>, node: &str, from: &Batch, record: &[u8], reason: &str) {
    write_array_len(body, 2);
    write_time(body, from.received);
    let fields = OWN.len() + values(from).count();
    write_map_len(body, u32::try_from(fields).unwrap_or(u32::MAX));
    let own = [
        ("node", node),
        ("reason", reason),
        ("tag", from.tag.as_str()),
    ];
    for (key, value) in own.into_iter().chain(values(from)) {
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
        plain: true,
        encoding: Encoding::Packed,
        body,
        count,
        received: from.received,
        values: from.values.clone(),
        origins: Vec::new(),
    }
}
