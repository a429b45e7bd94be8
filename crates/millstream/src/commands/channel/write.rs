//! Writes batches as text or MessagePack, for `cat` and `skip`.

use std::io::{self, Write};

use clap::ValueEnum;
use jiff::tz::TimeZone;
use millstream_record::Batch;
use millstream_wire::format::{Add, Encoder, Options, Reject};

use super::Trouble;

/// The output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One object per line, with the time and the tag.
    Json,
    /// The field `message` of a record and a newline. Records that are lines of text stay unchanged.
    Raw,
    /// Entries `[time, record]`.
    Msgpack,
}

/// Writes batches and counts the records that it cannot write.
pub struct Records<W> {
    out: W,
    encoder: Encoder,
    bytes: Vec<u8>,
    rejects: Vec<Reject>,
    /// Records written.
    pub written: u64,
    /// The number of records that the format cannot express, with the reason for the first one; `None` if there are none.
    pub refused: Option<(u64, String)>,
}

impl<W: Write> Records<W> {
    /// Writes to `out`.
    pub fn new(out: W, format: Format) -> Result<Self, Trouble> {
        use millstream_wire::format::Format as Wire;
        let (format, add) = match format {
            Format::Json => (Wire::Json, Some(r#"{"time": "{time}", "tag": "{tag}"}"#)),
            Format::Raw => (Wire::Raw, None),
            Format::Msgpack => (Wire::Msgpack, None),
        };
        let add = add.map(serde_json::from_str::<Add>).transpose();
        let options = Options {
            format,
            add: add.map_err(|error| Trouble(error.to_string()))?,
            ..Options::default()
        };
        let encoder = options.encoder(&TimeZone::UTC);
        Ok(Self {
            out,
            encoder: encoder.map_err(|error| Trouble(error.to_string()))?,
            bytes: Vec::new(),
            rejects: Vec::new(),
            written: 0,
            refused: None,
        })
    }

    /// Writes the records of a batch.
    pub fn write(&mut self, batch: &Batch) -> io::Result<()> {
        self.bytes.clear();
        self.rejects.clear();
        let written = self
            .encoder
            .encode(batch, &mut self.bytes, &mut self.rejects);
        self.written += u64::from(written);
        if let Some(first) = self.rejects.first() {
            let (count, _) = self
                .refused
                .get_or_insert_with(|| (0, first.reason.to_string()));
            *count += self.rejects.len() as u64;
        }
        self.out.write_all(&self.bytes)
    }

    /// Returns the output. All records are already written to it.
    pub fn into_inner(self) -> W {
        self.out
    }
}
