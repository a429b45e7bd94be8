//! The sink `syslog` with third-party servers: rsyslog receives every message with all its parts over TCP, UDP and TLS;
//! a second Millstream gets the records that the first one read, field for field; and a killed server loses no
//! more than the sink reports.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::peers::syslog_daemons::{certificates, feed, rsyslogd};
use crate::program::{Program, free_port, wait_until};
use serde_json::{Value, json};

/// Messages per run.
const MESSAGES: usize = 500;
const TIME: &str = "2026-11-20T06:40:30.123456";

fn text(n: usize) -> String {
    format!("message {n} of \"ünïcödé\" 漢字 [x=1] <13> a\\b: 100%")
}

fn message(n: usize) -> String {
    let priority = 8 + n % 8;
    let structured = format!("[x@1 k=\"v\\\"{n}\"][y@1]");
    format!(
        "<{priority}>1 {TIME}Z web-1 app 77 ID{n} {structured} {}\n",
        text(n)
    )
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may still be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

fn number(text: &Value) -> usize {
    let text = text.as_str().unwrap();
    text.trim_start()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Waits until a file of JSON lines holds all messages. Returns them sorted by number, because datagrams may overtake each other.
fn all(path: &Path, field: &str, program: &Program) -> Vec<Value> {
    let start = Instant::now();
    while lines(path).len() < MESSAGES {
        let (came, log) = (lines(path).len(), program.log());
        assert!(
            start.elapsed().as_secs() < 60,
            "{path:?}: {came} came; the log:\n{log}"
        );
        sleep(Duration::from_millis(50));
    }
    let mut all = lines(path);
    assert_eq!(all.len(), MESSAGES, "{path:?}");
    all.sort_by_key(|record| number(&record[field]));
    all
}

/// Starts a relay: a Millstream that reads syslog on `port`, stores it in a disk channel, and sends it through these sinks.
fn relay(directory: &Path, port: u16, sinks: &[(&str, String)]) -> Program {
    let directory = directory.join("relay");
    fs::create_dir_all(&directory).unwrap();
    let mut config = format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: syslog, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\nsinks:\n",
        directory.display()
    );
    for (name, options) in sinks {
        config += &format!("  {name}: {{ type: syslog, inputs: [kept], {options} }}\n");
    }
    Program::start(&directory, &config).listens(port)
}

/// Asserts that `got` is what rsyslog writes for message `n`. `name` is the transport.
fn compare(name: &str, n: usize, got: &Value) {
    let mut wanted = json!({
        "msg": text(n),
        "hostname": "web-1",
        "pri": (8 + n % 8).to_string(),
        "app-name": "app",
        "procid": "77",
        "msgid": format!("ID{n}"),
        "structured-data": format!("[x@1 k=\"v\\\"{n}\"][y@1]"),
    });
    if name == "old" {
        // The older format has neither a message id nor structured data. rsyslog's text begins with the space after the colon.
        wanted["msg"] = format!(" {}", text(n)).into();
        wanted["msgid"] = "-".into();
        wanted["structured-data"] = "-".into();
    } else {
        let time = got["timereported"].as_str().unwrap();
        assert!(time.starts_with(TIME), "{name}: {time}");
    }
    for (field, wanted) in wanted.as_object().unwrap() {
        assert_eq!(&got[field], wanted, "{name}, message {n}, {field}");
    }
}

#[test]
fn rsyslog_receives_every_message_with_all_its_parts() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let own = certificates(place);
    let own = own.display();
    let [tcp, lined, old, udp, tls, input] = [(); 6].map(|()| free_port());
    let file = |name: &str| place.join(format!("{name}.json"));
    let ruleset = |name: &str| {
        let path = file(name);
        format!(
            "ruleset(name=\"{name}\") {{ action(type=\"omfile\" file=\"{}\" template=\"all\") }}\n",
            path.display()
        )
    };
    let input_of = |kind: &str, port: u16, name: &str| {
        format!("input(type=\"{kind}\" address=\"127.0.0.1\" port=\"{port}\" ruleset=\"{name}\")\n")
    };
    let config = [
        format!(
            "global(workDirectory=\"{}\" defaultNetstreamDriverCAFile=\"{own}/ca.pem\" \
             defaultNetstreamDriverCertFile=\"{own}/server.pem\" defaultNetstreamDriverKeyFile=\"{own}/server.key\")\n\
             module(load=\"imptcp\")\nmodule(load=\"imudp\")\n\
             module(load=\"imtcp\" streamDriver.name=\"gtls\" streamDriver.mode=\"1\" streamDriver.authMode=\"x509/certvalid\")\n\
             template(name=\"all\" type=\"list\") {{ property(name=\"jsonmesg\") constant(value=\"\\n\") }}\n",
            place.display()
        ),
        ["tcp", "lines", "old", "udp", "tls"].map(ruleset).concat(),
        input_of("imptcp", tcp, "tcp"),
        input_of("imptcp", lined, "lines"),
        input_of("imptcp", old, "old"),
        input_of("imudp", udp, "udp").replace("port=", "rcvbufSize=\"8m\" port="),
        input_of("imtcp", tls, "tls").replace("address=\"127.0.0.1\" ", ""),
    ];
    let daemon = rsyslogd(place, &config.concat(), tcp);
    let sinks = [
        ("tcp", format!("url: \"tcp://127.0.0.1:{tcp}\"")),
        (
            "lines",
            format!("url: \"tcp://127.0.0.1:{lined}\", framing: lines"),
        ),
        (
            "old",
            format!("url: \"tcp://127.0.0.1:{old}\", protocol: rfc3164"),
        ),
        ("udp", format!("url: \"udp://127.0.0.1:{udp}\"")),
        (
            "tls",
            format!(
                "url: \"tcp://localhost:{tls}\", tls: {{ ca: {own}/ca.pem, cert: {own}/client.pem, key: {own}/client.key }}"
            ),
        ),
    ];
    let program = relay(place, input, &sinks);
    feed(input, (0..MESSAGES).map(message));
    for name in ["tcp", "lines", "udp", "tls", "old"] {
        let all = all(&file(name), "msg", &program);
        for (n, got) in all.into_iter().enumerate() {
            compare(name, n, &got);
        }
    }
    assert_eq!(program.stop(), Some(0));
    drop(daemon);
}

/// Starts a Millstream that reads syslog into a file of JSON lines. Returns the program and the path of the file.
fn receiver(directory: &Path, url: &str, port: u16, more: &str) -> (Program, PathBuf) {
    fs::create_dir_all(directory).unwrap();
    let out = directory.join("out.json");
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: syslog, listen: [\"{url}\", \"tcp://127.0.0.1:{port}\"]{more} }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{1}\" }}\n",
        directory.display(),
        out.display()
    );
    (Program::start(directory, &config).listens(port), out)
}

#[test]
fn a_relay_changes_no_field_over_any_transport() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let own = certificates(place);
    let own = own.display();
    let tls = format!(", tls: {{ cert: {own}/server.pem, key: {own}/server.key }}");
    let input = free_port();
    let plain = format!("tcp://127.0.0.1:{}", free_port());
    let ways = [
        (
            "stream",
            format!("unix://{}/stream.sock", place.display()),
            String::new(),
        ),
        (
            "datagram",
            format!("unixgram://{}/datagram.sock", place.display()),
            String::new(),
        ),
        ("plain", plain, String::new()),
        ("secure", format!("tcp://127.0.0.1:{}", free_port()), tls),
    ];
    let mut receivers = Vec::new();
    let mut sinks = Vec::new();
    for (name, url, tls) in &ways {
        let (program, out) = receiver(&place.join(name), url, free_port(), tls);
        receivers.push((*name, program, out));
        let tls = if tls.is_empty() {
            String::new()
        } else {
            format!(", tls: {{ ca: {own}/ca.pem }}")
        };
        sinks.push((*name, format!("url: \"{url}\"{tls}")));
    }
    let program = relay(place, input, &sinks);
    feed(input, (0..MESSAGES).map(message));
    for (name, receiver, out) in receivers {
        for (n, got) in all(&out, "message", &program).into_iter().enumerate() {
            let severity = [
                "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
            ][n % 8];
            let wanted = json!({
                "time": format!("{TIME}000Z"),
                "facility": "user",
                "severity": severity,
                "host": "web-1",
                "app": "app",
                "procid": "77",
                "msgid": format!("ID{n}"),
                "structured_data": {"x@1": {"k": format!("v\"{n}")}, "y@1": {}},
                "message": text(n),
            });
            assert_eq!(got, wanted, "{name}, message {n}");
        }
        assert_eq!(receiver.stop(), Some(0));
    }
    assert_eq!(program.stop(), Some(0));
}

/// The number of records that the log reports as possibly lost: those that were not acknowledged, and those in doubt before them.
fn told(log: &str) -> u64 {
    let number = |text: &str, before: &str, after: &str| -> u64 {
        let (_, rest) = text.split_once(before).unwrap();
        rest.split_once(after).unwrap().0.trim().parse().unwrap()
    };
    let lines = log
        .lines()
        .filter(|line| line.contains("system has not acknowledged"));
    lines
        .map(|line| {
            number(line, "has not acknowledged ", " records")
                + number(line, "up to ", " before them")
        })
        .sum()
}

#[test]
fn a_killed_server_loses_no_more_than_the_sink_reports() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, input) = (free_port(), free_port());
    // The sink cannot know about messages that the server has read and not yet written when the server is killed. So this server
    // writes each message immediately.
    let config = format!(
        "global(workDirectory=\"{0}\")\nmain_queue(queue.type=\"direct\")\nmodule(load=\"imptcp\" threads=\"1\")\n\
         template(name=\"text\" type=\"string\" string=\"%msg%\\n\")\n\
         input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{port}\")\n\
         action(type=\"omfile\" file=\"{0}/out\" template=\"text\" asyncWriting=\"off\" flushOnTXEnd=\"on\")\n",
        place.display()
    );
    let daemon = rsyslogd(place, &config, port);
    let program = relay(
        place,
        input,
        &[("on", format!("url: \"tcp://127.0.0.1:{port}\""))],
    );
    let records = 100_000;
    let feeder = std::thread::spawn(move || {
        let text = |n| format!("<13>1 - h a - - - number {n} {}\n", "x".repeat(200));
        feed(input, (0..records).map(text));
    });
    let out = place.join("out");
    let size = || fs::metadata(&out).map_or(0, |found| found.len());
    wait_until("some messages have arrived", || size() > 2 << 20);
    drop(daemon);
    feeder.join().unwrap();
    let daemon = rsyslogd(place, &config, port);
    let arrived = || {
        let text = fs::read(&out).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        let numbers = text
            .lines()
            .filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
        numbers.collect::<std::collections::BTreeSet<_>>()
    };
    wait_until("the last message has arrived", || {
        arrived().contains(&(records as u64 - 1))
    });
    assert_eq!(program.stop(), Some(0));
    drop(daemon);
    let lost = records as u64 - arrived().len() as u64;
    let log = fs::read_to_string(place.join("relay/log")).unwrap();
    let told = told(&log);
    println!("{lost} of {records} were lost, up to {told} were reported");
    assert!(
        told >= lost,
        "{lost} are lost, {told} were reported:\n{log}"
    );
}
