//! How fast entries are validated: `cargo bench -p millstream-wire --bench walker`. Prints million entries a second, the
//! median of seven, for chunks that stay in the cache.

use std::{hint::black_box, time::Instant};

use millstream_wire::msgpack::{
    Walker, write_array_len, write_event_time, write_map_len, write_str,
};

/// Entries in one chunk: about 1 MB at 122 bytes, as the forward benchmarks send it.
const ENTRIES: usize = 8192;
/// Times the chunk is walked for one figure.
const LAPS: usize = 200;

fn chunk(keys: usize, value_bytes: usize) -> Vec<u8> {
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
            let text = format!("{entry:0value_bytes$}");
            write_str(&mut out, text.as_bytes());
        }
    }
    out
}

#[allow(clippy::print_stdout)]
fn main() {
    for (keys, value_bytes) in [(1, 100), (1, 12), (5, 40), (20, 20)] {
        let chunk = chunk(keys, value_bytes);
        let mut rates: Vec<f64> = (0..7)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..LAPS {
                    let mut walker = Walker::new();
                    walker.walk(black_box(&chunk)).expect("it is well formed");
                    assert_eq!(black_box(walker.entries()), ENTRIES as u32);
                }
                (ENTRIES * LAPS) as f64 / start.elapsed().as_secs_f64() / 1e6
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        println!(
            "{keys} keys, {} bytes an entry: {:.0} M entries/s",
            chunk.len() / ENTRIES,
            rates[3]
        );
    }
}
