//! Where records end: the option `framing`, and its checked form.

use std::time::Duration;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::framing::{Cr, Multiline, TooLong};

/// Where a record ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::fuse) enum Framing {
    /// At every newline. When the file is closed, an unfinished line is a record, too.
    #[default]
    Lines,
    /// At the end of each `write` (the kernel divides writes of more than 1 MiB).
    Write,
    /// When the file is closed.
    File,
    /// Before each line that matches `start`.
    Multiline(Multiline),
}

/// Where a record ends: the checked [`Framing`].
#[derive(Debug)]
pub(in crate::fuse) enum RecordEnd {
    Line,
    Write,
    File,
    /// Before a line that matches, or when nothing was written for this time.
    Start(Regex, Duration),
}

impl Framing {
    /// Compiles the regular expression, if there is one.
    pub(in crate::fuse) fn check(&self) -> Result<RecordEnd, String> {
        Ok(match self {
            Self::Lines => RecordEnd::Line,
            Self::Write => RecordEnd::Write,
            Self::File => RecordEnd::File,
            Self::Multiline(lines) => RecordEnd::Start(lines.start()?, lines.wait.as_duration()),
        })
    }
}

/// Where records end, and the treatment of records that are too long.
#[derive(Debug)]
pub(in crate::fuse) struct Boundaries {
    pub end: RecordEnd,
    /// The longest record in bytes, at least 1.
    pub line_max: usize,
    pub too_long: TooLong,
    pub cr: Cr,
}

impl Boundaries {
    /// How long to wait for more lines of a record. `None` if lines are not joined.
    pub(in crate::fuse) fn wait(&self) -> Option<Duration> {
        match &self.end {
            RecordEnd::Start(_, wait) => Some(*wait),
            RecordEnd::Line | RecordEnd::Write | RecordEnd::File => None,
        }
    }
}
