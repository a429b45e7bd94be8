//! Places for connections. When all are taken, the connection is evicted that has been silent longest among those that have never
//! sent a byte. So a peer cannot keep others out by only connecting.
//!
//! A connection needs a place of its source (`limits.connections`) and one of the process (the limit of open files). If
//! the process has none left, the evicted connection may belong to another source.
//!
//! The list of silent connections is locked when a connection is accepted and at its first byte, and never later.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use millstream_pipeline::{meters::Meter, node::SourceContext, report::Reporter};
use rustix::io::ioctl_fionread;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, sleep_until},
};

use crate::descriptors;

/// A connection younger than this is not evicted: its first byte may be in flight.
const GRACE: Duration = Duration::from_secs(1);

/// The places of a source, one for each open connection.
#[derive(Debug)]
pub(crate) struct Room {
    number: u64,
    places: Arc<Semaphore>,
    closed: Meter,
    reporter: Reporter,
}

/// A place of a source and one of the process.
#[derive(Debug)]
pub(crate) struct Place {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// The silent connections of all sources, because they share the descriptors of the process.
static SILENT: Mutex<Silent> = Mutex::new(Silent {
    all: BTreeMap::new(),
    next: 0,
});
static NEXT_ROOM: AtomicU64 = AtomicU64::new(0);

/// Connections that have not received a byte yet, in the order in which they were accepted.
#[derive(Debug)]
struct Silent {
    all: BTreeMap<u64, Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    room: u64,
    since: Instant,
    ask: oneshot::Sender<Refusal>,
}

fn silent() -> MutexGuard<'static, Silent> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of a connection that is asked to close: sent if it has just received a byte and stays, dropped if it closes.
type Refusal = oneshot::Sender<()>;

/// The connection that has been silent longest.
enum Longest {
    Nobody,
    /// It may be evicted from this time on.
    Later(Instant),
    Ask(oneshot::Sender<Refusal>),
}

/// The connections from which one is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Among {
    Source,
    Process,
}

impl Room {
    pub(crate) fn new(places: u32, context: &SourceContext) -> Self {
        Self {
            number: NEXT_ROOM.fetch_add(1, Ordering::Relaxed),
            places: Arc::new(Semaphore::new(places as usize)),
            closed: context.meters.counter("silent_connections_closed"),
            reporter: context.reporter.clone(),
        }
    }

    /// Waits for a place.
    pub(crate) async fn place(&self) -> io::Result<Place> {
        Ok(Place {
            _own: self.one_of(&self.places, Among::Source).await?,
            _shared: self
                .one_of(descriptors::connections(), Among::Process)
                .await?,
        })
    }

    async fn one_of(
        &self,
        places: &Arc<Semaphore>,
        among: Among,
    ) -> io::Result<OwnedSemaphorePermit> {
        let mut place = pin!(places.clone().acquire_owned());
        loop {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                place = &mut place => return place.map_err(io::Error::other),
                () = self.evict(among) => {}
            }
        }
    }

    /// Waits until all `places` are free.
    pub(crate) async fn emptied(&self, places: u32) {
        let _ = self.places.acquire_many(places).await;
    }

    /// Evicts the longest silent connection of any source, because no descriptors are left. Returns only if the caller must call it
    /// again; otherwise never.
    pub(crate) async fn free_descriptor(&self) {
        self.evict(Among::Process).await;
    }

    /// Evicts the connection that has been silent longest. Returns only if another one must be chosen; otherwise never, and the
    /// caller waits for the free place.
    async fn evict(&self, among: Among) {
        match self.longest(among) {
            Longest::Nobody => {
                let text = match among {
                    Among::Source => {
                        "all connections that limits.connections allows are open; others wait"
                    }
                    Among::Process => {
                        "all connections that the limit of open files allows are open; others wait: raise the limit (LimitNOFILE, `ulimit -n`)"
                    }
                };
                self.reporter.warn("connections", text);
                std::future::pending().await
            }
            Longest::Later(then) => sleep_until(then).await,
            Longest::Ask(ask) => {
                let (refusal, refused) = oneshot::channel();
                if ask.send(refusal).is_ok() && refused.await.is_err() {
                    // The connection closes; then `place` gets its place.
                    std::future::pending().await
                }
            }
        }
    }

    fn longest(&self, among: Among) -> Longest {
        let mut silent = silent();
        let mut all = silent.all.iter();
        let first = all.find(|(_, one)| among == Among::Process || one.room == self.number);
        let Some((number, then)) = first.map(|(number, one)| (*number, one.since + GRACE)) else {
            return Longest::Nobody;
        };
        if Instant::now() < then {
            return Longest::Later(then);
        }
        silent
            .all
            .remove(&number)
            .map_or(Longest::Nobody, |one| Longest::Ask(one.ask))
    }

    /// Registers a connection that was just accepted.
    pub(crate) fn silence(self: &Arc<Self>, peer: Arc<str>) -> Silence {
        let (ask, asked) = oneshot::channel();
        let mut silent = silent();
        let number = silent.next;
        silent.next += 1;
        let waiting = Waiting {
            room: self.number,
            since: Instant::now(),
            ask,
        };
        silent.all.insert(number, waiting);
        drop(silent);
        Silence {
            room: self.clone(),
            number,
            peer,
            asked: Some(asked),
            closed: false,
        }
    }

    /// The number of silent connections that were not asked to go.
    #[cfg(test)]
    pub(crate) fn silent_count(&self) -> usize {
        let silent = silent();
        silent
            .all
            .values()
            .filter(|one| one.room == self.number)
            .count()
    }
}

/// Held by a connection until its first byte is read.
#[derive(Debug)]
pub(crate) struct Silence {
    room: Arc<Room>,
    number: u64,
    peer: Arc<str>,
    /// `None` after it was asked to close.
    asked: Option<oneshot::Receiver<Refusal>>,
    /// It was evicted.
    closed: bool,
}

/// Reads from a socket whose peer may have been silent so far. An evicted connection reads as closed by its peer. Its
/// first byte arrives before the eviction or not at all, so no byte that was read is lost.
pub(crate) fn poll_read<S: AsyncRead + AsFd + Unpin>(
    silence: &mut Option<Silence>,
    socket: &mut S,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let Some(open) = silence else {
        return Pin::new(socket).poll_read(context, buffer);
    };
    if open.closed {
        return Poll::Ready(Ok(()));
    }
    match Pin::new(&mut *socket).poll_read(context, buffer) {
        Poll::Ready(read) => {
            open.refuse();
            *silence = None;
            Poll::Ready(read)
        }
        Poll::Pending => open.poll_closed(socket.as_fd(), context).map(Ok),
    }
}

impl Silence {
    /// Ready when the connection is evicted.
    fn poll_closed(&mut self, socket: BorrowedFd<'_>, context: &mut Context<'_>) -> Poll<()> {
        let Some(asked) = &mut self.asked else {
            return Poll::Pending;
        };
        let asked = ready!(Pin::new(asked).poll(context));
        self.asked = None;
        let Ok(refusal) = asked else {
            return Poll::Pending;
        };
        // Bytes may have arrived of which the runtime does not know yet.
        if ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0) {
            let _ = refusal.send(());
            return Poll::Pending;
        }
        self.closed = true;
        self.room.closed.add(1);
        let text = format_args!(
            "{}: has sent nothing since it connected, and all connections that limits.connections or the limit of open files allows are open; closed to let another in",
            self.peer
        );
        self.room.reporter.warn("silent", text);
        Poll::Ready(())
    }

    /// Keeps the connection open, even if it has just been asked to close.
    fn refuse(&mut self) {
        if let Some(mut asked) = self.asked.take() {
            asked.close();
            if let Ok(refusal) = asked.try_recv() {
                let _ = refusal.send(());
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        silent().all.remove(&self.number);
    }
}
