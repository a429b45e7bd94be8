//! Batches to framed messages, in a buffer, each with the record that it is of.
//!
//! `read -> decode -> send -> keep -> take -> process -> [encode] -> write -> settle`
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

/// How messages are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Octets,
    Lines,
    Datagrams,
}

/// A message that was not wholly written yet.
#[derive(Debug)]
struct Message {
    /// The byte of the buffer behind it.
    end: usize,
    /// Its batch, among those that are held, and its record there.
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
    /// The bytes of all of them, one behind the other.
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// How many of them, from the front, are written, and the first byte that is not.
    written: usize,
    at: usize,
    batches: Vec<Batch>,
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

    /// Appends the messages of a batch; what cannot be written is appended to `rejects`, and its place and length to
    /// `long` if it is for no datagram.
    pub(super) fn add(
        &mut self,
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
        self.batches.push(batch.clone());
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Messages that wait.
    pub(super) fn count(&self) -> usize {
        self.messages.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written == self.messages.len()
    }

    /// What is to be written next: of datagrams one, of a stream all.
    pub(super) fn next(&self) -> &[u8] {
        let end = match (self.framing, self.messages.get(self.written)) {
            (Framing::Datagrams, Some(message)) => message.end,
            _ => self.bytes.len(),
        };
        self.bytes.get(self.at..end).unwrap_or_default()
    }

    /// So many bytes of it were taken. Calls `whole` with the length of each message that is wholly written with them.
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

    /// The connection is gone: a message of which a part was written goes out again from its first byte.
    pub(super) fn rewind(&mut self) {
        self.at = self.end_of_written();
    }

    /// Gives up what waits: each batch with its records that were not written.
    pub(super) fn give_up(&mut self) -> Vec<(Batch, Vec<Range<usize>>)> {
        let mut given: Vec<_> = std::mem::take(&mut self.batches)
            .into_iter()
            .map(|batch| (batch, Vec::new()))
            .collect();
        for message in self.messages.drain(..).skip(self.written) {
            if let Some((_, records)) = given.get_mut(message.batch) {
                records.push(message.record);
            }
        }
        self.written = 0;
        self.clear();
        given.retain(|(_, records)| !records.is_empty());
        given
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

/// `118 `
fn write_count(length: usize, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{length} ");
}

/// A text without newlines: `#012` in their place, and nothing at the end, where they part nothing.
fn line(text: &[u8], out: &mut Vec<u8>) {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut parts = text.split(|byte| *byte == b'\n');
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(b"#012");
        out.extend_from_slice(part);
    }
}
