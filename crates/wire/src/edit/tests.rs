//! A plain interpreter over value trees is the oracle: it makes one change after the other.

use std::sync::Arc;

use millstream_record::{Time, Values};
use proptest::prelude::*;
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

/// The changed record, in its order.
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
        // Maps are created, and other values in the way are replaced.
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
        // Renaming what is not there changes nothing.
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
        // Only what is kept is left, without empty maps.
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
        // Templates see the new names and not each other; a single field keeps its type.
        (
            changes(
                json!({".a": ".b"}),
                json!({".c": "{.b}", ".d": "{.c|none}", ".e": ["{tag}", {"n": "{.b}-{host}"}], ".b": "{time:unix}"}),
                json!([]),
                json!(null),
            ),
            json!({"a": 18_446_744_073_709_551_615_u64}),
            json!({"b": 7, "c": 18_446_744_073_709_551_615_u64, "d": "none", "e": ["web.front", {"n": "18446744073709551615-web-1"}]}),
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
    // Metadata, bin keys, long forms of short values, equal keys.
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
fn a_missing_value_rejects_its_record_alone() {
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
    let of_batch =
        super::tests::changes(json!({}), json!({".b": "{path}"}), json!([]), json!(null));
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
    // A million pairs with the same key, which is changed: memory does not follow them.
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

// The plain interpreter.

type Pairs = Vec<(Value, Value)>;

fn is(key: &Value, part: &str) -> bool {
    match key {
        Value::String(key) => key.as_bytes() == part.as_bytes(),
        Value::Binary(key) => key == part.as_bytes(),
        _ => false,
    }
}

fn parts(path: &FieldPath) -> Vec<&str> {
    path.parts().iter().map(|part| &**part).collect()
}

fn get<'a>(pairs: &'a Pairs, path: &[&str]) -> Option<&'a Value> {
    let (_, value) = pairs.iter().find(|(key, _)| is(key, path[0]))?;
    match (value, &path[1..]) {
        (value, []) => Some(value),
        (Value::Map(pairs), rest) => get(pairs, rest),
        _ => None,
    }
}

/// The map at the path: the first of equal keys.
fn map_mut<'a>(pairs: &'a mut Pairs, path: &[&str]) -> Option<&'a mut Pairs> {
    let Some((first, rest)) = path.split_first() else {
        return Some(pairs);
    };
    match pairs.iter_mut().find(|(key, _)| is(key, first)) {
        Some((_, Value::Map(pairs))) => map_mut(pairs, rest),
        _ => None,
    }
}

fn put(pairs: &mut Pairs, path: &[&str], value: Value) {
    let (first, rest) = path.split_first().unwrap();
    let at = pairs
        .iter()
        .position(|(key, _)| is(key, first))
        .unwrap_or_else(|| {
            pairs.push(((*first).into(), Value::Nil));
            pairs.len() - 1
        });
    if rest.is_empty() {
        pairs[at] = ((*first).into(), value);
        let mut index = 0;
        pairs.retain(|(key, _)| {
            index += 1;
            index - 1 == at || !is(key, first)
        });
        return;
    }
    if !matches!(pairs[at].1, Value::Map(_)) {
        pairs[at].1 = Value::Map(Vec::new());
    }
    let Value::Map(below) = &mut pairs[at].1 else {
        unreachable!()
    };
    put(below, rest, value);
}

fn remove(pairs: &mut Pairs, path: &[&str]) {
    match path {
        [last] => pairs.retain(|(key, _)| !is(key, last)),
        [first, rest @ ..] => {
            for (key, value) in pairs {
                if let (true, Value::Map(pairs)) = (is(key, first), value) {
                    remove(pairs, rest);
                }
            }
        }
        [] => {}
    }
}

fn keep(pairs: Pairs, paths: &[Vec<&str>]) -> Pairs {
    let pairs = pairs.into_iter().filter_map(|(key, value)| {
        let below = paths.iter().filter(|path| is(&key, path[0]));
        let below: Vec<Vec<&str>> = below.map(|path| path[1..].to_vec()).collect();
        match value {
            _ if below.is_empty() => None,
            value if below.iter().any(Vec::is_empty) => Some((key, value)),
            Value::Map(pairs) => {
                let kept = keep(pairs, &below);
                (!kept.is_empty()).then_some((key, Value::Map(kept)))
            }
            _ => None,
        }
    });
    pairs.collect()
}

fn expected(changes: &Changes, record: &Value) -> Value {
    let Value::Map(mut pairs) = record.clone() else {
        unreachable!()
    };
    let renames: Vec<_> = changes
        .rename
        .fields
        .iter()
        .map(|(from, to)| (parts(from), parts(to)))
        .collect();
    let found: Vec<_> = renames
        .iter()
        .map(|(from, _)| get(&pairs, from).cloned())
        .collect();
    let mark = |index: usize| Value::Ext(99, vec![index as u8]);
    let stays = |from: &[&str], to: &[&str]| from[..from.len() - 1] == to[..to.len() - 1];
    for (index, (from, to)) in renames.iter().enumerate() {
        if found[index].is_none() {
            continue;
        }
        let (last, parent) = from.split_last().unwrap();
        let map = map_mut(&mut pairs, parent).unwrap();
        if stays(from, to) {
            let first = map.iter_mut().find(|(key, _)| is(key, last)).unwrap();
            first.0 = mark(index);
        }
        map.retain(|(key, _)| !is(key, last));
    }
    for (index, (from, to)) in renames.iter().enumerate() {
        let Some(value) = found[index].clone() else {
            continue;
        };
        let (last, parent) = to.split_last().unwrap();
        if stays(from, to) {
            let map = map_mut(&mut pairs, parent).unwrap();
            map.retain(|(key, _)| !is(key, last));
            let marked = map.iter_mut().find(|(key, _)| *key == mark(index)).unwrap();
            *marked = ((*last).into(), value);
        } else {
            put(&mut pairs, to, value);
        }
    }
    let renamed = pairs.clone();
    for (path, setting) in &changes.set.fields {
        let value = match setting {
            Setting::Integer(number) => (*number).into(),
            Setting::Map(_) => map(&json!({"a": 1, "b": {"c": 2}})),
            // The one template of these tests.
            _ => get(&renamed, &["c"])
                .filter(|value| !value.is_nil())
                .cloned()
                .unwrap_or("none".into()),
        };
        put(&mut pairs, &parts(path), value);
    }
    for path in &changes.remove {
        remove(&mut pairs, &parts(path));
    }
    if let Some(kept) = &changes.keep {
        pairs = keep(pairs, &kept.iter().map(parts).collect::<Vec<_>>());
    }
    Value::Map(pairs)
}

/// Names that no change in the tests has keep their order; the others are compared without it.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Map(pairs) => {
            let mut pairs: Pairs = pairs
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect();
            pairs.sort_by_key(|(key, _)| {
                ["a", "b", "c", "d"]
                    .iter()
                    .find(|name| is(key, name))
                    .copied()
            });
            // A key that is written anew may be a str instead of a bin.
            for (key, _) in &mut pairs {
                if let Value::Binary(bytes) = key {
                    *key = String::from_utf8_lossy(bytes).as_ref().into();
                }
            }
            Value::Map(pairs)
        }
        other => other.clone(),
    }
}

fn any_record() -> impl Strategy<Value = Value> {
    let key = || {
        let name = prop::sample::select(vec!["a", "b", "c", "d", "other", "message"]);
        prop_oneof![
            15 => name.clone().prop_map(Value::from),
            1 => name.prop_map(|name| Value::Binary(name.as_bytes().to_vec())),
            1 => Just(Value::from(1)),
        ]
    };
    let leaf = prop_oneof![
        5 => any::<u64>().prop_map(Value::from),
        3 => ".{0,40}".prop_map(Value::from),
        1 => Just(Value::Nil),
        1 => Just(Value::Array(vec![Value::Map(vec![("a".into(), 1.into())])])),
    ];
    let value = leaf.prop_recursive(3, 20, 5, move |inner| {
        prop::collection::vec((key(), inner), 0..5).prop_map(Value::Map)
    });
    let count = prop_oneof![9 => 0..6_usize, 1 => 12..20_usize];
    count.prop_flat_map(move |count| {
        prop::collection::vec((key(), value.clone()), count).prop_map(Value::Map)
    })
}

fn any_changes() -> impl Strategy<Value = Changes> {
    let path = || {
        let part = prop::sample::select(vec!["a", "b", "c", "d"]);
        let path = prop::collection::vec(part, 1..4);
        path.prop_map(|parts| {
            parts
                .iter()
                .map(|part| format!(".{part}"))
                .collect::<String>()
        })
    };
    let paths = || prop::collection::vec(path(), 0..3);
    let value = prop_oneof![
        Just(json!(7)),
        Just(json!({"a": 1, "b": {"c": 2}})),
        Just(json!("{.c|none}")),
    ];
    let rename = prop::collection::vec((path(), path()), 0..4);
    let set = prop::collection::vec((path(), value), 0..3);
    let changes = (rename, set, paths(), prop::option::weighted(0.3, paths()));
    changes.prop_filter_map(
        "they contradict each other",
        |(rename, set, remove, keep)| {
            let rename = rename.into_iter().map(|(from, to)| (from, Json::from(to)));
            let changes = changes_of(rename.collect(), set.into_iter().collect(), remove, keep);
            changes.compile(&TimeZone::UTC).is_ok().then_some(changes)
        },
    )
}

fn changes_of(rename: Json, set: Json, remove: Vec<String>, keep: Option<Vec<String>>) -> Changes {
    changes(rename, set, json!(remove), json!(keep))
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn changes_of_the_bytes_are_those_of_the_tree(
        changes in any_changes(),
        records in prop::collection::vec(any_record(), 0..5),
    ) {
        let (edited, rejects) = apply(&changes, &packed(&records));
        prop_assert_eq!(rejects, vec![]);
        prop_assert_eq!(edited.len(), records.len());
        for (record, edited) in records.iter().zip(edited) {
            prop_assert_eq!(sorted(&edited), sorted(&expected(&changes, record)), "{}", record);
        }
    }

    #[test]
    fn invalid_bodies_never_panic_and_every_record_is_accounted_for(
        changes in any_changes(),
        mut body in prop::collection::vec(any::<u8>(), 0..200),
        whole: bool,
    ) {
        if whole {
            body.splice(0..0, *b"\x92\x01\x82\xa1a");
        }
        let batch = batch(Encoding::Packed, body);
        let (mut out, mut rejects) = (Vec::new(), Vec::new());
        let mut edit = changes.compile(&TimeZone::UTC).unwrap();
        let count = edit.apply(&batch, &mut out, &mut rejects);
        prop_assert!(count > 0 || !rejects.is_empty() || batch.is_empty());
        for reject in rejects {
            prop_assert!(reject.range.start < reject.range.end && reject.range.end <= batch.len());
        }
    }
}
