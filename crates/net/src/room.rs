//! Limits the number of open connections. When no permit is left, the oldest connection that has never sent a byte is evicted, that is,
//! closed. Otherwise a peer could keep others out merely by connecting.
//!
//! A connection needs two permits: one of its source (`limits.connections`) and one of the process (the limit of open
//! files). If the process has none left, the evicted connection may belong to another source.
//!
//! The list of silent connections is locked when a connection is accepted, evicted or reads its first byte; later reads do not lock it.

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

/// The permits of a source, one for each open connection.
#[derive(Debug)]
pub(crate) struct Room {
    number: u64,
    places: Arc<Semaphore>,
    closed: Meter,
    reporter: Reporter,
}

/// The two permits of a connection.
#[derive(Debug)]
pub(crate) struct Place {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// The silent connections of all sources. One list holds all of them, because the sources share the descriptors of the process.
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

/// The answer of a connection that was asked to close. The connection sends `()` if it stays open, because a byte has just arrived. It
/// drops the sender if it closes.
type Refusal = oneshot::Sender<()>;

/// The result of the search for the connection that has been silent longest.
enum Longest {
    Nobody,
    /// The connection is younger than [`GRACE`]; it may be evicted from this time on.
    Later(Instant),
    Ask(oneshot::Sender<Refusal>),
}

/// Which connections may be evicted: those of the source, or those of the whole process.
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

    /// Waits for the two permits of a connection.
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

    /// Waits until all connections of the source have ended; `places` is the number of the source's permits.
    pub(crate) async fn emptied(&self, places: u32) {
        let _ = self.places.acquire_many(places).await;
    }

    /// Evicts the connection (of any source) that has been silent longest, because no file descriptors are left. Like [`Room::evict`],
    /// this function returns only if the attempt must be repeated, so the caller needs a timeout.
    pub(crate) async fn free_descriptor(&self) {
        self.evict(Among::Process).await;
    }

    /// Evicts the connection that has been silent longest. Returns only if the attempt must be repeated, because that connection was
    /// too young or stays open. Otherwise this function never returns, and the caller waits until a connection releases its permit:
    /// the evicted one, or any other if no connection is silent.
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
                    // The connection closes and releases its permit, for which the caller waits.
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

    /// The number of silent connections that were not asked to close.
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

/// Held by a connection until the first byte from its peer is read.
#[derive(Debug)]
pub(crate) struct Silence {
    room: Arc<Room>,
    number: u64,
    peer: Arc<str>,
    /// `None` after the connection was asked to close.
    asked: Option<oneshot::Receiver<Refusal>>,
    /// Whether the connection was evicted.
    closed: bool,
}

/// Reads from a socket whose peer may not have sent a byte yet. After an eviction, reads return 0 bytes, as if the peer had closed
/// the connection. A connection that has read a byte is never evicted, so no byte that was read is lost.
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
        // Bytes may have arrived that the runtime has not noticed yet.
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
