//! Tracks the records of a batch: which ones are to be sent, which ones are sent but not answered, and which ones are answered.

use std::{ops::Range, time::Duration};

use millstream_config::Size;
use millstream_record::Batch;
use millstream_wire::record::{Record, TimedRecord};

use super::{
    program::Cause,
    protocol::{Answers, Format},
    staged::Staged,
};

/// Encoding pauses while at least this many encoded bytes are unsent. A single record may exceed the limit.
const AHEAD_BYTES: usize = 64 << 10;

/// A record of the batch, with its range in the body.
pub(super) type Event<'a> = (Range<usize>, TimedRecord<'a>);

/// Encoded records that are being sent to the program.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// The number of bytes at the beginning of `bytes` that were sent.
    sent: usize,
    scratch: Vec<u8>,
}

/// Records that are sent in order and answered in order.
pub(super) struct Window<'a, I> {
    batch: &'a Batch,
    /// The next record to encode; `None` after the last one.
    next: Option<Event<'a>>,
    unsent: I,
    unanswered: I,
    /// The number of records that are encoded but not answered.
    open: usize,
    /// The number of records that are answered.
    answered: u32,
    /// The reason why `next` cannot be encoded in the format, or `None` if no such reason is known. A record that cannot be
    /// encoded is rejected once all records before it are answered.
    unfit: Option<String>,
}

impl Outgoing {
    /// The bytes to send.
    pub(super) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// Marks the next `bytes` bytes as sent.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        // Amortized, each byte is moved at most once.
        if self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Clears everything, and frees memory above `bytes_max`.
    pub(super) fn reset(&mut self, bytes_max: usize) {
        self.bytes.clear();
        self.sent = 0;
        self.bytes.shrink_to(bytes_max);
        self.scratch.shrink_to(bytes_max);
    }
}

impl<'a, I: Iterator<Item = Event<'a>> + Clone> Window<'a, I> {
    /// Creates a window over `records`, which iterates over records of `batch`.
    pub(super) fn new(batch: &'a Batch, records: I) -> Self {
        let mut unsent = records.clone();
        Self {
            batch,
            next: unsent.next(),
            unsent,
            unanswered: records,
            open: 0,
            answered: 0,
            unfit: None,
        }
    }

    /// Stages the answers that have arrived. Returns `false` if there were none.
    pub(super) fn stage(
        &mut self,
        answers: &mut Answers,
        staged: &mut Staged,
        limit: Size,
    ) -> Result<bool, Cause> {
        let before = self.open;
        while let Some(answer) = answers.next()? {
            let event = self.unanswered.next().filter(|_| self.open > 0);
            let (range, timed) = event.ok_or(Cause::Surplus)?;
            staged.add(self.batch, &range, timed, answer, limit)?;
            self.open -= 1;
            self.answered += 1;
        }
        Ok(self.open < before)
    }

    /// Encodes the next records, and rejects a record that cannot be encoded in the format.
    pub(super) fn encode(
        &mut self,
        format: Format,
        to: &mut Outgoing,
        staged: &mut Staged,
    ) -> Result<(), Cause> {
        if self.open == 0 && !to.unsent().is_empty() {
            return Err(Cause::Early);
        }
        while let Some((range, timed)) = &self.next {
            if to.unsent().len() >= AHEAD_BYTES {
                break;
            }
            if self.unfit.is_none() {
                let record = exact(self.batch, range, *timed);
                match format.write(record, &mut to.scratch, &mut to.bytes) {
                    Ok(()) => {
                        self.open += 1;
                        self.next = self.unsent.next();
                        continue;
                    }
                    Err(why) => self.unfit = Some(format!("it has no JSON form: {why}")),
                }
            }
            let Some(why) = self.unfit.take_if(|_| self.open == 0) else {
                break;
            };
            staged.reject(range.clone(), why);
            self.unanswered.next();
            self.next = self.unsent.next();
        }
        Ok(())
    }

    /// The mean time per answer, if all answers so far took `elapsed`.
    pub(super) fn pace(&self, elapsed: Duration) -> Duration {
        elapsed / self.answered.max(1)
    }

    /// Whether all records are answered.
    pub(super) fn is_done(&self) -> bool {
        self.open == 0 && self.next.is_none()
    }
}

/// Cuts a packed record at its end: the slice in `timed` continues to the end of the batch.
fn exact<'a>(batch: &Batch, range: &Range<usize>, timed: TimedRecord<'a>) -> Record<'a> {
    match timed.record {
        Record::Packed(rest) => {
            let length = (rest.len() + range.end).saturating_sub(batch.body.len());
            Record::Packed(rest.get(..length).unwrap_or(rest))
        }
        record => record,
    }
}

#[cfg(test)]
mod tests {
    use millstream_wire::record::records;

    use super::*;
    use crate::rig::lines;

    #[test]
    fn no_more_than_the_limit_is_encoded_ahead() {
        let batch = lines("t", &format!("{}\n", "x".repeat(1000)).repeat(1000));
        let (mut outgoing, mut staged) = (Outgoing::default(), Staged::default());
        let mut window = Window::new(&batch, records(&batch));
        let mut sent = 0;
        while window.next.is_some() {
            window
                .encode(Format::Json, &mut outgoing, &mut staged)
                .unwrap();
            assert!((1..=AHEAD_BYTES + 2000).contains(&outgoing.unsent().len()));
            let bytes = outgoing.unsent().len().min(4000);
            outgoing.advance(bytes);
            sent += bytes;
        }
        assert_eq!(sent + outgoing.unsent().len(), 1000 * (1000 + 15));
        assert_eq!(window.open, 1000);
    }

    #[test]
    fn an_answer_to_a_record_that_was_not_sent_is_refused() {
        let batch = lines("t", "a\nb\n");
        let (mut outgoing, mut staged) = (Outgoing::default(), Staged::default());
        let mut answers = Answers::new(Format::Json);
        let mut window = Window::new(&batch, records(&batch));
        answers.buffer.extend_from_slice(b"{}\n");
        let early = window.stage(&mut answers, &mut staged, Size::mib(1));
        assert_eq!(early, Err(Cause::Surplus));
        let mut window = Window::new(&batch, records(&batch));
        window
            .encode(Format::Json, &mut outgoing, &mut staged)
            .unwrap();
        answers.buffer.extend_from_slice(b"{}\nnull\n");
        assert_eq!(
            window.stage(&mut answers, &mut staged, Size::mib(1)),
            Ok(true)
        );
        assert!(window.is_done());
        let unread = window.encode(Format::Json, &mut outgoing, &mut staged);
        assert_eq!(unread, Err(Cause::Early));
    }
}
