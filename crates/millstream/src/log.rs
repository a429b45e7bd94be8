//! The log: lines on stderr, for people or as JSON, in UTC.

use std::io::IsTerminal;

use millstream_config::{Log, LogFormat, LogLevel};
use tracing::Level;
use tracing_subscriber::fmt;

/// Starts the log as the settings say.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let lines = fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false);
    match log.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
