//! Tests with files and directories on disk: which files are read, in which order, and which problems are reported.

use std::fs;
use std::path::{Path, PathBuf};

use super::{load, load_only};
use crate::{Environment, Problems};

fn write(directory: &Path, files: &[(&str, &[u8])]) {
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
}

fn messages(problems: &Problems) -> Vec<String> {
    problems.0.iter().map(|p| p.message.clone()).collect()
}

fn failed(paths: &[PathBuf]) -> String {
    load(paths, &Environment::empty()).unwrap_err().to_string()
}

#[test]
fn a_directory_is_read_in_order_of_name_and_merged() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            (
                "20-b.yaml",
                b"sinks: { b: { type: x } }\nlog: { format: json }",
            ),
            (
                "10-a.yaml",
                b"sinks: { a: { type: x } }\nlog: { level: warn }\nx-free: 1",
            ),
            ("30-c.yaml", b"sinks:\n"),
            (".hidden.yaml", b"- no map"),
            ("notes.txt", b"- no map"),
            ("old.yml", b"- no map"),
        ],
    );
    let loaded = load(&[dir.path().to_owned()], &Environment::empty()).unwrap();
    let wanted = "this file is not read: only `*.yaml` are read from a directory";
    assert_eq!(messages(&loaded.problems), [wanted]);
    let sections = loaded.tree.sections();
    assert_eq!(sections.problems.0, []);
    let names: Vec<_> = sections.nodes.iter().map(|n| &*n.name.text).collect();
    assert_eq!(names, ["a", "b"]);
    let log = serde_json::to_string(&sections.settings.log).unwrap();
    assert_eq!(log, r#"{"level":"warn","format":"json"}"#);
}

#[test]
fn a_file_named_twice_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("a.yaml", b"sinks: { a: { type: x } }")]);
    let paths = [dir.path().to_owned(), dir.path().join("./a.yaml")];
    let loaded = load(&paths, &Environment::empty()).unwrap();
    assert_eq!(loaded.problems.0, []);
}

#[test]
fn options_that_are_not_asked_for_need_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            (
                "a.yaml",
                b"api: { listen: '${HOST}:1', tokens: [{ name: a, token: '${file:none.token}' }] }\ndata_dir: /d",
            ),
            (
                "b.yaml",
                b"sinks: { a: { type: x, password: '${NONE}' } }\nhost: '${NONE}'",
            ),
        ],
    );
    let environment = Environment::empty().with("HOST", "h");
    let paths = [dir.path().to_owned()];
    let loaded = load_only(&paths, &environment, &["api.listen", "data_dir"]).unwrap();
    assert_eq!(loaded.problems.0, []);
    let root = &loaded.tree.root;
    let texts = ["api.listen", "data_dir"].map(|path| root.find(path).unwrap().as_text());
    assert_eq!(texts, [Some("h:1"), Some("/d")]);
    for left_out in ["api.tokens", "sinks", "host"] {
        assert!(root.find(left_out).is_none(), "{left_out}");
    }
    // An option that is asked for needs its variables.
    let loaded = load_only(&paths, &environment, &["host"]).unwrap();
    let wanted = "the environment variable `NONE` is not set";
    assert_eq!(messages(&loaded.problems), [wanted]);
}

#[test]
fn all_unreadable_paths_are_reported_together() {
    let dir = tempfile::tempdir().unwrap();
    let text = failed(&[PathBuf::from("/none/a.yaml"), dir.path().to_owned()]);
    assert!(
        text.contains("/none/a.yaml: error: cannot read it: No such file"),
        "{text}"
    );
    assert!(
        text.contains("error: this directory has no file `*.yaml`"),
        "{text}"
    );
}

#[test]
fn invalid_utf8_is_reported_at_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, b"a: 1\nb: \xff\xfe\n").unwrap();
    let text = failed(std::slice::from_ref(&path));
    assert!(
        text.starts_with(&format!(
            "{}:2:4: error: this byte is not valid UTF-8",
            path.display()
        )),
        "{text}"
    );
}

#[test]
fn a_secret_that_is_not_valid_utf8_is_masked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, b"a: 1\npassword: hunter\xff\n").unwrap();
    let text = failed(&[path]);
    assert!(
        text.contains("password***") && !text.contains("hunter"),
        "{text}"
    );
}

#[test]
fn a_byte_order_mark_does_not_shift_the_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, "\u{feff}log: 3\n").unwrap();
    let loaded = load(&[path], &Environment::empty()).unwrap();
    let problems = loaded.tree.sections().problems;
    assert_eq!(problems.0[0].place.column, 6);
}

#[test]
fn a_file_that_is_too_large_is_rejected_before_parsing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let file = fs::File::create(&path).unwrap();
    file.set_len(super::FILE_MAX + 1).unwrap();
    assert!(failed(&[path]).contains("larger than 4 MiB"));
}

/// Deterministic noise: xorshift64* with a seed that the assertion prints.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap()
    }
}

/// Pieces that in random combinations reach deep into parser, substitution and reader.
const PIECES: [&str; 40] = [
    "sources",
    "sinks",
    "log",
    "level",
    "type",
    ": ",
    ":",
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "<<",
    "${X}",
    "${",
    "${file:/dev/null}",
    "$${",
    "'",
    "\"",
    "|\n",
    ">\n",
    "# c",
    "---\n",
    "!t ",
    "!!int ",
    "1e9",
    "0x1",
    "~",
    "true",
    "ü",
    "\t",
    "%YAML 1.2\n",
    "? ",
    "x-",
];

/// Loads a text as a file, reads every node of it, and checks the printed problems.
fn survives(text: &[u8], seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, text).unwrap();
    let environment = Environment::empty().with("X", "1").with("FORWARD_KEY", "k");
    let shown = match load(std::slice::from_ref(&path), &environment) {
        Ok(loaded) => {
            let mut problems = loaded.problems;
            let sections = loaded.tree.sections();
            problems.extend(sections.problems.0);
            for node in &sections.nodes {
                problems.extend(
                    node.options
                        .read::<crate::Settings>()
                        .err()
                        .unwrap_or_default(),
                );
            }
            problems.render(false)
        }
        Err(problems) => problems.render(false),
    };
    assert!(!shown.contains('\x1b'), "seed {seed}: {text:?}");
}

#[test]
fn no_text_makes_the_parser_panic() {
    for seed in 1..2000 {
        let mut noise = Noise(seed);
        let mut text = Vec::new();
        for _ in 0..noise.next() % 60 {
            match noise.next() % 20 {
                0 => text.push(u8::try_from(noise.next() % 256).unwrap()),
                _ => text.extend_from_slice(PIECES[noise.next() % PIECES.len()].as_bytes()),
            }
        }
        survives(&text, seed);
    }
}

#[test]
fn no_damage_to_a_valid_file_makes_the_parser_panic() {
    let good = include_bytes!("../../testdata/aggregator/a.yaml");
    for seed in 1..1000 {
        let mut noise = Noise(seed);
        let mut text = good.to_vec();
        for _ in 0..=noise.next() % 3 {
            let from = noise.next() % text.len();
            let to = text.len().min(from + noise.next() % 20);
            let piece = PIECES[noise.next() % PIECES.len()];
            text.splice(from..to, piece.bytes());
        }
        survives(&text, seed);
    }
}
