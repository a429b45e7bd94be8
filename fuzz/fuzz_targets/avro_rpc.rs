//! Fuzzes the decoder of Avro RPC with any bytes as the input of one connection, which arrives in pieces. The lower seven bits of the
//! first byte set the size of the pieces. If the highest bit is set, a handshake comes first, so that the fuzzer reaches calls early.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::avro::rpc::{Calls, Fed, Frames, Step};

/// A ping with the handshake of Flume 1.11.
const PING: [u8; 48] = {
    let mut frame = [0; 48];
    let hash = 0x86aa_dae2_c454_74c0_fe93_ffd0_f235_0a65_u128.to_be_bytes();
    frame[7] = 1;
    frame[11] = 36;
    let mut at = 0;
    while at < 16 {
        frame[12 + at] = hash[at];
        frame[29 + at] = hash[at];
        at += 1;
    }
    frame
};

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else {
        return;
    };
    let greeting: &[u8] = if how & 0x80 != 0 { &PING } else { &[] };
    let bytes = [greeting, data].concat();
    let mut frames = Frames::new(1 << 20);
    let mut calls = Calls::new();
    let (mut unread, mut call, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut records = 0;
    for piece in bytes.chunks(usize::from(how & 0x7f) + 1) {
        unread.extend_from_slice(piece);
        loop {
            let Ok((consumed, step)) = frames.next(&unread) else {
                return;
            };
            unread.drain(..consumed);
            match step {
                Step::More => break,
                Step::Bytes(count) => {
                    call.extend(unread.drain(..count));
                    feed(&mut calls, &mut call, &mut out);
                }
                Step::End { .. } => {
                    feed(&mut calls, &mut call, &mut out);
                    let outcome = calls.end(call.len(), &mut out);
                    call.clear();
                    records += outcome.result.ok().flatten().unwrap_or(0) as usize;
                    whole::assert_whole(&out, records);
                }
            }
        }
    }
});

fn feed(calls: &mut Calls, call: &mut Vec<u8>, out: &mut Vec<u8>) {
    loop {
        let capacity = out.capacity();
        let (taken, fed) = calls.feed(call, Time(1), out);
        assert_eq!(out.capacity(), capacity, "the decoder grew the buffer");
        call.drain(..taken);
        match fed {
            Fed::More => return,
            Fed::Room(bytes) => out.reserve_exact(bytes),
        }
    }
}
