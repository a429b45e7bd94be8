//! Documents: every link leads somewhere, and every source file that the architecture names exists.

use std::path::{Component, Path, PathBuf};

use crate::tree::{files, root};

/// The targets of links in Markdown that are files of the repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    let targets = targets.map(|target| target.split('#').next().unwrap_or_default());
    targets
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' '))
        .collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_link_of_a_document_leads_to_a_file() {
    for file in files(&[".md"]) {
        let directory = root().join(&file.path);
        let directory = directory.parent().unwrap();
        for target in links(&file.text) {
            let path = normal(&directory.join(target));
            assert!(path.exists(), "{}: no file `{target}`", file.path);
        }
    }
}

#[test]
fn every_source_file_in_the_architecture_exists() {
    let found = files(&["ARCHITECTURE.md", "docs/decisions.md", "docs/delivery.md"]);
    for file in found
        .iter()
        .filter(|file| !file.path.starts_with("crates/"))
    {
        for name in file.text.split('`').skip(1).step_by(2) {
            let Some((first, rest)) = name.split_once('/') else {
                continue;
            };
            if !name.ends_with(".rs") || name.contains(['*', '{', ' ']) {
                continue;
            }
            // `sinks/file/writer.rs` stands for a file in the crate `sinks`; other paths begin at the root.
            let inside = root().join("crates").join(first).join("src").join(rest);
            let exists = inside.exists() || root().join(name).exists();
            assert!(exists, "{}: no file `{name}`", file.path);
        }
    }
}

#[test]
fn links_are_found_in_markdown() {
    let text = "See [a](docs/a.md#part), [b](https://b), [c](#c) and `x[1](y z)`.";
    assert_eq!(links(text), ["docs/a.md"]);
    assert_eq!(normal(Path::new("/a/./b/../c")), Path::new("/a/c"));
}
