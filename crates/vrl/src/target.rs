//! The record as VRL sees it: a field is decoded to a value only when the program accesses it.
//!
//! The compiler reports every top-level field that a program can access, and each of these fields has a slot. A program that reads
//! the record as a whole uses the value `root` instead of slots. So does any program after it has assigned a value to the whole
//! record (`.`).

use std::{
    cell::{Cell, OnceCell},
    sync::LazyLock,
};

use bytes::Bytes;
use millstream_record::{Batch, Encoding, Tag, Time};
use sha2::{Digest, Sha256};
use vrl::{
    compiler::{SecretTarget, Target},
    path::{OwnedSegment, OwnedTargetPath, OwnedValuePath, PathPrefix},
    value::{KeyString, ObjectMap, Value},
};

use crate::{
    decode::Undecodable,
    layout::{Fate, Layout},
    metadata::{self, Metadata},
    plan::Plan,
};

/// The path at which functions read the receive time of the batch. No source sets a value of this name.
pub(crate) static NOW: LazyLock<OwnedTargetPath> = LazyLock::new(|| hidden("\0now"));
/// The path at which functions get 32 random bytes. Each mutable access returns new bytes.
pub(crate) static RANDOM: LazyLock<OwnedTargetPath> = LazyLock::new(|| hidden("\0random"));
/// The path at which closures count the bytes that they read from the values of a record.
pub(crate) static READ: LazyLock<OwnedTargetPath> = LazyLock::new(|| hidden("\0read"));

fn hidden(name: &str) -> OwnedTargetPath {
    OwnedTargetPath::metadata(OwnedValuePath::single_field(name))
}

/// A top-level field that the program names.
#[derive(Debug, Default)]
struct Slot {
    /// Decoded at the first access. `Some(None)` means that the record has no such field, or that the program removed it.
    value: OnceCell<Option<Value>>,
    is_changed: bool,
}

/// A record that a program runs on.
#[derive(Debug)]
pub(crate) struct Record {
    plan: Plan,
    body: Bytes,
    encoding: Encoding,
    tag: Tag,
    received: Time,
    place: u32,
    pub layout: Layout,
    slots: Vec<Slot>,
    /// The record as a whole. It is used if the plan needs all of the record, or after an assignment to the root.
    root: OnceCell<Value>,
    is_replaced: bool,
    pub metadata: Metadata,
    now: Value,
    random: Random,
    /// The bytes that closures read from the values of this record.
    read: Value,
    /// The last error of decoding. A read access cannot fail in VRL, so the error is stored until the program ends.
    fault: Cell<Option<Undecodable>>,
}

impl Record {
    pub fn new(plan: Plan) -> Self {
        let layout = Layout::new();
        let names = plan.fields.names().iter();
        let slots = names.map(|_| Slot::default()).collect();
        Self {
            plan,
            body: Bytes::new(),
            encoding: Encoding::Packed,
            tag: "".into(),
            received: Time(0),
            place: 0,
            layout,
            slots,
            root: OnceCell::new(),
            is_replaced: false,
            metadata: Metadata::new(),
            now: Value::Null,
            random: Random::default(),
            read: Value::Integer(0),
            fault: Cell::new(None),
        }
    }

    /// Takes the next batch. The random values of its records depend on `place`, the argument of [`crate::Remap::begin`].
    pub fn begin(&mut self, batch: &Batch, place: u32) {
        self.place = place;
        self.body = batch.body.clone();
        self.encoding = batch.encoding;
        self.tag = batch.tag.clone();
        self.received = batch.received;
        self.now = metadata::timestamp(batch.received);
        if self.plan.uses_metadata {
            self.metadata.begin(batch);
        }
    }

    /// Releases the batch, so that its memory can be reused.
    pub fn end(&mut self) {
        self.close();
        self.body = Bytes::new();
    }

    /// Takes the record at the offset `start` of the batch.
    pub fn open(&mut self, start: usize) -> Result<(), Undecodable> {
        self.layout.read(
            &self.body,
            self.encoding,
            start,
            self.received,
            &self.plan.fields,
        )?;
        if self.plan.uses_metadata {
            let time = self.plan.uses_time.then(|| self.layout.time());
            self.metadata.reset(time);
        }
        if self.plan.uses_own_metadata {
            let own = self.layout.metadata(&self.body)?;
            self.metadata.set_own(own);
        }
        self.random.reset();
        self.read = Value::Integer(0);
        Ok(())
    }

    /// Drops the values of the record.
    pub fn close(&mut self) {
        for slot in &mut self.slots {
            if slot.value.get().is_some() {
                slot.value = OnceCell::new();
            }
            slot.is_changed = false;
        }
        if self.root.get().is_some() {
            self.root = OnceCell::new();
        }
        self.is_replaced = false;
        self.fault.set(None);
    }

    pub fn fault(&self) -> Option<Undecodable> {
        self.fault.get()
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub fn fields(&self) -> &[KeyString] {
        self.plan.fields.names()
    }

    /// The value that the program assigned to the root, or `None` if it did not.
    pub fn replaced(&self) -> Option<&Value> {
        self.root.get().filter(|_| self.is_replaced)
    }

    /// Whether the program changed a field.
    pub fn is_changed(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_changed)
    }

    /// The change of a field of the plan.
    pub fn fate(&self, field: usize) -> Fate<'_> {
        let Some(slot) = self.slots.get(field).filter(|slot| slot.is_changed) else {
            return Fate::Untouched;
        };
        let value = match self.plan.is_whole {
            true => {
                let name = self.fields().get(field);
                name.and_then(|name| self.root.get()?.as_object()?.get(name))
            }
            false => slot.value.get().and_then(Option::as_ref),
        };
        value.map_or(Fate::Removed, Fate::Set)
    }

    /// Whether paths are resolved in `root` instead of slots.
    fn has_root(&self) -> bool {
        self.plan.is_whole || self.is_replaced
    }

    fn root(&self) -> &Value {
        self.root.get_or_init(|| {
            self.layout.whole(&self.body).unwrap_or_else(|why| {
                self.fault.set(Some(why));
                Value::Object(ObjectMap::new())
            })
        })
    }

    fn root_mut(&mut self) -> &mut Value {
        let root = match self.root.take() {
            Some(root) => root,
            None => {
                self.root();
                self.root.take().unwrap_or(Value::Null)
            }
        };
        self.root = OnceCell::from(root);
        self.root.get_mut().expect("it was just set")
    }

    /// Returns the index of the slot of a name, or `None` if the plan does not have the name.
    fn slot(&self, name: &KeyString) -> Option<usize> {
        self.plan.fields.find(name.as_bytes())
    }

    fn read(&self, slot: usize) -> &Option<Value> {
        static NONE: Option<Value> = None;
        let (Some(place), Some(name)) = (self.slots.get(slot), self.fields().get(slot)) else {
            return &NONE;
        };
        if let Some(value) = place.value.get() {
            return value;
        }
        let value = self.layout.value(&self.body, slot, name);
        let value = value.unwrap_or_else(|why| {
            self.fault.set(Some(why));
            None
        });
        // `get_or_init` with a closure that decodes would copy the value more often.
        let _ = place.value.set(value);
        place.value.get().unwrap_or(&NONE)
    }

    fn read_mut(&mut self, slot: usize) -> Option<&mut Option<Value>> {
        self.read(slot);
        self.slots.get_mut(slot)?.value.get_mut()
    }

    /// Marks the top-level field of a path as changed. A path that begins with an index, or with a name without a slot, changes the
    /// whole record.
    fn mark(&mut self, path: &OwnedTargetPath) {
        let slot = crate::plan::top(path).and_then(|name| self.slot(name));
        match slot.and_then(|slot| self.slots.get_mut(slot)) {
            Some(slot) => slot.is_changed = true,
            None => self.is_replaced = true,
        }
    }
}

impl Target for Record {
    fn target_get(&self, path: &OwnedTargetPath) -> Result<Option<&Value>, String> {
        if path.prefix == PathPrefix::Metadata {
            return Ok(match path == &*NOW {
                true => Some(&self.now),
                false => self.metadata.value().get(&path.path),
            });
        }
        if self.has_root() {
            return Ok(self.root().get(&path.path));
        }
        let Some((OwnedSegment::Field(name), rest)) = path.path.segments.split_first() else {
            return Err("the plan has no root".to_owned());
        };
        let value = self.slot(name).and_then(|slot| self.read(slot).as_ref());
        Ok(value.and_then(|value| value.get(rest)))
    }

    fn target_get_mut(&mut self, path: &OwnedTargetPath) -> Result<Option<&mut Value>, String> {
        if path.prefix == PathPrefix::Metadata {
            if path == &*RANDOM {
                let key = || {
                    let times = [self.received.0, self.layout.time().0].map(i64::to_be_bytes);
                    let hash = Sha256::new().chain_update(times.as_flattened());
                    let tag = self.tag.as_str();
                    let hash = hash.chain_update(tag.len().to_be_bytes());
                    let hash = hash
                        .chain_update(tag)
                        .chain_update(self.place.to_be_bytes());
                    let record = self.layout.record(&self.body);
                    hash.chain_update(record).finalize().into()
                };
                return Ok(Some(self.random.draw(key)));
            }
            if path == &*READ {
                return Ok(Some(&mut self.read));
            }
            return Ok(self.metadata.value_mut().get_mut(&path.path));
        }
        self.mark(path);
        if self.has_root() {
            return Ok(self.root_mut().get_mut(&path.path));
        }
        let Some((OwnedSegment::Field(name), rest)) = path.path.segments.split_first() else {
            return Err("the plan has no root".to_owned());
        };
        let slot = self.slot(name);
        let value = slot.and_then(|slot| self.read_mut(slot)?.as_mut());
        Ok(value.and_then(|value| value.get_mut(rest)))
    }

    fn target_insert(&mut self, path: &OwnedTargetPath, value: Value) -> Result<(), String> {
        if path.prefix == PathPrefix::Metadata {
            self.metadata.value_mut().insert(&path.path, value);
            return Ok(());
        }
        let segments = &path.path.segments;
        if segments.is_empty() {
            self.root = OnceCell::from(value);
            self.is_replaced = true;
            return Ok(());
        }
        if self.has_root() {
            self.mark(path);
            self.root_mut().insert(&path.path, value);
            return Ok(());
        }
        let Some((OwnedSegment::Field(name), rest)) = segments.split_first() else {
            return Err("the plan has no root".to_owned());
        };
        let Some(number) = self.slot(name) else {
            return Err("the plan has no such field".to_owned());
        };
        if !rest.is_empty() {
            self.read(number);
        }
        let Some(slot) = self.slots.get_mut(number) else {
            return Err("the plan has no such field".to_owned());
        };
        slot.is_changed = true;
        if rest.is_empty() {
            slot.value = OnceCell::from(Some(value));
        } else if let Some(place) = slot.value.get_mut() {
            place.get_or_insert(Value::Null).insert(rest, value);
        }
        Ok(())
    }

    fn target_remove(
        &mut self,
        path: &OwnedTargetPath,
        compact: bool,
    ) -> Result<Option<Value>, String> {
        if path.prefix == PathPrefix::Metadata {
            return Ok(self.metadata.value_mut().remove(&path.path, compact));
        }
        if self.has_root() {
            let removed = self.root_mut().remove(&path.path, compact);
            if removed.is_some() {
                self.mark(path);
            }
            return Ok(removed);
        }
        let Some((OwnedSegment::Field(name), rest)) = path.path.segments.split_first() else {
            return Err("the plan has no root".to_owned());
        };
        let Some(number) = self.slot(name) else {
            return Ok(None);
        };
        self.read(number);
        let Some(slot) = self.slots.get_mut(number) else {
            return Ok(None);
        };
        let removed = match slot.value.get_mut() {
            Some(value) if rest.is_empty() => value.take(),
            Some(Some(value)) => {
                let removed = value.remove(rest, compact);
                if removed.is_some() && compact && is_empty(value) {
                    slot.value = OnceCell::from(None);
                }
                removed
            }
            _ => None,
        };
        slot.is_changed |= removed.is_some();
        Ok(removed)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(array) => array.is_empty(),
        _ => false,
    }
}

/// Vector has secrets; Millstream has none. Functions that use secrets are refused.
impl SecretTarget for Record {
    fn get_secret(&self, _key: &str) -> Option<&str> {
        None
    }

    fn insert_secret(&mut self, _key: &str, _value: &str) {}

    fn remove_secret(&mut self, _key: &str) {}
}

/// Pseudo-random bytes that a replay reproduces: SHA-256 over the identity of the record and a counter.
#[derive(Debug, Default)]
struct Random {
    /// The hash of the record's identity. It is computed when the first value is generated.
    key: Option<[u8; 32]>,
    drawn: u64,
    value: Option<Value>,
}

impl Random {
    /// Prepares for the next record.
    fn reset(&mut self) {
        self.key = None;
        self.drawn = 0;
    }

    fn draw(&mut self, key: impl FnOnce() -> [u8; 32]) -> &mut Value {
        let hash = Sha256::new().chain_update(self.key.get_or_insert_with(key));
        let drawn = hash.chain_update(self.drawn.to_be_bytes()).finalize();
        self.drawn += 1;
        self.value
            .insert(Value::Bytes(Bytes::copy_from_slice(&drawn)))
    }
}
