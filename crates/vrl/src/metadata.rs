//! The values of the batch as a program in VRL sees them: `%tag`, `%host`, `%time`, `%kubernetes.pod`, ... And `%metadata`, the
//! metadata beside the time of a record, which Fluent Bit sends.
//!
//! A program may set `%tag`, `%host` and `%time`. The compiler refuses every other assignment.

use std::collections::BTreeMap;

use chrono::DateTime;
use millstream_record::{Batch, Time, VALUE_NAMES};
use vrl::{
    compiler::CompileConfig,
    path::{OwnedTargetPath, parse_value_path},
    value::{
        Kind, ObjectMap, Value,
        kind::{Collection, Field},
    },
};

/// The values that a program may set.
const MUTABLE: [&str; 3] = ["tag", "host", "time"];

/// The name of a record's own metadata.
pub(crate) const OWN: &str = "metadata";

/// The top-level names of all values that a program may use.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let of_batch = VALUE_NAMES.iter().map(|name| {
        let (first, _) = name.split_once('.').unwrap_or((name, ""));
        first
    });
    MUTABLE.into_iter().chain([OWN]).chain(of_batch)
}

/// Returns the type of `%` for the compiler. The type allows every name. `unknown_values` reports names that no source sets.
pub(crate) fn kind() -> Kind {
    let missing = || Kind::bytes().or_undefined();
    let mut all: BTreeMap<Field, Kind> = BTreeMap::new();
    let mut nested: BTreeMap<&str, BTreeMap<Field, Kind>> = BTreeMap::new();
    for name in VALUE_NAMES {
        match name.split_once('.') {
            Some((parent, child)) => {
                let children = nested.entry(parent).or_default();
                children.insert(child.into(), missing());
            }
            None => {
                all.insert(name.into(), missing());
            }
        }
    }
    for (parent, children) in nested {
        let kind = Kind::object(Collection::from(children)).or_undefined();
        all.insert(parent.into(), kind);
    }
    let own = Kind::object(Collection::any()).or_undefined();
    all.insert(OWN.into(), own);
    all.insert("tag".into(), Kind::bytes());
    all.insert("time".into(), Kind::timestamp());
    Kind::object(Collection::from(all))
}

/// Makes the compiler refuse assignments to values that a program may only read.
pub(crate) fn protect(config: &mut CompileConfig) {
    for name in names().filter(|name| !MUTABLE.contains(name)) {
        if let Ok(path) = parse_value_path(name) {
            config.set_read_only_path(OwnedTargetPath::metadata(path), true);
        }
    }
}

/// The values of one batch (`base`), and the same values with the changes that a program made for one record (`current`).
#[derive(Debug)]
pub(crate) struct Metadata {
    base: Value,
    current: Value,
    is_changed: bool,
}

/// The values that a program has changed. `None` means unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes<'a> {
    pub tag: Option<&'a str>,
    /// `Some(None)` means that the program removed the host.
    pub host: Option<Option<&'a str>>,
    pub time: Option<Time>,
}

impl Metadata {
    pub fn new() -> Self {
        Self {
            base: Value::Object(ObjectMap::new()),
            current: Value::Object(ObjectMap::new()),
            is_changed: false,
        }
    }

    /// Takes the values of the next batch.
    pub fn begin(&mut self, batch: &Batch) {
        let mut base = Value::Object(ObjectMap::new());
        for (name, value) in batch.values.iter() {
            if let Ok(path) = parse_value_path(name) {
                base.insert(&path, value);
            }
        }
        if let Some(map) = base.as_object_mut() {
            map.insert("tag".into(), batch.tag.as_str().into());
        }
        self.current = base.clone();
        self.base = base;
        self.is_changed = false;
    }

    /// Discards the values that the program set for the previous record. `time` is the event time, if the program reads it.
    pub fn reset(&mut self, time: Option<Time>) {
        if self.is_changed {
            self.current = self.base.clone();
            self.is_changed = false;
        }
        if let (Some(time), Some(map)) = (time, self.current.as_object_mut()) {
            let time = timestamp(time);
            match map.get_mut("time") {
                Some(place) => *place = time,
                None => {
                    map.insert("time".into(), time);
                }
            }
        }
    }

    /// Sets the record's own metadata; `None` if it has none.
    pub fn set_own(&mut self, own: Option<ObjectMap>) {
        let Some(map) = self.current.as_object_mut() else {
            return;
        };
        match own {
            Some(own) => map.insert(OWN.into(), Value::Object(own)),
            None => map.remove(OWN),
        };
    }

    pub fn value(&self) -> &Value {
        &self.current
    }

    pub fn value_mut(&mut self) -> &mut Value {
        self.is_changed = true;
        &mut self.current
    }

    /// Returns the values that the program has changed. Fails if a value has the wrong type. If the program removed the tag or
    /// the time, the record keeps its original tag or time.
    pub fn changes(&self) -> Result<Changes<'_>, String> {
        if !self.is_changed {
            return Ok(Changes::default());
        }
        let get = |value: &'_ Value, name| value.as_object().and_then(|map| map.get(name)).cloned();
        let text = |name: &'static str| {
            let value = self.current.as_object().and_then(|map| map.get(name));
            match value {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(&**text)),
                Some(Value::Bytes(bytes)) => std::str::from_utf8(bytes)
                    .map(Some)
                    .map_err(|_| format!("the program set %{name} to a text that is not UTF-8")),
                Some(other) => Err(format!(
                    "the program set %{name} to a value of type {}: it must be a string",
                    other.kind_str()
                )),
            }
        };
        let is_new = |name| get(&self.base, name) != get(&self.current, name);
        let mut changes = Changes::default();
        if is_new("tag") {
            changes.tag = text("tag")?;
        }
        if is_new("host") {
            changes.host = Some(text("host")?);
        }
        changes.time = match get(&self.current, "time") {
            None | Some(Value::Null) => None,
            Some(Value::Timestamp(time)) => {
                let nanos = time.timestamp_nanos_opt();
                let range = "the program set %time to a time that is not between 1677 and 2262";
                Some(Time(nanos.ok_or(range)?))
            }
            Some(other) => {
                return Err(format!(
                    "the program set %time to a value of type {}: it must be a timestamp",
                    other.kind_str()
                ));
            }
        };
        Ok(changes)
    }
}

/// Converts a time to a value.
pub(crate) fn timestamp(time: Time) -> Value {
    Value::Timestamp(DateTime::from_timestamp_nanos(time.0))
}
