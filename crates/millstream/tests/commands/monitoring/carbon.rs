//! Sends metrics to a real carbon, the receiver of Graphite.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{get, installed, send};
use crate::program::{Program, free_port, tree, wait_until};

/// A running carbon-cache, which writes its files immediately. Killed when dropped.
struct Carbon {
    child: Child,
    storage: PathBuf,
}

impl Carbon {
    fn start(place: &Path, port: u16) -> Self {
        let conf = place.join("conf");
        fs::create_dir_all(&conf).unwrap();
        let (pickle, query) = (free_port(), free_port());
        let config = format!(
            "[cache]\nSTORAGE_DIR = {0}/storage\nLOCAL_DATA_DIR = {0}/storage/whisper\nLOG_DIR = {0}/storage\nPID_DIR = {0}\n\
             LINE_RECEIVER_INTERFACE = 127.0.0.1\nLINE_RECEIVER_PORT = {port}\nPICKLE_RECEIVER_INTERFACE = 127.0.0.1\n\
             PICKLE_RECEIVER_PORT = {pickle}\nCACHE_QUERY_INTERFACE = 127.0.0.1\nCACHE_QUERY_PORT = {query}\n\
             MAX_CREATES_PER_MINUTE = inf\nMAX_UPDATES_PER_SECOND = inf\nENABLE_LOGROTATION = False\nUSER =\n",
            place.display()
        );
        fs::write(conf.join("carbon.conf"), config).unwrap();
        let schemas = "[all]\npattern = .*\nretentions = 1s:10m\n";
        fs::write(conf.join("storage-schemas.conf"), schemas).unwrap();
        let log = fs::File::create(place.join("carbon.log")).unwrap();
        let _ = fs::remove_file(place.join("carbon-cache-a.pid"));
        let child = Command::new(installed("carbon/venv/bin/python"))
            .arg(installed("carbon/venv/bin/carbon-cache.py"))
            .arg(format!("--config={}/carbon.conf", conf.display()))
            .args(["--nodaemon", "start"])
            .env("GRAPHITE_ROOT", place)
            .env("GRAPHITE_CONF_DIR", &conf)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let carbon = Self {
            child,
            storage: place.join("storage/whisper"),
        };
        wait_until("carbon listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        carbon
    }

    /// The last value of each path.
    fn last(&self) -> BTreeMap<String, f64> {
        let output = Command::new(installed("carbon/venv/bin/python"))
            .arg(installed("carbon/last.py"))
            .arg(&self.storage)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let pair = |line: &str| {
            let (path, number) = line.split_once(' ')?;
            Some((path.to_owned(), number.parse().ok()?))
        };
        text.lines().filter_map(pair).collect()
    }
}

impl Drop for Carbon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The paths that the dashboard asks for when all nodes are selected.
fn patterns() -> Vec<String> {
    let text = fs::read_to_string(tree().join("deploy/grafana-graphite.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let texts = targets.map(|target| target["target"].as_str().unwrap().replace("$node", "*"));
    let mut all = Vec::new();
    for text in texts {
        for part in text.split("$prefix.").skip(1) {
            let mut depth = 0;
            let end = part.find(|letter| {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                letter == ')' || (letter == ',' && depth == 0)
            });
            all.push(part[..end.unwrap_or(part.len())].to_owned());
        }
    }
    all
}

/// Whether a path matches a pattern of Graphite. `*` and `{a,b}` match exactly one part of the path.
fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<_>, Vec<_>) =
        (pattern.split('.').collect(), path.split('.').collect());
    let part = |(pattern, part): (&&str, &&str)| match pattern.strip_prefix('{') {
        Some(names) => names
            .trim_end_matches('}')
            .split(',')
            .any(|name| name == *part),
        None => *pattern == "*" || pattern == part,
    };
    pattern.len() == path.len() && pattern.iter().zip(&path).all(part)
}

#[test]
fn carbon_has_the_counters_before_and_after_it_was_down() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api, line) = (free_port(), free_port(), free_port());
    let carbon = Carbon::start(&place.join("carbon"), line);
    let config = format!(
        "data_dir: {0}/data\nthreads: 1\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         graphite: {{ endpoint: \"127.0.0.1:{line}\", prefix: fleet.one, interval: 1s }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [fleet], size_max: 64MiB }}\n\
         sinks:\n  kept: {{ type: file, inputs: [buffer], path: \"{0}/kept.log\" }}\n  \
         now: {{ type: discard, inputs: [fleet] }}\n",
        place.display()
    );
    let program = Program::start(place, &config).listens(port);
    send(port, 2000);
    let holds = |carbon: &Carbon, records: f64| {
        let last = carbon.last();
        ["kept", "now"].iter().all(|node| {
            last.get(&format!("fleet.one.node.{node}.records_settled")) == Some(&records)
        })
    };
    wait_until("carbon has the sums", || holds(&carbon, 2000.0));
    let (running, memory) = (
        "node.kept.node_state.running",
        "instance.process_resident_memory_bytes",
    );
    let mut missing = patterns();
    missing.extend([running.to_owned(), memory.to_owned()]);
    // Only a fault creates this path.
    missing.retain(|pattern| !pattern.contains("records_skipped"));
    let mut last = BTreeMap::new();
    // Carbon writes one file after the other.
    wait_until("carbon has all paths of the dashboard", || {
        last = carbon.last();
        let has = |pattern: &String| {
            let mut paths = last
                .keys()
                .filter_map(|path| path.strip_prefix("fleet.one."));
            paths.any(|path| matches(pattern, path))
        };
        missing.retain(|pattern| !has(pattern));
        println!("not there yet: {missing:?}");
        missing.is_empty()
    });
    assert_eq!(last[&format!("fleet.one.{running}")], 1.0);
    assert!(last[&format!("fleet.one.{memory}")] > 1e6);

    // While carbon is down, everything else works, and the log names the option with carbon's address.
    drop(carbon);
    send(port, 1000);
    wait_until("the records arrive without carbon", || {
        get(api, "/metrics", "*/*")
            .contains("millstream_records_settled_total{component=\"kept\"} 3000")
    });
    wait_until("the log says why", || {
        program.log().contains("graphite.endpoint")
    });
    assert!(get(api, "/health", "*/*").contains("\"healthy\":true"));
    let carbon = Carbon::start(&place.join("carbon"), line);
    wait_until("carbon has the new sums", || holds(&carbon, 3000.0));
    // The process sends its last report before it exits.
    send(port, 7);
    wait_until("the last records arrive", || {
        get(api, "/metrics", "*/*")
            .contains("millstream_records_settled_total{component=\"kept\"} 3007")
    });
    assert_eq!(program.stop(), Some(0));
    wait_until("carbon has the last sums", || holds(&carbon, 3007.0));
}
