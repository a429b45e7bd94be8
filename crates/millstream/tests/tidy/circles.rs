//! Finds import circles between the modules of a crate.
//!
//! A module is a file. It imports another module if a path in its code (`crate::`, `super::`, `self::`) leads into that module. A
//! module and the modules below it may import each other, because together they are one unit. Imports in unit tests are ignored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::tree::{File, files};

/// The modules of one crate and what each imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The crate and the module path of a file: `crates/sinks/src/file/writer.rs` is the module `file::writer` of the crate `sinks`.
fn module(path: &str) -> Option<(&str, String)> {
    let (name, rest) = match path.strip_prefix("crates/") {
        Some(below) => below.split_once("/src/")?,
        None => path.split_once("/src/")?,
    };
    let rest = rest.strip_suffix(".rs")?;
    let rest = rest.strip_suffix("/mod").unwrap_or(rest);
    let top = rest == "lib" || rest == "main";
    Some((
        name,
        if top {
            String::new()
        } else {
            rest.replace('/', "::")
        },
    ))
}

/// Every path in `text` that begins at the crate, this module or its parent, with braces resolved.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            // Not a start: `$crate::`, a longer word, or the second word of `super::super::`.
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            expand(String::new(), &text[at..], &mut found);
        }
    }
    found
}

/// Appends the paths of the use tree at the beginning of `text` to `found`. Returns the text after the tree.
fn expand<'t>(prefix: String, text: &'t str, found: &mut Vec<String>) -> &'t str {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':' || c == '*'))
        .unwrap_or(text.len());
    let path = prefix + &text[..end];
    let mut rest = &text[end..];
    if !path.ends_with("::") || !rest.starts_with('{') {
        found.push(path);
        return rest;
    }
    rest = &rest[1..];
    loop {
        rest = rest.trim_start_matches([' ', '\n', ',']);
        match rest.chars().next() {
            Some('}') => return &rest[1..],
            Some(c) if c.is_alphabetic() || c == '_' || c == '*' => {
                rest = expand(path.clone(), rest, found);
                // Skips `as NAME`.
                rest = rest.find([',', '}']).map_or("", |at| &rest[at..]);
            }
            _ => return rest,
        }
    }
}

/// The module that `path` leads to if the module `from` contains this path. `None` if the path leads to no module.
fn target<'g>(from: &str, path: &str, modules: &'g BTreeSet<String>) -> Option<&'g String> {
    let mut at: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
    let mut words = path.split("::").peekable();
    loop {
        match words.peek() {
            Some(&"crate") => at.clear(),
            Some(&"super") => drop(at.pop()),
            Some(&"self") => {}
            _ => break,
        }
        words.next();
    }
    at.extend(words);
    // The longest prefix that is a module; the rest of the path names items in it.
    while !at.is_empty() {
        if let Some(module) = modules.get(&at.join("::")) {
            return Some(module);
        }
        at.pop();
    }
    None
}

/// Whether both are the same module, or one is below the other.
fn are_related(one: &str, other: &str) -> bool {
    let below = |upper: &str, lower: &str| {
        lower
            .strip_prefix(upper)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    below(one, other) || below(other, one)
}

fn graphs(files: &[File]) -> BTreeMap<String, Graph> {
    let mut modules: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let sources = || {
        let sources = files.iter().filter(|file| !file.is_test());
        sources.filter_map(|file| module(&file.path).map(|(name, module)| (name, module, file)))
    };
    for (name, module, _) in sources() {
        modules.entry(name).or_default().insert(module);
    }
    let mut graphs: BTreeMap<String, Graph> = BTreeMap::new();
    for (name, module, file) in sources() {
        let all = &modules[name];
        let imports = graphs
            .entry(name.to_owned())
            .or_default()
            .entry(module.clone())
            .or_default();
        let code: Vec<&str> = file
            .code()
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        for path in paths(&code.join("\n")) {
            if let Some(other) = target(&module, &path, all)
                && !are_related(&module, other)
            {
                imports.insert(other.clone());
            }
        }
    }
    graphs
}

/// All modules that `start` imports, directly or through other modules.
fn reachable<'g>(graph: &'g Graph, start: &str) -> BTreeSet<&'g str> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&str> = graph[start].iter().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if seen.insert(module) {
            next.extend(graph[module].iter().map(String::as_str));
        }
    }
    seen
}

/// The sets of two or more modules in which each imports all others, directly or through other modules. The sets do not overlap.
fn circles(graph: &Graph) -> Vec<Vec<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|module| (module.as_str(), reachable(graph, module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, to) in &reached {
        let mutual = to.iter().filter(|other| reached[*other].contains(module));
        let circle: Vec<&str> = mutual.copied().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// A circle of imports in a crate.
pub struct Circle {
    name: String,
    modules: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.modules.join(", "))
    }
}

/// All circles in all crates.
pub fn all() -> Vec<Circle> {
    let graphs = graphs(&files(&[".rs"]));
    let mut found = Vec::new();
    for (name, graph) in &graphs {
        for circle in circles(graph) {
            let modules = circle.into_iter().map(str::to_owned).collect();
            let name = name.clone();
            found.push(Circle { name, modules });
        }
    }
    found
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_circles() {
    let found: Vec<String> = all().iter().map(Circle::to_string).collect();
    assert!(
        found.is_empty(),
        "import circles; move what they share into a module that both import:\n{}",
        found.join("\n")
    );
}

#[test]
fn use_trees_are_resolved_to_modules() {
    let text = "use super::{a::{B, c}, d as e};\nuse crate::{f::*, g};\nlet x = self::h::i();";
    let mut found = paths(text);
    found.sort();
    let expected = [
        "crate::f::*",
        "crate::g",
        "self::h::i",
        "super::a::B",
        "super::a::c",
        "super::d",
    ];
    assert_eq!(found, expected);
    let modules = ["x", "x::y", "x::a", "f"].map(str::to_owned).into();
    let lead = |path| target("x::y", path, &modules).map(String::as_str);
    assert_eq!(lead("super::a::B"), Some("x::a"));
    assert_eq!(lead("super::B"), Some("x"));
    assert_eq!(lead("crate::f::*"), Some("f"));
    assert_eq!(lead("crate::nothing"), None);
}
