//! Paths and names, without a disk.

use std::{ffi::OsString, path::Path};

use millstream_record::Time;

use crate::file::naming::{misfit, next_number, rotated, rotation_number, superfluous};

#[test]
fn a_rotated_file_is_named_by_time_and_number() {
    let cases = [
        (
            "/a/app.log",
            1_700_000_000_999_999_999,
            7,
            "/a/app.log.20231114-221320-7",
        ),
        ("app", 0, 0, "app.19700101-000000-0"),
        ("/a", -1, 12, "/a.19691231-235959-12"),
        (
            "/a",
            i64::MAX,
            u64::MAX,
            "/a.22620411-234716-18446744073709551615",
        ),
        ("/a", i64::MIN, 1, "/a.16770921-001243-1"),
    ];
    for (path, time, number, expected) in cases {
        assert_eq!(
            rotated(Path::new(path), Time(time), number),
            Path::new(expected)
        );
    }
}

#[test]
fn only_rotations_of_the_same_file_are_recognized() {
    let cases = [
        ("a.20231114-221320-7", Some(7)),
        ("a.16770921-001243-0", Some(0)),
        ("a", None),
        ("b.20231114-221320-7", None),
        ("a.20231114-221320-7.gz", None),
        ("a.20231114-221320-", None),
        ("a.20231114-221320", None),
        ("a.20231114-221320-7-8", None),
        ("a.2023111-221320-7", None),
        ("a.2023111x-221320-7", None),
        ("a.b.20231114-221320-7", None),
        ("a.20231114-221320-+7", None),
        ("a.20231114-221320-99999999999999999999", None),
    ];
    for (name, expected) in cases {
        assert_eq!(
            rotation_number("a".as_ref(), name.as_ref()),
            expected,
            "{name}"
        );
    }
}

#[test]
fn the_newest_rotations_are_kept() {
    let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
    let all = names(&[
        "a",
        "a.20231114-221320-10",
        "a.20231114-221320-9",
        "a.20231114-221321-11",
        "a.x",
    ]);
    assert_eq!(
        superfluous("a".as_ref(), all.clone(), 2),
        names(&["a.20231114-221320-9"])
    );
    assert_eq!(superfluous("a".as_ref(), all.clone(), 3), names(&[]));
    assert_eq!(superfluous("a".as_ref(), all, 9), names(&[]));
}

#[test]
fn numbers_continue_after_the_highest_one_in_the_directory() {
    let next = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(OsString::from).collect();
        next_number(&names)
    };
    assert_eq!(next(&["a", "a.x", "a.2023111-221320-7"]), 0);
    let rotations = ["a.20231114-221320-9", "b.20231114-221320-10.gz", "b"];
    assert_eq!(next(&rotations), 11);
    assert_eq!(next(&["a.20231114-221320-18446744073709551615"]), 0);
}

#[test]
fn a_name_that_keep_would_mistake_for_a_rotated_file_is_refused() {
    for (path, is_one) in [
        ("/a/x.20200101-000000-1", true),
        ("x.20200101-000000-1.gz", true),
        (".20200101-000000-1", true),
        ("/a.20200101-000000-1/x", false),
        ("/a/x.20200101-000000", false),
        ("/a/20200101-000000-1", false),
    ] {
        assert_eq!(
            misfit(path.as_bytes(), true, true).is_some(),
            is_one,
            "{path}"
        );
        assert_eq!(misfit(path.as_bytes(), true, false), None, "{path}");
    }
}

#[test]
fn a_path_that_cannot_be_a_file_is_refused() {
    let long = "x".repeat(255);
    let cases = [
        ("/a/b".to_owned(), true, None),
        (format!("/{long}/{long}"), false, None),
        (format!("/{long}/{long}"), true, Some("too long")),
        (format!("/{long}x/a"), false, Some("too long")),
        (format!("/{long}").repeat(16), false, Some("too long")),
        (String::new(), false, Some("names no file")),
        ("/a/".to_owned(), false, Some("names no file")),
    ];
    for (path, rotates, expected) in cases {
        let told = misfit(path.as_bytes(), rotates, false);
        assert_eq!(told.is_some(), expected.is_some(), "{path}");
        assert!(
            told.unwrap_or_default()
                .contains(expected.unwrap_or_default()),
            "{path}"
        );
    }
}
