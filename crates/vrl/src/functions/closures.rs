//! Replacements for functions that keep what their closure returns for each element: the originals put no limit on its sum, and those
//! that are recursive also enter what the closure returns, so a closure that wraps each value would make them nest forever.

use vrl::{
    compiler::{
        Context, Expression, ExpressionError, Resolved,
        function::{ArgumentList, Closure, closure::Runner},
        state::{TypeInfo, TypeState},
    },
    prelude::VrlValueConvert,
    value::{ObjectMap, Value},
};

use super::bounded::{Replaced, too_deep};
use crate::weight::{self, READ_DEPTH_MAX};

/// A function with a closure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loop {
    MapKeys,
    MapValues,
    ReplaceWith,
}

impl Loop {
    /// Returns the function with this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "map_keys" => Some(Self::MapKeys),
            "map_values" => Some(Self::MapValues),
            "replace_with" => Some(Self::ReplaceWith),
            _ => None,
        }
    }

    /// Creates a call. `inner` is the call of the original, which still determines the types.
    pub(super) fn expression(
        self,
        inner: Box<dyn Expression>,
        arguments: &ArgumentList,
        closure: Closure,
    ) -> Box<dyn Expression> {
        let names = match self {
            Self::MapKeys | Self::MapValues => ["value", "recursive", ""],
            Self::ReplaceWith => ["value", "count", "pattern"],
        };
        Box::new(Looped {
            inner,
            function: self,
            arguments: names.map(|name| arguments.optional(name)),
            closure,
        })
    }
}

/// A call of a [`Loop`].
#[derive(Clone, Debug)]
struct Looped {
    inner: Box<dyn Expression>,
    function: Loop,
    arguments: [Option<Box<dyn Expression>>; 3],
    closure: Closure,
}

impl Expression for Looped {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let mut resolved = |argument: &Option<Box<dyn Expression>>| match argument {
            Some(argument) => argument.resolve(context).map(Some),
            None => Ok(None),
        };
        let [value, option, pattern] = &self.arguments;
        let (value, option) = (resolved(value)?, resolved(option)?);
        let pattern = resolved(pattern)?;
        let mut value = value.unwrap_or(Value::Null);
        let Closure {
            variables, block, ..
        } = &self.closure;
        let mut calls = Calls {
            runner: Runner::new(variables, |context| block.resolve(context)),
            is_recursive: option == Some(Value::Boolean(true)),
            grown: 0,
        };
        match self.function {
            Loop::MapKeys => calls.keys(value, context, READ_DEPTH_MAX),
            Loop::MapValues => {
                calls.values(&mut value, context, READ_DEPTH_MAX)?;
                Ok(value)
            }
            Loop::ReplaceWith => {
                let count = option.map_or(Ok(-1), VrlValueConvert::try_integer)?;
                calls.replace(&value, &pattern.unwrap_or(Value::Null), count, context)
            }
        }
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        self.inner.type_info(state)
    }
}

/// The calls of a closure.
struct Calls<'a, T> {
    runner: Runner<'a, T>,
    is_recursive: bool,
    /// The bytes by which the results of the closure exceed its arguments.
    grown: usize,
}

impl<T: Fn(&mut Context<'_>) -> Resolved> Calls<'_, T> {
    /// Replaces the values in a collection, which may nest `depth` levels deep.
    fn values(
        &mut self,
        collection: &mut Value,
        context: &mut Context<'_>,
        depth: usize,
    ) -> Result<(), ExpressionError> {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        match collection {
            Value::Object(map) => map
                .values_mut()
                .try_for_each(|value| self.value(value, context, depth)),
            Value::Array(items) => items
                .iter_mut()
                .try_for_each(|value| self.value(value, context, depth)),
            _ => Ok(()),
        }
    }

    fn value(
        &mut self,
        value: &mut Value,
        context: &mut Context<'_>,
        depth: usize,
    ) -> Result<(), ExpressionError> {
        let is_entered = self.is_recursive && (value.is_object() || value.is_array());
        let before = weight::of(value)?;
        self.runner.map_value(context, value)?;
        self.grow(before, weight::of(value)?)?;
        match is_entered {
            true => self.values(value, context, depth),
            false => Ok(()),
        }
    }

    /// Replaces the keys in a value, which may nest `depth` levels deep.
    fn keys(&mut self, value: Value, context: &mut Context<'_>, depth: usize) -> Resolved {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        Ok(match value {
            Value::Object(map) => {
                let mut renamed = ObjectMap::new();
                for (mut key, mut value) in map {
                    let before = key.len();
                    self.runner.map_key(context, &mut key)?;
                    self.grow(before, key.len())?;
                    if self.is_recursive {
                        value = self.keys(value, context, depth)?;
                    }
                    renamed.insert(key, value);
                }
                Value::Object(renamed)
            }
            Value::Array(items) => {
                let items = items.into_iter();
                let items = items.map(|item| self.keys(item, context, depth));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            other => other,
        })
    }

    /// Replaces the first `count` matches of a pattern, or all if `count` is negative.
    fn replace(
        &self,
        text: &Value,
        pattern: &Value,
        count: i64,
        context: &mut Context<'_>,
    ) -> Resolved {
        const WHOLE: &str = "string";
        const GROUPS: &str = "captures";
        let text = text.try_bytes_utf8_lossy()?;
        let Value::Regex(pattern) = pattern else {
            return Err("the pattern must be a regex".into());
        };
        let mut names = pattern.capture_names().flatten();
        if names.any(|name| name == WHOLE || name == GROUPS) {
            return Err(
                format!("a capture group cannot be named \"{WHOLE}\" or \"{GROUPS}\"").into(),
            );
        }
        let most = usize::try_from(count).unwrap_or(usize::MAX);
        let mut replaced = Replaced::new(&text);
        for captures in pattern.captures_iter(&text).take(most) {
            let whole = captures.get_match();
            let mut fields = ObjectMap::from([(WHOLE.into(), whole.as_str().into())]);
            let mut groups = Vec::new();
            for (group, name) in captures.iter().zip(pattern.capture_names()).skip(1) {
                let value = group.map_or(Value::Null, |group| group.as_str().into());
                if let Some(name) = name {
                    fields.insert(name.into(), value.clone());
                }
                groups.push(value);
            }
            fields.insert(GROUPS.into(), groups.into());
            let mut with = Value::Object(fields);
            self.runner.map_value(context, &mut with)?;
            let with = with.try_bytes_utf8_lossy()?;
            replaced.put(whole.range(), |out| out.push_str(&with))?;
        }
        replaced.finish()
    }

    /// Fails if the results of the closure are too large.
    fn grow(&mut self, before: usize, after: usize) -> Result<(), ExpressionError> {
        self.grown += after.saturating_sub(before);
        weight::within(self.grown)?;
        Ok(())
    }
}
