//! Encodes batches as framed messages, maps each message to its record, and keeps it until it is delivered.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! octets      118 <13>1 2026-11-21T...Z web-1 app 77 - - textNEXT
//! lines       <13>1 2026-11-21T...Z web-1 app 77 - - text\n
//! datagrams   <13>1 2026-11-21T...Z web-1 app 77 - - text
//! ```

use std::{collections::VecDeque, ops::Range};

use millstream_record::Batch;
use millstream_wire::{
    format::{Encoder, Mark, Reject},
    syslog,
};

/// The longest datagram of UDP over IPv4.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// How messages are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Octets,
    Lines,
    Datagrams,
}

/// A block takes more messages until it has this many bytes.
const BLOCK_BYTES: usize = 256 << 10;

/// A message in a block.
#[derive(Debug)]
struct Message {
    /// The end of the message in the block.
    end: usize,
    /// The index of its batch in [`Block::batches`], and the byte range of its record in that batch.
    batch: usize,
    record: Range<usize>,
}

/// Consecutive messages.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// The batches of the messages, with their numbers in the sink's lane (parallel task).
    batches: Vec<(u64, Batch)>,
}

/// The messages that are not delivered, oldest first: written ones, of which the connection may not have proven that they are
/// delivered, and then those that wait to be written.
///
/// ```text
/// | delivered | written | written in part, and not written |
///             done      next (+ bytes)
/// ```
pub(super) struct Messages {
    encoder: Encoder,
    heads: syslog::Encoder,
    framing: Framing,
    text: Vec<u8>,
    marks: Vec<Mark>,
    head: Vec<u8>,
    /// All messages. The delivered ones at the front stay until all of their block are delivered. Only the last block takes more.
    blocks: VecDeque<Block>,
    spare: Block,
    /// The bytes of all blocks.
    held: usize,
    /// The number of messages of the first block that are delivered.
    done: usize,
    /// The message to be written next: the index of its block, its index there, and the offset of the next byte in the block.
    next: (usize, usize, usize),
    /// How many messages were ever added, written and delivered.
    added: u64,
    written: u64,
    delivered: u64,
    /// The bytes that were written to the current connection until now, and until the end of the last delivered message.
    sent: u64,
    proven: u64,
    /// The number in the lane of each batch that is not delivered, and the value of `delivered` at which it is.
    numbers: VecDeque<(u64, u64)>,
}

/// The records of a batch whose messages are not delivered.
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) batch: Batch,
    pub(super) records: Vec<Range<usize>>,
}

impl Messages {
    pub(super) fn new(encoder: Encoder, heads: syslog::Encoder, framing: Framing) -> Self {
        Self {
            encoder,
            heads,
            framing,
            text: Vec::new(),
            marks: Vec::new(),
            head: Vec::new(),
            blocks: VecDeque::from([Block::default()]),
            spare: Block::default(),
            held: 0,
            done: 0,
            next: (0, 0, 0),
            added: 0,
            written: 0,
            delivered: 0,
            sent: 0,
            proven: 0,
            numbers: VecDeque::new(),
        }
    }

    /// Appends the messages of a batch, whose number in the lane is `number`. Records that cannot be encoded go to `rejects`, and
    /// records that are too long for a datagram to `long`.
    pub(super) fn add(
        &mut self,
        number: u64,
        batch: &Batch,
        rejects: &mut Vec<Reject>,
        long: &mut Vec<Range<usize>>,
    ) {
        self.text.clear();
        self.marks.clear();
        self.encoder
            .encode_each(batch, &mut self.text, rejects, &mut self.marks);
        if self
            .blocks
            .back()
            .is_none_or(|last| last.bytes.len() >= BLOCK_BYTES)
        {
            self.blocks.push_back(std::mem::take(&mut self.spare));
            if self.are_written() {
                self.next = (self.blocks.len() - 1, 0, 0);
            }
        }
        let Some(block) = self.blocks.back_mut() else {
            return;
        };
        let before = (block.bytes.len(), block.messages.len());
        let mut start = 0;
        for mark in &self.marks {
            let text = self.text.get(start..mark.written).unwrap_or_default();
            start = mark.written;
            self.head.clear();
            self.heads
                .head(batch.into(), mark.event(batch), &mut self.head);
            let record = mark.start..mark.end;
            let length = self.head.len() + text.len();
            match self.framing {
                Framing::Datagrams if length > DATAGRAM_BYTES_MAX => {
                    long.push(record);
                    continue;
                }
                Framing::Datagrams | Framing::Lines => {}
                Framing::Octets => write_count(length, &mut block.bytes),
            }
            block.bytes.extend_from_slice(&self.head);
            match self.framing {
                Framing::Lines => {
                    line(text, &mut block.bytes);
                    block.bytes.push(b'\n');
                }
                _ => block.bytes.extend_from_slice(text),
            }
            block.messages.push(Message {
                end: block.bytes.len(),
                batch: block.batches.len(),
                record,
            });
        }
        if block.messages.len() > before.1 {
            block.batches.push((number, batch.clone()));
        }
        self.held += block.bytes.len() - before.0;
        self.added += (block.messages.len() - before.1) as u64;
    }

    /// Notes that all messages of the batch with this number are added.
    pub(super) fn end_batch(&mut self, number: u64) {
        self.numbers.push_back((number, self.added));
    }

    /// Returns the number of the next batch of which everything is delivered.
    pub(super) fn take_delivered(&mut self) -> Option<u64> {
        let (number, _) = (self.numbers.front()).filter(|(_, until)| *until <= self.delivered)?;
        let number = *number;
        self.numbers.pop_front();
        Some(number)
    }

    /// Number of bytes that wait to be written.
    pub(super) fn len(&self) -> usize {
        let (block, _, at) = self.next;
        let bytes: usize = self
            .blocks
            .range(block..)
            .map(|block| block.bytes.len())
            .sum();
        bytes - at
    }

    /// Number of messages that wait to be written.
    pub(super) fn count(&self) -> usize {
        usize::try_from(self.added - self.written).unwrap_or(usize::MAX)
    }

    /// Number of bytes in memory.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether every message is written.
    pub(super) fn are_written(&self) -> bool {
        self.written == self.added
    }

    /// Whether every written message is delivered.
    pub(super) fn written_are_delivered(&self) -> bool {
        self.delivered == self.written
    }

    /// Whether every message is delivered.
    pub(super) fn are_delivered(&self) -> bool {
        self.delivered == self.added
    }

    /// The bytes to write next: one datagram, or at most `room` bytes for a stream.
    pub(super) fn next(&self, room: usize) -> &[u8] {
        let (block, message, at) = self.next;
        let Some(block) = self.blocks.get(block) else {
            return &[];
        };
        let end = match (self.framing, block.messages.get(message)) {
            (Framing::Datagrams, Some(message)) => message.end,
            _ => block.bytes.len().min(at.saturating_add(room)),
        };
        block.bytes.get(at..end).unwrap_or_default()
    }

    /// Notes that the system accepted `bytes` more bytes.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        let (place, message, at) = &mut self.next;
        *at += bytes;
        let Some(block) = self.blocks.get(*place) else {
            return;
        };
        while block
            .messages
            .get(*message)
            .is_some_and(|message| message.end <= *at)
        {
            *message += 1;
            self.written += 1;
        }
        if *message == block.messages.len() && *place + 1 < self.blocks.len() {
            self.next = (*place + 1, 0, 0);
        }
    }

    /// Notes that the first `bytes` bytes that were written to the current connection count as delivered. Calls `whole` with the length of
    /// each message that is now delivered.
    pub(super) fn deliver(&mut self, bytes: u64, mut whole: impl FnMut(usize)) {
        while self.delivered < self.written
            && let Some(block) = self.blocks.front()
        {
            if let Some(message) = block.messages.get(self.done) {
                let length = message.end - self.end_of_done();
                if self.proven + length as u64 > bytes {
                    return;
                }
                whole(length);
                self.proven += length as u64;
                self.done += 1;
                self.delivered += 1;
            }
            self.drop_done();
        }
    }

    /// Starts over after the end of a connection: everything that is not delivered is sent again, each message from its first byte. Returns
    /// how many whole messages were written and are sent again.
    pub(super) fn rewind(&mut self) -> u64 {
        let again = self.written - self.delivered;
        self.next = (0, self.done, self.end_of_done());
        self.written = self.delivered;
        (self.sent, self.proven) = (0, 0);
        again
    }

    /// Removes all messages that are not delivered, and returns their records.
    pub(super) fn give_up(&mut self) -> Vec<Waiting> {
        let mut all = Vec::new();
        let mut done = std::mem::take(&mut self.done);
        for block in self.blocks.drain(..) {
            let waiting = block.batches.into_iter().map(|(number, batch)| Waiting {
                number,
                batch,
                records: Vec::new(),
            });
            let first = all.len();
            all.extend(waiting);
            for message in block.messages.into_iter().skip(std::mem::take(&mut done)) {
                let waiting: Option<&mut Waiting> = all.get_mut(first + message.batch);
                if let Some(waiting) = waiting {
                    waiting.records.push(message.record);
                }
            }
        }
        self.blocks.push_back(Block::default());
        (self.held, self.next) = (0, (0, 0, 0));
        (self.written, self.delivered) = (self.added, self.added);
        all.retain(|waiting| !waiting.records.is_empty());
        all
    }

    /// The offset in the first block after its last delivered message.
    fn end_of_done(&self) -> usize {
        let last = self.done.checked_sub(1);
        let block = self.blocks.front();
        last.and_then(|last| block?.messages.get(last))
            .map_or(0, |message| message.end)
    }

    /// Removes the first block if all of its messages are delivered.
    fn drop_done(&mut self) {
        let is_done = |block: &&mut Block| block.messages.len() == self.done;
        let Some(block) = self.blocks.front_mut().filter(is_done) else {
            return;
        };
        self.held -= block.bytes.len();
        self.done = 0;
        block.bytes.clear();
        block.messages.clear();
        block.batches.clear();
        // The last block stays, so that it takes the next messages.
        if self.blocks.len() == 1 {
            self.next = (0, 0, 0);
        } else {
            self.spare = self.blocks.pop_front().unwrap_or_default();
            self.next.0 = self.next.0.saturating_sub(1);
        }
    }
}

/// Writes the length of a message and a space: `118 `.
fn write_count(length: usize, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{length} ");
}

/// Replaces each newline within a text by `#012`, as rsyslog does, and drops a newline at the end.
fn line(text: &[u8], out: &mut Vec<u8>) {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut lines = text.split(|byte| *byte == b'\n');
    out.extend_from_slice(lines.next().unwrap_or_default());
    for line in lines {
        out.extend_from_slice(b"#012");
        out.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use millstream_sys::random::Spread;

    use super::*;
    use crate::{
        rig::{lines, node},
        syslog::sink::Syslog,
    };

    fn messages(url: &str) -> Messages {
        let options = serde_json::json!({ "url": url, "host": "h", "framing": "lines" });
        let sink = Syslog::new(&node(options)).unwrap_or_else(|problems| panic!("{problems:?}"));
        sink.messages()
    }

    fn add(messages: &mut Messages, number: u64, text: &str) {
        messages.add(number, &lines("t", text), &mut Vec::new(), &mut Vec::new());
        messages.end_batch(number);
    }

    /// Random writes, deliveries and broken connections: undelivered messages are sent again, in order, from the start of a message.
    #[test]
    fn every_message_is_sent_until_it_is_delivered_however_writes_and_breaks_fall() {
        let mut random = Spread::new();
        let mut messages = messages("tcp://h:1");
        let (mut number, mut delivered) = (0, Vec::new());
        let (mut wire, mut got) = (Vec::new(), 0_u64);
        for _ in 0..3000 {
            match random.draw() % 6 {
                0 | 1 if number < 400 => {
                    let text =
                        format!("{number} {}\n", "x".repeat((random.draw() % 5000) as usize));
                    add(&mut messages, number, &text.repeat(1 + number as usize % 3));
                    number += 1;
                }
                2 | 3 => {
                    let room = 1 + random.draw() as usize % 20_000;
                    let bytes = messages.next(room).to_vec();
                    assert!(bytes.len() <= room && bytes.is_empty() == messages.are_written());
                    messages.wrote(bytes.len());
                    wire.extend(bytes);
                }
                4 => {
                    got = got.max(random.draw() % (wire.len() as u64 + 1));
                    let mut whole = 0;
                    messages.deliver(got, |length| whole += length);
                    let done: Vec<u8> = wire.drain(..whole).collect();
                    got = got.saturating_sub(done.len() as u64);
                    delivered.extend(done);
                    // The rig counts from the end of the last delivered message, the queue from the start of the connection.
                    messages.sent -= whole as u64;
                    messages.proven -= whole as u64;
                    while messages.take_delivered().is_some() {}
                }
                _ => {
                    messages.rewind();
                    wire.clear();
                    got = 0;
                }
            }
        }
        while !messages.are_delivered() {
            let bytes = messages.next(1 << 20).to_vec();
            messages.wrote(bytes.len());
            wire.extend(bytes);
            messages.deliver(u64::MAX, |_| ());
            delivered.append(&mut wire);
        }
        assert_eq!(
            (messages.held(), messages.len(), messages.count()),
            (0, 0, 0)
        );
        let text = String::from_utf8(delivered).unwrap();
        let numbers: Vec<u64> = text
            .lines()
            .map(|line| line.split(' ').nth(7).unwrap().parse().unwrap())
            .collect();
        let expected: Vec<u64> = (0..number)
            .flat_map(|number| vec![number; 1 + number as usize % 3])
            .collect();
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_batch_is_delivered_with_its_last_message_and_memory_is_freed() {
        let mut messages = messages("udp://h:1");
        add(&mut messages, 7, "a\nb\n");
        add(&mut messages, 8, "");
        let first = messages.next(1).len();
        messages.wrote(first);
        messages.deliver(u64::MAX, |_| ());
        assert_eq!((messages.take_delivered(), messages.count()), (None, 1));
        let second = messages.next(1).len();
        messages.wrote(second);
        assert_eq!(messages.rewind(), 1);
        messages.wrote(messages.next(1).len());
        messages.deliver(second as u64, |_| ());
        assert_eq!(messages.take_delivered(), Some(7));
        assert_eq!(messages.take_delivered(), Some(8));
        assert!(messages.are_delivered() && messages.held() == 0);
    }
}
