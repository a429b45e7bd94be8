//! Frames are read back as they were written, and damage is found.

use std::sync::Arc;

use millstream_record::{ChunkOrigin, FileId, FileOrigin};
use proptest::prelude::*;

use super::*;

fn place(offset: u64) -> Place {
    Place {
        channel: ChannelId([3; 16]),
        segment: 7,
        offset,
    }
}

fn sample() -> (Batch, Stamp) {
    let mut values = Values::new();
    values.set("host", "web-1");
    let chunk = ChunkOrigin {
        id: Bytes::from_static(b"\xa3abc"),
        tag: Tag::from("web.access"),
        connection: 9,
        length: 4,
        checksum: 5,
        start: 0,
        end: 4,
        records: 1,
    };
    let retagged = ChunkOrigin {
        tag: Tag::from("raw"),
        ..chunk.clone()
    };
    let file = FileOrigin {
        file: FileId {
            device: 1,
            inode: 2,
            birth: -3,
            head: 4,
        },
        begin: 5,
        next: 6,
    };
    let batch = Batch {
        tag: Tag::from("web.access"),
        plain: true,
        encoding: Encoding::Lines,
        body: Bytes::from_static(b"abc\ndef\n"),
        count: 2,
        received: Time(55),
        values: Arc::new(values),
        origins: vec![
            Origin::Chunk(chunk),
            Origin::Chunk(retagged),
            Origin::File(file),
        ],
    };
    let stamp = Stamp {
        kind: Kind::Batch,
        position: Position { epoch: 2, seq: 300 },
        keep_time: Time(77),
        part: 1,
        parts: 3,
    };
    (batch, stamp)
}

fn encoded(offset: u64) -> Vec<u8> {
    let (batch, stamp) = sample();
    let mut head = Vec::new();
    encode_head(&mut head, &stamp, Some(&batch), &[4, 5]);
    seal(&mut head, &place(offset), 4096);
    head
}

#[test]
fn a_head_reads_back_as_it_was_written() {
    let (batch, stamp) = sample();
    let head = decode_head(&encoded(8192), &place(8192)).unwrap();
    assert_eq!(
        (head.position, head.keep_time),
        (stamp.position, stamp.keep_time)
    );
    assert_eq!((head.part, head.parts), (1, 3));
    assert_eq!((head.synced, head.closed.as_slice()), (4096, &[4, 5][..]));
    assert!(head.fits_body(&batch.body) && !head.fits_body(b"abc\ndeg\n"));
    let again = head.batch(batch.body.clone()).unwrap();
    assert_eq!(
        (again.tag, again.count, again.encoding, again.plain),
        (batch.tag, 2, batch.encoding, true)
    );
    assert_eq!(
        again.received,
        Time(55),
        "the receive time is not the keep time"
    );
    assert_eq!((again.values, again.origins), (batch.values, batch.origins));
}

#[test]
fn a_frame_is_invalid_at_any_other_place() {
    let head = encoded(8192);
    assert_eq!(decode_head(&head, &place(8200)).unwrap_err(), Misfit::Head);
    for other in [
        Place {
            segment: 8,
            ..place(8192)
        },
        Place {
            channel: ChannelId([4; 16]),
            ..place(8192)
        },
    ] {
        assert_eq!(decode_head(&head, &other).unwrap_err(), Misfit::Head);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let head = encoded(8192);
    for bit in 0..head.len() * 8 {
        let mut damaged = head.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_head(&damaged, &place(8192)).is_err(), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_head(&bytes, &place(0));
    }

    #[test]
    fn no_fields_with_a_valid_checksum_make_the_decoder_panic(
        at in 16usize..96,
        value in any::<u32>(),
    ) {
        let mut head = encoded(0);
        head[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let crc = head_checksum(&head, &place(0));
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        let _ = decode_head(&head, &place(0));
    }
}
