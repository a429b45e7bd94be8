//! The table in docs/faults.md is generated from the faults that the tests cause.

use std::{env, fs};

use super::faults::{FAULTS, JUMP};
use crate::program::tree;

const BEGIN: &str = "<!-- faults -->\n";
const END: &str = "<!-- /faults -->\n";

#[test]
fn the_page_about_faults_lists_those_that_are_tested() {
    let path = tree().join("docs/faults.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut table =
        "| Fault | Node | State | The reason contains | Alert |\n|---|---|---|---|---|\n"
            .to_owned();
    for fault in &FAULTS {
        let node = match fault.node {
            "in" => "the source",
            "out" => "the sink",
            "asked" => "the processor",
            _ => "the channel",
        };
        let alert = match fault.state {
            "blocked" => "`MillstreamNodeBlocked`",
            "retrying" => "`MillstreamNodeRetrying`",
            other => panic!("no alert is known for {other}"),
        };
        table += &format!(
            "| {} | {node} | `{}` | `{}` | {alert} |\n",
            fault.name, fault.state, fault.why
        );
    }
    let (name, line) = JUMP;
    table += &format!("| {name} | none | `running` | `{line}` | none |\n");
    let expected = format!("{before}{BEGIN}{table}{END}{after}");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        expected,
        "rewrite it with UPDATE=1"
    );
}
