//! From bytes that were read to batches on their way, and who the file is that they come from.
//!
//! `read -> decode -> [send] -> keep -> take -> process -> encode -> write -> settle`
//!
//! Each batch says from where to where in which file it reaches: with that a durable channel recognises what it has.

use std::{io, sync::atomic::Ordering};

use bytes::Bytes;
use millstream_record::{Batch, Buffer, Encoding, FileId, FileOrigin, Origin, Time};
use millstream_wire::lines;

use super::{
    identity::{Mark, read_file_id},
    reader::Reader,
};
use crate::{flight::share, framing::Framer};

impl Reader {
    /// Sends the lines that stand in `range` of the buffer as a batch; reading goes on at `mark`.
    pub(super) async fn send(
        &mut self,
        buffer: Buffer,
        range: std::ops::Range<usize>,
        mark: Mark,
    ) -> io::Result<()> {
        let count = lines::count(&buffer[range.clone()]);
        self.send_body(share(buffer, range), count, mark).await
    }

    /// Sends records as a batch; reading goes on at `mark`.
    pub(super) async fn send_body(
        &mut self,
        body: Bytes,
        count: u32,
        mark: Mark,
    ) -> io::Result<()> {
        let id = self.identify()?;
        let batch = self.batch(id, body, count, mark.offset);
        // With `--once` the last batch of a file is waited for.
        let last = self.context.once && self.pace.is_rest(mark.offset - self.next.offset);
        let awaited = last || self.flight.is_half_full();
        let receipt = self.context.outlet.send(batch, awaited).await;
        self.flight.push(receipt, mark);
        self.go_on_at(mark);
        Ok(())
    }

    /// A batch with the bytes from the next one up to `next`.
    pub(super) fn batch(&self, file: FileId, body: Bytes, count: u32, next: u64) -> Batch {
        Batch {
            tag: self.tag.clone(),
            plain: false,
            encoding: self
                .framer
                .as_ref()
                .map_or(Encoding::Lines, Framer::encoding),
            body,
            count,
            received: Time::now(),
            values: self.values.clone(),
            origins: vec![Origin::File(FileOrigin {
                file,
                begin: self.next.offset,
                next,
            })],
        }
    }

    /// Goes on at `mark` without a record.
    pub(super) async fn pass_over(&mut self, mark: Mark) -> io::Result<()> {
        let id = self.identify()?;
        if self.common.durable {
            // So that a restart does not come here again.
            let passed = self.batch(id, Bytes::new(), 0, mark.offset);
            let receipt = self.context.outlet.send(passed, false).await;
            self.flight.push(receipt, mark);
        } else {
            self.flight.skip(mark);
        }
        self.go_on_at(mark);
        Ok(())
    }

    pub(super) fn go_on_at(&mut self, mark: Mark) {
        let behind = mark.offset - self.next.offset;
        self.pace.read(behind);
        self.next = mark;
        self.read_bytes = self.first_read();
        self.partial = 0;
        self.open_since = None;
        self.tracked.state().advance(mark);
    }

    /// Who the file is; decided when its first batch is sent.
    pub(super) fn identify(&mut self) -> io::Result<FileId> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let id = read_file_id(file, self.tracked.inode, self.generation)?;
        self.adopt(id);
        Ok(id)
    }

    pub(super) fn adopt(&mut self, id: FileId) {
        self.id = Some(id);
        let mut state = self.tracked.state();
        state.settled = Some((id, self.flight.settled()));
        state.advance(self.next);
        drop(state);
        self.common.heads.put(&id, &self.tracked);
        self.common.urgent.store(true, Ordering::Relaxed);
    }

    /// Lets others know up to where it is settled.
    pub(super) fn publish(&self) {
        let Some(id) = self.id else { return };
        let mark = self.flight.settled();
        let before = self.tracked.state().settled.replace((id, mark));
        if mark.offset > 0 && before.is_none_or(|(_, before)| before.offset == 0) {
            // Without a mark its copy cannot be recognised by its content.
            self.common.urgent.store(true, Ordering::Relaxed);
        }
        self.common.dirty.notify_one();
    }
}
