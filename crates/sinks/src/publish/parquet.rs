//! Parquet: outputs that query engines read by column.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! time   INT64, TIMESTAMP(nanoseconds, UTC)   the event time
//! tag    BYTE_ARRAY, STRING                   the tag
//! body   BYTE_ARRAY, STRING (JSON)            the record's fields and those of `add`, as `format: json` writes them
//! ```
//! Every record has these three columns. With a column for each field, the schema would change from object to object. Query
//! engines can read the fields from the JSON. A row group is written when its bodies reach [`ROW_GROUP_BYTES`], and at the end;
//! until then its records are in memory.

use std::{cell::RefCell, ops::Range, rc::Rc, sync::Arc};

use ::parquet::{
    basic::{Compression, GzipLevel, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, Int64Type},
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::{
        parser::parse_message_type,
        types::{Type, TypePtr},
    },
};
use bytes::Bytes;
use millstream_pipeline::failure::Failure;
use millstream_record::Batch;
use millstream_wire::{
    compression::Codec,
    format::{Encoder, Mark, Reject},
};

use super::{
    encode::{Body, Encode, part},
    store::Place,
};
use crate::format::Formatting;

/// Bytes of text in a row group: large enough for a column to be compressed well, small enough for many outputs.
const ROW_GROUP_BYTES: usize = 4 << 20;

const SCHEMA: &str = "message record {
    REQUIRED INT64 time (TIMESTAMP(NANOS, true));
    REQUIRED BYTE_ARRAY tag (STRING);
    REQUIRED BYTE_ARRAY body (STRING);
}";

/// Returns the encoder of Parquet, with compressed columns if there is a codec.
pub(crate) fn parquet(
    format: &Formatting,
    codec: Option<Codec>,
) -> Result<Box<dyn Encode>, Failure> {
    let compression = match codec {
        None => Compression::UNCOMPRESSED,
        Some(Codec::Gzip) => Compression::GZIP(GzipLevel::try_new(1).map_err(failed)?),
        Some(Codec::Zstd) => Compression::ZSTD(ZstdLevel::try_new(1).map_err(failed)?),
    };
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_created_by("millstream".to_owned())
        .build();
    let schema: Type = parse_message_type(SCHEMA).map_err(failed)?;
    Ok(Box::new(Files {
        encoder: Rc::new(RefCell::new(format.encoder())),
        properties: Arc::new(properties),
        schema: Arc::new(schema),
    }))
}

struct Files {
    encoder: Rc<RefCell<Encoder>>,
    properties: Arc<WriterProperties>,
    schema: TypePtr,
}

/// One output.
struct File {
    encoder: Rc<RefCell<Encoder>>,
    /// Writes into a vector, which holds the bytes that are not drained yet.
    writer: SerializedFileWriter<Vec<u8>>,
    times: Vec<i64>,
    /// The tags of consecutive records, each with the number of its records.
    tags: Vec<(ByteArray, usize)>,
    bodies: Vec<u8>,
    /// The end of each body in `bodies`.
    ends: Vec<usize>,
    marks: Vec<Mark>,
}

impl Encode for Files {
    fn begin(&mut self, _: &Place) -> Result<Box<dyn Body>, Failure> {
        let (schema, properties) = (self.schema.clone(), self.properties.clone());
        let writer = SerializedFileWriter::new(Vec::new(), schema, properties).map_err(failed)?;
        Ok(Box::new(File {
            encoder: self.encoder.clone(),
            writer,
            times: Vec::new(),
            tags: Vec::new(),
            bodies: Vec::new(),
            ends: Vec::new(),
            marks: Vec::new(),
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
        let some = part(batch, &range);
        let (before, start) = (rejects.len(), self.bodies.len());
        self.marks.clear();
        let records = self.encoder.borrow_mut().encode_each(
            &some,
            &mut self.bodies,
            rejects,
            &mut self.marks,
        );
        for reject in rejects.iter_mut().skip(before) {
            reject.range = reject.range.start + range.start..reject.range.end + range.start;
        }
        debug_assert!(self.marks.first().is_none_or(|mark| mark.written > start));
        self.times.extend(self.marks.iter().map(|mark| mark.time.0));
        self.ends.extend(self.marks.iter().map(|mark| mark.written));
        let tag = batch.tag.as_str().as_bytes();
        match self.tags.last_mut() {
            Some((last, count)) if last.data() == tag => *count += records as usize,
            _ => self.tags.push((tag.to_vec().into(), records as usize)),
        }
        if self.bodies.len() >= ROW_GROUP_BYTES {
            self.write().map_err(failed)?;
        }
        Ok(records)
    }

    fn held(&self) -> usize {
        self.bodies.len() + 16 * self.times.len() + self.writer.inner().len()
    }

    fn becomes(&self) -> usize {
        // A rough estimate for columns of text: compression usually shrinks them even more.
        self.writer.inner().len() + self.bodies.len() / 4
    }

    fn drain(&mut self, out: &mut Vec<u8>, end: bool) -> Result<(), Failure> {
        if end {
            self.write().map_err(failed)?;
            self.writer.finish().map_err(failed)?;
        }
        self.writer
            .flush()
            .map_err(|error| Failure::us(format!("cannot write Parquet: {error}")))?;
        out.append(self.writer.inner_mut());
        Ok(())
    }
}

impl File {
    /// Writes the records in memory as a row group.
    fn write(&mut self) -> Result<(), ParquetError> {
        if self.times.is_empty() {
            return Ok(());
        }
        let bodies = Bytes::from(std::mem::take(&mut self.bodies));
        let mut start = 0;
        let bodies: Vec<ByteArray> = std::mem::take(&mut self.ends)
            .into_iter()
            .map(|end| {
                // The body without the newline after the JSON.
                let body = bodies.slice(start..end.saturating_sub(1).max(start));
                start = end;
                ByteArray::from(body)
            })
            .collect();
        let tags = std::mem::take(&mut self.tags);
        let tags: Vec<ByteArray> = tags
            .into_iter()
            .flat_map(|(tag, count)| std::iter::repeat_n(tag, count))
            .collect();
        let mut group = self.writer.next_row_group()?;
        if let Some(mut column) = group.next_column()? {
            column
                .typed::<Int64Type>()
                .write_batch(&self.times, None, None)?;
            column.close()?;
        }
        for texts in [&tags, &bodies] {
            if let Some(mut column) = group.next_column()? {
                column
                    .typed::<ByteArrayType>()
                    .write_batch(texts, None, None)?;
                column.close()?;
            }
        }
        group.close()?;
        self.times.clear();
        Ok(())
    }
}

fn failed(error: ParquetError) -> Failure {
    Failure::us(format!("cannot write Parquet: {error}"))
}
