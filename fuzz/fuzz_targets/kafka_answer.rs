//! Answers of a Kafka broker: any bytes are read as each kind of answer that a producer takes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millstream_kafka::read_each_answer(data));
