//! A check that the fuzz targets share: the output of a decoder consists of complete entries (`[time, record]` in MessagePack).

use millstream_wire::msgpack::Walker;

/// Asserts that `out` holds exactly this number of complete entries.
pub fn assert_whole(out: &[u8], records: usize) {
    let mut walker = Walker::new();
    walker
        .walk(out)
        .expect("a decoder writes MessagePack");
    assert_eq!((walker.whole(), walker.misfits()), (out.len(), 0));
    assert_eq!(walker.entries() as usize, records);
}
