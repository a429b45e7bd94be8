//! Checks files: each has a header, a limited length and a meaningful name, component directories are complete, and nothing is
//! unfinished.

use std::fs;

use crate::tree::{files, root};

/// The most lines of a source file, without the unit tests in it.
const CODE_LINES_MAX: usize = 600;
/// The most lines of any file, including its tests.
const LINES_MAX: usize = 1000;
/// Names of files and directories that say nothing about their content.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "common", "helpers", "manager"];

#[test]
fn every_source_file_opens_with_a_header() {
    for file in files(&[".rs"]) {
        let has_header = file.text.starts_with("//!") || file.text.starts_with("#![no_main]");
        assert!(
            has_header || file.path.ends_with("tests.rs"),
            "{} has no header (`//!`: its purpose, its step in the path of a batch, its guarantees)",
            file.path
        );
    }
}

#[test]
fn no_file_is_too_long() {
    for file in files(&[".rs"]) {
        let (all, code) = (file.text.lines().count(), file.code().lines().count());
        let is_short = all <= LINES_MAX && (file.is_test() || code <= CODE_LINES_MAX);
        assert!(
            is_short,
            "{} has {all} lines, {code} of them without tests: divide it by responsibility",
            file.path
        );
    }
}

#[test]
fn no_file_or_directory_has_a_meaningless_name() {
    for file in files(&[".rs"]) {
        for part in file.path.split('/') {
            let stem = part.strip_suffix(".rs").unwrap_or(part);
            assert!(
                !EMPTY_NAMES.contains(&stem),
                "{}: `{stem}` says nothing about its content",
                file.path
            );
        }
    }
}

#[test]
fn every_component_directory_is_complete() {
    let mut found = 0;
    for kind in ["sources", "channels", "processors", "sinks"] {
        for entry in fs::read_dir(root().join("crates").join(kind).join("src")).unwrap() {
            let directory = entry.unwrap().path();
            let Ok(code) = fs::read_to_string(directory.join("mod.rs")) else {
                continue;
            };
            if !code.contains("const COMPONENT: Component") {
                continue;
            }
            found += 1;
            let has_tests = directory.join("tests.rs").exists() || directory.join("tests").is_dir();
            assert!(has_tests, "{} has no tests", directory.display());
            assert!(
                directory.join("example.yaml").exists(),
                "{} has no example.yaml",
                directory.display()
            );
            let readme = fs::read_to_string(directory.join("README.md")).unwrap_or_default();
            for heading in [
                "## What it does",
                "## Example",
                "## Options",
                "## Delivery",
                "## Limits",
            ] {
                assert!(
                    readme.contains(heading),
                    "{}/README.md has no `{heading}`",
                    directory.display()
                );
            }
        }
    }
    assert!(
        found >= 20,
        "only {found} components found: is this test looking in the right place?"
    );
}

#[test]
fn nothing_is_unfinished() {
    for file in files(&[".rs"]) {
        if file.path.ends_with("tidy/files.rs") {
            continue;
        }
        for word in ["TODO", "FIXME", "unimplemented!"] {
            assert!(!file.text.contains(word), "{}: {word}", file.path);
        }
    }
}
