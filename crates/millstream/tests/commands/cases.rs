//! `millstream test` runs cases: tests of processors in the configuration. A case passes, or the command shows the differences. An
//! invalid case is reported with its line and column.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::program::tree;

/// Writes a configuration in which these processors begin in line 4, and a sink reads from `last`. Returns its path.
fn config(directory: &Path, processors: &str, last: &str) -> PathBuf {
    let text = format!(
        "data_dir: ./millstream-data\nsources: {{ app: {{ type: stdin }} }}\nprocessors:\n{processors}\
         sinks: {{ out: {{ type: stdout, inputs: [{last}] }} }}\napi: {{ listen: [] }}\n"
    );
    let path = directory.join("c.yaml");
    fs::write(&path, text).unwrap();
    path
}

fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .arg("c.yaml")
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    said(output)
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Runs the cases of these processors. Returns the exit code, stdout and stderr.
fn test(processors: &str, last: &str) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    config(directory.path(), processors, last);
    run(directory.path(), &["test"])
}

/// A processor that parses JSON. In the file of `config`, its cases begin in line 9.
fn parse(cases: &str) -> String {
    format!("  records:\n    type: parse\n    inputs: [app]\n    as: json\n    tests:\n{cases}")
}

#[test]
fn cases_that_pass_are_reported_in_one_line_each() {
    let cases = "      - name: fields\n        given: ['{\"a\":1,\"b\":[true,null,\"x\",-2.5]}']\n        \
         expect: [{ b: [true, null, x, -2.5], a: 1 }]\n      \
         - { given: [text], expect: [text] }\n      \
         - { given: [], expect: [] }\n";
    let (code, out, errors) = test(&parse(cases), "records");
    assert_eq!(
        (code, &*out, &*errors),
        (
            0,
            "ok      c.yaml:9 records: fields\n\
             ok      c.yaml:12 records: case 2\n\
             ok      c.yaml:13 records: case 3\n\
             3 cases: 3 ok\n",
            ""
        )
    );
}

#[test]
fn a_case_that_fails_shows_what_differs_and_the_others_run() {
    let cases = "      - given: ['{\"ms\":\"12\",\"user\":{\"id\":7}}', text, '{\"last\":1}']\n        \
         expect: [{ ms: 12, user: { id: 7, name: x } }, { last: 1 }]\n      \
         - { given: [text], expect: [] }\n      \
         - { given: [text], expect: [text], rejected: [{ a: 1 }] }\n      \
         - { given: [text], expect: [{ \"%tag\": web, \"%host\": h, message: text }], tag: \"\\e[31m\" }\n      \
         - { given: [text], expect: [text] }\n";
    let (code, out, errors) = test(&parse(cases), "records");
    assert_eq!((code, &*errors), (1, ""));
    assert_eq!(
        out,
        "FAILED  c.yaml:9 records: case 1\n\
         \x20 record 1\n    - .ms: 12\n    + .ms: \"12\"\n    - .user.name: \"x\"\n\
         \x20 record 2\n    + {\"message\":\"text\"}\n\
         FAILED  c.yaml:11 records: case 2\n  record 1\n    + {\"message\":\"text\"}\n\
         FAILED  c.yaml:12 records: case 3\n  rejected, record 1\n    - {\"a\":1}\n\
         FAILED  c.yaml:13 records: case 4\n  record 1\n    - %tag: web\n    + %tag: \\u001b[31m\n    - %host: h\n\
         ok      c.yaml:14 records: case 5\n\
         5 cases: 1 ok, 4 FAILED (- expected, + found)\n"
    );
}

#[test]
fn the_records_of_every_port_and_the_rejected_ones_are_compared() {
    let route = |expect: &str| {
        let routes = "{ big: { where: { .n: { gt: 9 } } }, small: { where: { .n: { gt: 0 } } } }";
        let processor = format!(
            "  sizes:\n    type: route\n    inputs: [app]\n    routes: {routes}\n    tests:\n      \
             - {{ given: [{{ n: 10 }}, {{ n: 1 }}, {{ n: 0 }}, {{ n: 11 }}], expect: {expect} }}\n"
        );
        test(&processor, "sizes.big, sizes.small, sizes.rest")
    };
    let all = "{ big: [{ n: 10 }, { n: 11 }], rest: [{ n: 0 }], small: [{ n: 1 }] }";
    let (code, out, errors) = route(all);
    assert_eq!((code, &*errors), (0, ""), "{out}");
    let (code, out, _) = route("{ big: [{ n: 10 }, { n: 11 }], small: [{ n: 0 }] }");
    assert_eq!(code, 1);
    assert!(
        out.contains(
            "  small, record 1\n    - .n: 0\n    + .n: 1\n  rest, record 1\n    + {\"n\":0}\n"
        ),
        "{out}"
    );
    let rejects = "    type: parse\n    inputs: [app]\n    as: json\n    on_error: reject\n    tests:\n      \
         - { given: ['{\"a\":1}', text, { message: other, b: 2 }], expect: [{ a: 1 }], rejected: [text] }\n";
    let (code, out, _) = test(&format!("  strict:\n{rejects}"), "strict");
    assert_eq!(code, 1);
    assert!(
        out.contains("  rejected, record 2 (strict: byte 0: `{`, the start of a JSON object, expected)\n    + {\"message\":\"other\",\"b\":2}\n"),
        "{out}"
    );
}

#[test]
fn a_case_can_begin_at_another_node_and_follows_the_graph() {
    let graph = |case: &str| {
        format!(
            "  records: {{ type: parse, inputs: [app], as: json }}\n  \
             ways: {{ type: route, inputs: [records], routes: {{ a: {{ where: {{ .w: a }} }}, b: {{ where: {{ .w: b }} }} }} }}\n  \
             first: {{ type: fields, inputs: [ways.a], set: {{ .by: first }}, tag: \"{{.w}}.{{tag}}\" }}\n  \
             second: {{ type: fields, inputs: [ways.b], set: {{ .by: second }} }}\n  \
             both:\n    type: filter\n    inputs: [first, kept]\n    tags: [\"a.**\", test]\n    \
             where: {{ .drop: {{ exists: false }} }}\n    tests: [{{ {case} }}]\n\
             channels: {{ kept: {{ type: memory, inputs: [second] }} }}\n"
        )
    };
    let given = r#"given: ['{"w":"b"}', '{"w":"a"}', '{"w":"c"}', '{"w":"b","drop":1}', '{"w":"a","n":2}']"#;
    let expect =
        "[{ w: b, by: second }, { \"%tag\": a.test, w: a, by: first }, { w: a, n: 2, by: first }]";
    for from in ["records", "app"] {
        let case = format!("from: {from}, {given}, expect: {expect}");
        let (code, out, errors) = test(&graph(&case), "both, ways.rest");
        assert_eq!((code, &*errors), (0, ""), "{out}");
    }
    // Nothing is expected, because `both` does not take the tag `b`.
    let case = "from: second, tag: b, given: [{ n: 1 }], expect: []";
    let (code, out, _) = test(&graph(case), "both, ways.rest");
    assert_eq!(code, 0, "{out}");
    for (from, expected) in [
        (
            "recrods",
            "no source, processor or channel is called `recrods`",
        ),
        ("out", "no source, processor or channel is called `out`"),
        ("both", ""),
    ] {
        let case = format!("from: {from}, given: [], expect: []");
        let (code, _, errors) = test(&graph(&case), "both, ways.rest");
        assert_eq!(code, if expected.is_empty() { 0 } else { 78 }, "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    let early = "  early:\n    type: filter\n    inputs: [app]\n    where: { .a: 1 }\n    \
         tests: [{ from: late, given: [], expect: [] }]\n  late: { type: parse, inputs: [early], as: json }\n";
    let (code, _, errors) = test(early, "late");
    assert_eq!(code, 78);
    assert!(
        errors.contains("c.yaml:8:21: error: no records of `late` reach `early`"),
        "{errors}"
    );
}

#[test]
fn tags_times_and_metadata_can_be_given_and_are_compared() {
    let cases = "      - tag: web\n        given: [a, { \"%tag\": db, \"%time\": \"2026-11-23T10:00:00.5Z\", \"%host\": h2, message: b }]\n        \
         expect:\n          - { \"%tag\": new.web, \"%time\": \"1970-01-01T00:00:00Z\", message: a, host: none }\n          \
         - { \"%tag\": new.db, \"%time\": \"2026-11-23T11:00:00.500+01:00\", \"%host\": h2, message: b, host: h2 }\n";
    let fields = "  new:\n    type: fields\n    inputs: [app]\n    set: { .host: \"{host|none}\" }\n    \
         tag: \"new.{tag}\"\n    tests:\n";
    let (code, out, errors) = test(&format!("{fields}{cases}"), "new");
    assert_eq!((code, &*errors), (0, ""), "{out}");
}

#[test]
fn numbers_and_texts_are_compared_exactly() {
    let record = r#"{ big: 18446744073709551615, low: -9223372036854775808, float: 0.1, whole: 1.0, tiny: 5e-324, deep: [[[{}]]], text: "a\nb\u001b" }"#;
    let cases = format!("      - {{ given: [{record}], expect: [{record}] }}\n");
    let (code, out, errors) = test(&parse(&cases), "records");
    assert_eq!((code, &*errors), (0, ""), "{out}");
    let cases = "      - { given: [{ n: 1.0, m: 18446744073709551615 }], expect: [{ n: 1, m: 18446744073709551614 }] }\n";
    let (code, out, _) = test(&parse(cases), "records");
    assert_eq!(code, 1);
    for line in ["- .n: 1\n", "+ .n: 1.0\n", "+ .m: 18446744073709551615\n"] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[test]
fn a_joined_text_of_several_lines_is_one_record() {
    let cases = "      - given: [\"a\\nb\", \"c\\n\"]\n        expect: [\"a\\nb\", c]\n";
    let (code, out, errors) = test(&parse(cases), "records");
    assert_eq!((code, &*errors), (0, ""), "{out}");
}

/// Asserts that each of these cases is an error whose message contains the given text.
fn refused(cases: &[(&str, &str)]) {
    for (case, expected) in cases {
        let (code, out, errors) = test(&parse(case), "records");
        assert_eq!((code, &*out), (78, ""), "{case}: {errors}");
        assert!(errors.contains(expected), "{case}: {errors}");
    }
}

#[test]
fn an_invalid_case_is_reported_with_its_line_and_column() {
    refused(&[
        (
            "      - given: []\n",
            "c.yaml:9:9: error: the option `expect` is missing",
        ),
        (
            "      - { given: [], expects: [] }\n",
            "c.yaml:9:22: error: unknown option `expects`",
        ),
        (
            "      - { input: [], expect: [] }\n",
            "it is called `given` here",
        ),
        (
            "      - { insert_at: app, given: [], expect: [] }\n",
            "it is called `from` here",
        ),
        (
            "      - { given: text, expect: [] }\n",
            "c.yaml:9:18: error:",
        ),
        (
            "      - { given: [7], expect: [] }\n",
            "c.yaml:9:19: error: a record is a map of fields, or the text of a line",
        ),
        (
            "      - { given: [], expect: { level: info } }\n",
            "c.yaml:9:39: error: a list of records is wanted, found the text `info`",
        ),
        (
            "      - { given: [], expect: { level: [info] } }\n",
            "c.yaml:9:32: error: `records` has one port: `expect` must be a list",
        ),
        (
            "      - { given: [], expect: 7 }\n",
            "c.yaml:9:30: error: a list of records is wanted, found the number 7",
        ),
        (
            "      - { given: [], expect: [], tag: '' }\n",
            "c.yaml:9:39: error: a tag has 1 to 8192 bytes",
        ),
        ("      - text\n", "c.yaml:9:9: error:"),
        (
            "      given: []\n",
            "c.yaml:8:5: error: `tests` must be a list of cases, found a map",
        ),
    ]);
}

#[test]
fn an_invalid_record_of_a_case_is_reported_with_its_line_and_column() {
    refused(&[
        (
            "      - { given: [{ \"%hots\": h }], expect: [] }\n",
            "c.yaml:9:30: error: no source sets this value",
        ),
        (
            "      - { given: [{ \"%hots\": h }], expect: [] }\n",
            "did you mean `%host`?",
        ),
        (
            "      - { given: [{ \"%time\": now }], expect: [] }\n",
            "c.yaml:9:30: error: a time is wanted",
        ),
        (
            "      - { given: [{ \"%tag\": 7 }], expect: [] }\n",
            "c.yaml:9:29: error: metadata is text",
        ),
        (
            "      - { given: [{ n: 99999999999999999999 }], expect: [] }\n",
            "c.yaml:9:24: error:",
        ),
    ]);
}

#[test]
fn ports_that_a_processor_does_not_have_are_errors() {
    let route = "  ways:\n    type: route\n    inputs: [app]\n    routes: { errors: { where: { .e: 1 } } }\n    tests:\n";
    for (cases, expected) in [
        (
            "      - { given: [], expect: [] }\n",
            "c.yaml:9:30: error: `ways` has several ports: `expect` must be a map of them",
        ),
        (
            "      - { given: [], expect: { eror: [] } }\n",
            "did you mean `errors`?",
        ),
    ] {
        let (code, _, errors) = test(&format!("{route}{cases}"), "ways.errors");
        assert_eq!(code, 78, "{cases}: {errors}");
        assert!(errors.contains(expected), "{cases}: {errors}");
    }
}

#[test]
fn an_error_about_misplaced_cases_names_where_they_belong() {
    let directory = tempfile::tempdir().unwrap();
    let text = "sources: { app: { type: stdin, tests: [] } }\nsinks: { out: { type: discard, inputs: [app] } }\ntests: []\n";
    fs::write(directory.path().join("c.yaml"), text).unwrap();
    let (code, _, errors) = run(directory.path(), &["check"]);
    assert_eq!(code, 78);
    assert!(
        errors.contains("c.yaml:1:32: error: unknown option `tests`"),
        "{errors}"
    );
    assert!(
        errors.contains("c.yaml:3:1: error: unknown setting `tests`")
            && errors.contains("cases stand beside the processor that they test"),
        "{errors}"
    );
}

#[test]
fn without_cases_the_command_says_how_to_write_one() {
    let (code, out, errors) = test(
        "  records: { type: parse, inputs: [app], as: json, tests: [] }\n",
        "records",
    );
    assert_eq!((code, &*out), (0, ""));
    assert!(
        errors.contains("there are no cases") && errors.contains("millstream test --help"),
        "{errors}"
    );
}

#[test]
fn check_counts_cases_and_run_ignores_them() {
    let directory = tempfile::tempdir().unwrap();
    let failing = parse("      - { given: [text], expect: [] }\n");
    config(directory.path(), &failing, "records");
    let (code, out, _) = run(directory.path(), &["check"]);
    assert_eq!(code, 0);
    assert!(
        out.ends_with("1 sink; `millstream test` runs 1 case\n"),
        "{out}"
    );
    let (code, _, errors) = run(directory.path(), &["run", "--once"]);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(run(directory.path(), &["test"]).0, 1);
}

#[test]
fn differences_have_colours_on_a_terminal_only() {
    let directory = tempfile::tempdir().unwrap();
    let failing = parse("      - { given: [text], expect: [other] }\n");
    config(directory.path(), &failing, "records");
    let (_, plain, _) = run(directory.path(), &["test"]);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    // script(1) gives the program a terminal.
    let command = format!("{} test c.yaml", env!("CARGO_BIN_EXE_millstream"));
    let shown = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in [
        "\u{1b}[31mFAILED  c.yaml:9 records: case 1\u{1b}[0m",
        "\u{1b}[31m    - .message: \"other\"\u{1b}[0m",
        "\u{1b}[32m    + .message: \"text\"\u{1b}[0m",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn a_custom_binary_has_its_processor_beside_all_others() {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream")).with_file_name("examples/custom");
    assert!(
        program.exists(),
        "{} is missing: build the workspace (`cargo test --workspace`)",
        program.display()
    );
    let source = tree().join("crates/millstream/examples/custom.rs");
    let lines = fs::read_to_string(source).unwrap().lines().count();
    assert!(lines < 60, "{lines} lines");
    let directory = tempfile::tempdir().unwrap();
    let custom = |arguments: &[&str], input: &str| {
        let mut child = Command::new(&program)
            .args(arguments)
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The write fails if the command reads no input and has already exited.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        said(child.wait_with_output().unwrap())
    };
    let (code, example, _) = custom(&["example", "limit"], "");
    assert_eq!(code, 0);
    let example = format!("{example}api: {{ listen: [] }}\n");
    fs::write(directory.path().join("c.yaml"), example).unwrap();
    let (code, out, errors) = custom(&["test", "c.yaml"], "");
    assert_eq!((code, &*errors), (0, ""), "{out}");
    assert!(out.ends_with("1 case: 1 ok\n"), "{out}");
    let (code, page, _) = custom(&["components", "limit"], "");
    assert!(
        code == 0 && page.contains("  size  size, required"),
        "{page}"
    );
    let (code, page, _) = custom(&["components", "filter"], "");
    assert!(code == 0 && page.starts_with("FILTER"), "{page}");
    let input = "short\na line of more than sixteen bytes\n";
    let (code, out, errors) = custom(&["run", "--once", "c.yaml"], input);
    // The exit code is 1 because a record was rejected.
    assert_eq!((code, &*out), (1, "short\n"), "{errors}");
}
