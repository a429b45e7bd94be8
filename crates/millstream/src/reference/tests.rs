use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf};

use millstream_pipeline::meters::known::{KNOWN, known};
use serde_json::{Value, json};

use super::{
    options::{self, Row},
    pages,
    readme::{self, OPTIONS_BEGIN, OPTIONS_END},
    schema,
};
use crate::registry;

fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..")
}

/// Compares a file with its wanted content. If the variable `UPDATE` is set, writes this content to the file instead.
fn is_up_to_date(path: &str, wanted: &str) {
    let path = root().join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is out of date: run `UPDATE=1 cargo test -p millstream --lib reference`",
        path.display()
    );
}

/// The rows as a Markdown table; a sentence if there are none.
fn markdown(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "It has no options.\n".to_owned();
    }
    let mut out = String::from("| Option | Takes | Meaning | Default |\n|---|---|---|---|\n");
    for row in rows {
        let cell = |text: &str| text.replace('|', "\\|");
        let default = match row.default.as_str() {
            "" | "required" => row.default.clone(),
            default => format!("`{}`", cell(default)),
        };
        let (takes, meaning) = (cell(&row.takes), cell(&row.meaning));
        let _ = writeln!(out, "| `{}` | {takes} | {meaning} | {default} |", row.name);
    }
    out
}

#[test]
fn the_schema_in_the_docs_is_the_one_of_the_code() {
    let text = serde_json::to_string_pretty(&schema::whole()).unwrap();
    is_up_to_date("docs/schema.json", &format!("{text}\n"));
}

#[test]
fn the_options_in_every_readme_are_those_of_the_code() {
    for component in registry::all() {
        let section = registry::section(component);
        let path = format!("crates/{section}/src/{}/README.md", component.name);
        let rows = options::rows((component.schema)().as_value());
        has_table(&path, &rows);
    }
}

/// Compares the table of options in a file with the table that these rows make, as [`is_up_to_date`] does.
fn has_table(path: &str, rows: &[Row]) {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let parts = text.split_once(OPTIONS_BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(OPTIONS_END)?;
        Some((before, after))
    });
    let (before, after) = parts.unwrap_or_else(|| {
        panic!("{path} has no `{OPTIONS_BEGIN}` and `{OPTIONS_END}` for the table of options")
    });
    let table = markdown(rows);
    let wanted = format!("{before}{OPTIONS_BEGIN}\n{table}{OPTIONS_END}{after}");
    is_up_to_date(path, &wanted);
}

#[test]
fn the_options_in_every_page_are_those_of_the_code() {
    for page in pages::ALL {
        let rows = (page.options)();
        if !rows.is_empty() {
            has_table(&format!("docs/{}.md", page.name), &rows);
        }
        assert!(rows.iter().all(|row| !row.meaning.is_empty()), "{rows:?}");
    }
    assert!(pages::ALL.iter().any(|page| !(page.options)().is_empty()));
}

#[test]
fn text_in_back_quotes_is_shown_unchanged() {
    let page = readme::render_page(
        "x",
        "# x\n\n**All** of `web.**` and [a link](b.md) in `[a](b)`.\n",
        vec![],
    );
    assert_eq!(page, "X\n\n  All of `web.**` and a link in `[a](b)`.\n");
}

#[test]
fn every_option_says_what_it_means() {
    for component in registry::all() {
        for row in options::rows((component.schema)().as_value()) {
            assert!(
                !row.meaning.is_empty() && !row.takes.is_empty(),
                "{} {}: {row:?}",
                registry::section(component),
                component.name
            );
        }
    }
}

#[test]
fn every_reference_in_the_schema_leads_somewhere() {
    fn walk(root: &Value, at: &Value, seen: &mut usize) {
        match at {
            Value::Object(map) => {
                if let Some(Value::String(to)) = map.get("$ref") {
                    let pointer = to.strip_prefix('#').unwrap();
                    assert!(root.pointer(pointer).is_some(), "{to} leads nowhere");
                    *seen += 1;
                }
                map.values().for_each(|inner| walk(root, inner, seen));
            }
            Value::Array(all) => all.iter().for_each(|inner| walk(root, inner, seen)),
            _ => {}
        }
    }
    let (whole, mut seen) = (schema::whole(), 0);
    walk(&whole, &whole, &mut seen);
    assert!(seen > 10, "only {seen} references found");
}

#[test]
fn blocks_choices_and_defaults_become_rows() {
    let schema = json!({
        "properties": {
            "path": { "$ref": "#/$defs/Template", "description": "Where\nto write." },
            "rotate": { "$ref": "#/$defs/Rotate", "description": "When." },
            "cache": { "anyOf": [{ "$ref": "#/$defs/Cache" }, { "type": "null" }], "description": "What." },
            "servers": { "type": "array", "items": { "$ref": "#/$defs/Rotate" }, "description": "Who." },
        },
        "required": ["path"],
        "$defs": {
            "Template": { "type": "string" },
            "Cache": { "oneOf": [{ "const": "drop", "description": "Gone." }, { "const": "keep", "description": "Stays." }] },
            "Rotate": { "type": "object", "properties": {
                "size": { "type": "integer", "description": "Bytes.", "default": 0 },
            }},
        },
    });
    let row = |name: &str, takes: &str, meaning: &str, default: &str| Row {
        name: name.to_owned(),
        takes: takes.to_owned(),
        meaning: meaning.to_owned(),
        default: default.to_owned(),
    };
    let expected = vec![
        row("path", "template", "Where to write.", "required"),
        row("rotate", "block", "When.", ""),
        row("rotate.size", "number", "Bytes.", "0"),
        row(
            "cache",
            "`drop` or `keep`",
            "What. `drop`: Gone. `keep`: Stays.",
            "",
        ),
        row("servers", "list of block", "Who.", ""),
        row("servers[].size", "number", "Bytes.", "0"),
    ];
    assert_eq!(options::rows(&schema), expected);
    let markdown = markdown(&expected);
    assert!(markdown.contains("| `rotate.size` | number | Bytes. | `0` |"));
}

#[test]
fn a_page_holds_options_and_example() {
    let memory = registry::find("channels", "memory").unwrap();
    let page = readme::render(memory);
    for part in [
        "MEMORY (channel)",
        "OPTIONS",
        "size_max",
        "default 4MiB",
        "inputs: [queue]",
    ] {
        assert!(page.contains(part), "no `{part}` in:\n{page}");
    }
    assert!(!page.contains("<!--"), "{page}");
}

/// The string literals that directly follow one of `calls` in the code of the program's crates. Tests do not count.
fn first_arguments(calls: &[&str]) -> BTreeSet<String> {
    let crates = root().join("crates");
    let mut directories: Vec<PathBuf> = [
        "channels",
        "kafka",
        "millstream",
        "net",
        "pipeline",
        "processors",
        "sinks",
        "sources",
    ]
    .map(|name| crates.join(name).join("src"))
    .into();
    let mut found = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                directories.push(path);
            } else if name.ends_with(".rs") && !name.contains("tests") && name != "contributing.rs"
            {
                let text = fs::read_to_string(path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                for call in calls {
                    let arguments = code.split(call).skip(1);
                    let strings = arguments.filter_map(|rest| rest.trim_start().strip_prefix('"'));
                    found.extend(
                        strings.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
                    );
                }
            }
        }
    }
    found
}

#[test]
fn operations_md_explains_every_log_keyword_and_metric() {
    let page = include_str!("../../../../docs/operations.md");
    let kinds = first_arguments(&[".info(", ".warn(", ".error(", ".condition(", "kind = "]);
    let meters = [
        ".counter(",
        ".gauge(",
        ".table(",
        ".census(",
        ".task(",
        ".histogram(",
        ".age(",
    ];
    let used = first_arguments(&meters);
    assert!(kinds.len() > 80 && used.len() > 60, "the search finds them");
    let without: Vec<_> = used.iter().filter(|it| known(it).is_none()).collect();
    assert!(
        without.is_empty(),
        "without an entry in crates/pipeline/src/meters/known.rs: {without:?}"
    );
    let shown = KNOWN
        .iter()
        .map(|it| it.name.replace("microseconds", "seconds"));
    let metrics: BTreeSet<String> = shown.collect();
    let missing: Vec<_> = kinds
        .union(&metrics)
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/operations.md does not explain {missing:?}"
    );
    // The first cell of each row names keywords or metrics. So this also finds rows about keywords and metrics that no longer exist.
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let is_known = |name: &&&str| kinds.contains(**name) || metrics.contains(**name);
    let unknown: Vec<_> = named.iter().filter(|name| !is_known(name)).collect();
    let elsewhere = [
        "degraded",
        "configuration degraded",
        "blocked",
        "retrying",
        "losing",
        "failed",
        "running",
        "ended",
        "blocked`, the channel is full",
        "lock",
        "probation/",
        "rejected/",
        "channels/NAME/",
        "channel-records/NAME.record",
        "sinks/NAME/",
        "sources/NAME/",
        "/live",
        "/ready",
        "/health",
    ];
    let stale: Vec<_> = unknown
        .into_iter()
        .filter(|name| !elsewhere.contains(name))
        .collect();
    assert!(
        stale.is_empty(),
        "docs/operations.md explains what the code does not have: {stale:?}"
    );
}
