//! The options `framing`, `line_max`, `too_long` and `cr`.

use millstream_config::{Period, Size};
use millstream_wire::{lines, ruby::translated};
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

/// The default of `line_max`.
pub(crate) const LINE_MAX: Size = Size::mib(1);
/// The largest `line_max`, so that a line fits into one buffer.
pub(crate) const LINE_MAX_LARGEST: Size = Size::gib(1);

/// Format that determines where a record ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Framing {
    /// Every line is a record.
    #[default]
    Lines,
    /// Lines as container runtimes write them: `TIME STREAM F TEXT`. Partial lines (`P`) are joined. `TIME` and `STREAM` become
    /// the time and the stream of the record.
    Cri,
    /// A record begins at every line that matches a regular expression.
    Multiline(Multiline),
}

/// Which lines form one record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Multiline {
    /// Regular expression that matches the first line of every record, such as `^\\d{4}-`. It runs in linear time. The
    /// form `/.../` of Fluentd and Fluent Bit is understood, too.
    pub start: String,
    /// Time without another line after which the last record is complete.
    #[serde(default = "wait")]
    pub wait: Period,
}

impl Multiline {
    /// The expression that matches the first line of every record. The error describes the problem.
    pub(crate) fn start(&self) -> Result<Regex, String> {
        Regex::new(&translated(&self.start))
            .map_err(|error| format!("`start` is not a regular expression: {error}"))
    }
}

/// One second: programs write the lines of a stack trace within milliseconds of each other.
fn wait() -> Period {
    Period::secs(1)
}

/// Treatment of the carriage return (CR) at the end of lines, as programs for Windows, terminals and network devices write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cr {
    /// One CR directly before the newline belongs to the end of the line, not to the record.
    #[default]
    Drop,
    /// The CR stays in the record.
    Keep,
}

impl Cr {
    /// A line without the CR that belongs to its end.
    pub(crate) fn trim(self, line: &[u8]) -> &[u8] {
        match line {
            [rest @ .., b'\r'] if self == Self::Drop => rest,
            _ => line,
        }
    }

    /// The lines of `text`, each with its newline, without the CRs that belong to their ends. `None` if there are no such CRs.
    pub(crate) fn trim_all(self, text: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Drop => lines::without_returns(text),
            Self::Keep => None,
        }
    }
}

/// Policy for lines longer than `line_max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TooLong {
    /// The line becomes several records of at most `line_max` bytes.
    #[default]
    Split,
    /// The first `line_max` bytes of the line become a record; the rest is dropped and counted.
    Truncate,
    /// The line leaves by the port `NAME.rejected`, in pieces of at most `line_max` bytes.
    Reject,
}
