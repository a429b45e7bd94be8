//! Closures run for each element of a record. The values that they keep must not grow out of proportion.

use crate::{
    Condition, Options, Outcome, Predicate,
    rig::{changed, one, records, run},
};

/// A record `{"list": [0, 0, ...]}` with `count` elements, and these other fields.
fn list(count: usize, others: &str) -> String {
    format!(r#"{{"list":[{}]{others}}}"#, vec!["0"; count].join(","))
}

/// Runs a program on a record that is given as JSON. Returns the new record, or the error.
fn result(program: &str, json: &str) -> Result<String, String> {
    let (outcome, out, _) = run(program, &one(json));
    match outcome {
        Outcome::Written(_) => Ok(records(&out).join("\n")),
        Outcome::Failed(why) => Err(why),
        outcome => panic!("{program}: {outcome:?}"),
    }
}

#[test]
fn a_value_that_nests_deeper_with_each_element_is_an_error() {
    let record = list(20_000, "");
    for body in [
        "x = {\"a\": x}",
        "x = [x]",
        "x = {\"a\": {\"b\": [x]}}",
        "x.a = x",
        "x |= {\"a\": x}",
        "x = set!(x, [\"a\"], x)",
        "x = merge(x, {\"a\": x})",
        "x = {\"a\": push!([], x)}",
        "x = if is_object(x) { [x] } else { {\"a\": x} }",
        "x.b = x; x = {\"a\": del(x.b)}",
        ".x.b = .x; .x = {\"a\": {\"a\": del(.x).a}}",
        "y = x; x = {\"a\": y}",
        ".x = {\"a\": .x}",
        ".x = {\"a\": del(.x)}",
        ".x = {\"a\": {\"a\": .x.a}}",
        "%tag, err = \"a\" + x.b; x = {\"a\": x}",
        "for_each([1, 2]) -> |_i, _v| { x = {\"a\": x} }",
        "x = map_values([x]) -> |v| { v }",
        "x = {\"a\": filter([x]) -> |_i, _v| { true }}",
    ] {
        let program = format!("x = {{}}\nfor_each(array!(.list)) -> |_i, _v| {{ {body} }}");
        let why = result(&program, &record).unwrap_err();
        assert!(why.contains("deeper than 256 levels"), "{body}: {why}");
    }
}

#[test]
fn a_value_that_doubles_with_each_element_is_an_error() {
    let record = list(60, r#","text":"0123456789""#);
    for body in [
        "x = x + x",
        "x = \"{{ x }}{{ x }}\"",
        "x = \"{{x}}, and {{x}}\"",
        "x = join([x, x])",
        ".text = string!(.text) + string!(.text)",
        "y = append(y, y)",
        "y = flatten([y, y])",
        "y = [y, y]",
        "y = {\"a\": y, \"b\": y}",
        "y = push(push([], y), y)",
        ".y.a = .y; .y.b = .y",
        ".y |= {\"a\": .y, \"b\": .y}",
    ] {
        let program = format!(
            "x = string!(.text)\ny = [1]\n.y = {{}}\nfor_each(array!(.list)) -> |_i, _v| {{ {body} }}"
        );
        let why = result(&program, &record).unwrap_err();
        let found = ["268435456 bytes", "67108864 bytes"];
        assert!(found.iter().any(|one| why.contains(one)), "{body}: {why}");
    }
}

#[test]
fn the_error_of_a_value_that_grows_can_be_handled() {
    let record = list(20_000, r#","text":"0123456789""#);
    for body in [
        ".x, err = [.x, to_int(.none)]",
        ".text, err = .text + .text",
        ".x, err |= {\"a\": .x, \"b\": to_int(.none)}",
        ".x = { y = .x; [y, to_int(.none)] } ?? {}",
    ] {
        let program = format!(".x = {{}}\nfor_each(array!(.list)) -> |_i, _v| {{ {body} }}");
        let found = result(&program, &record);
        let why = "deeper than 128 levels";
        assert!(
            found.as_ref().is_ok_and(|new| new.len() < 100_000)
                || found.as_ref().is_err_and(|error| error.contains(why)),
            "{body}: {found:.100?}"
        );
    }
}

#[test]
fn values_that_closures_collect_are_bounded() {
    // The copies of this array for all elements would take gigabytes.
    let big = format!(",\"big\":[{}]", vec!["1"; 100_000].join(","));
    for (count, body) in [
        (400, "x = push(x, .big)"),
        (
            400,
            "y |= from_entries([{\"key\": to_string(i), \"value\": .big}])",
        ),
        // A small value for each element, which takes quadratic time.
        (100_000, "x = push(x, i)"),
        (
            100_000,
            "y = {\"z\": i, \"contained\": includes(array!(.list), i)}",
        ),
    ] {
        let record = list(count, &big);
        let program = format!("x = []\ny = {{}}\nfor_each(array!(.list)) -> |i, _v| {{ {body} }}");
        let why = result(&program, &record).unwrap_err();
        let found = [
            "takes more than 268435456 bytes",
            "read more than 4294967296 bytes",
        ];
        assert!(found.iter().any(|one| why.contains(one)), "{body}: {why}");
    }
}

#[test]
fn the_results_of_closures_are_bounded_in_sum_and_in_depth() {
    let long = "k".repeat(500_000);
    let big = vec!["1"; 100_000].join(",");
    let keys: Vec<String> = (0..1000).map(|n| format!("\"k{n}\":1")).collect();
    let keys = keys.join(",");
    let big = format!(r#","big":[{big}],"long":"{long}","keys":{{{keys}}}"#);
    let record = list(2000, &big);
    for (program, expected) in [
        (
            ".x = map_values(array!(.list)) -> |_v| { .big }",
            "268435456",
        ),
        (
            ".x = map_values({\"a\": .big, \"b\": .list}, true) -> |v| { if is_array(v) { v } else { .big } }",
            "bytes",
        ),
        (
            ".x = map_values([[], {}], recursive: true) -> |v| { [v] }",
            "deeper than",
        ),
        (
            ".x = map_values([[], {}], recursive: true) -> |v| { {\"a\": v, \"b\": v} }",
            "deeper than",
        ),
        (
            ".x = map_keys(object!(.keys)) -> |k| { string!(.long) + k }",
            "268435456",
        ),
        (
            ".x = replace_with(string!(.long), r'k') -> |_m| { string!(.long) }",
            "67108864",
        ),
    ] {
        let why = result(program, &record).unwrap_err();
        assert!(why.contains(expected), "{program}: {why}");
    }
}

/// The record for [`CASES`].
const RECORD: &str = r#"{"list":[1,2,3],"map":{"a":"x","b":{"c":["y",{"d":"z"}]}},"text":"a-b-c"}"#;

/// Programs with closures, and the value that `.x` has after them.
const CASES: &[(&str, &str)] = &[
    (
        "x = 0; for_each(array!(.list)) -> |_i, v| { x = x + int!(v) }; .x = x",
        "6",
    ),
    (
        ".x = map_values(array!(.list)) -> |v| { v * 2 ?? 0 }",
        "[2,4,6]",
    ),
    (
        ".x = map_values(array!(.list)) -> |v| { {\"n\": v} }",
        r#"[{"n":1},{"n":2},{"n":3}]"#,
    ),
    (
        ".x = map_values(object!(.map), recursive: true) -> |v| { if is_string(v) { upcase!(v) } else { v } }",
        r#"{"a":"X","b":{"c":["Y",{"d":"Z"}]}}"#,
    ),
    (
        ".x = map_values(object!(.map), recursive: true) -> |v| { if is_array(v) { {\"l\": 1, \"m\": {}} } else { v } }",
        r#"{"a":"x","b":{"c":{"l":1,"m":{}}}}"#,
    ),
    (
        ".x = map_keys(object!(.map)) -> |k| { upcase(k) }",
        r#"{"A":"x","B":{"c":["y",{"d":"z"}]}}"#,
    ),
    (
        ".x = map_keys(object!(.map), true) -> |k| { upcase(k) }",
        r#"{"A":"x","B":{"C":["y",{"D":"z"}]}}"#,
    ),
    (
        ".x = map_keys(object!(.map)) -> |_k| { \"one\" }",
        r#"{"one":{"c":["y",{"d":"z"}]}}"#,
    ),
    (
        ".x = replace_with(string!(.text), r'(?P<l>[a-z])(-)?') -> |m| { upcase(string!(m.l)) + to_string(m.captures[1]) + m.string }",
        r#""A-a-B-b-Cc""#,
    ),
    (
        ".x = replace_with(string!(.text), r'-', count: 1) -> |_m| { \"\" }",
        r#""ab-c""#,
    ),
    (
        ".x = replace_with(string!(.text), r'-', 0) -> |_m| { \"\" }",
        r#""a-b-c""#,
    ),
    (
        "s = \"\"; for_each(object!(.map)) -> |k, _v| { s = \"{{ s }}{{k}};\" }; .x = s",
        r#""a;b;""#,
    ),
    (
        ".x = {}; for_each(object!(.map)) -> |k, v| { .x |= from_entries([{\"key\": k, \"value\": is_string(v)}]) }",
        r#"{"a":true,"b":false}"#,
    ),
    (
        "x = {\"n\": [1]}; for_each([1, 2]) -> |_i, _v| { x.m, err = del(x.n) + 1; x.e = exists(x.n) }; .x = x.e",
        "false",
    ),
    (
        "x = {}; for_each([1]) -> |_i, _v| { x.a = {\"q\": 1}; y = del(x.a).q; x.b = y }; .x = x",
        r#"{"b":1}"#,
    ),
    (
        "x = []; for_each(array!(.list)) -> |_i, v| { if v == 2 { x = push(x, \"{{ v }}\") } }; .x = x",
        "[2]",
    ),
    (".x = filter(array!(.list)) -> |_i, v| { v != 2 }", "[1,3]"),
    (
        "n = 2; .x = map_values(array!(.list)) -> |v| { m = n * 2; int!(v) / m }",
        "[0.25,0.5,0.75]",
    ),
];

#[test]
fn programs_with_closures_work_as_in_vrl() {
    for (program, expected) in CASES {
        let found = result(&format!("{program}\n. = {{\"x\": .x}}"), RECORD).unwrap();
        assert_eq!(found, format!(r#"{{"x":{expected}}}"#), "{program}");
    }
    let text =
        "found = false; for_each(array!(.list)) -> |_i, v| { found = found || v == 3 }; found";
    let (condition, _) = Condition::compile(text, &Options::default()).unwrap();
    let mut predicate = Predicate::new(&condition);
    predicate.begin(&one(RECORD));
    assert_eq!(predicate.matches(0), Ok(true));
    assert!(changed("for_each(array!(.list)) -> |_i, _v| { .z = .list }", RECORD).is_some());
}

#[test]
fn the_limit_of_what_closures_read_is_that_of_one_record() {
    let record = list(2000, "");
    let text = "for_each(array!(.list)) -> |_i, _v| { .n = length!(.list) }";
    // The closures read 160 MB of each record.
    let mut remap = crate::Remap::new(&crate::rig::compile(text));
    let batch = one(&record);
    for _ in 0..30 {
        remap.begin(&batch, 0);
        let outcome = remap.run(0, &mut Vec::new());
        assert_eq!(outcome, Outcome::Written(1));
    }
}
