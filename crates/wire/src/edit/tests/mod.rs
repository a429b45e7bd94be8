//! Tests of changes on single records.

mod properties;

use std::sync::Arc;

use millstream_record::{Time, Values};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::*;
use crate::{msgpack::write_str, record};

fn changes(rename: Json, set: Json, remove: Json, keep: Json) -> Changes {
    Changes {
        rename: serde_json::from_value(rename).unwrap(),
        set: serde_json::from_value(set).unwrap(),
        remove: serde_json::from_value(remove).unwrap(),
        keep: serde_json::from_value(keep).unwrap(),
    }
}

fn batch(encoding: Encoding, body: Vec<u8>) -> Batch {
    let mut values = Values::new();
    values.set("host", "web-1");
    Batch {
        tag: "web.front".into(),
        plain: false,
        encoding,
        count: 0,
        body: body.into(),
        received: Time::from_parts(5, 0),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

fn packed(records: &[Value]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        body.extend_from_slice(b"\x92\xd7\0\0\0\0\x07\0\0\0\x09");
        rmpv::encode::write_value(&mut body, record).unwrap();
    }
    batch(Encoding::Packed, body)
}

fn apply(changes: &Changes, batch: &Batch) -> (Vec<Value>, Vec<Reject>) {
    let mut edit = changes.compile(&TimeZone::UTC).unwrap();
    let (mut out, mut rejects) = (b"before".to_vec(), Vec::new());
    let count = edit.apply(batch, &mut out, &mut rejects);
    let mut rest = out.strip_prefix(b"before").unwrap();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let entry = rmpv::decode::read_value(&mut rest).unwrap();
        assert_eq!(entry.as_array().map(Vec::len), Some(2));
        records.push(entry[1].clone());
    }
    assert_eq!(records.len(), count as usize);
    (records, rejects)
}

fn map(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => (*value).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (_, Some(number)) => number.into(),
            _ => number.as_f64().unwrap().into(),
        },
        Json::Array(list) => Value::Array(list.iter().map(map).collect()),
        Json::Object(pairs) => {
            let pairs = pairs.iter();
            Value::Map(
                pairs
                    .map(|(key, value)| (key.as_str().into(), map(value)))
                    .collect(),
            )
        }
    }
}

/// The changed record as text, in the order of its fields.
fn edited(changes: &Changes, record: Json) -> String {
    let (records, rejects) = apply(changes, &packed(&[map(&record)]));
    assert_eq!(rejects, []);
    records[0].to_string()
}

#[test]
fn fields_are_renamed_set_removed_and_kept_in_this_order() {
    let none = || json!({});
    for (changes, record, expected) in [
        // A field keeps its place; a new one comes last.
        (
            changes(
                json!({".b": ".c"}),
                json!({".a": 5, ".n": "x"}),
                json!([".d"]),
                json!(null),
            ),
            json!({"a": 1, "b": 2, "d": 3, "e": 4}),
            json!({"a": 5, "c": 2, "e": 4, "n": "x"}),
        ),
        // Names are swapped; a field that has the new name is replaced.
        (
            changes(
                json!({".a": ".b", ".b": ".a", ".c": ".d"}),
                none(),
                json!([]),
                json!(null),
            ),
            json!({"a": 1, "b": 2, "d": 3, "c": 4}),
            json!({"b": 1, "a": 2, "d": 4}),
        ),
        // Missing parent maps are created, and a parent that is not a map is replaced by one.
        (
            changes(
                json!({".a": ".x.y"}),
                json!({".b.c": true, ".m.n": null}),
                json!([]),
                json!(null),
            ),
            json!({"a": 1, "b": 2, "m": {"o": 1}}),
            json!({"b": {"c": true}, "m": {"o": 1, "n": null}, "x": {"y": 1}}),
        ),
        (
            changes(json!({".a.b": ".a"}), none(), json!([]), json!(null)),
            json!({"a": {"b": {"c": 1}, "d": 2}}),
            json!({"a": {"c": 1}}),
        ),
        (
            changes(json!({".a": ".a.b"}), none(), json!([]), json!(null)),
            json!({"a": 1, "z": 2}),
            json!({"z": 2, "a": {"b": 1}}),
        ),
        // Renaming and removing missing fields changes nothing.
        (
            changes(
                json!({".x": ".a"}),
                none(),
                json!([".y", ".a.z"]),
                json!(null),
            ),
            json!({"a": 1}),
            json!({"a": 1}),
        ),
        // Only the fields in `keep` are left, without empty maps.
        (
            changes(
                none(),
                none(),
                json!([".u.b"]),
                json!([".u.a", ".u.b", ".v.a", ".w"]),
            ),
            json!({"t": 1, "u": {"c": 1, "b": 2, "a": 3}, "v": {"b": 1}, "w": {"x": 1}}),
            json!({"u": {"a": 3}, "w": {"x": 1}}),
        ),
    ] {
        assert_eq!(
            edited(&changes, record.clone()),
            map(&expected).to_string(),
            "{record}"
        );
    }
}

#[test]
fn templates_read_the_renamed_record_and_a_single_field_keeps_its_type() {
    let changes = changes(
        json!({".a": ".b"}),
        json!({".c": "{.b}", ".d": "{.c|none}", ".e": ["{tag}", {"n": "{.b}-{host}"}], ".b": "{time:unix}"}),
        json!([]),
        json!(null),
    );
    let record = json!({"a": u64::MAX});
    let expected = json!({"b": 7, "c": u64::MAX, "d": "none", "e": ["web.front", {"n": "18446744073709551615-web-1"}]});
    assert_eq!(edited(&changes, record), map(&expected).to_string());
}

#[test]
fn a_line_becomes_a_record_with_the_receive_time() {
    let changes = changes(
        json!({".message": ".text"}),
        json!({".n": 1}),
        json!([]),
        json!(null),
    );
    let mut edit = changes.compile(&TimeZone::UTC).unwrap();
    let mut out = Vec::new();
    let count = edit.apply(
        &batch(Encoding::Lines, b"a\n\nb".to_vec()),
        &mut out,
        &mut Vec::new(),
    );
    assert_eq!(count, 3);
    let entry = |text: &[u8]| {
        [
            b"\x92\xd7\0\0\0\0\x05\0\0\0\0\x82\xa4text",
            text,
            b"\xa1n\x01",
        ]
        .concat()
    };
    assert_eq!(
        out,
        [entry(b"\xa1a"), entry(b"\xa0"), entry(b"\xa1b")].concat()
    );
}

#[test]
fn untouched_bytes_stay_as_they_are() {
    // Metadata, bin keys, long encodings of short values, repeated keys.
    let head = b"\x92\x92\x05\x81\xa1m\x01";
    let pairs = b"\xc4\x01b\xd9\x01x\xa1c\xcf\0\0\0\0\0\0\0\x01\xa1c\xc3\xa1d\xca\0\0\0\0";
    let body = [&head[..], b"\x84", pairs].concat();
    let changes = changes(json!({}), json!({".z": 1}), json!([".q"]), json!(null));
    let mut out = Vec::new();
    changes.compile(&TimeZone::UTC).unwrap().apply(
        &batch(Encoding::Packed, body),
        &mut out,
        &mut Vec::new(),
    );
    assert_eq!(out, [&head[..], b"\x85", pairs, b"\xa1z\x01"].concat());
}

#[test]
fn a_missing_value_rejects_only_its_record() {
    let changes = changes(json!({}), json!({".b": "{.a}!"}), json!([]), json!(null));
    let records = [
        map(&json!({"a": 1})),
        map(&json!({"x": 1})),
        map(&json!({"a": 2})),
    ];
    let batch = packed(&records);
    let (edited, rejects) = apply(&changes, &batch);
    assert_eq!(
        edited,
        [
            map(&json!({"a": 1, "b": "1!"})),
            map(&json!({"a": 2, "b": "2!"}))
        ]
    );
    let range = record::records(&batch).nth(1).unwrap().0;
    assert_eq!(rejects.len(), 1);
    assert_eq!(rejects[0].range, range);
    assert!(
        rejects[0].reason.to_string().contains("`.a`"),
        "{:?}",
        rejects[0]
    );
    let of_batch = self::changes(json!({}), json!({".b": "{path}"}), json!([]), json!(null));
    assert_eq!(apply(&of_batch, &batch).1.len(), 3);
}

#[test]
fn changes_that_contradict_each_other_are_refused() {
    for (rename, set, remove, keep, option, why) in [
        (
            json!({".a": ".a"}),
            json!({}),
            json!([]),
            json!(null),
            "rename",
            "to itself",
        ),
        (
            json!({".a": ".x", ".a.b": ".y"}),
            json!({}),
            json!([]),
            json!(null),
            "rename",
            "both renamed",
        ),
        (
            json!({".a": ".x", ".b": ".x"}),
            json!({}),
            json!([]),
            json!(null),
            "rename",
            "both new names",
        ),
        (
            json!({}),
            json!({".a.b": 1, ".a": 1}),
            json!([]),
            json!(null),
            "set",
            "both set",
        ),
        (
            json!({}),
            json!({".a.b": 1}),
            json!([".a"]),
            json!(null),
            "set",
            "removed",
        ),
        (
            json!({".a": ".b"}),
            json!({}),
            json!([]),
            json!([".c"]),
            "rename",
            "dropped",
        ),
    ] {
        let error = changes(rename, set, remove, keep)
            .compile(&TimeZone::UTC)
            .unwrap_err();
        assert_eq!(error.option, option);
        assert!(error.message.contains(why), "{error}");
    }
    for json in [json!({".a": "{"}), json!({".a..b": 1}), json!([1])] {
        assert!(serde_json::from_value::<Set>(json).is_err());
    }
}

#[test]
fn hostile_records_are_changed_or_rejected() {
    let mut deep = b"\x92\x01\x82\xa1a".to_vec();
    for _ in 0..100_000 {
        deep.extend_from_slice(b"\x81\xa1a");
    }
    deep.extend_from_slice(b"\x01\xa1b\x02");
    let mut large = b"\x92\x01\x82\xa1b\x02\xa1t".to_vec();
    write_str(&mut large, &vec![b'a'; 64 << 20]);
    let deepest = ".a".repeat(60);
    let changes = changes(
        json!({".b": ".c"}),
        json!({".x.y": "{.c}"}),
        json!([deepest]),
        json!(null),
    );
    for (body, is_deep) in [(deep, true), (large, false)] {
        let length = body.len();
        let mut out = Vec::new();
        let mut rejects = Vec::new();
        let mut edit = changes.compile(&TimeZone::UTC).unwrap();
        assert_eq!(
            edit.apply(&batch(Encoding::Packed, body), &mut out, &mut rejects),
            1
        );
        assert!(out.len() < length + 20 && out.ends_with(b"\xa1x\x81\xa1y\x02"));
        assert_eq!(out.len() < 1000, is_deep);
    }
    // A million pairs with one key, which the edit changes: the record is rejected, so that they take no memory.
    let mut same = b"\x92\x01\xdf\x00\x0f\x42\x40".to_vec();
    same.extend_from_slice(&b"\xa1b\x02".repeat(1_000_000));
    let mut rejects = Vec::new();
    let mut edit = changes.compile(&TimeZone::UTC).unwrap();
    assert_eq!(
        edit.apply(
            &batch(Encoding::Packed, same),
            &mut Vec::new(),
            &mut rejects
        ),
        0
    );
    assert_eq!(rejects[0].reason, Reason::Repeated);
}
