//! The habits that can be checked: who imports whom, a header in every file, sizes, names, whole component directories.

#![allow(clippy::unwrap_used, reason = "what cannot be done fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// At about 400 lines look for the second noun in a file; this is the wall.
const LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Which crate may import which of ours (ARCHITECTURE.md, "Who may import whom"). Tests may import testkit besides.
const IMPORTS: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("sys", &[]),
    ("state", &["sys"]),
    ("config", &[]),
    ("wire", &["record"]),
    ("pipeline", &["record", "config", "wire", "sys", "state"]),
    (
        "channels",
        &["record", "config", "wire", "sys", "state", "pipeline"],
    ),
    ("net", &["record", "config", "sys", "pipeline"]),
    ("kafka", &["config", "sys", "net"]),
    (
        "sources",
        &[
            "record", "config", "wire", "sys", "state", "pipeline", "net", "kafka",
        ],
    ),
    (
        "sinks",
        &[
            "record", "config", "wire", "sys", "state", "pipeline", "net", "kafka",
        ],
    ),
    ("testkit", &["record", "wire", "sys", "pipeline"]),
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn crates_import_only_what_is_below_them() {
    let rules: BTreeMap<_, BTreeSet<_>> = IMPORTS
        .iter()
        .map(|(name, below)| (*name, below.iter().copied().collect()))
        .collect();
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let Some(own) = name.strip_prefix("millstream-") else {
            continue;
        };
        let allowed = rules
            .get(own)
            .unwrap_or_else(|| panic!("{name} has no line in IMPORTS: say what it may import"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let Some(other) = dependency["name"]
                .as_str()
                .unwrap()
                .strip_prefix("millstream-")
            else {
                continue;
            };
            let for_tests = dependency["kind"] == "dev";
            assert!(
                for_tests || allowed.contains(other),
                "{name} may not import millstream-{other}"
            );
        }
    }
}

#[test]
fn the_generator_and_the_verifier_know_nothing_of_the_program() {
    for package in metadata()["packages"].as_array().unwrap() {
        if package["name"] == "millbench" {
            for dependency in package["dependencies"].as_array().unwrap() {
                let name = dependency["name"].as_str().unwrap();
                assert!(
                    !name.starts_with("millstream"),
                    "millbench imports {name}: its verdict would not be independent"
                );
            }
        }
    }
}

fn tracked(ending: &str) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let files: Vec<_> = names
        .lines()
        .filter(|name| name.ends_with(ending))
        .map(|name| root().join(name))
        .collect();
    files.into_iter().filter(|path| path.exists()).collect()
}

#[test]
fn every_source_file_opens_with_what_it_is() {
    for path in tracked(".rs")
        .iter()
        .filter(|path| !path.ends_with("tests.rs"))
    {
        let text = fs::read_to_string(path).unwrap();
        let is_target = text.starts_with("#![no_main]");
        assert!(
            text.starts_with("//!") || is_target,
            "{} has no header (`//! what, where on the line, what it promises`)",
            path.display()
        );
    }
}

#[test]
fn no_file_grows_beyond_the_wall_and_none_has_an_empty_name() {
    for path in tracked(".rs") {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines: look for the second noun in it",
            path.display()
        );
        for part in path.strip_prefix(root()).unwrap().iter() {
            let stem = part.to_string_lossy();
            let empty = [
                "util.rs",
                "utils.rs",
                "common.rs",
                "helpers.rs",
                "manager.rs",
                "util",
                "utils",
                "common",
                "helpers",
                "manager",
            ];
            assert!(
                !empty.contains(&&*stem),
                "{}: `{stem}` says nothing",
                path.display()
            );
        }
    }
}

#[test]
fn every_component_is_one_whole_directory() {
    let mut found = 0;
    for kind in ["sources", "channels", "sinks"] {
        for entry in fs::read_dir(root().join("crates").join(kind).join("src")).unwrap() {
            let directory = entry.unwrap().path();
            let Ok(code) = fs::read_to_string(directory.join("mod.rs")) else {
                continue;
            };
            if !code.contains("const COMPONENT: Component") {
                continue;
            }
            found += 1;
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
        found >= 4,
        "only {found} components found: is this test looking in the right place?"
    );
}

#[test]
fn nothing_is_left_open() {
    for path in tracked(".rs")
        .iter()
        .filter(|path| !path.ends_with("tidy.rs"))
    {
        let text = fs::read_to_string(path).unwrap();
        for word in ["TODO", "FIXME", "unimplemented!"] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}
