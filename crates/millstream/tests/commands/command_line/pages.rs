//! The pages of `docs/` and the READMEs as `millstream components` shows them: their examples work and their text is readable.

use std::{fs, path::Path, process::Command};

use jiff::{Timestamp, tz::TimeZone};
use millstream_pipeline::tags::TagFilter;
use millstream_record::{Time, Values};
use millstream_wire::{
    json::to_msgpack,
    record::{Record, TimedRecord},
    template::{Renderer, Shared, Template},
};

use super::{code, components, errors, millstream};
use crate::program::tree;

const PAGES: [&str; 4] = ["config", "tags", "templates", "secrets"];

/// The nodes that the excerpts of configurations refer to.
const BASE: &str = "sources: { in: { type: tail, paths: [\"/var/log/in.log\"] } }\n\
    channels: { buffer: { type: disk, inputs: [in] } }\n\
    sinks: { rest: { type: discard, inputs: [buffer] } }\n";

fn page(name: &str) -> String {
    fs::read_to_string(tree().join(format!("docs/{name}.md"))).unwrap()
}

/// The cells of the table with this header, by row.
fn table(page: &str, header: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(header).unwrap();
    let rows = rest
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let line = line.trim_matches('|').replace("\\|", "\u{1}");
        let cells = line
            .split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"));
        cells.collect()
    };
    rows.map(cells).collect()
}

/// The parts in back quotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn place_secrets(directory: &Path) {
    let authority = millstream_testkit::Authority::new("root");
    fs::create_dir_all(directory.join("tls")).unwrap();
    authority.write_root(&directory.join("tls"), "ca");
    authority.issue(&directory.join("tls"), "server", &["localhost"]);
    fs::write(directory.join("alice.pw"), "wonder\n").unwrap();
}

#[test]
fn every_configuration_in_the_pages_passes_check() {
    for name in PAGES {
        let page = page(name);
        let snippets: Vec<_> = page.split("```yaml\n").skip(1).collect();
        assert!(!snippets.is_empty(), "{name}");
        for snippet in snippets {
            let (yaml, _) = snippet.split_once("```").unwrap();
            let directory = tempfile::tempdir().unwrap();
            place_secrets(directory.path());
            fs::write(directory.path().join("page.yaml"), yaml).unwrap();
            if !yaml.contains("sources:") {
                fs::write(directory.path().join("base.yaml"), BASE).unwrap();
            }
            let checked = Command::new(env!("CARGO_BIN_EXE_millstream"))
                .arg("check")
                .arg(directory.path())
                .env("FORWARD_KEY", "open sesame")
                .output()
                .unwrap();
            assert_eq!(code(&checked), 0, "{name}: {}{yaml}", errors(&checked));
            let said = errors(&checked);
            assert!(!said.contains(": warning: "), "{name}: {said}{yaml}");
        }
    }
}

#[test]
fn every_template_of_the_page_gives_the_result_beside_it() {
    let page = page("templates");
    let (_, record) = page.split_once("for the record `").unwrap();
    let (record, _) = record.split_once('`').unwrap();
    let mut packed = Vec::new();
    to_msgpack(record.as_bytes(), &mut packed).unwrap();
    let (_, beside) = page.split_once("with the metadata\n`").unwrap();
    let (beside, _) = beside.split_once('`').unwrap();
    let mut metadata = Vec::new();
    to_msgpack(beside.as_bytes(), &mut metadata).unwrap();
    let mut values = Values::new();
    values.set("host", "web-1");
    values.set("path", "app/x.log");
    let time: Timestamp = "2026-11-23T04:05:06.789012345Z".parse().unwrap();
    let time = Time(i64::try_from(time.as_nanosecond()).unwrap());
    let rows = table(&page, "| Template | Result | Meaning |");
    assert!(rows.len() > 12, "{rows:?}");
    for row in rows {
        let (template, result) = (quoted(&row[0])[0], quoted(&row[1])[0]);
        let template = Template::parse(template).unwrap();
        let shared = Shared {
            tag: "web.nginx",
            values: &values,
        };
        let event = TimedRecord {
            time,
            record: Record::Packed(&packed),
            metadata: &metadata,
        };
        let mut out = Vec::new();
        let mut renderer = Renderer::text(&template, TimeZone::UTC);
        renderer.render(shared, event, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), result, "{template}");
    }
    // The templates within the text are valid, too.
    let prose = page.split("```").step_by(2);
    let prose = prose
        .flat_map(str::lines)
        .filter(|line| !line.starts_with('|'));
    for text in quoted(&prose.collect::<Vec<_>>().join("\n")) {
        if text.starts_with(['{', '%']) && !text.starts_with("{\"") {
            let is_character = text.len() == 1;
            assert!(is_character || Template::parse(text).is_ok(), "{text}");
        }
    }
}

#[test]
fn every_pattern_of_the_page_matches_the_tags_beside_it() {
    let rows = table(&page("tags"), "| Pattern | Takes | Does not take |");
    assert!(rows.len() > 6, "{rows:?}");
    for row in rows {
        let filter = TagFilter::new(quoted(&row[0])).unwrap();
        for (cell, is_taken) in [(&row[1], true), (&row[2], false)] {
            for tag in quoted(cell) {
                assert_eq!(filter.takes(tag), is_taken, "{} {tag}", row[0]);
            }
        }
    }
}

#[test]
fn the_pages_are_listed_and_shown() {
    let listing = String::from_utf8(millstream(&["components"]).stdout).unwrap();
    let help = String::from_utf8(millstream(&["components", "--help"]).stdout).unwrap();
    for name in PAGES {
        assert!(listing.contains(&format!("\n  {name} ")), "{listing}");
        assert!(help.contains(&format!("components {name}")), "{help}");
        let shown = millstream(&["components", name]);
        assert_eq!(code(&shown), 0);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.starts_with(&format!("{}\n", name.to_uppercase())),
            "{shown}"
        );
    }
    let config = String::from_utf8(millstream(&["components", "config"]).stdout).unwrap();
    for setting in ["data_dir", "memory_max", "api.listen", "log.level"] {
        assert!(
            config.contains(&format!("\n  {setting}  ")),
            "{setting}: {config}"
        );
    }
    let tags = String::from_utf8(millstream(&["components", "tags"]).stdout).unwrap();
    assert!(tags.contains("also none: `web.**`\n"), "{tags}");
    let near = millstream(&["components", "template"]);
    assert!(
        errors(&near).contains("did you mean `templates`?"),
        "{}",
        errors(&near)
    );
}

/// The output of a command on a terminal with this many columns.
fn on_terminal(columns: usize, arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_millstream");
    let command = format!("stty cols {columns}; {program} {arguments}");
    // script(1) gives the program a terminal.
    let shown = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .output()
        .unwrap();
    String::from_utf8(shown.stdout).unwrap().replace('\r', "")
}

#[test]
fn no_line_of_a_page_is_longer_than_the_terminal() {
    let types = components().map(|(section, component)| format!("{section}/{}", component.name));
    let pages = PAGES.map(str::to_owned);
    for name in types.chain(pages) {
        for columns in [80, 120] {
            let page = on_terminal(columns, &format!("components {name}"));
            assert!(page.lines().count() > 10, "{page}");
            for line in page.lines() {
                let is_code = line.starts_with("    ");
                // A long word, such as a JSON record, cannot be wrapped.
                let has_long_word = line.split_whitespace().any(|word| word.len() > 50);
                let length = line.chars().count();
                assert!(
                    length <= columns || is_code || has_long_word,
                    "{name}: {line}"
                );
            }
        }
    }
}

#[test]
fn tables_are_aligned_and_names_of_other_programs_are_marked() {
    let page = on_terminal(80, "components sources/syslog");
    let header = page
        .lines()
        .position(|line| line.contains("Meaning"))
        .unwrap();
    let lines: Vec<_> = page.lines().collect();
    let column = lines[header].find("Meaning").unwrap();
    assert!(lines[header + 1].trim().starts_with("---"), "{page}");
    let table = lines[header + 2..]
        .iter()
        .take_while(|line| !line.is_empty());
    let mut rows = 0;
    for line in table {
        rows += 1;
        assert!(line.is_char_boundary(column), "{line}");
        assert!(
            line[..column].ends_with("  ") && &line[column..=column] != " ",
            "{line}"
        );
    }
    assert!(rows > 10, "{page}");
    let ours = page
        .find("`millstream example sources/syslog` prints it:")
        .unwrap();
    let theirs = page.find("\n  In rsyslog.conf:\n\n    module(").unwrap();
    assert!(
        ours < theirs && page[ours..theirs].contains("An unmodified rsyslog"),
        "{page}"
    );
}
