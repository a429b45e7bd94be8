//! The processor `filter`: records that match are passed on unchanged, all others are filtered.

use crate::rig::{Rig, lines, problems};

use super::*;

#[test]
fn only_records_that_match_are_kept_in_their_order() {
    let mut rig = Rig::new(&COMPONENT, r#"{"where": {".message": {"glob": "keep*"}}}"#);
    let made = rig.run(&lines("t", "keep 1\nno\nkeep 2\nkeep 3\n"));
    assert_eq!(made.lines(""), ["keep 1", "keep 2", "keep 3"]);
    assert_eq!(made.counts.filtered, 1);
}

#[test]
fn a_batch_that_matches_as_a_whole_is_not_copied() {
    let mut rig = Rig::new(&COMPONENT, r#"{"where": {"tag": "web.**"}}"#);
    let batch = lines("web.a", "1\n2\n");
    let made = rig.run(&batch);
    assert_eq!(made.ports[""][0].body.as_ptr(), batch.body.as_ptr());
    assert_eq!(rig.run(&lines("db", "1\n")).counts.filtered, 1);
}

#[test]
fn unusable_conditions_are_refused() {
    for (options, word) in [
        ("{}", "where"),
        (r#"{"where": {}}"#, "matches everything"),
        (r#"{"where": {".a": {"near": 1}}}"#, "near"),
        (r#"{"where": {"tag": "{a"}}"#, "tag pattern"),
        (r#"{"where": 5}"#, "a VRL condition"),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}

#[test]
fn a_text_between_slashes_causes_a_warning() {
    let warnings = |options: &str| {
        let options = crate::rig::options(options);
        let built = build("filter", &options).unwrap();
        let warnings = built.warnings().to_vec();
        let help = |problem: Problem| problem.help.unwrap_or_default();
        warnings.into_iter().map(help).collect::<Vec<_>>()
    };
    let found = warnings("where: { .level: /err/ }");
    assert_eq!(
        found,
        ["for a regular expression, write `{ regex: 'err' }`"]
    );
    assert!(warnings("where: { .path: [/, /api/v1/, err] }").is_empty());
}
