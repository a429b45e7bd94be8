//! Ends the process if a stop lasts longer than it may, whatever hangs: a disk, a lookup of a name, a program, the main thread itself.
//!
//! A thread that was started with the process counts the time, and listens for the signals, too. It waits for nothing that another
//! thread could hold.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use millstream_pipeline::{
    running::{NodeStatus, Nodes},
    supervise::NodeState,
};
use millstream_processors::kill_programs;
use millstream_sys::{exit::at_once, signals};
use tokio::{
    runtime::{Builder, Runtime},
    select,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use crate::{exit, log};

/// The time after `--drain` in which the process normally ends: it sends the last metrics and writes the last log lines.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum time for writing the last log lines.
const LAST_LINES: Duration = Duration::from_millis(300);

/// The deadline of the stop. Clones share it.
#[derive(Clone)]
pub struct Deadline {
    /// When the process is ended; `None` while no stop has begun.
    at: watch::Sender<Option<Instant>>,
    doing: Arc<Mutex<Doing>>,
    /// Asks the thread to let signals wait.
    hold: watch::Sender<bool>,
    /// Notified when the thread does so.
    held: Arc<Notify>,
}

/// The current step of the process, for the message of a stop that hangs.
struct Doing {
    what: &'static str,
    nodes: Nodes,
}

/// The signals that ask for a stop.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Deadline {
    /// Starts the thread. After a signal, the process may take `drain` to stop.
    pub fn start(drain: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stops = {
            let _entered = runtime.enter();
            Signals {
                term: signal(SignalKind::terminate())?,
                int: signal(SignalKind::interrupt())?,
            }
        };
        let deadline = Self {
            at: watch::Sender::new(None),
            doing: Arc::new(Mutex::new(Doing {
                what: "starting",
                nodes: Nodes::default(),
            })),
            hold: watch::Sender::new(false),
            held: Arc::default(),
        };
        let watched = deadline.clone();
        let run = move || {
            watched.wait(&runtime, stops, drain);
            watched.end();
        };
        thread::Builder::new().name("deadline".into()).spawn(run)?;
        Ok(deadline)
    }

    /// Gives the process `limit` from now on, unless it has less time already.
    pub fn begin(&self, limit: Duration) {
        let end = Instant::now() + limit + GRACE;
        self.at
            .send_modify(|at| *at = Some(at.map_or(end, |at| at.min(end))));
    }

    /// From now on, the thread takes no signals, so that they wait for the program that replaces this one.
    pub async fn hold_signals(&self) {
        self.hold.send_replace(true);
        // The thread never waits long. If it is late, the only consequence is that it may take a signal.
        let _ = timeout(GRACE, self.held.notified()).await;
    }

    /// The time that is left until `--drain` is over.
    pub fn left(&self) -> Duration {
        let at = *self.at.borrow();
        let left = at.map(|at| at.saturating_duration_since(Instant::now() + GRACE));
        left.unwrap_or(Duration::MAX)
    }

    /// Notes the current step of the process.
    pub fn doing(&self, what: &'static str) {
        self.lock().what = what;
    }

    /// Notes the nodes that run.
    pub fn running(&self, nodes: &Nodes) {
        *self.lock() = Doing {
            what: "the main thread has not begun to drain",
            nodes: nodes.clone(),
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the time is over.
    fn wait(&self, runtime: &Runtime, mut stops: Signals, drain: Duration) {
        runtime.block_on(async {
            let (mut changed, mut hold) = (self.at.subscribe(), self.hold.subscribe());
            // The second signal asks for an end at once.
            let mut limit = drain;
            loop {
                let at = *changed.borrow_and_update();
                let over = async {
                    match at {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                select! {
                    () = over => return,
                    _ = stops.term.recv() => self.begin(std::mem::take(&mut limit)),
                    _ = stops.int.recv() => self.begin(std::mem::take(&mut limit)),
                    // These two do not fail, because `self` holds the senders.
                    _ = changed.changed() => {}
                    _ = hold.changed() => {
                        signals::hold().keep();
                        self.held.notify_one();
                    }
                }
            }
        });
    }

    /// Ends the process.
    fn end(&self) -> ! {
        let (what, nodes) = {
            let doing = self.lock();
            (doing.what, doing.nodes.clone())
        };
        let nodes = nodes.now();
        let hanging = nodes.iter().filter(|node| runs(node));
        let hanging: Vec<_> = hanging
            .map(|node| format!("{} ({})", node.name, node.kind))
            .collect();
        let hanging = match hanging.is_empty() {
            true => "no node runs any more".to_owned(),
            false => format!("these nodes have not ended: {}", hanging.join(", ")),
        };
        tracing::error!(
            kind = "deadline",
            "the stop has not ended in time, so the process ends now ({what}, and {hanging}). Records that disk channels have accepted are kept; \
             senders that wait for an answer send the rest again"
        );
        kill_programs();
        log::flush(LAST_LINES);
        at_once(exit::FAILED)
    }
}

fn runs(node: &NodeStatus) -> bool {
    !node.states.is_empty() && node.state() == NodeState::Running
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use millstream_config::Log;
    use rustix::process::{getpid, kill_process};

    use super::*;

    /// Set in a process that this test starts and that hangs. The value says how its stop begins.
    const HANGS: &str = "MILLSTREAM_TEST_HANGS";

    /// Begins a stop, and hangs.
    fn hang(by: &str) -> ! {
        log::start(&Log::default()).unwrap();
        match by {
            "itself" => Deadline::start(Duration::from_secs(600))
                .unwrap()
                .begin(Duration::ZERO),
            signals => {
                let drain = if signals == "2" { 600 } else { 0 };
                let _deadline = Deadline::start(Duration::from_secs(drain)).unwrap();
                for _ in 0..if drain > 0 { 2 } else { 1 } {
                    kill_process(getpid(), rustix::process::Signal::TERM).unwrap();
                    thread::sleep(Duration::from_millis(300));
                }
            }
        }
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_process_that_hangs_in_its_stop_ends_with_a_failure_and_says_so() {
        if let Ok(by) = env::var(HANGS) {
            hang(&by);
        }
        let name =
            "deadline::tests::a_process_that_hangs_in_its_stop_ends_with_a_failure_and_says_so";
        for by in ["itself", "1", "2"] {
            let mut hanging = Command::new(env::current_exe().unwrap());
            hanging
                .args(["--exact", name, "--nocapture"])
                .env(HANGS, by);
            let out = hanging.output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(1), "{by}: {said}");
            assert!(
                said.contains("the stop has not ended in time"),
                "{by}: {said}"
            );
        }
    }
}
