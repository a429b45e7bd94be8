//! One request: its items (encoded records), and its body.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! ```text
//! text      the encoded items, one after the other
//! items     the byte range of each item in the text, and of its record in the batch
//! body      lines: the text   array: [a,b]   bulk: the text   otlp: grouped by resource and scope
//! ```
//! This module promises that the same items always make the same body.

use std::{io::Write as _, ops::Range};

use bytes::Bytes;
use flate2::{Compression as Level, write::ZlibEncoder};
use millstream_pipeline::redact;
use millstream_record::Batch;
use millstream_wire::{
    compression::{Codec, compress},
    otlp::{Form, rejected, write_request},
};

use super::{
    options::{Compression, Framing},
    target::Target,
};

/// A record in a request.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its byte range in the text.
    pub(super) text: Range<usize>,
    /// With OTLP: the byte range of its resource and scope in [`Request::around`].
    pub(super) around: Range<usize>,
    /// The index of the record's batch in [`Request::batches`], and the byte range of the record in that batch.
    pub(super) batch: usize,
    pub(super) record: Range<usize>,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    /// Its number in the lane.
    pub(super) number: u64,
    pub(super) target: Target,
    /// The value of `Idempotency-Key`, if the request has one.
    pub(super) key: Option<String>,
    pub(super) text: Bytes,
    pub(super) around: Bytes,
    pub(super) items: Vec<Item>,
    pub(super) batches: Vec<Batch>,
}

/// How items become a body.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    pub(super) framing: Framing,
    pub(super) compression: Compression,
    /// The start of every body: with csv and `header`, the names of the columns; otherwise empty.
    pub(super) header: Bytes,
}

impl Packing {
    /// The content type, unless a header sets it.
    pub(super) fn content_type(&self) -> &'static str {
        match self.framing {
            Framing::Lines | Framing::Bulk => "application/x-ndjson",
            Framing::Array | Framing::Single | Framing::OtlpJson => "application/json",
            Framing::Otlp => "application/x-protobuf",
        }
    }

    /// `Content-Encoding`.
    pub(super) fn encoding(&self) -> Option<&'static str> {
        match self.compression {
            Compression::None => None,
            Compression::Gzip => Some("gzip"),
            Compression::Zstd => Some("zstd"),
            Compression::Deflate => Some("deflate"),
        }
    }

    /// The body of some items of a request.
    pub(super) fn body(&self, request: &Request, items: &[u32]) -> Bytes {
        let plain = self.plain(request, items);
        let packed = match self.compression {
            Compression::None => return plain,
            Compression::Gzip => packed(Codec::Gzip, &plain),
            Compression::Zstd => packed(Codec::Zstd, &plain),
            Compression::Deflate => deflated(&plain),
        };
        packed.into()
    }

    fn plain(&self, request: &Request, items: &[u32]) -> Bytes {
        let items = || {
            let items = items.iter();
            items.filter_map(|item| request.items.get(*item as usize))
        };
        let text = |item: &Item| request.text.get(item.text.clone()).unwrap_or_default();
        let around = |item: &Item| request.around.get(item.around.clone()).unwrap_or_default();
        let all = items().count() == request.items.len();
        let mut body = Vec::new();
        match self.framing {
            Framing::Lines | Framing::Bulk | Framing::Single if all && self.header.is_empty() => {
                return request.text.clone();
            }
            Framing::Lines | Framing::Bulk | Framing::Single => {
                body.extend_from_slice(&self.header);
                items().for_each(|item| body.extend_from_slice(text(item)));
            }
            Framing::Array => {
                body.reserve(request.text.len() + request.items.len() + 2);
                for (place, item) in items().enumerate() {
                    body.push(if place == 0 { b'[' } else { b',' });
                    body.extend_from_slice(text(item));
                }
                body.push(b']');
            }
            Framing::Otlp | Framing::OtlpJson => {
                let form = match self.framing {
                    Framing::Otlp => Form::Protobuf,
                    _ => Form::Json,
                };
                let records = items().map(|item| (text(item), around(item)));
                write_request(form, records, &mut body);
            }
        }
        body.into()
    }
}

fn packed(codec: Codec, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(plain.len() / 4);
    compress(codec, plain, &mut out).expect("memory for a compressor of known size");
    out
}

fn deflated(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(plain.len() / 4), Level::fast());
    encoder.write_all(plain).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

impl Request {
    /// The indexes of all items.
    pub(super) fn all(&self) -> Vec<u32> {
        (0..u32::try_from(self.items.len()).unwrap_or(u32::MAX)).collect()
    }

    /// A text of the server about some items, without values that `api.redact` hides: the text may quote their records.
    pub(super) fn masked(&self, items: &[u32], mut text: String) -> String {
        let redaction = redact::chosen();
        if redaction.is_empty() {
            return text;
        }
        for (batch, records) in self.records(items) {
            text = redaction.about(batch, records, &text).into_owned();
        }
        text
    }

    /// The records of some items, grouped by batch.
    pub(super) fn records(&self, items: &[u32]) -> Vec<(&Batch, Vec<&[u8]>)> {
        let mut found: Vec<(usize, Vec<&[u8]>)> = Vec::new();
        for item in items
            .iter()
            .filter_map(|item| self.items.get(*item as usize))
        {
            let batch = self.batches.get(item.batch);
            let record = batch.and_then(|batch| batch.body.get(item.record.clone()));
            let record = record.unwrap_or_default();
            match found.last_mut() {
                Some((batch, records)) if *batch == item.batch => records.push(record),
                _ => found.push((item.batch, vec![record])),
            }
        }
        let batch = |(batch, records)| Some((self.batches.get(batch)?, records));
        found.into_iter().filter_map(batch).collect()
    }
}

impl Packing {
    /// The number of records that the server has dropped, and why, from the field `partial_success` of an OTLP answer. `None`: it
    /// has dropped none.
    pub(super) fn partial(&self, body: &[u8]) -> Option<(u64, String)> {
        let form = match self.framing {
            Framing::Otlp => Form::Protobuf,
            Framing::OtlpJson => Form::Json,
            _ => return None,
        };
        rejected(form, body)
    }
}
