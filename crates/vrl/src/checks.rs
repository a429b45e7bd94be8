//! The functions that a rewritten program calls ([`crate::bounds`]): each returns its argument unchanged, or fails.

use vrl::{
    compiler::{
        Context, Expression, Function, Resolved, TypeDef, TypeInfo, TypeState,
        function::{ArgumentList, Compiled, Example, FunctionCompileContext, Parameter},
        value::kind,
    },
    value::{Kind, Value},
};

use crate::{functions::RESULT_MAX, target::READ, texts, weight};

/// The maximum number of bytes that the closures of a program may read for a record. Each read is a copy, so this bounds their time to
/// seconds. To collect 14,000 numbers with `push` takes as much. Small reads do not count, because they take no more time than the closure.
const READ_MAX: i64 = 4 << 30;
const READ_SMALL: usize = 1024;
/// The maximum length of a delimiter, which is repeated for each field.
const DELIMITER_MAX: usize = 256;

/// A function that returns its first argument unchanged, or fails. Its name is only shown in errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// Fails if the value is not a number.
    Factor,
    /// Fails if this number of texts, whose length is the second argument, would have more than [`RESULT_MAX`] bytes.
    Repetitions,
    /// Fails if the number of digits is not between 0 and [`RESULT_MAX`].
    Scale,
    /// Fails if the text has more than [`DELIMITER_MAX`] bytes.
    Delimiter,
    /// Fails if the keys of the value would have more than [`RESULT_MAX`] bytes after flattening. Each flattened key contains all keys
    /// above it.
    Keys,
    /// Fails if a value that a closure reads is too large ([`weight::of`]), or if all such values are.
    Read,
    /// Fails if an object with a key and a value for each element would take too much memory.
    Entries,
    /// Fails if an object with a type for each scalar would take too much memory.
    Tags,
    /// [`texts::cbor`]
    Cbor,
    /// [`texts::cef`]
    Cef,
    /// [`texts::duration`]
    Duration,
    /// [`texts::influxdb`]
    InfluxDb,
    /// [`texts::json`]
    Json,
    /// [`texts::key_value`]
    KeyValue,
    /// [`texts::bytes`]
    Parts,
    /// [`texts::ruby_hash`]
    RubyHash,
    /// [`texts::xml`]
    Xml,
    /// [`texts::yaml`]
    Yaml,
}

/// All checks. Programs of users cannot call them, because only rewritten programs are compiled with them.
pub(crate) fn functions() -> impl Iterator<Item = Box<dyn Function>> {
    let all = [
        Check::Factor,
        Check::Repetitions,
        Check::Scale,
        Check::Delimiter,
        Check::Keys,
        Check::Read,
        Check::Entries,
        Check::Tags,
        Check::Cbor,
        Check::Cef,
        Check::Duration,
        Check::InfluxDb,
        Check::Json,
        Check::KeyValue,
        Check::Parts,
        Check::RubyHash,
        Check::Xml,
        Check::Yaml,
    ];
    all.into_iter()
        .map(|one| Box::new(one) as Box<dyn Function>)
}

impl Check {
    /// Returns why the value is refused. `bytes` is the second argument.
    fn refuses(self, value: &Value, bytes: i64) -> Option<String> {
        let most = i64::try_from(RESULT_MAX).unwrap_or(i64::MAX);
        let text = |check: fn(&[u8]) -> Result<(), String>| check(value.as_bytes()?).err();
        match (self, value) {
            (Self::Factor, Value::Integer(_) | Value::Float(_)) => None,
            (Self::Factor, _) => {
                Some("a factor must be a number, or a text literal beside `*`".to_owned())
            }
            (Self::Repetitions, Value::Integer(times)) => (times.saturating_mul(bytes) > most)
                .then(|| format!("the result would have more than {RESULT_MAX} bytes")),
            (Self::Scale, Value::Integer(digits)) => (!(0..=most).contains(digits))
                .then(|| format!("the scale must be between 0 and {RESULT_MAX}")),
            (Self::Repetitions | Self::Scale, _) => None,
            (Self::Delimiter, value) => value
                .as_bytes()
                .is_some_and(|text| text.len() > DELIMITER_MAX)
                .then(|| format!("a delimiter may have {DELIMITER_MAX} bytes")),
            (Self::Keys, value) => (flat_keys(value, 0, 0) > RESULT_MAX)
                .then(|| format!("the flattened keys would have more than {RESULT_MAX} bytes")),
            (Self::Read, value) => weight::of(value).err(),
            (Self::Entries, Value::Object(map)) => objects(map.len(), 2),
            (Self::Entries, Value::Array(items)) => objects(items.len(), 2),
            (Self::Entries, _) => None,
            (Self::Tags, value) => objects(scalars(value), 1),
            (Self::Cbor, _) => text(texts::cbor),
            (Self::Cef, _) => text(texts::cef),
            (Self::Duration, _) => text(texts::duration),
            (Self::InfluxDb, _) => text(texts::influxdb),
            (Self::Json, _) => text(texts::json),
            (Self::KeyValue, _) => text(texts::key_value),
            (Self::Parts, _) => text(texts::bytes),
            (Self::RubyHash, _) => text(texts::ruby_hash),
            (Self::Xml, _) => text(texts::xml),
            (Self::Yaml, _) => text(texts::yaml),
        }
    }
}

impl Function for Check {
    fn identifier(&self) -> &'static str {
        match self {
            Self::Factor => "*",
            Self::Repetitions => "* with a text",
            Self::Scale => "a scale",
            Self::Delimiter => "a delimiter",
            Self::Keys => "nested keys",
            Self::Read => "a value in a closure",
            Self::Entries => "entries",
            Self::Tags => "types",
            Self::Cbor => "CBOR",
            Self::Cef => "a CEF text",
            Self::Duration => "a duration",
            Self::InfluxDb => "an InfluxDB text",
            Self::Json => "a JSON text",
            Self::KeyValue => "a key=value text",
            Self::Parts => "a text of many parts",
            Self::RubyHash => "a Ruby hash",
            Self::Xml => "an XML text",
            Self::Yaml => "a YAML text",
        }
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        "Type"
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        const VALUE: Parameter = Parameter::required("value", kind::ANY, "");
        const BYTES: Parameter = Parameter::optional("bytes", kind::INTEGER, "");
        &[VALUE, BYTES]
    }

    fn compile(
        &self,
        state: &TypeState,
        _: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let value = arguments.required("value");
        let bytes = arguments.optional("bytes");
        let bytes = bytes.and_then(|bytes| bytes.resolve_constant(state));
        let given = value.type_def(state);
        let numbers = Kind::integer().or_float();
        let result = match self {
            Self::Factor if numbers.is_superset(given.kind()).is_err() => {
                TypeDef::from(numbers).fallible()
            }
            _ => given,
        };
        Ok(Box::new(Checked {
            check: *self,
            value,
            bytes: bytes.and_then(|bytes| bytes.as_integer()).unwrap_or(0),
            result,
        }))
    }
}

/// A call of a [`Check`].
#[derive(Clone, Debug)]
struct Checked {
    check: Check,
    value: Box<dyn Expression>,
    bytes: i64,
    /// The type, which is kept because the compiler asks for it again at each level above.
    result: TypeDef,
}

impl Expression for Checked {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let value = self.value.resolve(context)?;
        let refused = match self.check {
            Check::Read => read(&value, context).err(),
            check => check.refuses(&value, self.bytes),
        };
        match refused {
            Some(why) => Err(why.into()),
            None => Ok(value),
        }
    }

    fn resolve_constant(&self, state: &TypeState) -> Option<Value> {
        let value = self.value.resolve_constant(state)?;
        self.check
            .refuses(&value, self.bytes)
            .is_none()
            .then_some(value)
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        TypeInfo::new(state.clone(), self.result.clone())
    }
}

/// Returns an error if this number of objects would take too much memory.
fn objects(count: usize, fields: usize) -> Option<String> {
    weight::within(count.saturating_mul(weight::map(fields))).err()
}

/// The number of scalars in a value.
fn scalars(value: &Value) -> usize {
    match value {
        Value::Object(map) => map.values().map(scalars).sum(),
        Value::Array(items) => items.iter().map(scalars).sum(),
        _ => 1,
    }
}

/// Checks a value that a closure reads, and counts its bytes.
fn read(value: &Value, context: &mut Context<'_>) -> Result<(), String> {
    let bytes = weight::of(value)?;
    if bytes < READ_SMALL {
        return Ok(());
    }
    let count = context.target_mut().target_get_mut(&READ).ok().flatten();
    let Some(Value::Integer(read)) = count else {
        return Ok(());
    };
    *read = read.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
    match *read > READ_MAX {
        true => Err(format!("closures read more than {READ_MAX} bytes")),
        false => Ok(()),
    }
}

/// Adds the bytes of the keys that `value` has after flattening to `sum`. `above` is the length of the key of `value`. May stop as soon as
/// the sum exceeds [`RESULT_MAX`].
fn flat_keys(value: &Value, above: usize, sum: usize) -> usize {
    // The decimal digits of an index, without the separator.
    const INDEX_BYTES: usize = 8;
    if sum > RESULT_MAX {
        return sum;
    }
    match value {
        Value::Object(map) => map.iter().fold(sum, |sum, (key, value)| {
            flat_keys(value, above + 1 + key.len(), sum)
        }),
        Value::Array(items) => items.iter().fold(sum, |sum, item| {
            flat_keys(item, above + 1 + INDEX_BYTES, sum)
        }),
        _ => sum + above,
    }
}
