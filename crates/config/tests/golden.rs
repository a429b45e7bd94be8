//! Golden tests: each directory of testdata/ is a configuration, and its file `expected` is the output that the user sees.
//!
//! `UPDATE=1 cargo test -p millstream-config --test golden` rewrites the files `expected`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use millstream_config::{
    Entry, Environment, Node, OneOrMany, Period, Problem, Problems, Secret, Size, Word, load,
    unknown,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Options that the nodes of these tests share, like those of real nodes.
#[derive(Debug, Deserialize)]
struct Common {
    #[serde(default)]
    inputs: OneOrMany<String>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is printed")]
struct Forward {
    listen: OneOrMany<String>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    auth: Option<Auth>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    connections: u32,
    frame: Size,
    idle: Period,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            frame: Size::mib(64),
            idle: Period::secs(600),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is printed")]
struct Auth {
    shared_key: Secret,
    #[serde(default)]
    users: BTreeMap<String, Secret>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is printed")]
struct Tail {
    paths: OneOrMany<String>,
    #[serde(default)]
    tag: Option<String>,
    #[serde(default)]
    framing: Framing,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[expect(dead_code, reason = "it is printed")]
enum Framing {
    #[default]
    Lines,
    Multiline {
        start: String,
        wait: Period,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is printed")]
struct File {
    path: PathBuf,
    #[serde(default)]
    format: Format,
    #[serde(default)]
    rotate: Rotate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Json,
    Raw,
    Msgpack,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rotate {
    size: Size,
    keep: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Discard {}

const TYPES: [&str; 4] = ["forward", "tail", "file", "discard"];

fn show<T: DeserializeOwned + std::fmt::Debug>(options: &Node) -> Result<String, Vec<Problem>> {
    options.read::<T>().map(|options| format!("{options:?}"))
}

/// Reads one node as the program does.
fn read(entry: &Entry, problems: &mut Problems) -> String {
    let mut options = entry.options.clone();
    let common = match options.take_part::<Common>() {
        Ok(common) => format!("{:?} {:?}", common.inputs.0, common.tags),
        Err(wrong) => {
            problems.extend(wrong);
            "-".to_owned()
        }
    };
    let own = match entry.kind.text.as_str() {
        "forward" => show::<Forward>(&options),
        "tail" => show::<Tail>(&options),
        "file" => show::<File>(&options),
        "discard" => show::<Discard>(&options),
        other => Err(vec![unknown(Word::Type, other, &entry.kind.place, &TYPES)]),
    };
    let own = own.unwrap_or_else(|wrong| {
        problems.extend(wrong);
        "-".to_owned()
    });
    format!(
        "{} {} {common} {own}",
        entry.section.noun(),
        entry.name.text
    )
}

fn outcome(directory: PathBuf) -> String {
    let environment = Environment::empty()
        .with("PORT", "24224")
        .with("CONNECTIONS", "many")
        .with("FORWARD_KEY", "swordfish")
        .with("DB_PASSWORD", "swordfish")
        .with("EMPTY", "");
    let loaded = match load(&[directory], &environment) {
        Ok(loaded) => loaded,
        Err(problems) => return problems.render(false),
    };
    let mut problems = loaded.problems;
    let sections = loaded.tree.sections();
    problems.extend(sections.problems.0);
    let mut shown = String::new();
    for entry in &sections.nodes {
        let line = read(entry, &mut problems);
        shown.push_str(&line);
        shown.push('\n');
    }
    match problems.has_errors() {
        true => problems.render(false),
        false => format!("{}{shown}{:?}\n", problems.render(false), sections.settings),
    }
}

#[test]
fn every_case_prints_its_expected_output() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut cases: Vec<_> = fs::read_dir("testdata")
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 20, "the cases are gone");
    let mut wrong = String::new();
    for case in cases {
        let shown = outcome(case.clone());
        assert!(
            !shown.contains("swordfish"),
            "{} shows a secret:\n{shown}",
            case.display()
        );
        let file = case.join("expected");
        if update {
            fs::write(&file, &shown).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if shown != expected {
            writeln!(wrong, "{}:\n{shown}\nexpected:\n{expected}", case.display()).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
