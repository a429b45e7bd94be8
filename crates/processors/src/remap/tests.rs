//! Runs programs on batches, and checks where errors in programs are located.

use millstream_pipeline::reject::Rejected;

use crate::rig::{Chance, EVENT, Rig, found, lines, packed, pointed, problems, singles};

use super::*;

/// Returns a processor with this program and these additional options.
fn rig(program: &str, options: &str) -> Rig {
    let program = program.replace('\n', "\n  ");
    Rig::new(&COMPONENT, &format!("program: |\n  {program}\n{options}"))
}

fn all(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_program_changes_the_fields_that_it_names() {
    let mut rig = rig(
        ".level = downcase(string!(.level))\ndel(.secret)\n.n = int!(.n) + 1",
        "",
    );
    let records = all(&[
        r#"{"z":[1,{"k":null}],"level":"WARN","secret":"x","n":1}"#,
        r#"{"level":"info","n":9007199254740993,"big":18446744073709551615}"#,
    ]);
    let made = rig.run(&packed("t", &records));
    let expected = [
        r#"{"z":[1,{"k":null}],"level":"warn","n":2}"#,
        r#"{"level":"info","n":9007199254740994,"big":18446744073709551615}"#,
    ];
    assert_eq!(made.lines(""), expected);
    assert_eq!((made.ports[""].len(), made.counts.sent), (1, 2));
    assert!(made.ports[""][0].plain);
}

#[test]
fn records_that_a_program_does_not_change_keep_their_bytes() {
    let mut rig = rig("if .n == 1 { .n = 2 }", "");
    let batch = packed("t", &all(&[r#"{"n":3}"#, r#"{"n":4}"#]));
    let made = rig.run(&batch);
    assert_eq!(made.ports[""][0].body.as_ptr(), batch.body.as_ptr());
    let mixed = all(&[r#"{"n":3}"#, r#"{"n":1}"#, r#"{"n":1}"#, r#"{"n":4}"#]);
    let made = rig.run(&packed("t", &mixed));
    assert_eq!(
        made.lines(""),
        [r#"{"n":3}"#, r#"{"n":2}"#, r#"{"n":2}"#, r#"{"n":4}"#]
    );
    assert_eq!(made.ports[""].len(), 1);
    let batch = lines("t", "a\nb\n");
    assert_eq!(
        rig.run(&batch).ports[""][0].body.as_ptr(),
        batch.body.as_ptr()
    );
}

#[test]
fn lines_become_entries_after_the_first_changed_line() {
    let mut rig = rig(
        "if .message == \"b\" { .n = 1 }\nif .message == \"x\" { abort }",
        "",
    );
    let made = rig.run(&lines("t", "a\nb\nx\nc\nb"));
    let expected = [
        "a",
        r#"{"message":"b","n":1}"#,
        r#"{"message":"c"}"#,
        r#"{"message":"b","n":1}"#,
    ];
    assert_eq!(made.lines(""), expected);
    assert_eq!(made.ports[""].len(), 2);
    assert_eq!((made.counts.sent, made.counts.filtered), (4, 1));
}

#[test]
fn an_array_becomes_several_records_and_an_empty_one_none() {
    let mut rig = rig(". = array!(.items)", "");
    let records = all(&[
        r#"{"items":[{"a":1},{"a":2}]}"#,
        r#"{"items":[]}"#,
        r#"{"items":["x"]}"#,
    ]);
    let made = rig.run(&packed("t", &records));
    assert_eq!(
        made.lines(""),
        [r#"{"a":1}"#, r#"{"a":2}"#, r#"{"message":"x"}"#]
    );
    assert_eq!((made.counts.sent, made.counts.filtered), (3, 1));
    assert_eq!(made.ports[""][0].count, 3);
}

#[test]
fn abort_drops_the_record() {
    let mut rig = rig("if .level == \"debug\" { abort }", "");
    let records = all(&[r#"{"level":"debug"}"#, r#"{"level":"info"}"#]);
    let made = rig.run(&packed("t", &records));
    assert_eq!(made.lines(""), [r#"{"level":"info"}"#]);
    assert_eq!((made.counts.filtered, made.counts.rejected), (1, 0));
}

#[test]
fn a_record_on_which_the_program_fails_is_rejected_or_kept_in_its_place() {
    let program = ".n = 1\n.v = parse_json!(.v)";
    let records = all(&[r#"{"v":"1"}"#, r#"{"v":"{"}"#, r#"{"v":"2"}"#]);
    let made = rig(program, "").run(&packed("t", &records));
    assert_eq!(made.lines(""), [r#"{"v":1,"n":1}"#, r#"{"v":2,"n":1}"#]);
    let rejected = made.rejected.unwrap();
    let rejected = Rejected::read(&rejected.body).unwrap();
    assert!(
        rejected.reason.contains("unable to parse json"),
        "{}",
        rejected.reason
    );
    assert_eq!(made.counts.rejected, 1);
    let made = rig(program, "on_error: keep").run(&packed("t", &records));
    assert_eq!(
        made.lines(""),
        [r#"{"v":1,"n":1}"#, r#"{"v":"{"}"#, r#"{"v":2,"n":1}"#]
    );
    assert_eq!((made.counts.failed, made.counts.sent), (1, 3));
    let made = rig(program, "on_error: keep").run(&lines("t", "a\nb\n"));
    assert_eq!(made.lines(""), ["a", "b"]);
}

/// Returns the tag, the host and the number of records of each output batch.
fn heads(made: &crate::rig::Made) -> Vec<(String, Option<String>, u32)> {
    let head = |batch: &Batch| {
        let host = batch.values.get("host").map(str::to_owned);
        (batch.tag.as_str().to_owned(), host, batch.count)
    };
    made.ports[""].iter().map(head).collect()
}

#[test]
fn tag_host_and_time_can_be_set() {
    let program = "%tag = \"tenant.\" + (to_string(.tenant) ?? \"none\")\nif exists(.host) { %host = string!(.host) }";
    let mut rig = rig(program, "");
    assert!(rig.changes_tags());
    let records = all(&[
        r#"{"tenant":"a","n":1}"#,
        r#"{"tenant":"a","n":2}"#,
        r#"{"tenant":"b","host":"h"}"#,
        r#"{"tenant":"a","n":3}"#,
    ]);
    let mut batch = packed("t", &records);
    let mut values = Values::new();
    values.set("path", "/a");
    batch.values = Arc::new(values);
    let made = rig.run(&batch);
    let expected = [
        ("tenant.a".to_owned(), None, 3),
        ("tenant.b".to_owned(), Some("h".to_owned()), 1),
    ];
    assert_eq!(heads(&made), expected);
    assert!(
        made.ports[""]
            .iter()
            .all(|batch| batch.values.get("path") == Some("/a"))
    );
    assert_eq!(made.lines("").len(), 4);
    let made = rig.run(&lines("t", "a\nb\n"));
    assert_eq!(made.lines(""), [r#"{"message":"a"}"#, r#"{"message":"b"}"#]);

    let mut rig = self::rig(
        "%time = parse_timestamp!(\"2026-01-01\", \"%Y-%m-%d\") ",
        "",
    );
    assert!(!rig.changes_tags());
    rig.run(&packed("t", &all(&["{}"])));
}

#[test]
fn a_new_time_becomes_the_time_of_the_entry() {
    let program = "%time = parse_timestamp!(.at, \"%F %T\")";
    let zones = [
        ("", 1_782_907_200),
        ("timezone: Europe/Berlin", 1_782_900_000),
    ];
    for (options, seconds) in zones {
        let mut rig = rig(program, options);
        let made = rig.run(&packed("t", &all(&[r#"{"at":"2026-07-01 12:00:00"}"#])));
        let batch = &made.ports[""][0];
        let (_, record) = millstream_wire::record::records(batch).next().unwrap();
        assert_eq!(record.time.0 / 1_000_000_000, seconds);
    }
    let mut rig = rig(".a = 1", "");
    let made = rig.run(&packed("t", &all(&["{}"])));
    let batch = &made.ports[""][0];
    let (_, record) = millstream_wire::record::records(batch).next().unwrap();
    assert_eq!(record.time, EVENT);
}

#[test]
fn a_removed_host_is_no_longer_a_value_of_the_batch() {
    let mut batch = packed("t", &all(&["{}"]));
    let mut values = Values::new();
    values.set("host", "h");
    values.set("path", "/a");
    batch.values = Arc::new(values);
    let made = rig("del(%host)", "").run(&batch);
    assert_eq!(heads(&made), [("t".to_owned(), None, 1)]);
    assert_eq!(made.ports[""][0].values.get("path"), Some("/a"));
}

#[test]
fn a_tag_that_no_batch_can_have_is_a_failure() {
    let records = all(&[r#"{"tag":""}"#, r#"{"tag":"ok"}"#]);
    let made = rig("%tag = string!(.tag)", "").run(&packed("t", &records));
    assert_eq!((made.counts.rejected, made.counts.sent), (1, 1));
    let made = rig("%tag = string!(.tag)", "on_error: keep").run(&packed("t", &records));
    let tags: Vec<_> = heads(&made).into_iter().map(|(tag, ..)| tag).collect();
    assert_eq!(tags, ["t", "ok"]);
    let long = format!(r#"{{"tag":"{}"}}"#, "x".repeat(8193));
    let made = rig("%tag = string!(.tag)", "").run(&packed("t", &[long]));
    let rejected = made.rejected.unwrap();
    let rejected = Rejected::read(&rejected.body).unwrap();
    assert!(rejected.reason.contains("longer than 8192 bytes"));
}

#[test]
fn tiny_records_that_get_a_long_tag_do_not_grow_without_limit() {
    let batch = packed(&"t".repeat(8192), &all(&["{}"; 10_000]));
    for program in [".t = %tag", ".t = %tag\n%host = uuid_v4()"] {
        let made = rig(program, "").run(&batch);
        let sent: usize = made.ports[""].iter().map(Batch::len).sum();
        assert!(sent <= batch.grown_bytes_max() && sent > batch.grown_bytes_max() - 9000);
        assert_eq!(made.counts.sent + made.counts.rejected, 10_000);
    }
}

/// Each of these programs exercises a different part of a task.
const PROGRAMS: [&str; 6] = [
    "if .n == 1 { .m = 2 }",
    "if .n == 1 { abort }\nif .n == 2 { %tag = \"two\" }\nif .n == 3 { .m = to_int!(.s) }",
    "if .n == 1 { . = [{\"a\": 1}, .] }\nif .n == 2 { . = [] }",
    ".id = uuid_v4()\n.r = random_int(0, 1000)",
    "if .n == 1 { %host = \"one\" } else if .n == 2 { %tag = \"two\"\n.x = 1 }",
    "if .n == 3 { .message = downcase!(.s) }\n.at = now()",
];

#[test]
fn any_split_of_the_input_gives_the_same_records() {
    let mut chance = Chance(3);
    for round in 0..120 {
        let program = PROGRAMS[round % PROGRAMS.len()];
        let on_error = ["on_error: keep", "on_error: reject"][round / PROGRAMS.len() % 2];
        let records: Vec<_> = (0..10)
            .map(|_| {
                format!(
                    r#"{{"n":{},"s":"{}"}}"#,
                    chance.below(5),
                    chance.pick(&["A", "7"])
                )
            })
            .collect();
        let batch = match round % 5 {
            0 => lines("t", "a\nB\n7\n\n"),
            _ => packed("t", &records),
        };
        let mut rig = rig(program, on_error);
        let together = rig.run(&batch);
        // A line that was passed on unchanged is compared as the entry that it stands for.
        let of_tag = |made: &crate::rig::Made, tag: &str| -> Vec<String> {
            let batches = made.ports[""]
                .iter()
                .filter(|batch| batch.tag.as_str() == tag);
            let texts = batches.flat_map(crate::rig::texts);
            let entry = |text: String| match text.starts_with('{') {
                true => text,
                false => format!(r#"{{"message":"{text}"}}"#),
            };
            texts.map(entry).collect()
        };
        let mut counts = millstream_pipeline::output::Counts::default();
        let mut alone = [Vec::new(), Vec::new()];
        for single in singles(&batch) {
            let made = rig.run(&single);
            for (records, tag) in alone.iter_mut().zip(["t", "two"]) {
                records.extend(of_tag(&made, tag));
            }
            counts.sent += made.counts.sent;
            counts.filtered += made.counts.filtered;
            counts.rejected += made.counts.rejected;
            counts.failed += made.counts.failed;
        }
        // Records with the same tag and different hosts are in different batches, so their order across batches is not
        // compared.
        let mut expected = ["t", "two"].map(|tag| of_tag(&together, tag));
        if program.contains("%host") {
            expected
                .iter_mut()
                .chain(&mut alone)
                .for_each(|records| records.sort());
        }
        assert_eq!(alone, expected, "{program}");
        assert_eq!(counts, together.counts, "{program}");
    }
}

/// Returns the line, the column and the text of the first error of `options`.
fn first(options: &str) -> (u32, u32, String) {
    pointed(&found(&COMPONENT, options)[0])
}

#[test]
fn errors_of_plain_and_quoted_programs_are_at_their_line_and_column() {
    assert_eq!(
        first("program: .a = nothing(.b)\n"),
        (1, 15, "nothing".into())
    );
    assert_eq!(
        first("program: '.a = \"''\" + nothing(.b)'\n"),
        (1, 23, "nothing".into())
    );
    assert_eq!(
        first("program: \".a = \\\"\\u00e4\\\"\\n.b = nothing(.b)\"\n"),
        (1, 33, "nothing".into())
    );
}

#[test]
fn errors_of_block_programs_are_at_their_line_and_column() {
    let literal =
        "on_error: keep\nprogram: |\n  .a = 1\n\n  if .a == 1 {\n    .b = nothing(.b)\n  }\n";
    assert_eq!(first(literal), (6, 10, "nothing".into()));
    let folded = "program: >\n  .a = 1 +\n  nothing(.b)\n";
    assert_eq!(first(folded), (3, 3, "nothing".into()));
}

#[test]
fn errors_in_a_file_are_at_its_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.vrl");
    std::fs::write(&path, ".a = 1\n\n  .b = nothing(.c)\n.d = parse_json(.e)\n").unwrap();
    let problems = found(&COMPONENT, &format!("file: {}", path.display()));
    assert_eq!(pointed(&problems[0]), (3, 8, "nothing".into()));
    assert_eq!(problems[0].place.file.path(), path);
    let text = millstream_config::Problems(problems).render(false);
    assert!(
        text.contains("  3 |   .b = nothing(.c)\n    |        ^^^^^^^\n"),
        "{text}"
    );
}

#[test]
fn a_program_in_a_file_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.vrl");
    std::fs::write(&path, ".a = 1\n").unwrap();
    let mut rig = Rig::new(&COMPONENT, &format!("file: {}", path.display()));
    assert_eq!(
        rig.run(&packed("t", &all(&["{}"]))).lines(""),
        [r#"{"a":1}"#]
    );
}

#[test]
fn unusable_options_are_refused() {
    for (options, word) in [
        ("{}", "there is no program"),
        ("{ program: .a = 1, file: p.vrl }", "there are two programs"),
        (
            "{ program: .a = 1, timezone: Mars }",
            "no time zone is called `Mars`",
        ),
        ("{ program: .a = 1, on_error: drop }", "keep"),
        ("{ file: /nowhere/p.vrl }", "cannot read /nowhere/p.vrl"),
        ("{ program: '.a = 1', code: x }", "code"),
        ("program: .a = get_hostname!()", "use %host"),
    ] {
        let found = problems(&COMPONENT, options).join("; ");
        assert!(found.contains(word), "{options}: {found}");
    }
}

#[test]
fn an_unused_value_causes_a_warning_at_its_location() {
    let rig = rig(".a = 1\nupcase(\"x\")\n.b = 3", "");
    let warnings = rig.warnings();
    assert_eq!(warnings.len(), 1);
    let (line, column, text) = pointed(&warnings[0]);
    assert_eq!((line, column), (3, 3));
    assert!(text.starts_with("upcase"), "{text}");
}

#[test]
fn functions_that_the_manual_lists_as_refused_are_refused() {
    let manual = include_str!("README.md");
    let (_, part) = manual.split_once("## Functions that are refused").unwrap();
    let part = part.split("\n## ").next().unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut refused = 0;
    for name in rows.flat_map(|row| {
        let first = row.split(" | ").next().unwrap_or_default();
        first.split('`').step_by(2)
    }) {
        let is_refused = |arguments: &&str| {
            let program = format!("program: 'x = {name}({arguments})'");
            let found = problems(&COMPONENT, &program).join("; ");
            found.contains("cannot be used here")
        };
        let arguments = ["", ".a", ".a, \"b\"", ".a, [\"b\"]"];
        assert!(arguments.iter().any(is_refused), "{name}");
        refused += 1;
    }
    assert_eq!(refused, 33);
}

#[test]
fn a_record_grows_within_limits_and_its_neighbours_pass() {
    let large = "x".repeat(3 << 20);
    let program = "if strlen(string!(.message)) > 9 { . = [., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., ., .] }";
    let mut made = rig(program, "").run(&lines("t", &format!("a\n{large}\nb\n")));
    assert_eq!(made.lines(""), ["a", "b"]);
    assert_eq!(made.rejected.take().unwrap().count, 1);
    let made = rig(program, "on_error: keep").run(&lines("t", &format!("a\n{large}\nb\n")));
    assert_eq!((made.counts.sent, made.counts.failed), (3, 1));
}

#[test]
fn a_record_of_40_kb_becomes_at_most_32_times_as_large() {
    let line = format!("{}\n", "x".repeat(40_000));
    for (copies, expected) in [(".,".repeat(30), (30, 0)), (".,".repeat(40), (0, 1))] {
        let made = rig(&format!(". = [{copies}]"), "").run(&lines("t", &line));
        assert_eq!((made.counts.sent, made.counts.rejected), expected);
    }
}

#[test]
fn a_record_of_60_mib_and_one_that_nests_100_000_levels_pass() {
    let large = "x".repeat(60 << 20);
    let made = rig(".n = 1", "").run(&lines("t", &format!("{large}\n")));
    assert_eq!(made.counts.sent, 1);
    let mut body = b"\x92\x01\x82\xa1n\x01\xa1d".to_vec();
    body.extend(std::iter::repeat_n(0x91, 100_000));
    body.push(0xc0);
    let made = rig(".n = 2", "").run(&crate::rig::entries(body, 1));
    assert_eq!((made.counts.sent, made.counts.rejected), (1, 0));
}
