//! Compiles programs and conditions, with checks that the language leaves to the application.
//!
//! A program is compiled as it is written, to find errors and warnings; and again to run it, with bounded products, arguments and
//! closures ([`bounds`]) and with `null` appended. Without the `null`, the last assignment would copy the assigned value, because that value
//! would be the result of the program. No code uses the result.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use vrl::{
    compiler::{
        CompilationResult, CompileConfig, Compiler, Function, Program as Compiled, TimeZone,
        TypeState, compile_with_state,
        state::{ExternalEnv, LocalEnv},
    },
    diagnostic::{DiagnosticList, Span},
    parser::{ast, parse},
    path::PathPrefix,
    value::{Kind, kind::Collection},
};

use crate::{
    Diagnostic, Options,
    bounds::{self, Positions},
    checks, convert,
    functions::{self, Calls},
    limits, metadata,
    plan::{self, Plan},
};

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
        let compilation = Compilation::new(text, options, false)?;
        let compiled = compilation.running;
        let program = Self {
            plan: Plan::new(
                compiled.info(),
                compilation.calls.unnests.load(Ordering::Relaxed),
            ),
            compiled,
            timezone: compilation.timezone,
            draws: compilation.calls.draws.load(Ordering::Relaxed),
        };
        Ok((
            program,
            convert::from_compiler(text, compilation.result.warnings),
        ))
    }

    /// The top-level fields that are decoded to values; `None` if the program needs the record as a whole.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<&str>> {
        let fields = || {
            self.plan
                .fields
                .names()
                .iter()
                .map(|name| name.as_str())
                .collect()
        };
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
        let compilation = Compilation::new(text, options, true)?;
        let kind = compilation
            .result
            .program
            .final_type_info()
            .result
            .kind()
            .clone();
        if !kind.is_boolean() {
            return Err(vec![Diagnostic::error(
                text,
                trimmed(text),
                &format!("a condition must be true or false, and this is {kind}"),
                "compare it with something: `.level == \"error\"`, `exists(.level)`",
            )]);
        }
        let condition = Self {
            plan: Plan::new(
                compilation.running.info(),
                compilation.calls.unnests.load(Ordering::Relaxed),
            ),
            compiled: compilation.running,
            timezone: compilation.timezone,
        };
        Ok((
            condition,
            convert::from_compiler(text, compilation.result.warnings),
        ))
    }
}

/// A text that was compiled without errors.
struct Compilation {
    /// The text as it is written, with its warnings.
    result: CompilationResult,
    /// The program that runs.
    running: Compiled,
    /// The properties of its function calls.
    calls: Arc<Calls>,
    timezone: TimeZone,
}

impl Compilation {
    /// Compiles `text`, which is a condition or a program.
    fn new(text: &str, options: &Options, is_condition: bool) -> Result<Self, Vec<Diagnostic>> {
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
        if let Some(problem) = limits::exceeded(text) {
            return Err(vec![problem]);
        }
        let calls = Arc::new(Calls::default());
        let config = || {
            let mut config = CompileConfig::default();
            if is_condition {
                config.set_read_only();
            }
            metadata::protect(&mut config);
            config
        };
        let state = TypeState {
            local: LocalEnv::default(),
            external: ExternalEnv::new_with_kind(Kind::object(Collection::any()), metadata::kind()),
        };
        let mut functions = functions::all(&calls);
        let result = compile_with_state(text, &functions, &state, config())
            .map_err(|list| convert::from_compiler(text, list))?;
        let unknown = unknown_values(text, &result.program);
        if !unknown.is_empty() {
            return Err(unknown);
        }
        functions.extend(checks::functions());
        let compile = |ast| Compiler::compile(&functions, ast, &state, config());
        let running = running(text, is_condition, &functions, compile)?;
        Ok(Self {
            running: running.unwrap_or_else(|| result.program.clone()),
            result,
            calls,
            timezone,
        })
    }
}

/// Compiles the program that runs. Returns `None` if it is the program as it is written.
fn running(
    text: &str,
    is_condition: bool,
    functions: &[Box<dyn Function>],
    compile: impl Fn(ast::Program) -> Result<CompilationResult, DiagnosticList>,
) -> Result<Option<Compiled>, Vec<Diagnostic>> {
    let parsed = parse(text).map_err(|error| {
        convert::from_compiler(text, DiagnosticList::from(vec![Box::new(error) as Box<_>]))
    })?;
    let mut failing = Positions::new();
    loop {
        let (ast, is_bounded) = bounds::bounded(parsed.clone(), functions, &failing);
        if is_condition && !is_bounded {
            return Ok(None);
        }
        let mut silent = ast.clone();
        if !is_condition {
            silent.0.push(null(text));
        }
        let errors = match compile(silent) {
            Ok(compiled) => return Ok(Some(compiled.program)),
            Err(errors) => errors,
        };
        let found = bounds::failing(&errors);
        if !found.is_subset(&failing) {
            failing.extend(found);
            continue;
        }
        // A program whose last expression never returns cannot have `null` after it.
        if !is_bounded {
            return Ok(None);
        }
        return match compile(ast) {
            Ok(compiled) => Ok(Some(compiled.program)),
            Err(errors) => Err(refused(text, errors)),
        };
    }
}

/// Explains why a bounded program does not compile, although the program as it is written does.
fn refused(text: &str, errors: DiagnosticList) -> Vec<Diagnostic> {
    let errors = convert::from_compiler(text, errors);
    let span = errors.first().map_or(0..0, |error| error.span.clone());
    vec![Diagnostic::error(
        text,
        span,
        "a factor may be a text, whose repetition could take all memory",
        "only a text literal beside `*` can be repeated; convert other factors, such as `int!(.count)`",
    )]
}

/// Returns the expression `null` after the end of the text.
fn null(text: &str) -> ast::Node<ast::RootExpr> {
    let span = Span::new(text.len(), text.len());
    let literal = ast::Node::new(span, ast::Literal::Null);
    let expr = ast::Node::new(span, ast::Expr::Literal(literal));
    ast::Node::new(span, ast::RootExpr::Expr(expr))
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

/// The range of the text without surrounding white space.
fn trimmed(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    start..start + text.trim().len()
}
