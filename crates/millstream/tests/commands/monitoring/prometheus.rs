//! A real Prometheus scrapes the metrics.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{get, installed, send};
use crate::program::{Program, free_port, tree, wait_until};

/// The number of records that are sent.
const RECORDS: usize = 3000;

/// A running Prometheus. Killed when dropped.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes the interface on port `api` every second. It has the alert rules of `deploy`, changed so that
    /// they fire after a second.
    fn start(place: &Path, api: u16) -> Self {
        let port = free_port();
        let rules = fs::read_to_string(tree().join("deploy/prometheus-alerts.yaml")).unwrap();
        let quick = |line: &str| match line.trim_start().starts_with("for: ") {
            true => format!("{}for: 1s\n", &line[..line.find("for: ").unwrap()]),
            false => format!("{line}\n"),
        };
        let rules: String = rules.lines().map(quick).collect();
        fs::write(place.join("rules.yaml"), rules).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yaml]\n\
             scrape_configs:\n  - job_name: millstream\n    static_configs: [{{ targets: [\"127.0.0.1:{api}\"] }}]\n"
        );
        fs::write(place.join("prometheus.yaml"), config).unwrap();
        let log = fs::File::create(place.join("prometheus.log")).unwrap();
        let child = Command::new(installed("prometheus/usr/bin/prometheus"))
            .arg(format!(
                "--config.file={}",
                place.join("prometheus.yaml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                place.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, port }
    }

    /// The time series that an expression yields; panics if the expression cannot be evaluated.
    fn query(&self, expression: &str) -> Vec<Value> {
        let encode = |byte: u8| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        let query: String = expression.bytes().map(encode).collect();
        let answer = get(self.port, &format!("/api/v1/query?query={query}"), "*/*");
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The value of the first time series that an expression yields; `None` if it yields none.
    fn number(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        series.first()?["value"][1].as_str()?.parse().ok()
    }

    fn answers(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
            && get(self.port, "/-/ready", "*/*").contains("Ready")
    }

    /// The names of the alerts that fire.
    fn firing(&self) -> BTreeSet<String> {
        let series = self.query("ALERTS{alertstate=\"firing\"}");
        let name = |series: &Value| series["metric"]["alertname"].as_str().unwrap().to_owned();
        series.iter().map(name).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `promtool`; panics with its output if it fails.
fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new(installed("prometheus/usr/bin/promtool"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
}

/// The panels of the dashboard, and their expressions as Grafana sends them when all instances and nodes are selected.
fn expressions() -> Vec<(String, String)> {
    let text = fs::read_to_string(tree().join("deploy/grafana-prometheus.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let filled = expression
                .replace("$instance", ".*")
                .replace("$component", ".*")
                .replace("$__rate_interval", "10s");
            assert!(!filled.contains('$'), "{filled}");
            all.push((panel["title"].as_str().unwrap().to_owned(), filled));
        }
    }
    all
}

/// An expression that contains one of these words may have no series, because no fault has occurred or no node has this meter.
const MAY_BE_EMPTY: [&str; 6] = [
    "records_filtered",
    "records_dropped",
    "records_skipped",
    "records_rejected",
    "lag_bytes",
    "state!~",
];

/// A receiver of the forward protocol.
fn receiver(place: &Path, port: u16) -> Program {
    fs::create_dir_all(place).unwrap();
    let config = format!(
        "data_dir: {}/data\nthreads: 1\napi: {{ listen: [] }}\nsources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         sinks:\n  out: {{ type: discard, inputs: [in] }}\n",
        place.display()
    );
    Program::start(place, &config).listens(port)
}

#[test]
fn prometheus_has_the_counters_and_fires_alerts_during_a_fault_and_the_dashboard_has_data() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api, next) = (free_port(), free_port(), free_port());
    let config = format!(
        "data_dir: {0}/data\nthreads: 1\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [fleet], size_max: 64MiB }}\n\
         sinks:\n  next: {{ type: forward, inputs: [buffer], servers: \"127.0.0.1:{next}\", retry: {{ first: 100ms, max: 300ms }} }}\n  \
         copy: {{ type: file, inputs: [fleet], path: \"{0}/copy.log\" }}\n",
        place.display()
    );
    let program = Program::start(place, &config).listens(port);
    let prometheus = Prometheus::start(place, api);
    wait_until("Prometheus answers", || prometheus.answers());
    send(port, RECORDS);
    let sums = |node: &str, meter: &str| {
        prometheus.number(&format!("millstream_{meter}_total{{component=\"{node}\"}}"))
    };
    wait_until("the copy is there", || {
        sums("copy", "records_settled") == Some(RECORDS as f64)
    });
    // The destination of the sink `next` refuses connections.
    wait_until("the alerts fire", || {
        let firing = prometheus.firing();
        firing.contains("MillstreamNodeRetrying") && firing.contains("MillstreamUnhealthy")
    });
    assert!(!prometheus.firing().contains("MillstreamDown"));
    assert_eq!(sums("buffer", "records_received"), Some(RECORDS as f64));
    let backlog = prometheus.number("millstream_backlog_bytes{component=\"next\"}");
    assert!(backlog.unwrap() > 0.0);
    let age = prometheus.number("millstream_unsettled_age_seconds{component=\"next\"}");
    assert!(age.unwrap() > 0.0);

    let receiver = receiver(&place.join("receiver"), next);
    wait_until("the rest is delivered", || {
        sums("next", "records_delivered") == Some(RECORDS as f64)
    });
    wait_until("no alert fires", || prometheus.firing().is_empty());
    for meter in ["ack_seconds", "write_seconds", "end_to_end_seconds"] {
        let count = format!("sum(millstream_{meter}_count)");
        assert!(prometheus.number(&count).unwrap() > 0.0, "{meter}");
    }
    assert_eq!(prometheus.number("up"), Some(1.0));
    for (panel, expression) in expressions() {
        let series = prometheus.query(&expression);
        let may_be_empty =
            MAY_BE_EMPTY.iter().any(|part| expression.contains(part)) || panel == "Faults";
        assert!(
            may_be_empty || !series.is_empty(),
            "{panel}: nothing for {expression}"
        );
    }
    drop(receiver);

    program.kill();
    wait_until("it is down", || {
        prometheus.firing().contains("MillstreamDown")
    });
}

#[test]
fn promtool_accepts_the_rules_and_both_formats_of_the_page() {
    let rules = tree().join("deploy/prometheus-alerts.yaml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    // Each alert fires for its fault, and no alert fires for a healthy instance.
    let directory = tempfile::tempdir().unwrap();
    fs::copy(&rules, directory.path().join("prometheus-alerts.yaml")).unwrap();
    let tests = directory.path().join("alerts.yaml");
    fs::write(&tests, include_str!("alerts.yaml")).unwrap();
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
    let (port, api) = (free_port(), free_port());
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n  \
         web: {{ type: tail, paths: \"{0}/*.log\" }}\n\
         processors:\n  some: {{ type: fields, inputs: [fleet], remove: [.x] }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [some], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [buffer], path: \"{0}/out.txt\" }}\n  \
         other: {{ type: discard, inputs: [web] }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(port);
    send(port, 10);
    wait_until("every node has its meters", || {
        let page = get(api, "/metrics", "*/*");
        page.contains("millstream_bytes_written_total{component=\"out\"} ")
            && page.contains("millstream_records_settled_total{component=\"out\"} 10")
    });
    let classic = get(api, "/metrics", "*/*");
    promtool(&["check", "metrics"], &classic);
    assert!(!classic.contains("not part of Millstream"), "{classic}");
    let open = get(
        api,
        "/metrics",
        "application/openmetrics-text; version=1.0.0",
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    let names = |text: &str| -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let names = samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(names(&classic), names(&open));
    assert!(
        open.contains("# UNIT millstream_pool_used_bytes bytes\n"),
        "{open}"
    );
    assert!(open.contains("# TYPE millstream_config info\n"), "{open}");
    for name in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "millstream_build_info",
    ] {
        assert!(names(&classic).contains(name), "{classic}");
    }
    program.kill();
}
