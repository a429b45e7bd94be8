//! Fuzzes the decoder of OTLP logs in JSON with any bytes as a request.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::{
    json::{Progress, to_msgpack},
    otlp::{Logs, Next},
};

fuzz_target!(|data: &[u8]| {
    let mut packed = Vec::new();
    let Ok(Progress::Consumed(_)) = to_msgpack(data, &mut packed) else {
        return;
    };
    let mut logs = Logs::json(&packed);
    let (mut out, mut records) = (Vec::new(), 0);
    loop {
        let capacity = out.capacity();
        match logs.next(Time(1), &mut out) {
            Next::Record => records += 1,
            Next::Bad(..) => {}
            Next::Room(bytes) => {
                out.reserve_exact(bytes);
                continue;
            }
            Next::End => break,
        }
        assert_eq!(out.capacity(), capacity, "the decoder grew the buffer");
    }
    whole::assert_whole(&out, records);
});
