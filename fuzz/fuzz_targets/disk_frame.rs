//! Fuzzes the reader of the disk channel's frames with any bytes as a frame in a segment. The target also tries the head with a correct
//! checksum, so that the fuzzer reaches the fields of the head.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_channels::disk::log::fuzzing::read_frame;

fuzz_target!(|data: &[u8]| read_frame(data));
