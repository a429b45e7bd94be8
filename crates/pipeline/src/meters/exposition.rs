//! Writes metrics as Prometheus' text format, OpenMetrics, and Graphite's plaintext, all from the same families. A family is a metric
//! with all its samples.
//!
//! Families are built only when a page is requested, so the data path never touches them.

use std::fmt::Write;

use super::{
    histogram::{BOUNDS, Reading},
    known::{Kind, Unit},
};

/// The content type of [`prometheus`].
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The content type of [`openmetrics`].
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric with all its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The whole name, without `_total` and `_info`.
    pub name: String,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its numbers.
    pub samples: Vec<Sample>,
}

/// One number of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Labels with their values.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub number: Number,
}

/// A number as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Seconds and ratios.
    Real(f64),
    /// The buckets of a histogram.
    Buckets(Box<Reading>),
}

impl Family {
    /// A family without samples.
    pub fn new(name: impl Into<String>, kind: Kind, unit: Unit, help: &'static str) -> Self {
        Self {
            name: name.into(),
            help,
            kind,
            unit,
            samples: Vec::new(),
        }
    }

    /// Returns the family with one more sample.
    #[must_use]
    pub fn with(mut self, labels: Vec<(&'static str, String)>, number: Number) -> Self {
        self.samples.push(Sample { labels, number });
        self
    }

    /// The suffix of the names of the family's samples.
    fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }
}

/// Prometheus' text format, version 0.0.4.
pub fn prometheus(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let (name, end) = (&family.name, family.suffix());
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::Info => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(text, "# HELP {name}{end} {}", family.help);
        let _ = writeln!(text, "# TYPE {name}{end} {kind}");
        samples(family, &mut text);
    }
    text
}

/// OpenMetrics, version 1.0.0. A `UNIT` line appears only if the name ends in the unit, as the format demands.
pub fn openmetrics(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let name = &family.name;
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(text, "# TYPE {name} {kind}");
        let unit = family.unit.name();
        let is_named = name.strip_suffix(unit).is_some_and(|it| it.ends_with('_'));
        if !unit.is_empty() && is_named {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {}", family.help);
        samples(family, &mut text);
    }
    text.push_str("# EOF\n");
    text
}

fn samples(family: &Family, text: &mut String) {
    let name = &family.name;
    for Sample { labels, number } in &family.samples {
        match number {
            Number::Whole(number) => line(text, name, family.suffix(), labels, None, number),
            Number::Real(number) => line(text, name, family.suffix(), labels, None, number),
            Number::Buckets(reading) => {
                let mut sum = 0;
                for (at, count) in reading.counts.iter().enumerate() {
                    sum += count;
                    let bound = BOUNDS.get(at).map(|bound| bound.as_secs_f64());
                    let bound = bound.map_or_else(|| "+Inf".to_owned(), |it| format!("{it:?}"));
                    line(text, name, "_bucket", labels, Some(&bound), &sum);
                }
                line(text, name, "_sum", labels, None, &reading.sum.as_secs_f64());
                line(text, name, "_count", labels, None, &sum);
            }
        }
    }
}

/// Appends the line `NAME{LABEL="VALUE",...} NUMBER`. For a bucket, adds the label `le`, which holds the upper `bound` of the bucket.
fn line(
    text: &mut String,
    name: &str,
    end: &str,
    labels: &[(&'static str, String)],
    bound: Option<&str>,
    number: &dyn std::fmt::Display,
) {
    text.push_str(name);
    text.push_str(end);
    let all = labels.iter().map(|(label, value)| (*label, value.as_str()));
    let mut before = '{';
    for (label, value) in all.chain(bound.map(|bound| ("le", bound))) {
        text.push(before);
        before = ',';
        let _ = write!(text, "{label}=\"");
        escape(value, text);
        text.push('"');
    }
    if before == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {number}");
}

/// Appends a label's value with the escapes of the format. Control characters except the newline become `?`: the format has
/// no escape for them, and operators read metrics on terminals too.
fn escape(value: &str, text: &mut String) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other if other.is_control() => text.push('?'),
            other => text.push(other),
        }
    }
}

/// Graphite's plaintext: lines of the form `PATH NUMBER TIME`. The path is `PREFIX.node.COMPONENT.METRIC` for metrics of nodes and
/// `PREFIX.instance.METRIC` for all others, followed by the values of further labels. `millstream_` is removed from metric names,
/// because the prefix replaces it. A histogram yields its count, its sum, and for each bound the number of durations up to the bound.
pub fn graphite(families: &[Family], prefix: &str, seconds: i64) -> String {
    let mut text = String::new();
    for family in families {
        let name = family.name.strip_prefix("millstream_");
        let name = name.unwrap_or(&family.name);
        for sample in &family.samples {
            let mut path = prefix.to_owned();
            let is_node = sample.labels.first().is_some_and(|it| it.0 == "component");
            path.push_str(if is_node { ".node" } else { ".instance" });
            let (own, others) = sample.labels.split_at(usize::from(is_node));
            for (_, value) in own {
                path.push('.');
                part(value, &mut path);
            }
            path.push('.');
            path.push_str(name);
            if family.kind == Kind::Info {
                path.push_str("_info");
            }
            for (_, value) in others {
                path.push('.');
                part(value, &mut path);
            }
            match &sample.number {
                Number::Whole(number) => push(&mut text, &path, "", number, seconds),
                Number::Real(number) => push(&mut text, &path, "", number, seconds),
                Number::Buckets(reading) => buckets(&mut text, &path, reading, seconds),
            }
        }
    }
    text
}

fn push(text: &mut String, path: &str, end: &str, number: &dyn std::fmt::Display, seconds: i64) {
    let _ = writeln!(text, "{path}{end} {number} {seconds}");
}

fn buckets(text: &mut String, path: &str, reading: &Reading, seconds: i64) {
    let mut sum = 0;
    for (bound, count) in BOUNDS.iter().zip(reading.counts) {
        sum += count;
        let end = format!(".up_to_{}_ms", bound.as_millis());
        push(text, path, &end, &sum, seconds);
    }
    let all: u64 = reading.counts.iter().sum();
    push(text, path, ".count", &all, seconds);
    push(text, path, ".sum", &reading.sum.as_secs_f64(), seconds);
}

/// Appends one part of a path. Every character except ASCII letters, digits, `-` and `_` becomes `_`, so that a value never opens
/// another level and no value from a peer forges a line. An empty value becomes `_`.
fn part(value: &str, path: &mut String) {
    if value.is_empty() {
        path.push('_');
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    path.extend(value.chars().map(|it| if is_plain(it) { it } else { '_' }));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::meters::histogram::Histogram;

    fn families() -> Vec<Family> {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_millis(3));
        histogram.observe(Duration::from_secs(1000));
        let named = |value: &str| vec![("component", "web".to_owned()), ("path", value.to_owned())];
        let node = || vec![("component", "web".to_owned())];
        vec![
            Family::new(
                "millstream_records_sent",
                Kind::Counter,
                Unit::None,
                "Sent.",
            )
            .with(node(), Number::Whole(7)),
            Family::new("millstream_lag_bytes", Kind::Gauge, Unit::Bytes, "Lag.")
                .with(named("a\\b\"c\nd\u{1b}"), Number::Whole(7)),
            Family::new("millstream_build", Kind::Info, Unit::None, "The build.")
                .with(vec![("version", "1.2".to_owned())], Number::Whole(1)),
            Family::new(
                "millstream_ack_seconds",
                Kind::Histogram,
                Unit::Seconds,
                "Acks.",
            )
            .with(node(), Number::Buckets(Box::new(histogram.read()))),
            Family::new("process_open_fds", Kind::Gauge, Unit::None, "Files.")
                .with(Vec::new(), Number::Real(2.5)),
        ]
    }

    #[test]
    fn the_prometheus_format_has_help_and_type_under_the_name_of_the_samples() {
        let text = prometheus(&families());
        for line in [
            "# HELP millstream_records_sent_total Sent.",
            "# TYPE millstream_records_sent_total counter",
            "millstream_records_sent_total{component=\"web\"} 7",
            "# TYPE millstream_build_info gauge",
            "millstream_build_info{version=\"1.2\"} 1",
            "millstream_lag_bytes{component=\"web\",path=\"a\\\\b\\\"c\\nd?\"} 7",
            "millstream_ack_seconds_bucket{component=\"web\",le=\"0.001\"} 0",
            "millstream_ack_seconds_bucket{component=\"web\",le=\"0.005\"} 1",
            "millstream_ack_seconds_bucket{component=\"web\",le=\"1.0\"} 1",
            "millstream_ack_seconds_bucket{component=\"web\",le=\"+Inf\"} 2",
            "millstream_ack_seconds_sum{component=\"web\"} 1000.003",
            "millstream_ack_seconds_count{component=\"web\"} 2",
            "process_open_fds 2.5",
        ] {
            assert!(text.lines().any(|it| it == line), "no `{line}` in:\n{text}");
        }
        assert!(
            !text.contains("# EOF") && !text.contains("# UNIT"),
            "{text}"
        );
    }

    #[test]
    fn openmetrics_names_families_and_units_and_ends() {
        let text = openmetrics(&families());
        for line in [
            "# TYPE millstream_records_sent counter",
            "# HELP millstream_records_sent Sent.",
            "millstream_records_sent_total{component=\"web\"} 7",
            "# TYPE millstream_build info",
            "millstream_build_info{version=\"1.2\"} 1",
            "# UNIT millstream_lag_bytes bytes",
            "# UNIT millstream_ack_seconds seconds",
        ] {
            assert!(text.lines().any(|it| it == line), "no `{line}` in:\n{text}");
        }
        assert_eq!(text.matches("# UNIT").count(), 2, "{text}");
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }

    #[test]
    fn graphite_has_a_path_for_each_label_and_no_value_forges_a_line() {
        let text = graphite(&families(), "mill.host-1", 1_700_000_000);
        for line in [
            "mill.host-1.node.web.records_sent 7 1700000000",
            "mill.host-1.node.web.lag_bytes.a_b_c_d_ 7 1700000000",
            "mill.host-1.instance.build_info.1_2 1 1700000000",
            "mill.host-1.node.web.ack_seconds.up_to_5_ms 1 1700000000",
            "mill.host-1.node.web.ack_seconds.count 2 1700000000",
            "mill.host-1.node.web.ack_seconds.sum 1000.003 1700000000",
            "mill.host-1.instance.process_open_fds 2.5 1700000000",
        ] {
            assert!(text.lines().any(|it| it == line), "no `{line}` in:\n{text}");
        }
        let parts = text.lines().map(|line| line.split(' ').count());
        assert!(parts.into_iter().all(|parts| parts == 3), "{text}");
    }
}
