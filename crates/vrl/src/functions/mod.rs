//! The functions of VRL. Some are used unchanged. Some are made repeatable (a record that is read again gets the same values) or
//! bounded (in stack and memory). The others are refused.

pub(crate) mod bounded;
mod closures;
mod refused;
mod repeatable;
mod replaced;
mod syslog;

pub(crate) use bounded::RESULT_MAX;

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

/// Properties of the function calls in a program, which are found while it is compiled.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Whether the program calls `unnest`, which reads the whole record although no path in the program names it.
    pub unnests: AtomicBool,
    /// Whether the program generates random values.
    pub draws: AtomicBool,
}

/// Returns all functions that the compiler knows, including those whose use is an error. When a program is compiled with these
/// functions, the properties of its calls are stored in `calls`.
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
    } else if let Some(function) = closures::Loop::of(name) {
        Treatment::Loop(function)
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

/// How a function of the crate `vrl` is changed.
#[derive(Debug)]
enum Treatment {
    /// Its result is limited, and `Calls::unnests` is set.
    Unnest(Arc<Calls>),
    /// Its implementation is replaced; its compile-time checks and types are kept.
    Replace(&'static replaced::Replacement, Arc<Calls>),
    /// It is replaced, and so are the calls of its closure; its compile-time checks and types are kept.
    Loop(closures::Loop),
    /// Its use is an error, with this reason.
    Refuse(&'static str),
}

/// A function of the crate `vrl` with its change.
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
                let query = arguments.required_query("path")?;
                let inner = self.original.compile(state, context, arguments)?;
                Ok(Box::new(bounded::Unnest::new(inner, query)))
            }
            Treatment::Replace(replacement, calls) => {
                calls.draws.fetch_or(replacement.draws(), Ordering::Relaxed);
                let inner = self.original.compile(state, context, arguments.clone())?;
                Ok(replacement.expression(inner, &arguments))
            }
            Treatment::Loop(function) => {
                let closure = arguments.required_closure()?;
                let inner = self.original.compile(state, context, arguments.clone())?;
                Ok(function.expression(inner, &arguments, closure))
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
