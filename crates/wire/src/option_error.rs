//! The error for wrong options of a format or of a parser.

/// An option has a wrong value, is missing, or cannot be used with another option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {help}")]
pub struct OptionError {
    /// The option with the problem, with dots between its levels: `time.format`.
    pub option: &'static str,
    /// The error.
    pub message: String,
    /// Advice for the user: how to solve the problem.
    pub help: String,
}

impl OptionError {
    pub(crate) fn new(
        option: &'static str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self {
            option,
            message: message.into(),
            help: help.into(),
        }
    }
}
