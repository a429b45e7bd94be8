//! The parts of a scenario: rows that are measured several times, and their goals.

use std::{collections::BTreeMap, f64::consts::PI};

use serde::Serialize;

use super::process::Usage;

/// One measurement of one row.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The records that passed through the program under test.
    pub records: u64,
    /// The size of these records in bytes, in the encoding in which they entered the program.
    pub bytes: u64,
    /// Seconds from the first byte to the end of the work.
    pub seconds: f64,
    /// The usage of the program under test alone.
    pub usage: Usage,
    /// The times from the write of a message to its ack, if they were measured.
    pub latency: Option<Latency>,
    /// The variant of the row that was measured, if it has several.
    pub variant: Option<String>,
    /// Why the measurement failed: an error of the load or of the program, or a defect of the output. `None` if it succeeded.
    pub wrong: Option<String>,
}

/// Times of single messages, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The 50th percentile.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub longest: f64,
}

impl Latency {
    /// Summarizes these times; `None` without times.
    pub fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let longest = *times.last()?;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Some(Self {
            mean: mean(times.iter().copied()),
            median: at(0.5),
            p99: at(0.99),
            longest,
        })
    }
}

impl Run {
    /// Records per CPU second of the program under test; 0 if its CPU time was not measured.
    pub fn per_cpu(&self) -> f64 {
        match self.usage.cpu_seconds {
            0.0 => 0.0,
            seconds => self.records as f64 / seconds,
        }
    }

    /// Records per second.
    pub fn per_second(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}

/// The figure by which two rows are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum By {
    /// Records per CPU-second.
    Cpu,
    /// Bytes per second of wall time.
    Wall,
}

/// A goal of a row: a minimum for rates, shares and evenness; a maximum for memory, CPU time and latency.
#[derive(Clone, Debug, Serialize)]
pub enum Goal {
    /// Records per CPU-second.
    PerCpu(f64),
    /// Bytes per second of wall time.
    Bytes(f64),
    /// Records per second of wall time.
    Records(f64),
    /// The figure of this row as a share of another row's figure in the same run.
    Share(f64, String, By),
    /// The records per CPU-second of the slowest variant, as a share of those of the fastest. The differences that noise explains
    /// are not counted (see `Row::variants`).
    Even(f64),
    /// Peak memory in bytes.
    Memory(u64),
    /// Peak memory in bytes beyond that of another row.
    MoreMemory(u64, String),
    /// CPU-seconds of the whole measurement.
    Cpu(f64),
    /// Median time to an ack, in seconds.
    Latency(f64),
    /// Mean and 99th percentile of the time to an ack, in seconds.
    Times(f64, f64),
}

/// The median; 0 without figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => figures[odd / 2],
        even => (figures[even / 2 - 1] + figures[even / 2]) / 2.0,
    }
}

fn mean(figures: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = figures.len().max(1) as f64;
    figures.sum::<f64>() / count
}

/// The unbiased variance; 0 if there are fewer than two figures.
fn variance(figures: &[f64]) -> f64 {
    let middle = mean(figures.iter().copied());
    let squares = figures.iter().map(|figure| (figure - middle).powi(2));
    squares.sum::<f64>() / (figures.len().max(2) - 1) as f64
}

/// Returns the share of the variance between groups, from 0 to 1, that noise within the groups does not explain. Returns 1 if each
/// group has only one figure, because the noise is unknown then.
fn real_differences<'a>(groups: impl ExactSizeIterator<Item = &'a [f64]> + Clone) -> f64 {
    let medians: Vec<f64> = groups.clone().map(|group| median(group.to_vec())).collect();
    let between = variance(&medians);
    // The variance of a median is pi / 2 times that of a mean.
    let of_median = |group: &[f64]| PI / 2.0 * variance(group) / group.len() as f64;
    match mean(groups.map(of_median)) {
        noise if between > 0.0 => (1.0 - noise / between).clamp(0.0, 1.0),
        _ => 1.0,
    }
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Unique in its scenario.
    pub name: String,
    /// Whether the row is a reference for other rows: its own speed is not judged.
    pub reference: bool,
    /// Its goals.
    pub goals: Vec<Goal>,
    /// The measurements.
    pub runs: Vec<Run>,
    /// Why a reference was not measured, if it is not available on this machine.
    pub missing: Option<String>,
}

impl Row {
    /// A row without measurements.
    pub fn new(name: impl Into<String>, reference: bool, goals: Vec<Goal>) -> Self {
        Self {
            name: name.into(),
            reference,
            goals,
            runs: Vec::new(),
            missing: None,
        }
    }

    /// The median of a figure; 0 without runs.
    pub fn median(&self, figure: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect())
    }

    /// The median of a latency figure. A run without latencies counts as `f64::MAX`, so that such a run cannot reach a goal.
    pub fn latency(&self, figure: impl Fn(&Latency) -> f64) -> f64 {
        self.median(|run| run.latency.as_ref().map_or(f64::MAX, &figure))
    }

    fn reached_share(&self, least: f64, other: &Self, by: By) -> Option<(String, bool)> {
        let figure = |run: &Run| match by {
            By::Cpu => run.per_cpu(),
            By::Wall => run.bytes as f64 / run.seconds,
        };
        if other.runs.is_empty() {
            return None;
        }
        // A row with several variants is only as good as its slowest variant.
        let (slowest, which) = self.variants(figure).first()?.clone();
        let share = slowest / other.median(figure);
        let words = format!(
            ">= {:.0} % of `{}`{}: {:.1} %{which}",
            least * 100.0,
            other.name,
            if by == By::Wall { " (wall)" } else { "" },
            share * 100.0
        );
        Some((words, share >= least))
    }

    fn reached_more_memory(&self, most: f64, other: &Self) -> (String, bool) {
        let peak = |row: &Self| row.median(|run| run.usage.rss_peak as f64);
        let more = peak(self) - peak(other);
        let words = format!(
            "< {:.0} MB more than `{}`: {:.0}",
            most / 1e6,
            other.name,
            more / 1e6
        );
        (words, !other.runs.is_empty() && more < most)
    }

    fn reached_times(&self, mean: f64, p99: f64) -> (String, bool) {
        let (means, p99s) = (self.latency(|of| of.mean), self.latency(|of| of.p99));
        let words = format!(
            "mean <= {:.2} ms: {:.3}, 99 % <= {:.1} ms: {:.3}",
            mean * 1e3,
            means * 1e3,
            p99 * 1e3,
            p99s * 1e3
        );
        (words, means <= mean && p99s <= p99)
    }

    /// Returns the figure of each variant with the variant's name, the smallest figure first.
    ///
    /// The figure is the median of the variant's runs, moved towards the mean of all variants (James and Stein, 1961). The larger
    /// the share of the differences that noise explains, the further the figure is moved. Without this correction, the slowest of
    /// 64 equal variants would measure 20 % below the fastest, only because it was disturbed most.
    fn variants(&self, figure: impl Fn(&Run) -> f64) -> Vec<(f64, String)> {
        let mut figures: BTreeMap<Option<&str>, Vec<f64>> = BTreeMap::new();
        for run in &self.runs {
            let of_variant = figures.entry(run.variant.as_deref()).or_default();
            of_variant.push(figure(run));
        }
        let words =
            |variant: Option<&str>| variant.map_or(String::new(), |name| format!(" with {name}"));
        let real = real_differences(figures.values().map(Vec::as_slice));
        let mut medians: Vec<(f64, String)> = figures
            .into_iter()
            .map(|(variant, figures)| (median(figures), words(variant)))
            .collect();
        let middle = mean(medians.iter().map(|(figure, _)| *figure));
        for (figure, _) in &mut medians {
            *figure = middle + (*figure - middle) * real;
        }
        medians.sort_by(|one, other| one.0.total_cmp(&other.0));
        medians
    }

    /// The result for a goal as text, and whether the goal is reached. `None` if this row has no measurements, or there is no row
    /// to compare it with.
    pub fn reached(&self, goal: &Goal, rows: &[Row]) -> Option<(String, bool)> {
        if self.runs.is_empty() {
            return None;
        }
        let mega = |figure: f64| figure / 1e6;
        Some(match goal {
            Goal::PerCpu(least) => {
                let figure = self.median(Run::per_cpu);
                let words = format!(">= {} M/CPU-s: {:.1}", mega(*least), mega(figure));
                (words, figure >= *least)
            }
            Goal::Bytes(least) => {
                let figure = self.median(|run| run.bytes as f64 / run.seconds);
                let words = format!(">= {:.0} MB/s: {:.0}", mega(*least), mega(figure));
                (words, figure >= *least)
            }
            Goal::Records(least) => {
                let figure = self.median(Run::per_second);
                let words = format!(">= {:.0} M/s: {:.1}", mega(*least), mega(figure));
                (words, figure >= *least)
            }
            Goal::Memory(most) => {
                let figure = self.median(|run| run.usage.rss_peak as f64);
                let words = format!("< {:.0} MB: {:.0}", mega(*most as f64), mega(figure));
                (words, figure < *most as f64)
            }
            Goal::MoreMemory(most, name) => {
                let other = rows.iter().find(|row| row.name == *name)?;
                self.reached_more_memory(*most as f64, other)
            }
            Goal::Cpu(most) => {
                let figure = self.median(|run| run.usage.cpu_seconds);
                let words = format!("<= {most:.2} CPU-s: {figure:.2}");
                (words, figure <= *most)
            }
            Goal::Latency(most) => {
                let figure = self.latency(|latency| latency.median);
                let words = format!("median <= {:.1} ms: {:.3}", most * 1e3, figure * 1e3);
                (words, figure <= *most)
            }
            Goal::Times(mean, p99) => self.reached_times(*mean, *p99),
            Goal::Share(least, name, by) => {
                let other = rows.iter().find(|row| row.name == *name)?;
                self.reached_share(*least, other, *by)?
            }
            Goal::Even(least) => {
                let variants = self.variants(Run::per_cpu);
                let ((slowest, which), (fastest, other)) = (variants.first()?, variants.last()?);
                let share = slowest / fastest;
                let words = format!(
                    "slowest >= {:.0} % of the fastest: {:.0} % ({:.1}{which}, {:.1}{other})",
                    least * 100.0,
                    share * 100.0,
                    mega(*slowest),
                    mega(*fastest)
                );
                (words, share >= *least)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, cpu: &[f64]) -> Row {
        let mut row = Row::new(name, false, Vec::new());
        row.runs = cpu
            .iter()
            .map(|cpu| Run {
                records: 1_000_000,
                bytes: 1_000_000,
                seconds: 1.0,
                usage: Usage {
                    cpu_seconds: *cpu,
                    ..Usage::default()
                },
                latency: None,
                variant: None,
                wrong: None,
            })
            .collect();
        row
    }

    #[test]
    fn goals_compare_medians() {
        let rows = [row("a", &[0.5, 5.0, 1.0]), row("b", &[2.0, 0.1, 2.5])];
        assert_eq!(rows[0].median(Run::per_cpu), 1e6);
        let met = |goal| rows[1].reached(&goal, &rows).map(|(_, met)| met);
        assert_eq!(met(Goal::PerCpu(0.5e6)), Some(true));
        assert_eq!(met(Goal::PerCpu(0.51e6)), Some(false));
        assert_eq!(met(Goal::Share(0.5, "a".into(), By::Cpu)), Some(true));
        assert_eq!(met(Goal::Share(0.6, "a".into(), By::Cpu)), Some(false));
        assert_eq!(met(Goal::Share(1.0, "a".into(), By::Wall)), Some(true));
        assert_eq!(met(Goal::Share(0.6, "c".into(), By::Cpu)), None);
    }

    #[test]
    fn times_of_messages_have_a_mean_and_percentiles() {
        let mut rows = [row("a", &[1.0])];
        assert!(Latency::of(Vec::new()).is_none());
        let latency = Latency::of((1..=1000).rev().map(f64::from).collect()).unwrap();
        assert_eq!(
            (latency.mean, latency.median, latency.p99, latency.longest),
            (500.5, 500.0, 990.0, 1000.0)
        );
        rows[0].runs[0].latency = Some(latency);
        let met = |goal| rows[0].reached(&goal, &rows).unwrap().1;
        assert!(met(Goal::Latency(500.0)) && !met(Goal::Latency(499.0)));
        assert!(met(Goal::Times(501.0, 990.0)));
        assert!(!met(Goal::Times(500.0, 990.0)) && !met(Goal::Times(501.0, 989.0)));
    }

    /// A row of variants, each with its CPU-seconds in several runs.
    fn swept(variants: &[(&str, [f64; 3])]) -> Row {
        let cpu: Vec<f64> = variants.iter().flat_map(|(_, cpu)| *cpu).collect();
        let mut row = row("swept", &cpu);
        for (at, run) in row.runs.iter_mut().enumerate() {
            run.variant = Some(variants[at / 3].0.to_owned());
        }
        row
    }

    #[test]
    fn a_row_of_several_variants_is_as_good_as_its_slowest() {
        let variants = [("a", [1.0, 1.001, 1.0]), ("b", [2.0, 2.001, 2.1])];
        let rows = [swept(&variants), row("bare", &[1.0])];
        let reached = |goal| rows[0].reached(&goal, &rows).unwrap();
        assert!(reached(Goal::Even(0.49)).1);
        let (words, met) = reached(Goal::Even(0.52));
        assert!(
            !met && words.ends_with("50 % (0.5 with b, 1.0 with a)"),
            "{words}"
        );
        let (words, met) = reached(Goal::Share(0.52, "bare".into(), By::Cpu));
        assert!(!met && words.ends_with("50.0 % with b"), "{words}");
    }

    #[test]
    fn noise_alone_makes_no_variant_slow() {
        let variants = [
            ("a", [1.0, 1.3, 0.9]),
            ("b", [1.2, 0.9, 1.1]),
            ("c", [0.9, 1.0, 1.3]),
            ("d", [1.3, 1.2, 0.9]),
        ];
        let rows = [swept(&variants)];
        let (words, met) = rows[0].reached(&Goal::Even(0.95), &rows).unwrap();
        assert!(met, "{words}");
    }
}
