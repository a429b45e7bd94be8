//! The log: lines on stderr, as text or as JSON, in UTC. Under journald each line has its priority.

use std::fmt;

use millstream_config::{Log, LogFormat, LogLevel};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Compact, Format, Writer},
    },
    registry::LookupSpan,
};

use crate::{systemd, visible::LogLines};

/// Starts the log with these settings.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let lines = tracing_subscriber::fmt()
        .with_writer(|| LogLines)
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
