//! Fuzzes the decoder of the forward protocol with any bytes as the input of one connection, which arrives in pieces. The first byte
//! sets the size of the pieces. The frames do not depend on this size, and the part of a body that passes validation consists of
//! complete entries.

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
    // A longer payload that arrives in pieces becomes another step (`Payload` instead of `Frame`), so the results may differ.
    if data.len() <= PAYLOAD_INLINE_MAX {
        assert_eq!(decode(data, data.len().max(1)), pieces);
    }
});

/// Returns the kind and the content of each decoder step for `data`, which arrives in pieces of `size` bytes.
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
            let mut converted = Vec::new();
            let next = match decoder.next(&unread) {
                Ok((consumed, Step::Json)) => {
                    let step = decoder.convert(&unread[..consumed], &mut converted);
                    step.map(|step| (consumed, step))
                }
                next => next,
            };
            let Ok((consumed, step)) = next else {
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
                Step::Json => unreachable!("it was converted"),
            };
            steps.push((kind, bytes));
            unread.drain(..consumed);
        }
    }
    steps
}

/// Asserts that the part of a body that passes validation consists of complete entries.
fn check(body: &[u8]) {
    let mut check = Check::new(Encoding::Packed);
    let _ = check.feed(body);
    let whole = &body[..check.whole()];
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let counts = sift(whole, Time(1), &mut good, &mut bad);
    whole::assert_whole(&good, counts.good as usize);
    // `Check` counts an entry without a time as a misfit. `sift` adds the receive time, and counts the entry as good.
    assert!(counts.bad <= check.misfits() && counts.good >= check.records());
    assert_eq!(counts.good + counts.bad, check.records() + check.misfits());
}
