//! `format: template`: the text of a template per record.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`

use millstream_record::Batch;

use super::{
    Reason,
    value::behind,
    write::{Of, Write},
};
use crate::{msgpack::Head, record::TimedRecord, room::Room, template::Renderer};

#[derive(Debug)]
pub(super) struct Text {
    renderer: Renderer,
    delimiter: Box<[u8]>,
    /// Buffer for the text of one record.
    text: Vec<u8>,
}

impl Text {
    pub(super) fn new(renderer: Renderer, delimiter: Box<[u8]>) -> Self {
        Self {
            renderer,
            delimiter,
            text: Vec::new(),
        }
    }

    fn event(
        &mut self,
        room: &mut Room<'_>,
        event: TimedRecord<'_>,
        of: Of<'_>,
    ) -> Result<(), Reason> {
        self.text.clear();
        self.renderer.render(of.shared, event, &mut self.text)?;
        room.bytes(&self.text);
        room.bytes(&self.delimiter);
        Ok(())
    }
}

impl Write for Text {
    fn begin(&mut self, _: &Batch) {}

    fn line(&mut self, room: &mut Room<'_>, line: &[u8], of: Of<'_>) -> Result<(), Reason> {
        self.event(room, of.line(line), of)
    }

    fn packed(
        &mut self,
        room: &mut Room<'_>,
        body: &[u8],
        _start: usize,
        head: Head,
        of: Of<'_>,
    ) -> Result<usize, Reason> {
        self.event(room, of.packed(body, head), of)?;
        behind(body, head.record, 1)
    }
}
