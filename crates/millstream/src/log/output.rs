//! The way of a log line to stderr: a queue that is bounded in bytes, and a thread that writes.
//!
//! The thread that logs only puts its line into the queue. It never waits and never fails, whatever reads stderr: a reader that is
//! gone (EPIPE), a full disk (ENOSPC), a reader that hangs (a full pipe). Lines that find no room or cannot be written are dropped and
//! counted. The next line that is written reports their number, and until then `/status` shows a condition.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use millstream_pipeline::guard::attempt;
use millstream_sys::signals;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::visible::visible;

/// The maximum size of all lines in the queue.
const BYTES_MAX: usize = 1 << 20;
/// The memory of a line in addition to its text.
const LINE_BYTES: usize = 64;
/// The size of the queue at which a reader that had been too slow counts as keeping up again.
const BYTES_CALM: usize = BYTES_MAX / 2;
/// A write that lasts this long is a condition, even if no line was dropped yet.
const STALLED: Duration = Duration::from_secs(10);

/// Where log lines go. Clones share the queue and its thread.
#[derive(Clone)]
pub struct Output(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// Wakes the thread that writes.
    ready: Condvar,
    /// Wakes those who wait until everything is written.
    written: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Since when the thread has been writing a line. `None`: it waits for one.
    writing: Option<Instant>,
    /// All lines that were dropped.
    dropped: u64,
    dropping: Option<Dropping>,
}

/// Lines were dropped, and no line has reported this yet.
struct Dropping {
    lines: u64,
    since: Instant,
    why: String,
}

impl Output {
    /// Starts the thread that writes to `file`.
    pub fn start(file: OwnedFd) -> io::Result<Self> {
        let mut lines = Lines {
            file: file.into(),
            is_torn: false,
        };
        Self::start_with(move |line| lines.write(line))
    }

    /// Starts the thread, which passes each line to `write`. A panic of `write` loses one line, not the thread.
    fn start_with(
        mut write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let output = Self(Arc::new(Shared {
            waiting: Mutex::default(),
            ready: Condvar::new(),
            written: Condvar::new(),
        }));
        let shared = output.0.clone();
        let run = move || {
            // During an upgrade, signals must wait for the next program.
            signals::hold().keep();
            while attempt(|| shared.write_all(&mut write)).is_err() {}
        };
        thread::Builder::new().name("log".into()).spawn(run)?;
        Ok(output)
    }

    /// Adds a text, which is written as it is. Drops it if there is no room.
    pub fn put(&self, text: &[u8]) {
        let mut waiting = self.0.lock();
        let bytes = text.len() + LINE_BYTES;
        if waiting.bytes + bytes > BYTES_MAX {
            waiting.drop_line("whatever reads stderr reads too slowly or hangs");
            return;
        }
        waiting.bytes += bytes;
        waiting.lines.push_back(text.into());
        self.0.ready.notify_one();
    }

    /// Waits until everything is written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let busy = |waiting: &mut Waiting| waiting.writing.is_some() || !waiting.lines.is_empty();
        // Nothing depends on the result: lines that are not written by now are lost with the process.
        drop(
            self.0
                .written
                .wait_timeout_while(self.0.lock(), limit, busy),
        );
    }

    /// The number of lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.0.lock().dropped
    }

    /// Why lines are not written now, and for how long this has been so; `None` if they are written.
    pub fn trouble(&self) -> Option<(String, Duration)> {
        let waiting = self.0.lock();
        if let Some(dropping) = &waiting.dropping {
            return Some((dropping.text(), dropping.since.elapsed()));
        }
        let stalled = waiting.writing?.elapsed();
        (stalled >= STALLED).then(|| {
            let why = "whatever reads stderr has not read a line of the log since then; lines are dropped when the queue is full";
            (why.to_owned(), stalled)
        })
    }
}

/// A writer for one log line: escapes every newline except one in the last byte.
impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (text, end) = match text.strip_suffix('\n') {
            Some(text) => (text, "\n"),
            None => (&*text, ""),
        };
        self.put([&*visible(text), end].concat().as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Waiting {
    fn drop_line(&mut self, why: &str) {
        self.dropped += 1;
        let dropping = self.dropping.get_or_insert_with(|| Dropping {
            lines: 0,
            since: Instant::now(),
            why: String::new(),
        });
        dropping.lines += 1;
        if dropping.why != why {
            dropping.why = why.to_owned();
        }
    }
}

impl Dropping {
    fn text(&self) -> String {
        let s = if self.lines == 1 { "" } else { "s" };
        format!(
            "{} line{s} of the log were dropped: {}",
            self.lines, self.why
        )
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics in the middle of a change.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines for ever.
    fn write_all(&self, write: &mut dyn FnMut(&[u8]) -> io::Result<()>) {
        loop {
            let line = self.next();
            let written = write(&line);
            let mut waiting = self.lock();
            let reported = match written {
                Ok(()) if waiting.bytes <= BYTES_CALM => waiting.dropping.take(),
                Ok(()) => None,
                Err(error) => {
                    waiting.drop_line(&format!("stderr cannot be written: {error}"));
                    None
                }
            };
            drop(waiting);
            if let Some(dropping) = reported {
                let seconds = dropping.since.elapsed().as_secs();
                tracing::warn!(kind = "log", "in the last {seconds} s, {}", dropping.text());
            }
        }
    }

    /// Waits for a line.
    fn next(&self) -> Box<[u8]> {
        let mut waiting = self.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len() + LINE_BYTES;
                waiting.writing = Some(Instant::now());
                return line;
            }
            waiting.writing = None;
            self.written.notify_all();
            let woken = self.ready.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes lines to a file, a pipe, a socket or a terminal.
struct Lines {
    file: File,
    /// Whether the last line was written only in part.
    is_torn: bool,
}

impl Lines {
    /// Writes a line in one call if possible, so that it does not mix with those of other processes.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write_bytes(b"\n")?;
        }
        self.write_bytes(line)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left = &left[count..];
                    self.is_torn = !left.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process may have made the shared terminal or pipe non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the file takes more bytes.
    fn wait(&self) -> io::Result<()> {
        let mut files = [PollFd::new(&self.file, PollFlags::OUT)];
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, pipe},
        os::unix::fs::OpenOptionsExt,
    };

    use super::*;

    /// A time that no step of a test takes.
    const LONG: Duration = Duration::from_secs(20);

    fn await_that(what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Puts lines until one is dropped, and returns the number of those that were not.
    fn fill(output: &Output) -> usize {
        let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
        (0..)
            .take_while(|_| {
                output.put(&line);
                output.dropped() == 0
            })
            .count()
    }

    #[test]
    fn lines_are_written_in_order_and_a_newline_in_a_line_is_escaped() {
        let (mut reader, writer) = pipe().unwrap();
        let mut output = Output::start(writer.into()).unwrap();
        output.write_all(b"first\n").unwrap();
        output.write_all("a\nERROR forged\n".as_bytes()).unwrap();
        output.flush(LONG);
        let mut got = [0; 22];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"first\na\\nERROR forged\n");
        assert!(output.dropped() == 0 && output.trouble().is_none());
    }

    #[test]
    fn a_reader_that_is_gone_costs_lines_and_not_the_thread_that_logs() {
        let (reader, writer) = pipe().unwrap();
        let mut output = Output::start(writer.into()).unwrap();
        drop(reader);
        output.write_all(b"lost\n").unwrap();
        output.flush(LONG);
        output.write_all(b"lost, too\n").unwrap();
        output.flush(LONG);
        assert_eq!(output.dropped(), 2);
        let (why, _) = output.trouble().unwrap();
        assert!(
            why.starts_with(
                "2 lines of the log were dropped: stderr cannot be written: Broken pipe"
            ),
            "{why}"
        );
    }

    #[test]
    fn a_full_disk_costs_lines_and_not_the_thread_that_logs() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Output::start(full.into()).unwrap();
        output.put(b"lost\n");
        output.flush(LONG);
        let (why, _) = output.trouble().unwrap();
        assert!(why.contains("No space left on device"), "{why}");
    }

    #[test]
    fn a_reader_that_hangs_delays_no_thread_and_the_queue_stays_bounded() {
        let (mut reader, writer) = pipe().unwrap();
        let output = Output::start(writer.into()).unwrap();
        let kept = fill(&output);
        assert!(
            (BYTES_MAX / 2048..BYTES_MAX / 512).contains(&kept),
            "{kept}"
        );
        let begun = Instant::now();
        output.flush(Duration::from_millis(100));
        assert!(begun.elapsed() < LONG / 2);
        assert!(output.trouble().unwrap().0.contains("hangs"));
        // The reader continues. Everything that was kept arrives, and nothing is in trouble any more.
        let mut got = vec![0; kept * 1024];
        reader.read_exact(&mut got).unwrap();
        output.put(b"last\n");
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"last\n");
        await_that("the trouble is over", || output.trouble().is_none());
    }

    #[test]
    fn a_pipe_that_another_process_made_non_blocking_loses_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let open = |write| {
            let mut options = File::options();
            options.read(true).write(write);
            options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
            options.open(&path).unwrap()
        };
        let mut reader = open(false);
        let output = Output::start(open(true).into()).unwrap();
        let line = [[b'x'; 9999].as_slice(), b"\n"].concat();
        for _ in 0..50 {
            output.put(&line);
        }
        let mut got = vec![0; 50 * line.len()];
        let (mut read, begun) = (0, Instant::now());
        while read < got.len() && begun.elapsed() < LONG {
            match reader.read(&mut got[read..]) {
                Ok(count) => read += count,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        assert_eq!((read, output.dropped()), (got.len(), 0));
        assert!(got.chunks(line.len()).all(|it| it == line));
    }

    #[test]
    fn a_panic_of_the_thread_that_writes_loses_one_line() {
        let (mut reader, mut writer) = pipe().unwrap();
        let output = Output::start_with(move |line| match line {
            b"bad\n" => panic!("injected"),
            line => writer.write_all(line),
        });
        let output = output.unwrap();
        output.put(b"bad\n");
        output.put(b"good\n");
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"good\n");
    }
}
