//! `format: ltsv`: labeled tab-separated values (ltsv.org), one record per line.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! host:web-1<TAB>status:200<TAB>message:a\tb<TAB>time:2026-11-21T03:46:12.123456789Z<LF>
//! ```
//!
//! LTSV has no escapes, and a value must not contain a tab, a line end or NUL: these become `\t`, `\n`, `\r` and `\0`.
//! Everything else stays unchanged. This includes the backslash, so that paths and JSON in values stay readable. In
//! labels `:` and control characters become `_`. Nil is empty, maps and arrays are JSON.

use millstream_record::Batch;

use super::{
    Reason,
    add::Added,
    escape::{self, label},
    value::{Plain, map_at, plain, text_at},
    write::{Of, Write},
};
use crate::{
    json::{self, Unfit},
    msgpack::{Head, Reader},
    record::MESSAGE,
    room::Room,
};

#[derive(Debug)]
pub(super) struct Ltsv {
    added: Added,
    delimiter: Box<[u8]>,
    /// The added fields that a line already has, as a bit set: bit n stands for the added field with index n.
    line_seen: u64,
    /// Buffer for the JSON of a value, before it is written.
    scratch: Vec<u8>,
}

impl Ltsv {
    pub(super) fn new(added: Added, delimiter: Box<[u8]>) -> Self {
        Self {
            line_seen: added.named(MESSAGE.as_bytes()),
            added,
            delimiter,
            scratch: Vec::new(),
        }
    }

    /// Writes a key that is not a short text: bin, numbers, booleans.
    #[cold]
    #[inline(never)]
    fn other_key(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        at: usize,
        seen: &mut u64,
    ) -> Result<usize, Unfit> {
        let mut reader = Reader::at(body, at);
        if let Ok(name) = reader.bytes() {
            *seen |= self.added.named(name);
            label(room, name);
            return Ok(reader.position());
        }
        self.scratch.clear();
        let mut scratch = Room::with(&mut self.scratch, room.invalid_utf8());
        json::key(&mut scratch, body, &mut reader)?;
        drop(scratch);
        if let [b'"', name @ .., b'"'] = &self.scratch[..] {
            *seen |= self.added.named(name);
            label(room, name);
        }
        Ok(reader.position())
    }
}

impl Write for Ltsv {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        room.both(MESSAGE.as_bytes(), b":");
        escape::Value::text(room, line);
        self.added
            .write(room, of.shared, of.line(line), self.line_seen, true)?;
        room.bytes(&self.delimiter);
        Ok(())
    }

    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        let (fields, mut at) = map_at(body, head.record)?;
        let mut seen = 0;
        for field in 0..fields {
            if field > 0 {
                room.byte(b'\t');
            }
            match text_at(body, at) {
                Some((start, length)) => {
                    at = start + length;
                    let name = body.get(start..at).unwrap_or_default();
                    seen |= self.added.named(name);
                    label(room, name);
                }
                None => at = self.other_key(room, body, at, &mut seen)?,
            }
            room.byte(b':');
            at = plain::<escape::Value>(room, body, at, &mut self.scratch)?;
        }
        let event = of.packed(body, head);
        self.added.write(room, of.shared, event, seen, fields > 0)?;
        room.bytes(&self.delimiter);
        Ok(at)
    }
}
