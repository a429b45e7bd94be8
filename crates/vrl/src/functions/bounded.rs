//! Replacements for functions whose originals use unlimited stack or memory, so that one record could end the process. The arguments of
//! others are checked ([`crate::bounds`]).

use std::{borrow::Cow, collections::HashSet, io::Read, ops::Range};

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use vrl::{
    compiler::{
        Context, Expression, ExpressionError, Resolved,
        expression::{Query, Target},
        state::{TypeInfo, TypeState},
    },
    path::{OwnedSegment, OwnedTargetPath, OwnedValuePath},
    prelude::VrlValueConvert,
    value::{KeyString, ObjectMap, Value},
};

use crate::{
    DEPTH_MAX,
    weight::{self, ELEMENT, memory_max},
};

/// The limit in bytes of results that can be much larger than the record: as large as the largest record.
pub(crate) const RESULT_MAX: usize = 64 << 20;
/// The largest sum of the indexes in a path of `set`, which creates the elements of arrays up to them.
pub(crate) const INDEX_MAX: u64 = 65_535;
/// The smallest index. Negative ones count from the end; each element that is missing moves all others.
pub(crate) const INDEX_MIN: i64 = -1024;

fn text(arguments: &[Option<Value>]) -> Result<&Bytes, ExpressionError> {
    let value = arguments.first().and_then(Option::as_ref);
    let bytes = value.and_then(Value::as_bytes);
    bytes.ok_or_else(|| "the value must be a string".into())
}

/// Reads to the end. Fails if there are more than [`RESULT_MAX`] bytes.
fn decode(reader: impl Read, format: &str) -> Resolved {
    let mut out = Vec::new();
    match reader.take(RESULT_MAX as u64 + 1).read_to_end(&mut out) {
        Ok(_) if out.len() > RESULT_MAX => Err(too_long()),
        Ok(_) => Ok(Value::Bytes(out.into())),
        Err(_) => Err(format!("unable to decode value with {format} decoder").into()),
    }
}

fn too_long() -> ExpressionError {
    format!("the decoded value has more than {RESULT_MAX} bytes").into()
}

pub(super) fn decode_gzip(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    decode(MultiGzDecoder::new(&text(arguments)?[..]), "Gzip")
}

pub(super) fn decode_zlib(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    decode(ZlibDecoder::new(&text(arguments)?[..]), "Zlib")
}

pub(super) fn decode_zstd(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    match zstd::stream::read::Decoder::new(&text(arguments)?[..]) {
        Ok(decoder) => decode(decoder, "Zstd"),
        Err(_) => Err("unable to decode value with Zstd decoder".into()),
    }
}

pub(super) fn decode_snappy(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let text = text(arguments)?;
    match snap::raw::decompress_len(text) {
        Ok(length) if length > RESULT_MAX => return Err(too_long()),
        _ => {}
    }
    let decoded = snap::raw::Decoder::new().decompress_vec(text);
    decoded
        .map(|bytes| Value::Bytes(bytes.into()))
        .map_err(|_| "unable to decode value with Snappy decoder".into())
}

/// `replace(value, pattern, with, count)`, with a limit on the result.
pub(super) fn replace(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), Some(pattern), Some(with), count] = arguments else {
        return Err("an argument of `replace` is missing".into());
    };
    let (text, with) = (value.try_bytes_utf8_lossy()?, with.try_bytes_utf8_lossy()?);
    let count = count.clone().map_or(Ok(-1), VrlValueConvert::try_integer)?;
    // A negative count means all matches.
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let mut replaced = Replaced::new(&text);
    match pattern {
        Value::Regex(regex) if with.contains('$') => {
            // Each reference such as `$1` expands to at most the whole match.
            let references = with.bytes().filter(|byte| *byte == b'$').count();
            for captures in regex.captures_iter(&text).take(most) {
                let whole = captures.get_match();
                if references.saturating_mul(whole.len()) > RESULT_MAX {
                    return Err(too_large());
                }
                replaced.put(whole.range(), |out| captures.expand(&with, out))?;
            }
        }
        Value::Regex(regex) => {
            for found in regex.find_iter(&text).take(most) {
                replaced.put(found.range(), |out| out.push_str(&with))?;
            }
        }
        pattern => {
            let pattern = pattern.try_bytes_utf8_lossy()?;
            for (start, found) in text.match_indices(&*pattern).take(most) {
                replaced.put(start..start + found.len(), |out| out.push_str(&with))?;
            }
        }
    }
    replaced.finish()
}

/// The bytes that the allocation of a text takes beside the text.
const ALLOCATED: usize = 48;

/// `split(value, pattern, limit)`, with a limit on the memory of the parts.
pub(super) fn split(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), Some(pattern), limit] = arguments else {
        return Err("an argument of `split` is missing".into());
    };
    let text = value.try_bytes_utf8_lossy()?;
    let limit = limit
        .clone()
        .map_or(Ok(i64::MAX), VrlValueConvert::try_integer)?;
    // As in the original, a negative limit is 0.
    let limit = usize::try_from(limit.max(0)).unwrap_or(usize::MAX);
    match pattern {
        Value::Regex(regex) => collect(regex.splitn(&text, limit)),
        pattern => collect(text.splitn(limit, &*pattern.try_bytes_utf8_lossy()?)),
    }
}

/// Collects the parts of a text. Fails if they take too much memory.
fn collect<'a>(texts: impl Iterator<Item = &'a str>) -> Resolved {
    let (mut parts, mut bytes) = (Vec::new(), 0_usize);
    for text in texts {
        let allocated = if text.is_empty() { 0 } else { ALLOCATED };
        bytes = bytes.saturating_add(ELEMENT + allocated + text.len());
        weight::within(bytes)?;
        parts.push(Value::from(text));
    }
    Ok(Value::Array(parts))
}

/// `sieve(value, permitted_characters, replace_single, replace_repeated)`, with a limit on the result.
pub(super) fn sieve(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), Some(Value::Regex(permitted)), single, repeated] = arguments else {
        return Err("the permitted characters must be a regex".into());
    };
    let none = Value::from("");
    let single = single.as_ref().unwrap_or(&none).try_bytes_utf8_lossy()?;
    let repeated = repeated.as_ref().unwrap_or(&none).try_bytes_utf8_lossy()?;
    let text = value.try_bytes_utf8_lossy()?;
    let mut kept = Replaced::new(&text);
    let mut end = 0;
    for found in permitted.find_iter(&text) {
        let with = match found.start() - end {
            0 => "",
            1 => &single,
            _ => &repeated,
        };
        kept.put(end..found.start(), |out| out.push_str(with))?;
        end = found.end();
    }
    // As in the original, the text after the last match is not replaced by anything.
    kept.put(end..text.len(), |_| ())?;
    kept.finish()
}

/// `parse_regex_all(value, pattern, numeric_groups)`, with a limit on the memory of the result. Each match becomes an object.
pub(super) fn parse_regex_all(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), Some(Value::Regex(pattern)), numbers] = arguments else {
        return Err("failed to resolve regex".into());
    };
    let text = value.try_bytes_utf8_lossy()?;
    let has_numbers = *numbers == Some(Value::Boolean(true));
    let mut bytes = 0;
    let mut all = Vec::new();
    for captures in pattern.captures_iter(&text) {
        let mut fields = ObjectMap::new();
        // As in the original, a group without a match has no number.
        for (number, group) in captures
            .iter()
            .flatten()
            .enumerate()
            .filter(|_| has_numbers)
        {
            fields.insert(number.to_string().into(), group.as_str().into());
            bytes += group.len();
        }
        for (group, name) in captures.iter().zip(pattern.capture_names()) {
            if let Some(name) = name {
                fields.insert(name.into(), group.map(|group| group.as_str()).into());
                bytes += group.map_or(0, |group| group.len());
            }
        }
        bytes += weight::map(fields.len()) + weight::ELEMENT;
        weight::within(bytes)?;
        all.push(Value::Object(fields));
    }
    Ok(Value::Array(all))
}

/// A text in which parts are being replaced.
pub(super) struct Replaced<'a> {
    text: &'a str,
    /// The end of the last replaced part in `text`.
    at: usize,
    out: String,
}

impl<'a> Replaced<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            out: String::with_capacity(text.len()),
        }
    }

    /// Replaces `part` by what `write` appends. The parts must be in ascending order.
    pub(super) fn put(
        &mut self,
        part: Range<usize>,
        write: impl FnOnce(&mut String),
    ) -> Result<(), ExpressionError> {
        self.out
            .push_str(self.text.get(self.at..part.start).unwrap_or_default());
        write(&mut self.out);
        self.at = part.end;
        match self.out.len() > RESULT_MAX {
            true => Err(too_large()),
            false => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> Resolved {
        let rest = self.text.get(self.at..).unwrap_or_default();
        // A text without matches is returned unchanged, even if it exceeds the limit.
        if self.at > 0 && self.out.len() + rest.len() > RESULT_MAX {
            return Err(too_large());
        }
        self.out.push_str(rest);
        Ok(self.out.into())
    }
}

/// `flatten(value, separator, except)`, with a limit on the bytes of the keys, each of which contains all keys above it. The original
/// recurses once for each empty element, so a record of 60 KB could overflow the stack.
pub(super) fn flatten(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), separator, except] = arguments else {
        return Err("an argument of `flatten` is missing".into());
    };
    let separator = match separator {
        Some(separator) => separator.try_bytes_utf8_lossy()?,
        None => ".".into(),
    };
    let except: HashSet<Cow<'_, str>> = match except {
        Some(Value::Array(names)) => names.iter().map(item).collect::<Result<_, _>>()?,
        _ => HashSet::new(),
    };
    // A record has one level more than the values in it.
    let depth = DEPTH_MAX + 1;
    match value {
        Value::Object(map) => {
            let mut flat = Flat {
                separator,
                except,
                bytes: 0,
                out: ObjectMap::new(),
            };
            flat.add(map, None, depth)?;
            Ok(Value::Object(flat.out))
        }
        Value::Array(items) => {
            let mut flat = Vec::new();
            flatten_array(items, depth, &mut flat)?;
            Ok(Value::Array(flat))
        }
        other => Ok(Value::Array(other.clone().try_array()?)),
    }
}

fn flatten_array(
    items: &[Value],
    depth: usize,
    out: &mut Vec<Value>,
) -> Result<(), ExpressionError> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    for item in items {
        match item {
            Value::Array(inner) => flatten_array(inner, depth, out)?,
            item => out.push(item.clone()),
        }
    }
    Ok(())
}

/// An object that is being flattened.
struct Flat<'a> {
    separator: Cow<'a, str>,
    /// The names of objects that stay.
    except: HashSet<Cow<'a, str>>,
    /// The bytes of all keys so far, including those of empty objects.
    bytes: usize,
    out: ObjectMap,
}

impl Flat<'_> {
    /// Adds the fields of `map`, whose own key is `above`. It may nest `depth` levels deep.
    fn add(
        &mut self,
        map: &ObjectMap,
        above: Option<&str>,
        depth: usize,
    ) -> Result<(), ExpressionError> {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        for (key, value) in map {
            let whole = match above {
                None => key.as_str().to_owned(),
                Some(above) => format!("{above}{}{key}", self.separator),
            };
            self.bytes += whole.len();
            if self.bytes > RESULT_MAX && above.is_some() {
                return Err(too_large());
            }
            match value {
                Value::Object(inner) if !self.except.contains(key.as_str()) => {
                    self.add(inner, Some(&whole), depth)?;
                }
                value => {
                    self.out.insert(KeyString::from(whole), value.clone());
                }
            }
        }
        Ok(())
    }
}

pub(super) fn too_deep() -> ExpressionError {
    format!("the value nests deeper than {DEPTH_MAX} levels").into()
}

/// `zip(array_0, array_1)`. The original never ends if `array_0` is empty and `array_1` is not given.
pub(super) fn zip(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let lists: Option<Vec<&[Value]>> = match arguments {
        [Some(Value::Array(lists)), None] => lists.iter().map(Value::as_array).collect(),
        [Some(one), Some(other)] => [one, other].into_iter().map(Value::as_array).collect(),
        _ => None,
    };
    let lists = lists.ok_or_else(|| ExpressionError::from("the arguments must be arrays"))?;
    let length = lists.iter().map(|list| list.len()).min().unwrap_or(0);
    let row = |at: usize| {
        lists
            .iter()
            .filter_map(|list| list.get(at).cloned())
            .collect()
    };
    Ok(Value::Array(
        (0..length).map(|at| Value::Array(row(at))).collect(),
    ))
}

/// `join(value, separator)`, with a limit on the result.
pub(super) fn join(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), separator] = arguments else {
        return Err("an argument of `join` is missing".into());
    };
    let items = match value {
        Value::Array(items) => items,
        other => return Ok(Value::Array(other.clone().try_array()?)),
    };
    let texts: Vec<Cow<'_, str>> = items.iter().map(item).collect::<Result<_, _>>()?;
    let separator = match separator {
        Some(separator) => separator.try_bytes_utf8_lossy()?,
        None => "".into(),
    };
    // Texts that a closure repeats share their bytes until they are joined.
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    match separator.len().saturating_mul(texts.len()) + bytes > RESULT_MAX {
        true => Err(too_large()),
        false => Ok(texts.join(&*separator).into()),
    }
}

fn item(value: &Value) -> Result<Cow<'_, str>, ExpressionError> {
    let text = value.as_bytes().map(|bytes| String::from_utf8_lossy(bytes));
    text.ok_or_else(|| "all array items must be strings".into())
}

/// A call of `unnest`, with a limit on the result. Each of its records has a copy of all other fields, so the result could have millions of
/// times the fields of the record.
#[derive(Clone, Debug)]
pub(super) struct Unnest {
    /// The call of the original, which determines the types.
    inner: Box<dyn Expression>,
    query: Query,
}

impl Unnest {
    pub(super) fn new(inner: Box<dyn Expression>, query: Query) -> Self {
        Self { inner, query }
    }
}

impl Expression for Unnest {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let mut rest = match self.query.target() {
            Target::External(prefix) => {
                let root = OwnedTargetPath::root(*prefix);
                let found = context.target().target_get(&root);
                found.ok().flatten().cloned().unwrap_or(Value::Null)
            }
            Target::Internal(variable) => {
                let found = context.state().variable(variable.ident());
                found.cloned().unwrap_or(Value::Null)
            }
            Target::Container(inner) => inner.resolve(context)?,
            Target::FunctionCall(inner) => inner.resolve(context)?,
        };
        let path = self.query.path();
        let items = rest.remove(path, true).unwrap_or(Value::Null);
        let items = items.try_array()?;
        // Each record has at least the field with its item.
        let copy = weight::of(&rest)? + weight::map(1);
        weight::within(copy.saturating_mul(items.len()))
            .map_err(|_| format!("the records would take more than {} bytes", memory_max()))?;
        let with = |item| {
            let mut record = rest.clone();
            record.insert(path, item);
            record
        };
        Ok(Value::Array(items.into_iter().map(with).collect()))
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        self.inner.type_info(state)
    }
}

fn too_large() -> ExpressionError {
    format!("the result has more than {RESULT_MAX} bytes").into()
}

/// `set(value, path, data)`, with limits on indexes and on the length of the path.
pub(super) fn set(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(value), Some(Value::Array(path)), Some(data)] = arguments else {
        return Err("the path must be an array".into());
    };
    if path.len() > DEPTH_MAX {
        return Err(format!("a path may have {DEPTH_MAX} segments").into());
    }
    let indexes = path.iter().filter_map(Value::as_integer);
    let elements = indexes.fold(0_u64, |sum, index| sum.saturating_add(index.unsigned_abs()));
    if elements > INDEX_MAX {
        return Err(format!("the indexes of a path may be {INDEX_MAX} in total").into());
    }
    let segments: Result<Vec<OwnedSegment>, ExpressionError> = path.iter().map(segment).collect();
    let mut value = value.clone();
    value.insert(&OwnedValuePath::from(segments?), data.clone());
    Ok(value)
}

fn segment(value: &Value) -> Result<OwnedSegment, ExpressionError> {
    match value {
        Value::Integer(index) if *index < INDEX_MIN => {
            Err(format!("an index may be {INDEX_MIN} at least, and this is {index}").into())
        }
        Value::Integer(index) => Ok(OwnedSegment::Index(*index as isize)),
        other => match other.as_bytes() {
            Some(name) => Ok(OwnedSegment::field(&String::from_utf8_lossy(name))),
            None => Err(format!(
                "a path has strings and integers, and this is {}",
                other.kind_str()
            )
            .into()),
        },
    }
}

/// `unflatten(value, separator, recursive)`: `{"a.b": 1}` becomes `{"a": {"b": 1}}`. As in the original, the value of the key `a`
/// is dropped if there are also keys that begin with `a.`.
pub(super) fn unflatten(arguments: &[Option<Value>], _: &mut Context<'_>) -> Resolved {
    let [Some(Value::Object(map)), separator, recursive] = arguments else {
        return Err("the value must be an object".into());
    };
    let separator = match separator.as_ref().map(Value::as_bytes) {
        None => ".".to_owned(),
        Some(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(None) => return Err("the separator must be a string".into()),
    };
    if separator.is_empty() {
        return Err("the separator must not be empty".into());
    }
    let recursive = *recursive != Some(Value::Boolean(false));
    let entries = map.iter().map(|(key, value)| (key.as_str(), value));
    grouped(entries.collect(), &separator, recursive, DEPTH_MAX).map(Value::Object)
}

/// `depth` is the number of further levels that may nest.
fn grouped(
    entries: Vec<(&str, &Value)>,
    separator: &str,
    recursive: bool,
    depth: usize,
) -> Result<ObjectMap, ExpressionError> {
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| format!("keys nest deeper than {DEPTH_MAX} levels"))?;
    let mut groups: std::collections::BTreeMap<&str, Vec<(Option<&str>, &Value)>> =
        std::collections::BTreeMap::new();
    for (key, value) in entries {
        let (head, rest) = match key.split_once(separator) {
            Some((head, rest)) => (head, Some(rest)),
            None => (key, None),
        };
        groups.entry(head).or_default().push((rest, value));
    }
    let mut out = ObjectMap::new();
    for (head, group) in groups {
        let value = match (&group[..], recursive) {
            ([(None, Value::Object(map))], true) => {
                let entries = map.iter().map(|(key, value)| (key.as_str(), value));
                Value::Object(grouped(entries.collect(), separator, recursive, depth)?)
            }
            ([(None, value)], _) => (*value).clone(),
            _ => {
                let entries = group.into_iter();
                let entries = entries.filter_map(|(rest, value)| Some((rest?, value)));
                Value::Object(grouped(entries.collect(), separator, recursive, depth)?)
            }
        };
        out.insert(KeyString::from(head), value);
    }
    Ok(out)
}
