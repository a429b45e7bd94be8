//! `millstream reload`: makes the running instance apply its changed configuration.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::instance::Instance;
use crate::{exit, page};

/// Make the running instance read its configuration again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream check && millstream reload        the instance of /etc/millstream
  millstream reload --api 127.0.0.1:8687       the one that listens there
  millstream reload --json | jq .needs_restart
  millstream reload --forget old-sink          drop the unsettled records of a sink that was removed from the files

A reload adds, removes and replaces nodes, and changes the connections between them. Only the nodes that changed stop, after they have \
finished their work; a source that listens on the same address keeps its socket. No record is lost, repeated or overtaken. If anything in \
the files is wrong, or a node changes in a way that needs a restart, nothing changes. Changed settings at the top of the file are reported, \
and wait for a restart. A removed sink must have settled all records that its disk channel keeps for it, or be named with `--forget`; a \
removed sink without a disk channel first writes the records that it has. The instance reads the files that it was started with; CONFIG \
only says where it listens. SIGHUP does the same and logs the result.

Exit codes: 0 reloaded (also if some changes need a restart); 1 it failed and nothing changed, or no instance answers; 78 wrong \
configuration, and nothing has changed")]
pub struct Reload {
    #[command(flatten)]
    instance: Instance,
    /// Drop the records that this sink has not settled, if the configuration removes it. Can be repeated.
    #[arg(long, value_name = "SINK")]
    forget: Vec<String>,
    /// Print the response of the instance.
    #[arg(long)]
    json: bool,
}

impl Reload {
    /// Reloads; returns the exit code.
    pub fn execute(self) -> u8 {
        let answer = self.instance.client().and_then(|client| {
            let pairs = self.forget.iter().map(|sink| format!("forget={sink}"));
            let pairs: Vec<_> = pairs.collect();
            let answer = client.post(format!("/reload?{}", pairs.join("&")).trim_end_matches('?'));
            answer.map_err(|text| page::complain(&text, exit::FAILED))
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(code) => return code,
        };
        match self.json {
            true => drop(page::print(&format!("{answer:#}\n"))),
            false => show(&answer),
        }
        match (&answer["applied"], &answer["problems"]) {
            (Value::Bool(true), _) => exit::DRAINED,
            (_, Value::String(_)) => exit::CONFIG,
            _ => exit::FAILED,
        }
    }
}

fn show(answer: &Value) {
    if answer["applied"] == true {
        page::print(&table(answer));
        return;
    }
    let why = match (answer["problems"].as_str(), answer["why"].as_str()) {
        (Some(problems), _) => problems.to_owned(),
        (_, Some(why)) => format!("error: {why}\n"),
        _ => String::new(),
    };
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{why}nothing has changed");
}

/// A line for each node, followed by the changes that need a restart.
fn table(answer: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut out = text(&answer["warnings"]);
    let nodes = answer["nodes"].as_array().into_iter().flatten();
    let rows = nodes.map(|node| vec![text(&node["node"]), text(&node["outcome"])]);
    let mut all = vec![vec!["NODE".to_owned(), "RESULT".to_owned()]];
    all.extend(rows);
    out += &page::columns(0, &all, &[]);
    for change in answer["needs_restart"].as_array().into_iter().flatten() {
        let (what, why) = (text(&change["what"]), text(&change["why"]));
        out += &format!("\n{what}: {why}; this needs a restart");
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}
