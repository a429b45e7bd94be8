//! Functions that could use unlimited stack or memory because of a single record.

use crate::{
    Condition, Options, Outcome, Predicate, Program,
    functions::RESULT_MAX,
    rig::{batch, changed, entry, one, records, run},
    weight::MEMORY_MAX,
};
use millstream_record::Encoding;
use millstream_wire::msgpack::{write_bin, write_map_len, write_str};

/// Runs a program on `{"v": value}`, and returns its error.
fn failure(program: &str, value: &[u8]) -> String {
    let mut record = Vec::new();
    write_map_len(&mut record, 1);
    write_str(&mut record, b"v");
    write_bin(&mut record, value);
    match run(program, &batch(Encoding::Packed, entry(&record), 1)) {
        (Outcome::Failed(why), ..) => why,
        (outcome, ..) => panic!("{program}: {outcome:?}"),
    }
}

#[test]
fn decompression_bombs_are_errors() {
    let zeros = vec![0; (64 << 20) + 1];
    let zstd = zstd::encode_all(&zeros[..], 1).unwrap();
    assert!(failure(".x = decode_zstd!(.v)", &zstd).contains("more than 67108864 bytes"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &zeros).unwrap();
    assert!(failure(".x = decode_gzip!(.v)", &gzip.finish().unwrap()).contains("more than"));
    // A header that announces 4 GiB.
    let snappy = failure(".x = decode_snappy!(.v)", b"\xff\xff\xff\xff\x0f\x00");
    assert!(snappy.contains("more than"), "{snappy}");
    for name in ["gzip", "zlib", "zstd", "snappy"] {
        let why = failure(&format!(".x = decode_{name}!(.v)"), b"nonsense");
        assert!(why.contains("unable to decode value with"), "{why}");
    }
    assert_eq!(
        changed(
            ".x = decode_zlib!(encode_zlib(string!(.x)))",
            r#"{"x":"text"}"#
        )
        .unwrap(),
        r#"{"x":"text"}"#
    );
}

#[test]
fn split_works_as_in_vrl_and_the_memory_of_its_parts_is_bounded() {
    for (program, expected) in [
        (r#".v = split!(.v, ",")"#, r#"["a","","b"]"#),
        (r#".v = split!(.v, ",", 2)"#, r#"["a",",b"]"#),
        (r#".v = split!(.v, ",", limit: 0)"#, "[]"),
        (r#".v = split!(.v, ",", limit: -1)"#, "[]"),
        (r#".v = split!(.v, r',+')"#, r#"["a","b"]"#),
        (r#".v = split!(.v, r',+', 1)"#, r#"["a,,b"]"#),
        (r#".v = split!(.v, "x")"#, r#"["a,,b"]"#),
    ] {
        let found = changed(program, r#"{"v":"a,,b"}"#).unwrap();
        assert_eq!(found, format!(r#"{{"v":{expected}}}"#), "{program}");
    }
    let commas = vec![b','; 12 << 20];
    for program in [
        r#".x = split!(.v, ",")"#,
        r#".x = split!(.v, r',')"#,
        ".x = chunks!(.v, 1)",
        ".x = parse_csv!(.v)",
        ".x = parse_tokens!(.v)",
        ".x = parse_query_string!(.v)",
    ] {
        let why = failure(program, &commas);
        assert!(why.contains("more than"), "{program}: {why}");
    }
}

#[test]
fn replace_works_as_in_vrl_and_its_result_is_bounded() {
    for (program, expected) in [
        (r#".v = replace!(.v, "b", "x")"#, "axxa a"),
        (r#".v = replace!(.v, "b", "x", 1)"#, "axba a"),
        (r#".v = replace!(.v, "b", "x", 0)"#, "abba a"),
        (r#".v = replace!(.v, "", "-")"#, "-a-b-b-a- -a-"),
        (r#".v = replace!(.v, r'b+', "x")"#, "axa a"),
        (r#".v = replace!(.v, r'(a)(b*)', "$2$1")"#, "bbaa a"),
        (r#".v = replace!(.v, r'(a)', "$1$1", 1)"#, "aabba a"),
    ] {
        let found = changed(program, r#"{"v":"abba a"}"#).unwrap();
        assert_eq!(found, format!(r#"{{"v":"{expected}"}}"#), "{program}");
    }
    let long = b"x".repeat(40_000);
    for program in [
        r#".v = replace!(.v, "x", string!(.v))"#,
        r#".v = replace!(.v, r'x', string!(.v))"#,
        r#"w = replace!(.v, "x", "$0"); .v = replace!(.v, r'x+', w)"#,
    ] {
        let why = failure(program, &long);
        assert!(why.contains("more than 67108864 bytes"), "{program}: {why}");
    }
}

#[test]
fn texts_that_nest_too_deep_are_errors() {
    let why = failure("x = .v; .x = parse_xml!(x)", &b"<a>".repeat(100_000));
    assert!(why.contains("nests deeper than 128"), "{why}");
    let why = failure(".x = parse_ruby_hash!(.v)", &b"{\"a\"=>".repeat(100_000));
    assert!(why.contains("nests deeper than 128"), "{why}");
    // Signs of an end that are none, because they are in a quoted text or a comment.
    for tag in [&b"<a b=\"/>\">"[..], b"<a b='</a>'>", b"<a><!--></a>-->"] {
        let text = [tag.repeat(100_000), b"</a>".repeat(100_000)].concat();
        let why = failure("x = .v; .x = parse_xml!(x)", &text);
        assert!(why.contains("nests deeper than 128"), "{why}");
    }
    for key in [&b"{\"}\"=>"[..], b"{'}'=>", b"{\"\\\"}\"=>"] {
        let why = failure(".x = parse_ruby_hash!(.v)", &key.repeat(100_000));
        assert!(why.contains("nests deeper than 128"), "{why}");
    }
    let why = failure(".x = parse_json!(.v)", &b"[".repeat(100_000));
    assert!(why.contains("recursion limit"), "{why}");
    failure(".x = parse_yaml!(.v)", &b"[".repeat(100_000));
    failure(".x = parse_cbor!(.v)", &[0x81; 100_000]);
    let why = failure(
        "x = set!({}, [string!(.v)], 1); .x = unflatten!(x)",
        &b"a.".repeat(50_000),
    );
    assert!(why.contains("nest deeper than 128"), "{why}");
    let empty = "s = to_string(.w) ?? \".\"\n.x = unflatten!({\"a\": 1}, separator: s)";
    assert!(failure(empty, b"").contains("must not be empty"));
    // Shallow texts are parsed. In this text, the brackets in the comment and in CDATA do not count.
    let xml = r#"{"v":"<a b='1'><!-- <x><x> --><![CDATA[<y><y>]]><c/><d>1</d></a>"}"#;
    assert!(changed(".v = parse_xml!(.v)", xml).is_some());
    assert!(changed(".v = parse_xml!(string!(.v))", xml).is_some());
}

#[test]
fn texts_that_would_take_memory_or_time_out_of_proportion_are_errors() {
    let aliases = format!(
        "[&a [{}],{}]",
        vec!["1"; 4000].join(","),
        vec!["*a"; 4000].join(",")
    );
    for (program, text, why) in [
        (".x = parse_yaml!(.v)", aliases, "more than 8 aliases"),
        (
            ".x = parse_yaml!(.v)",
            "{a: ".repeat(50_000),
            "nests deeper",
        ),
        (
            ".x = parse_key_value!(.v)",
            "word ".repeat(200_000),
            "search for `=`",
        ),
        (
            ".x = parse_logfmt!(string!(.v))",
            "a ".repeat(500_000),
            "search for `=`",
        ),
        (
            ".x = parse_xml!(.v)",
            format!("<r>{}</r>", "<b xmlns:z='v'/>".repeat(8000)),
            "more than 512 namespaces",
        ),
        (
            ".x = parse_duration!(.v, \"s\")",
            "1s".repeat(500_000),
            "more than 4096 bytes",
        ),
        (
            ".x = parse_cef!(.v)",
            format!("CEF:0|a|b|c|d|e|f| k=x{}", " ".repeat(1_000_000)),
            "more than 256 repeated",
        ),
        (
            ".x = parse_influxdb!(.v)",
            format!("m{} {} 1", ",a=b".repeat(8000), vec!["f=1"; 8000].join(",")),
            "copies of tags",
        ),
    ] {
        let found = failure(program, text.as_bytes());
        assert!(found.contains(why), "{program}: {found}");
    }
}

#[test]
fn a_panic_of_a_function_is_an_error_of_the_record() {
    for (program, text) in [
        ("x = .v; .x = parse_xml!(x)", &b"<a><!-- c --></a>"[..]),
        (".x = parse_ruby_hash!(.v)", b"{\"a\"=>nan}"),
    ] {
        let why = failure(program, text);
        assert!(why.contains("panicked"), "{program}: {why}");
    }
}

#[test]
fn indexes_and_paths_from_a_record_are_bounded() {
    for index in ["9223372036854775807", "-9223372036854775808", "65536"] {
        let json = format!(r#"{{"i":{index}}}"#);
        let (outcome, ..) = run(". = set!(., [\"a\", int!(.i)], 1)", &crate::rig::one(&json));
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("may be 65535 in total")),
            "{outcome:?}"
        );
    }
    for (path, why) in [
        ("[\"a\", -1025]", "an index may be -1024 at least"),
        ("[40000, 40000]", "may be 65535 in total"),
    ] {
        let found = failure(&format!(". = set!({{}}, {path}, 1)"), b"");
        assert!(found.contains(why), "{path}: {found}");
    }
    assert_eq!(
        changed(". = set!(., [\"a\", int!(.i)], 1)", r#"{"i":1}"#).unwrap(),
        r#"{"a":[null,1],"i":1}"#
    );
    let why = failure(
        "p = split(string!(.v), \".\")\n. = set!(., p, 1)",
        &b"a.".repeat(200),
    );
    assert!(why.contains("a path may have 128 segments"), "{why}");
}

#[test]
fn a_regex_takes_linear_time_on_input_that_makes_other_engines_backtrack() {
    let why = failure(
        ".x = parse_regex!(.v, r'^(?P<a>(a+)+)$')",
        &[&b"a".repeat(100_000)[..], b"!"].concat(),
    );
    assert!(why.contains("could not find any pattern matches"), "{why}");
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
fn a_product_of_numbers_is_the_same_as_in_vrl() {
    for (program, x) in [
        (".x = .a * .b ?? 0", "6"),
        (".x = .b * .f ?? 0", "4.5"),
        (".x = int!(.a) * int!(.b)", "6"),
        (".x = int!(.a) * 1.5", "3.0"),
        (".x = (.a + .b) * (.b - 1) ?? 0", "10"),
        (".x = .a * .b * .b ?? 0", "18"),
        (".x = to_int(.t) * .b ?? 0", "21"),
        (".x = to_int!(.t) * int!(.b)", "21"),
        (".x = length(\"ab\") * 2", "4"),
        (".x = 2 * 3 * int!(.b)", "18"),
        (".x, err = .a * .b", "6"),
        (".x = abs!(.a) * 2 ?? 0", "4"),
        (".x = {\"y\": 7}.y * 2", "14"),
        (".x = .missing * .b ?? -1", "-1"),
        (".x = .a * true ?? -1", "-1"),
        // Constants stay constants, so these divisions cannot fail.
        ("minute = 60; hour = minute * 60; .x = 7200 / hour", "2.0"),
        ("x = 2; .x = int!(.b) / (x * 3)", "0.5"),
        ("x = 3; x = x * 2; .x = 12 / x", "2.0"),
        (".x = float!(.f) * (to_float(.t) ?? 1)", "10.5"),
        (".x = float!(.f) * abs(to_int!(.t))", "10.5"),
        (".x = float!(.f) * { if .a == 2 { 2 } else { 1.5 } }", "3.0"),
        (".x = int!(to_int!(int!(to_int!(.a) * 2) * 2) * 2)", "16"),
        (".x = (.a * (.b * (.b + 1))) * (2) ?? 0", "48"),
        // The product of two integers wraps.
        (".x = 9223372036854775807 * int!(.b)", "9223372036854775805"),
    ] {
        let found = result(program, r#"{"a":2,"b":3,"f":1.5,"t":"7"}"#).unwrap();
        let expected = format!(r#"{{"a":2,"b":3,"f":1.5,"t":"7","x":{x}}}"#);
        assert_eq!(found, expected, "{program}");
    }
}

#[test]
fn only_a_text_in_the_program_is_repeated_and_its_result_is_bounded() {
    let record = r#"{"n":3,"many":1000000000000,"t":"abc"}"#;
    for (program, x) in [
        (".x = \"-=\" * int!(.n)", "-=-=-="),
        (".x = .n * s'ab' ?? \"\"", "ababab"),
        (".x = \"*\" * length!(.t)", "***"),
        (".x = \"a\" * 2", "aa"),
        (".x = \"a\" * (0 - 2)", ""),
        (".x = (\"-\") * 3", "---"),
        (".x = \"-\" * to_int(.n) ?? \"\"", "---"),
        (".x = \"-\" * (.n + 1) ?? \"\"", "----"),
        ("n = .n; .x = \"-\" * (n * 2) ?? \"\"", "------"),
        (".x = \"-\" * to_int(.t) ?? \"none\"", "none"),
    ] {
        let found = result(program, record).unwrap();
        assert!(found.ends_with(&format!(r#""x":"{x}"}}"#)), "{found}");
    }
    let why = result(".x = \"-\" * int!(.many)", record).unwrap_err();
    assert!(why.contains("more than 67108864 bytes"), "{why}");
    for program in [
        ".x = string!(.t) * 3",
        ".x = 3 * string!(.t)",
        "t = string!(.t); .x = \"{{ t }}\" * 3",
        ".y = int!(.n) * 2\n.x = string!(.t) * 3",
    ] {
        let errors = Program::compile(program, &Options::default()).unwrap_err();
        assert!(errors[0].message.contains("a factor"), "{errors:?}");
        let at = &program[errors[0].span.clone()];
        assert!(at.contains('*') && !at.contains("int"), "{program}: {at}");
    }
}

#[test]
fn a_text_from_a_record_is_no_factor_wherever_the_product_is() {
    // Each of these texts would have 3 TB.
    let record = r#"{"t":"abc","n":1000000000000,"list":[1]}"#;
    for program in [
        ".x = .t * .n ?? -1",
        ".x = .n * .t ?? -1",
        ".x = (.t + .t) * .n ?? -1",
        ".x = [1, {\"y\": .t * .n ?? -1}]",
        ".x = { y = .t * .n ?? -1; y }",
        ".x = if true { .t * .n ?? -1 } else { 0 }",
        ".x = if (.t * .n ?? -1) == -1 { -1 } else { 0 }",
        ".x = !((.t * .n ?? -1) == -1)",
        ".x = encode_json(.t * .n ?? -1)",
        ".x = {\"y\": .t * .n ?? -1}.y",
        ".x = downcase(to_string(.t * .n ?? -1))",
        "for_each(array!(.list)) -> |_i, _v| { .x = .t * .n ?? -1 }",
        ". = {\"x\": 1}; return [.t * .n ?? -1]",
        ". |= {\"x\": .t * .n ?? -1}",
        "t = .t; n = .n; .x = t * n ?? -1",
        ".x, err = .t * .n",
    ] {
        let found = result(program, record).unwrap();
        assert!(found.len() < 100, "{program}: {found}");
    }
    let (outcome, ..) = run("abort to_string(.t * .n ?? -1)", &one(record));
    assert_eq!(outcome, Outcome::Aborted("-1".to_owned()));
    let (condition, _) = Condition::compile("(.t * .n ?? 3) == 3", &Options::default()).unwrap();
    let mut predicate = Predicate::new(&condition);
    predicate.begin(&one(record));
    assert_eq!(predicate.matches(0), Ok(true));
}

#[test]
fn the_records_of_unnest_are_bounded_by_their_memory() {
    let items = |count| vec!["1"; count].join(",");
    // 2.5 billion fields.
    let fields: String = (0..50_000).map(|n| format!("\"f{n}\":1,")).collect();
    let many_fields = format!(r#"{{{fields}"items":[{}]}}"#, items(50_000));
    // Maps of 720 bytes each.
    let many_items = format!(r#"{{"a":1,"items":[{}]}}"#, items(200_000));
    for (program, record) in [
        (". = unnest!(.items)", &many_fields),
        ("r = .; . = unnest!(r.items)", &many_fields),
        (". = unnest!(.items)", &many_items),
    ] {
        let why = result(program, record).unwrap_err();
        assert!(why.contains(&MEMORY_MAX.to_string()), "{program}: {why}");
    }
    let found = result(". = unnest!(.items)", r#"{"a":1,"items":[2,3]}"#);
    assert_eq!(
        found.as_deref(),
        Ok("{\"a\":1,\"items\":2}\n{\"a\":1,\"items\":3}")
    );
}

#[test]
fn a_record_cannot_make_a_result_that_is_much_larger_than_the_record() {
    let list = |text: &str, count| vec![text; count].join(",");
    let long = "k".repeat(500_000);
    let leaves: String = (0..60_000).map(|n| format!(",\"l{n}\":1")).collect();
    let deep = format!(r#"{{"a":{{"{long}":{{"x":1{leaves}}}}}}}"#);
    for (program, record) in [
        // Keys of 30 GB.
        (". = flatten(.)", deep.clone()),
        (".x = flatten!(value: .a)", deep.clone()),
        (".x = encode_logfmt(.)", deep.clone()),
        (".x = encode_key_value!(.a)", deep.clone()),
        (
            ".x = sieve!(.a, r'x', replace_single: string!(.separator))",
            format!(r#"{{"separator":"{long}","a":"{}"}}"#, "x-".repeat(200)),
        ),
        (
            ".x = join!(.items, .separator)",
            format!(
                r#"{{"separator":"{long}","items":[{}]}}"#,
                list("\"\"", 50_000)
            ),
        ),
        (
            ".x = format_number!(1.5, .n)",
            r#"{"n":1000000000000}"#.to_owned(),
        ),
        (
            ".x = format_number!(1.5, scale: int!(.n))",
            r#"{"n":1000000000000}"#.to_owned(),
        ),
        (".x = format_number!(1.5, .n)", r#"{"n":-1}"#.to_owned()),
        (
            ".x = format_number!(decimal_separator: \",\", 1.5, .n)",
            r#"{"n":1000000000000}"#.to_owned(),
        ),
        (". = flatten(separator: \"_\", .)", deep.clone()),
        (".x = encode_logfmt(fields_ordering: [], .)", deep.clone()),
        (
            ". = flatten(., string!(.s))",
            format!(r#"{{"s":"{long}","a":{{"x":1{leaves}}}}}"#),
        ),
        (
            ".x = join!(map_values(array!(.items)) -> |_v| { string!(.s) })",
            format!(r#"{{"s":"{long}","items":[{}]}}"#, list("1", 400)),
        ),
    ] {
        let why = result(program, &record).unwrap_err();
        assert!(why.contains(&RESULT_MAX.to_string()), "{program}: {why}");
    }
    let record = format!(r#"{{"s":"{long}","a":1}}"#);
    let why = result(
        ".x = encode_key_value(., field_delimiter: string!(.s))",
        &record,
    );
    assert!(why.clone().unwrap_err().contains("256 bytes"), "{why:?}");
    let text = "length(flatten(.)) > 1";
    let (condition, _) = Condition::compile(text, &Options::default()).unwrap();
    let mut predicate = Predicate::new(&condition);
    predicate.begin(&one(&deep));
    let why = predicate.matches(0).unwrap_err();
    assert!(why.contains("67108864 bytes"), "{why}");
}

#[test]
fn empty_elements_neither_overflow_the_stack_nor_repeat_forever() {
    let arrays = vec!["[]"; 100_000].join(",");
    let objects: Vec<String> = (0..100_000).map(|n| format!(r#""k{n}":{{}}"#)).collect();
    let objects = objects.join(",");
    for (program, record, expected) in [
        (
            ". = {\"x\": flatten!(.v)}",
            format!(r#"{{"v":{{{objects}}}}}"#),
            r#"{"x":{}}"#,
        ),
        (
            ". = {\"x\": flatten!(.v)}",
            format!(r#"{{"v":[{arrays}]}}"#),
            r#"{"x":[]}"#,
        ),
        (
            ". = {\"x\": zip!(.v)}",
            r#"{"v":[]}"#.to_owned(),
            r#"{"x":[]}"#,
        ),
        (
            ". = {\"x\": zip!(.v)}",
            r#"{"v":[[1,2],["a","b","c"]]}"#.to_owned(),
            r#"{"x":[[1,"a"],[2,"b"]]}"#,
        ),
        (
            ". = {\"x\": flatten!(.v, \"_\", [\"c\"])}",
            r#"{"v":{"":{"b":1},"c":{"d":2}}}"#.to_owned(),
            r#"{"x":{"_b":1,"c":{"d":2}}}"#,
        ),
    ] {
        assert_eq!(
            result(program, &record).as_deref(),
            Ok(expected),
            "{program}"
        );
    }
}

#[test]
fn functions_with_a_bounded_result_work_as_in_vrl() {
    let record = r#"{"a":{"b":{"c":1},"d":[1,2]},"items":["x","y"],"e":{"items":[3,4]}}"#;
    for (program, expected) in [
        (". = {\"x\": flatten!(.a)}", r#"{"x":{"b.c":1,"d":[1,2]}}"#),
        (
            ". = {\"x\": flatten!(.a, separator: \"_\")}",
            r#"{"x":{"b_c":1,"d":[1,2]}}"#,
        ),
        (
            ". = {\"x\": encode_logfmt(.e)} ?? {}",
            r#"{"x":"items.0=3 items.1=4"}"#,
        ),
        (". = {\"x\": join!(.items, \", \")}", r#"{"x":"x, y"}"#),
        (". = {\"x\": join!(.items)}", r#"{"x":"xy"}"#),
        (
            ". = {\"x\": sieve(\"-a--b-c---\", r'[a-z]', replace_single: \"1\", replace_repeated: \"2\")}",
            r#"{"x":"1a2b1c"}"#,
        ),
        (". = {\"x\": sieve(\"--\", r'[a-z]')}", r#"{"x":""}"#),
        (". = {\"x\": format_number(3.5, 3)}", r#"{"x":"3.500"}"#),
        (
            ". = {\"x\": format_number(scale: 2, 100000000)}",
            r#"{"x":"100000000.00"}"#,
        ),
        (
            "e = .e; . = unnest!(e.items)",
            "{\"items\":3}\n{\"items\":4}",
        ),
        (
            ". = unnest!(object!(.e).items)",
            "{\"items\":3}\n{\"items\":4}",
        ),
        (
            "del(.a); del(.items); . = unnest!(.e.items)",
            "{\"e\":{\"items\":3}}\n{\"e\":{\"items\":4}}",
        ),
    ] {
        assert_eq!(
            result(program, record).as_deref(),
            Ok(expected),
            "{program}"
        );
    }
    for (program, why) in [
        (".x = join!(.a.d)", "all array items must be strings"),
        (".x = join!(.missing)", "expected array, got null"),
        (". = unnest!(.missing)", "expected array, got null"),
    ] {
        let found = result(program, record).unwrap_err();
        assert!(found.contains(why), "{program}: {found}");
    }
}
