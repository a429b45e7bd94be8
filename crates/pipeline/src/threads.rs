//! The data threads. The option `threads` sets their number, and each has its own runtime. A batch stays on the thread that read it.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use millstream_sys::{last_words, signals};
use tokio::{
    runtime::{self, Runtime},
    sync::{mpsc, oneshot},
    task::LocalSet,
};

use crate::{
    guard::guarded,
    meters::{Meter, TimeMeter},
    report::Reporter,
};

/// The maximum number of tasks that wait for a thread to start them; beyond that, `spawn` waits.
const SPAWN_QUEUE: usize = 4096;

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Returns the index of the current data thread, counted from 0. On a thread that is not a data thread, returns 0.
pub fn lane() -> usize {
    LANE.get()
}

/// Runs `work` as if `work` ran on data thread `lane`: the batches that `work` sends go into the lane of that thread. This is meant for
/// a source whose input any thread may read, but whose records must stay in order.
pub async fn in_lane<T>(lane: usize, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let own = LANE.replace(lane);
        let polled = work.as_mut().poll(context);
        LANE.set(own);
        polled
    })
    .await
}

/// Runs `work`, and adds the time in which `work` is polled to `meter`, in microseconds. For a task that never blocks this is its CPU
/// time; for others it includes reads, writes and syncs.
pub async fn busy<T>(meter: Meter, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut meter = TimeMeter::new(meter);
    poll_fn(|context| {
        let began = Instant::now();
        let polled = work.as_mut().poll(context);
        meter.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(0));
        polled
    })
    .await
}

type Start = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// All data threads. Clones share them. The threads end when the last clone is dropped and their tasks are done.
#[derive(Clone)]
pub struct Threads(Arc<Shared>);

struct Shared {
    starts: Vec<mpsc::Sender<Start>>,
    next: AtomicUsize,
}

impl Threads {
    /// Starts `count` data threads.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut starts = Vec::with_capacity(count);
        for index in 0..count.max(1) {
            let (sender, receiver) = mpsc::channel(SPAWN_QUEUE);
            own_thread(&format!("data-{index}"), move || {
                LANE.set(index);
                // Data threads run no path behind a durable channel.
                last_words::exempt_this_thread();
                run_all(receiver)
            })?;
            starts.push(sender);
        }
        Ok(Self(Arc::new(Shared {
            starts,
            next: AtomicUsize::new(0),
        })))
    }

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.0.starts.len()
    }

    /// Runs a task on the next thread in turn, so that connections are spread evenly. A panic of the task is logged.
    pub async fn spawn<F, T>(&self, reporter: &Reporter, start: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let index = self.0.next.fetch_add(1, Ordering::Relaxed) % self.count();
        self.spawn_on(index, reporter, start).await;
    }

    /// Runs a task on the thread with this index.
    pub async fn spawn_on<F, T>(&self, index: usize, reporter: &Reporter, start: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let reporter = reporter.clone();
        let start: Start = Box::new(move || {
            Box::pin(async move {
                // The task is boxed first, because `busy` and `guarded` would otherwise each hold a copy of it, and tasks of idle peers
                // must stay small.
                let work = Box::pin(async move { start().await });
                let work = busy(reporter.busy().clone(), work);
                if let Err(panic) = guarded(work).await {
                    reporter.error(
                        "panic",
                        format_args!(
                            "a task panicked: {}; this is a fault of Millstream, please report it",
                            panic.0
                        ),
                    );
                }
            })
        });
        // Sending fails only if the thread has ended. In that case, the task is no longer needed.
        let _ = self.0.starts[index].send(start).await;
    }
}

async fn run_all(mut starts: mpsc::Receiver<Start>) {
    while let Some(start) = starts.recv().await {
        tokio::task::spawn_local(start());
    }
}

/// Runs `start`'s future on a new thread, where it may block. The thread ends once the future and the tasks that it spawned locally have
/// ended.
pub fn own_thread<F, T>(name: &str, start: F) -> io::Result<thread::JoinHandle<()>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    own_thread_observed(name, |_| {}, start)
}

/// Like [`own_thread`]. Whenever the thread has nothing to do, calls `observe` with true, and with false when it continues.
fn own_thread_observed<F, T>(
    name: &str,
    observe: impl Fn(bool) + Send + Sync + 'static,
    start: F,
) -> io::Result<thread::JoinHandle<()>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    // Linux shows 15 bytes of a thread's name.
    let name = name.chars().take(15).collect();
    spawn(thread::Builder::new().name(name), observe, start)
}

fn spawn<F, T>(
    builder: thread::Builder,
    observe: impl Fn(bool) + Send + Sync + 'static,
    start: F,
) -> io::Result<thread::JoinHandle<()>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()> + 'static,
{
    let (observe, unparked) = {
        let observe = Arc::new(observe);
        (observe.clone(), observe)
    };
    let runtime = runtime::Builder::new_current_thread()
        .on_thread_park(move || observe(true))
        .on_thread_unpark(move || unparked(false))
        .enable_all()
        .build()?;
    let runtime = Arc::new(Mutex::new(Some(runtime)));
    let take = |runtime: &Mutex<Option<Runtime>>| {
        let mut runtime = runtime.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.take()
    };
    let handed = runtime.clone();
    let spawned = builder.spawn(move || {
        // Only the main thread takes signals.
        signals::hold().keep();
        let Some(runtime) = take(&handed) else {
            return;
        };
        let local = LocalSet::new();
        local.block_on(&runtime, async move { start().await });
        runtime.block_on(local);
    });
    if spawned.is_err()
        && let Some(runtime) = take(&runtime)
    {
        // The caller may be a task. Inside a task, dropping a runtime panics.
        runtime.shutdown_background();
    }
    spawned
}

/// Observes whether a thread has nothing to do.
type Observer = Box<dyn Fn(bool) + Send + Sync>;

/// A thread that waits for its work. A reload starts all its threads before it changes anything, because a thread may fail to start.
/// When this is dropped, the thread ends.
pub(crate) struct Parked {
    start: oneshot::Sender<Start>,
    observer: Arc<OnceLock<Observer>>,
}

impl Parked {
    /// Starts a thread that waits.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let (sender, receiver) = oneshot::channel::<Start>();
        let observer = Arc::<OnceLock<Observer>>::default();
        let known = observer.clone();
        let observe = move |is_parked| {
            if let Some(observe) = known.get() {
                observe(is_parked);
            }
        };
        own_thread_observed(name, observe, async move || {
            if let Ok(start) = receiver.await {
                start().await;
            }
        })?;
        Ok(Self {
            start: sender,
            observer,
        })
    }

    /// Runs `start`'s future on the thread, where it may block. Whenever the thread has nothing to do, it calls `observe` with true, and
    /// with false when it continues.
    pub(crate) fn run<F, T>(self, observe: impl Fn(bool) + Send + Sync + 'static, start: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        // The thread waits for its work, so it receives both.
        let _ = self.observer.set(Box::new(observe));
        let start: Start = Box::new(move || Box::pin(async move { start().await }));
        let _ = self.start.send(start);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_task_is_busy_while_it_is_polled_and_not_while_it_waits() {
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        let meter = Meter::default();
        runtime.unwrap().block_on(busy(meter.clone(), async {
            thread::sleep(Duration::from_millis(20));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }));
        assert!((20_000..500_000).contains(&meter.get()), "{}", meter.get());
    }

    #[test]
    fn a_thread_that_cannot_start_is_an_error_also_for_a_task() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            // No address space has room for such a stack.
            let builder = thread::Builder::new().stack_size(1 << 60);
            assert!(spawn(builder, |_| {}, async || {}).is_err());
        });
    }

    #[test]
    fn a_thread_that_was_started_in_advance_runs_its_work() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let parked = Parked::new("waits").unwrap();
        parked.run(
            |_| {},
            async move || {
                let name = thread::current().name().unwrap_or_default().to_owned();
                sender.send(name).unwrap();
            },
        );
        assert_eq!(receiver.recv().unwrap(), "waits");
    }

    #[test]
    fn work_in_another_lane_leaves_the_threads_own_alone() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let before = lane();
            let work = async {
                let first = lane();
                tokio::task::yield_now().await;
                (first, lane())
            };
            assert_eq!(in_lane(7, work).await, (7, 7));
            assert_eq!(lane(), before);
        });
    }
}
