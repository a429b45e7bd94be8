//! Records are parsed, kept or rejected. The tests of the formats are in `wire::parse`.

use millstream_pipeline::reject::Rejected;

use crate::rig::{Rig, entries, lines, problems};

use super::*;

#[test]
fn lines_become_records_in_their_order() {
    let mut rig = Rig::new(&COMPONENT, r#"{"as": "json"}"#);
    let made = rig.run(&lines("t", "{\"a\":1}\n{\"b\":\"x\"}\n"));
    assert_eq!(made.lines(""), [r#"{"a":1}"#, r#"{"b":"x"}"#]);
    assert_eq!(made.ports[""].len(), 1);
}

#[test]
fn a_line_of_another_format_is_kept_in_its_place_or_rejected_with_the_reason() {
    let batch = lines("t", "{\"a\":1}\nplain\n{\"b\":2}\n");
    let mut rig = Rig::new(&COMPONENT, r#"{"as": "json"}"#);
    let made = rig.run(&batch);
    let expected = [r#"{"a":1}"#, r#"{"message":"plain"}"#, r#"{"b":2}"#];
    assert_eq!(made.lines(""), expected);
    assert_eq!(made.counts.failed, 1);
    let mut rig = Rig::new(&COMPONENT, r#"{"as": "json", "on_error": "reject"}"#);
    let made = rig.run(&batch);
    assert_eq!(made.lines(""), [expected[0], expected[2]]);
    let rejected = made.rejected.unwrap();
    let rejected = Rejected::read(&rejected.body).unwrap();
    assert_eq!(*rejected.message, *b"plain\n");
    assert!(rejected.reason.contains("byte 0"), "{}", rejected.reason);
}

#[test]
fn packed_records_keep_their_other_fields() {
    let mut rig = Rig::new(&COMPONENT, r#"{"as": "logfmt", "field": ".text"}"#);
    let mut body = b"\x92\x01\x82\xa4host\xa1h\xa4text\xa7a=1 b=2".to_vec();
    body.extend_from_slice(b"\x92\x01\x81\xa4host\xa1i");
    let made = rig.run(&entries(body, 2));
    let expected = [r#"{"host":"h","a":"1","b":"2"}"#, r#"{"host":"i"}"#];
    assert_eq!(made.lines(""), expected);
    assert_eq!(made.counts.failed, 1);
}

#[test]
fn unusable_options_are_refused() {
    for (options, word) in [
        ("{}", "as"),
        (r#"{"as": "regex"}"#, "pattern"),
        (r#"{"as": "xml"}"#, "xml"),
        (
            r#"{"as": "json", "timezone": "Mars"}"#,
            "no time zone is called `Mars`",
        ),
        (r#"{"as": "json", "columns": ["a"]}"#, "columns"),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}

#[test]
fn a_field_name_in_place_of_the_map_time_is_refused_with_a_hint() {
    let options = crate::rig::options("as: json\ntime: \"@timestamp\"\n");
    let problem = build("parse", &options).map(drop).unwrap_err().remove(0);
    let help = problem.help.unwrap_or_default();
    assert_eq!(help, r#"write `time: { field: "@timestamp" }`"#);
    assert_eq!(problem.place.line, 2);
}

#[test]
fn an_offset_is_a_time_zone_and_an_unknown_zone_in_a_time_rejects_the_record() {
    let options = r#"{"as": "json", "timezone": "+09:00", "time": {"format": "%F %T"}}"#;
    let mut rig = Rig::new(&COMPONENT, options);
    let made = rig.run(&lines("t", "{\"time\":\"2026-11-23 09:00:00\"}\n"));
    assert_eq!(made.counts.failed, 0);
    let options = r#"{"as": "json", "time": {"format": "%F %T %Z"}, "on_error": "reject"}"#;
    let mut rig = Rig::new(&COMPONENT, options);
    let made = rig.run(&lines("t", "{\"time\":\"2026-11-23 09:00:00 XYZ\"}\n"));
    let rejected = made.rejected.unwrap();
    let rejected = Rejected::read(&rejected.body).unwrap();
    assert!(
        rejected.reason.contains("unknown name"),
        "{}",
        rejected.reason
    );
}

#[test]
fn fields_are_kept_although_the_time_cannot_be_read() {
    let options = r#"{"as": "json", "time": {"field": "ts", "format": "%F %T"}}"#;
    let text = "{\"ts\":\"2026-11-23 09:00:00.5 UTC\",\"a\":1}\n{\"ts\":\"soon\",\"a\":2}\n";
    let mut rig = Rig::new(&COMPONENT, options);
    let made = rig.run(&lines("t", text));
    assert_eq!(made.lines(""), [r#"{"a":1}"#, r#"{"ts":"soon","a":2}"#]);
    assert_eq!(made.counts.failed, 1);
    let options = options.replace("}}", r#"}, "on_error": "reject"}"#);
    let mut rig = Rig::new(&COMPONENT, &options);
    let made = rig.run(&lines("t", text));
    assert_eq!(made.lines(""), [r#"{"a":1}"#]);
    assert!(made.rejected.is_some());
}

#[test]
fn a_pattern_of_fluent_bit_matches() {
    let pattern = r"/^\\<(?<pri>[0-9]+)\\>(?<ident>[^ ]+) (?<message>.*)$/m";
    let options = format!(r#"{{"as": "regex", "pattern": "{pattern}"}}"#);
    let mut rig = Rig::new(&COMPONENT, &options);
    let made = rig.run(&lines("t", "<13>su it works\n"));
    let expected = r#"{"pri":"13","ident":"su","message":"it works"}"#;
    assert_eq!(made.lines(""), [expected]);
}
