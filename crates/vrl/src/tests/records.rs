//! Programs on records: they change fields and values of the batch, and return one, several or no records.

use millstream_record::{Encoding, Time};
use millstream_wire::msgpack::{
    entry_head, write_array_len, write_event_time, write_ext_head, write_map_len, write_str,
    write_uint,
};

use crate::{
    Condition, DEPTH_MAX, Moved, Options, Outcome, Predicate, Remap,
    rig::{EVENT, RECEIVED, batch, changed, compile, entry, field, one, packed, records, run},
};

#[test]
fn fields_are_changed_in_their_place_removed_and_appended() {
    let json = r#"{"z":1,"level":"INFO","a":{"b":[1,2]},"gone":0}"#;
    let program = ".level = downcase!(.level); del(.gone); .new = .a.b[1]; .a.c = true";
    assert_eq!(
        changed(program, json).unwrap(),
        r#"{"z":1,"level":"info","a":{"b":[1,2],"c":true},"new":2}"#
    );
    assert_eq!(changed("x = .level", json), None);
    assert_eq!(changed("del(.missing)", json), None);
    assert_eq!(changed("if .z == 2 { .z = 3 }", json), None);
    assert_eq!(
        changed("del(.a.b, compact: true)", r#"{"a":{"b":1}}"#).unwrap(),
        "{}"
    );
}

#[test]
fn untouched_fields_keep_their_bytes() {
    let mut record = Vec::new();
    write_map_len(&mut record, 8);
    write_str(&mut record, b"wide");
    record.extend_from_slice(b"\xd3\0\0\0\0\0\0\0\x05");
    write_str(&mut record, b"above");
    write_uint(&mut record, u64::MAX);
    write_str(&mut record, b"twice");
    record.push(1);
    write_str(&mut record, b"ext");
    write_ext_head(&mut record, 42, 3);
    record.extend_from_slice(b"abc");
    write_str(&mut record, b"level");
    write_str(&mut record, b"info");
    write_str(&mut record, b"bin");
    record.extend_from_slice(b"\xc4\x02\xff\xfe");
    write_str(&mut record, b"twice");
    record.push(2);
    // A key that is a number.
    record.extend_from_slice(b"\x05\xca\x3f\x80\0\0");
    let batch = batch(Encoding::Packed, entry(&record), 1);
    for program in [".level = \"warn\"", ".level = \"warn\"; .n = length(.)"] {
        let (outcome, out, _) = run(program, &batch);
        assert_eq!(outcome, Outcome::Written(1));
        let mut wanted = entry(&record);
        let at = wanted
            .windows(5)
            .position(|bytes| bytes == b"\xa4info")
            .unwrap();
        wanted[at + 1..at + 5].copy_from_slice(b"warn");
        if program.ends_with("length(.)") {
            // The length counts the repeated key "twice" once.
            wanted[11] += 1;
            wanted.extend_from_slice(b"\xa1n\x07");
        }
        assert_eq!(out, wanted, "{program}");
    }
    // Reading a field does not change it.
    let (outcome, ..) = run("x = .above; y = .ext; z = .", &batch);
    assert_eq!(outcome, Outcome::Unchanged);
    // If a key occurs twice, the first field is read, and an assignment replaces both.
    let (_, out, _) = run(".twice = int!(.twice) + 10", &batch);
    assert_eq!(field(&out, "twice"), Some(&b"\x0b"[..]));
    assert_eq!(out[11], 0x87);
    let (_, out, _) = run("del(.twice)", &batch);
    assert_eq!((field(&out, "twice"), out[11]), (None, 0x86));
    let (_, out, _) = run("del(.\"5\")", &batch);
    assert_eq!(out[11], 0x87);
}

#[test]
fn values_that_vrl_does_not_have_are_converted() {
    let mut record = Vec::new();
    write_map_len(&mut record, 5);
    write_str(&mut record, b"above");
    write_uint(&mut record, u64::MAX);
    write_str(&mut record, b"nan");
    record.extend_from_slice(b"\xcb\x7f\xf8\0\0\0\0\0\0");
    write_str(&mut record, b"ext");
    write_ext_head(&mut record, 42, 3);
    record.extend_from_slice(b"abc");
    write_str(&mut record, b"time");
    write_event_time(&mut record, 1, 5);
    write_str(&mut record, b"bin");
    record.extend_from_slice(b"\xc4\x02\xff\xfe");
    let batch = batch(Encoding::Packed, entry(&record), 1);
    let (_, out, _) = run(
        ".a = is_float(.above); .b = is_null(.nan); .c = .ext; .d = to_string!(.time); .e = .time; .f = .bin",
        &batch,
    );
    assert_eq!(field(&out, "a"), Some(&b"\xc3"[..]));
    assert_eq!(field(&out, "b"), Some(&b"\xc3"[..]));
    assert_eq!(field(&out, "c"), Some(&b"\xa3abc"[..]));
    assert_eq!(
        field(&out, "d"),
        Some(&b"\xbe1970-01-01T00:00:01.000000005Z"[..])
    );
    assert_eq!(field(&out, "e"), Some(&b"\xd7\0\0\0\0\x01\0\0\0\x05"[..]));
    assert_eq!(field(&out, "f"), Some(&b"\xc4\x02\xff\xfe"[..]));
    let (_, out, _) = run(".t = t'2300-01-01T00:00:00Z'; .r = r'a+'", &batch);
    assert_eq!(field(&out, "t"), Some(&b"\xb42300-01-01T00:00:00Z"[..]));
    assert_eq!(field(&out, "r"), Some(&b"\xa2a+"[..]));
}

#[test]
fn an_assignment_to_the_root_replaces_the_record_and_an_array_makes_several() {
    let json = r#"{"message":"{\"a\":1,\"b\":[true]}","x":1}"#;
    assert_eq!(
        changed(". = parse_json!(.message); .c = .b[0]", json).unwrap(),
        r#"{"a":1,"b":[true],"c":true}"#
    );
    assert_eq!(
        changed(". = [{\"a\": .x}, \"text\", {}]", json).unwrap(),
        "{\"a\":1}\n{\"message\":\"text\"}\n{}"
    );
    assert_eq!(changed(". = .x", json).unwrap(), r#"{"message":1}"#);
    let (outcome, out, _) = run(". = []", &one(json));
    assert_eq!((outcome, out), (Outcome::Written(0), Vec::new()));
    assert_eq!(
        changed(
            ". = unnest!(.events)",
            r#"{"host":"h","events":[{"a":1},{"a":2}]}"#
        )
        .unwrap(),
        "{\"events\":{\"a\":1},\"host\":\"h\"}\n{\"events\":{\"a\":2},\"host\":\"h\"}"
    );
    assert_eq!(
        changed(". |= {\"y\": 2}", r#"{"x":1}"#).unwrap(),
        r#"{"x":1,"y":2}"#
    );
    assert_eq!(
        changed("if .x == 1 { . = {} }; .y = 1", r#"{"x":2}"#).unwrap(),
        r#"{"x":2,"y":1}"#
    );
}

#[test]
fn an_abort_and_an_error_append_nothing() {
    let (outcome, out, _) = run(".a = 1; abort", &one("{}"));
    assert_eq!(
        (outcome, out),
        (Outcome::Aborted(String::new()), Vec::new())
    );
    let (outcome, ..) = run("abort \"no \" + \"good\"", &one("{}"));
    assert_eq!(outcome, Outcome::Aborted("no good".into()));
    let (outcome, out, _) = run(".a = 1; .b = parse_json!(.c)", &one(r#"{"c":"{"}"#));
    let Outcome::Failed(why) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(why.contains("unable to parse json"), "{why}");
    assert!(out.is_empty());
}

#[test]
fn no_state_of_a_record_reaches_the_next_one() {
    let mut body = entry(&packed(r#"{"a":1,"set":true}"#));
    let first = body.len();
    body.extend(entry(&packed(r#"{"a":2}"#)));
    let batch = batch(Encoding::Packed, body, 2);
    let program = "if .set == true { %tag = \"other\"; x = 5; . = {\"a\": 1} }\n.y = x\n.t = %tag";
    let mut remap = Remap::new(&compile(&format!("x = null\n{program}")));
    remap.begin(&batch, 0);
    let mut out = Vec::new();
    assert_eq!(remap.run(0, &mut out), Outcome::Written(1));
    assert_eq!(remap.moved().unwrap().tag.as_deref(), Some("other"));
    assert_eq!(remap.next(), first);
    assert_eq!(remap.run(first, &mut out), Outcome::Written(1));
    assert_eq!(remap.moved(), None);
    assert_eq!(
        records(&out),
        [
            r#"{"a":1,"t":"other","y":5}"#,
            r#"{"a":2,"y":null,"t":"app.web"}"#
        ]
    );
    // Variables of the previous record are gone, too.
    let mut remap = Remap::new(&compile("if .set == true { y = 1; .z = y }"));
    remap.begin(&batch, 0);
    assert_eq!(remap.run(0, &mut out), Outcome::Written(1));
    assert_eq!(remap.run(first, &mut out), Outcome::Unchanged);
    remap.end();
    assert!(matches!(remap.run(0, &mut out), Outcome::Failed(_)));
}

#[test]
fn lines_are_records_with_a_message() {
    let lines = batch(Encoding::Lines, b"GET /\nrest".to_vec(), 2);
    let mut remap = Remap::new(&compile(".n = length(string!(.message))"));
    remap.begin(&lines, 0);
    let mut out = Vec::new();
    assert_eq!(remap.run(0, &mut out), Outcome::Written(1));
    assert_eq!(remap.next(), 6);
    assert_eq!(remap.run(6, &mut out), Outcome::Written(1));
    assert_eq!(remap.next(), 10);
    assert_eq!(
        records(&out),
        [
            r#"{"message":"GET /","n":5}"#,
            r#"{"message":"rest","n":4}"#
        ]
    );
    assert_eq!(entry_head(&out, 0).unwrap().time, Some(RECEIVED));
    let line = batch(Encoding::Lines, b"{\"a\":1}\n".to_vec(), 1);
    for (program, wanted) in [
        (". = parse_json!(.message)", r#"{"a":1}"#),
        (".message = upcase!(.message)", r#"{"message":"{\"A\":1}"}"#),
        (".x = del(.message)", r#"{"x":"{\"a\":1}"}"#),
        (".x = keys(.)", r#"{"message":"{\"a\":1}","x":["message"]}"#),
        ("del(.message)", "{}"),
    ] {
        let (outcome, out, _) = run(program, &line);
        assert_eq!(outcome, Outcome::Written(1));
        assert_eq!(records(&out), [wanted], "{program}");
    }
    assert_eq!(run("x = .message", &line).0, Outcome::Unchanged);
}

#[test]
fn values_of_the_batch_can_be_read_and_three_of_them_can_be_set() {
    let program =
        ".h = %host; .p = %kubernetes.pod; .none = %peer; .t = %time; .tag = downcase(%tag)";
    assert_eq!(
        changed(program, "{}").unwrap(),
        r#"{"h":"web-1","p":"shop-7","none":null,"t":"2020-09-13T12:26:40.000000007Z","tag":"app.web"}"#
    );
    let (outcome, out, remap) = run(
        "%tag = \"a.\" + string!(.s); del(%host); %time = t'2001-09-09T01:46:40Z'",
        &one(r#"{"s":"x"}"#),
    );
    assert_eq!(outcome, Outcome::Written(1));
    let wanted = Moved {
        tag: Some("a.x".into()),
        host: Some(None),
    };
    assert_eq!(remap.moved(), Some(&wanted));
    assert_eq!(
        entry_head(&out, 0).unwrap().time,
        Some(Time::from_parts(1_000_000_000, 0))
    );
    // If only the tag changes, the record keeps its bytes.
    let (outcome, out, remap) = run("%tag = \"x\"", &one("{}"));
    assert_eq!((outcome, out.len()), (Outcome::Unchanged, 0));
    assert_eq!(remap.moved().unwrap().tag.as_deref(), Some("x"));
    let (_, _, remap) = run("%tag = %tag; %host = %host", &one("{}"));
    assert_eq!(remap.moved(), None);
    for program in [
        "%tag = 5",
        "%time = \"now\"",
        "%host = {}",
        "%time = t'2300-01-01T00:00:00Z'",
    ] {
        let (outcome, ..) = run(program, &one("{}"));
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("the program set %")),
            "{program}: {outcome:?}"
        );
    }
}

#[test]
fn a_new_time_keeps_the_metadata_beside_it() {
    let mut nested = Vec::new();
    write_array_len(&mut nested, 2);
    write_array_len(&mut nested, 2);
    write_event_time(&mut nested, EVENT.0, EVENT.1);
    nested.extend(packed(r#"{"m":1}"#));
    nested.extend(packed(r#"{"a":1}"#));
    let nested = batch(Encoding::Packed, nested, 1);
    let (_, out, _) = run("%time = t'1970-01-01T00:00:01Z'", &nested);
    assert_eq!(
        out,
        b"\x92\x92\xd7\0\0\0\0\x01\0\0\0\0\x81\xa1m\x01\x81\xa1a\x01"
    );
    let (_, out, _) = run(".a = 2", &nested);
    assert_eq!(out[..16], nested.body[..16]);
}

#[test]
fn deep_nesting_fails_only_if_the_program_reads_the_field() {
    let deep = |levels: usize| {
        let mut record = b"\x82\xa4deep".to_vec();
        record.extend(vec![0x91; levels]);
        record.extend_from_slice(b"\xc0\xa1a\x01");
        batch(Encoding::Packed, entry(&record), 1)
    };
    let (outcome, out, _) = run(".a = 2", &deep(100_000));
    assert_eq!(outcome, Outcome::Written(1));
    assert_eq!(out.len(), deep(100_000).body.len());
    for program in [
        "x = .deep",
        ".x = length(.)",
        "del(.deep)",
        ".deep[0] = 1",
        ".a = exists(.deep)",
    ] {
        let (outcome, out, _) = run(program, &deep(100_000));
        let Outcome::Failed(why) = outcome else {
            panic!("{program}: {outcome:?}");
        };
        assert!(why.contains("nests deeper than 128 levels"), "{why}");
        assert!(out.is_empty());
    }
    assert_eq!(run("x = .deep", &deep(DEPTH_MAX)).0, Outcome::Unchanged);
    assert!(matches!(
        run("x = .deep", &deep(DEPTH_MAX + 1)).0,
        Outcome::Failed(_)
    ));
    let (outcome, out, _) = run(".a = {\"b\": .deep}", &deep(DEPTH_MAX));
    assert!(
        matches!(&outcome, Outcome::Failed(why) if why.contains("made a field")),
        "{outcome:?}"
    );
    assert!(out.is_empty());
    // A field that is overwritten is not decoded, so its depth does not matter.
    assert!(matches!(
        run(".deep = 1", &deep(100_000)).0,
        Outcome::Written(1)
    ));
}

#[test]
fn repeated_keys_take_linear_time() {
    let mut record = b"\xdf\0\x0f\x42\x40".to_vec();
    for _ in 0..1_000_000 {
        record.extend_from_slice(b"\xa1a\x01");
    }
    let batch = batch(Encoding::Packed, entry(&record), 1);
    let (_, out, _) = run(".a = 2; .b = 3", &batch);
    assert_eq!(records(&out), [r#"{"a":2,"b":3}"#]);
}

#[test]
fn invalid_bytes_are_an_error() {
    for body in [
        &b""[..],
        b"\x92",
        b"\x92\x01\x81",
        b"\x92\x01\xc1",
        b"\x92\x01\x82\xa1a\x01\xa1",
        b"\xc1",
    ] {
        let batch = batch(Encoding::Packed, body.to_vec(), 1);
        let (outcome, _, remap) = run(".a = length(.)", &batch);
        assert!(matches!(outcome, Outcome::Failed(_)), "{body:?}");
        assert_eq!(remap.next(), body.len());
    }
    let (outcome, ..) = run(
        "x = .a",
        &batch(
            Encoding::Packed,
            b"\x92\x01\x81\xa1a\xdd\xff\xff\xff\xff".to_vec(),
            1,
        ),
    );
    assert!(matches!(outcome, Outcome::Failed(_)));
}

#[test]
fn conditions_match_and_fail_on_single_records() {
    let matches = |text: &str, json: &str| {
        let (condition, _) = Condition::compile(text, &Options::default()).unwrap();
        let batch = one(json);
        let mut predicate = Predicate::new(&condition);
        predicate.begin(&batch);
        let result = predicate.matches(0);
        predicate.end();
        result
    };
    let slow = "(to_int(.ms) ?? 0) > 1000";
    assert_eq!(matches(slow, r#"{"ms":"1001"}"#), Ok(true));
    assert_eq!(matches(slow, r#"{"ms":1000}"#), Ok(false));
    assert_eq!(matches(slow, "{}"), Ok(false));
    assert_eq!(
        matches("exists(.a) && %host == \"web-1\"", r#"{"a":null}"#),
        Ok(true)
    );
    assert_eq!(matches("x = .a; x == 1", r#"{"a":1}"#), Ok(true));
    assert_eq!(matches("length(.) == 2", r#"{"a":1,"b":2}"#), Ok(true));
    assert!(matches("to_int!(.ms) > 5", r#"{"ms":[]}"#).is_err());
}

#[test]
fn metadata_beside_the_time_can_be_read_and_stay_with_the_record() {
    let mut body = Vec::new();
    for name in ["a", "b"] {
        // [[7, {"otlp": {"x": name}}], {"n": 1}]
        body.extend_from_slice(b"\x92\x92\x07\x81\xa4otlp\x81\xa1x");
        write_str(&mut body, name.as_bytes());
        body.extend_from_slice(b"\x81\xa1n\x01");
    }
    // An entry without metadata.
    body.extend_from_slice(b"\x92\x07\x81\xa1n\x01");
    let whole = body.len();
    let batch = batch(Encoding::Packed, body, 3);
    let mut remap = Remap::new(&compile(".x = %metadata.otlp.x; .all = %metadata"));
    remap.begin(&batch, 0);
    let mut out = Vec::new();
    let mut start = 0;
    while start < whole {
        assert_eq!(remap.run(start, &mut out), Outcome::Written(1));
        start = remap.next();
    }
    assert_eq!(
        records(&out),
        [
            r#"{"n":1,"x":"a","all":{"otlp":{"x":"a"}}}"#,
            r#"{"n":1,"x":"b","all":{"otlp":{"x":"b"}}}"#,
            r#"{"n":1,"x":null,"all":null}"#,
        ]
    );
    assert!(out.starts_with(&batch.body[..14]), "the metadata stay");
    assert!(crate::Program::compile("%metadata.x = 1", &Options::default()).is_err());
}
