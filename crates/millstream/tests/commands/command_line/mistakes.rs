//! Mistakes of new users: graphs that would lose records, processors in the wrong place, incomplete addresses, command
//! lines of other programs. Each error names the next step, and that step works.

use std::{fs, path::Path};

use super::{code, errors, millstream, write};
use crate::program::tree;

/// Runs `check`; returns its exit code and its errors. `run` must report the same errors.
fn check(directory: &Path, text: &str) -> (i32, String) {
    let path = write(directory, text);
    let path = path.to_str().unwrap();
    let checked = millstream(&["check", path]);
    let said = errors(&checked);
    if code(&checked) != 0 {
        let run = millstream(&["run", "--once", path]);
        assert_eq!((code(&run), errors(&run)), (code(&checked), said.clone()));
    }
    (code(&checked), said)
}

/// Asserts that each of these configurations is refused with exactly one error, which contains the given text.
fn refused(cases: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    for (text, part) in cases {
        let (code, said) = check(directory.path(), text);
        assert_eq!(code, 78, "{text}: {said}");
        assert!(said.contains(part), "no `{part}` in {said} of {text}");
        assert!(said.contains("\n1 error; nothing was started"), "{said}");
        assert!(!said.contains("nothing is possible"), "{said}");
    }
}

#[test]
fn a_source_whose_records_no_node_takes_is_refused() {
    refused(&[
        (
            "sources: { a: { type: stdin }, b: { type: stdin } }\nsinks: { out: { type: stdout, inputs: [a] } }",
            "error: nothing takes the records of `b`: it would acknowledge and drop them",
        ),
        (
            "sources: { b: { type: stdin } }\nsinks: { out: { type: stdout, inputs: [b.rejected] } }",
            "help: add a sink with `inputs: [b]`; a sink of `type: discard` drops them on purpose",
        ),
        (
            "sources: { a: { type: stdin }, b: { type: stdin } }\nchannels: { m: { type: memory, inputs: [b] } }\nsinks: { out: { type: stdout, inputs: [a] } }",
            "error: nothing takes the records of `b`",
        ),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let on_purpose =
        "sources: { a: { type: stdin } }\nsinks: { out: { type: discard, inputs: [a] } }";
    assert_eq!(check(directory.path(), on_purpose).0, 0);
    // A disk channel keeps records that no node reads, so this is only a warning.
    let kept = "sources: { a: { type: stdin } }\nchannels: { c: { type: disk, inputs: [a] } }\nsinks: { out: { type: stdout, inputs: [a] } }";
    let (code, said) = check(directory.path(), kept);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("warning: nothing reads `c`"), "{said}");
}

#[test]
fn an_error_in_a_node_does_not_cause_a_second_error() {
    refused(&[
        (
            "sources: { a: { type: stdin } }\nsinks: { out: { type: stduot, inputs: [a] } }",
            "did you mean `stdout`?",
        ),
        (
            "sources: { a: { type: stdni } }\nsinks: { out: { type: stdout, inputs: [a, \"*.rejected\"] } }",
            "did you mean `stdin`?",
        ),
    ]);
}

#[test]
fn an_empty_configuration_is_refused_and_the_next_step_named() {
    let sources = "sources: { a: { type: stdin } }\n";
    let sinks = "sinks: {}\n";
    refused(&[
        ("", "the configuration has no sources and no sinks"),
        ("{}", "help: `millstream example agent`"),
        (
            "data_dir: /tmp/d\n",
            "the configuration has no sources and no sinks",
        ),
        (sinks, "the configuration has no sources and no sinks"),
        (sources, "the configuration has no sinks"),
        (
            &format!("{sources}{sinks}"),
            "the configuration has no sinks",
        ),
    ]);
}

#[test]
fn an_error_about_a_processor_among_sources_or_sinks_names_its_section() {
    let sources = "sources: { a: { type: stdin } }\n";
    let direct = |more: &str| {
        format!("{sources}{more}\nsinks: {{ out: {{ type: stdout, inputs: [a] }} }}\n")
    };
    for section in [
        "filters",
        "filter",
        "transforms",
        "parsers",
        "pipelines",
        "procesors",
    ] {
        let text = direct(&format!(
            "{section}: {{ p: {{ type: filter, inputs: [a] }} }}"
        ));
        refused(&[(&text, "`processors`")]);
    }
    for kind in [
        "filter",
        "json",
        "parse",
        "route",
        "sample",
        "exec",
        "remap",
        "lua",
        "grep",
        "record_transformer",
    ] {
        let part = "put it under `processors` with `type: ";
        let sink = format!("{sources}sinks: {{ p: {{ type: {kind}, inputs: [a] }} }}\n");
        let source = format!(
            "sources: {{ a: {{ type: {kind} }} }}\nsinks: {{ out: {{ type: stdout, inputs: [a] }} }}\n"
        );
        refused(&[(&sink, part), (&source, part)]);
    }
    let later = direct("processors: { p: { type: window, inputs: [a] } }");
    refused(&[(&later, "comes with a later version")]);
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(check(directory.path(), &direct("processors: {}")).0, 0);
}

#[test]
fn a_processor_that_runs_twice_is_noted_and_words_of_other_programs_are_translated() {
    let directory = tempfile::tempdir().unwrap();
    let graph = |processor: &str| {
        format!(
            "sources: {{ a: {{ type: stdin }} }}\nprocessors: {{ p: {{ inputs: [a], {processor} }} }}\n\
             sinks: {{ one: {{ type: stdout, inputs: [p] }}, two: {{ type: discard, inputs: [p] }} }}\n"
        )
    };
    let (code, said) = check(directory.path(), &graph("type: parse, as: json"));
    assert_eq!(code, 0, "{said}");
    let note = "note: `p` runs 2 times: in front of each of `one`, `two`";
    assert!(said.contains(note), "{said}");
    let help = "help: to run it once, put a disk channel behind `p`";
    assert!(said.contains(help), "{said}");
    for (processor, part) in [
        ("type: remap, source: .a = 1", "called `program` here"),
        ("type: parse, as: json, behin: 1", "possible here: `field`"),
        ("type: parse, as: json, time: ts", "time: { field: \"ts\" }"),
        ("type: parse, as: grok", "use `as: regex`"),
    ] {
        let (code, said) = check(directory.path(), &graph(processor));
        assert_eq!(code, 78, "{processor}: {said}");
        assert!(said.contains(part), "no `{part}` in {said}");
        assert!(!said.contains("`behind`"), "{said}");
    }
}

#[test]
fn the_address_that_a_listen_error_names_passes_check() {
    let directory = tempfile::tempdir().unwrap();
    let config = |kind: &str, listen: &str| {
        format!(
            "sources: {{ a: {{ type: {kind}, listen: {listen} }} }}\nsinks: {{ out: {{ type: discard, inputs: [a] }} }}\n"
        )
    };
    for kind in ["forward", "syslog", "http", "flume"] {
        for listen in [
            "24224",
            "\"24224\"",
            "[24224]",
            "\":24224\"",
            "\"*:24224\"",
            "\"0.0.0.0:24224\"",
            "127.0.0.1:24224",
            "\"tcp://:24224\"",
            "\"http://0.0.0.0:24224\"",
            "/run/in.sock",
        ] {
            let (code, said) = check(directory.path(), &config(kind, listen));
            assert_eq!(code, 78, "{kind} {listen}: {said}");
            let (_, hint) = said
                .split_once("write \"")
                .unwrap_or_else(|| panic!("{said}"));
            let address = hint.split('"').next().unwrap();
            let (code, said) = check(directory.path(), &config(kind, &format!("\"{address}\"")));
            assert_eq!(code, 0, "{kind} {listen} -> {address}: {said}");
        }
    }
}

#[test]
fn a_command_line_of_another_program_is_answered_with_the_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let text = "sources: { a: { type: stdin } }\nsinks: { out: { type: discard, inputs: [a] } }\n";
    let path = write(directory.path(), text);
    let file = path.to_str().unwrap();
    let with_equals = format!("--config={file}");
    for (wrong, right) in [
        (&["run", "-c", file][..], &["run", file][..]),
        (&["run", "--config", file], &["run", file]),
        (&["run", &with_equals], &["run", file]),
        (&["-c", file], &["run", file]),
        (&["--config", file], &["run", file]),
        (&[file], &["run", file]),
        (&["check", "-c", file], &["check", file]),
        (&["validate", file], &["check", file]),
        (&["validate", "-c", file], &["check", file]),
        (&["validate"], &["check", "FILE"]),
        (&["run", "--dry-run", file], &["check", file]),
        (&["-t", "-c", file], &["check", file]),
    ] {
        let output = millstream(wrong);
        let said = errors(&output);
        assert_eq!(code(&output), 64, "{wrong:?}: {said}");
        let command = format!("millstream {}", right.join(" "));
        assert!(
            said.contains(&format!(": {command}\n")),
            "{wrong:?}: {said}"
        );
        if right == ["check", file] {
            assert_eq!(code(&millstream(right)), 0, "{right:?}");
        }
    }
    // The command-line parser itself suggests the command for a simple misspelling.
    assert!(errors(&millstream(&["chekc"])).contains("'check'"));
}

#[test]
fn the_aggregator_example_passes_check_with_the_tls_options_that_it_shows() {
    let directory = tempfile::tempdir().unwrap();
    let authority = millstream_testkit::Authority::new("root");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "server", &["localhost"]);
    let text = fs::read_to_string(tree().join("examples/aggregator.yaml")).unwrap();
    assert!(!text.contains("no TLS"), "{text}");
    let mut uncommented = 0;
    let lines = text.lines().map(|line| {
        let option = line.trim_start().strip_prefix("# ").unwrap_or_default();
        let is_option = option.starts_with("tls: ") || option.starts_with("auth: ");
        uncommented += usize::from(is_option);
        match is_option {
            true => line.replacen("# ", "", 1),
            false => line.to_owned(),
        }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(uncommented, 2, "{text}");
    fs::write(directory.path().join("fleet.key"), "open sesame\n").unwrap();
    let (code, said) = check(directory.path(), &text);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_processor_that_is_not_repeatable_is_named_where_two_consumers_can_get_different_records() {
    let directory = tempfile::tempdir().unwrap();
    let graph = |option: &str, sinks: &str| {
        format!(
            "data_dir: {}\nsources: {{ a: {{ type: stdin }} }}\nprocessors: {{ p: {{ type: exec, inputs: [a], command: [cat]{option} }} }}\n{sinks}",
            directory.path().join("data").display()
        )
    };
    let two = "sinks: { x: { type: discard, inputs: [p] }, y: { type: discard, inputs: [p] } }\n";
    let kept = "channels: { c: { type: disk, inputs: [p] } }\n\
                sinks: { x: { type: discard, inputs: [c] }, y: { type: discard, inputs: [c] } }\n";
    let warning =
        "warning: `p` runs in front of each of `x`, `y`, and they can get different records";
    let (code, said) = check(directory.path(), &graph("", two));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(warning), "{said}");
    for text in [graph(", repeatable: true", two), graph("", kept)] {
        let (code, said) = check(directory.path(), &text);
        assert_eq!((code, said.contains(warning)), (0, false), "{said}");
    }
    let path = write(directory.path(), &graph("", two));
    let explained = millstream(&["explain", path.to_str().unwrap()]);
    let page = String::from_utf8(explained.stdout).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        page.contains("So x and y can get different records"),
        "{page}"
    );
}
