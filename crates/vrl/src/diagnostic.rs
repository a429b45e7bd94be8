//! Errors and warnings about a program, with their location in the text.

use std::{fmt, ops::Range};

/// An error or a warning about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether this is a warning, which does not prevent the use of the program.
    pub is_warning: bool,
    /// The bytes of the program that the message refers to: at least one byte, unless the program is empty.
    pub span: Range<usize>,
    /// The error or warning, in one line without a full stop.
    pub message: String,
    /// A suggestion for correcting the program, if there is one.
    pub help: Option<String>,
    /// The whole diagnostic with the lines of the program, as VRL's own tools print it.
    pub rendered: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}
