//! Tests of conditions on single records and batches.

mod properties;

use std::sync::Arc;

use millstream_record::{Batch, Encoding, Time, Values};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::*;
use crate::{msgpack, record, template::Shared};

/// Compiles patterns of tags for these tests: an exact tag, or a prefix and `**`.
fn tags(patterns: &[String]) -> Result<TagTest, String> {
    if patterns.iter().any(|pattern| pattern.contains('[')) {
        return Err("no pattern".to_owned());
    }
    let patterns = patterns.to_vec();
    Ok(Arc::new(move |tag| {
        patterns
            .iter()
            .any(|pattern| match pattern.strip_suffix("**") {
                Some(start) => tag.starts_with(start),
                None => tag == pattern,
            })
    }))
}

fn condition(json: &Json) -> Condition {
    match serde_json::from_value(json.clone()) {
        Ok(Where::Map(condition)) => condition,
        other => panic!("{json}: {other:?}"),
    }
}

fn matcher(conditions: &[Json]) -> Matcher {
    let conditions: Vec<_> = conditions.iter().map(condition).collect();
    Matcher::new(&conditions, &tags).unwrap()
}

fn batch(encoding: Encoding, body: Vec<u8>, count: usize) -> Batch {
    let mut values = Values::new();
    values.set("host", "web-1");
    Batch {
        tag: "web.front".into(),
        plain: false,
        encoding,
        body: body.into(),
        count: count as u32,
        received: Time::from_parts(5, 0),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

fn packed(records: &[Value]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        msgpack::write_array_len(&mut body, 2);
        msgpack::write_event_time(&mut body, 7, 0);
        rmpv::encode::write_value(&mut body, record).unwrap();
    }
    batch(Encoding::Packed, body, records.len())
}

fn map(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => (*value).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            (_, _, number) => number.unwrap().into(),
        },
        Json::Array(list) => Value::Array(list.iter().map(map).collect()),
        Json::Object(pairs) => Value::Map(
            pairs
                .iter()
                .map(|(key, value)| (key.as_str().into(), map(value)))
                .collect(),
        ),
    }
}

/// Whether the condition matches the record. Both are given as JSON.
fn matches(where_: Json, record: Json) -> bool {
    let batch = packed(&[map(&record)]);
    let mut answers = Vec::new();
    matcher(&[where_]).each(&batch, |_, _, answer| answers.push(answer));
    assert_eq!(answers.len(), 1);
    answers[0].is_some()
}

#[test]
fn constants_match_values_of_their_type_only() {
    for (constant, hits, misses) in [
        (
            json!("a"),
            json!(["a"]),
            json!(["b", "", 1, null, true, ["a"], {"a": "a"}]),
        ),
        (json!(1), json!([1, 1.0]), json!(["1", true, 2, 1.5, null])),
        (json!(true), json!([true]), json!([false, "true", 1])),
        (json!(null), json!([null]), json!([false, 0, "", "null"])),
        (
            json!(["a", 2, null]),
            json!(["a", 2, null]),
            json!(["2", 1, false]),
        ),
        (json!({"eq": ["a", "b"]}), json!(["a", "b"]), json!(["c"])),
        (
            json!({"gt": 1}),
            json!([2, 1.5, 1e300]),
            json!([1, 0, "2", null]),
        ),
        (json!({"ge": 1, "lt": 2}), json!([1, 1.5]), json!([2, 0.5])),
        (json!({"le": "b"}), json!(["a", "b", ""]), json!(["ba", 1])),
        (json!({"glob": "/a/*"}), json!(["/a/b/c"]), json!(["/b", 1])),
        (
            json!({"regex": ["^a", "z$"]}),
            json!(["ab", "xz"]),
            json!(["ba", 5]),
        ),
        (json!({"exists": true}), json!([null, 1, [], {}]), json!([])),
        (json!({"exists": false}), json!([]), json!([null, 1])),
        (json!({"not": 1}), json!([2, "1"]), json!([1])),
        (json!({"not": {"lt": 5}}), json!([5, "a"]), json!([4])),
        (json!({"any": [1, {"gt": 8}]}), json!([1, 9]), json!([2])),
        (
            json!({"all": [{"gt": 1}, {"not": 3}]}),
            json!([2]),
            json!([3, 1]),
        ),
    ] {
        for (values, expected) in [(hits, true), (misses, false)] {
            for value in values.as_array().unwrap() {
                let found = matches(json!({".f": constant}), json!({"x": 1, "f": value}));
                assert_eq!(found, expected, "{constant} {value}");
            }
        }
    }
}

#[test]
fn a_missing_field_passes_only_negated_tests() {
    let record = json!({"user": {"id": 5}, "n": 1});
    for (where_, expected) in [
        (json!({".a": null}), false),
        (json!({".a": {"exists": false}}), true),
        (json!({".a": {"not": 1}}), true),
        (json!({"not": {".a": 1}}), true),
        (json!({".user.id": 5}), true),
        (json!({".user.name": {"exists": false}}), true),
        (json!({".n.id": {"exists": false}}), true),
        (
            json!({".user": {"exists": true}, ".user.id": {"gt": 4}}),
            true,
        ),
        (json!({".\"user\".\"id\"": 5}), true),
    ] {
        assert_eq!(
            matches(where_.clone(), record.clone()),
            expected,
            "{where_}"
        );
    }
}

#[test]
fn many_constants_are_found_by_binary_search() {
    let names: Vec<_> = (0..100).map(|number| format!("n{number}")).collect();
    for (name, expected) in [
        ("n0", true),
        ("n99", true),
        ("n57", true),
        ("n100", false),
        ("", false),
    ] {
        assert_eq!(matches(json!({".f": names}), json!({"f": name})), expected);
    }
}

#[test]
fn integers_of_64_bits_are_not_rounded() {
    let record = json!({"n": 9_007_199_254_740_993_u64, "m": u64::MAX});
    assert!(!matches(
        json!({".n": 9_007_199_254_740_992_u64}),
        record.clone()
    ));
    assert!(matches(
        json!({".n": {"gt": 9_007_199_254_740_992.0}}),
        record.clone()
    ));
    assert!(matches(json!({".m": u64::MAX}), record.clone()));
    assert!(matches(
        json!({".m": {"gt": u64::MAX - 1, "gt": -1}}),
        record
    ));
}

#[test]
fn the_first_of_repeated_keys_counts() {
    let pair = |key: &str, value: Value| (Value::from(key), value);
    let record = Value::Map(vec![
        pair("f", 1.into()),
        pair("m", Value::Map(vec![pair("x", 1.into())])),
        pair("f", 2.into()),
        pair("m", Value::Map(vec![pair("y", 1.into())])),
    ]);
    let batch = packed(&[record]);
    for (where_, expected) in [
        (json!({".f": 1}), true),
        (json!({".f": 2}), false),
        (json!({".m.x": 1}), true),
        (json!({".m.y": 1}), false),
    ] {
        let mut answer = None;
        matcher(&[where_]).each(&batch, |_, _, found| answer = Some(found.is_some()));
        assert_eq!(answer, Some(expected));
    }
}

#[test]
fn conditions_on_the_batch_do_not_read_its_records() {
    // The body is not an entry, so a walk over it would find no records.
    let batch = batch(Encoding::Packed, b"unreadable".to_vec(), 7);
    for (where_, expected) in [
        (json!({"tag": "web.**"}), true),
        (json!({"tag": ["db", "web.front"]}), true),
        (json!({"tag": {"glob": "db.**"}}), false),
        (json!({"tag": {"eq": "web.front"}}), true),
        (json!({"tag": {"regex": "^web"}}), true),
        (json!({"tag": {"not": "web.**"}}), false),
        (json!({"host": ["web-1", "web-2"]}), true),
        (json!({"path": "x"}), false),
        (json!({"path": {"exists": false}}), true),
        (json!({"not": {"path": "x"}}), true),
        (
            json!({"host": {"glob": "web-*"}, "any": [{"tag": "web.**"}, {".f": 1}]}),
            true,
        ),
        (json!({"host": "other", ".f": 1}), false),
    ] {
        let mut runs = Vec::new();
        matcher(std::slice::from_ref(&where_)).runs(&batch, |run| runs.push(run));
        let run = Run {
            condition: expected.then_some(0),
            range: 0..10,
            first: 0,
            count: 7,
        };
        assert_eq!(runs, [run], "{where_}");
    }
}

#[test]
fn lines_are_records_with_a_message() {
    let body = b"GET /\nPOST /x\r\n\nGET /y\n";
    let batch = batch(Encoding::Lines, body.to_vec(), 4);
    let mut runs = Vec::new();
    let routes = [
        json!({".message": {"glob": "GET *"}, ".level": {"exists": false}}),
        json!({".message": "POST /x\r"}),
        json!({".message.x": 1}),
    ];
    matcher(&routes).runs(&batch, |run| {
        runs.push((run.condition, &body[run.range], run.first, run.count));
    });
    assert_eq!(
        runs,
        [
            (Some(0), &b"GET /\n"[..], 0, 1),
            (Some(1), b"POST /x\r\n", 1, 1),
            (None, b"\n", 2, 1),
            (Some(0), b"GET /y\n", 3, 1),
        ]
    );
    let shared = Shared::from(&batch);
    let record = record::Record::Line(b"POST /x\r");
    assert_eq!(matcher(&routes).matches(shared, record), Some(1));
    let none = record::Record::None;
    assert_eq!(
        matcher(&[json!({".a": {"exists": false}})]).matches(shared, none),
        Some(0)
    );
}

#[test]
fn an_empty_batch_has_no_runs() {
    for encoding in [Encoding::Lines, Encoding::Packed] {
        for where_ in [json!({".a": 1}), json!({"tag": "web.**"})] {
            let empty = batch(encoding, Vec::new(), 0);
            matcher(&[where_]).runs(&empty, |run| panic!("{run:?}"));
        }
    }
}

#[test]
fn an_invalid_condition_is_explained() {
    for (json, why) in [
        (json!({"level": "error"}), "`.level`"),
        (json!({"time": 5}), "VRL"),
        (json!({".a..b": 5}), "an empty part"),
        (json!({".a": {"above": 5}}), "above"),
        (json!({".a": {".b": 5}}), "whole path"),
        (json!({".a": {"gt": true}}), "have an order"),
        (json!({".a": {"glob": "[a"}}), "not closed"),
        (json!({".a": {"regex": ["a", "("]}}), "unclosed group"),
        (json!({".a": {"regex": "(?=a)"}}), "look-around"),
        (json!({".a": {"exists": 1}}), "a boolean"),
        (json!({".a": [[1]]}), "a text, a number"),
        (json!({"host": 5}), "texts"),
        (json!({"pid": {"gt": 5}}), "texts"),
        (json!({"any": {".a": 1}}), "a sequence"),
        (json!(5), "a VRL condition"),
        (
            json!({format!(".{}", vec!["a"; 65].join(".")): 1}),
            "64 maps deep",
        ),
    ] {
        let error = serde_json::from_value::<Where>(json.clone())
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{json}: {error}");
    }
    let tag = condition(&json!({"tag": "[a"}));
    assert_eq!(Matcher::new([&tag], &tags).unwrap_err(), "no pattern");
    assert!(
        matches!(serde_json::from_value(json!(".a == 1")), Ok(Where::Program(text)) if text == ".a == 1")
    );
}

#[test]
fn a_condition_reports_what_it_reads_and_whether_it_has_no_test() {
    let one = condition(&json!({"host": "a", "any": [{"tag": "b"}, {"not": {"path": "c"}}]}));
    assert_eq!(one.values(), ["host", "path"]);
    assert!(!one.reads_records() && one.problem().is_none());
    assert!(condition(&json!({"not": {"any": [{".a": 1}]}})).reads_records());
    for empty in [
        json!({}),
        json!({"any": []}),
        json!({".a": []}),
        json!({"not": {}}),
        json!({".a": {}}),
    ] {
        assert!(condition(&empty).problem().is_some(), "{empty}");
    }
}

#[test]
fn hostile_records_are_evaluated() {
    // 100,000 nested maps, under a key into which the condition descends.
    let mut deep = b"\x92\x01\x82\xa1a".to_vec();
    for _ in 0..100_000 {
        deep.extend_from_slice(b"\x81\xa1a");
    }
    deep.extend_from_slice(b"\x01\xa1b\x02");
    // A text of 64 MiB.
    let mut large = b"\x92\x01\x82\xa1a".to_vec();
    msgpack::write_str(&mut large, &vec![b'a'; 64 << 20]);
    large.extend_from_slice(b"\xa1b\x02");
    let path = ".a".repeat(60);
    for body in [deep, large] {
        let batch = batch(Encoding::Packed, body.clone(), 1);
        let mut runs = Vec::new();
        matcher(&[json!({".b": 2, path.clone(): {"exists": body.len() < 1 << 20}})])
            .runs(&batch, |run| runs.push(run));
        assert_eq!(runs.len(), 1);
        assert_eq!(
            (runs[0].condition, runs[0].range.len()),
            (Some(0), body.len())
        );
    }
}
