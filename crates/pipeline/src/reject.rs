//! What a node rejects, as records: `[time, {"node", "reason", "tag", "message"}]`, `message` being the original bytes.

use millstream_record::{Batch, Encoding, Values};
use millstream_wire::msgpack::{write_array_len, write_bin, write_map_len, write_str, write_time};

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
        write_array_len(&mut body, 2);
        write_time(&mut body, from.received);
        write_map_len(&mut body, 4);
        for (key, value) in [
            ("node", node),
            ("reason", reason),
            ("tag", from.tag.as_str()),
        ] {
            write_str(&mut body, key.as_bytes());
            write_str(&mut body, value.as_bytes());
        }
        write_str(&mut body, b"message");
        write_bin(&mut body, record);
        count += 1;
    }
    Batch {
        tag: format!("{node}.rejected").as_str().into(),
        encoding: Encoding::Packed,
        body: body.into(),
        count,
        received: from.received,
        values: std::sync::Arc::new(Values::new()),
        origins: Vec::new(),
    }
}
