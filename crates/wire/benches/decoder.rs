//! Speed of decoding single messages and gathering them into a batch: `cargo bench -p millstream-wire --bench decoder`.
//! Prints millions of messages per second: the median of seven rounds over a read buffer that stays in the cache.

use std::{hint::black_box, time::Instant};

use millstream_wire::{
    forward::{Decoder, Form, Options, Step, message_head, write_options},
    msgpack::{Shape, write_event_time, write_map_len, write_str},
};

/// Size of the read buffer.
const STASH_BYTES: usize = 64 << 10;
/// Passes over the buffer in each round.
const LAPS: usize = 2000;

fn messages(chunk: bool) -> (Vec<u8>, usize) {
    let (mut out, mut count) = (Vec::new(), 0);
    while out.len() < STASH_BYTES - 256 {
        out.push(if chunk { 0x94 } else { 0x93 });
        write_str(&mut out, b"bench.tag");
        write_event_time(&mut out, 1_700_000_000, 123_456_789);
        write_map_len(&mut out, 1);
        write_str(&mut out, b"message");
        write_str(&mut out, format!("{count:0100}").as_bytes());
        if chunk {
            let options = Options {
                chunk: Some(b"\xb8ZgvyacdEXhecDRbtet44EQ=="),
                ..Options::default()
            };
            write_options(&mut out, &options);
        }
        count += 1;
    }
    (out, count)
}

fn gather(input: &[u8], batch: &mut Vec<u8>) -> usize {
    let mut decoder = Decoder::new(1 << 20);
    let (mut at, mut count) = (0, 0);
    let head = message_head(input);
    loop {
        if let Some(head) = head {
            let (consumed, records) = decoder.run(&input[at..], head, batch);
            at += consumed;
            count += records as usize;
        }
        let Ok((consumed, step)) = decoder.next(&input[at..]) else {
            return 0;
        };
        at += consumed;
        match step {
            Step::More => return count,
            Step::Frame(frame) if frame.form == Form::Message(Shape::Good) => {
                batch.push(0x92);
                batch.extend_from_slice(frame.body);
                count += 1;
            }
            _ => return 0,
        }
    }
}

#[allow(clippy::print_stdout)]
fn main() {
    for chunk in [false, true] {
        let (input, count) = messages(chunk);
        let mut batch = Vec::with_capacity(2 * STASH_BYTES);
        let mut rates: Vec<f64> = (0..7)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..LAPS {
                    batch.clear();
                    assert_eq!(gather(black_box(&input), &mut batch), count);
                    black_box(&batch);
                }
                (count * LAPS) as f64 / start.elapsed().as_secs_f64() / 1e6
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        println!(
            "message mode, {}: {:.0} M messages/s",
            if chunk { "with chunk" } else { "no option" },
            rates[3]
        );
    }
}
