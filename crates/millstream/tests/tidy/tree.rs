//! The files of the repository, and the crates as `cargo metadata` reports them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The root of the source tree.
pub fn root() -> PathBuf {
    // Read at run time, because a shared build cache may contain a test that was compiled in another clone.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A file of the repository.
pub struct File {
    /// Its path below the root.
    pub path: String,
    pub text: String,
}

impl File {
    /// Whether it holds only tests, or code that only tests use.
    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let in_tests = self.path.split('/').any(|part| part == "tests");
        let only_for_tests = ["rig.rs", "contributing.rs", "fuzzing.rs"].contains(&name);
        in_tests
            || only_for_tests
            || name.ends_with("tests.rs")
            || self.path.starts_with("crates/testkit/")
            || self.path.starts_with("fuzz/")
    }

    /// Its code, without the module of unit tests at the end of the file.
    pub fn code(&self) -> &str {
        match self.text.find("\n#[cfg(test)]\nmod tests {") {
            Some(end) => &self.text[..end],
            None => &self.text,
        }
    }
}

/// The files that Git tracks or does not ignore, and whose names have one of these endings, in order of path.
pub fn files(endings: &[&str]) -> Vec<File> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let wanted = names
        .lines()
        .filter(|name| endings.iter().any(|ending| name.ends_with(ending)));
    let read = |path: &str| {
        // Git still lists a file whose deletion is not committed yet.
        let text = fs::read_to_string(root().join(path)).ok()?;
        let path = path.to_owned();
        Some(File { path, text })
    };
    let mut files: Vec<File> = wanted.filter_map(read).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files.dedup_by(|one, other| one.path == other.path);
    files
}

/// The output of `cargo metadata`.
pub fn metadata() -> Value {
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
