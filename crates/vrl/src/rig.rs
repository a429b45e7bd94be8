//! Helpers for the tests of this crate: batches, programs that run on them, the same programs on a tree of all fields, and random
//! numbers.

use std::sync::Arc;

use millstream_record::{Batch, Encoding, Time, Values};
use millstream_wire::{
    json,
    msgpack::{Reader, entry_head, skip, write_array_len, write_event_time},
};
use vrl::{
    compiler::{Context, TargetValue, state::RuntimeState},
    value::{ObjectMap, Secrets, Value},
};

use crate::{Options, Outcome, Program, Remap, decode, encode, metadata};

/// The receive time of every batch.
pub(crate) const RECEIVED: Time = Time(1_700_000_000_000_000_005);
/// The event time of every entry.
pub(crate) const EVENT: (u32, u32) = (1_600_000_000, 7);

/// A batch with this body.
pub(crate) fn batch(encoding: Encoding, body: Vec<u8>, count: u32) -> Batch {
    let mut values = Values::new();
    values.set("host", "web-1");
    values.set("path", "/var/log/a.log");
    values.set("kubernetes.pod", "shop-7");
    Batch {
        tag: "app.web".into(),
        encoding,
        plain: true,
        body: body.into(),
        count,
        received: RECEIVED,
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

/// Returns an entry with this record, which is a MessagePack map.
pub(crate) fn entry(record: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 2);
    write_event_time(&mut out, EVENT.0, EVENT.1);
    out.extend_from_slice(record);
    out
}

/// Converts a JSON text to MessagePack.
pub(crate) fn packed(json: &str) -> Vec<u8> {
    let mut out = Vec::new();
    json::to_msgpack(json.as_bytes(), &mut out).unwrap();
    out
}

/// Returns a batch of one entry, whose record is given as JSON.
pub(crate) fn one(json: &str) -> Batch {
    batch(Encoding::Packed, entry(&packed(json)), 1)
}

/// Compiles a text, which must be a valid program.
pub(crate) fn compile(text: &str) -> Program {
    match Program::compile(text, &Options::default()) {
        Ok((program, _)) => program,
        Err(errors) => panic!("{text}: {}", errors[0].rendered),
    }
}

/// Runs a program on the first record of a batch.
pub(crate) fn run(text: &str, batch: &Batch) -> (Outcome, Vec<u8>, Remap) {
    let mut remap = Remap::new(&compile(text));
    remap.begin(batch, 0);
    let mut out = Vec::new();
    let outcome = remap.run(0, &mut out);
    (outcome, out, remap)
}

/// The records of packed entries, as JSON.
pub(crate) fn records(packed: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < packed.len() {
        let record = entry_head(packed, at).unwrap().record;
        let mut out = Vec::new();
        at = json::write_value(packed, record, &mut out).unwrap();
        all.push(String::from_utf8(out).unwrap());
    }
    all
}

/// Runs a program on a record. The record and the result are JSON texts. Returns `None` if the program changes nothing.
pub(crate) fn changed(text: &str, json: &str) -> Option<String> {
    let (outcome, out, _) = run(text, &one(json));
    match outcome {
        Outcome::Unchanged => None,
        Outcome::Written(_) => Some(records(&out).join("\n")),
        other => panic!("{text}: {other:?}"),
    }
}

/// The records of packed entries as values.
pub(crate) fn values(packed: &[u8]) -> Vec<Value> {
    let body = packed.to_vec().into();
    let mut all = Vec::new();
    let mut at = 0;
    while at < packed.len() {
        let record = entry_head(packed, at).unwrap().record;
        all.push(Value::Object(decode::record(&body, record).unwrap()));
        let mut open = 1;
        at = skip(packed, record, &mut open).unwrap();
        assert_eq!(open, 0);
    }
    all
}

/// Runs a program on a tree of all fields, as the plain crate `vrl` does. Returns the records, or the error.
pub(crate) fn full(program: &Program, batch: &Batch) -> Result<Vec<Value>, String> {
    let head = entry_head(&batch.body, 0).unwrap();
    let record = decode::record(&batch.body, head.record).unwrap();
    let mut of_batch = metadata::Metadata::new();
    of_batch.begin(batch);
    of_batch.reset(head.time);
    let mut values = of_batch.value().clone();
    let hidden = values.as_object_mut().unwrap();
    hidden.insert("\0now".into(), metadata::timestamp(RECEIVED));
    let mut target = TargetValue {
        value: Value::Object(record),
        metadata: values,
        secrets: Secrets::new(),
    };
    let mut state = RuntimeState::default();
    let mut context = Context::new(&mut target, &mut state, &program.timezone);
    let result = program.compiled.resolve(&mut context);
    use vrl::compiler::ExpressionError::{Abort, Return};
    match result {
        Ok(_) | Err(Return { .. }) => {}
        Err(Abort { .. }) => return Err("abort".to_owned()),
        Err(error) => return Err(error.to_string()),
    }
    let roots = match target.value {
        Value::Array(roots) => roots,
        root => vec![root],
    };
    let packed = roots.into_iter().map(|root| {
        let map = match root {
            Value::Object(map) => map,
            other => ObjectMap::from([("message".into(), other)]),
        };
        let mut out = Vec::new();
        encode::record(&mut out, &map).map_err(|_| "deep".to_owned())?;
        Ok(Value::Object(decode::record(&out.into(), 0).unwrap()))
    });
    packed.collect()
}

/// Returns the bytes of a field in the record of the first entry.
pub(crate) fn field<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut reader = Reader::at(entry, entry_head(entry, 0).unwrap().record);
    for _ in 0..reader.map_len().unwrap() {
        let key = reader.value().unwrap();
        let value = reader.value().unwrap();
        if Reader::new(key).bytes() == Ok(name.as_bytes()) {
            return Some(value);
        }
    }
    None
}

/// A small generator of pseudo-random numbers. The same seed always gives the same numbers.
pub(crate) struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}
