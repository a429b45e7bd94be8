//! Runs of similar single messages: the fast loop for clients that send one record per message.
//!
//! Such messages differ only after their tag. So the loop does not return a [`Step`](super::Step) per message. It compares the bytes up to
//! the end of the tag, finds the end of the record, and appends the entry. The first message that begins with other bytes ends the run, and
//! [`Decoder::next`] decodes it.

use super::Decoder;
use crate::msgpack::{Plain, Reader, is_map, skip};

/// Returns the array marker and the tag of the single message at the start of `input`, as its sender wrote them.
/// [`Decoder::run`] compares the next messages with these bytes. `None` if the message has an option map. The caller has
/// checked that `input` begins with a single message.
pub fn message_head(input: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(input);
    if reader.array_len() != Ok(3) {
        return None;
    }
    reader.bytes().ok()?;
    input.get(..reader.position())
}

impl Decoder {
    /// Appends the entries of the messages at the front of `input`. Each of these messages is complete, begins with `head`, and has a
    /// 32-bit integer or an EventTime as time. Stops at any other message, or when the next entry does not fit into the capacity of `out`.
    /// Returns the number of bytes consumed, and the number of records appended.
    pub fn run(&mut self, input: &[u8], head: &[u8], out: &mut Vec<u8>) -> (usize, u32) {
        if !self.is_between() {
            return (0, 0);
        }
        let (mut at, mut records) = (0, 0);
        let mut plain = Plain::default();
        while let Some(rest) = input.get(at..)
            && let Some(message) = rest.strip_prefix(head)
        {
            let time = match *message {
                [0xd7, 0, _, _, _, _, _, _, _, _, map, ..] if is_map(map) => 10,
                [0xce, _, _, _, _, map, ..] if is_map(map) => 5,
                _ => break,
            };
            let (start, mut open) = match message.get(time) {
                Some(map @ 0x80..=0x8f) => plain.skip(message, time + 1, u16::from(map & 0x0f)),
                _ => (time, 1),
            };
            let Ok(end) = skip(message, start, &mut open) else {
                break;
            };
            if open > 0 || end + 1 > out.capacity() - out.len() {
                break;
            }
            out.push(0x92);
            out.extend_from_slice(message.get(..end).unwrap_or_default());
            at += head.len() + end;
            records += 1;
        }
        self.pass(at);
        (at, records)
    }
}
