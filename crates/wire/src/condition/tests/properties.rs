//! Compares the matcher with a simple interpreter that evaluates conditions on value trees. The two share no code.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;

/// The tag of the batch, for the interpreter.
const TAG: &str = "web.front";

fn expected(where_: &Json, record: &Value) -> bool {
    let pairs = where_.as_object().unwrap();
    pairs.iter().all(|(name, test)| match name.as_str() {
        "any" => test
            .as_array()
            .unwrap()
            .iter()
            .any(|one| expected(one, record)),
        "all" => test
            .as_array()
            .unwrap()
            .iter()
            .all(|one| expected(one, record)),
        "not" => !expected(test, record),
        "tag" => passes(test, Some(&TAG.into())),
        "host" => passes(test, Some(&"web-1".into())),
        "path" => passes(test, None),
        path => {
            let mut value = Some(record);
            for part in path.split('.').skip(1) {
                let text = |key: &Value| match key {
                    Value::Binary(bytes) => bytes.clone(),
                    key => key
                        .as_str()
                        .map(|key| key.as_bytes().to_vec())
                        .unwrap_or_default(),
                };
                let is_text = |key: &Value| matches!(key, Value::String(_) | Value::Binary(_));
                value = value.and_then(Value::as_map).and_then(|pairs| {
                    let mut pairs = pairs.iter();
                    let pair = pairs.find(|(key, _)| is_text(key) && text(key) == part.as_bytes());
                    pair.map(|(_, value)| value)
                });
            }
            passes(test, value)
        }
    })
}

fn passes(test: &Json, value: Option<&Value>) -> bool {
    match test {
        Json::Array(constants) => constants.iter().any(|one| passes(one, value)),
        Json::Object(operators) => operators.iter().all(|(name, test)| {
            let order = value.and_then(|value| order(value, test));
            let text = value.and_then(text_of);
            let texts = match test {
                Json::Array(texts) => texts.clone(),
                one => vec![one.clone()],
            };
            let mut texts = texts.iter().filter_map(Json::as_str);
            match name.as_str() {
                "eq" => passes(test, value),
                "gt" => order == Some(Ordering::Greater),
                "ge" => order.is_some_and(Ordering::is_ge),
                "lt" => order == Some(Ordering::Less),
                "le" => order.is_some_and(Ordering::is_le),
                "exists" => value.is_some() == test.as_bool().unwrap(),
                "not" => !passes(test, value),
                "any" => test
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| passes(one, value)),
                "all" => test
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| passes(one, value)),
                "glob" => text.is_some_and(|text| texts.any(|glob| globs(glob.as_bytes(), &text))),
                // These tests use only two kinds of regular expressions: `^` and a prefix, or a suffix and `$`.
                _ => text.is_some_and(|text| {
                    texts.any(|regex| match regex.strip_prefix('^') {
                        Some(start) => text.starts_with(start.as_bytes()),
                        None => text.ends_with(regex.trim_end_matches('$').as_bytes()),
                    })
                }),
            }
        }),
        Json::Null => matches!(value, Some(Value::Nil)),
        Json::Bool(test) => value.and_then(Value::as_bool) == Some(*test),
        constant => value.and_then(|value| order(value, constant)) == Some(Ordering::Equal),
    }
}

fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Binary(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn order(value: &Value, bound: &Json) -> Option<Ordering> {
    let whole = |number: f64| number.floor() as i128;
    let integer = |value: &Value| match (value.as_u64(), value.as_i64()) {
        (Some(number), _) => Some(i128::from(number)),
        (_, number) => number.map(i128::from),
    };
    let float = |value: &Value| match value {
        Value::F32(number) => Some(f64::from(*number)),
        Value::F64(number) => Some(*number),
        _ => None,
    };
    let mixed = |int: i128, number: f64| match (int.cmp(&whole(number)), number == number.floor()) {
        _ if number.is_nan() => None,
        (Ordering::Equal, false) => Some(Ordering::Less),
        (order, _) => Some(order),
    };
    let bound = map(bound);
    if let (Some(a), Some(b)) = (text_of(value), text_of(&bound)) {
        return Some(a.cmp(&b));
    }
    match (integer(value), float(value), integer(&bound), float(&bound)) {
        (Some(a), _, Some(b), _) => Some(a.cmp(&b)),
        (Some(a), _, _, Some(b)) => mixed(a, b),
        (_, Some(a), Some(b), _) => mixed(b, a).map(Ordering::reverse),
        (_, Some(a), _, Some(b)) => a.partial_cmp(&b),
        _ => None,
    }
}

fn globs(glob: &[u8], text: &[u8]) -> bool {
    match glob {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|start| globs(rest, &text[start..])),
        [b'?', rest @ ..] => !text.is_empty() && globs(rest, &text[1..]),
        [first, rest @ ..] => text.first() == Some(first) && globs(rest, &text[1..]),
    }
}

/// Constants and values that are often equal to each other.
fn scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Json::from),
        (-3..4_i64).prop_map(Json::from),
        (-4..5_i64).prop_map(|half| json!(half as f64 / 2.0)),
        prop::sample::select(vec![i64::MIN, i64::MAX, 1 << 53, (1 << 53) + 1]).prop_map(Json::from),
        prop::sample::select(vec![u64::MAX, 1 << 63]).prop_map(Json::from),
        prop::sample::select(vec![
            9_007_199_254_740_992.0,
            18_446_744_073_709_551_616.0,
            -9_223_372_036_854_775_808.0,
            1e300
        ])
        .prop_map(Json::from),
        "[ab]{0,3}".prop_map(Json::from),
        Just(json!(
            "a text of more than thirty-two bytes, so that its head has two"
        )),
    ]
}

fn field_test() -> impl Strategy<Value = Json> {
    let bound = scalar().prop_filter("an order", |one| one.is_number() || one.is_string());
    let side = prop::sample::select(vec!["gt", "ge", "lt", "le"]);
    let leaf = prop_oneof![
        3 => scalar(),
        2 => prop::collection::vec(scalar(), 0..12).prop_map(Json::from),
        3 => prop::collection::vec((side, bound), 1..3).prop_map(|sides| sides.into_iter().map(|(name, bound)| (name.to_owned(), bound)).collect()),
        1 => any::<bool>().prop_map(|exists| json!({"exists": exists})),
        1 => prop::collection::vec("[ab*?]{0,4}", 1..3).prop_map(|globs| json!({"glob": globs})),
        1 => prop_oneof!["\\^[ab]{0,2}", "[ab]{0,2}\\$"].prop_map(|regex| json!({"regex": regex})),
        1 => prop::collection::vec(scalar(), 0..3).prop_map(|list| json!({"eq": list})),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|test| json!({"not": test})),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|tests| json!({"any": tests})),
            prop::collection::vec(inner, 0..3).prop_map(|tests| json!({"all": tests})),
        ]
    })
}

fn where_() -> impl Strategy<Value = Json> {
    let field = prop::sample::select(vec![
        ".a",
        ".b",
        ".message",
        ".a.b",
        ".a.a.b",
        ".b.key-of-more-than-sixteen-bytes",
        ".key-of-more-than-sixteen-bytes",
        ".b.a",
        ".dd",
    ]);
    let fields = prop::collection::vec((field, field_test()), 0..3);
    let shared = prop::option::of(prop::sample::select(vec![
        ("tag", json!("web.front")),
        ("tag", json!({"not": "web.front"})),
        ("host", json!(["web-1"])),
        ("host", json!({"gt": "web-2"})),
        ("path", json!({"exists": false})),
    ]));
    let leaf = (fields, shared).prop_map(|(fields, shared)| {
        let tests = fields.into_iter().chain(shared);
        tests
            .map(|(name, test)| (name.to_owned(), test))
            .collect::<Json>()
    });
    leaf.prop_recursive(3, 8, 3, |inner| {
        let lists = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            inner.clone().prop_map(|one| json!({"not": one})),
            (lists.clone(), inner.clone()).prop_map(|(any, mut one)| {
                one["any"] = any.into();
                one
            }),
            (lists, inner).prop_map(|(all, mut one)| {
                one["all"] = all.into();
                one
            }),
        ]
    })
}

fn record() -> impl Strategy<Value = Value> {
    let key = || {
        let text = prop::sample::select(vec![
            "a",
            "b",
            "message",
            "dd",
            "key-of-more-than-sixteen-bytes",
            "",
        ]);
        prop_oneof![
            20 => text.clone().prop_map(Value::from),
            1 => text.prop_map(|text| Value::Binary(text.as_bytes().to_vec())),
            1 => Just(Value::from(1)),
        ]
    };
    let leaf = prop_oneof![
        12 => scalar().prop_map(|json| map(&json)),
        1 => "[ab]{0,3}".prop_map(|text| Value::Binary(text.into_bytes())),
        1 => any::<f32>().prop_map(Value::from),
        1 => Just(Value::F64(f64::NAN)),
        1 => Just(Value::Ext(3, vec![1; 5])),
        1 => (0..70_000_usize).prop_map(|count| Value::from("x".repeat(count))),
        1 => prop::collection::vec(Just(Value::from(1)), 0..20).prop_map(Value::Array),
    ];
    let value = leaf.prop_recursive(3, 12, 4, move |inner| {
        prop::collection::vec((key(), inner), 0..4).prop_map(Value::Map)
    });
    let pairs = prop_oneof![9 => 0..6_usize, 1 => 14..20_usize];
    pairs.prop_flat_map(move |count| {
        let key = prop_oneof![8 => key(), 1 => "[c-z]{1,20}".prop_map(Value::from)];
        prop::collection::vec((key, value.clone()), count).prop_map(Value::Map)
    })
}

fn check_runs(conditions: &[Json], batch: &Batch, records: &[Value]) -> Result<(), TestCaseError> {
    let first = |record: &Value| conditions.iter().position(|one| expected(one, record));
    let answers: Vec<_> = records.iter().map(first).collect();
    let mut matcher = matcher(conditions);
    let ranges: Vec<_> = record::records(batch).map(|(range, _)| range).collect();
    let mut each = Vec::new();
    matcher.each(batch, |range, _, answer| each.push((range, answer)));
    let all: Vec<_> = ranges
        .iter()
        .cloned()
        .zip(answers.iter().copied())
        .collect();
    prop_assert_eq!(each, all);
    for (number, (_, timed)) in record::records(batch).enumerate() {
        prop_assert_eq!(matcher.matches(batch.into(), timed.record), answers[number]);
    }
    let (mut next, mut end, mut last) = (0, 0, None);
    let mut runs = Vec::new();
    matcher.runs(batch, |run| runs.push(run));
    for run in runs {
        prop_assert_eq!((run.first as usize, run.range.start), (next, end));
        prop_assert!(run.count > 0 && last != Some(run.condition), "{:?}", run);
        (end, last) = (run.range.end, Some(run.condition));
        for answer in &answers[next..next + run.count as usize] {
            prop_assert_eq!(*answer, run.condition);
        }
        next += run.count as usize;
    }
    prop_assert_eq!((next, end), (records.len(), batch.body.len()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_matcher_agrees_with_the_interpreter(
        conditions in prop::collection::vec(where_(), 0..4),
        records in prop::collection::vec(record(), 0..6),
        repeats in 1..3_usize,
    ) {
        // Records are repeated, because the matcher caches the keys of the previous record.
        let records: Vec<_> = records.into_iter().flat_map(|record| vec![record; repeats]).collect();
        check_runs(&conditions, &packed(&records), &records)?;
    }

    #[test]
    fn a_line_is_tested_like_a_record_with_one_field(
        conditions in prop::collection::vec(where_(), 0..4),
        lines in prop::collection::vec("[ab]{0,3}", 0..8),
    ) {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let records: Vec<_> = lines.iter().map(|line| map(&json!({"message": line}))).collect();
        check_runs(&conditions, &batch(Encoding::Lines, body.into_bytes(), lines.len()), &records)?;
    }

    #[test]
    fn invalid_bodies_never_panic(
        where_ in where_(),
        mut body in prop::collection::vec(any::<u8>(), 0..200),
        whole: bool,
    ) {
        if whole {
            body.splice(0..0, *b"\x92\x01\x82\xa1a");
        }
        for encoding in [Encoding::Packed, Encoding::Lines] {
            let batch = batch(encoding, body.clone(), 1);
            let mut matcher = matcher(std::slice::from_ref(&where_));
            let mut end = 0;
            matcher.each(&batch, |range, _, _| {
                assert_eq!(range.start, end);
                end = range.end;
            });
            prop_assert!(end <= body.len());
        }
    }
}
