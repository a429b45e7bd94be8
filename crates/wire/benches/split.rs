//! Speed of dividing batches by a key: `cargo bench -p millstream-wire --bench split`. Prints millions of records per second
//! for batches of 128 KiB that stay in the cache. The fastest lap counts, because other work on the machine only makes laps
//! slower.

use std::{
    hash::{BuildHasher, Hasher},
    hint::black_box,
    sync::Arc,
    time::Instant,
};

use foldhash::fast::FixedState;
use millstream_record::{Batch, Encoding, Pool, Time, Values};
use millstream_wire::{
    msgpack::{write_array_len, write_event_time, write_map_len, write_str},
    split::Splitter,
};

/// The size of a batch, as the source `generate` sends it.
const BATCH_BYTES: usize = 128 << 10;
/// Number of laps. Each lap is one pass over the batch.
const LAPS: usize = 3000;

/// The hash function that the pipeline uses.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key);
    hasher.finish() >> 32
}

fn batch(encoding: Encoding, size: usize) -> Batch {
    let (mut body, mut count) = (Vec::new(), 0);
    while body.len() < BATCH_BYTES {
        let text = format!("{count:0size$}");
        match encoding {
            Encoding::Lines => {
                body.extend_from_slice(text.as_bytes());
                body.push(b'\n');
            }
            Encoding::Packed => {
                write_array_len(&mut body, 2);
                write_event_time(&mut body, 1_700_000_000, count);
                write_map_len(&mut body, 1);
                write_str(&mut body, b"message");
                write_str(&mut body, text.as_bytes());
            }
        }
        count += 1;
    }
    Batch {
        tag: "sol".into(),
        plain: true,
        encoding,
        body: body.into(),
        count,
        received: Time(1_700_000_000_123_456_789),
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

#[allow(clippy::print_stdout)]
fn main() {
    let template = "{.message}".parse().expect("a template");
    let pool = Pool::new(64 << 20);
    for (encoding, size) in [
        (Encoding::Lines, 99),
        (Encoding::Lines, 300),
        (Encoding::Packed, 99),
    ] {
        let batch = batch(encoding, size);
        for parts in [2, 3, 16] {
            let mut splitter = Splitter::new(&template, hash);
            let laps = (0..LAPS).map(|_| {
                let start = Instant::now();
                black_box(splitter.split(batch.clone(), parts, &pool));
                start.elapsed()
            });
            let fastest = laps.min().unwrap_or_default();
            let speed = f64::from(batch.count) / fastest.as_secs_f64() / 1e6;
            println!("{encoding:?} of {size} bytes, {parts} parts: {speed:6.1} M records/s");
        }
    }
}
