//! Compares edits with a simple interpreter over value trees, which makes one change after the other.

use proptest::prelude::*;

use super::*;

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

/// Returns the map at the path. If a key is repeated, the first occurrence counts.
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

/// Sorts the pairs whose names the changes can contain, so that their order does not matter. All other pairs keep their
/// order.
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
            // A key that the edit writes may be a str where the record has a bin.
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
    fn edits_of_the_bytes_agree_with_the_interpreter(
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
    fn invalid_bodies_cause_no_panic_and_rejects_have_valid_ranges(
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
