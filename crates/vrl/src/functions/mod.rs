//! The functions of the language: the pure ones of the crate, those that are made repeatable or bounded here, and those that are
//! refused.

mod bounded;
mod refused;
mod repeatable;
mod replaced;
mod syslog;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use vrl::{
    compiler::{
        Function,
        function::{ArgumentList, Compiled, Example, FunctionCompileContext, Parameter, closure},
        state::TypeState,
    },
    stdlib,
};

/// Facts about the calls in a program, for its plan.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Whether it calls `unnest`, which reads the root without naming it.
    pub unnests: AtomicBool,
    /// Whether it draws random values.
    pub draws: AtomicBool,
}

/// All functions that a program may name. `calls` receives the facts about the program that is compiled with them.
pub(crate) fn all(calls: &Arc<Calls>) -> Vec<Box<dyn Function>> {
    let mut all: Vec<Box<dyn Function>> = stdlib::all()
        .into_iter()
        .map(|original| treat(original, calls))
        .collect();
    let missing = refused::ABSENT.iter().filter(|absent| {
        stdlib::all()
            .iter()
            .all(|one| one.identifier() != absent.name)
    });
    all.extend(missing.map(|absent| Box::new(absent.clone()) as Box<dyn Function>));
    all
}

fn treat(original: Box<dyn Function>, calls: &Arc<Calls>) -> Box<dyn Function> {
    let name = original.identifier();
    let treatment = if name == "unnest" {
        Treatment::Unnest(Arc::clone(calls))
    } else if let Some(replacement) = replaced::of(name) {
        Treatment::Replace(replacement, Arc::clone(calls))
    } else if let Some(check) = bounded::check_of(name) {
        Treatment::Guard(check)
    } else if let Some(why) = refused::of(name) {
        Treatment::Refuse(why)
    } else {
        return original;
    };
    Box::new(Treated {
        original,
        treatment,
    })
}

/// How a function of the crate is changed.
#[derive(Debug)]
enum Treatment {
    /// Not changed; the call is noted.
    Unnest(Arc<Calls>),
    /// Its checks and types stay, and its work is replaced.
    Replace(&'static replaced::Replacement, Arc<Calls>),
    /// Its argument is checked before it runs.
    Guard(bounded::Check),
    /// It is refused, for this reason.
    Refuse(&'static str),
}

/// A function of the crate with its change.
#[derive(Debug)]
struct Treated {
    original: Box<dyn Function>,
    treatment: Treatment,
}

impl Function for Treated {
    fn identifier(&self) -> &'static str {
        self.original.identifier()
    }

    fn summary(&self) -> &'static str {
        self.original.summary()
    }

    fn usage(&self) -> &'static str {
        self.original.usage()
    }

    fn category(&self) -> &'static str {
        self.original.category()
    }

    fn internal_failure_reasons(&self) -> &'static [&'static str] {
        self.original.internal_failure_reasons()
    }

    fn return_kind(&self) -> u16 {
        self.original.return_kind()
    }

    fn return_rules(&self) -> &'static [&'static str] {
        self.original.return_rules()
    }

    fn notices(&self) -> &'static [&'static str] {
        self.original.notices()
    }

    fn pure(&self) -> bool {
        self.original.pure()
    }

    fn examples(&self) -> &'static [Example] {
        self.original.examples()
    }

    fn compile(
        &self,
        state: &TypeState,
        context: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        match &self.treatment {
            Treatment::Unnest(calls) => {
                calls.unnests.store(true, Ordering::Relaxed);
                self.original.compile(state, context, arguments)
            }
            Treatment::Replace(replacement, calls) => {
                calls.draws.fetch_or(replacement.draws(), Ordering::Relaxed);
                let inner = self.original.compile(state, context, arguments.clone())?;
                Ok(replacement.expression(inner, &arguments))
            }
            Treatment::Guard(check) => {
                let inner = self.original.compile(state, context, arguments.clone())?;
                bounded::guard(inner, &arguments, state, *check).ok_or_else(|| {
                    refused::error(self.identifier(), refused::GUARDED, context.span())
                })
            }
            Treatment::Refuse(why) => Err(refused::error(self.identifier(), why, context.span())),
        }
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.original.parameters()
    }

    fn closure(&self) -> Option<closure::Definition> {
        self.original.closure()
    }
}
