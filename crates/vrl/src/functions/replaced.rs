//! Functions whose implementation is replaced, while the compile-time checks and types of the originals are kept.

use vrl::{
    compiler::{
        Context, Expression, Resolved,
        function::ArgumentList,
        state::{TypeInfo, TypeState},
    },
    value::Value,
};

use super::{
    bounded,
    repeatable::{now, random_bool, random_bytes, random_float, random_int, uuid_v4, uuid_v7},
    syslog,
};

/// The largest number of arguments of a replaced function.
const ARGUMENTS_MAX: usize = 4;

/// The new implementation of a function.
#[derive(Debug)]
pub(super) struct Replacement {
    name: &'static str,
    arguments: &'static [&'static str],
    work: Work,
}

/// An implementation. It gets the arguments in the order of [`Replacement::arguments`], and `None` for those that are not given.
type Work = fn(&[Option<Value>], &mut Context<'_>) -> Resolved;

const ALL: &[Replacement] = &[
    Replacement {
        name: "now",
        arguments: &[],
        work: now,
    },
    Replacement {
        name: "uuid_v4",
        arguments: &[],
        work: uuid_v4,
    },
    Replacement {
        name: "uuid_v7",
        arguments: &["timestamp"],
        work: uuid_v7,
    },
    Replacement {
        name: "random_bool",
        arguments: &[],
        work: random_bool,
    },
    Replacement {
        name: "random_int",
        arguments: &["min", "max"],
        work: random_int,
    },
    Replacement {
        name: "random_float",
        arguments: &["min", "max"],
        work: random_float,
    },
    Replacement {
        name: "random_bytes",
        arguments: &["length"],
        work: random_bytes,
    },
    Replacement {
        name: "parse_syslog",
        arguments: &["value"],
        work: syslog::parse,
    },
    Replacement {
        name: "parse_linux_authorization",
        arguments: &["value"],
        work: syslog::parse,
    },
    Replacement {
        name: "decode_gzip",
        arguments: &["value"],
        work: bounded::decode_gzip,
    },
    Replacement {
        name: "decode_zlib",
        arguments: &["value"],
        work: bounded::decode_zlib,
    },
    Replacement {
        name: "decode_zstd",
        arguments: &["value"],
        work: bounded::decode_zstd,
    },
    Replacement {
        name: "decode_snappy",
        arguments: &["value"],
        work: bounded::decode_snappy,
    },
    Replacement {
        name: "set",
        arguments: &["value", "path", "data"],
        work: bounded::set,
    },
    Replacement {
        name: "unflatten",
        arguments: &["value", "separator", "recursive"],
        work: bounded::unflatten,
    },
    Replacement {
        name: "replace",
        arguments: &["value", "pattern", "with", "count"],
        work: bounded::replace,
    },
    Replacement {
        name: "sieve",
        arguments: &[
            "value",
            "permitted_characters",
            "replace_single",
            "replace_repeated",
        ],
        work: bounded::sieve,
    },
    Replacement {
        name: "split",
        arguments: &["value", "pattern", "limit"],
        work: bounded::split,
    },
    Replacement {
        name: "zip",
        arguments: &["array_0", "array_1"],
        work: bounded::zip,
    },
    Replacement {
        name: "flatten",
        arguments: &["value", "separator", "except"],
        work: bounded::flatten,
    },
    Replacement {
        name: "parse_regex_all",
        arguments: &["value", "pattern", "numeric_groups"],
        work: bounded::parse_regex_all,
    },
    Replacement {
        name: "join",
        arguments: &["value", "separator"],
        work: bounded::join,
    },
];

/// Returns the replacement of a function, or `None` if the original is used.
pub(super) fn of(name: &str) -> Option<&'static Replacement> {
    ALL.iter().find(|one| one.name == name)
}

impl Replacement {
    /// Whether the function generates random values.
    pub(super) fn draws(&self) -> bool {
        self.name.starts_with("random_") || self.name.starts_with("uuid_")
    }

    /// Creates a call of the new implementation. `inner` is the call of the original, which still determines the types.
    pub(super) fn expression(
        &'static self,
        inner: Box<dyn Expression>,
        arguments: &ArgumentList,
    ) -> Box<dyn Expression> {
        let names = self.arguments.iter();
        Box::new(Repeatable {
            inner,
            arguments: names.map(|name| arguments.optional(name)).collect(),
            work: self.work,
        })
    }
}

/// A call of a replaced function.
#[derive(Clone, Debug)]
struct Repeatable {
    inner: Box<dyn Expression>,
    arguments: Vec<Option<Box<dyn Expression>>>,
    work: Work,
}

impl Expression for Repeatable {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let mut values = [const { None }; ARGUMENTS_MAX];
        for (place, argument) in values.iter_mut().zip(&self.arguments) {
            *place = match argument {
                Some(argument) => Some(argument.resolve(context)?),
                None => None,
            };
        }
        let values = values.get(..self.arguments.len()).unwrap_or_default();
        (self.work)(values, context)
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        self.inner.type_info(state)
    }
}
