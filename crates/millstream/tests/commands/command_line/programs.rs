//! Programs in VRL: a run from a file to a file, and errors with their line and column.

use super::*;

/// Writes a configuration that passes the lines of `in.log` through the processors in `processor`, and stores the result in `out.json`.
/// The last of the processors must have the name `clean`. Returns the path of the configuration.
fn configuration(directory: &Path, processor: &str) -> PathBuf {
    let place = directory.display();
    write(
        directory,
        &format!(
            "data_dir: {place}/data\napi: {{ listen: [] }}\ntimezone: Europe/Berlin\n\
             sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"], start: beginning }}\n\
             processors:\n{processor}\
             sinks:\n  out: {{ type: file, inputs: [clean], path: \"{place}/out.json\", format: json, add: {{ tag: \"{{tag}}\", at: \"{{time}}\" }} }}\n"
        ),
    )
}

#[test]
fn a_program_in_a_file_beside_the_configuration_turns_lines_into_records() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let processor = "  keep: { type: filter, inputs: [in], where: '!contains(string!(.message), \"debug\")' }\n  \
         clean: { type: remap, inputs: [keep], file: clean.vrl }\n";
    let config = configuration(directory.path(), processor);
    fs::write(
        at("clean.vrl"),
        ". = object!(parse_json!(.message))\n\
         %time = parse_timestamp!(del(.at), \"%F %T\")\n\
         %tag = \"tenant.\" + string!(.tenant)\n\
         .n = int!(.n) + 1\n",
    )
    .unwrap();
    let lines = "{\"n\":1,\"tenant\":\"a\",\"at\":\"2026-07-01 12:00:00\"}\n\
                 {\"n\":2,\"tenant\":\"debug\"}\nno JSON\n\
                 {\"n\":3,\"tenant\":\"b\",\"at\":\"2026-01-01 12:00:00\"}\n";
    fs::write(at("in.log"), lines).unwrap();
    let ran = millstream(&["run", "--once", config.to_str().unwrap()]);
    // The exit code is 1 because a record was rejected.
    assert_eq!(code(&ran), 1, "{}", errors(&ran));
    assert_eq!(
        fs::read_to_string(at("out.json")).unwrap(),
        "{\"n\":2,\"tenant\":\"a\",\"tag\":\"tenant.a\",\"at\":\"2026-07-01T10:00:00.000000000Z\"}\n\
         {\"n\":4,\"tenant\":\"b\",\"tag\":\"tenant.b\",\"at\":\"2026-01-01T11:00:00.000000000Z\"}\n"
    );
    let rejected = millstream(&["rejected", "cat", config.to_str().unwrap()]);
    let rejected = String::from_utf8_lossy(&rejected.stdout).into_owned();
    assert!(rejected.contains("no JSON"), "{rejected}");
    assert!(rejected.contains("unable to parse json"), "{rejected}");
}

#[test]
fn check_prints_errors_of_programs_with_line_and_column_and_warnings_of_the_compiler() {
    let directory = tempfile::tempdir().unwrap();
    let checked = |processor: &str| {
        let path = configuration(directory.path(), processor);
        let output = millstream(&["check", path.to_str().unwrap()]);
        (code(&output), errors(&output), path.display().to_string())
    };
    let block = "  clean:\n    type: remap\n    inputs: [in]\n    program: |\n      .a = 1\n      .b = parse_json(.message)\n";
    let (code, said, path) = checked(block);
    assert_eq!(code, 78, "{said}");
    assert!(said.contains(&format!("{path}:12:12: error: ")), "{said}");
    let shown = "  12 |       .b = parse_json(.message)\n     |            ^^^^^^^^^^^^^^^^^^^^\n";
    assert!(said.contains(shown), "{said}");

    fs::write(directory.path().join("p.vrl"), ".a = 1\n.b = unknown\n").unwrap();
    let (code, said, _) = checked("  clean: { type: remap, inputs: [in], file: p.vrl }\n");
    assert_eq!(code, 78, "{said}");
    let place = directory.path().join("p.vrl").display().to_string();
    assert!(said.contains(&format!("{place}:2:6: error: ")), "{said}");

    let (code, said, path) = checked("  clean: { type: filter, inputs: [in], where: '.n = 1' }\n");
    assert_eq!(code, 78, "{said}");
    assert!(said.contains(&format!("{path}:7:48: error: ")), "{said}");

    let warned = "  clean: { type: remap, inputs: [in], program: 'upcase(\"x\"); .a = 1' }\n";
    let (code, said, path) = checked(warned);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains(&format!("{path}:7:49: warning: unused")),
        "{said}"
    );
}
