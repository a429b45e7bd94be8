//! Reads files and directories into one tree.
//!
//! All substitutions are made in the tree. Reading continues after a problem, and all problems are returned together. A directory
//! stands for its `*.yaml` files in alphabetical order. Several files are merged map by map. A node or a setting that occurs in two
//! files is an error that shows both places. Top-level names that begin with `x-` can hold anchors, and are removed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::environment::Environment;
use crate::mask::unparsed;
use crate::node::{Key, Map, Node, Value};
use crate::parse::parse;
use crate::place::{Place, Source};
use crate::problem::{Problem, Problems};
use crate::sections::{Tree, is_section, twice};
use crate::substitute::substitute;
use crate::whole::read_file;

/// The maximum size of a configuration file in bytes.
const FILE_MAX: u64 = 4 << 20;

/// The tree of all files that could be parsed, and the problems so far.
///
/// A value with a problem is [`Value::Invalid`] in the tree, so that the other values can be checked and all problems
/// are reported together.
#[derive(Debug)]
#[must_use = "a tree with errors must not be run"]
pub struct Loaded {
    /// All files as one tree.
    pub tree: Tree,
    /// Errors and warnings: unset variables, duplicate names, files that are not read.
    pub problems: Problems,
}

/// Reads files and directories and merges them.
///
/// # Errors
/// All problems so far, if one of the files could not be read to its end. An incomplete tree would only cause misleading errors.
pub fn load(paths: &[PathBuf], environment: &Environment) -> Result<Loaded, Problems> {
    load_parts(paths, environment, |_| {})
}

/// Like [`load`], but only for some options (such as `data_dir` or `api.listen`). All other options are removed before substitution. So a
/// command that needs none of their secrets works even if it cannot read the secrets.
///
/// # Errors
/// As [`load`].
pub fn load_only(
    paths: &[PathBuf],
    environment: &Environment,
    options: &[&str],
) -> Result<Loaded, Problems> {
    load_parts(paths, environment, |part| keep_only(part, options))
}

/// Loads files. `prepare` changes the tree of each file before substitution.
fn load_parts(
    paths: &[PathBuf],
    environment: &Environment,
    prepare: impl Fn(&mut Node),
) -> Result<Loaded, Problems> {
    let mut problems = Vec::new();
    let mut is_whole = true;
    let mut root: Option<Node> = None;
    for (order, path) in files_of(paths, &mut problems).into_iter().enumerate() {
        let part = match read(&path, order) {
            Ok(source) => part_of(&source, environment, &prepare, &mut problems),
            Err(problem) => {
                problems.push(*problem);
                None
            }
        };
        let Some(part) = part else {
            is_whole = false;
            continue;
        };
        root = Some(match root {
            Some(root) => merge_top(root, part, &mut problems),
            None => part,
        });
    }
    let problems = Problems(problems);
    match root {
        Some(root) if is_whole => Ok(Loaded {
            tree: Tree { root },
            problems,
        }),
        _ => Err(problems),
    }
}

/// The files that the paths stand for, without duplicates.
fn files_of(paths: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        match fs::metadata(path) {
            Ok(data) if data.is_dir() => match directory(path, problems) {
                Ok(inside) => files.extend(inside),
                Err(error) => problems.push(unreadable(path, &error)),
            },
            // A path that cannot be opened is reported later, when it is read.
            _ => files.push(path.clone()),
        }
    }
    let mut seen = HashSet::new();
    files.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    files
}

/// The `*.yaml` files of a directory in alphabetical order. Hidden files (such as those that Kubernetes puts into a mounted volume) are
/// skipped.
fn directory(path: &Path, problems: &mut Vec<Problem>) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_hidden = file
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().map(|e| e.to_string_lossy().into_owned());
        match extension.as_deref() {
            _ if is_hidden || file.is_dir() => {}
            Some("yaml") => files.push(file),
            Some("yml") => {
                let place = Place::path(file, 0);
                problems.push(Problem::warning(
                    &place,
                    "this file is not read: only `*.yaml` are read from a directory",
                ));
            }
            _ => {}
        }
    }
    files.sort();
    if files.is_empty() {
        let place = Place::path(path, 0);
        problems.push(Problem::new(&place, "this directory has no file `*.yaml`"));
    }
    Ok(files)
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::new(&Place::path(path, 0), format!("cannot read it: {error}"))
}

/// Reads the text of a file.
fn read(path: &Path, order: usize) -> Result<Arc<Source>, Box<Problem>> {
    let bytes = read_file(path, FILE_MAX).map_err(|error| unreadable(path, &error))?;
    match String::from_utf8(bytes) {
        Ok(text) => {
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            Ok(Source::new(path, text, order))
        }
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let lossy = String::from_utf8_lossy(error.as_bytes());
            let before = lossy.get(..valid).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            let file = Source::new(path, lossy.as_ref(), order);
            file.note_secrets(unparsed(&lossy, 0).into_iter().collect());
            let place = Place {
                file,
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
                length: 1,
            };
            let problem = Problem::new(&place, "this byte is not valid UTF-8");
            Err(Box::new(problem.help("save the file as UTF-8")))
        }
    }
}

/// Parses one file as a map and substitutes its variables. `None` if it could not be parsed or is not a map.
fn part_of(
    source: &Arc<Source>,
    environment: &Environment,
    prepare: impl Fn(&mut Node),
    problems: &mut Vec<Problem>,
) -> Option<Node> {
    let mut node = parse(source, problems)?;
    match &mut node.value {
        Value::Map(map) => map.entries.retain(|(key, _)| !key.text.starts_with("x-")),
        Value::Null => {
            problems.push(Problem::warning(&node.place, "this file is empty"));
            node.value = Value::Map(Map::default());
        }
        _ => {
            let message = format!(
                "a configuration is a map of sections, found {}",
                node.kind()
            );
            let problem = Problem::new(&node.place, message);
            problems.push(problem.help("such as `sources: ...` and `sinks: ...`"));
            return None;
        }
    }
    prepare(&mut node);
    substitute(&mut node, environment, problems);
    Some(node)
}

/// Keeps only the given options and the maps that contain them. `options` are paths: names joined by dots.
fn keep_only(node: &mut Node, options: &[&str]) {
    let Value::Map(map) = &mut node.value else {
        return;
    };
    map.entries.retain_mut(|(key, node)| {
        let (mut is_wanted, mut inner) = (false, Vec::new());
        for option in options {
            let (name, rest) = option.split_once('.').unwrap_or((option, ""));
            if name == key.text {
                is_wanted = true;
                inner.extend(Some(rest).filter(|rest| !rest.is_empty()));
            }
        }
        if !inner.is_empty() {
            keep_only(node, &inner);
        }
        is_wanted
    });
}

/// Merges the map of one file into the map of the earlier files. Sections and blocks of settings are merged entry by entry.
fn merge_top(mut all: Node, part: Node, problems: &mut Vec<Problem>) -> Node {
    let (Value::Map(into), Value::Map(from)) = (&mut all.value, part.value) else {
        return all;
    };
    for (key, node) in from.entries {
        // A node must be written in a single file. Settings are merged one by one.
        let noun = match is_section(&key.text) {
            true => Some("node"),
            false => None,
        };
        add(into, key, node, &Nested(noun), problems);
    }
    all
}

/// How the entries of a map are merged. `None`: the entries are settings, which are merged. `Some`: the entries are nodes, which are not
/// merged. A second node of the same name is an error. The text is the noun for a node in the error message.
struct Nested(Option<&'static str>);

fn add(into: &mut Map, key: Key, node: Node, nested: &Nested, problems: &mut Vec<Problem>) {
    let Some(at) = into.entries.iter().position(|(k, _)| k.text == key.text) else {
        into.entries.push((key, node));
        return;
    };
    let Some((first, old)) = into.entries.get_mut(at) else {
        return;
    };
    match (&mut old.value, node.value) {
        // A section without a value adds nothing.
        (_, Value::Null) => {}
        (Value::Null, value) => old.value = value,
        (Value::Map(into), Value::Map(from)) => {
            for (key, node) in from.entries {
                match nested.0 {
                    Some(noun) => add_whole(into, key, node, noun, problems),
                    None => add(into, key, node, nested, problems),
                }
            }
        }
        _ => problems.push(twice("setting", &key, first)),
    }
}

fn add_whole(into: &mut Map, key: Key, node: Node, noun: &str, problems: &mut Vec<Problem>) {
    match into.entry(&key.text) {
        Some((first, _)) => problems.push(twice(noun, &key, first)),
        None => into.entries.push((key, node)),
    }
}

#[cfg(test)]
mod tests;
