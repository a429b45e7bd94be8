//! Single records: the field whose text is parsed, the fields around it, and the head of the entry.

use super::*;
use crate::msgpack::{write_bin, write_map_len, write_nil, write_str, write_uint};

#[test]
fn other_fields_keep_their_bytes_and_order_and_the_field_with_the_text_is_removed() {
    assert_eq!(
        record(
            r#"{"as":"json"}"#,
            r#"{"a":1,"message":"{\"x\":[1,{\"y\":2}],\"z\":18446744073709551615}","b":{"c":null}}"#
        ),
        r#"{"a":1,"b":{"c":null},"x":[1,{"y":2}],"z":18446744073709551615}"#
    );
    assert_eq!(
        record(
            r#"{"as":"logfmt","keep":true}"#,
            r#"{"message":"x=1","b":2}"#
        ),
        r#"{"message":"x=1","b":2,"x":"1"}"#
    );
    assert_eq!(
        record(
            r#"{"as":"logfmt","field":"log"}"#,
            r#"{"message":"x=1","log":"y=2"}"#
        ),
        r#"{"message":"x=1","y":"2"}"#
    );
    // If a name occurs twice, the first field is parsed.
    assert_eq!(
        record(r#"{"as":"logfmt"}"#, r#"{"message":"x=1","message":"y=2"}"#),
        r#"{"message":"y=2","x":"1"}"#
    );
}

#[test]
fn a_parsed_field_replaces_an_existing_one_of_its_name() {
    let options = r#"{"as":"logfmt"}"#;
    assert_eq!(
        record(
            options,
            r#"{"a":1,"level":2,"message":"level=info b=3","b":4,"c":5}"#
        ),
        r#"{"a":1,"c":5,"level":"info","b":"3"}"#
    );
    assert_eq!(
        record(options, r#"{"a":1,"a":2,"message":"a=3 a=4"}"#),
        r#"{"a":"4"}"#
    );
    assert_eq!(
        record(
            r#"{"as":"json"}"#,
            r#"{"message":"{\"message\":\"new\"}","a":1}"#
        ),
        r#"{"a":1,"message":"new"}"#
    );
    assert_eq!(
        record(
            r#"{"as":"json","keep":true}"#,
            r#"{"message":"{\"message\":\"new\"}","a":1}"#
        ),
        r#"{"a":1,"message":"new"}"#
    );
    let line = line(
        &mut parser(r#"{"as":"json","keep":true}"#),
        br#"{"message":"new"}"#,
    );
    assert_eq!(line, r#"2026-11-21T06:40:31.5Z {"message":"new"}"#);
}

#[test]
fn a_nested_field_with_the_text_is_found_and_removed() {
    let object = r#"{"a":1,"log":{"x":1,"in":{"text":"k=v","y":2},"z":3},"b":2}"#;
    let field = r#""field":".log.in.text""#;
    assert_eq!(
        record(&format!(r#"{{"as":"logfmt",{field}}}"#), object),
        r#"{"a":1,"log":{"x":1,"in":{"y":2},"z":3},"b":2,"k":"v"}"#
    );
    assert_eq!(
        record(&format!(r#"{{"as":"logfmt","keep":true,{field}}}"#), object),
        r#"{"a":1,"log":{"x":1,"in":{"text":"k=v","y":2},"z":3},"b":2,"k":"v"}"#
    );
    assert_eq!(
        record(
            &format!(r#"{{"as":"logfmt",{field}}}"#),
            r#"{"log":{"in":{"text":"log=v"}}}"#
        ),
        r#"{"log":"v"}"#
    );
    assert_eq!(
        record(
            &format!(r#"{{"as":"logfmt",{field}}}"#),
            r#"{"log":{"in":"k=v"}}"#
        ),
        "fault: the record does not have the field"
    );
}

#[test]
fn parsed_fields_can_become_a_map() {
    for (format, text, parsed) in [
        ("json", r#"{\"a\":1}"#, r#"{"a":1}"#),
        ("logfmt", "a=1", r#"{"a":"1"}"#),
    ] {
        let options = format!(r#"{{"as":"{format}","into":".parsed"}}"#);
        assert_eq!(
            record(
                &options,
                &format!(r#"{{"a":2,"message":"{text}","parsed":3,"b":4}}"#)
            ),
            format!(r#"{{"a":2,"b":4,"parsed":{parsed}}}"#)
        );
        let options = format!(r#"{{"as":"{format}","into":"message","keep":true}}"#);
        let seen = line(&mut parser(&options), text.replace('\\', "").as_bytes());
        assert_eq!(
            seen,
            format!(r#"2026-11-21T06:40:31.5Z {{"message":{parsed}}}"#)
        );
    }
    let options = r#"{"as":"json","into":"parsed"}"#;
    let seen = line(
        &mut parser(options),
        br#"{"time":"2026-11-23T00:00:00Z","a":1}"#,
    );
    assert_eq!(seen, r#"2026-11-23T00:00:00Z {"parsed":{"a":1}}"#);
}

#[test]
fn maps_grow_beyond_15_and_65535_fields() {
    for count in [14, 15, 16, 65_535, 65_536] {
        let text: String = (0..count).map(|n| format!("k{n}=v ")).collect();
        for options in [r#"{"as":"logfmt"}"#, r#"{"as":"logfmt","into":"x"}"#] {
            let entry = parse(&mut parser(options), Input::Line(text.as_bytes())).unwrap();
            let shown = shown(&entry);
            assert_eq!(shown.matches("\"v\"").count(), count, "{options}");
        }
    }
}

#[test]
fn every_encoding_of_an_entry_keeps_its_time_or_gets_the_parsed_one() {
    let mut map = Vec::new();
    write_map_len(&mut map, 1);
    write_str(&mut map, b"message");
    write_str(&mut map, b"time=2026-11-23T12:03:24Z a=1");
    let head = |time: &[u8]| [time, &map].concat();
    let event_time = b"\xd7\0\x65\x53\xf1\0\0\0\0\x05";
    for (entry, old) in [
        (
            head(&[b"\x92", &event_time[..]].concat()),
            "2023-11-14T22:13:20.000000005Z",
        ),
        (
            head(b"\x92\xc7\x08\0\x65\x53\xf1\0\0\0\0\x05"),
            "2023-11-14T22:13:20.000000005Z",
        ),
        (head(b"\x92\xce\x65\x53\xf1\0"), "2023-11-14T22:13:20Z"),
        (head(b"\xdc\0\x02\x05"), "1970-01-01T00:00:05Z"),
        (
            head(&[b"\x92\x92", &event_time[..], b"\x81\xa1m\x01"].concat()),
            "2023-11-14T22:13:20.000000005Z",
        ),
        (head(b"\x92\x92\x05\x80"), "1970-01-01T00:00:05Z"),
        (head(b"\x92\xc0"), "2026-11-21T06:40:31.5Z"),
    ] {
        let parsed = |options| parse(&mut parser(options), Input::Entry(&entry)).unwrap();
        let kept = parsed(r#"{"as":"logfmt","time":{"format":"none"}}"#);
        assert_eq!(
            shown(&kept),
            format!(r#"{old} {{"time":"2026-11-23T12:03:24Z","a":"1"}}"#)
        );
        let new = parsed(r#"{"as":"logfmt"}"#);
        assert_eq!(shown(&new), r#"2026-11-23T12:03:24Z {"a":"1"}"#);
        let metadata = entry.windows(3).any(|bytes| bytes == b"\xa1m\x01");
        assert_eq!(new.windows(3).any(|bytes| bytes == b"\xa1m\x01"), metadata);
        // Here the time is a number in another field, `a`.
        let far = parse(
            &mut parser(r#"{"as":"logfmt","time":{"field":"a","format":"unix_ms","keep":true}}"#),
            Input::Entry(&[entry.as_slice()].concat()),
        );
        assert_eq!(
            shown(&far.unwrap()).split(' ').next(),
            Some("1970-01-01T00:00:00.001Z")
        );
    }
    let far = line(
        &mut parser(r#"{"as":"logfmt","time":{"format":"iso8601"}}"#),
        b"time=1960-01-01T00:00:00Z a=1",
    );
    assert_eq!(far, r#"1960-01-01T00:00:00Z {"a":"1"}"#);
}

#[test]
fn a_time_in_seconds_can_be_before_1970() {
    // An entry has no fraction of a second before 1970.
    for (text, time) in [
        ("0.5", "1970-01-01T00:00:00.5Z"),
        ("-0.5", "1969-12-31T23:59:59Z"),
        ("-1.25", "1969-12-31T23:59:58Z"),
        ("-2", "1969-12-31T23:59:58Z"),
    ] {
        let mut parser = parser(r#"{"as":"logfmt","time":{"field":"at","format":"unix"}}"#);
        let seen = line(&mut parser, format!("at={text} a=1").as_bytes());
        assert_eq!(seen, format!(r#"{time} {{"a":"1"}}"#));
    }
}

#[test]
fn a_record_without_the_text_is_a_fault() {
    for (object, fault) in [
        (r#"{"a":1}"#, "the record does not have the field"),
        (r#"{}"#, "the record does not have the field"),
        (r#"{"message":1}"#, "the field is not text"),
        (r#"{"message":{"a":1}}"#, "the field is not text"),
        (r#"{"message":null}"#, "the field is not text"),
    ] {
        assert_eq!(
            record(r#"{"as":"json"}"#, object),
            format!("fault: {fault}")
        );
    }
    let seen = line(&mut parser(r#"{"as":"json","field":".log"}"#), b"{}");
    assert_eq!(seen, "fault: the record does not have the field");
    let broken = parse(&mut parser(r#"{"as":"json"}"#), Input::Entry(b"\x92\x01"));
    assert_eq!(broken, Err(Fault::Malformed));
}

#[test]
fn binary_text_is_parsed_and_keys_that_are_not_text_stay() {
    let mut entry = b"\x92\x05".to_vec();
    write_map_len(&mut entry, 3);
    write_uint(&mut entry, 7);
    write_nil(&mut entry);
    write_str(&mut entry, b"message");
    write_bin(&mut entry, b"a=\xff b=2");
    write_str(&mut entry, b"a");
    write_nil(&mut entry);
    let entry = parse(&mut parser(r#"{"as":"logfmt"}"#), Input::Entry(&entry)).unwrap();
    let expected = b"\x92\x05\x83\x07\xc0\xa1a\xa1\xff\xa1b\xa12";
    assert_eq!(entry, expected);
}

#[test]
fn syslog_headers_become_fields_next_to_other_fields() {
    assert_eq!(
        record(
            r#"{"as":"syslog","time":{"timezone":"UTC"}}"#,
            r#"{"path":"/var/log/x","host":"old","message":"<13>web-1 sshd[1]: hi"}"#
        ),
        r#"{"path":"/var/log/x","host":"old","facility":"user","severity":"notice","message":"web-1 sshd[1]: hi"}"#
    );
}

#[test]
fn a_text_that_is_not_utf_8_is_matched_by_bytes() {
    let mut parser = parser(r#"{"as":"regex","pattern":"^(?<a>[^ ]*) (?<b>.+)$"}"#);
    let entry = parse(&mut parser, Input::Line(b"caf\xe9 x\xff\xfe")).unwrap();
    let fields = b"\x82\xa1a\xa4caf\xe9\xa1b\xa3x\xff\xfe";
    assert!(entry.ends_with(fields), "{entry:x?}");
}
