//! The table of a scenario, and its JSON.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    machine::Machine,
    scenario::{Latency, Row, Run},
};

/// The result of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the scenario.
    pub scenario: &'static str,
    /// The date in UTC.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// Seconds of sending per measurement.
    pub seconds: f64,
    /// Measurements per row.
    pub runs: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether all runs succeeded. A missed goal is not a failure.
    pub fn right(&self) -> bool {
        let mut runs = self.rows.iter().flat_map(|row| &row.runs);
        runs.all(|run| run.wrong.is_none())
    }

    /// The table, followed by the goals and the figures reached.
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut out = format!(
            "{} on {}: {}{}, {} cores, {:.0} GB, {}, load {:.1} at the start\n\
             medians of {} runs; 122-byte records in chunks of 8192 (files: 100-byte lines, syslog: 300-byte messages); every sender's SO_SNDBUF 128 KiB unless it says own, congestion control cubic;\n\
             memory cold unless it says warm; CPU-seconds of the program under test alone\n\n",
            self.scenario,
            self.date,
            machine.cpu,
            machine.model_text(),
            machine.cores,
            machine.memory as f64 / 1e9,
            machine.kernel,
            machine.load,
            self.runs,
        );
        out += &format!(
            "{:<54}{:>9}{:>9}{:>8}{:>7}{:>10}{:>10}{:>7}\n",
            "", "M/CPU-s", "M/s", "MB/s", "cores", "sleeps/s", "faults/s", "MB"
        );
        for row in self.rows.iter().filter(|row| !row.runs.is_empty()) {
            out += &line(row);
        }
        out.push('\n');
        for row in &self.rows {
            if row.runs.iter().any(|run| run.latency.is_some()) {
                let micros = |figure: fn(&Latency) -> f64| row.latency(figure) * 1e6;
                out += &format!(
                    "{}: mean {:.0} us, median {:.0} us, 99 % {:.0} us, longest {:.0} us\n",
                    row.name,
                    micros(|latency| latency.mean),
                    micros(|latency| latency.median),
                    micros(|latency| latency.p99),
                    micros(|latency| latency.longest)
                );
            }
        }
        for row in &self.rows {
            if let Some(why) = &row.missing {
                out += &format!("MISSING  {}: {why}\n", row.name);
            }
            for goal in &row.goals {
                if let Some((words, met)) = row.reached(goal, &self.rows) {
                    let verdict = if met { "reached" } else { "MISSED " };
                    out += &format!("{verdict}  {}: {words}\n", row.name);
                }
            }
            for run in &row.runs {
                if let Some(wrong) = &run.wrong {
                    out += &format!("WRONG    {}: {wrong}\n", row.name);
                }
            }
        }
        out
    }

    /// Writes the JSON and the table. Scenarios that run on the same day and machine share a directory.
    pub fn save(&self, results: &Path) -> io::Result<PathBuf> {
        let directory = results.join(format!("{}-{}", self.date, self.machine.name()));
        fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{}.json", self.scenario));
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(&path, text)?;
        fs::write(path.with_extension("txt"), self.text())?;
        Ok(path)
    }
}

fn line(row: &Row) -> String {
    let mega = |figure: fn(&Run) -> f64| row.median(figure) / 1e6;
    let rate = |figure: fn(&Run) -> u64| row.median(|run| figure(run) as f64 / run.seconds);
    // A row that measures the latency of single messages, or that sends no records, has no meaningful rate.
    let idle = |run: &Run| run.latency.is_some() || run.records == 0;
    let rated = |figure: f64, digits: usize| match row.runs.iter().any(idle) {
        true => String::new(),
        false => format!("{figure:.digits$}"),
    };
    let memory = mega(|run| run.usage.rss_peak as f64);
    let known = |text: String| if memory > 0.0 { text } else { String::new() };
    format!(
        "{:<54}{:>9}{:>9}{:>8}{:>7.2}{:>10}{:>10}{:>7}\n",
        row.name,
        rated(mega(Run::per_cpu), 1),
        rated(mega(Run::per_second), 1),
        rated(mega(|run| run.bytes as f64 / run.seconds), 0),
        row.median(|run| run.usage.cpu_seconds / run.seconds),
        known(format!("{:.0}", rate(|run| run.usage.switches))),
        known(format!("{:.0}", rate(|run| run.usage.faults))),
        known(format!("{memory:.0}"))
    )
}
