//! The graph that a reload turns to.

use std::{fs, path::PathBuf};

use super::{merge::changed_settings, *};

/// The parsed configuration `text`.
fn read(text: &str) -> Loaded {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("millstream.yaml");
    let text = format!("data_dir: {}/data\n{text}", directory.path().display());
    fs::write(&path, text).unwrap();
    match config::read(&[PathBuf::from(&path)]) {
        Ok(loaded) => loaded,
        Err(problems) => panic!("{}", problems.render(false)),
    }
}

const RUNNING: &str = "
sources: { in: { type: stdin } }
processors: { old: { type: filter, inputs: [in], where: { .a: 1 } } }
channels: { kept: { type: disk, inputs: [old], size_max: 1GiB } }
sinks: { out: { type: discard, inputs: [kept] }, also: { type: stdout, inputs: [in] } }
";

fn merged(text: &str) -> Result<Merged, Vec<Problem>> {
    merge(read(text).entries, &read(RUNNING).entries)
}

/// The changes that need a restart.
fn waiting(text: &str) -> Vec<(String, &'static str)> {
    let Ok(merged) = merged(text) else {
        panic!("these nodes can run together");
    };
    let pair = |waiting: Waiting| (waiting.what.to_string(), waiting.why);
    merged.waiting.into_iter().map(pair).collect()
}

#[test]
fn processors_and_connections_change_and_everything_else_waits() {
    let new = "
sources: { in: { type: stdin, tag: other } }
processors:
  first: { type: fields, inputs: [in], remove: [.b] }
  old: { type: filter, inputs: [first], where: { .a: 2 } }
channels: { kept: { type: disk, inputs: [old, first], size_max: 2GiB } }
sinks: { out: { type: discard, inputs: [kept], tags: web.* }, extra: { type: discard, inputs: [in] } }
";
    let options = "its options have changed";
    let gone = "it is not in the configuration any more, and still runs";
    let expected = [
        ("in", options),
        ("kept", options),
        ("extra", "it is new"),
        ("also", gone),
    ];
    assert_eq!(
        waiting(new),
        expected.map(|(name, why)| (name.to_owned(), why))
    );
    let merged = merged(new).ok().unwrap();
    assert_eq!(merged.left_out, ["extra"]);
    let option = |node: &str, option: &str| {
        let entry = merged.entries.iter().find(|entry| &*entry.name == node);
        entry
            .unwrap()
            .options
            .get(option)
            .and_then(|node| node.as_text().map(str::to_owned))
    };
    // The new connections, and the options that run.
    assert_eq!(option("in", "tag"), None);
    assert_eq!(option("out", "tags"), Some("web.*".to_owned()));
    assert_eq!(option("kept", "size_max"), Some("1GiB".to_owned()));
    let inputs = merged.entries.iter().find(|entry| &*entry.name == "kept");
    let inputs = inputs.unwrap().options.get("inputs").unwrap();
    assert_eq!(inputs.as_list().map(<[_]>::len), Some(2));
}

#[test]
fn the_same_configuration_changes_nothing_wherever_its_lines_are() {
    assert_eq!(waiting(RUNNING), []);
    assert_eq!(waiting(&format!("# a comment\n\n{RUNNING}")), []);
}

#[test]
fn inputs_from_a_new_node_and_a_name_of_a_running_one_are_errors() {
    let from_new = RUNNING.replace(
        "channels: {",
        "channels: { more: { type: memory, inputs: [in] },",
    );
    let from_new = from_new.replace("stdout, inputs: [in]", "stdout, inputs: [more]");
    let Err(problems) = merged(&from_new) else {
        panic!("the sink would get nothing");
    };
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].message.contains("`more` is new"),
        "{problems:?}"
    );
    let same_name = "
sources: { in: { type: stdin } }
processors: { also: { type: filter, inputs: [in], where: { .a: 1 } } }
channels: { kept: { type: disk, inputs: [also], size_max: 1GiB } }
sinks: { out: { type: discard, inputs: [kept] } }
";
    let Err(problems) = merged(same_name) else {
        panic!("two nodes have one name");
    };
    assert!(
        problems[0].message.contains("`also` runs as another kind"),
        "{problems:?}"
    );
}

#[test]
fn a_new_sink_waits_where_others_take_the_same_records() {
    let more = |inputs: &str| {
        let sink = format!("sinks: {{ more: {{ type: discard, inputs: {inputs} }},");
        merged(&RUNNING.replace("sinks: {", &sink))
    };
    for inputs in ["[in]", "[old]", "[in, old.rejected]", "\"*.rejected\""] {
        assert!(more(inputs).is_ok(), "{inputs}");
    }
}

#[test]
fn a_port_of_a_new_processor_that_only_a_new_sink_takes_is_an_error() {
    let new = RUNNING
        .replace(
            "processors: {",
            "processors: { split: { type: filter, inputs: [in], where: { .b: 1 } },",
        )
        .replace(
            "sinks: {",
            "sinks: { more: { type: discard, inputs: [split] },",
        );
    let Err(problems) = merged(&new) else {
        panic!("its records would be dropped");
    };
    let expected = "nothing else takes all records of `split`";
    assert!(problems[0].message.contains(expected), "{problems:?}");
}

#[test]
fn settings_that_differ_are_named() {
    let running = read(RUNNING).settings;
    let mut new = running.clone();
    assert_eq!(changed_settings(&new, &running), []);
    new.host = "elsewhere".to_owned();
    new.timezone = "Europe/Berlin".to_owned();
    let changed = changed_settings(&new, &running);
    let names: Vec<_> = changed.iter().map(|waiting| &*waiting.what).collect();
    assert_eq!(names, ["host"]);
}

#[test]
fn another_token_is_a_changed_setting_although_it_prints_the_same() {
    let settings = |token: &str| {
        let text = format!("{RUNNING}api: {{ tokens: [{{ name: ops, token: {token} }}] }}");
        read(&text).settings
    };
    let (old, new) = (settings("0123456789abcdef"), settings("fedcba9876543210"));
    assert_eq!(changed_settings(&old, &old), []);
    let changed = changed_settings(&new, &old);
    let names: Vec<_> = changed.iter().map(|waiting| &*waiting.what).collect();
    assert_eq!(names, ["data_dir", "api"]);
}
