//! The verifier's report: a table, JSON, or the format of Flume's integrity report.

use std::ops::Range;

use serde::Serialize;

use super::read::CorruptLine;
use crate::units::bytes_text;

/// The maximum number of missing ranges that are listed for each flow. `missing_ranges` counts all of them.
const RANGES_MAX: usize = 1000;
/// The maximum number of missing ranges in the table.
const RANGES_SHOWN: usize = 5;

/// The source of the number of sent records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The flow's end record arrived.
    EndRecord,
    /// The generator's ledger. The end record was acknowledged, so the ledger has the final number.
    Ledger,
    /// The generator's ledger. The end record was not acknowledged, so only the acknowledged records are expected to have arrived.
    Acknowledged,
    /// The option `--sent`.
    Given,
    /// There is no source. Gaps below the highest number are counted, but lost records at the end cannot be detected.
    Unknown,
}

/// The report about one flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    /// The flow's name: `run.flow`.
    pub flow: String,
    /// Data records sent, if known.
    pub sent: Option<u64>,
    /// The source of `sent`.
    pub basis: Basis,
    /// Data records read.
    pub received: u64,
    /// Data records read, each counted once.
    pub distinct: u64,
    /// Records that were sent (or acknowledged) and did not arrive.
    pub lost: u64,
    /// How often a data record arrived again.
    pub duplicated: u64,
    /// Records that first arrived after a record with a higher number in the same file.
    pub reordered: u64,
    /// Numbers that were never sent, and end records that contradict each other.
    pub impossible: u64,
    /// End records read.
    pub end_records: u64,
    /// The number of missing ranges.
    pub missing_ranges: usize,
    /// The first missing ranges: first and last number.
    pub missing: Vec<[u64; 2]>,
}

impl FlowReport {
    /// Sets `lost`, `missing_ranges` and `missing`.
    pub fn set_missing(&mut self, ranges: &[Range<u64>]) {
        self.lost = ranges.iter().map(|range| range.end - range.start).sum();
        self.missing_ranges = ranges.len();
        let pairs = ranges.iter().take(RANGES_MAX);
        self.missing = pairs.map(|range| [range.start, range.end - 1]).collect();
    }
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether there are no defects, or only defects that `--allow` names.
    pub right: bool,
    /// The defects in words.
    pub wrong: Vec<String>,
    /// The reports by flow.
    pub flows: Vec<FlowReport>,
    /// Lines without a whole record.
    pub corrupt: u64,
    /// The first corrupt lines.
    pub corrupt_lines: Vec<CorruptLine>,
    /// Records of other runs, skipped because of `--run`.
    pub other_runs: u64,
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The duration of the verification in seconds.
    pub seconds: f64,
}

impl Report {
    /// A sum over the flows.
    pub fn sum(&self, what: fn(&FlowReport) -> u64) -> u64 {
        self.flows.iter().map(what).sum()
    }

    /// Formats the report as a table.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:<14}{:>14}{:>14}{:>14}{:>10}{:>11}{:>10}\n",
            "flow", "sent", "received", "distinct", "lost", "duplicated", "reordered"
        );
        let mut row = |name: &str, sent: Option<u64>, basis: &str, figures: [u64; 5]| {
            let sent = sent.map_or("?".to_owned(), |sent| format!("{basis}{sent}"));
            let [received, distinct, lost, duplicated, reordered] = figures;
            out += &format!(
                "{name:<14}{sent:>14}{received:>14}{distinct:>14}{lost:>10}{duplicated:>11}{reordered:>10}\n"
            );
        };
        for flow in &self.flows {
            let basis = match flow.basis {
                Basis::Acknowledged => ">=",
                _ => "",
            };
            row(&flow.flow, flow.sent, basis, flow.figures());
        }
        if self.flows.len() > 1 {
            let known = self.flows.iter().map(|flow| flow.sent).sum::<Option<u64>>();
            let figure = |at: usize| self.flows.iter().map(|flow| flow.figures()[at]).sum();
            row("all", known, "", std::array::from_fn(figure));
        }
        for flow in self.flows.iter().filter(|flow| flow.missing_ranges > 0) {
            out += &format!("missing of {}: {}\n", flow.flow, flow.ranges_text());
        }
        for line in &self.corrupt_lines {
            out += &format!(
                "corrupt: {}:{}: {}: {:?}\n",
                line.path.display(),
                line.line,
                line.reason,
                line.text
            );
        }
        out += &format!(
            "{} corrupt lines; {} in {} files read in {:.2} s ({}/s)\n",
            self.corrupt,
            bytes_text(self.bytes as f64),
            self.files,
            self.seconds,
            bytes_text(self.bytes as f64 / self.seconds.max(1e-9))
        );
        match self.wrong.is_empty() {
            true => out += "all right\n",
            false => out += &format!("WRONG: {}\n", self.wrong.join("; ")),
        }
        out
    }

    /// Formats the report like flume-load-gen's summary. INFO and WARNING lines have the meaning that they have in flume-load-gen;
    /// `total` includes repeats. The ERROR lines name defects that flume-load-gen cannot detect.
    pub fn flume(&self) -> String {
        let mut out = String::new();
        for flow in &self.flows {
            let name = match flow.flow.split_once('.') {
                Some((run, flow)) => {
                    let number = u16::from_str_radix(flow, 16).unwrap_or(0);
                    format!("{run}/hammer-{number}")
                }
                None => flow.flow.clone(),
            };
            if flow.lost > 0 {
                out += &format!(
                    "ERROR: {name}: dropped: {} ({})\n",
                    flow.lost,
                    flow.ranges_text()
                );
            }
            if flow.basis == Basis::Unknown {
                out += &format!("ERROR: {name}: no end record\n");
            }
            if flow.impossible > 0 {
                out += &format!("ERROR: {name}: impossible: {}\n", flow.impossible);
            }
            if flow.duplicated > 0 {
                out += &format!("WARNING: {name}: dups: {}\n", flow.duplicated);
            }
            if flow.reordered > 0 {
                out += &format!("WARNING: {name}: reordered: {}\n", flow.reordered);
            }
            let good = flow.lost == 0 && flow.basis != Basis::Unknown && flow.impossible == 0;
            let verdict = if good { "OK" } else { "NOT OK" };
            out += &format!("INFO: {name}: total={} is {verdict}\n", flow.received);
        }
        if self.corrupt > 0 {
            out += &format!("ERROR: corrupt: {}\n", self.corrupt);
        }
        out += &format!("INFO: grand total={}\n", self.sum(|flow| flow.received));
        out
    }
}

impl FlowReport {
    fn figures(&self) -> [u64; 5] {
        [
            self.received,
            self.distinct,
            self.lost,
            self.duplicated,
            self.reordered,
        ]
    }

    fn ranges_text(&self) -> String {
        let shown = self.missing.iter().take(RANGES_SHOWN);
        let mut words: Vec<String> = shown
            .map(|[first, last]| match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            })
            .collect();
        if self.missing_ranges > RANGES_SHOWN {
            words.push(format!(
                "and {} more ranges",
                self.missing_ranges - RANGES_SHOWN
            ));
        }
        words.join(", ")
    }
}
