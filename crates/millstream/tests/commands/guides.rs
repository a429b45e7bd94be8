//! The pages in docs/guides: every configuration passes `check`. Blocks of other programs have other languages (`yml`, `nginx`).

use std::{fs, process::Command};

use crate::program::tree;

/// The blocks of Millstream's settings on a page.
fn blocks(text: &str) -> Vec<String> {
    let parts = text.split("```").skip(1).step_by(2);
    let blocks = parts.filter_map(|block| block.strip_prefix("yaml\n"));
    blocks.map(str::to_owned).collect()
}

/// The names of the nodes of a section: the lines that are indented by two spaces.
fn names<'a>(block: &'a str, section: &str) -> Vec<&'a str> {
    let head = format!("{section}:");
    let lines = block.lines().skip_while(|line| *line != head).skip(1);
    let lines = lines.take_while(|line| line.starts_with(' '));
    let names = lines.filter(|line| !line.starts_with("   "));
    names
        .filter_map(|line| Some(line.trim().split_once(':')?.0))
        .collect()
}

/// A block as a whole configuration: with a source that feeds a channel `buffer`, or a sink that takes all records.
fn whole(block: &str) -> String {
    let mut text = format!("data_dir: ./data\n{block}");
    if names(block, "sources").is_empty() {
        text += "sources:\n  in: { type: generate }\nchannels:\n  buffer: { type: disk, inputs: [in] }\n";
    }
    if names(block, "sinks").is_empty() {
        let ends: Vec<_> = ["sources", "processors", "channels"]
            .iter()
            .flat_map(|section| names(block, section))
            .filter(|name| !block.contains(&format!("[{name}]")))
            .collect();
        text += &format!(
            "sinks:\n  out: {{ type: discard, inputs: [{}] }}\n",
            ends.join(", ")
        );
    }
    text
}

#[test]
fn every_configuration_of_a_guide_passes_check() {
    let mut checked = 0;
    for file in fs::read_dir(tree().join("docs/guides")).unwrap() {
        let path = file.unwrap().path();
        for block in blocks(&fs::read_to_string(&path).unwrap()) {
            let directory = tempfile::tempdir().unwrap();
            let config = whole(&block);
            fs::write(directory.path().join("millstream.yaml"), &config).unwrap();
            let check = Command::new(env!("CARGO_BIN_EXE_millstream"))
                .args(["check", "millstream.yaml"])
                .current_dir(directory.path())
                .envs(secrets(&config))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&check.stderr);
            assert!(
                check.status.success(),
                "{}: {said}\n{config}",
                path.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked} blocks were found");
}

/// A value for each secret that a configuration takes from the environment.
fn secrets(config: &str) -> Vec<(String, &'static str)> {
    let names = config.split("${").skip(1);
    let names = names.filter_map(|rest| Some(rest.split_once('}')?.0.to_owned()));
    names.map(|name| (name, "s3cret")).collect()
}

#[test]
fn blocks_and_names_are_found() {
    let page = "a\n```yaml\nsources:\n  one: { type: x }\n  two:\n    type: y\n```\nb\n```yml\nx: 1\n```\n";
    let found = blocks(page);
    assert_eq!(found.len(), 1);
    assert_eq!(names(&found[0], "sources"), ["one", "two"]);
    assert!(names(&found[0], "sinks").is_empty());
    assert!(whole(&found[0]).contains("inputs: [one, two]"));
}
