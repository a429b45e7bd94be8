//! Checks that each crate imports only the crates that it may import.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::metadata;

/// Each crate of the workspace, and the other crates that it may import (see ARCHITECTURE.md). Tests may also import testkit.
const IMPORTS: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("sys", &[]),
    ("state", &["sys"]),
    ("config", &[]),
    ("wire", &["record"]),
    ("vrl", &["record", "wire"]),
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
        "processors",
        &["record", "config", "wire", "sys", "pipeline", "vrl"],
    ),
    (
        "sinks",
        &[
            "record", "config", "wire", "sys", "state", "pipeline", "net", "kafka",
        ],
    ),
    ("testkit", &["record", "wire", "sys", "pipeline"]),
];

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
            .unwrap_or_else(|| panic!("{name} has no entry in IMPORTS: list what it may import"));
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
fn the_generator_and_the_verifier_import_no_crate_of_the_program() {
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
