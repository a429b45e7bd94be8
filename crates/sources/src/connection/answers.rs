//! Acks: written in the order of the chunks, each only when its batch is kept or settled.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use millstream_pipeline::{delivery::Receipt, meters::Meter};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    time::timeout,
};

/// Maximum number of batches of a connection that wait for their answers; beyond it the connection is not read.
const ANSWERS_MAX: usize = 256;
/// Acks that are due together are written together, up to about this many bytes.
const WRITE_BYTES: usize = 16 << 10;

/// The answer to a peer when a batch is done.
pub(crate) struct Answer {
    /// The receipts of everything the frames became.
    pub receipts: Vec<Receipt>,
    /// The acks, as they are written.
    pub acks: Vec<u8>,
    /// Number of acks.
    pub count: u64,
}

/// Where the reading side puts its answers.
pub(crate) struct Answers {
    queue: mpsc::Sender<Answer>,
    open: Rc<Cell<usize>>,
}

/// Writes the answers.
pub(crate) struct Answering {
    queue: mpsc::Receiver<Answer>,
    /// Taken from the queue, but not due yet.
    held: Option<Answer>,
    open: Rc<Cell<usize>>,
}

/// Why no more acks are written.
pub(crate) enum Unanswered {
    /// The peer does not take them.
    Write(io::Error),
    /// A chunk was dropped on its way: the peer must send it again.
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
    /// Queues an answer; waits while too many are open. The other side ends only with the connection.
    pub(crate) async fn push(&self, answer: Answer) {
        self.open.set(self.open.get() + 1);
        let _ = self.queue.send(answer).await;
    }

    /// Number of batches whose acks are not written yet.
    pub(crate) fn open(&self) -> usize {
        self.open.get()
    }
}

impl Answering {
    /// Writes until the reading side has ended and everything is answered. `patience` is the timeout of a write.
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
            // Answers that are due already are written with it.
            while out.len() < WRITE_BYTES
                && let Some(next) = self.next_due()
            {
                out.extend_from_slice(&next.acks);
                batches += 1;
                count += next.count;
            }
            let write = async {
                writer.write_all(&out).await?;
                // TLS may hold back what the socket did not accept at once.
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

    /// The next answer if it is due; otherwise it is held.
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
