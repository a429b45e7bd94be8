//! The function that the fuzz target `exec` calls.

use millstream_wire::msgpack::{write_array_len, write_uint};

use super::protocol::{Answers, Format, records_of};

/// Reads the output of a program, which arrives in pieces of at most `step` bytes. Stops at the first unusable answer. Returns
/// the records of the usable answers as packed entries (`[time, record]` in MessagePack), the number of these answers, and
/// whether all answers were usable.
///
/// # Panics
/// If the number of pending bytes does not agree with the buffer.
pub fn read_answers(is_msgpack: bool, output: &[u8], step: usize) -> (Vec<u8>, usize, bool) {
    let format = match is_msgpack {
        true => Format::Msgpack,
        false => Format::Json,
    };
    let (mut answers, mut entries, mut count) = (Answers::new(format), Vec::new(), 0);
    for piece in output.chunks(step.max(1)) {
        answers.buffer.extend_from_slice(piece);
        loop {
            let answer = match answers.next() {
                Ok(None) => break,
                Ok(Some(answer)) => answer,
                Err(_) => return (entries, count, false),
            };
            let before = entries.len();
            let added = records_of(answer, |record| {
                write_array_len(&mut entries, 2);
                write_uint(&mut entries, 1);
                entries.extend_from_slice(record);
                Ok::<_, String>(())
            });
            if added.is_err() {
                entries.truncate(before);
                return (entries, count, false);
            }
            count += 1;
        }
        assert!(answers.pending() <= answers.buffer.len());
        answers.release();
        assert_eq!(answers.pending(), answers.buffer.len());
    }
    (entries, count, true)
}
