//! Fuzzes the Kafka client: any bytes are read as each kind of response that a producer receives from a broker.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millstream_kafka::read_each_answer(data));
