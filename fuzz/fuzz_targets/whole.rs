//! What every decoder promises of the entries that it writes.

use millstream_wire::msgpack::Walker;

/// Whether `out` holds so many whole entries and nothing else.
pub fn assert_whole(out: &[u8], records: usize) {
    let mut walker = Walker::new();
    walker
        .walk(out)
        .expect("what a decoder writes is MessagePack");
    assert_eq!((walker.whole(), walker.misfits()), (out.len(), 0));
    assert_eq!(walker.entries() as usize, records);
}
