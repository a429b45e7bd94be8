//! Checks the table in the section "The line, hop by hop" of ARCHITECTURE.md. It lists the functions of the line: the code that a
//! batch passes on its way from a source to a sink. Each row names functions of one file. The functions must exist, and together
//! they must not have more lines than the row states.

use std::{collections::BTreeSet, fs};

use crate::tree::{files, root};

/// Limits of the whole table: the number of files, and the sum of the rows' lines.
const FILES_MAX: usize = 27;
const LINES_MAX: usize = 1600;

/// A row of the table: functions of one file, and the most lines that they may have together.
struct Row {
    file: String,
    functions: Vec<String>,
    lines: usize,
}

/// The words in backticks, in order.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = text
        .split_once("## The line, hop by hop")
        .expect("ARCHITECTURE.md has the section `The line, hop by hop`");
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, file, functions, lines, _] = cells[..] else {
            return None;
        };
        Some(Row {
            file: quoted(file).pop()?,
            functions: quoted(functions),
            lines: lines.parse().ok()?,
        })
    });
    rows.collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines of the block (a function, or an `impl`) that begins with `lines[0]`.
fn block<'t>(lines: &'t [&'t str]) -> &'t [&'t str] {
    let depth = indent(lines[0]);
    let is_end = |line: &&str| indent(line) == depth && line.trim_start().starts_with('}');
    let end = match lines[0].ends_with('}') {
        true => 0,
        false => lines.iter().position(is_end).unwrap_or(lines.len() - 1),
    };
    &lines[..=end]
}

/// Whether a line begins the function `name`.
fn begins(line: &str, name: &str) -> bool {
    let line = line.trim_start();
    let Some((before, rest)) = line.split_once("fn ") else {
        return false;
    };
    let is_head = before.split_whitespace().all(|word| {
        word.starts_with("pub") || ["async", "const"].contains(&word) || word.ends_with(')')
    });
    is_head
        && rest
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['(', '<']))
}

/// The number of lines of `function` (`name`, or `Type::name`) in `text`; `None` if it does not exist.
fn length(text: &str, function: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let find = |lines: &[&str], name: &str, depth: usize| {
        let at = lines
            .iter()
            .position(|line| indent(line) == depth && begins(line, name))?;
        Some(block(&lines[at..]).len())
    };
    let Some((kind, name)) = function.split_once("::") else {
        return find(&lines, function, 0);
    };
    let is_impl = |line: &str| {
        let head = line
            .strip_prefix("impl")
            .map(|rest| rest.trim_end_matches(" {"));
        let of = head.and_then(|head| head.rsplit(' ').next());
        of.and_then(|of| of.split('<').next()) == Some(kind)
    };
    let starts = lines.iter().enumerate().filter(|(_, line)| is_impl(line));
    starts
        .filter_map(|(at, _)| find(block(&lines[at..]), name, 4))
        .next()
}

#[test]
fn the_functions_in_the_architecture_table_exist_and_are_within_its_limits() {
    let rows = rows();
    assert!(
        rows.len() >= 15,
        "the table in ARCHITECTURE.md has only {} rows",
        rows.len()
    );
    let mut wrong = Vec::new();
    for row in &rows {
        let Ok(text) = fs::read_to_string(root().join(&row.file)) else {
            wrong.push(format!("{} does not exist", row.file));
            continue;
        };
        let mut sum = 0;
        for function in &row.functions {
            match length(&text, function) {
                Some(lines) => sum += lines,
                None => wrong.push(format!("{} has no function `{function}`", row.file)),
            }
        }
        if sum > row.lines {
            wrong.push(format!(
                "{}: {sum} lines, the table allows {}",
                row.file, row.lines
            ));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
    let files: BTreeSet<&str> = rows.iter().map(|row| &*row.file).collect();
    let lines: usize = rows.iter().map(|row| row.lines).sum();
    assert!(
        files.len() <= FILES_MAX && lines <= LINES_MAX,
        "the table lists {lines} lines in {} files; at most {LINES_MAX} lines in {FILES_MAX} files are allowed",
        files.len()
    );
}

#[test]
fn the_length_of_a_function_is_found_by_its_type_and_name() {
    let text = "impl<'a> Display for Two<'a> {\n    fn run(\n        &self,\n    ) {\n    }\n}\n\nimpl One {\n    \
                pub(super) async fn run<T>() {\n        work();\n    }\n}\n\nfn run() {}\n";
    assert_eq!(length(text, "Two::run"), Some(4));
    assert_eq!(length(text, "One::run"), Some(3));
    assert_eq!(length(text, "run"), Some(1));
    assert_eq!(length(text, "One::stop"), None);
}

#[test]
fn every_file_header_shows_the_same_path_of_a_batch() {
    let whole =
        "read -> decode -> send -> keep -> read back -> process -> encode -> write -> settle";
    let before = "read -> decode -> send -> process -> keep -> read back -> process -> encode -> write -> settle";
    let behind_a_channel = "read -> decode -> send -> keep -> read back -> process -> keep -> read back -> process -> encode -> write -> settle";
    let mut found = 0;
    for file in files(&[".rs"]) {
        let lines = file.text.lines();
        let headers = file
            .text
            .lines()
            .skip(1)
            .zip(lines)
            .filter_map(|(line, above)| {
                let header = line.strip_prefix("//! `")?;
                Some((header, above))
            });
        for (header, above) in headers.filter(|(header, _)| header.contains("decode -> ")) {
            let is_explained = above.starts_with("//! The path of a batch (ARCHITECTURE.md)");
            assert!(is_explained, "{}: no line explains the path", file.path);
            let line = header.trim_end_matches('`').replace(['[', ']'], "");
            let is_alike = [whole, before, behind_a_channel].contains(&&*line)
                || line == "read -> decode -> send -> keep";
            assert!(
                is_alike,
                "{}: the header's path `{line}` is none of the paths in this test",
                file.path
            );
            found += 1;
        }
    }
    assert!(
        found >= 50,
        "only {found} headers found: is this test looking in the right place?"
    );
}
