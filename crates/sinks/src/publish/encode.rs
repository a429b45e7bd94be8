//! The content of outputs: the traits that formats implement, and the text formats.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! A sink has one [`Encode`], and each output has one [`Body`]. Compressed text is a sequence of pieces, each a gzip member or a zstd
//! frame, as in the sink `file`. Each piece is compressed separately, so one compressor serves all outputs.

use std::{cell::RefCell, ops::Range, rc::Rc};

use millstream_pipeline::failure::Failure;
use millstream_record::{Batch, Encoding};
use millstream_wire::{
    compression::{Codec, Members},
    format::{Encoder, Reject},
    record::records,
};

use super::store::Place;
use crate::format::Formatting;

/// Buffers with a larger capacity are freed after use.
const KEEP_BYTES_MAX: usize = 2 << 20;
/// The expected compression ratio of logs; few logs compress better.
const SHRINKS_TO_ONE_IN: usize = 8;

/// Creates the bodies of outputs.
pub(crate) trait Encode {
    /// Creates the body of the output that will be at `place`.
    fn begin(&mut self, place: &Place) -> Result<Box<dyn Body>, Failure>;
}

/// The content of one output.
pub(crate) trait Body {
    /// Adds the whole records in `range` of the batch's body. Records that cannot be written go to `rejects`. Returns the number added.
    fn encode(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        rejects: &mut Vec<Reject>,
    ) -> Result<u32, Failure>;

    /// Returns the bytes of memory that the body holds.
    fn held(&self) -> usize;

    /// Returns a low estimate of the bytes that the held records will take in the output. An estimate that is too high would split
    /// an output near its size limit into ever smaller pieces.
    fn becomes(&self) -> usize {
        self.held()
    }

    /// Appends complete pieces or blocks to `out`. With `end`, also appends the incomplete one and the output's trailer.
    fn drain(&mut self, out: &mut Vec<u8>, end: bool) -> Result<(), Failure>;
}

/// Returns the encoder of a format of the crate `wire`, with compression if there is a codec.
pub(crate) fn text(format: &Formatting, codec: Option<Codec>) -> Result<Box<dyn Encode>, Failure> {
    let members = codec.map(Members::new).transpose();
    let members =
        members.map_err(|error| Failure::us(format!("cannot start compression: {error}")))?;
    let encoder = format.encoder();
    Ok(Box::new(Texts(Rc::new(RefCell::new(Shared {
        encoder,
        members,
    })))))
}

struct Shared {
    encoder: Encoder,
    members: Option<Members>,
}

struct Texts(Rc<RefCell<Shared>>);

struct Text {
    shared: Rc<RefCell<Shared>>,
    text: Vec<u8>,
}

impl Encode for Texts {
    fn begin(&mut self, _: &Place) -> Result<Box<dyn Body>, Failure> {
        let text = self.0.borrow().encoder.header().to_vec();
        Ok(Box::new(Text {
            shared: self.0.clone(),
            text,
        }))
    }
}

impl Body for Text {
    fn encode(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        rejects: &mut Vec<Reject>,
    ) -> Result<u32, Failure> {
        let encoder = &mut self.shared.borrow_mut().encoder;
        if !encoder.passes(batch) {
            return Ok(encoder.encode_range(batch, range, &mut self.text, rejects));
        }
        let records = count(batch, &range);
        self.text
            .extend_from_slice(batch.body.get(range).unwrap_or_default());
        Ok(records)
    }

    fn held(&self) -> usize {
        self.text.len()
    }

    fn becomes(&self) -> usize {
        match self.shared.borrow().members {
            None => self.text.len(),
            Some(_) => self.text.len() / SHRINKS_TO_ONE_IN,
        }
    }

    fn drain(&mut self, out: &mut Vec<u8>, _end: bool) -> Result<(), Failure> {
        if self.text.is_empty() {
            return Ok(());
        }
        match &mut self.shared.borrow_mut().members {
            None => out.extend_from_slice(&self.text),
            Some(members) => members
                .append(&[&self.text], out)
                .map_err(|error| Failure::us(format!("cannot compress: {error}")))?,
        }
        self.text.clear();
        if self.text.capacity() > KEEP_BYTES_MAX {
            self.text = Vec::new();
        }
        Ok(())
    }
}

/// Returns the number of records in `range`.
pub(super) fn count(batch: &Batch, range: &Range<usize>) -> u32 {
    if *range == (0..batch.body.len()) {
        return batch.count;
    }
    let body = batch.body.get(range.clone()).unwrap_or_default();
    let records = match batch.encoding {
        Encoding::Lines => body.iter().filter(|byte| **byte == b'\n').count(),
        Encoding::Packed => records(&part(batch, range)).count(),
    };
    u32::try_from(records).unwrap_or(u32::MAX)
}

/// Returns the records of `range` as a batch.
pub(super) fn part(batch: &Batch, range: &Range<usize>) -> Batch {
    Batch {
        tag: batch.tag.clone(),
        plain: false,
        encoding: batch.encoding,
        body: batch.body.slice(range.clone()),
        count: 0,
        received: batch.received,
        values: batch.values.clone(),
        origins: Vec::new(),
    }
}
