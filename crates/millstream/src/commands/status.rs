//! `millstream status`: shows the state of the running instance.

use std::{thread::sleep, time::Duration};

use clap::Args;
use serde_json::Value;

use super::instance::Instance;
use crate::{
    api, exit,
    page::{self, columns, paragraph},
};

/// The interval over which rates are measured.
const RATE_TIME: Duration = Duration::from_secs(1);

/// Show nodes, states, records and rates of the running instance.
#[derive(Args)]
#[command(after_help = "\
Examples:
  millstream status                          the instance of /etc/millstream
  millstream status --api 127.0.0.1:8687     the one that listens there
  millstream status --json | jq .nodes
  millstream status --line                   one line, as SIGUSR1 logs it
  millstream status --url https://agg-1:8688 --token-file ops.token

The columns: IN and OUT count records since the start, without those that are read again after a failure and those that are
rejected; PENDING are records that are not kept or settled yet; REJECTED could not be decoded or were refused permanently.
Below, for a disk channel: its size on the disk, the backlog of its slowest consumer, and the age of the oldest such record
(at most); for a tail: the files that are furthest behind.

A node that is `blocked` waits for room, one that is `retrying` cannot reach or use its destination, one that is `losing` skips
records or misses some. /health answers 503 once a node has been blocked or retrying for 10 s.

Exit codes: 0 every node works, 1 one does not or no instance answers, 78 wrong configuration")]
pub struct Status {
    #[command(flatten)]
    instance: Instance,
    /// Print the response of `/status`.
    #[arg(long)]
    json: bool,
    /// Print one line: whether it is healthy, and each node with its state and records.
    #[arg(long, conflicts_with = "json")]
    line: bool,
}

impl Status {
    /// Prints the status; returns the exit code.
    pub fn execute(self) -> u8 {
        let client = match self.instance.client() {
            Ok(client) => client,
            Err(code) => return code,
        };
        let ask = || client.get("/status");
        let asked = match self.json || self.line {
            true => ask().map(|one| (one, None)),
            false => ask().and_then(|first| {
                sleep(RATE_TIME);
                Ok((first, Some(ask()?)))
            }),
        };
        match asked {
            Ok((now, None)) if self.line => {
                page::print(&format!("{}\n", api::line(&now)));
                code(&now)
            }
            Ok((now, None)) => {
                page::print(&format!("{now:#}\n"));
                code(&now)
            }
            Ok((before, Some(now))) => {
                page::print(&table(&before, &now));
                code(&now)
            }
            Err(text) => page::complain(&text, exit::FAILED),
        }
    }
}

/// Returns the exit code. Unlike `/health`, it reports a node as soon as it does not work.
fn code(status: &Value) -> u8 {
    let works = |node: &Value| matches!(text(&node["state"]), "running" | "ended");
    match status["nodes"].as_array() {
        Some(nodes) if nodes.iter().all(works) => exit::DRAINED,
        _ => exit::FAILED,
    }
}

/// The page: a line about the process, a table of nodes, and the reasons of failing nodes.
fn table(before: &Value, now: &Value) -> String {
    let memory = &now["memory"];
    let mut out = format!(
        "millstream {}, process {}, up {}, memory {} of {}\n\n",
        text(&now["version"]),
        now["pid"],
        page::period(Duration::from_secs(number(&now["uptime_seconds"]))),
        page::bytes(number(&memory["used_bytes"])),
        page::bytes(number(&memory["max_bytes"])),
    );
    let heads = [
        "NODE", "TYPE", "STATE", "IN", "IN/S", "OUT", "OUT/S", "PENDING", "REJECTED",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let none = Vec::new();
    // The sections in the direction of the flow.
    let order = ["source", "channel", "sink"];
    let mut nodes: Vec<&Value> = now["nodes"].as_array().unwrap_or(&none).iter().collect();
    nodes.sort_by_key(|node| order.iter().position(|section| node["section"] == *section));
    let old = before["nodes"].as_array().unwrap_or(&none);
    for node in &nodes {
        let earlier = old.iter().find(|old| old["name"] == node["name"]);
        rows.push(row(node, earlier));
    }
    out.push_str(&columns(0, &rows, &[3, 4, 5, 6, 7, 8]));
    let more = nodes
        .iter()
        .map(|node| vec![text(&node["name"]).to_owned(), more(node)]);
    let more: Vec<_> = more.filter(|row| !row[1].is_empty()).collect();
    if !more.is_empty() {
        out.push('\n');
        out.push_str(&columns(0, &more, &[]));
    }
    let channels = channels(&nodes, &now["time"]);
    if channels.len() > 1 {
        out.push('\n');
        out.push_str(&columns(0, &channels, &[1, 2, 3, 4, 5]));
    }
    let behind: Vec<_> = nodes.iter().flat_map(|node| tables(node)).collect();
    if !behind.is_empty() {
        out.push('\n');
        out.push_str(&columns(0, &behind, &[2]));
    }
    let mut failing = nodes
        .iter()
        .filter(|node| !node["why"].is_null())
        .peekable();
    if failing.peek().is_some() {
        out.push('\n');
    }
    for node in failing {
        let held = node["seconds"].as_u64().map_or(String::new(), |seconds| {
            format!(" for {}", page::period(Duration::from_secs(seconds)))
        });
        let head = format!("{} {}{held}: ", text(&node["name"]), text(&node["state"]));
        out.push_str(&paragraph(&head, text(&node["why"])));
        for other in node["conditions"].as_array().into_iter().flatten().skip(1) {
            let head = format!("  {}: ", text(&other["state"]));
            out.push_str(&paragraph(&head, text(&other["why"])));
        }
    }
    out
}

/// Meters that have a column, or that repeat one.
const IN_COLUMNS: [&str; 8] = [
    "records_received",
    "records_settled",
    "records_delivered",
    "records_sent",
    "pending_records",
    "records_rejected",
    "bytes_rejected",
    "bytes_sent",
];

/// Meters of disk channels, which have a separate table.
const OF_CHANNELS: [&str; 4] = [
    "used_bytes",
    "size_max_bytes",
    "backlog_bytes",
    "oldest_record_timestamp_seconds",
];

/// The row of a node: records in and out, if its kind counts them.
fn row(node: &Value, earlier: Option<&Value>) -> Vec<String> {
    let meters = &node["meters"];
    let of = |name: &str| meters[name].as_u64();
    // The output of a source is what it sent; the output of a sink is what it delivered.
    let (into, out) = match text(&node["section"]) {
        "source" => (None, Some("records_sent")),
        "sink" => (Some("records_received"), Some("records_delivered")),
        _ => (None, None),
    };
    let count = |name: Option<&str>| name.and_then(&of).map_or(String::new(), page::grouped);
    let rate = |name: Option<&str>| {
        let now = name.and_then(&of);
        let then = name.and_then(|name| earlier?["meters"][name].as_u64());
        match (now, then) {
            (Some(now), Some(then)) => page::grouped(now.saturating_sub(then)),
            _ => String::new(),
        }
    };
    vec![
        text(&node["name"]).to_owned(),
        text(&node["type"]).to_owned(),
        text(&node["state"]).to_owned(),
        count(into),
        rate(into),
        count(out),
        rate(out),
        count(Some("pending_records")),
        count(Some("records_rejected")),
    ]
}

/// The meters of a node that have no column and are not 0.
fn more(node: &Value) -> String {
    let meters = node["meters"].as_object().into_iter().flatten();
    let is_channel = text(&node["section"]) == "channel";
    let told = meters.filter(|(name, value)| {
        let name = name.as_str();
        let shown = IN_COLUMNS.contains(&name) || is_channel && OF_CHANNELS.contains(&name);
        !shown && value.as_u64().is_some_and(|n| n > 0)
    });
    let words = told.map(|(name, value)| match name.contains("bytes") {
        true => format!("{name}={}", page::bytes(number(value))),
        false => format!("{name}={}", number(value)),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The disk channels: their fill and the age of their oldest record.
fn channels(nodes: &[&Value], now: &Value) -> Vec<Vec<String>> {
    let heads = ["CHANNEL", "USED", "LIMIT", "FILL", "BACKLOG", "OLDEST"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for node in nodes {
        let of = OF_CHANNELS.map(|name| number(&node["meters"][name]));
        let [used, limit, backlog, oldest] = of;
        if text(&node["section"]) != "channel" || limit == 0 {
            continue;
        }
        let age = match oldest {
            0 => String::new(),
            then => page::period(Duration::from_secs(number(now).saturating_sub(then))),
        };
        rows.push(vec![
            text(&node["name"]).to_owned(),
            page::bytes(used),
            page::bytes(limit),
            format!("{}%", u128::from(used) * 100 / u128::from(limit)),
            page::bytes(backlog),
            age,
        ]);
    }
    rows
}

/// The rows of a node's tables: node, metric, number, label.
fn tables(node: &Value) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    for (name, rows) in node["tables"].as_object().into_iter().flatten() {
        for row in rows.as_array().into_iter().flatten() {
            let value = number(&row["value"]);
            let mut labels = row.as_object().into_iter().flatten();
            let about = labels
                .find(|(key, _)| *key != "value")
                .map(|(_, what)| text(what));
            out.push(vec![
                text(&node["name"]).to_owned(),
                name.clone(),
                if name.contains("bytes") {
                    page::bytes(value)
                } else {
                    page::grouped(value)
                },
                about.unwrap_or_default().replace(char::is_control, "?"),
            ]);
        }
    }
    out
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
