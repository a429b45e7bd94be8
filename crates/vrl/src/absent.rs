//! Replaces the language in a build without the feature `vrl`: compiling any program is an error that explains how to build with
//! this feature.

use std::convert::Infallible;

use millstream_record::Batch;

use crate::{Diagnostic, Moved, Options, Outcome};

/// A program. It cannot exist in this build.
#[derive(Clone, Debug)]
pub struct Program(Infallible);

/// A condition. It cannot exist in this build.
#[derive(Clone, Debug)]
pub struct Condition(Infallible);

/// A running program. It cannot exist in this build.
#[derive(Debug)]
pub struct Remap(Infallible);

/// A running condition. It cannot exist in this build.
#[derive(Debug)]
pub struct Predicate(Infallible);

fn missing(text: &str) -> Vec<Diagnostic> {
    let first = text.chars().next().map_or(0, char::len_utf8);
    let message = "this build cannot run VRL";
    let help = "build it with `cargo build --release --features millstream/vrl`";
    vec![Diagnostic {
        is_warning: false,
        span: 0..first,
        message: message.to_owned(),
        help: Some(help.to_owned()),
        rendered: format!("{message}: {help}"),
    }]
}

impl Program {
    /// Returns the error that this build has no VRL.
    ///
    /// # Errors
    /// Always.
    pub fn compile(
        text: &str,
        _options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Err(missing(text))
    }

    /// The top-level fields that are decoded to values.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<&str>> {
        match self.0 {}
    }

    /// Whether the program generates random values.
    #[must_use]
    pub fn draws(&self) -> bool {
        match self.0 {}
    }

    /// Whether the program assigns the tag.
    #[must_use]
    pub fn sets_tag(&self) -> bool {
        match self.0 {}
    }
}

impl Condition {
    /// Returns the error that this build has no VRL.
    ///
    /// # Errors
    /// Always.
    pub fn compile(
        text: &str,
        _options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        Err(missing(text))
    }
}

impl Remap {
    /// Never called.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        match program.0 {}
    }

    /// Takes the next batch.
    pub fn begin(&mut self, _batch: &Batch, _place: u32) {
        match self.0 {}
    }

    /// Releases the batch.
    pub fn end(&mut self) {
        match self.0 {}
    }

    /// The tag and the host that the program set for the last record.
    #[must_use]
    pub fn moved(&self) -> Option<&Moved> {
        match self.0 {}
    }

    /// The offset of the next record of the batch.
    #[must_use]
    pub fn next(&self) -> usize {
        match self.0 {}
    }

    /// Runs the program on a record.
    pub fn run(&mut self, _start: usize, _out: &mut Vec<u8>) -> Outcome {
        match self.0 {}
    }
}

impl Predicate {
    /// Never called.
    #[must_use]
    pub fn new(condition: &Condition) -> Self {
        match condition.0 {}
    }

    /// Takes the next batch.
    pub fn begin(&mut self, _batch: &Batch) {
        match self.0 {}
    }

    /// Releases the batch.
    pub fn end(&mut self) {
        match self.0 {}
    }

    /// The offset of the next record of the batch.
    #[must_use]
    pub fn next(&self) -> usize {
        match self.0 {}
    }

    /// Whether a record matches.
    ///
    /// # Errors
    /// The condition failed on this record.
    pub fn matches(&mut self, _start: usize) -> Result<bool, String> {
        match self.0 {}
    }
}

/// Does nothing, because no program runs.
pub fn bound_memory(_memory_max: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_an_error_that_explains_how_to_enable_vrl() {
        let errors = Program::compile("\u{e4}", &Options::default()).unwrap_err();
        assert_eq!(errors[0].span, 0..2);
        assert!(errors[0].to_string().contains("--features millstream/vrl"));
        let errors = Condition::compile("", &Options::default()).unwrap_err();
        assert_eq!(errors[0].span, 0..0);
    }
}
