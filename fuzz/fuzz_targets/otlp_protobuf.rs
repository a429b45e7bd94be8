//! Fuzzes the decoder of OTLP logs in protobuf with any bytes as a request.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::otlp::{Logs, Next};

fuzz_target!(|data: &[u8]| {
    let mut logs = Logs::protobuf(data);
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
