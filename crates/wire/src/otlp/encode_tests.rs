//! Encoded requests are read back with the decoder.

use std::sync::Arc;

use millstream_record::{Batch, Encoding, Time, Values};
use proptest::prelude::*;
use rmpv::Value;

use super::*;
use crate::{
    json::{Progress, to_msgpack},
    record::records,
    template::Template,
};

const RECEIVED: Time = Time(1_600_000_000_000_000_007);
const EVENT: i64 = 1_700_000_000;

/// A batch of packed records.
fn batch(records: &[Value]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        let entry = Value::Array(vec![EVENT.into(), record.clone()]);
        rmpv::encode::write_value(&mut body, &entry).unwrap();
    }
    Batch {
        tag: "shop".into(),
        plain: false,
        encoding: Encoding::Packed,
        count: records.len() as u32,
        body: body.into(),
        received: RECEIVED,
        values: Arc::new(Values::new()),
        origins: Vec::new(),
    }
}

/// Encodes a batch as a request, and returns the records that the decoder reads from it.
fn again(form: Form, batch: &Batch) -> Vec<Value> {
    let template = Template::parse("{tag}").unwrap();
    let missing = Template::parse("{no_one}").unwrap();
    let mut encoder = Encoder::new(form, [("gone", &missing), ("service.name", &template)]);
    let (mut text, mut around, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (_, event) in records(batch) {
        let (start, before) = (text.len(), around.len());
        encoder
            .record(batch.into(), event, RECEIVED, &mut text, &mut around)
            .unwrap();
        places.push((start..text.len(), before..around.len()));
    }
    let records = places
        .iter()
        .map(|(record, stands_in)| (&text[record.clone()], &around[stands_in.clone()]));
    let mut request = Vec::new();
    write_request(form, records, &mut request);
    let mut packed = Vec::with_capacity(request.len() * 4 + 1024);
    let mut logs = match form {
        Form::Protobuf => Logs::protobuf(&request),
        Form::Json => {
            let read = to_msgpack(&request, &mut packed);
            assert_eq!(read, Ok(Progress::Consumed(request.len())));
            Logs::json(&packed)
        }
    };
    let mut out = Vec::with_capacity(1 << 20);
    loop {
        match logs.next(Time(0), &mut out) {
            Next::Record => {}
            Next::End => break,
            other => panic!("{other:?}"),
        }
    }
    let (mut bytes, mut found) = (&out[..], Vec::new());
    while !bytes.is_empty() {
        found.push(rmpv::decode::read_value(&mut bytes).unwrap()[1].clone());
    }
    found
}

fn map(pairs: Vec<(&str, Value)>) -> Value {
    let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value));
    Value::Map(pairs.collect())
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Map(pairs) => {
            let mut pairs = pairs.clone();
            pairs.sort_by_key(|(name, _)| name.to_string());
            Value::Map(pairs)
        }
        value => value.clone(),
    }
}

#[test]
fn an_encoded_record_is_decoded_unchanged() {
    let record = map(vec![
        (
            "message",
            map(vec![(
                "a",
                Value::Array(vec![1.into(), Value::Nil, "x".into()]),
            )]),
        ),
        ("severity_text", "WARN".into()),
        ("severity_number", 13.into()),
        ("trace_id", "0102030405060708090a0b0c0d0e0f10".into()),
        ("span_id", "0102030405060708".into()),
        ("event_name", "e".into()),
        ("flags", 1.into()),
        ("observed_time_unix_nano", 5.into()),
        ("dropped_attributes_count", 2.into()),
        ("attributes", map(vec![("k", Value::Binary(vec![0, 255]))])),
        ("resources", map(vec![("service.name", "other".into())])),
        ("resource_schema_url", "https://r/\"1".into()),
        ("resource_dropped_attributes_count", 4.into()),
        (
            "scope",
            map(vec![
                ("name", "s".into()),
                ("schema_url", "https://s/1".into()),
                ("dropped_attributes_count", 3.into()),
                ("attributes", map(vec![("x", 1.into())])),
            ]),
        ),
    ]);
    for form in [Form::Protobuf, Form::Json] {
        let got = again(form, &batch(std::slice::from_ref(&record)));
        assert_eq!(got.len(), 1);
        assert_eq!(sorted(&got[0]), sorted(&record), "{form:?}");
    }
}

#[test]
fn other_fields_become_attributes_and_a_level_sets_the_severity() {
    let record = map(vec![
        ("level", "error".into()),
        ("n", u64::MAX.into()),
        ("trace_id", "no id".into()),
        ("resources", "no map".into()),
    ]);
    for form in [Form::Protobuf, Form::Json] {
        let got = sorted(&again(form, &batch(std::slice::from_ref(&record)))[0]);
        let attributes = map(vec![
            ("level", "error".into()),
            ("n", u64::MAX.to_string().into()),
            ("trace_id", "no id".into()),
            ("resources", "no map".into()),
        ]);
        let wanted = map(vec![
            ("attributes", attributes),
            ("observed_time_unix_nano", RECEIVED.0.into()),
            ("resources", map(vec![("service.name", "shop".into())])),
            ("severity_number", 17.into()),
            ("severity_text", "error".into()),
        ]);
        assert_eq!(got, wanted, "{form:?}");
    }
}

#[test]
fn a_line_is_a_body_and_records_of_several_resources_keep_their_order() {
    let lines = Batch {
        encoding: Encoding::Lines,
        body: b"one\ntwo\n".to_vec().into(),
        count: 2,
        ..batch(&[])
    };
    let other = |n: i64| {
        let resource = if n % 3 == 0 { "a" } else { "b" };
        map(vec![
            ("message", n.into()),
            ("resources", map(vec![("r", resource.into())])),
        ])
    };
    let mixed: Vec<Value> = (0..20).map(other).collect();
    for form in [Form::Protobuf, Form::Json] {
        let got = again(form, &lines);
        assert_eq!(got.len(), 2);
        assert_eq!(got[1]["message"], "two".into());
        let got = again(form, &batch(&mixed));
        for (got, wanted) in got.iter().zip(&mixed) {
            assert_eq!(got["message"], wanted["message"]);
            assert_eq!(got["resources"], wanted["resources"]);
        }
        assert_eq!(got.len(), 20);
    }
}

#[test]
fn a_record_that_is_too_deep_is_rejected_and_leaves_no_output() {
    let mut value = Value::from(1);
    for _ in 0..=LEVELS_MAX {
        value = Value::Array(vec![value]);
    }
    let batch = batch(&[map(vec![("message", value)])]);
    for form in [Form::Protobuf, Form::Json] {
        let mut encoder = Encoder::new(form, []);
        let (_, event) = records(&batch).next().unwrap();
        let (mut text, mut around) = (b"before".to_vec(), Vec::new());
        let told = encoder.record((&batch).into(), event, RECEIVED, &mut text, &mut around);
        assert!(told.is_err());
        assert_eq!((&text[..], around.len()), (&b"before"[..], 0));
    }
}

fn any() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        proptest::bool::ANY.prop_map(Value::from),
        proptest::num::i64::ANY.prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        ".{0,200}".prop_map(Value::from),
        proptest::collection::vec(proptest::num::u8::ANY, 0..300).prop_map(Value::Binary),
    ];
    leaf.prop_recursive(5, 60, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            proptest::collection::vec(("[a-z]{0,9}", inner), 0..5).prop_map(|pairs| {
                let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value));
                Value::Map(pairs.collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_is_read_back_in_both_encodings(message in any(), a in any(), b in any()) {
        let record = map(vec![("message", message.clone()), ("a", a.clone()), ("b", b.clone())]);
        for form in [Form::Protobuf, Form::Json] {
            let got = &again(form, &batch(std::slice::from_ref(&record)))[0];
            prop_assert_eq!(&got["message"], &message);
            prop_assert_eq!(&got["attributes"], &map(vec![("a", a.clone()), ("b", b.clone())]));
        }
    }
}
