//! Speed of validating entries: `cargo bench -p millstream-wire --bench walker`. Prints millions of entries per second
//! for chunks that stay in the cache. The fastest lap counts, because other work on the machine only makes laps slower.

use std::{hint::black_box, time::Instant};

use millstream_wire::msgpack::{
    Walker, write_array_len, write_event_time, write_map_len, write_str, write_uint,
};

/// Entries per chunk: about 1 MB at 122 bytes, as in the forward benchmarks.
const ENTRIES: usize = 8192;
/// Number of laps. Each lap is one pass over the chunk.
const LAPS: usize = 2000;

/// Entries with `keys` fields, of which the last `numbers` are numbers and the others texts.
fn chunk(keys: usize, value_bytes: usize, numbers: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in 0..ENTRIES {
        write_array_len(&mut out, 2);
        write_event_time(&mut out, 1_700_000_000, 123_456_789);
        write_map_len(&mut out, keys as u32);
        for key in 0..keys {
            let name = if keys == 1 {
                "message".to_owned()
            } else {
                format!("key{key}")
            };
            write_str(&mut out, name.as_bytes());
            if key + numbers >= keys {
                write_uint(&mut out, 200 + (entry as u64 % 5) * 1_000_000);
                continue;
            }
            let text = format!("{entry:0value_bytes$}");
            write_str(&mut out, text.as_bytes());
        }
    }
    out
}

#[allow(clippy::print_stdout)]
fn main() {
    for (keys, value_bytes, numbers) in
        [(1, 100, 0), (1, 12, 0), (5, 40, 0), (5, 40, 3), (20, 20, 0)]
    {
        let chunk = chunk(keys, value_bytes, numbers);
        let fastest = (0..LAPS)
            .map(|_| {
                let start = Instant::now();
                let mut walker = Walker::new();
                walker.walk(black_box(&chunk)).expect("it is well formed");
                assert_eq!(black_box(walker.entries()), ENTRIES as u32);
                start.elapsed()
            })
            .min()
            .unwrap_or_default();
        println!(
            "{keys} keys ({numbers} numbers), {} bytes an entry: {:.0} M entries/s",
            chunk.len() / ENTRIES,
            ENTRIES as f64 / fastest.as_secs_f64() / 1e6
        );
    }
}
