//! Encodes batches as framed messages in one buffer, and maps each message to its record.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! octets      118 <13>1 2026-11-21T...Z web-1 app 77 - - textNEXT
//! lines       <13>1 2026-11-21T...Z web-1 app 77 - - text\n
//! datagrams   <13>1 2026-11-21T...Z web-1 app 77 - - text
//! ```

use std::ops::Range;

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

/// A message in the buffer.
#[derive(Debug)]
struct Message {
    /// The end of the message in the buffer.
    end: usize,
    /// The index of its batch in [`Messages::batches`], and the byte range of its record in that batch.
    batch: usize,
    record: Range<usize>,
}

/// Messages that wait to be written.
pub(super) struct Messages {
    encoder: Encoder,
    heads: syslog::Encoder,
    framing: Framing,
    text: Vec<u8>,
    marks: Vec<Mark>,
    head: Vec<u8>,
    /// The bytes of all messages.
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// `written`: the number of messages that are completely written, which are the first ones in `messages`. `at`: the number of bytes
    /// in `bytes` that are written.
    written: usize,
    at: usize,
    /// The batches of the messages, with their numbers in the sink's lane (parallel task).
    batches: Vec<(u64, Batch)>,
}

/// The records of a batch whose messages are not written.
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
            bytes: Vec::new(),
            messages: Vec::new(),
            written: 0,
            at: 0,
            batches: Vec::new(),
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
                Framing::Datagrams => self.bytes.extend_from_slice(&self.head),
                Framing::Octets => {
                    write_count(length, &mut self.bytes);
                    self.bytes.extend_from_slice(&self.head);
                }
                Framing::Lines => self.bytes.extend_from_slice(&self.head),
            }
            match self.framing {
                Framing::Lines => {
                    line(text, &mut self.bytes);
                    self.bytes.push(b'\n');
                }
                _ => self.bytes.extend_from_slice(text),
            }
            self.messages.push(Message {
                end: self.bytes.len(),
                batch: self.batches.len(),
                record,
            });
        }
        self.batches.push((number, batch.clone()));
    }

    /// Number of bytes that wait to be written.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Number of messages that wait to be written.
    pub(super) fn count(&self) -> usize {
        self.messages.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written == self.messages.len()
    }

    /// The bytes to write next: one datagram, or everything for a stream.
    pub(super) fn next(&self) -> &[u8] {
        let end = match (self.framing, self.messages.get(self.written)) {
            (Framing::Datagrams, Some(message)) => message.end,
            _ => self.bytes.len(),
        };
        self.bytes.get(self.at..end).unwrap_or_default()
    }

    /// Notes that the system accepted `bytes` more bytes. Calls `whole` with the length of each message that is now completely written.
    pub(super) fn wrote(&mut self, bytes: usize, mut whole: impl FnMut(usize)) {
        let mut begin = self.end_of_written();
        self.at += bytes;
        while let Some(message) = self.messages.get(self.written) {
            if message.end > self.at {
                return;
            }
            whole(message.end - begin);
            begin = message.end;
            self.written += 1;
        }
        self.clear();
    }

    /// Starts over after the end of a connection: a partly written message is sent again from its first byte.
    pub(super) fn rewind(&mut self) {
        self.at = self.end_of_written();
    }

    /// Removes all waiting messages and returns their records.
    pub(super) fn give_up(&mut self) -> Vec<Waiting> {
        let batches = std::mem::take(&mut self.batches).into_iter();
        let mut waiting: Vec<_> = batches
            .map(|(number, batch)| Waiting {
                number,
                batch,
                records: Vec::new(),
            })
            .collect();
        for message in self.messages.drain(..).skip(self.written) {
            if let Some(waiting) = waiting.get_mut(message.batch) {
                waiting.records.push(message.record);
            }
        }
        self.clear();
        waiting.retain(|waiting| !waiting.records.is_empty());
        waiting
    }

    fn end_of_written(&self) -> usize {
        let last = self.written.checked_sub(1);
        last.and_then(|last| self.messages.get(last))
            .map_or(0, |message| message.end)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.messages.clear();
        self.batches.clear();
        (self.written, self.at) = (0, 0);
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
