//! Fuzzes the parser of container logs with any bytes as lines. Each parsed line becomes one complete entry. If a line is built from
//! the parsed parts, parsing it gives the same parts.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_wire::cri::{parse, write_entry};

fuzz_target!(|data: &[u8]| {
    // Half of the inputs get a timestamp, so that the fuzzer reaches the fields after it.
    let (timed, data) = match data.split_first() {
        Some((first, rest)) if first % 2 == 0 => (b"2016-10-06T00:17:09.669794202Z ".as_slice(), rest),
        Some((_, rest)) => (b"".as_slice(), rest),
        None => return,
    };
    let text = [timed, data].concat();
    let mut out = Vec::new();
    let mut records = 0;
    for line in text.split(|byte| *byte == b'\n') {
        let Some(found) = parse(line) else { continue };
        assert!(line.ends_with(found.text));
        assert!(!found.stream.is_empty() && !found.stream.contains(&b' '));
        write_entry(&mut out, found.time, found.stream, found.text);
        records += 1;
        let tag = if found.partial { "P" } else { "F" };
        let time = time_of(line);
        let again = [time, b" ", found.stream, b" ", tag.as_bytes(), b" ", found.text].concat();
        assert_eq!(parse(&again), Some(found));
    }
    whole::assert_whole(&out, records);
});

/// The timestamp of a line, as written.
fn time_of(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').next().unwrap_or_default()
}
