//! Texts and records whose values take far more memory than they do.

use millstream_record::{Batch, Encoding};
use millstream_wire::msgpack::{write_bin, write_map_len, write_str};

use crate::{
    Outcome,
    rig::{batch, changed, entry, records, run},
};

/// A batch with the record `{"v": value}`.
fn of(value: &[u8]) -> Batch {
    let mut record = Vec::new();
    write_map_len(&mut record, 1);
    write_str(&mut record, b"v");
    write_bin(&mut record, value);
    batch(Encoding::Packed, entry(&record), 1)
}

#[test]
fn texts_whose_values_would_take_too_much_memory_are_errors() {
    let list = |item: &str, count| format!("[{}]", vec![item; count].join(","));
    for (program, text) in [
        (
            ". = {\"x\": length!(parse_json!(.v))}",
            list(r#"{"":1}"#, 400_000),
        ),
        (
            ". = {\"x\": length!(parse_json!(.v))}",
            list(r#"{"":{"":1}}"#, 200_000),
        ),
        (
            ". = {\"x\": length!(parse_json!(.v))}",
            list("[]", 2_000_000),
        ),
        (
            ". = {\"x\": length!(parse_json!(.v, max_depth: 3))}",
            list(r#"{"":1}"#, 400_000),
        ),
        (
            ". = {\"x\": length!(parse_yaml!(.v))}",
            list(r#"{"":1}"#, 400_000),
        ),
        (
            ". = {\"x\": length!(parse_yaml!(.v))}",
            "- a: 1\n".repeat(400_000),
        ),
        (
            ". = {\"x\": length!(parse_ruby_hash!(.v))}",
            format!("{{a: {}}}", list("{a: 1}", 400_000)),
        ),
        (
            "v = parse_xml!(string!(.v)); . = {\"x\": length!(v.a.b)}",
            format!("<a>{}</a>", "<b c='d'/>".repeat(400_000)),
        ),
        (
            ". = {\"x\": length(parse_regex_all!(.v, r'(?P<a>.)'))}",
            "x".repeat(400_000),
        ),
        (
            ". = {\"x\": length(parse_regex_all!(.v, r'.', numeric_groups: true))}",
            "x".repeat(400_000),
        ),
        (
            ". = {\"x\": length(to_entries(split!(.v, \"\")))}",
            "x".repeat(400_000),
        ),
        (
            ". = {\"x\": length(tag_types_externally(split!(.v, \"\")))}",
            "x".repeat(400_000),
        ),
    ] {
        let (outcome, ..) = run(program, &of(text.as_bytes()));
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("more than 268435456 bytes")),
            "{program}: {text:.20}: {outcome:?}"
        );
    }
    // Lists of 400,000 maps, with a length and without one.
    let mut cbor = b"\x9a\x00\x06\x1a\x80".to_vec();
    cbor.extend_from_slice(&b"\xa1\x60\xf6".repeat(400_000));
    let mut open = b"\x9f\x7f\xff".to_vec();
    open.extend_from_slice(&b"\xbf\x60\xf6\xff".repeat(400_000));
    open.push(0xff);
    for data in [cbor, open] {
        let (outcome, ..) = run(". = {\"x\": length!(parse_cbor!(.v))}", &of(&data));
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("more than 268435456 bytes")),
            "{outcome:?}"
        );
    }
}

#[test]
fn long_texts_of_usual_values_are_parsed() {
    let item = r#"{"time":"2026-11-23T12:00:00Z","text":"{[,:\"{{{{{{{{","n":[1,2,{"m":null}]}"#;
    let json = format!("[{}]", vec![item; 30_000].join(","));
    let mut cbor = b"\x99\x9c\x40".to_vec();
    // The second bytes of these characters would begin a map elsewhere.
    let text = [
        b"\xa1\x64text\x78\x28".as_slice(),
        "¡".repeat(20).as_bytes(),
    ]
    .concat();
    cbor.extend_from_slice(&text.repeat(40_000));
    for (program, text, x) in [
        ("parse_json!(.v)", json.clone().into_bytes(), "30000"),
        (
            "parse_json!(.v, max_depth: 2)",
            json.clone().into_bytes(),
            "30000",
        ),
        (
            "parse_yaml!(.v)",
            format!("- {}\n", "a long text ".repeat(10))
                .repeat(10_000)
                .into_bytes(),
            "10000",
        ),
        ("parse_cbor!(.v)", cbor, "40000"),
        ("parse_regex_all!(.v, r'\\d+')", json.into_bytes(), "240000"),
    ] {
        let (outcome, out, _) = run(
            &format!(". = {{\"x\": length!({program})}}")
                .replace("length!(parse_regex", "length(parse_regex"),
            &of(&text),
        );
        assert_eq!(outcome, Outcome::Written(1), "{program}");
        assert_eq!(records(&out), [format!(r#"{{"x":{x}}}"#)], "{program}");
    }
    // The error can be handled.
    let maps = format!("[{}]", vec![r#"{"":1}"#; 400_000].join(","));
    let (outcome, out, _) = run(
        ". = {\"x\": parse_json(.v) ?? \"large\"}",
        &of(maps.as_bytes()),
    );
    assert_eq!(outcome, Outcome::Written(1));
    assert_eq!(records(&out), [r#"{"x":"large"}"#]);
}

#[test]
fn parse_regex_all_works_as_in_vrl() {
    for (arguments, expected) in [
        ("r'(?P<k>[a-z])=(\\d)?'", r#"[{"k":"a"},{"k":"b"}]"#),
        (
            "r'(?P<k>[a-z])=(?P<n>\\d)?', numeric_groups: true",
            r#"[{"0":"a=1","1":"a","2":"1","k":"a","n":"1"},{"0":"b=","1":"b","k":"b","n":null}]"#,
        ),
        ("r'(\\d)', true", r#"[{"0":"1","1":"1"}]"#),
        ("r'x'", "[]"),
    ] {
        let program = format!(". = {{\"x\": parse_regex_all!(.v, {arguments})}}");
        let found = changed(&program, r#"{"v":"a=1 b="}"#).unwrap();
        assert_eq!(found, format!(r#"{{"x":{expected}}}"#), "{arguments}");
    }
}

#[test]
fn fields_whose_values_would_take_too_much_memory_are_errors() {
    let maps = [
        b"\xdd\x00\x06\x1a\x80".as_slice(),
        &b"\x81\xa0\xc0".repeat(400_000),
    ]
    .concat();
    let mut record = Vec::new();
    write_map_len(&mut record, 2);
    write_str(&mut record, b"v");
    record.extend_from_slice(&maps);
    write_str(&mut record, b"n");
    record.push(1);
    let batch = batch(Encoding::Packed, entry(&record), 1);
    for program in [".x = length!(.v)", ".x = length(object!(.))"] {
        let (outcome, ..) = run(program, &batch);
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("more than 268435456 bytes")),
            "{program}: {outcome:?}"
        );
    }
    let (outcome, out, _) = run(".n = 2", &batch);
    assert_eq!(outcome, Outcome::Written(1), "{outcome:?}");
    assert!(!out.is_empty());
}
