//! Records whose tag a processor changes after a disk channel.

use std::io::Write;

use super::*;

#[test]
fn a_processor_with_a_tag_filter_passes_on_records_whose_tag_it_changed() {
    const RECORDS: usize = 5000;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    // The processor takes records with the tag `a.*` from the channel and changes their tag to `b.x`.
    let text = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: stdin, tag: a.x }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         processors:\n  renamed: {{ type: fields, inputs: [kept], tags: [\"a.*\"], tag: b.x }}\n\
         sinks:\n  out: {{ type: file, inputs: [renamed], format: raw, path: \"{place}/{{tag}}.log\" }}\n"
    );
    let config = write(directory.path(), &text);
    let lines: String = (0..RECORDS).map(|n| format!("record {n}\n")).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["run", "--once", config.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    let ran = child.wait_with_output().unwrap();
    assert_eq!(code(&ran), 0, "{}", errors(&ran));
    let arrived = fs::read_to_string(directory.path().join("b.x.log"));
    assert!(
        arrived.is_ok_and(|arrived| arrived == lines),
        "{}",
        errors(&ran)
    );
}
