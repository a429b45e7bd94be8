//! Adapts a reader of the log to the pipeline's `Reader`.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> decode -> send -> keep -> [read back] -> process -> encode -> write -> settle`

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use millstream_pipeline::{
    channel::{Bounds, Delivered, Reader},
    failure::Failure,
    report::Reporter,
};
use millstream_record::Position;

use super::{
    failure,
    log::{self, Item, Lost, Missing},
    loss_report::LossReport,
    queue::Queue,
};

pub(super) struct DiskReader {
    reader: log::Reader,
    queue: Arc<Queue>,
    reporter: Reporter,
    missing: Arc<LossReport>,
}

impl DiskReader {
    pub(super) fn new(
        reader: log::Reader,
        queue: Arc<Queue>,
        reporter: Reporter,
        missing: Arc<LossReport>,
    ) -> Self {
        Self {
            reader,
            queue,
            reporter,
            missing,
        }
    }

    /// The next batch; `None` if there is none now.
    fn read(&mut self) -> Result<Option<Delivered>, Failure> {
        loop {
            match self.reader.read().map_err(failure)? {
                Some(Item::Batch(position, batch)) => {
                    return Ok(Some(Delivered::new(batch, Some(position), None)));
                }
                Some(Item::Lost(lost)) => self.report(&lost),
                None => return Ok(None),
            }
        }
    }

    fn report(&self, lost: &Lost) {
        if lost.damaged.is_some() {
            self.missing
                .add(Missing::Middle, lost.after, lost.before.before());
        }
        let why = match &lost.damaged {
            Some(path) => format!("{} is damaged", path.display()),
            None => "they are no longer in the channel".to_owned(),
        };
        self.reporter.error(
            "gap",
            format_args!(
                "{} continues at {}: the positions after {} are missing: {why}",
                self.reader.name(),
                lost.before,
                lost.after
            ),
        );
    }
}

impl Reader for DiskReader {
    fn resume(&mut self, after: Option<Position>) -> Result<(), Failure> {
        let committed = after.unwrap_or_else(|| self.reader.settled());
        let end = self.reader.kept();
        let position = self.missing.check(self.reader.name(), committed, end);
        match after {
            None if position == committed => self.reader.restart(),
            _ => self.reader.seek(position),
        }
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Delivered>, Failure>> {
        if let Some(delivered) = self.read()? {
            return Poll::Ready(Ok(Some(delivered)));
        }
        self.reader.wake(context.waker());
        let ended = self.queue.ended();
        // The last batch may have been kept between the read and the registration of the waker.
        if let Some(delivered) = self.read()? {
            return Poll::Ready(Ok(Some(delivered)));
        }
        match ended {
            None => Poll::Pending,
            Some(Ok(())) => Poll::Ready(Ok(None)),
            Some(Err(text)) => Poll::Ready(Err(Failure::disk(text).never_again())),
        }
    }

    fn commit(&mut self, position: Position) -> Result<(), Failure> {
        self.reader.commit(position).map_err(failure)
    }

    fn settled(&self) -> Option<Position> {
        Some(self.reader.settled())
    }

    fn bounds(&self) -> Option<Bounds> {
        Some(self.reader.bounds())
    }

    fn hurry(&self) -> bool {
        // The writer may be waiting for space for its next segment. The next checkpoint would free this space.
        self.reader.used_bytes() >= self.reader.size_max() / 4 * 3
    }
}
