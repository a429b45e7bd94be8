//! Prints a table about the code base: lines of files and functions, types that are spread over several files, import circles.
//!
//! `cargo test --workspace --locked --test tidy -- --ignored --nocapture house` prints the table. Another test checks the limit for
//! spread types.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    circles,
    tree::{File, files},
};

/// The most files in which a type may have `impl` blocks. A type with `impl` blocks in more files is too large; to spread it over
/// files only hides its size.
const FILES_MAX: usize = 2;

/// Counts the lines of each function. Relies on rustfmt's layout: the closing brace has the indentation of the first line.
fn functions(code: &str) -> Vec<usize> {
    let lines: Vec<&str> = code.lines().collect();
    let mut lengths = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        let is_head = text.split("fn ").next().is_some_and(|before| {
            let words = [
                "pub", "const", "async", "unsafe", "extern", "\"C\"", "default",
            ];
            before.split_whitespace().all(|word| {
                words.contains(&word) || word.starts_with("pub(") || word.ends_with(')')
            })
        });
        if !text.contains("fn ") || !is_head {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - text.len()]);
        let body = lines[start..].iter().position(|line| *line == end);
        let head = lines[start..]
            .iter()
            .position(|line| line.ends_with([';', '{', '}']));
        match (head, body) {
            // The body ends on the last line of the head, as in `fn one() {}`.
            (Some(head), _) if lines[start + head].ends_with('}') => lengths.push(head + 1),
            (Some(head), _) if lines[start + head].ends_with(';') => {}
            (_, Some(body)) => lengths.push(body + 1),
            _ => {}
        }
    }
    lengths
}

/// The name of the type whose inherent `impl` block a line opens.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generics) => {
            let mut depth = 1;
            let end = generics.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            &generics[end + 1..]
        }
        None => rest,
    };
    let rest = rest.trim_start();
    let name = rest.split(['<', ' ', '{']).next()?;
    (!rest.contains(" for ") && !name.is_empty()).then_some(name)
}

/// The directory of a path.
fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Types with `impl` blocks in more than [`FILES_MAX`] files. Each entry is a text `FILE: TYPE` (the file that defines the type, and
/// its name), and the files with its `impl` blocks.
fn scattered(files: &[&File]) -> Vec<(String, BTreeSet<String>)> {
    let mut defined: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        for line in file.code().lines() {
            let line = line.strip_prefix("pub").map_or(line, |rest| {
                rest.find(' ').map_or(line, |space| &rest[space + 1..])
            });
            let rest = line
                .strip_prefix("struct ")
                .or_else(|| line.strip_prefix("enum "));
            if let Some(name) = rest.and_then(|rest| rest.split(['<', ' ', '{', '(', ';']).next()) {
                defined.entry(name).or_default().push(&file.path);
            }
        }
    }
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        for name in file.code().lines().filter_map(inherent) {
            // If several types have this name, the one defined in the nearest directory is meant.
            let near = |path: &&&str| {
                let (one, other) = (directory(path), directory(&file.path));
                let same = one.split('/').zip(other.split('/'));
                (
                    same.take_while(|(one, other)| one == other).count(),
                    **path == file.path,
                )
            };
            if let Some(definition) = defined
                .get(name)
                .and_then(|all| all.iter().max_by_key(near))
            {
                let key = format!("{definition}: {name}");
                found.entry(key).or_default().insert(file.path.clone());
            }
        }
    }
    found.retain(|_, files| files.len() > FILES_MAX);
    found.into_iter().collect()
}

#[test]
fn no_type_has_impl_blocks_in_many_files() {
    // `Node` is allowed, because each section of the configuration reads its part of a node in its own file.
    const ALLOWED: [&str; 1] = ["crates/config/src/node.rs: Node"];
    let all = files(&[".rs"]);
    let code: Vec<&File> = all.iter().filter(|file| !file.is_test()).collect();
    let found = scattered(&code);
    let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
    assert_eq!(
        names, ALLOWED,
        "types with impl blocks in more than {FILES_MAX} files: divide them by responsibility: {found:?}"
    );
}

/// Formats the count, the sum, the median, the 90th percentile and the maximum of these numbers.
fn summary(mut numbers: Vec<usize>) -> String {
    numbers.sort_unstable();
    let at = |part: usize| numbers.get((numbers.len().max(1) - 1) * part / 100);
    format!(
        "{:>6} {:>7} {:>5} {:>5} {:>5}",
        numbers.len(),
        numbers.iter().sum::<usize>(),
        at(50).unwrap_or(&0),
        at(90).unwrap_or(&0),
        at(100).unwrap_or(&0)
    )
}

#[test]
#[ignore = "prints a table"]
fn house() {
    let all = files(&[".rs"]);
    let code: Vec<&File> = all.iter().filter(|file| !file.is_test()).collect();
    println!(
        "{:<22} {:>6} {:>7} {:>5} {:>5} {:>5}",
        "", "count", "lines", "p50", "p90", "max"
    );
    let mut groups: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in &code {
        let parts: Vec<&str> = file.path.split('/').collect();
        let group = match parts[..] {
            ["crates", name, ..] => name,
            [first, ..] => first,
            [] => continue,
        };
        groups.entry(group).or_default().push(file);
        groups.entry("all").or_default().push(file);
    }
    for (group, files) in &groups {
        let lines = files.iter().map(|file| file.code().lines().count());
        println!("{group:<12} files     {}", summary(lines.collect()));
        let functions = files.iter().flat_map(|file| functions(file.code()));
        println!("{group:<12} functions {}", summary(functions.collect()));
    }
    println!("\ntypes with impl blocks in more than {FILES_MAX} files:");
    let mut scattered = scattered(&code);
    scattered.sort_by_key(|(_, files)| usize::MAX - files.len());
    for (name, files) in &scattered {
        println!("{:>4} {name}", files.len());
    }
    let circles = circles::all();
    println!(
        "\n{} types, {} import circles:",
        scattered.len(),
        circles.len()
    );
    for circle in circles {
        println!("     {circle}");
    }
}

#[test]
fn functions_and_impl_blocks_are_recognised() {
    let code = "pub(super) fn a(\n    b: u8,\n) -> u8 {\n    b\n}\nfn one() {}\ntrait T {\n    fn c();\n\n    fn d() {\n    }\n}\n// fn no\n";
    assert_eq!(functions(code), [5, 1, 2]);
    assert_eq!(inherent("impl Log {"), Some("Log"));
    assert_eq!(inherent("impl<'a, T: Into<u8>> Log<'a, T> {"), Some("Log"));
    assert_eq!(inherent("impl<T> From<T> for Log {"), None);
}
