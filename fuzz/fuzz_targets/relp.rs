//! Fuzzes the decoder of RELP sessions. No part of a frame is longer than the limit, and the result does not depend on how the input is
//! cut into pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_wire::relp::{Command, Decoder, Offers, Refusal, Step};

/// The frames (number, command, data), and whether the input ends within a frame, or why the decoder refused the input.
type Seen = (Vec<(u32, Command, Vec<u8>)>, Result<bool, Refusal>);

fn read<'a>(bytes_max: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut decoder = Decoder::new(bytes_max);
    let (mut seen, mut waiting, mut long) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let (consumed, step) = match decoder.next(&waiting) {
                Ok(next) => next,
                Err(refusal) => return (seen, Err(refusal)),
            };
            let more = step == Step::More;
            match step {
                Step::More => {}
                Step::Frame {
                    number,
                    command,
                    data,
                } => {
                    let _ = Offers::read(&waiting[data.clone()]);
                    seen.push((number, command, waiting[data].to_vec()));
                }
                Step::Part { number, data, last } => {
                    assert!(data.len() <= bytes_max);
                    long.extend_from_slice(&waiting[data]);
                    if last {
                        seen.push((number, Command::Syslog, std::mem::take(&mut long)));
                    }
                }
            }
            waiting.drain(..consumed);
            if more {
                break;
            }
        }
    }
    let amid = decoder.is_amid(waiting.len());
    (seen, Ok(amid))
}

fuzz_target!(|data: &[u8]| {
    let [size, piece, rest @ ..] = data else {
        return;
    };
    // Every input begins with the frame that opens a session, because a fuzzer rarely finds it.
    let mut input = b"1 open 15 commands=syslog\n".to_vec();
    input.extend_from_slice(rest);
    let bytes_max = usize::from(*size).max(1);
    let whole = read(bytes_max, [&input[..]].into_iter());
    assert_eq!(
        read(bytes_max, input.chunks(usize::from(*piece).max(1))),
        whole
    );
});
