//! Compares the output of encoders, read by `serde_json`, with the content of the batch, read by `rmpv`.

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use rmpv::Value;
use serde_json::json;

use super::*;

/// The expected value, according to the documented rules.
fn expected(value: &Value) -> serde_json::Value {
    match value {
        Value::Nil => json!(null),
        Value::Boolean(b) => json!(b),
        Value::Integer(n) => match n.as_u64() {
            Some(n) => json!(n),
            None => json!(n.as_i64().unwrap()),
        },
        Value::F32(f) if f.fract() == 0.0 && f.abs() < 1e16 => json!(f64::from(*f)),
        Value::F32(f) if f.is_finite() => json!(f.to_string().parse::<f64>().unwrap()),
        Value::F64(f) if f.is_finite() => json!(f),
        Value::F32(_) | Value::F64(_) => json!(null),
        Value::String(s) => json!(s.as_str().unwrap()),
        Value::Binary(data) => match std::str::from_utf8(data) {
            Ok(text) => json!(text),
            Err(_) => json!(STANDARD.encode(data)),
        },
        Value::Array(values) => values.iter().map(expected).collect(),
        Value::Map(pairs) => {
            let pair = |(key, value): &(Value, Value)| {
                let key = match expected(key) {
                    serde_json::Value::String(key) => key,
                    other => other.to_string(),
                };
                (key, expected(value))
            };
            serde_json::Value::Object(pairs.iter().map(pair).collect())
        }
        Value::Ext(code, data) => json!({"type": code, "data": STANDARD.encode(data)}),
    }
}

fn any_key() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => ".{0,12}".prop_map(|s| Value::from(s.as_str())),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => prop::collection::vec(any::<u8>(), 0..6).prop_map(Value::Binary),
    ]
}

fn any_map(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((any_key(), value), 0..20).prop_map(|mut pairs| {
        // serde_json keeps one of two equal keys.
        let mut seen = std::collections::HashSet::new();
        pairs.retain(|(key, _)| seen.insert(expected(key).to_string().replace('"', "")));
        Value::Map(pairs)
    })
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,60}".prop_map(|s| Value::from(s.as_str())),
        "[\"\\\\\u{0}-\u{1f}a-z]{0,60}".prop_map(|s| Value::from(s.as_str())),
        ("[a-z\"]{1,9}", 1..600_usize).prop_map(|(s, n)| Value::from(s.repeat(n).as_str())),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (1..100_i8, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(c, d)| Value::Ext(c, d)),
    ];
    leaf.prop_recursive(5, 60, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            any_map(inner),
        ]
    })
}

/// Records that each differ from the previous one in one or two fields.
fn alike() -> impl Strategy<Value = Vec<Value>> {
    let key = prop::sample::select(vec![
        "message",
        "host",
        "app",
        "time",
        "",
        "q\"uote",
        "né",
        "fifteen-letters",
        "sixteen-letters.",
    ]);
    let value = prop_oneof![
        4 => "[a-z\"\u{0}é]{0,40}".prop_map(Value::from),
        1 => any::<i16>().prop_map(Value::from),
        1 => Just(Value::Nil),
        1 => (0..700_usize).prop_map(|count| Value::from("x".repeat(count))),
        1 => Just(Value::Map(vec![("message".into(), "inner".into())])),
    ];
    let pair = (key, value).prop_map(|(key, value)| (Value::from(key), value));
    let first = prop::collection::vec(pair.clone(), 0..9);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), pair, 0..6_u8), 0..12);
    (first, changes).prop_map(|(mut fields, changes)| {
        let mut records = vec![Value::Map(fields.clone())];
        for (at, pair, what) in changes {
            let at = at.index(fields.len().max(1));
            match what {
                0 => fields.insert(at.min(fields.len()), pair),
                1 if !fields.is_empty() => drop(fields.remove(at)),
                2 if !fields.is_empty() => fields[at] = pair,
                3 if !fields.is_empty() => fields[at].1 = pair.1,
                _ => {
                    if let Some(last) = fields.last_mut() {
                        last.1 = pair.1;
                    }
                }
            }
            records.push(Value::Map(fields.clone()));
        }
        records
    })
}

proptest! {
    #[test]
    fn the_output_of_a_record_does_not_depend_on_its_predecessors(records in alike()) {
        for options in [Options::default(), bare(), raw()] {
            let (together, rejects) = encode_bytes(&options, &packed(&records));
            let (mut alone, mut refused) = (Vec::new(), 0);
            for record in &records {
                let (mut bytes, rejects) = encode_bytes(&options, &packed(std::slice::from_ref(record)));
                alone.append(&mut bytes);
                refused += rejects.len();
            }
            prop_assert_eq!(together.escape_ascii().to_string(), alone.escape_ascii().to_string());
            prop_assert_eq!(rejects.len(), refused);
        }
    }

    #[test]
    fn json_holds_every_value_of_the_record(
        records in prop::collection::vec(any_map(any_value()), 0..8),
    ) {
        let text = text(&bare(), &packed(&records));
        let mut read = Vec::new();
        for line in text.lines() {
            read.push(serde_json::from_str::<serde_json::Value>(line).unwrap());
        }
        let expected: Vec<_> = records.iter().map(expected).collect();
        // Compared as text, to check the order of keys, too.
        prop_assert_eq!(
            serde_json::to_string(&read).unwrap(),
            serde_json::to_string(&expected).unwrap()
        );
    }

    #[test]
    fn lines_survive_json_and_raw(written in prop::collection::vec("[^\n]{0,80}", 0..20)) {
        let body: String = written.iter().map(|line| format!("{line}\n")).collect();
        let batch = lines(body.as_bytes());
        prop_assert_eq!(&text(&raw(), &batch), &body);
        let json = text(&bare(), &batch);
        for (line, written) in json.lines().zip(&written) {
            let read: serde_json::Value = serde_json::from_str(line).unwrap();
            prop_assert_eq!(read, json!({"message": written}));
        }
        prop_assert_eq!(json.lines().count(), written.len());
    }

    #[test]
    fn msgpack_appends_added_fields_and_changes_nothing_else(
        records in prop::collection::vec(any_map(any_value()), 0..8),
    ) {
        let batch = packed(&records);
        let mut options = Options { format: Format::Msgpack, ..Options::default() };
        let (passed, rejects) = encode_bytes(&options, &batch);
        prop_assert_eq!((passed, rejects), (batch.body.to_vec(), vec![]));
        // These names are longer than any generated key, so that no record already has such a field.
        let [tag, ms, time] = ["the tag of the record", "the time in milliseconds", "the time as a text"];
        options.add = add([(tag, "{tag}"), (ms, "{time:unix_ms}"), (time, "{time}")]);
        let (out, rejects) = encode_bytes(&options, &batch);
        prop_assert_eq!(rejects, vec![]);
        let mut rest = &out[..];
        for mut record in records {
            let entry = rmpv::decode::read_value(&mut rest).unwrap();
            let Value::Map(fields) = &mut record else { unreachable!() };
            fields.push((tag.into(), "web.front".into()));
            fields.push((ms.into(), 1_700_000_000_123_i64.into()));
            fields.push((time.into(), EVENT_TEXT.into()));
            // Compared as bytes, because NaN is not equal to itself.
            let bytes = |value: &Value| {
                let mut bytes = Vec::new();
                rmpv::encode::write_value(&mut bytes, value).unwrap();
                bytes
            };
            prop_assert_eq!(bytes(&entry[1]), bytes(&record));
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn invalid_bodies_cause_no_panic_and_rejects_have_valid_ranges(body in prop::collection::vec(any::<u8>(), 0..200), whole: bool) {
        let mut body = body;
        if whole {
            body.splice(0..0, *b"\x92\x01\x82\xa1a");
        }
        for encoding in [Encoding::Packed, Encoding::Lines] {
            let batch = batch(encoding, body.clone(), 0);
            for options in [
                Options::default(),
                raw(),
                Options { add: add([("a", "{.a.b|x}"), ("b", "%T{.b|}")]), ..Options::default() },
                Options { format: Format::Msgpack, add: add([("a", "{.b|x}")]), ..Options::default() },
            ] {
                let mut encoder = options.encoder(&TimeZone::UTC).unwrap();
                let (mut out, mut rejects) = (Vec::new(), Vec::new());
                encoder.encode(&batch, &mut out, &mut rejects);
                for reject in rejects {
                    prop_assert!(reject.range.start < reject.range.end && reject.range.end <= body.len());
                }
            }
        }
    }
}
