//! `format: json`: one object a record, its own fields first, in their order.
//!
//! Hop: read decode send keep take [encode] write settle. The loop does text, small numbers, nil and booleans itself and
//! leaves everything else to [`crate::json`]: that is most of its speed.

use millstream_record::Batch;

use super::{
    Reason,
    add::Added,
    encoder::{Of, Write},
    value::{map_at, other, text_at},
};
use crate::{
    event::MESSAGE,
    json::{self, Unfit, append_string},
    msgpack::{Head, Reader},
    room::Room,
};

#[derive(Debug)]
pub(super) struct Json {
    added: Added,
    delimiter: Box<[u8]>,
    /// What a line starts with: `{"message":`
    line_head: Vec<u8>,
    /// Which of the added fields a line has.
    line_seen: u64,
}

impl Json {
    pub(super) fn new(added: Added, delimiter: Box<[u8]>) -> Self {
        let mut line_head = vec![b'{'];
        append_string(MESSAGE.as_bytes(), &mut line_head);
        line_head.push(b':');
        Self {
            line_seen: added.named(MESSAGE.as_bytes()),
            added,
            delimiter,
            line_head,
        }
    }

    fn close(&self, room: &mut Room<'_>) {
        room.both(b"}", &self.delimiter);
    }
}

impl Write for Json {
    fn begin(&mut self, batch: &Batch) {
        self.added.begin(batch);
    }

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        room.bytes(&self.line_head);
        json::string(room, line, 0, line.len());
        self.added
            .write(room, of.shared, of.line(line), self.line_seen, true)?;
        self.close(room);
        Ok(())
    }

    #[inline]
    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        let (left, at) = map_at(body, head.record)?;
        let (end, seen) = self.fields(room, body, at, left)?;
        let event = of.packed(body, head);
        self.added.write(room, of.shared, event, seen, left > 0)?;
        self.close(room);
        Ok(end)
    }
}

impl Json {
    /// Writes the record's own `left` fields, which start at `at`; gives the offset behind them and which of the added
    /// fields are among them.
    #[inline]
    fn fields(
        &self,
        room: &mut Room<'_>,
        body: &[u8],
        mut at: usize,
        left: u32,
    ) -> Result<(usize, u64), Unfit> {
        let mut seen = 0;
        let mut open = b'{';
        for _ in 0..left {
            match text_at(body, at) {
                Some((start, length)) => {
                    json::string_between(room, &[open, b'"'], body, start, length, b"\":");
                    at = start + length;
                    seen |= self.added.named(body.get(start..at).unwrap_or_default());
                }
                None => {
                    room.byte(open);
                    at = self.other_key(room, body, at, &mut seen)?;
                    room.byte(b':');
                }
            }
            open = b',';
            if let Some((start, length)) = text_at(body, at) {
                json::string_between(room, b"\"", body, start, length, b"\"");
                at = start + length;
            } else {
                at = other(room, body, at)?;
            }
        }
        if left == 0 {
            room.byte(open);
        }
        Ok((at, seen))
    }

    /// Keys that are no short text: bin, numbers, booleans.
    #[cold]
    #[inline(never)]
    fn other_key(
        &self,
        room: &mut Room<'_>,
        body: &[u8],
        at: usize,
        seen: &mut u64,
    ) -> Result<usize, Unfit> {
        let before = room.position();
        let mut reader = Reader::at(body, at);
        json::key(room, body, &mut reader)?;
        let mut again = Reader::at(body, at);
        *seen |= match again.bytes() {
            Ok(name) => self.added.named(name),
            // The text between the quotes: it has no escapes.
            Err(_) => match room.since(before) {
                [b'"', name @ .., b'"'] => self.added.named(name),
                _ => 0,
            },
        };
        Ok(reader.position())
    }
}
