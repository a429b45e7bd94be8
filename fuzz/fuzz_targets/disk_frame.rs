//! Frames of the disk channel: any bytes are a frame in a segment. The target repairs the checksum of the head, so that the
//! fields behind it are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_channels::disk::log::fuzzing::read_frame;

fuzz_target!(|data: &[u8]| read_frame(data));
