//! Errors and warnings about a program, with their place in the text.

use std::{fmt, ops::Range};

/// An error or a warning about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether it is a warning, so that the program can be used.
    pub is_warning: bool,
    /// The bytes of the program that it points at: at least one, unless the program is empty.
    pub span: Range<usize>,
    /// The error or warning, in one line without a full stop.
    pub message: String,
    /// The next step, if there is one that the compiler knows.
    pub help: Option<String>,
    /// The whole diagnostic with the lines of the program, as the language's own tools print it.
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
