//! What a node rejects, as records: `[time, {"node", "reason", "tag", "message"}]`, `message` being the original bytes.

use millstream_record::{Batch, Encoding, Values};
use millstream_wire::msgpack::write;

/// The batch that leaves by `NODE.rejected` for `records` of `from` (their original bytes, one item each).
pub fn batch<'a>(node: &str, from: &Batch, records: impl IntoIterator<Item = &'a [u8]>, reason: &str) -> Batch {
    let mut body = Vec::new();
    let mut count = 0;
    for record in records {
        write::array(&mut body, 2);
        write::event_time(&mut body, from.received);
        write::map(&mut body, 4);
        for (key, value) in [("node", node), ("reason", reason), ("tag", from.tag.as_str())] {
            write::str(&mut body, key);
            write::str(&mut body, value);
        }
        write::str(&mut body, "message");
        write::bin(&mut body, record);
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
