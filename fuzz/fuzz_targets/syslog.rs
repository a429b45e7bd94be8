//! Fuzzes the syslog decoder. It appends valid entries, it terminates, and the result does not depend on how the input is cut into
//! pieces. The first bytes choose the settings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::{
    msgpack::Walker,
    syslog::{After, Decoder, Framing, LeftOver, Received, Settings, TimeZone, TooLong},
};

/// 2026-11-21T06:40:31.5Z
const NOW: Time = Time(1_795_243_231_500_000_000);
/// The size of a batch.
const BATCH_BYTES: usize = 512;

/// The result of decoding an input: the records, the parts that are no records, and the decoder's counts.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    records: u64,
    body: Vec<u8>,
    left_over: Vec<(Vec<u8>, LeftOver)>,
    counts: [u64; 4],
}

fn read<'a>(settings: &Settings, pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut decoder = Decoder::new(settings.clone());
    let (mut seen, mut waiting, mut out) = (Seen::default(), Vec::new(), Vec::new());
    let mut take = |waiting: &mut Vec<u8>, after| {
        loop {
            let from = Received {
                now: NOW,
                host: b"peer",
                peer: None,
            };
            let run = decoder.run(waiting, after, &from, &mut out, BATCH_BYTES);
            seen.records += u64::from(run.records);
            for (count, more) in seen.counts.iter_mut().zip([
                run.bare.into(),
                run.long.into(),
                run.cut.into(),
                run.dropped,
            ]) {
                *count += more;
            }
            let more = run.full || run.left_over.is_some();
            if let Some((range, why)) = run.left_over {
                seen.left_over.push((waiting[range].to_vec(), why));
            }
            waiting.drain(..run.consumed);
            seen.body.append(&mut out);
            if !more {
                return;
            }
        }
    };
    for piece in pieces {
        waiting.extend_from_slice(piece);
        take(&mut waiting, After::More);
    }
    take(&mut waiting, After::End);
    assert!(waiting.is_empty(), "the end of a stream leaves no bytes");
    seen
}

fuzz_target!(|data: &[u8]| {
    let [how, size, piece, input @ ..] = data else {
        return;
    };
    let settings = Settings {
        framing: [Framing::Auto, Framing::Octets, Framing::Lines][usize::from(how % 3)],
        too_long: [TooLong::Split, TooLong::Truncate, TooLong::Reject][usize::from(how / 3 % 3)],
        strict: how / 9 % 2 == 1,
        bytes_max: usize::from(*size).max(1),
        zone: TimeZone::UTC,
    };
    let whole = read(&settings, [input].into_iter());
    let mut walker = Walker::new();
    assert!(walker.walk(&whole.body).is_ok());
    assert_eq!(walker.whole(), whole.body.len());
    assert_eq!(
        (u64::from(walker.entries()), walker.misfits()),
        (whole.records, 0)
    );
    let pieces = input.chunks(usize::from(*piece).max(1));
    assert_eq!(read(&settings, pieces), whole);
});
