//! Our own implementation of [`Producer`]. It builds record batches from the sink's buffers; the only work per record is
//! one copy.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> decode -> send -> keep -> read back -> process -> [encode] -> [write] -> settle`
//!
//! - [`accumulator`] holds the accepted records. It uses `partitions`, `batch` (the broker's format), `partitioner` and
//!   `compress`.
//! - [`engine`] is the thread that sends these records. It uses `session` (the state that its tasks share), `lookups` (the data
//!   that sending needs), `cluster` and `connection` (the brokers), `messages` and `wire` (the protocol), `codes` (the brokers'
//!   errors), `access` and `sasl` (authentication).
//! - `transaction` runs the requests that the sink waits for.
//!
//! The producer is always idempotent, with `acks=all`. A partition has at most one batch in flight. This batch is retried with the same
//! sequence numbers until a broker reports the outcome. If the outcome stays unknown, the sequence numbers are never reused: all later
//! batches of the partition fail with [`Kind::Fatal`]. So one producer writes no record twice, and writes the records of a partition in
//! order. With transactions, this also holds across later producers with the same transactional id.

mod access;
mod accumulator;
mod batch;
mod cluster;
mod codes;
mod compress;
mod connection;
mod engine;
mod lookups;
mod messages;
mod partitioner;
mod partitions;
mod sasl;
mod session;
#[cfg(test)]
mod tests;
mod transaction;
mod wire;

use std::{
    io,
    ops::Range,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::LocalSet};

use crate::{Error, Failed, Kind, Outgoing, Producer, ProducerOptions, Sent, Store};
use access::Access;
use accumulator::SharedAccumulator;
pub use compress::Compression;
use engine::Engine;
#[cfg(feature = "fuzzing")]
pub use messages::read_each_answer;
pub use partitioner::Partitioner;
use transaction::{Answer, Order, What};

/// A producer, as the sink's thread uses it.
pub(crate) struct Native {
    shared: Arc<SharedAccumulator>,
    /// Passes orders (requests that the sink waits for) to the producer's thread. `None` during the shutdown.
    orders: Option<mpsc::Sender<Order>>,
    /// The order that is not answered yet, and the receiver of its answer.
    pending: Option<(What, Receiver<Result<Answer, Error>>)>,
    thread: Option<JoinHandle<()>>,
    record_bytes: usize,
}

impl Native {
    pub(crate) fn new(options: ProducerOptions) -> Result<Self, Error> {
        let access = Access::new(&options)?;
        let record_bytes = options.record_bytes;
        let shared = Arc::new(SharedAccumulator::new(&options));
        let (orders, ordered) = mpsc::channel(2);
        let known = shared.clone();
        let work = move || work(known, access, options, ordered);
        let thread = thread::Builder::new().name("kafka".to_owned()).spawn(work);
        let failed =
            |error: io::Error| Error::new(Kind::Again, format!("cannot start a thread: {error}"));
        Ok(Self {
            shared,
            orders: Some(orders),
            pending: None,
            thread: Some(thread.map_err(failed)?),
            record_bytes,
        })
    }

    /// Sends an order and waits for its answer. If an equal order of an earlier call is still pending, waits for the answer to that order,
    /// and sends nothing.
    fn ask(&mut self, what: What, timeout: Duration) -> Result<Answer, Error> {
        let pending = self.pending.take().filter(|(asked, _)| *asked == what);
        let waiting = match pending {
            Some((_, waiting)) => waiting,
            None => {
                let (answer, waiting) = sync_channel(1);
                let order = Order {
                    what: what.clone(),
                    answer,
                };
                let sent = self.orders.as_ref().map(|orders| orders.try_send(order));
                if !matches!(sent, Some(Ok(()))) {
                    return Err(Error::new(Kind::Again, "the producer is busy"));
                }
                waiting
            }
        };
        match waiting.recv_timeout(timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.pending = Some((what, waiting));
                let said = self.shared.lock().complaint.clone();
                let text = said.unwrap_or_else(|| "no broker has answered in time".to_owned());
                Err(Error::new(Kind::Again, text))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(Kind::Fatal, "the producer's thread has ended"))
            }
        }
    }

    fn wait(&self, wait: Duration, until: impl Fn(&accumulator::Accumulator) -> bool) {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.lock();
        while !until(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.progress.wait_timeout(state, left);
            // No code panics in the middle of a change, so the state is consistent even if the lock is poisoned.
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

/// The producer's thread.
fn work(
    shared: Arc<SharedAccumulator>,
    access: Access,
    options: ProducerOptions,
    orders: mpsc::Receiver<Order>,
) {
    // Wakes the waiting sink when the thread ends, even by a panic.
    let _end = End(shared.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let engine = Rc::new(Engine::new(shared, access, options));
            // Tasks that are not done at the end are dropped here, with every connection.
            LocalSet::new().block_on(&runtime, engine.run(orders));
            // Does not wait for a name lookup that may still be running.
            runtime.shutdown_background();
        }
        Err(error) => {
            let text = format!("cannot start a thread: {error}");
            shared.lock().complaint = Some(text);
        }
    }
}

struct End(Arc<SharedAccumulator>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().end();
        self.0.progress.notify_all();
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic was already reported.
            drop(thread.join());
        }
    }
}

impl Producer for Native {
    fn init(&mut self, timeout: Duration) -> Result<(), Error> {
        self.ask(What::Init, timeout).map(|_| ())
    }

    fn committed(
        &mut self,
        store: &Store,
        stable: bool,
        timeout: Duration,
    ) -> Result<Option<String>, Error> {
        let store = store.clone();
        match self.ask(What::Committed { store, stable }, timeout)? {
            Answer::Text(text) => Ok(text),
            _ => Err(Error::new(Kind::Fatal, "the answer is not a position")),
        }
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.shared.lock().begin();
        Ok(())
    }

    fn send(&mut self, outgoing: &Outgoing, which: Range<usize>) -> Sent {
        let mut state = self.shared.lock();
        if state.ended {
            let error = Error::new(Kind::Fatal, "the producer's thread has ended");
            return Sent {
                taken: 0,
                refused: Some(error),
            };
        }
        let (taken, too_large) = state.append_all(outgoing, which, Instant::now());
        drop(state);
        self.shared.work.notify_one();
        let text = || format!("it has more than {} bytes", self.record_bytes);
        Sent {
            taken,
            refused: too_large.then(|| Error::new(Kind::TooLarge, text())),
        }
    }

    fn serve(&mut self, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let before = self.in_flight();
        self.wait(wait, |state| {
            state.records < before || !state.failed.is_empty()
        });
    }

    fn flush(&mut self, wait: Duration) {
        self.shared.lock().flush();
        self.shared.work.notify_one();
        self.wait(wait, |state| state.records == 0 || !state.failed.is_empty());
    }

    fn in_flight(&self) -> usize {
        self.shared.lock().records
    }

    fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.shared.lock().failed)
    }

    fn commit(
        &mut self,
        store: &Store,
        text: &str,
        number: i64,
        timeout: Duration,
    ) -> Result<(), Error> {
        if self.in_flight() > 0 {
            return Err(Error::new(Kind::Again, "records are still in flight"));
        }
        let (store, text) = (store.clone(), text.to_owned());
        let what = What::Commit {
            store,
            text,
            number,
        };
        self.ask(what, timeout).map(|_| ())
    }

    fn abort(&mut self, timeout: Duration) -> Result<(), Error> {
        let error = Error::new(Kind::Abort, "the transaction is aborted");
        self.shared.lock().take_back(None, &error);
        self.ask(What::Abort, timeout).map(|_| ())
    }

    fn purge(&mut self) {
        let error = Error::new(Kind::Again, "purged: no broker has acknowledged it");
        self.shared.lock().take_back(None, &error);
    }

    fn record_max(&mut self, topic: &str, timeout: Duration) -> Result<usize, Error> {
        match self.ask(What::RecordMax(topic.to_owned()), timeout)? {
            Answer::Size(size) => Ok(size),
            _ => Err(Error::new(Kind::Fatal, "the answer is not a size")),
        }
    }

    fn make_topic(&mut self, topic: &str, timeout: Duration) -> Result<(), Error> {
        self.ask(What::MakeTopic(topic.to_owned()), timeout)
            .map(|_| ())
    }

    fn cluster(&mut self, timeout: Duration) -> Result<String, Error> {
        match self.ask(What::Cluster, timeout)? {
            Answer::Text(id) => Ok(id.unwrap_or_else(|| "without an id".to_owned())),
            _ => Err(Error::new(Kind::Fatal, "the answer is not a cluster id")),
        }
    }

    fn complaint(&mut self) -> Option<String> {
        self.shared.lock().complaint.take()
    }
}
