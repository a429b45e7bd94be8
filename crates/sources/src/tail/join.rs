//! Joins a record whose first lines are at the end of a renamed file and whose other lines are at the start of the file that has the
//! name now: a record that a container runtime wrote in parts, or the lines of a stack trace.
//!
//! The reader of the new file asks the reader of the renamed file for its [`Rest`]: the lines at its end that are no whole record. The
//! renamed file has been read to its end by then, and gets no more lines, because the new file already has some. The new reader makes
//! the joined record and sends it in one batch with the origins of both files, so a durable channel keeps both positions or none. Only
//! when the batch is settled does the position in the renamed file move behind the rest. If the batch is dropped, both readers go back,
//! and the new one asks again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millstream_pipeline::delivery::Token;
use millstream_record::FileOrigin;
use tokio::sync::oneshot;

use super::watch::Alarm;
use crate::framing::Remainder;

/// How long a reader that is done with a renamed file waits for the question. With `--once`, it waits until the reader of the next
/// file has asked or has ended.
pub(super) const ASK_WAIT: Duration = Duration::from_secs(10);

/// The lines at the end of a renamed file that are no whole record.
#[derive(Debug)]
pub(super) struct Rest {
    pub text: Vec<u8>,
    /// Where the lines are. None if there are none.
    pub origin: Option<FileOrigin>,
    /// How to treat the rest of a record that is too long and was cut.
    pub remainder: Option<Remainder>,
    /// Settled when the lines are settled. If it is dropped, the reader of the renamed file sends the lines itself.
    pub token: Token,
}

/// Where the reader of the next file asks for the rest of a renamed file.
#[derive(Debug, Default)]
pub(super) struct Joint(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// No next file is known.
    #[default]
    Alone,
    /// The reader of the next file may ask. Since when.
    Expected(Instant),
    Asked(oneshot::Sender<Option<Rest>>),
    /// The reader of this file has ended.
    Ended,
}

impl Joint {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when the reader of the next file may ask. None if it has asked, or has ended.
    pub(super) fn expected_since(&self) -> Option<Instant> {
        match *self.lock() {
            State::Expected(since) => Some(since),
            _ => None,
        }
    }

    /// Whether the reader of the next file has asked.
    pub(super) fn is_asked(&self) -> bool {
        matches!(*self.lock(), State::Asked(_))
    }

    /// Returns where to send the answer, if the reader of the next file has asked.
    pub(super) fn take(&self) -> Option<oneshot::Sender<Option<Rest>>> {
        let mut state = self.lock();
        match std::mem::take(&mut *state) {
            State::Asked(answer) => {
                // It asks again if the joined record is dropped.
                *state = State::Expected(Instant::now());
                Some(answer)
            }
            before => {
                *state = before;
                None
            }
        }
    }

    /// Notes that the reader of this file has ended, and answers nothing any more.
    pub(super) fn end(&self) {
        *self.lock() = State::Ended;
    }

    fn set_unless_ended(&self, new: State) {
        let mut state = self.lock();
        if !matches!(*state, State::Ended) {
            *state = new;
        }
    }
}

/// The renamed file whose name a file has now.
#[derive(Debug)]
pub(super) struct Predecessor {
    joint: Arc<Joint>,
    /// Wakes the reader of the renamed file.
    alarm: Arc<Alarm>,
}

impl Predecessor {
    /// Tells the reader of the renamed file to wait for a question.
    pub(super) fn new(joint: Arc<Joint>, alarm: Arc<Alarm>) -> Self {
        joint.set_unless_ended(State::Expected(Instant::now()));
        Self { joint, alarm }
    }

    /// Asks the reader of the renamed file for the rest. It answers once it has read the file to its end. If it has ended, the
    /// channel is closed.
    pub(super) fn ask(&self) -> oneshot::Receiver<Option<Rest>> {
        let (answer, answered) = oneshot::channel();
        self.joint.set_unless_ended(State::Asked(answer));
        self.alarm.wake.notify_one();
        answered
    }
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        self.joint.set_unless_ended(State::Alone);
        self.alarm.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use millstream_pipeline::{delivery, meters::Meter};

    use super::*;

    #[tokio::test]
    async fn the_rest_reaches_the_next_reader_and_a_reader_that_has_ended_gives_none() {
        let joint = Arc::new(Joint::default());
        assert!(joint.expected_since().is_none());
        let predecessor = Predecessor::new(joint.clone(), Arc::default());
        assert!(joint.expected_since().is_some() && joint.take().is_none());
        let answered = predecessor.ask();
        assert!(joint.is_asked());
        let (token, _receipt) = delivery::receipt(false, 0, Meter::default());
        let rest = Rest {
            text: b"a\n".to_vec(),
            origin: None,
            remainder: None,
            token,
        };
        assert!(joint.take().unwrap().send(Some(rest)).is_ok());
        assert_eq!(answered.await.unwrap().unwrap().text, b"a\n");
        let answered = predecessor.ask();
        joint.end();
        assert!(answered.await.is_err());
        assert!(predecessor.ask().await.is_err());
    }

    #[test]
    fn no_reader_waits_for_a_next_reader_that_has_ended() {
        let joint = Arc::new(Joint::default());
        drop(Predecessor::new(joint.clone(), Arc::default()));
        assert!(joint.expected_since().is_none() && !joint.is_asked());
    }
}
