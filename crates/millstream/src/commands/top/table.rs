//! The table of `millstream top`, computed from two answers of `/status`.

use std::time::Duration;

use serde_json::Value;

use crate::{
    api::{self, in_flow},
    commands::verdict,
    page::{bytes, grouped, period, width},
};

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its width.
    pub columns: usize,
    /// Its height.
    pub rows: usize,
}

impl Size {
    /// The size of a terminal that does not report one.
    pub const SMALL: Self = Self {
        columns: 80,
        rows: 24,
    };
    /// The size if the output is not a terminal.
    pub const UNBOUNDED: Self = Self {
        columns: usize::MAX,
        rows: usize::MAX,
    };
}

/// Two answers of `/status`.
pub struct View<'a> {
    /// The earlier one.
    pub before: &'a Value,
    /// The later one.
    pub now: &'a Value,
    /// The time between them.
    pub time: Duration,
}

/// The titles of the columns.
const HEADS: [&str; 9] = [
    "NODE", "TYPE", "STATE", "REC/S", "BYTES/S", "WAITING", "FULL", "LAG", "ERRORS",
];
/// The number of columns that hold text. These columns come first.
const TEXTS: usize = 3;
/// The columns that are left out in a narrow terminal, in this order: TYPE, FULL, BYTES/S.
const NARROW: [usize; 3] = [1, 6, 4];
/// In a narrow terminal, names may be cut to this width. Shorter names are never cut.
const NAME_MIN: usize = 12;

impl View<'_> {
    /// The number of nodes.
    pub fn rows(&self) -> usize {
        self.now["nodes"].as_array().map_or(0, Vec::len)
    }

    /// The lines, without the first `scrolled` nodes. A line that begins with a tab is a heading. A line that begins with the bell
    /// character is an error.
    pub fn lines(&self, size: Size, scrolled: usize) -> Vec<String> {
        let mut lines = vec![self.head()];
        let nodes = self.nodes();
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(nodes.iter().map(|node| self.row(node)));
        let mut table = aligned(&rows, size.columns).into_iter();
        // At least half of the screen is for nodes. The head, the titles and the empty lines take the rest.
        let told = size.rows.saturating_sub(lines.len() + 2) / 2;
        let troubles = verdict::lines(self.now).into_iter().take(told);
        lines.extend(troubles.map(|line| format!("\x07{}{}", line.head, line.why)));
        lines.push(String::new());
        lines.extend(table.next().map(|head| format!("\t{head}")));
        let shown = size.rows.saturating_sub(lines.len());
        let rest: Vec<_> = table.skip(scrolled).collect();
        let hidden = rest.len().saturating_sub(shown);
        let fits = match hidden {
            0 => rest.len(),
            _ => shown.saturating_sub(1),
        };
        lines.extend(rest.iter().take(fits).cloned());
        if hidden > 0 && shown > 0 {
            lines.push(format!("... {} more: j and k scroll", rest.len() - fits));
        }
        lines
    }

    fn head(&self) -> String {
        let memory = &self.now["memory"];
        format!(
            "{}  millstream {}  up {}  memory {} of {}  process {}",
            verdict::word(self.now),
            text(&self.now["version"]),
            period(Duration::from_secs(number(&self.now["uptime_seconds"]))),
            bytes(number(&memory["used_bytes"])),
            bytes(number(&memory["max_bytes"])),
            self.now["pid"],
        )
    }

    /// The nodes in the direction of the flow.
    fn nodes(&self) -> Vec<&Value> {
        in_flow(self.now)
    }

    fn row(&self, node: &Value) -> [String; 9] {
        let of = |meter: &str| node["meters"][meter].as_u64();
        let (records, volume) = match text(&node["section"]) {
            "source" => ("records_sent", "bytes_sent"),
            _ => ("records_received", "bytes_received"),
        };
        let waiting = match (of("backlog_bytes"), of("pending_records")) {
            (Some(backlog), _) => bytes(backlog),
            (None, Some(pending)) => grouped(pending),
            (None, None) => String::new(),
        };
        let full = match (of("used_bytes"), of("size_max_bytes")) {
            (Some(used), Some(most @ 1..)) => {
                let percent = u128::from(used) * 100 / u128::from(most);
                match verdict::full_in(node) {
                    soon if soon.is_empty() => format!("{percent}%"),
                    soon => format!("{percent}% in {soon}"),
                }
            }
            _ => String::new(),
        };
        let lag = api::oldest(node, self.now).filter(|age| !age.is_zero());
        let lag = lag.map_or(String::new(), period);
        let errors = ["records_rejected", "records_failed", "handshakes_failed"];
        let errors = errors.into_iter().filter_map(of).sum::<u64>();
        [
            text(&node["name"]).to_owned(),
            text(&node["type"]).to_owned(),
            text(&node["state"]).to_owned(),
            self.rate(node, records).map_or(String::new(), grouped),
            self.rate(node, volume).map_or(String::new(), bytes),
            waiting,
            full,
            lag,
            if errors == 0 {
                String::new()
            } else {
                grouped(errors)
            },
        ]
    }

    /// The increase of a meter per second.
    fn rate(&self, node: &Value, meter: &str) -> Option<u64> {
        let now = node["meters"][meter].as_u64()?;
        let mut old = self.before["nodes"].as_array()?.iter();
        let then = old.find(|old| old["name"] == node["name"])?["meters"][meter].as_u64()?;
        let gained = u128::from(now.saturating_sub(then)) * 1000;
        let rate = gained / self.time.as_millis().max(1);
        u64::try_from(rate).ok()
    }
}

/// Aligns the columns of rows. If the lines have more than `columns` characters, names are cut, but [`NAME_MIN`] characters remain. If the
/// lines are still too long, columns in [`NARROW`] are left out one by one. Numbers are never cut, so lines may stay too long.
fn aligned(rows: &[[String; 9]], columns: usize) -> Vec<String> {
    let wide = |at: usize| rows.iter().map(|row| width(&row[at])).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..HEADS.len()).map(wide).collect();
    let total = |widths: &[usize]| {
        let shown = widths.iter().filter(|width| **width > 0);
        shown
            .map(|width| width + 2)
            .sum::<usize>()
            .saturating_sub(2)
    };
    for at in NARROW {
        if total(&widths) > columns {
            let spare = total(&widths) - columns;
            widths[0] = widths[0].saturating_sub(spare).max(NAME_MIN.min(widths[0]));
        }
        if total(&widths) > columns {
            widths[at] = 0;
        }
    }
    let line = |row: &[String; 9]| {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| widths[*at] > 0) {
            let cell: String = cell.chars().take(widths[at]).collect();
            let gap = " ".repeat(widths[at] - width(&cell));
            match at < TEXTS {
                true => line.push_str(&format!("{cell}{gap}  ")),
                false => line.push_str(&format!("{gap}{cell}  ")),
            }
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
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

    fn status(sent: u64, nodes: usize) -> Value {
        let mut all = vec![json!({
            "name": "bus", "section": "sink", "type": "kafka", "state": "retrying", "why": "refused",
            "meters": { "records_received": sent, "bytes_received": sent * 100, "backlog_bytes": 2048, "records_rejected": 3 },
        })];
        all.extend((0..nodes).map(|at| {
            json!({
                "name": format!("a_source_with_a_long_name_{at}"), "section": "source", "type": "forward", "state": "running",
                "meters": { "records_sent": sent, "bytes_sent": sent * 100, "pending_records": 1234 },
            })
        }));
        json!({
            "version": "1", "pid": 7, "time": 100, "uptime_seconds": 60, "verdict": "unhealthy",
            "problems": [{ "node": "bus", "state": "retrying", "why": "refused", "seconds": 75, "consequences": [
                { "node": "kept", "state": "blocked", "why": "full" }] }],
            "memory": { "used_bytes": 1024, "max_bytes": 4096 }, "nodes": all,
        })
    }

    fn lines(nodes: usize, size: Size, scrolled: usize) -> Vec<String> {
        let (before, now) = (status(0, nodes), status(5000, nodes));
        let view = View {
            before: &before,
            now: &now,
            time: Duration::from_millis(500),
        };
        view.lines(size, scrolled)
    }

    #[test]
    fn nodes_are_listed_in_the_direction_of_the_flow_with_their_rates() {
        let lines = lines(1, Size::UNBOUNDED, 0);
        assert!(
            lines[0].starts_with("UNHEALTHY ") && lines[0].contains("memory 1KiB of 4KiB"),
            "{}",
            lines[0]
        );
        // The cause and its consequences come before the table.
        assert_eq!(lines[1], "\x07bus retrying for 1m15s: refused");
        assert_eq!(lines[2], "\x07  so kept blocked: full");
        let lines = &lines[2..];
        assert!(lines[2].starts_with("\tNODE"), "{lines:?}");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(&lines[3]),
            [
                "a_source_with_a_long_name_0",
                "forward",
                "running",
                "10",
                "000",
                "976.5KiB",
                "1",
                "234"
            ]
        );
        assert_eq!(
            words(&lines[4]),
            [
                "bus", "kafka", "retrying", "10", "000", "976.5KiB", "2KiB", "3"
            ]
        );
    }

    #[test]
    fn the_table_fits_into_any_terminal_and_scrolls() {
        for (columns, rows) in [(80, 24), (200, 50), (60, 10), (40, 5)] {
            let size = Size { columns, rows };
            let lines = lines(100, size, 0);
            assert!(lines.len() <= rows, "{columns}x{rows}: {}", lines.len());
            let table = lines
                .iter()
                .skip(2)
                .filter(|line| !line.starts_with('\x07'));
            for line in table {
                let line = line.trim_start_matches('\t');
                assert!(width(line) <= columns.max(60), "{columns}: {line}");
            }
        }
        let size = Size {
            columns: 80,
            rows: 24,
        };
        let scrolled = lines(100, size, 90);
        assert!(
            scrolled.iter().any(|line| line.starts_with("bus")),
            "{scrolled:?}"
        );
        assert!(
            lines(100, size, 0)
                .iter()
                .any(|line| line.starts_with("... "))
        );
    }
}
