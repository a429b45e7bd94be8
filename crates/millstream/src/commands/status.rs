//! `millstream status`: shows the state of the running instance.

use std::{thread::sleep, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{
    instance::Instance,
    verdict::{self, Line},
};
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

The columns: IN and OUT count records since the start. They leave out rejected records, and count a record that is read again \
after a failure once. PENDING counts records that are neither kept nor settled yet, REJECTED those that could not be decoded or \
were refused permanently. \
A narrow terminal has fewer columns; the lines below the table show the numbers of the missing columns that are not 0. \
Below, for a processor: filtered are records that it left out on purpose, failed are those that it could not process and passed \
on, busy is the time that it worked. For a disk channel: its size on the disk, the backlog of its slowest consumer, how old the \
oldest record is that a consumer has not settled, the slowest consumer with the share of the channel that it holds, and when the \
channel or its disk is full if both go on as in the last minute. For a tail: the files that are furthest behind.

The first line is the verdict. Below it are the problems, each with its consequences: `so` marks a node that only suffers from it.

A node that is `blocked` waits for space, one that is `retrying` cannot reach or use its destination, one that is `losing` skips \
records or misses some. /health answers 503 once a node has been blocked or retrying for 10 s. One that is `degraded` works, and \
needs an operator before it stops.

Exit codes: 0 everything is well, 1 something needs attention or no instance answers, 78 wrong configuration")]
pub struct Status {
    #[command(flatten)]
    instance: Instance,
    /// Print the response of `/status`.
    #[arg(long)]
    json: bool,
    /// Print one line: whether the instance is healthy, and each node with its state and records.
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
                let most = page::terminal_columns().unwrap_or(usize::MAX);
                page::print(&table(&before, &now, most));
                code(&now)
            }
            Err(text) => page::complain(&text, exit::FAILED),
        }
    }
}

/// Returns the exit code. It is a failure as soon as anything needs attention, while `/health` tolerates short interruptions.
fn code(status: &Value) -> u8 {
    match text(&status["verdict"]) {
        "healthy" => exit::DRAINED,
        _ => exit::FAILED,
    }
}

/// The page: the verdict with the problems, a line about the process, and tables of nodes.
fn table(before: &Value, now: &Value, columns_max: usize) -> String {
    let memory = &now["memory"];
    let mut out = format!(
        "{}  millstream {}, process {}, up {}, memory {} of {}\n",
        verdict::word(now),
        text(&now["version"]),
        now["pid"],
        page::period(Duration::from_secs(number(&now["uptime_seconds"]))),
        page::bytes(number(&memory["used_bytes"])),
        page::bytes(number(&memory["max_bytes"])),
    );
    for Line { head, why } in verdict::lines(now) {
        out.push_str(&paragraph(&head, &why));
    }
    out.push('\n');
    let nodes = api::in_flow(now);
    let none = Vec::new();
    let old = before["nodes"].as_array().unwrap_or(&none);
    let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
    rows.extend(nodes.iter().map(|node| {
        let earlier = old.iter().find(|old| old["name"] == node["name"]);
        row(node, earlier)
    }));
    let hidden = narrow(&mut rows, columns_max);
    out.push_str(&columns(0, &rows, &Vec::from_iter(TEXTS..rows[0].len())));
    let more = nodes
        .iter()
        .map(|node| vec![text(&node["name"]).to_owned(), more(node, &hidden)]);
    let more: Vec<_> = more.filter(|row| !row[1].is_empty()).collect();
    if !more.is_empty() {
        out.push('\n');
        out.push_str(&columns(0, &more, &[]));
    }
    let channels = channels(&nodes, now);
    if channels.len() > 1 {
        out.push('\n');
        out.push_str(&columns(0, &channels, &[1, 2, 3, 4, 5]));
    }
    let behind: Vec<_> = nodes.iter().flat_map(|node| tables(node)).collect();
    if !behind.is_empty() {
        out.push('\n');
        out.push_str(&columns(0, &behind, &[2]));
    }
    out
}

/// The titles of the columns.
const HEADS: [&str; 9] = [
    "NODE", "TYPE", "STATE", "IN", "IN/S", "OUT", "OUT/S", "PENDING", "REJECTED",
];
/// The number of columns that hold text. These columns come first.
const TEXTS: usize = 3;
/// Columns that are left out in a narrow terminal. Of these columns, those that hold only zeros are left out first. TYPE is left
/// out next, and then the other columns of this list.
const NARROW: [&str; 2] = ["REJECTED", "PENDING"];

/// Meters that are not shown after the table. They have a column, or add little to a meter that has a column.
const IN_COLUMNS: [&str; 7] = [
    "records_received",
    "records_settled",
    "records_delivered",
    "records_sent",
    "batches_received",
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

/// The table of a channel's backlogs, which the table of channels shows.
const BY_CONSUMER: &str = "consumer_backlog_bytes";

/// The row of a node. Numbers that the node does not count are empty.
fn row(node: &Value, earlier: Option<&Value>) -> Vec<String> {
    let meters = &node["meters"];
    let of = |name: &str| meters[name].as_u64();
    // For a source or a processor, the output is the records that it sent. For a sink, the output is the records that it delivered.
    let (into, out) = match text(&node["section"]) {
        "source" => (None, Some("records_sent")),
        "processor" => (Some("records_received"), Some("records_sent")),
        "sink" => (Some("records_received"), Some("records_delivered")),
        _ => (Some("records_received"), None),
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

/// Leaves out columns until the table fits into the terminal; returns their titles.
fn narrow(rows: &mut [Vec<String>], columns_max: usize) -> Vec<String> {
    let mut hidden = Vec::new();
    let is_empty = |at: usize| rows[1..].iter().all(|row| matches!(&*row[at], "" | "0"));
    let place = |head: &str| HEADS.iter().position(|it| *it == head);
    let empty = NARROW
        .into_iter()
        .filter(|head| place(head).is_some_and(is_empty));
    let order: Vec<_> = empty.chain(["TYPE"]).chain(NARROW).collect();
    for head in order {
        let width = |at: usize| rows.iter().map(|row| page::width(&row[at])).max();
        let widths = (0..rows[0].len()).filter_map(width);
        if widths.map(|width| width + 2).sum::<usize>() <= columns_max.saturating_add(2) {
            break;
        }
        if let Some(at) = rows[0].iter().position(|it| it == head) {
            hidden.push(head.to_owned());
            for row in rows.iter_mut() {
                row.remove(at);
            }
        }
    }
    hidden
}

/// The meters of a node that are not 0 and that no visible column shows.
fn more(node: &Value, hidden: &[String]) -> String {
    let meters = node["meters"].as_object().into_iter().flatten();
    let is_channel = text(&node["section"]) == "channel";
    let is_hidden = |head: &str| hidden.iter().any(|it| it == head);
    let told = meters.filter(|(name, value)| {
        let shown = match name.as_str() {
            "pending_records" => !is_hidden("PENDING"),
            "records_rejected" => !is_hidden("REJECTED"),
            name => IN_COLUMNS.contains(&name) || is_channel && OF_CHANNELS.contains(&name),
        };
        !shown && value.as_u64().is_some_and(|n| n > 0)
    });
    let words = told.map(|(name, value)| match name.strip_suffix("_microseconds") {
        Some(name) => {
            let time = Duration::from_micros(number(value));
            format!("{name}={}", page::period(time))
        }
        None if name.contains("bytes") => format!("{name}={}", page::bytes(number(value))),
        None => format!("{name}={}", number(value)),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The disk channels: their fill and the age of their oldest record.
fn channels(nodes: &[&Value], now: &Value) -> Vec<Vec<String>> {
    let heads = [
        "CHANNEL", "USED", "LIMIT", "FILL", "BACKLOG", "OLDEST", "SLOWEST", "FULL IN",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for node in nodes {
        let of = OF_CHANNELS.map(|name| number(&node["meters"][name]));
        let [used, limit, backlog, _] = of;
        if text(&node["section"]) != "channel" || limit == 0 {
            continue;
        }
        let age = api::oldest(node, now).map_or(String::new(), page::period);
        rows.push(vec![
            text(&node["name"]).to_owned(),
            page::bytes(used),
            page::bytes(limit),
            format!("{}%", u128::from(used) * 100 / u128::from(limit)),
            page::bytes(backlog),
            age,
            holder(node, used),
            verdict::full_in(node),
        ]);
    }
    rows
}

/// The consumer of a channel that is furthest behind, with its share of the channel. Empty if no consumer has a backlog.
fn holder(node: &Value, used: u64) -> String {
    let slowest = &node["tables"][BY_CONSUMER][0];
    let Some(name) = slowest["consumer"].as_str() else {
        return String::new();
    };
    let share = u128::from(number(&slowest["value"])) * 100 / u128::from(used.max(1));
    format!("{name} {}%", share.min(100))
}

/// The rows of a node's tables: node, metric, number, label.
fn tables(node: &Value) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    let tables = node["tables"].as_object().into_iter().flatten();
    for (name, rows) in tables.filter(|(name, _)| *name != BY_CONSUMER) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The status of a graph with a processor. The processor has passed on `sent` records.
    fn status(sent: u64) -> Value {
        json!({
            "version": "1.0.0", "pid": 7, "uptime_seconds": 60, "time": 1,
            "memory": { "used_bytes": 1024, "max_bytes": 4096 },
            "nodes": [
                { "name": "archive", "section": "sink", "type": "file", "state": "running", "meters": {
                    "records_received": sent, "records_delivered": sent, "pending_records": 0 } },
                { "name": "only_errors", "section": "processor", "type": "filter", "state": "running", "meters": {
                    "records_received": sent + 12, "records_sent": sent, "records_filtered": 9, "records_failed": 1,
                    "records_rejected": 2, "bytes_received": 2048, "busy_microseconds": 1_500_000 } },
                { "name": "fleet", "section": "source", "type": "forward", "state": "running", "meters": {
                    "records_sent": sent + 12, "pending_records": 0 } },
            ],
            "edges": [{ "from": "fleet", "to": "only_errors" }, { "from": "only_errors", "to": "archive" }],
        })
    }

    fn row_of<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
        let row = page.lines().find(|line| line.starts_with(name));
        row.unwrap_or_default().split_whitespace().collect()
    }

    #[test]
    fn processors_are_listed_in_the_flow_with_records_and_rates() {
        let page = table(&status(100), &status(130), usize::MAX);
        let at = |text: &str| page.find(text).expect("it is on the page");
        assert!(at("fleet") < at("only_errors") && at("only_errors") < at("archive"));
        let row = row_of(&page, "only_errors");
        let expected = [
            "only_errors",
            "filter",
            "running",
            "142",
            "30",
            "130",
            "30",
            "2",
        ];
        assert_eq!(row, expected, "{page}");
        for detail in ["records_filtered=9", "records_failed=1", "busy=1s500ms"] {
            assert!(page.contains(detail), "{detail}: {page}");
        }
        assert!(
            !page.contains("records_rejected="),
            "it has a column: {page}"
        );
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_but_shows_all_numbers() {
        let page = table(&status(1_000_000_000), &status(1_000_500_000), 80);
        assert!(
            page.lines().skip(2).take(4).all(|line| line.len() <= 80),
            "{page}"
        );
        let heads = page.lines().nth(2).expect("the header");
        let heads: Vec<_> = heads.split_whitespace().collect();
        let most = ["NODE", "STATE", "IN", "IN/S", "OUT", "OUT/S", "REJECTED"];
        assert_eq!(heads, most, "{page}");
        let page = table(&status(1_000_000_000), &status(1_000_500_000), 70);
        let heads = page.lines().nth(2).expect("the header");
        let heads: Vec<_> = heads.split_whitespace().collect();
        assert_eq!(heads, most[..6], "{page}");
        assert!(page.contains("records_rejected=2"), "{page}");
    }
}
