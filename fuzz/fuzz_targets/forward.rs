//! The forward protocol: any bytes are a connection, cut into pieces of the size in the first byte. The frames do not depend on the
//! pieces, and every body that passes validation consists of entries.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_record::{Encoding, Time};
use millstream_wire::forward::{Check, Decoder, PAYLOAD_INLINE_MAX, Step, sift};

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else {
        return;
    };
    let pieces = decode(data, usize::from(*how) + 1);
    // A longer payload is announced if it is cut.
    if data.len() <= PAYLOAD_INLINE_MAX {
        assert_eq!(decode(data, data.len().max(1)), pieces);
    }
});

/// The steps of a connection.
fn decode(data: &[u8], size: usize) -> Vec<(u8, Vec<u8>)> {
    let mut decoder = Decoder::new(1 << 20);
    let mut unread = Vec::new();
    let mut steps = Vec::new();
    let mut payload = 0;
    for piece in data.chunks(size) {
        unread.extend_from_slice(piece);
        loop {
            let passed = payload.min(unread.len());
            unread.drain(..passed);
            payload -= passed;
            if payload > 0 {
                break;
            }
            let Ok((consumed, step)) = decoder.next(&unread) else {
                steps.push((255, Vec::new()));
                return steps;
            };
            let (kind, bytes) = match step {
                Step::More => {
                    unread.drain(..consumed);
                    break;
                }
                Step::Frame(frame) => {
                    check(frame.body);
                    (1, frame.body.to_vec())
                }
                Step::Payload(head) => {
                    payload = head.length;
                    (2, head.tag.to_vec())
                }
                Step::End(_) => (3, Vec::new()),
                Step::Heartbeat => (4, Vec::new()),
                Step::Misfit { value, .. } => (5, value.to_vec()),
                Step::Stray => (6, Vec::new()),
            };
            steps.push((kind, bytes));
            unread.drain(..consumed);
        }
    }
    steps
}

/// The good part of a body consists of entries, whatever the rest is.
fn check(body: &[u8]) {
    let mut check = Check::new(Encoding::Packed);
    let _ = check.feed(body);
    let whole = &body[..check.whole()];
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let counts = sift(whole, Time(1), &mut good, &mut bad);
    whole::assert_whole(&good, counts.good as usize);
    // An entry without a time is a misfit to the check, and good once it has the receive time.
    assert!(counts.bad <= check.misfits() && counts.good >= check.records());
    assert_eq!(counts.good + counts.bad, check.records() + check.misfits());
}
