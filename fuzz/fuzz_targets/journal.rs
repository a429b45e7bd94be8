//! Fuzzes the parser of systemd's Journal Export Format with any bytes as the output of `journalctl`, which arrives in pieces. The first
//! byte sets the size of the pieces. Every entry becomes one complete record, and the result does not depend on the pieces.

#![no_main]

mod whole;

use libfuzzer_sys::fuzz_target;
use millstream_record::Time;
use millstream_wire::journal::{Malformed, Scanned, scan};

const NOW: Time = Time(1_795_243_231_500_000_000);

/// The result of reading an input: the entries, their cursors, the error or the rejected entry that ended it, and the bytes of an
/// incomplete entry.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    entries: usize,
    body: Vec<u8>,
    cursors: Vec<Vec<u8>>,
    malformed: Option<Malformed>,
    has_too_many_fields: bool,
    left: Vec<u8>,
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut seen = Seen::default();
    for piece in pieces {
        seen.left.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match scan(&seen.left[at..]) {
                Err(malformed) => {
                    seen.malformed = Some(malformed);
                    seen.left.clear();
                    return seen;
                }
                Ok(Scanned::TooManyFields { cursor, .. }) => {
                    seen.cursors.push(cursor.to_vec());
                    seen.has_too_many_fields = true;
                    seen.left.clear();
                    return seen;
                }
                Ok(Scanned::Partial) => break,
                Ok(Scanned::Blank(bytes)) => at += bytes,
                Ok(Scanned::Entry(entry)) => {
                    entry.write(NOW, &mut seen.body);
                    seen.cursors.push(entry.cursor.to_vec());
                    seen.entries += 1;
                    at += entry.length;
                }
            }
        }
        seen.left.drain(..at);
    }
    seen
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, input)) = data.split_first() else {
        return;
    };
    let all = read([input].into_iter());
    whole::assert_whole(&all.body, all.entries);
    assert_eq!(read(input.chunks(usize::from(*piece).max(1))), all);
});
