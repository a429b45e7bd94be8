//! `format: connect`: the values that kafka-connect-fluentd passes to Connect, in the JSON of Connect's JsonConverter.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! schemas   value {"schema":{"type":"struct","fields":[..sorted by name..],"optional":false,"name":TOPIC},"payload":{..}}
//!           key   {"schema":{"type":"string","optional":false},"payload":TAG}
//! without   value {..} in the record's order, key null
//!
//! str       string     the text, with U+FFFD for invalid UTF-8
//! int       int64      a value above 2^63-1 does not fit: the record is refused (the connector wraps it, or its task dies)
//! float     double     as Java writes it; NaN and infinities: "NaN" .. with schemas, null without
//! bool      boolean
//! bin       bytes      base64 with schemas, text without
//! nil       string, optional
//! map       struct     named by its field; its fields are sorted by name
//! array     array      of its first element's type; with schemas, an array that is empty or of mixed types is refused
//! ext                  refused
//! ```
//! A record is also refused if one of its maps has a key that is not text, or if it has more than 128 levels of nesting. Refused
//! records leave by the port `rejected`, whereas the connector ends its connection or task. If a map has the same key twice, the
//! last value counts. The code does not recurse, so the depth of a record cannot overflow the stack.

mod schema;
mod text;
mod tree;

#[cfg(test)]
mod tests;

use std::ops::Range;

use millstream_record::Batch;
use millstream_wire::{
    msgpack::{write_map_len, write_str},
    record::{MESSAGE, Record, TimedRecord},
};

use schema::Schemas;
use tree::{Kind, Tree};

/// Writes records as Connect does.
pub(super) struct Connect {
    schemas: bool,
    tree: Tree,
    writer: Schemas,
    /// Buffer for a line that is converted to a record.
    line: Vec<u8>,
    /// The steps that remain to write a payload.
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
enum Step {
    Value(usize),
    Name(usize),
    Text(&'static [u8]),
}

impl Connect {
    pub(super) fn new(schemas: bool) -> Self {
        Self {
            schemas,
            tree: Tree::default(),
            writer: Schemas::default(),
            line: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Appends the key that all records of a batch share and returns its range. Without schemas there is no key: returns `None`.
    pub(super) fn key(&self, batch: &Batch, out: &mut Vec<u8>) -> Option<Range<usize>> {
        if !self.schemas {
            return None;
        }
        let start = out.len();
        out.extend_from_slice(b"{\"schema\":{\"type\":\"string\",\"optional\":false},\"payload\":");
        text::string(batch.tag.as_str().as_bytes(), out);
        out.push(b'}');
        Some(start..out.len())
    }

    /// Appends a record; `topic` names its schema. An error leaves `out` unchanged.
    pub(super) fn write(
        &mut self,
        topic: &str,
        timed: TimedRecord<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let start = out.len();
        let mut line = std::mem::take(&mut self.line);
        let bytes = match timed.record {
            Record::Packed(bytes) => bytes,
            Record::Line(text) => {
                line.clear();
                write_map_len(&mut line, 1);
                write_str(&mut line, MESSAGE.as_bytes());
                write_str(&mut line, text);
                &line
            }
            Record::None => &[0x80],
        };
        let written = self.value(topic, bytes, out);
        self.line = line;
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    fn value(&mut self, topic: &str, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.tree.read(bytes, self.schemas)?;
        if self.schemas {
            self.writer.check_arrays(&self.tree, bytes)?;
            out.extend_from_slice(b"{\"schema\":");
            self.writer.write(&self.tree, bytes, 0, topic, out);
            out.extend_from_slice(b",\"payload\":");
            self.payload(bytes, out);
            out.push(b'}');
        } else {
            self.payload(bytes, out);
        }
        Ok(())
    }

    fn payload(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.steps.clear();
        self.steps.push(Step::Value(0));
        while let Some(step) = self.steps.pop() {
            let node = match step {
                Step::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                Step::Name(node) => {
                    text::string(self.tree.name(node, bytes), out);
                    out.push(b':');
                    continue;
                }
                Step::Value(node) => node,
            };
            let children = self.tree.children(node);
            let (open, close): (u8, &[u8]) = match self.tree.kind(node) {
                Kind::Map => (b'{', b"}"),
                Kind::Array => (b'[', b"]"),
                scalar => {
                    text::scalar(scalar, self.schemas, bytes, out);
                    continue;
                }
            };
            out.push(open);
            self.steps.push(Step::Text(close));
            for (index, child) in children.iter().enumerate().rev() {
                self.steps.push(Step::Value(*child));
                if open == b'{' {
                    self.steps.push(Step::Name(*child));
                }
                if index > 0 {
                    self.steps.push(Step::Text(b","));
                }
            }
        }
    }
}
