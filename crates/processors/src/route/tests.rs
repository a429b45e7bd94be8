//! Each record leaves by exactly one port.

use crate::rig::{Rig, lines, problems};

use super::*;

#[test]
fn the_first_condition_in_the_order_of_the_file_takes_a_record() {
    let options = r#"{"routes": {
        "z": {"where": {".message": {"glob": "a*"}}},
        "b": {"where": {".message": {"glob": "*1"}}}
    }}"#;
    let mut rig = Rig::new(&COMPONENT, options);
    let made = rig.run(&lines("t", "a1\nb1\na2\nc\n"));
    assert_eq!(made.lines("z"), ["a1", "a2"]);
    assert_eq!(made.lines("b"), ["b1"]);
    assert_eq!(made.lines("rest"), ["c"]);
    assert_eq!(made.counts.filtered, 0);
}

#[test]
fn unusable_routes_are_refused() {
    for (options, word) in [
        (r#"{"routes": {}}"#, "no route"),
        (
            r#"{"routes": {"rest": {"where": {".a": 1}}}}"#,
            "choose another name",
        ),
        (
            r#"{"routes": {"A.b": {"where": {".a": 1}}}}"#,
            "letter from a to z",
        ),
        (r#"{"routes": {"a": {}}}"#, "where"),
        (r#"{"routes": {"a": {"where": {}}}}"#, "matches everything"),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}
