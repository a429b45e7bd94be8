//! Commands that get a copy of the records on their standard input.
//!
//! A write to a pipe can block, so each command has a thread that writes to its standard input, and a short queue in front of the
//! thread. While the queue of a slow command is full, writes wait if their records are copied to this command. A command that has
//! ended is restarted after a delay (the back-off). Until the restart, its copies are dropped and counted. The delivery of the
//! records to the next channels does not depend on the command.

use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
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
use millstream_sys::child;
use tokio::sync::mpsc;

use super::tee::text;

/// The length of the queue in front of a command, in batches. The batches take a few MiB together.
const QUEUE: usize = 4;
/// The back-off before the first restart of a command that has ended. Each further back-off is twice
/// as long.
const BACK_OFF_MIN: Duration = Duration::from_millis(500);
/// The longest back-off. After a command has run for longer than this, its next back-off is [`BACK_OFF_MIN`].
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// A command of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Exec {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The file to which its standard output is appended. `None`: the output is discarded.
    pub output: Option<PathBuf>,
}

/// The queues of the commands.
pub(super) struct Commands {
    queues: Mutex<HashMap<Exec, Queue>>,
    reporter: Reporter,
    failed: Meter,
}

#[derive(Clone)]
struct Queue {
    to: mpsc::Sender<Bytes>,
    /// False while the command waits for its restart.
    is_running: Arc<AtomicBool>,
}

impl Commands {
    /// Starts without commands. `failed` counts the copies that are dropped.
    pub(super) fn new(reporter: Reporter, failed: Meter) -> Self {
        Self {
            queues: Mutex::default(),
            reporter,
            failed,
        }
    }

    /// Sends the records to a command. Starts the command if it does not run yet.
    pub(super) async fn send(&self, exec: &Exec, batch: &Batch) {
        let queue = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            match queues.get(exec) {
                Some(queue) => queue.clone(),
                None => queues
                    .entry(exec.clone())
                    .or_insert(self.start(exec))
                    .clone(),
            }
        };
        let text = Bytes::from(text(batch).into_owned());
        if !queue.is_running.load(Ordering::Relaxed) || queue.to.send(text).await.is_err() {
            self.failed.add(1);
        }
    }

    /// Ends the commands that `is_used` does not name, once they have got what was sent to them.
    pub(super) fn retain(&self, is_used: impl Fn(&Exec) -> bool) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|exec, _| is_used(exec));
    }

    fn start(&self, exec: &Exec) -> Queue {
        let (to, from) = mpsc::channel(QUEUE);
        let is_running = Arc::new(AtomicBool::new(true));
        let feed = Feed {
            exec: exec.clone(),
            from,
            is_running: is_running.clone(),
            reporter: self.reporter.clone(),
            failed: self.failed.clone(),
        };
        let thread = thread::Builder::new().name("exec".into());
        if let Err(error) = thread.spawn(|| feed.run()) {
            let text = format_args!("cannot start a thread for a command: {error}");
            self.reporter.error("exec", text);
        }
        Queue { to, is_running }
    }
}

/// The thread that writes to one command.
struct Feed {
    exec: Exec,
    from: mpsc::Receiver<Bytes>,
    is_running: Arc<AtomicBool>,
    reporter: Reporter,
    failed: Meter,
}

impl Feed {
    fn run(mut self) {
        let mut back_off = BACK_OFF_MIN;
        loop {
            let started = Instant::now();
            let Err(why) = self.feed() else { return };
            if started.elapsed() > BACK_OFF_MAX {
                back_off = BACK_OFF_MIN;
            }
            self.is_running.store(false, Ordering::Relaxed);
            let text = format_args!(
                "`{}` {why}; it restarts in {} ms, and copies until then are dropped",
                self.exec.words.join(" "),
                back_off.as_millis()
            );
            self.reporter.error("exec", text);
            thread::sleep(back_off);
            while self.from.try_recv().is_ok() {
                self.failed.add(1);
            }
            back_off = (back_off * 2).min(BACK_OFF_MAX);
            self.is_running.store(true, Ordering::Relaxed);
        }
    }

    /// Runs the command once, until the queue is closed. Returns an error with the reason if the command cannot be started or
    /// ends earlier.
    fn feed(&mut self) -> Result<(), String> {
        let (program, arguments) = self.exec.words.split_first().ok_or("has no name")?;
        let output = match &self.exec.output {
            Some(path) => Stdio::from(append_to(path).map_err(|error| {
                format!("cannot write its output to {}: {error}", path.display())
            })?),
            None => Stdio::null(),
        };
        let mut command = child::command(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(Stdio::null());
        let mut child =
            child::spawn(&mut command).map_err(|error| format!("cannot be started: {error}"))?;
        let written = self.write_all(&mut child);
        child.stdin = None;
        let ended = child.wait();
        written.map_err(|error| match ended {
            Ok(status) => format!("ended early with {status}: {error}"),
            Err(_) => format!("ended early: {error}"),
        })
    }

    fn write_all(&mut self, child: &mut Child) -> io::Result<()> {
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

/// Opens a file to append to it. Makes its directory if it does not exist.
fn append_to(path: &Path) -> io::Result<fs::File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::File::options().append(true).create(true).open(path)
}
