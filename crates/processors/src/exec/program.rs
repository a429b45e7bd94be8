//! A running program and its three pipes, which are non-blocking.
//!
//! Records go to the program's standard input and answers come from its standard output. Both pipes are served at the same time,
//! so that a full pipe does not block the other one. Standard error is read as well, but only its last bytes are stored. The
//! program runs in its own process group, which is killed as a whole.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use millstream_config::{Period, Size};
use millstream_sys::child;
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Access, access},
    io::{Errno, ioctl_fionbio, ioctl_fionread, read},
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};

/// The size of one read: the capacity of a pipe.
const READ_BYTES: usize = 64 << 10;
/// The maximum number of bytes of standard error that are stored.
const WORDS_BYTES: usize = 512;
/// The maximum number of characters of standard error that a message shows.
const WORDS_SHOWN: usize = 200;
/// The longest wait for a program to end after its standard input or output was closed. A program that still runs after this time
/// is killed. After a failure, the rest of standard error is read for at most this time, too.
const GRACE: Duration = Duration::from_millis(50);
/// The longest wait for a killed program to exit. If it hangs in the kernel for longer, a separate thread reaps it.
const REAP: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(1);

/// The process groups of all running programs.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all running programs. Millstream calls this function when it ends. Dropping a task kills its program as well. But if a
/// program hangs, its task waits for the program and is never dropped.
pub fn kill_all() {
    // The lock is held until all programs are killed. A program leaves this list before it is reaped, so no id in the list can
    // have been reused.
    for group in groups().drain(..) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The options that describe how to start the program.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    /// The program and its arguments; never empty.
    pub(super) command: Vec<String>,
    pub(super) directory: Option<PathBuf>,
    pub(super) environment: BTreeMap<String, String>,
}

/// Why a program cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It ended, or closed its standard output.
    Closed,
    /// It ended, or closed its standard input.
    StoppedReading,
    /// It gave no answer within this time.
    Silent(Period),
    /// Its output is not an answer; the text says why.
    Nonsense(String),
    /// It gave more answers than it got records.
    Surplus,
    /// It answered before it had read the record.
    Early,
    /// The answers to a batch exceed this size.
    Large(Size),
    /// A pipe failed.
    Pipe(Errno),
}

/// A program that has failed.
#[derive(Debug)]
pub(super) struct Fault {
    /// The cause. It completes a sentence that begins with the name of the program.
    pub(super) why: String,
    /// Whether the program has read nothing since its last answer. If so, the unanswered records did not cause the failure.
    pub(super) is_unread: bool,
}

/// The state of a program that has no record to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It waits for records.
    Ready,
    /// It has written unexpected output.
    Talks,
    /// It has ended or closed its standard output.
    Ended,
}

/// A running program. It is killed when this value is dropped.
pub(super) struct Program {
    /// `None` after it was killed.
    child: Option<Child>,
    /// `None` after it was closed to end the program.
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// `None` after the program has closed it.
    errors: Option<ChildStderr>,
    /// The last bytes of standard error.
    words: Vec<u8>,
    /// The number of bytes sent to the program since its last answer.
    sent: u64,
    /// Whether it has answered since its start.
    has_answered: bool,
}

impl Launch {
    /// Fails if the program does not exist or may not be executed.
    pub(super) fn check(&self) -> io::Result<()> {
        let name = Path::new(self.name());
        if name.components().count() > 1 {
            let directory = self.directory.as_deref().unwrap_or(Path::new(""));
            return Ok(access(directory.join(name), Access::EXEC_OK)?);
        }
        let own = self.environment.get("PATH").map(OsString::from);
        let path = own.or_else(|| env::var_os("PATH")).unwrap_or_default();
        let is_here = |directory: PathBuf| access(directory.join(name), Access::EXEC_OK).is_ok();
        match env::split_paths(&path).any(is_here) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Starts the program.
    pub(super) fn start(&self) -> io::Result<Program> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (program, arguments) = self.command.split_first().ok_or_else(missing)?;
        let mut command = child::command(program);
        command
            .args(arguments)
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let mut child = child::spawn(&mut command)?;
        groups().push(Pid::from_child(&child));
        let output = child.stdout.take().ok_or_else(missing)?;
        let program = Program {
            input: child.stdin.take(),
            output,
            errors: child.stderr.take(),
            child: Some(child),
            words: Vec::new(),
            sent: 0,
            has_answered: false,
        };
        if let (Some(input), Some(errors)) = (&program.input, &program.errors) {
            ioctl_fionbio(input, true)?;
            ioctl_fionbio(errors, true)?;
        }
        ioctl_fionbio(&program.output, true)?;
        Ok(program)
    }

    /// The name of the program for messages.
    pub(super) fn name(&self) -> &str {
        self.command.first().map_or("", String::as_str)
    }
}

impl Program {
    /// Waits until the program has written output or can take input, at most until `deadline`. Sends as much of `bytes` as fits
    /// into the pipe, appends the output to `answers`, and returns the number of bytes sent.
    pub(super) fn exchange(
        &mut self,
        bytes: &[u8],
        answers: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<usize, Cause> {
        let wait = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(wait).ok();
        let mut watched = Vec::with_capacity(3);
        watched.push(PollFd::new(&self.output, PollFlags::IN));
        let errors = self.errors.iter();
        watched.extend(errors.map(|errors| PollFd::new(errors, PollFlags::IN)));
        let input = self.input.iter().filter(|_| !bytes.is_empty());
        watched.extend(input.map(|input| PollFd::new(input, PollFlags::OUT)));
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Cause::Pipe(errno)),
        }
        self.read_errors();
        self.read_answers(answers)?;
        self.send(bytes)
    }

    /// Reads the output that is available.
    fn read_answers(&self, answers: &mut Vec<u8>) -> Result<(), Cause> {
        answers.reserve(READ_BYTES);
        match read(&self.output, spare_capacity(answers)) {
            Ok(0) => Err(Cause::Closed),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(Cause::Pipe(errno)),
        }
    }

    /// Reads the available standard error and stores its last bytes. Returns whether there may be more.
    fn read_errors(&mut self) -> bool {
        let Some(errors) = &self.errors else {
            return false;
        };
        let mut buffer = [0; 8 << 10];
        match read(errors, &mut buffer) {
            Ok(0) => {
                self.errors = None;
                false
            }
            Ok(length) => {
                let new = buffer.get(..length).unwrap_or_default();
                let new = new
                    .get(new.len().saturating_sub(WORDS_BYTES)..)
                    .unwrap_or_default();
                self.words.extend_from_slice(new);
                let surplus = self.words.len().saturating_sub(WORDS_BYTES);
                self.words.drain(..surplus);
                true
            }
            Err(_) => false,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Cause> {
        let Some(input) = &mut self.input else {
            return Err(Cause::StoppedReading);
        };
        if bytes.is_empty() {
            return Ok(0);
        }
        match input.write(bytes) {
            Ok(length) => {
                self.sent += length as u64;
                Ok(length)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                io::ErrorKind::BrokenPipe => Err(Cause::StoppedReading),
                _ => Err(Cause::Pipe(
                    Errno::from_io_error(&error).unwrap_or(Errno::IO),
                )),
            },
        }
    }

    /// Notes that the program has given an answer.
    pub(super) fn answered(&mut self) {
        (self.sent, self.has_answered) = (0, true);
    }

    /// Whether the program has given an answer since its start.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// The number of bytes in the pipe that the program has not read yet.
    pub(super) fn unread(&self) -> u64 {
        let input = self.input.as_ref();
        input.map_or(0, |input| ioctl_fionread(input).unwrap_or(0))
    }

    /// Returns the state of a program that has answered all its records. Waits up to `wait` for unexpected output of the program.
    pub(super) fn rest(&mut self, wait: Duration) -> Rest {
        self.read_errors();
        let mut polled = [PollFd::new(&self.output, PollFlags::IN)];
        let found = poll(&mut polled, Timespec::try_from(wait).ok().as_ref());
        let flags = polled[0].revents();
        match found {
            Ok(0) | Err(_) => Rest::Ready,
            Ok(_) if flags.contains(PollFlags::IN) => Rest::Talks,
            Ok(_) => Rest::Ended,
        }
    }

    /// Returns the last line of the stored standard error that is not blank, and clears the store. Returns `None` if the program
    /// has written no such line since the last call.
    pub(super) fn take_words(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.words);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        let shown = line.chars().take(WORDS_SHOWN);
        let shown = shown
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        self.words.clear();
        Some(shown)
    }

    /// Ends the program because of a failure.
    pub(super) fn fail(mut self, cause: &Cause) -> Fault {
        let is_answer = matches!(
            cause,
            Cause::Nonsense(_) | Cause::Surplus | Cause::Early | Cause::Large(_)
        );
        let is_unread = !is_answer && self.unread() >= self.sent;
        let is_new = is_unread && !self.has_answered;
        let ended = matches!(cause, Cause::Closed | Cause::StoppedReading) && self.has_ended(GRACE);
        // If the program writes faster than this loop reads, the time limit ends the loop.
        let read_until = Instant::now() + GRACE;
        while self.read_errors() && Instant::now() < read_until {}
        let status = self.kill();
        let mut why = match (cause, status) {
            (_, Some(status)) if ended && is_new => {
                format!("ended ({status}) before it read a record")
            }
            (_, Some(status)) if ended => format!("ended ({status})"),
            (Cause::Silent(timeout), _) if is_new => format!("read nothing within {timeout}"),
            (cause, _) => cause.to_string(),
        };
        if let Some(words) = self.take_words() {
            why += &format!("; its last line on standard error is `{words}`");
        }
        Fault { why, is_unread }
    }

    /// Waits up to `limit` for the program to end, and returns whether it has ended. Does not reap the program.
    fn has_ended(&self, limit: Duration) -> bool {
        let Some(child) = &self.child else {
            return true;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let until = Instant::now() + limit;
        loop {
            match waitid(WaitId::Pid(Pid::from_child(child)), options) {
                Ok(None) if Instant::now() < until => sleep(STEP),
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }

    /// Kills the process group and reaps the program. Returns `None` if its exit status cannot be read within `REAP`.
    fn kill(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        // Until the program is reaped, no other process can get its id. So the program is killed and removed from the list before
        // it is reaped.
        let group = Pid::from_child(&child);
        let _ = kill_process_group(group, Signal::KILL);
        groups().retain(|other| *other != group);
        let until = Instant::now() + REAP;
        while Instant::now() < until {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => sleep(STEP),
                Err(_) => return None,
            }
        }
        let reaper = thread::Builder::new().name("exec-reaper".into());
        let _ = reaper.spawn(move || child.wait());
        None
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.child.is_some() {
            // Closing the input first gives the program the chance to exit normally.
            self.input = None;
            self.has_ended(GRACE);
            self.kill();
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed its standard output"),
            Self::StoppedReading => f.write_str("closed its standard input"),
            Self::Silent(timeout) => write!(
                f,
                "gave no answer within {timeout} (every record needs one, `null` if it is to be dropped, and the program must flush its output after each)"
            ),
            Self::Nonsense(why) => write!(f, "gave an answer that cannot be used: {why}"),
            Self::Surplus => f.write_str(
                "gave more than one answer to a record (to return several records, answer with one array)",
            ),
            Self::Early => f.write_str("answered a record before it had read it"),
            Self::Large(limit) => write!(
                f,
                "gave answers to the records of one batch with more than {limit} together (`answers_max`)"
            ),
            Self::Pipe(errno) => write!(f, "cannot be reached: {errno}"),
        }
    }
}
