//! `format: avro_event`: Avro files as outputs. One packer builds the blocks of all outputs.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! The sync marker between blocks is a hash of the output's name, and thus of sink, channel and position.

use std::{cell::RefCell, io, ops::Range, rc::Rc};

use millstream_pipeline::failure::Failure;
use millstream_record::Batch;
use millstream_wire::{
    avro::container::{Codec, Container, Packer, Sync},
    format::{Encoder, Reject},
};

use super::{
    encode::{Body, Encode},
    store::Place,
};
use crate::format::Formatting;

/// Buffers with a larger capacity are freed after use.
const KEEP_BYTES_MAX: usize = 2 << 20;

/// Returns the encoder of Avro files with blocks of this codec.
pub(crate) fn avro(format: &Formatting, codec: Codec) -> Result<Box<dyn Encode>, Failure> {
    let shared = Shared {
        encoder: format.encoder(),
        packer: Packer::new(codec).map_err(failed)?,
    };
    Ok(Box::new(Files {
        shared: Rc::new(RefCell::new(shared)),
        codec,
    }))
}

fn failed(error: io::Error) -> Failure {
    Failure::us(format!("cannot compress: {error}"))
}

struct Shared {
    encoder: Encoder,
    packer: Packer,
}

struct Files {
    shared: Rc<RefCell<Shared>>,
    codec: Codec,
}

struct File {
    shared: Rc<RefCell<Shared>>,
    container: Container,
    /// Complete blocks that are not drained yet.
    blocks: Vec<u8>,
}

impl Encode for Files {
    fn begin(&mut self, place: &Place) -> Result<Box<dyn Body>, Failure> {
        let container = Container::new(Sync::of(place.file.as_bytes()));
        let mut blocks = Vec::new();
        container.begin(self.codec, &mut blocks);
        Ok(Box::new(File {
            shared: self.shared.clone(),
            container,
            blocks,
        }))
    }
}

impl Body for File {
    fn encode(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        rejects: &mut Vec<Reject>,
    ) -> Result<u32, Failure> {
        let Shared { encoder, packer } = &mut *self.shared.borrow_mut();
        let blocks = &mut self.blocks;
        let taken = self
            .container
            .encode(encoder, packer, batch, range, blocks, rejects);
        taken.map_err(failed)
    }

    fn held(&self) -> usize {
        self.blocks.len() + self.container.waiting_bytes()
    }

    fn drain(&mut self, out: &mut Vec<u8>, end: bool) -> Result<(), Failure> {
        if end {
            let packer = &mut self.shared.borrow_mut().packer;
            let ended = self.container.end_block(packer, &mut self.blocks);
            ended.map_err(failed)?;
        }
        out.extend_from_slice(&self.blocks);
        self.blocks.clear();
        if self.blocks.capacity() > KEEP_BYTES_MAX {
            self.blocks = Vec::new();
        }
        Ok(())
    }
}
