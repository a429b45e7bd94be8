//! Compiles programs and conditions, with checks that the language leaves to the application.
//!
//! A program is compiled twice: once as it is written, to find errors and warnings; and once with `null` appended, to run it.
//! Without the `null`, the last assignment would copy the assigned value, because that value would be the result of the
//! program. No code uses the result.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use vrl::{
    compiler::{
        CompilationResult, CompileConfig, Program as Compiled, TimeZone, TypeState,
        compile_with_state,
        state::{ExternalEnv, LocalEnv},
    },
    path::PathPrefix,
    value::{Kind, kind::Collection},
};

use crate::{
    Diagnostic, Options, convert,
    functions::{self, Calls},
    metadata,
    plan::{self, Plan},
};

/// The maximum length of a program in bytes.
const LENGTH_MAX: usize = 1 << 20;
/// The deepest nesting of brackets in a program. The compiler needs stack space for each level.
const NESTING_MAX: usize = 128;

/// A program for `remap`, compiled and type-checked.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) compiled: Compiled,
    pub(crate) plan: Plan,
    pub(crate) timezone: TimeZone,
    draws: bool,
}

/// A condition: a program without assignments whose result is a boolean.
#[derive(Clone, Debug)]
pub struct Condition {
    pub(crate) compiled: Compiled,
    pub(crate) plan: Plan,
    pub(crate) timezone: TimeZone,
}

impl Program {
    /// Compiles a program. Also returns the warnings, in the order of the text.
    ///
    /// # Errors
    /// All errors that the compiler found, in the order of the text. Warnings are not included.
    pub fn compile(
        text: &str,
        options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let (result, calls, timezone) = compile(text, options, false)?;
        let silent = format!("{text}\nnull");
        let compiled = match compile(&silent, options, false) {
            Ok((silent, ..)) => silent.program,
            Err(_) => result.program,
        };
        let program = Self {
            plan: Plan::new(compiled.info(), calls.unnests.load(Ordering::Relaxed)),
            compiled,
            timezone,
            draws: calls.draws.load(Ordering::Relaxed),
        };
        Ok((program, convert::from_compiler(text, result.warnings)))
    }

    /// The top-level fields that are decoded to values; `None` if the program needs the record as a whole.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<&str>> {
        let fields = || self.plan.fields.iter().map(|name| name.as_str()).collect();
        (!self.plan.is_whole).then(fields)
    }

    /// Whether the program generates random values. The values depend on the index of the record, which is the argument
    /// `place` of [`crate::Remap::begin`].
    #[must_use]
    pub fn draws(&self) -> bool {
        self.draws
    }

    /// Whether the program assigns the tag, so that records can leave with another tag.
    #[must_use]
    pub fn sets_tag(&self) -> bool {
        self.plan.sets_tag
    }
}

impl Condition {
    /// Compiles a condition. Also returns the warnings, in the order of the text.
    ///
    /// # Errors
    /// As for [`Program::compile`]. Assignments are errors, too. So is a result that is not a boolean in every case.
    pub fn compile(
        text: &str,
        options: &Options,
    ) -> Result<(Self, Vec<Diagnostic>), Vec<Diagnostic>> {
        let (result, calls, timezone) = compile(text, options, true)?;
        let kind = result.program.final_type_info().result.kind().clone();
        if !kind.is_boolean() {
            return Err(vec![Diagnostic::error(
                text,
                trimmed(text),
                &format!("a condition must be true or false, and this is {kind}"),
                "compare it with something: `.level == \"error\"`, `exists(.level)`",
            )]);
        }
        let condition = Self {
            plan: Plan::new(result.program.info(), calls.unnests.load(Ordering::Relaxed)),
            compiled: result.program,
            timezone,
        };
        Ok((condition, convert::from_compiler(text, result.warnings)))
    }
}

type Success = (CompilationResult, Arc<Calls>, TimeZone);

/// Compiles `text`. Also returns the properties of its function calls, and the time zone.
fn compile(text: &str, options: &Options, read_only: bool) -> Result<Success, Vec<Diagnostic>> {
    let timezone = match TimeZone::parse(&options.timezone) {
        Some(zone @ TimeZone::Named(_)) => zone,
        _ => {
            return Err(vec![Diagnostic::error(
                text,
                0..text.len(),
                &format!("`{}` is not a time zone", options.timezone),
                "use a name of the tz database, such as UTC or Europe/Berlin",
            )]);
        }
    };
    if let Some(problem) = too_large(text) {
        return Err(vec![problem]);
    }
    let calls = Arc::new(Calls::default());
    let mut config = CompileConfig::default();
    if read_only {
        config.set_read_only();
    }
    metadata::protect(&mut config);
    let state = TypeState {
        local: LocalEnv::default(),
        external: ExternalEnv::new_with_kind(Kind::object(Collection::any()), metadata::kind()),
    };
    let functions = functions::all(&calls);
    let result = compile_with_state(text, &functions, &state, config)
        .map_err(|list| convert::from_compiler(text, list))?;
    let unknown = unknown_values(text, &result.program);
    if !unknown.is_empty() {
        return Err(unknown);
    }
    Ok((result, calls, timezone))
}

/// Returns the errors about values of the batch that no source sets.
fn unknown_values(text: &str, program: &Compiled) -> Vec<Diagnostic> {
    let info = program.info();
    let mut paths: Vec<_> = info.target_queries.iter().collect();
    paths.extend(&info.target_assignments);
    paths.retain(|path| path.prefix == PathPrefix::Metadata && !path.path.is_root());
    paths.sort();
    paths.dedup();
    let is_known = |path: &&_| {
        plan::top(path).is_some_and(|name| metadata::names().any(|known| known == name.as_str()))
    };
    paths.retain(|path| !is_known(path));
    let known: Vec<String> = metadata::names().map(|name| format!("%{name}")).collect();
    paths
        .into_iter()
        .map(|path| {
            let written = path.to_string();
            let start = text.find(&written).unwrap_or(0);
            let end = start + written.len().min(text.len() - start);
            Diagnostic::error(
                text,
                start..end,
                &format!("a batch has no value `{written}`"),
                &format!(
                    "the values are {}; a field of the record begins with a dot",
                    known.join(", ")
                ),
            )
        })
        .collect()
}

/// Returns an error if the text is too long or nests too deep. This is checked before compiling, because the compiler
/// recurses.
fn too_large(text: &str) -> Option<Diagnostic> {
    if text.len() > LENGTH_MAX {
        return Some(Diagnostic::error(
            text,
            0..1,
            &format!(
                "a program may have {LENGTH_MAX} bytes, and this one has {}",
                text.len()
            ),
            "divide it into several processors",
        ));
    }
    // Brackets in texts and comments are counted as well; they rarely nest.
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Some(Diagnostic::error(
                text,
                at..at + 1,
                &format!("brackets nest deeper than {NESTING_MAX} levels"),
                "put a part of it into a variable",
            ));
        }
    }
    None
}

/// The range of the text without surrounding white space.
fn trimmed(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    start..start + text.trim().len()
}
