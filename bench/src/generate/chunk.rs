//! Builds chunks. A chunk is the bytes of one forward message; in mode `message`, for lines and for syslog, it is a sequence of
//! messages or lines, one per record.
//!
//! A flow is a numbered sequence of records, such as those of one connection. The bytes of a chunk depend only on the settings
//! of the run, the flow, the kind, the first number and the count. So the generator stores no sent chunks: it resends a chunk
//! by producing the same bytes again. The buffer is built from scratch for the first chunk, and for each chunk whose count, kind
//! or padding differs from the chunk before. For all other chunks, only the times, numbers, checks (hashes) and ids are patched
//! in place. Patching takes some 10 ns per record.
//!
//! ```text
//! packed    93  tag  db len32    ENTRY ...  option        mode gzip: the entries are compressed
//! forward   93  tag  dd count32  ENTRY ...  option
//! message  (93  tag  time map) ...                        with acks 94 and {"chunk": id} in each
//! lines    (text 0a) ...
//!
//! ENTRY    92  time map
//! time     d7 00 seconds32 nanoseconds32                  EventTime
//! map      81 a7 "message" str(text)
//! option   {"size": count, "compressed": "text" or "gzip", "chunk": id}
//! id       str of 25 bytes: base64 of (run32 flow16 number64 end8 0), and a newline, as Fluentd writes its ids
//! ```

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

use super::syslog::{Stamp, Syslog};
use crate::record::{self, FlowId, Key, Kind, Record};

/// Bytes of a chunk id: 24 of base64 and a newline.
pub const ID_LEN: usize = 25;

/// How records are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// One record per message: `[tag, time, record]`
    Message,
    /// Many records per message: `[tag, [[time, record], ...]]`
    Forward,
    /// Many records in one string: `[tag, "...", option]`, as Fluentd and Fluent Bit send
    Packed,
    /// Like `packed`, with the string compressed by gzip
    Gzip,
    /// Lines of text, no protocol
    #[value(skip)]
    Lines,
    /// Syslog messages
    #[value(skip)]
    Syslog(Syslog),
}

/// The properties that all chunks of a run share.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The encoding.
    pub mode: Mode,
    /// The tag of every record.
    pub tag: String,
    /// Length of a record's text in bytes.
    pub size: usize,
    /// Whether the receiver is asked for acks.
    pub acks: bool,
    /// Seconds since 1970 of record 0; every further record is a microsecond later.
    pub base: u32,
}

/// The records of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The number of the first record. For an end record: the count that it carries.
    pub first: u64,
    /// The number of records.
    pub count: u32,
    /// Whether these are data records or the one end record.
    pub kind: Kind,
}

/// A reusable chunk of one flow.
pub struct Chunk {
    shape: Shape,
    flow: FlowId,
    /// The span that `buffer` holds; `None` before the first build. A span of another count, kind or padding requires a rebuild.
    built: Option<Span>,
    buffer: Vec<u8>,
    /// The offset of the first record in `buffer`, and the distance from one record to the next.
    entries_at: usize,
    stride: usize,
    /// The offsets of the time and of the text within a record.
    time_at: usize,
    text_at: usize,
    /// The offset of the chunk id: in `buffer`, or, in mode `message`, in each message.
    id_at: usize,
    /// The compressed message, for gzip.
    compressed: Vec<u8>,
}

impl Chunk {
    /// A chunk of one flow. Nothing is built yet.
    pub fn new(shape: Shape, flow: FlowId) -> Self {
        Self {
            shape,
            flow,
            built: None,
            buffer: Vec::new(),
            entries_at: 0,
            stride: 0,
            time_at: 0,
            text_at: 0,
            id_at: 0,
            compressed: Vec::new(),
        }
    }

    /// The bytes of a chunk with this span.
    pub fn fill(&mut self, span: Span) -> &[u8] {
        let fits = self.built.is_some_and(|built| {
            built.count == span.count
                && built.kind == span.kind
                && built.first % record::PERIOD == span.first % record::PERIOD
        });
        if !fits {
            self.build(span);
        }
        self.number(span);
        self.built = Some(span);
        if self.shape.mode == Mode::Gzip {
            return self.compress(span);
        }
        if self.shape.acks {
            self.identify(span);
        }
        &self.buffer
    }

    /// Returns the records of the previous chunk again, with the id of `span` (option `--repeat`). Calls `fill` instead if the
    /// count or the kind differs from that of the previous chunk, or if the mode is gzip. The output cannot be verified.
    pub fn again(&mut self, span: Span) -> &[u8] {
        let same = |built: Span| built.count == span.count && built.kind == span.kind;
        if self.shape.mode == Mode::Gzip || !self.built.is_some_and(same) {
            return self.fill(span);
        }
        if self.shape.acks {
            self.identify(span);
        }
        &self.buffer
    }

    /// Patches the ids for a span.
    fn identify(&mut self, span: Span) {
        if self.shape.mode == Mode::Message {
            let entries = self.buffer.chunks_exact_mut(self.stride);
            for (entry, number) in entries.zip(span.first..) {
                let id = id(self.flow, span.kind, number);
                entry[self.id_at..self.id_at + ID_LEN].copy_from_slice(&id);
            }
        } else {
            let id = id(self.flow, span.kind, span.first);
            self.buffer[self.id_at..self.id_at + ID_LEN].copy_from_slice(&id);
        }
    }

    /// The ids that the server acknowledges if the span has arrived: one per record in mode `message`, otherwise one.
    pub fn ids(&self, span: Span) -> impl Iterator<Item = [u8; ID_LEN]> {
        let (flow, mode) = (self.flow, self.shape.mode);
        let count = if mode == Mode::Message { span.count } else { 1 };
        (0..u64::from(count)).map(move |at| id(flow, span.kind, span.first + at))
    }

    /// Patches the times, numbers and checks of all records.
    fn number(&mut self, span: Span) {
        let key = Key::new(self.flow, span.kind, self.shape.size);
        if let Mode::Syslog(syslog) = self.shape.mode {
            return self.number_syslog(span, syslog);
        }
        let timed = self.shape.mode != Mode::Lines;
        let end = self.entries_at + self.stride * span.count as usize;
        let entries = self.buffer[self.entries_at..end].chunks_exact_mut(self.stride);
        let mut time = event_time(self.shape.base, span.first);
        for (entry, number) in entries.zip(span.first..) {
            if timed {
                entry[self.time_at..self.time_at + 8].copy_from_slice(&time.to_be_bytes());
                time = later(time);
            }
            record::renumber(&mut entry[self.text_at..], key, number);
        }
    }

    /// Patches the times, numbers and checks of syslog messages.
    fn number_syslog(&mut self, span: Span, syslog: Syslog) {
        let key = Key::new(self.flow, span.kind, self.shape.size);
        let mut stamp = Stamp::new(syslog.form);
        let entries = self.buffer.chunks_exact_mut(self.stride);
        for (entry, number) in entries.zip(span.first..).take(span.count as usize) {
            let seconds = u64::from(self.shape.base) + number / 1_000_000;
            let time = stamp.at(seconds, (number % 1_000_000) as u32);
            entry[self.time_at..self.time_at + time.len()].copy_from_slice(time);
            record::renumber(&mut entry[self.text_at..], key, number);
        }
    }

    /// Builds a chunk from scratch. `number` and `identify` patch it for later spans.
    fn build(&mut self, span: Span) {
        let mut entry = self.entry();
        self.stride = entry.len();
        let text = self.text_at..self.text_at + self.shape.size;
        self.buffer.clear();
        self.head(span.count);
        self.entries_at = self.buffer.len();
        for number in (span.first..).take(span.count as usize) {
            let flow = self.flow;
            let kind = span.kind;
            record::write(&mut entry[text.clone()], Record { flow, kind, number });
            self.buffer.extend_from_slice(&entry);
        }
        if matches!(self.shape.mode, Mode::Forward | Mode::Packed) {
            let mut option = Vec::new();
            put_option(&mut option, span.count, "text", self.shape.acks);
            self.buffer.extend_from_slice(&option);
            // The id is the last value in the option map.
            self.id_at = self.buffer.len() - ID_LEN;
        }
    }

    /// Writes the bytes before the records. The length of the payload is known, because all records have the same length.
    fn head(&mut self, count: u32) {
        let bytes = u32::try_from(self.stride * count as usize)
            .expect("`Options::check` keeps chunks below 1 GiB");
        let (code, length) = match self.shape.mode {
            Mode::Forward => (0xdd, count),
            Mode::Packed => (0xdb, bytes),
            // Gzip: `compress` writes the head. Messages: each has its own head. Lines have none.
            Mode::Gzip | Mode::Message | Mode::Lines | Mode::Syslog(_) => return,
        };
        self.buffer.push(0x93);
        put_str(&mut self.buffer, self.shape.tag.as_bytes());
        self.buffer.push(code);
        self.buffer.extend_from_slice(&length.to_be_bytes());
    }

    /// Builds one record whose text is all zeros, and stores the offsets of its parts.
    fn entry(&mut self) -> Vec<u8> {
        let mut entry = Vec::new();
        let size = self.shape.size;
        if self.shape.mode == Mode::Lines {
            self.text_at = 0;
            entry.resize(size, 0);
            entry.push(b'\n');
            return entry;
        }
        if let Mode::Syslog(syslog) = self.shape.mode {
            let frame = syslog.frame(self.flow.flow, size);
            (self.time_at, self.text_at) = (frame.time_at, frame.head.len());
            entry = frame.head;
            entry.resize(self.text_at + size, 0);
            entry.extend_from_slice(frame.tail);
            return entry;
        }
        if self.shape.mode == Mode::Message {
            entry.push(if self.shape.acks { 0x94 } else { 0x93 });
            put_str(&mut entry, self.shape.tag.as_bytes());
        } else {
            entry.push(0x92);
        }
        entry.extend_from_slice(&[0xd7, 0x00]);
        self.time_at = entry.len();
        entry.extend_from_slice(&[0; 8]);
        entry.push(0x81);
        put_str(&mut entry, b"message");
        put_str(&mut entry, &vec![0; size]);
        self.text_at = entry.len() - size;
        if self.shape.mode == Mode::Message && self.shape.acks {
            entry.push(0x81);
            put_str(&mut entry, b"chunk");
            put_str(&mut entry, &[0; ID_LEN]);
            self.id_at = entry.len() - ID_LEN;
        }
        entry
    }

    /// Compresses the records in `buffer`, and adds the head and the option.
    fn compress(&mut self, span: Span) -> &[u8] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let payload = encoder
            .write_all(&self.buffer)
            .and_then(|()| encoder.finish())
            .expect("writing to memory does not fail");
        self.compressed.clear();
        self.compressed.push(0x93);
        put_str(&mut self.compressed, self.shape.tag.as_bytes());
        self.compressed.push(0xdb);
        // The records are shorter than 1 GiB. If they do not compress well, gzip makes them only slightly longer.
        let len = u32::try_from(payload.len()).expect("less than 4 GiB");
        self.compressed.extend_from_slice(&len.to_be_bytes());
        self.compressed.extend_from_slice(&payload);
        put_option(&mut self.compressed, span.count, "gzip", self.shape.acks);
        if self.shape.acks {
            let at = self.compressed.len() - ID_LEN;
            self.compressed[at..].copy_from_slice(&id(self.flow, span.kind, span.first));
        }
        &self.compressed
    }
}

/// An EventTime as on the wire: seconds in the upper half, nanoseconds in the lower.
fn event_time(base: u32, number: u64) -> u64 {
    let seconds = u64::from(base) + number / 1_000_000;
    ((seconds & 0xffff_ffff) << 32) | (number % 1_000_000 * 1_000)
}

/// The EventTime one microsecond later.
#[inline]
fn later(time: u64) -> u64 {
    let next = time + 1_000;
    if next & 0xffff_ffff == 1_000_000_000 {
        (next & !0xffff_ffff).wrapping_add(1 << 32)
    } else {
        next
    }
}

/// The id of the chunk (or message) that begins with this record. The ids of all runs, flows, kinds and numbers differ.
fn id(flow: FlowId, kind: Kind, number: u64) -> [u8; ID_LEN] {
    let mut raw = [0; 18];
    raw[..4].copy_from_slice(&flow.run.to_be_bytes());
    raw[4..6].copy_from_slice(&flow.flow.to_be_bytes());
    raw[6..14].copy_from_slice(&number.to_be_bytes());
    raw[14] = u8::from(kind == Kind::End);
    base64(raw)
}

/// Encodes the 18 bytes of an id as 24 characters of base64 and a newline.
fn base64(raw: [u8; 18]) -> [u8; ID_LEN] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [b'\n'; ID_LEN];
    for (three, four) in raw.chunks_exact(3).zip(text.chunks_exact_mut(4)) {
        let bits = usize::from(three[0]) << 16 | usize::from(three[1]) << 8 | usize::from(three[2]);
        for (at, digit) in four.iter_mut().enumerate() {
            *digit = DIGITS[bits >> (18 - 6 * at) & 63];
        }
    }
    text
}

/// Writes `{"size": count, "compressed": compressed, "chunk": id}`. The id is all zeros for now. Without acks there is no id.
fn put_option(out: &mut Vec<u8>, count: u32, compressed: &str, acks: bool) {
    out.push(if acks { 0x83 } else { 0x82 });
    put_str(out, b"size");
    out.push(0xce);
    out.extend_from_slice(&count.to_be_bytes());
    put_str(out, b"compressed");
    put_str(out, compressed.as_bytes());
    if acks {
        put_str(out, b"chunk");
        put_str(out, &[0; ID_LEN]);
    }
}

/// Writes a MessagePack string with the shortest header.
fn put_str(out: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        len @ 0..=31 => out.push(0xa0 | len as u8),
        len @ 32..=255 => out.extend_from_slice(&[0xd9, len as u8]),
        len @ 256..=0xffff => {
            out.push(0xda);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xdb);
            let len = u32::try_from(len).expect("texts are at most 1 MiB");
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
