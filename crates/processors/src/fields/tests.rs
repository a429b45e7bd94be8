//! Changed records and new tags. The tests of the individual changes are in `wire::edit`.

use millstream_pipeline::reject::Rejected;

use crate::rig::{Made, Rig, entries, lines, problems};

use super::*;

#[test]
fn templates_see_renamed_fields_and_absent_fields_can_be_removed() {
    let options = r#"{"rename": {".message": ".text"}, "set": {".env": "prod", ".copy": "{.text}"}, "remove": [".password"]}"#;
    let mut rig = Rig::new(&COMPONENT, options);
    assert!(!rig.changes_tags());
    let made = rig.run(&lines("t", "a\nb\n"));
    let expected = [
        r#"{"text":"a","env":"prod","copy":"a"}"#,
        r#"{"text":"b","env":"prod","copy":"b"}"#,
    ];
    assert_eq!(made.lines(""), expected);
    assert_eq!(made.ports[""][0].tag.as_str(), "t");
}

#[test]
fn records_without_a_needed_value_are_rejected_and_their_neighbours_are_not() {
    let mut rig = Rig::new(&COMPONENT, r#"{"set": {".copy": "{.user}"}}"#);
    let mut body = b"\x92\x01\x81\xa4user\xa1u".to_vec();
    body.extend_from_slice(b"\x92\x01\x81\xa1a\x01");
    let made = rig.run(&entries(body, 2));
    assert_eq!(made.lines(""), [r#"{"user":"u","copy":"u"}"#]);
    assert_eq!(made.rejected.unwrap().count, 1);
}

#[test]
fn the_tag_can_depend_on_the_changed_record_and_on_the_batch() {
    let mut rig = Rig::new(&COMPONENT, r#"{"tag": "x.{.message}", "set": {".n": 1}}"#);
    assert!(rig.changes_tags());
    let made = rig.run(&lines("t", "a\nb\na\n"));
    let tags = made.ports[""].iter();
    let tags: Vec<_> = tags
        .map(|batch| (batch.tag.as_str(), batch.count))
        .collect();
    assert_eq!(tags, [("x.a", 2), ("x.b", 1)]);
    let mut rig = Rig::new(&COMPONENT, r#"{"tag": "new.{tag}"}"#);
    let made = rig.run(&lines("t", "a\nb\n"));
    assert_eq!(made.ports[""][0].tag.as_str(), "new.t");
    assert_eq!(made.ports[""][0].count, 2);
    let mut rig = Rig::new(&COMPONENT, r#"{"tag": "{.message}"}"#);
    let made = rig.run(&lines("t", "a\n\n"));
    assert_eq!((made.counts.sent, made.counts.rejected), (1, 1));
}

#[test]
fn tiny_records_that_get_a_long_tag_do_not_grow_without_limit() {
    let mut rig = Rig::new(&COMPONENT, r#"{"set": {".t": "{tag}"}}"#);
    let batch = lines(&"t".repeat(8192), &"x\n".repeat(10_000));
    let made = rig.run(&batch);
    let sent: usize = made.ports[""].iter().map(Batch::len).sum();
    assert!(sent <= batch.grown_bytes_max() && sent > batch.grown_bytes_max() - 9000);
    assert_eq!(made.counts.sent + made.counts.rejected, 10_000);
    assert!(made.rejected.unwrap().len() < 10 << 20);
}

/// The original bytes of the rejected records.
fn rejected(made: &Made) -> Vec<Vec<u8>> {
    let batch = made.rejected.as_ref().unwrap();
    records(batch)
        .map(|(range, _)| Rejected::read(&batch.body[range]).unwrap())
        .map(|rejected| rejected.message.into_owned())
        .collect()
}

#[test]
fn a_record_without_a_usable_tag_is_rejected_as_it_came() {
    let options = r#"{"set": {".copy": "{.user}"}, "tag": "x.{.tenant}"}"#;
    let mut rig = Rig::new(&COMPONENT, options);
    let [untagged, unchanged, sent, last]: [&[u8]; 4] = [
        b"\x92\x01\x81\xa4user\xa1u",
        b"\x92\x02\x81\xa6tenant\xa1t",
        b"\x92\x03\x82\xa4user\xa1v\xa6tenant\xa1t",
        b"\x92\x04\x81\xa4user\xa1w",
    ];
    let made = rig.run(&entries([untagged, unchanged, sent, last].concat(), 4));
    assert_eq!(made.lines(""), [r#"{"user":"v","tenant":"t","copy":"v"}"#]);
    // The records that could not be changed come last.
    assert_eq!(rejected(&made), [untagged, last, unchanged]);
    // If the tag depends on the batch alone, all of its records are rejected.
    let options = r#"{"set": {".copy": "{.message}"}, "tag": "x.{host}"}"#;
    let made = Rig::new(&COMPONENT, options).run(&lines("t", "a\nb\n"));
    assert_eq!(rejected(&made), [b"a\n", b"b\n"]);
}

#[test]
fn a_new_tag_alone_copies_no_bytes_and_lines_stay_lines() {
    let mut rig = Rig::new(&COMPONENT, r#"{"tag": "new.{tag}"}"#);
    let input = lines("t", "a\nb\n");
    let made = rig.run(&input);
    let [output] = &made.ports[""][..] else {
        panic!("{:?}", made.ports);
    };
    assert_eq!((output.tag.as_str(), output.count), ("new.t", 2));
    assert_eq!(output.body.as_ptr(), input.body.as_ptr());
    // If the tags of records differ, the records are copied into one batch per tag, in order.
    let mut rig = Rig::new(&COMPONENT, r#"{"tag": "x.{.message}"}"#);
    let made = rig.run(&lines("t", "a\nb\na\n"));
    let outputs = made.ports[""].iter();
    let outputs: Vec<_> = outputs
        .map(|batch| (batch.tag.as_str(), batch.encoding, &batch.body[..]))
        .collect();
    let expected = [
        ("x.a", Encoding::Lines, &b"a\na\n"[..]),
        ("x.b", Encoding::Lines, b"b\n"),
    ];
    assert_eq!(outputs, expected);
}

#[test]
fn unusable_options_are_refused() {
    for (options, word) in [
        ("{}", "changes nothing"),
        (
            r#"{"set": {".a": 1}, "remove": [".a"]}"#,
            "is written and then removed",
        ),
        (r#"{"tag": "{"}"#, "tag"),
        (
            r#"{"remove": [".a"], "timezone": "Mars"}"#,
            "no time zone is called `Mars`",
        ),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}
