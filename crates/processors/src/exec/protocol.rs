//! The protocol of `exec`: how records are written for the program, and how its answers are read.
//!
//! ```text
//! json      one line for each record: {"message":"text"}
//!           an answer: {..}\n, null\n or [{..}, {..}]\n
//! msgpack   one MessagePack map for each record, without separators
//!           an answer: a map, nil or an array of maps
//! ```

use millstream_wire::{
    json::{self, Progress, Unfit},
    msgpack::{self, Reader, write_map_len, write_str},
    record::{MESSAGE, Record},
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The format of records and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// JSON, one line for each record and each answer.
    #[default]
    Json,
    /// MessagePack, one value for each record and each answer.
    Msgpack,
}

/// The number of bytes of an unusable answer that a message shows.
const SHOWN_BYTES: usize = 60;

impl Format {
    /// Appends a record in this format. The slice of a packed record must end where the record ends.
    pub(super) fn write(
        self,
        record: Record<'_>,
        scratch: &mut Vec<u8>,
        to: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        let map = match (record, self) {
            (Record::Packed(map), Self::Msgpack) => {
                to.extend_from_slice(map);
                return Ok(());
            }
            (Record::Packed(map), Self::Json) => map,
            (Record::Line(line), Self::Msgpack) => {
                write_line(line, to);
                return Ok(());
            }
            (Record::Line(line), Self::Json) => {
                scratch.clear();
                write_line(line, scratch);
                scratch
            }
            (Record::None, _) => return Err(Unfit::Malformed),
        };
        json::write_value(map, 0, to)?;
        to.push(b'\n');
        Ok(())
    }
}

/// Writes a line as the map that it stands for, `{"message": LINE}`.
fn write_line(line: &[u8], to: &mut Vec<u8>) {
    write_map_len(to, 1);
    write_str(to, MESSAGE.as_bytes());
    write_str(to, line);
}

/// Divides the output of a program into answers. Each byte is examined once, no matter how many reads an answer takes.
#[derive(Debug)]
pub(super) struct Answers {
    format: Format,
    /// The output so far; the caller appends to it.
    pub(super) buffer: Vec<u8>,
    /// The offset of the next answer in `buffer`.
    at: usize,
    /// The offset in `buffer` up to which the next answer was scanned without finding its end.
    scanned: usize,
    /// The number of MessagePack values that are still missing from the next answer: 1 before its first byte.
    open: u64,
    /// The current JSON answer as MessagePack.
    value: Vec<u8>,
}

impl Answers {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            buffer: Vec::new(),
            at: 0,
            scanned: 0,
            open: 1,
            value: Vec::new(),
        }
    }

    /// Returns the next complete answer as a MessagePack value, or `None` if it has not arrived yet. The error is the reason why an
    /// answer cannot be used.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, String> {
        match self.format {
            Format::Json => self.next_line(),
            Format::Msgpack => self.next_value(),
        }
    }

    fn next_line(&mut self) -> Result<Option<&[u8]>, String> {
        let unscanned = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(length) = memchr::memchr(b'\n', unscanned) else {
            self.scanned = self.buffer.len();
            return Ok(None);
        };
        let end = self.scanned + length;
        let line = self.buffer.get(self.at..end).unwrap_or_default();
        (self.at, self.scanned) = (end + 1, end + 1);
        self.value.clear();
        match json::to_msgpack(line, &mut self.value) {
            Ok(Progress::Consumed(length)) => {
                let rest = line.get(length..).unwrap_or_default();
                match rest.trim_ascii() {
                    [] => Ok(Some(&self.value)),
                    _ => Err(format!("{} has more than one value on a line", shown(line))),
                }
            }
            Ok(Progress::NeedMore) if line.trim_ascii().is_empty() => {
                Err("an empty line".to_owned())
            }
            Ok(Progress::NeedMore) => Err(format!(
                "{} is no complete JSON value (an answer is one line)",
                shown(line)
            )),
            Err(error) => Err(format!("{} is not JSON: {error}", shown(line))),
        }
    }

    fn next_value(&mut self) -> Result<Option<&[u8]>, String> {
        match msgpack::skip(&self.buffer, self.scanned, &mut self.open) {
            Err(malformed) => Err(malformed.to_string()),
            Ok(end) if self.open > 0 => {
                self.scanned = end;
                Ok(None)
            }
            Ok(end) => {
                let start = self.at;
                (self.at, self.scanned, self.open) = (end, end, 1);
                Ok(self.buffer.get(start..end))
            }
        }
    }

    /// The number of bytes after the last returned answer.
    pub(super) fn pending(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// Removes the bytes of returned answers from the buffer.
    pub(super) fn release(&mut self) {
        self.buffer.drain(..self.at);
        self.scanned -= self.at;
        self.at = 0;
    }

    /// Clears everything, and frees memory above `bytes_max`.
    pub(super) fn reset(&mut self, bytes_max: usize) {
        self.buffer.clear();
        (self.at, self.scanned, self.open) = (0, 0, 1);
        self.value.clear();
        self.buffer.shrink_to(bytes_max);
        self.value.shrink_to(bytes_max);
    }
}

/// The beginning of an answer, to show in a message.
fn shown(answer: &[u8]) -> String {
    let start = answer.get(..SHOWN_BYTES).unwrap_or(answer);
    let text = String::from_utf8_lossy(start);
    let text = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let rest = if start.len() < answer.len() {
        "…"
    } else {
        ""
    };
    format!("`{}{rest}`", text.collect::<String>())
}

/// Calls `each` for every record of an answer. The error is the reason why the answer cannot be used.
pub(super) fn records_of<'a, E: From<String>>(
    answer: &'a [u8],
    mut each: impl FnMut(&'a [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let is_map = |value: &[u8]| matches!(value, [0x80..=0x8f | 0xde | 0xdf, ..]);
    match answer {
        [0xc0] => Ok(()),
        map if is_map(map) => each(map),
        [0x90..=0x9f | 0xdc | 0xdd, ..] => {
            let mut reader = Reader::new(answer);
            let incomplete = |_| "an array that is not complete".to_owned();
            for _ in 0..reader.array_len().map_err(incomplete)? {
                let value = reader.value().map_err(incomplete)?;
                if !is_map(value) {
                    return Err("an array with a value that is no object".to_owned().into());
                }
                each(value)?;
            }
            Ok(())
        }
        _ => Err("it is no object, no array of objects and not null"
            .to_owned()
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an output that arrives in pieces of `step` bytes. Returns all answers as JSON, or the error for the first unusable
    /// answer.
    fn answers(format: Format, output: &[u8], step: usize) -> Result<Vec<String>, String> {
        let (mut answers, mut found) = (Answers::new(format), Vec::new());
        for piece in output.chunks(step) {
            answers.buffer.extend_from_slice(piece);
            while let Some(answer) = answers.next()? {
                let mut records = Vec::new();
                records_of(answer, |record| {
                    let mut text = Vec::new();
                    json::write_value(record, 0, &mut text).map_err(|unfit| unfit.to_string())?;
                    records.push(String::from_utf8(text).unwrap());
                    Ok::<_, String>(())
                })?;
                found.push(records.join("+"));
            }
            answers.release();
        }
        assert_eq!(answers.pending(), answers.buffer.len());
        Ok(found)
    }

    #[test]
    fn answers_are_found_however_their_bytes_arrive() {
        let lines = b"{\"a\":1}\nnull\n [ {\"b\":[2]} , {} ] \r\n[]\n{\"half\":";
        let mut values = Vec::new();
        for line in [&b"{\"a\":1}"[..], b"null", b"[{\"b\":[2]},{}]", b"[]"] {
            json::to_msgpack(line, &mut values).unwrap();
        }
        values.extend_from_slice(b"\x81\xa4ha");
        let expected = [r#"{"a":1}"#, "", r#"{"b":[2]}+{}"#, ""];
        for step in 1..40 {
            assert_eq!(answers(Format::Json, lines, step).unwrap(), expected);
            assert_eq!(answers(Format::Msgpack, &values, step).unwrap(), expected);
        }
    }

    #[test]
    fn unusable_answers_are_refused_with_the_reason() {
        for (line, word) in [
            ("\n", "empty line"),
            ("hello\n", "`hello` is not JSON"),
            ("{\n", "no complete JSON value"),
            ("{} {}\n", "more than one value"),
            ("1\n", "no object"),
            ("[1]\n", "no object"),
            ("[[{}]]\n", "no object"),
        ] {
            let why = answers(Format::Json, line.as_bytes(), 9).unwrap_err();
            assert!(why.contains(word), "{line}: {why}");
        }
        let deep = format!("{}\n", "[".repeat(100_000));
        assert!(answers(Format::Json, deep.as_bytes(), 999).is_err());
        for value in [&b"\xc1"[..], b"\x01", b"\x91\x01", b"\xa1a"] {
            assert!(answers(Format::Msgpack, value, 9).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_line_is_sent_as_a_map_with_a_message() {
        let write = |format: Format, line: &[u8]| {
            let (mut scratch, mut to) = (Vec::new(), Vec::new());
            format
                .write(Record::Line(line), &mut scratch, &mut to)
                .unwrap();
            to
        };
        assert_eq!(write(Format::Json, b"a\"b"), b"{\"message\":\"a\\\"b\"}\n");
        assert_eq!(write(Format::Json, b"\xff"), b"{\"message\":\"/w==\"}\n");
        assert_eq!(write(Format::Msgpack, b"\xff"), b"\x81\xa7message\xa1\xff");
    }
}
