//! Writes acks in the order of the chunks. Each ack is written only after the batches of its chunk are kept or settled.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use millstream_pipeline::{delivery::Receipt, meters::Meter};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::timeout,
};

/// Maximum number of answers of a connection that wait in the queue. When it is reached, the connection is not read.
const ANSWERS_MAX: usize = 256;
/// Acks that are due together are written together, up to about this many bytes.
const WRITE_BYTES: usize = 16 << 10;

/// An answer to a peer: usually one or more acks that become due at the same time.
pub(crate) struct Answer {
    /// The receipts of all batches that the acked frames became. The answer is due when all of them have succeeded.
    pub receipts: Vec<Receipt>,
    /// The acks, encoded for the peer.
    pub acks: Vec<u8>,
    /// Number of acks.
    pub count: u64,
}

/// The sending end of the queue of answers. The reading side of the connection holds it.
pub(crate) struct Answers {
    queue: mpsc::Sender<Answer>,
    open: Rc<Cell<usize>>,
}

/// The other end of the queue: writes the answers to the peer.
pub(crate) struct Answering {
    queue: mpsc::Receiver<Answer>,
    /// The next answer, taken from the queue but not due yet.
    held: Option<Answer>,
    open: Rc<Cell<usize>>,
}

/// The reason why no more acks are written.
pub(crate) enum Unanswered {
    /// They cannot be written, for example because the peer does not read them.
    Write(io::Error),
    /// A chunk was dropped before it was settled. Without an ack, the peer sends it again.
    Unsettled,
}

/// A queue of answers.
pub(crate) fn answers() -> (Answers, Answering) {
    let (sender, receiver) = mpsc::channel(ANSWERS_MAX);
    let open = Rc::new(Cell::new(0));
    let answers = Answers {
        queue: sender,
        open: open.clone(),
    };
    let answering = Answering {
        queue: receiver,
        held: None,
        open,
    };
    (answers, answering)
}

impl Answers {
    /// Queues an answer. Waits while too many answers are outstanding. If the writing side has ended, the connection ends too, so
    /// the answer is dropped.
    pub(crate) async fn push(&self, answer: Answer) {
        self.open.set(self.open.get() + 1);
        let _ = self.queue.send(answer).await;
    }

    /// The number of answers that are not written yet.
    pub(crate) fn open(&self) -> usize {
        self.open.get()
    }
}

impl Answering {
    /// Writes answers until the reading side has ended and all are written. `patience` is the timeout of a write.
    pub(crate) async fn run(
        mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        patience: Duration,
        acked: &Meter,
    ) -> Result<(), Unanswered> {
        while let Some(answer) = self.next().await {
            let (mut batches, mut count) = (1, answer.count);
            for receipt in answer.receipts {
                receipt.await.map_err(|_| Unanswered::Unsettled)?;
            }
            let mut out = answer.acks;
            // Other answers that are already due are written together with this one.
            while out.len() < WRITE_BYTES
                && let Some(next) = self.next_due()
            {
                out.extend_from_slice(&next.acks);
                batches += 1;
                count += next.count;
            }
            let write = async {
                writer.write_all(&out).await?;
                // TLS may still hold bytes that the socket did not accept.
                writer.flush().await
            };
            let written = timeout(patience, write).await;
            written
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(Unanswered::Write)?;
            acked.add(count);
            self.open.set(self.open.get() - batches);
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Answer> {
        match self.held.take() {
            Some(answer) => Some(answer),
            None => self.queue.recv().await,
        }
    }

    /// The next answer, if it is due. Otherwise keeps it for later.
    fn next_due(&mut self) -> Option<Answer> {
        let next = self.held.take().or_else(|| self.queue.try_recv().ok())?;
        let due = |receipt: &Receipt| receipt.try_outcome() == Some(Ok(()));
        if next.receipts.iter().all(due) {
            return Some(next);
        }
        self.held = Some(next);
        None
    }
}
