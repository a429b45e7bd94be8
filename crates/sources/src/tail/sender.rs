//! Sends the batches of one file, and rejects records.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> [send] -> keep -> read back -> process -> encode -> write -> settle`
//!
//! Each batch has an origin: the file and the range of bytes from which its records were read. A durable channel uses the origin
//! to recognize batches that it already has.

use std::{fs, io, ops::Range, sync::Arc};

use bytes::Bytes;
use millstream_pipeline::{delivery::Receipt, node::SourceContext, outlet::Outlet, reject};
use millstream_record::{Batch, Encoding, FileId, FileOrigin, Origin, Tag, Time, Values};
use millstream_sys::disk::read_at;

use super::options::Options;
use crate::framing::{NOT_FRAMED, Rejected};

/// Sends the records of one file.
pub(super) struct Sender {
    tag: Tag,
    values: Arc<Values>,
    encoding: Encoding,
    line_max: usize,
    node: Arc<str>,
    outlet: Outlet,
    rejects: Outlet,
}

/// The result of rejecting a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The line was sent to the port `NAME.rejected`.
    Sent,
    /// The file has become shorter.
    Truncated,
    /// A consumer of the port dropped a piece. The line has to be rejected again.
    Dropped,
}

impl Sender {
    /// Makes a sender for the file at `path`. The records that it sends are encoded as `encoding`.
    pub(super) fn new(
        path: &std::path::Path,
        encoding: Encoding,
        options: &Options,
        source: &SourceContext,
    ) -> Self {
        let values = options.values_of(path, &source.host);
        Self {
            tag: options.tag_of(path, &source.name, &values),
            values: Arc::new(values),
            encoding,
            line_max: options.line_max,
            node: source.name.clone(),
            outlet: source.outlet.clone(),
            rejects: source.rejects.clone(),
        }
    }

    /// The offsets up to which the downstream channels have kept a file.
    pub(super) fn marks(&self, file: FileId) -> Vec<u64> {
        self.outlet.file_marks(file)
    }

    /// Sends `count` records from `origin`. `awaited` asks consumers to settle them early.
    pub(super) async fn send(
        &self,
        origin: FileOrigin,
        body: Bytes,
        count: u32,
        awaited: bool,
    ) -> Receipt {
        let batch = self.batch(origin, body, count);
        self.outlet.send(batch, awaited).await
    }

    /// Sends `count` records that were read from several files. A durable channel keeps all of their positions or none.
    pub(super) async fn send_joined(
        &self,
        origins: Vec<FileOrigin>,
        body: Bytes,
        count: u32,
    ) -> Receipt {
        let batch = self.batch_of(origins, body, count);
        self.outlet.send(batch, true).await
    }

    /// Sends a batch without records, which moves the position in a durable channel to the end of `origin`.
    pub(super) async fn send_position(&self, origin: FileOrigin) -> Receipt {
        self.send(origin, Bytes::new(), 0, false).await
    }

    /// Rejects `pieces`, which were made from the bytes at `origin`. Returns false if a consumer dropped one of them: all pieces
    /// then have to be rejected again.
    pub(super) async fn reject(&self, origin: FileOrigin, pieces: &[Rejected]) -> bool {
        let from = self.batch(origin, Bytes::new(), 0);
        let too_long = format!("a record is longer than line_max ({})", self.line_max);
        for of_kind in pieces.chunk_by(|one, other| one.too_long == other.too_long) {
            let reason = match of_kind.first() {
                Some(piece) if !piece.too_long => NOT_FRAMED,
                _ => &too_long,
            };
            let records = of_kind.iter().map(|piece| &piece.bytes[..]);
            let rejected = reject::batch(&self.node, &from, records, reason);
            if self.rejects.send(rejected, true).await.await.is_err() {
                return false;
            }
        }
        true
    }

    /// Rejects the line in `range` of a file, in pieces of at most `line_max` bytes.
    pub(super) async fn reject_line(
        &self,
        file: &fs::File,
        id: FileId,
        range: Range<u64>,
    ) -> io::Result<Rejection> {
        let reason = format!(
            "a line of {} bytes is longer than line_max ({})",
            range.end - range.start,
            self.line_max
        );
        let mut at = range.start;
        while at < range.end {
            let mut bytes = Vec::new();
            let wanted = usize::try_from(range.end - at)
                .unwrap_or(usize::MAX)
                .min(self.line_max.max(1));
            let read = read_at(file, &mut bytes, wanted, at)?;
            if read == 0 {
                return Ok(Rejection::Truncated);
            }
            at += read as u64;
            let origin = FileOrigin {
                file: id,
                begin: range.start,
                next: at,
            };
            let from = self.batch(origin, Bytes::new(), 0);
            let rejected = reject::batch(&self.node, &from, [&bytes[..]], &reason);
            if self.rejects.send(rejected, true).await.await.is_err() {
                return Ok(Rejection::Dropped);
            }
        }
        Ok(Rejection::Sent)
    }

    fn batch(&self, origin: FileOrigin, body: Bytes, count: u32) -> Batch {
        self.batch_of(vec![origin], body, count)
    }

    fn batch_of(&self, origins: Vec<FileOrigin>, body: Bytes, count: u32) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: false,
            encoding: self.encoding,
            body,
            count,
            received: Time::now(),
            values: self.values.clone(),
            origins: origins.into_iter().map(Origin::File).collect(),
        }
    }
}
