//! The log: lines on stderr, as text or as JSON, in UTC. Under journald each line has its priority.
//!
//! Nothing that logs waits for the reader of stderr, and nothing fails with it (`log/output.rs`). The text of a panic is a log line, too.

mod output;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt, io,
    os::fd::AsFd,
    panic,
    sync::OnceLock,
    thread,
    time::Duration,
};

use millstream_config::{Log, LogFormat, LogLevel};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Compact, Format, Writer},
    },
    registry::LookupSpan,
};

use crate::systemd;
use output::Output;

static OUTPUT: OnceLock<Output> = OnceLock::new();

/// Starts the log with these settings. Called once.
///
/// # Errors
/// There is no thread or no descriptor for it.
pub fn start(log: &Log) -> io::Result<()> {
    let output = Output::start(io::stderr().as_fd().try_clone_to_owned()?)?;
    let output = OUTPUT.get_or_init(|| output);
    subscribe(log, output);
    panic::set_hook(Box::new(report_panic));
    Ok(())
}

/// Writes a text to stderr as it is, after the lines that are logged already. Before [`start`], drops it.
pub fn show(text: &str) {
    if let Some(output) = OUTPUT.get() {
        output.put(text.as_bytes());
    }
}

/// Waits until all lines are written, at most for `limit`.
pub fn flush(limit: Duration) {
    if let Some(output) = OUTPUT.get() {
        output.flush(limit);
    }
}

/// The number of lines that were dropped because stderr took no more.
pub fn dropped_lines() -> u64 {
    OUTPUT.get().map_or(0, Output::dropped)
}

/// Why lines are not written now, and for how long this has been so; `None` if they are written.
pub fn trouble() -> Option<(String, Duration)> {
    OUTPUT.get()?.trouble()
}

/// Logs a panic. The default hook would write to stderr, and so wait for its reader.
fn report_panic(panic: &panic::PanicHookInfo<'_>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let text = panic.payload_as_str().unwrap_or("no text");
    let place = panic.location().map(ToString::to_string);
    let place = place.unwrap_or_default();
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    tracing::error!(
        kind = "panic",
        "the thread {thread} panicked at {place}: {text}; this is a fault of Millstream, please report it{trace}"
    );
}

fn subscribe(log: &Log, output: &'static Output) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_writer(|| output.clone())
        // A line that cannot be formatted must not be reported on stderr, where it could block or panic.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_max_level(level)
        .with_target(false);
    match log.format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text if systemd::stderr_is_journal() => {
            lines.event_format(Prioritized::new()).init();
        }
        LogFormat::Text => lines.init(),
    }
}

/// Formats lines for journald: the priority, such as `<4>`, and the text (sd-daemon(3)). journald adds the time.
struct Prioritized(Format<Compact, ()>);

impl Prioritized {
    fn new() -> Self {
        let format = tracing_subscriber::fmt::format().compact();
        Self(format.without_time().with_level(false).with_target(false))
    }
}

impl<S, N> FormatEvent<S, N> for Prioritized
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}
