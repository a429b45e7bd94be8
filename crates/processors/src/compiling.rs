//! Compiles programs, first in a child process with limits. A program that the compiler cannot bear ends the child, and becomes an
//! error of the configuration, while this process runs on.
//!
//! The child is this program with a hidden command, which calls [`serve`]. It gets one program after the other on its standard input
//! and answers each that it could compile or refuse. So a whole configuration takes one child ([`Session`]). A program that the child
//! bears is compiled again in this process, which gives the same result.
//!
//! ```text
//! request: kind (1 byte), zone and text (each: length in 4 bytes, little endian; bytes)
//! answer:  DONE (1 byte)
//! ```

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use millstream_sys::child;
use millstream_vrl::{Condition, Diagnostic, Options, Program};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    param::page_size,
    process::{Resource, Rlimit, Signal, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

/// The program itself, also after its file was replaced.
const OWN: &str = "/proc/self/exe";
/// The stack of the threads that compile. The limits of a program's text keep the compiler far below it.
const STACK_BYTES: usize = 64 << 20;
/// The memory that the compiler may take for a program, with its stack.
const MEMORY_MAX: u64 = 256 << 20;
/// The CPU time that the compiler may take for a program.
const CPU_SECONDS_MAX: u64 = 5;
/// The longest wait for the child. It is long, because the machine may be busy: normally the limit of the CPU time ends a child.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The largest field of a request: more than the largest program.
const FIELD_MAX: u32 = 8 << 20;
/// The number of bytes of the child's standard error that are read.
const WORDS_MAX: u64 = 4096;
const DONE: u8 = b'.';

static STATE: Mutex<State> = Mutex::new(State {
    command: None,
    sessions: 0,
    child: None,
});

struct State {
    /// The hidden command; `None` if the process has none, as in tests.
    command: Option<&'static str>,
    sessions: usize,
    child: Option<Compiler>,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that this program calls [`serve`] when it is started with the argument `command`.
pub fn has_command(command: &'static str) {
    state().command = Some(command);
}

/// While this value exists, programs are tried in a child process before they are compiled here. The child starts with the first
/// program, and ends when the value is dropped.
#[derive(Debug)]
pub struct Session(());

impl Session {
    /// Begins a session.
    #[must_use]
    pub fn begin() -> Self {
        state().sessions += 1;
        Self(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = state();
        state.sessions -= 1;
        if state.sessions == 0 {
            state.child = None;
        }
    }
}

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Program,
    Condition,
}

/// The result of the compiler.
pub(crate) type Compiled<T> = Result<(T, Vec<Diagnostic>), Vec<Diagnostic>>;

/// Compiles a text with `compile`, which must belong to `kind`.
pub(crate) fn compile<T: Send>(
    kind: Kind,
    text: &str,
    options: &Options,
    compile: impl FnOnce(&str, &Options) -> Compiled<T> + Send,
) -> Compiled<T> {
    if cfg!(feature = "vrl") {
        attempt(kind, text, options).map_err(|why| vec![unbearable(text, &why)])?;
    }
    let compiled = on_large_stack(|| compile(text, options));
    compiled.unwrap_or_else(|why| Err(vec![unbearable(text, &why)]))
}

/// The error about a text that was not compiled. It is shown at the first line.
fn unbearable(text: &str, why: &str) -> Diagnostic {
    let start = text.len() - text.trim_start().len();
    let line = text.get(start..).and_then(|rest| rest.lines().next());
    let message = format!("this cannot be compiled: {why}");
    Diagnostic {
        is_warning: false,
        span: start..start + line.map_or(0, str::len),
        rendered: message.clone(),
        message,
        help: Some("divide it into several processors, or into simpler expressions".to_owned()),
    }
}

/// Compiles a text in the child. Returns why the child did not bear it.
fn attempt(kind: Kind, text: &str, options: &Options) -> Result<(), String> {
    let mut state = state();
    let Some(command) = state.command.filter(|_| state.sessions > 0) else {
        return Ok(());
    };
    // Without a child (the system has no process left), the limits of the text must do.
    let mut child = match state.child.take() {
        Some(child) => child,
        None => match Compiler::start(command) {
            Ok(child) => child,
            Err(_) => return Ok(()),
        },
    };
    child.compile(kind, text, options)?;
    state.child = Some(child);
    Ok(())
}

/// Runs `work` on a thread with a large stack. Returns why that failed.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("compile".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread can start: {error}"))?;
        let ended = thread.join();
        ended.map_err(|_| "the compiler has a fault (a panic, see standard error)".to_owned())
    })
}

/// A child process that compiles programs. Dropping this value ends it.
#[derive(Debug)]
struct Compiler {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Compiler {
    fn start(command: &str) -> io::Result<Self> {
        // The child has the signal mask of this thread: it may start before there are handlers. Its command releases the signals.
        let mut child = child::command(OWN)
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            output: output.ok_or(io::ErrorKind::BrokenPipe)?,
            input,
            child,
        })
    }

    fn compile(&mut self, kind: Kind, text: &str, options: &Options) -> Result<(), String> {
        if self.send(kind, text, options).is_err() {
            return Err(self.cause());
        }
        let mut polled = [PollFd::new(&self.output, PollFlags::IN)];
        let wait = Timespec::try_from(WAIT_MAX).ok();
        loop {
            match poll(&mut polled, wait.as_ref()) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(format!("it is not done after {} s", WAIT_MAX.as_secs())),
                Ok(_) | Err(_) => break,
            }
        }
        let mut answer = [0];
        match self.output.read(&mut answer) {
            Ok(1) if answer[0] == DONE => Ok(()),
            _ => Err(self.cause()),
        }
    }

    fn send(&mut self, kind: Kind, text: &str, options: &Options) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut request = vec![u8::from(kind == Kind::Condition)];
        for field in [&options.timezone, text] {
            let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
            request.extend(length.to_le_bytes());
            request.extend(field.as_bytes());
        }
        input.write_all(&request)
    }

    /// Waits for the end of a child that has stopped to answer. Returns why it ended.
    fn cause(&mut self) -> String {
        self.input = None;
        let mut words = Vec::new();
        if let Some(errors) = self.child.stderr.take() {
            let _ = errors.take(WORDS_MAX).read_to_end(&mut words);
        }
        match self.child.wait() {
            Ok(status) => cause(status, &String::from_utf8_lossy(&words)),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // It waits for the next program, or hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why the child ended, by its status and its last words.
fn cause(status: ExitStatus, words: &str) -> String {
    let memory = MEMORY_MAX >> 20;
    if words.contains("memory allocation of") {
        return format!("the compiler needs more than {memory} MiB of memory");
    }
    if words.contains("overflowed its stack") {
        return "it nests too deep".to_owned();
    }
    if let Some((_, panic)) = words.split_once("panicked at ") {
        let panic = panic.lines().nth(1).unwrap_or_default();
        return format!("the compiler has a fault ({panic})");
    }
    match status.signal() {
        Some(signal) if signal == Signal::XCPU.as_raw() => {
            format!("the compiler needs more than {CPU_SECONDS_MAX} s")
        }
        _ => format!("the compiler ended ({status})"),
    }
}

/// Compiles the programs on the standard input, until it ends. This is the child process; only its death and its answers matter.
///
/// # Errors
/// If a pipe to the parent fails, or a request is not one.
pub fn serve() -> io::Result<()> {
    limit_memory()?;
    let served = on_large_stack(|| -> io::Result<()> {
        let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
        while let Some((is_condition, timezone, text)) = request(&mut input)? {
            limit_time()?;
            let options = Options { timezone };
            match is_condition {
                true => drop(Condition::compile(&text, &options)),
                false => drop(Program::compile(&text, &options)),
            }
            output.write_all(&[DONE])?;
            output.flush()?;
        }
        Ok(())
    });
    served.map_err(io::Error::other)?
}

/// Reads a request: whether it is a condition, the time zone, the text. `None` at the end of the input.
fn request(input: &mut impl Read) -> io::Result<Option<(bool, String, String)>> {
    let mut kind = [0];
    if input.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let mut field = || {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > FIELD_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut bytes = vec![0; length as usize];
        input.read_exact(&mut bytes)?;
        String::from_utf8(bytes).map_err(io::Error::other)
    };
    Ok(Some((kind[0] != 0, field()?, field()?)))
}

/// Limits the memory of this process to what it has now and [`MEMORY_MAX`]. If the system still runs out of memory, this process is
/// the one to end.
fn limit_memory() -> io::Result<()> {
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    set_limit(Resource::Core, 0)?;
    let sizes = fs::read_to_string("/proc/self/statm")?;
    let pages = sizes
        .split(' ')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let pages = pages.ok_or(io::ErrorKind::InvalidData)?;
    set_limit(Resource::As, pages * page_size() as u64 + MEMORY_MAX)
}

/// Limits the CPU time until the next call.
fn limit_time() -> io::Result<()> {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    let used = u64::try_from(used).unwrap_or(0);
    // The used seconds are rounded down.
    set_limit(Resource::Cpu, used + 1 + CPU_SECONDS_MAX)
}

fn set_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let limit = limit.min(maximum.unwrap_or(u64::MAX));
    let limit = Rlimit {
        current: Some(limit),
        maximum,
    };
    Ok(setrlimit(resource, limit)?)
}

#[cfg(test)]
#[cfg(feature = "vrl")]
mod tests {
    use super::*;

    fn error(kind: Kind, text: &str) -> Diagnostic {
        let options = Options::default();
        let compiled = match kind {
            Kind::Program => compile(kind, text, &options, Program::compile).map(|_| ()),
            Kind::Condition => compile(kind, text, &options, Condition::compile).map(|_| ()),
        };
        compiled.unwrap_err().remove(0)
    }

    #[test]
    fn without_a_child_the_limits_of_the_text_hold() {
        let deep = format!(".x = {}true", "!".repeat(5000));
        let text = "true\n && .p[100000000] == 1";
        for (kind, text, wanted, at) in [
            (Kind::Program, &*deep, "nests deeper", 5 + 255),
            (Kind::Condition, text, "the indexes of a path", 11),
        ] {
            let error = error(kind, text);
            assert!(error.message.contains(wanted), "{}", error.message);
            assert_eq!(error.span.start, at);
        }
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        let mut bytes = vec![1];
        for field in ["UTC", ".a == \"\u{e4}\""] {
            bytes.extend(u32::try_from(field.len()).unwrap().to_le_bytes());
            bytes.extend(field.as_bytes());
        }
        let read = request(&mut &*bytes).unwrap();
        let wanted = (true, "UTC".to_owned(), ".a == \"\u{e4}\"".to_owned());
        assert_eq!(read, Some(wanted));
        assert_eq!(request(&mut &b""[..]).unwrap(), None);
        assert!(request(&mut &b"\x00\xff\xff\xff\xff"[..]).is_err());
        assert!(request(&mut &bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn the_end_of_a_child_is_explained() {
        let killed = ExitStatus::from_raw;
        for (status, words, wanted) in [
            (6, "memory allocation of 24000000 bytes failed", "256 MiB"),
            (6, "thread 'compile' has overflowed its stack", "too deep"),
            (24, "", "more than 5 s"),
            (9, "", "signal: 9"),
            (
                101 << 8,
                "thread 'compile' panicked at a.rs:1:1:\nno way\n",
                "a fault (no way)",
            ),
        ] {
            let cause = cause(killed(status), words);
            assert!(cause.contains(wanted), "{cause}");
        }
    }
}
