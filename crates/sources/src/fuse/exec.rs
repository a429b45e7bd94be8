//! Commands that get a copy of the records on their standard input.
//!
//! A thread for each command writes to it, because a pipe blocks; a short queue leads there. Writers wait for a command that
//! is slow. While a command that has ended waits to be started again, its copies are dropped and counted: what is shipped
//! never depends on it.

use std::{
    collections::HashMap,
    io::Write,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millstream_pipeline::{meters::Meter, report::Reporter};
use millstream_record::Batch;
use tokio::sync::mpsc;

use super::{rules::Rule, tee::text, write::Ship};

/// Batches on their way to a command: a few MiB together.
const QUEUE: usize = 4;
/// The wait before a command that has ended is started again; each further one doubles it.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// All commands that run, by their words.
#[derive(Default)]
pub(super) struct Commands(Mutex<HashMap<Vec<String>, Running>>);

#[derive(Clone)]
struct Running {
    to: mpsc::Sender<Bytes>,
    /// False while it waits to be started again.
    runs: Arc<AtomicBool>,
}

impl Commands {
    /// Gives the records to the rule's command; starts it if need be.
    pub(super) async fn send(&self, rule: &Rule, batch: &Batch, ship: &Ship) {
        let Some(words) = &rule.exec else { return };
        let running = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let start = || {
                start(
                    words.clone(),
                    &ship.context.reporter,
                    &ship.meters.copies_failed,
                )
            };
            all.entry(words.clone()).or_insert_with(start).clone()
        };
        let text = Bytes::from(text(batch).into_owned());
        if !running.runs.load(Ordering::Relaxed) || running.to.send(text).await.is_err() {
            ship.meters.copies_failed.add(1);
        }
    }
}

fn start(words: Vec<String>, reporter: &Reporter, failed: &Meter) -> Running {
    let (to, from) = mpsc::channel(QUEUE);
    let running = Running {
        to,
        runs: Arc::new(AtomicBool::new(true)),
    };
    let (runs, reporter, failed) = (running.runs.clone(), reporter.clone(), failed.clone());
    let feed = Feed {
        words,
        from,
        runs,
        reporter: reporter.clone(),
        failed,
    };
    if let Err(error) = thread::Builder::new()
        .name("exec".into())
        .spawn(|| feed.run())
    {
        reporter.error("exec", format_args!("no thread for a command: {error}"));
    }
    running
}

/// The thread that writes to one command.
struct Feed {
    words: Vec<String>,
    from: mpsc::Receiver<Bytes>,
    runs: Arc<AtomicBool>,
    reporter: Reporter,
    failed: Meter,
}

impl Feed {
    fn run(mut self) {
        let mut wait = WAIT_FIRST;
        loop {
            let started = Instant::now();
            let why = match self.feed() {
                Ok(()) => return,
                Err(why) => why,
            };
            if started.elapsed() > WAIT_MAX {
                wait = WAIT_FIRST;
            }
            self.runs.store(false, Ordering::Relaxed);
            let command = self.words.join(" ");
            let text = format_args!(
                "`{command}` {why}; it is started again in {} ms, copies until then are dropped",
                wait.as_millis()
            );
            self.reporter.error("exec", text);
            thread::sleep(wait);
            while self.from.try_recv().is_ok() {
                self.failed.add(1);
            }
            wait = (wait * 2).min(WAIT_MAX);
            self.runs.store(true, Ordering::Relaxed);
        }
    }

    /// Runs the command once, until nothing more comes. The error says how it ended before that.
    fn feed(&mut self) -> Result<(), String> {
        let (program, arguments) = self.words.split_first().ok_or("has no name")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot be started: {error}"))?;
        let written = self.write_all(&mut child);
        child.stdin = None;
        let ended = child.wait();
        written.map_err(|error| match ended {
            Ok(status) => format!("ended early with {status}: {error}"),
            Err(_) => format!("ended early: {error}"),
        })
    }

    fn write_all(&mut self, child: &mut Child) -> std::io::Result<()> {
        let Some(input) = &mut child.stdin else {
            return Ok(());
        };
        while let Some(text) = self.from.blocking_recv() {
            if let Err(error) = input.write_all(&text) {
                self.failed.add(1);
                return Err(error);
            }
        }
        Ok(())
    }
}
