//! The formats that the sink writes, and authentication.

use std::{fs, net::TcpStream, path::Path, process::Command};

use millstream_testkit::{
    Authority,
    server::kafka::{Broker, Listeners, USER},
};

use crate::program::{self, Program, free_port, wait_until};

/// Runs a file of lines through these sinks, and returns the log.
fn run_once(directory: &Path, lines: &str, sinks: &str) -> String {
    fs::write(directory.join("in.log"), lines).unwrap();
    let place = directory.display();
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\nhost: here\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/in.log\"], tag: web.a }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n{sinks}"
    );
    let program = Program::start_with(directory, &config, &["--once"]);
    let log = directory.join("log");
    let code = program.ended();
    let log = fs::read_to_string(log).unwrap();
    // A job that leaves rejected records exits with 1.
    let left = directory.join("data/rejected").exists();
    assert_eq!(code, Some(i32::from(left)), "{log}");
    log
}

#[test]
fn every_format_and_compression_is_read_by_kcat_and_java() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    let address = broker.address();
    let sink = |name: &str, more: &str| {
        format!("  {name}: {{ type: kafka, inputs: [kept], brokers: [\"{address}\"], {more} }}\n")
    };
    let sinks = [
        sink(
            "json",
            "topic: t.json, compression: gzip, key: \"{host}\", headers: { tag: \"{tag}\", n: \"1\" }",
        ),
        sink("raw", "topic: t.raw, format: raw, compression: snappy"),
        sink(
            "msgpack",
            "topic: t.msgpack, format: msgpack, compression: lz4",
        ),
        sink(
            "template",
            "topic: \"t.{tag}\", format: template, template: \"<{.message}>\", compression: zstd",
        ),
        sink("schemas", "topic: t.schemas, format: connect"),
        sink("plain", "topic: t.plain, format: connect, schemas: false"),
        sink("refused", "topic: \"t/{tag}\""),
    ];
    run_once(directory.path(), "one\ntwo\n", &sinks.concat());

    let json = broker.read_with_kcat("t.json", "%k|%h|%T|%s\n");
    let lines: Vec<&str> = json.lines().collect();
    assert_eq!(lines.len(), 2, "{json}");
    let parts: Vec<&str> = lines[0].split('|').collect();
    assert_eq!(&parts[..2], ["here", "tag=web.a,n=1"]);
    let record: serde_json::Value = serde_json::from_str(parts[3]).unwrap();
    assert_eq!(record["message"], "one");
    // Kafka's timestamp is the record's time, to the millisecond.
    let time = record["time"].as_str().unwrap();
    let time: jiff::Timestamp = time.parse().unwrap();
    assert_eq!(time.as_millisecond().to_string(), parts[2]);

    assert_eq!(
        broker.read_with_kcat("t.raw", "%s;%K\n"),
        "one;-1\ntwo;-1\n"
    );
    assert_eq!(broker.read_with_kcat("t.web.a", "%s\n"), "<one>\n<two>\n");
    let msgpack = broker.read_with_kcat("t.msgpack", "%S %s\n");
    assert!(
        msgpack.contains("message") && msgpack.contains("two"),
        "{msgpack}"
    );
    let plain = broker.read_with_java("t.plain", 2, &["print.key=true"]);
    assert_eq!(
        plain,
        "null\t{\"message\":\"one\"}\nnull\t{\"message\":\"two\"}\n"
    );
    let schemas = broker.read_with_java("t.schemas", 2, &["print.key=true"]);
    let first = schemas.lines().next().unwrap();
    assert_eq!(
        first,
        concat!(
            r#"{"schema":{"type":"string","optional":false},"payload":"web.a"}"#,
            "\t",
            r#"{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"message"}],"#,
            r#""optional":false,"name":"t.schemas"},"payload":{"message":"one"}}"#,
        )
    );
    // Names of Kafka topics cannot contain a slash, so the records of the sink `refused` are rejected.
    let rejected = fs::read(directory.path().join("data/rejected/refused.msgpack")).unwrap();
    let rejected = String::from_utf8_lossy(&rejected).into_owned();
    assert!(
        rejected.contains("one") && rejected.contains("is not a topic name"),
        "{rejected}"
    );
}

/// Sends a message of the forward protocol with a chunk id, and waits for its ack.
fn forward(port: u16, tag: &str, seconds: u64, record: rmpv::Value) {
    let option = rmpv::Value::Map(vec![("chunk".into(), format!("{tag} {seconds}").into())]);
    let message = rmpv::Value::Array(vec![tag.into(), seconds.into(), record, option]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(program::PATIENCE)).unwrap();
    rmpv::encode::write_value(&mut stream, &message).unwrap();
    let ack = rmpv::decode::read_value(&mut stream).unwrap();
    assert_eq!(ack["ack"], format!("{tag} {seconds}").into());
}

/// Sends records that kafka-connect-fluentd accepts, and records that stop it: a bad topic name, an integer that no Connect type
/// can hold, an array of mixed types, and an empty array, whose type is unknown.
fn send_good_and_bad(port: u16) {
    let map = |fields: Vec<(&str, rmpv::Value)>| {
        rmpv::Value::Map(fields.into_iter().map(|(k, v)| (k.into(), v)).collect())
    };
    let list = |values: Vec<rmpv::Value>| rmpv::Value::Array(values);
    let whole = map(vec![
        ("s", "x".into()),
        ("i", 5.into()),
        ("l", list(vec![1.into()])),
        ("n", rmpv::Value::Nil),
    ]);
    let mixed = list(vec![1.into(), "a".into()]);
    forward(port, "tg.a", 1_700_000_000, whole);
    forward(port, "bad/tag", 1, map(vec![("lost", 1.into())]));
    forward(port, "tg.a", 2, map(vec![("large", u64::MAX.into())]));
    forward(port, "tg.a", 3, map(vec![("mixed", mixed)]));
    forward(port, "tg.a", 4, map(vec![("empty", list(Vec::new()))]));
    forward(port, "tg.a", 5, map(vec![("last", true.into())]));
}

#[test]
fn records_that_stop_kafka_connect_fluentd_are_rejected_and_the_others_arrive_as_it_writes_them() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    let (address, port, place) = (broker.address(), free_port(), directory.path().display());
    let sink = format!("type: kafka, inputs: [kept], brokers: [\"{address}\"], format: connect");
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  with: {{ {sink}, topic: \"{{tag}}\" }}\n\
         \x20 without: {{ {sink}, topic: \"{{tag}}.plain\", schemas: false }}\n"
    );
    let program = Program::start(directory.path(), &config).listens(port);
    send_good_and_bad(port);
    wait_until("both topics have their last record", || {
        ["tg.a", "tg.a.plain"]
            .iter()
            .all(|topic| text_of(&broker, topic).contains("\"last\""))
    });
    assert_eq!(program.stop(), Some(0));
    let key = r#"{"schema":{"type":"string","optional":false},"payload":"tg.a"}"#;
    let first = concat!(
        r#"{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"i"},"#,
        r#"{"type":"array","items":{"type":"int64","optional":false},"optional":false,"field":"l"},"#,
        r#"{"type":"string","optional":true,"field":"n"},{"type":"string","optional":false,"field":"s"}],"#,
        r#""optional":false,"name":"tg.a"},"payload":{"i":5,"l":[1],"n":null,"s":"x"}}"#,
    );
    let last = concat!(
        r#"{"schema":{"type":"struct","fields":[{"type":"boolean","optional":false,"field":"last"}],"#,
        r#""optional":false,"name":"tg.a"},"payload":{"last":true}}"#,
    );
    assert_eq!(
        broker.read_with_java("tg.a", 2, &["print.key=true", "print.timestamp=true"]),
        format!("CreateTime:1700000000000\t{key}\t{first}\nCreateTime:5000\t{key}\t{last}\n")
    );
    assert_eq!(
        broker.read_with_java("tg.a.plain", 4, &["print.key=true"]),
        "null\t{\"s\":\"x\",\"i\":5,\"l\":[1],\"n\":null}\nnull\t{\"mixed\":[1,\"a\"]}\n\
         null\t{\"empty\":[]}\nnull\t{\"last\":true}\n"
    );
    let rejected = |sink: &str| {
        let path = directory
            .path()
            .join(format!("data/rejected/{sink}.peer-127_0_0_1.msgpack"));
        String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
    };
    for (sink, names) in [
        ("with", &["lost", "large", "mixed", "empty"][..]),
        ("without", &["lost", "large"]),
    ] {
        let rejected = rejected(sink);
        for name in names {
            assert!(rejected.contains(name), "{sink}: {name}: {rejected}");
        }
    }
}

/// The contents of a topic; empty if the topic does not exist yet.
fn text_of(broker: &Broker, topic: &str) -> String {
    let listed = Command::new("kcat")
        .args(["-L", "-q", "-b", &broker.address()])
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    if !listed.contains(&format!("\"{topic}\"")) {
        return String::new();
    }
    broker.read_with_kcat(topic, "%s\n")
}

#[test]
fn a_key_goes_to_the_partition_that_java_sends_it_to() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    let address = broker.address();
    broker.make_topic("ours", 7, &[]);
    broker.make_topic("javas", 7, &[]);
    let keys: Vec<String> = (0..40).map(|n| format!("key-{n}-ü")).collect();
    let sink = format!(
        "  out: {{ type: kafka, inputs: [kept], brokers: [\"{address}\"], topic: ours, format: raw, key: \"{{.message}}\" }}\n"
    );
    run_once(directory.path(), &(keys.join("\n") + "\n"), &sink);
    let lines: String = keys.iter().map(|key| format!("{key}\t{key}\n")).collect();
    broker.write_with_java("javas", &lines);
    let partitions = |topic: &str| {
        let text = broker.read_with_kcat(topic, "%k %p\n");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(partitions("ours").len(), keys.len());
    assert_eq!(partitions("ours"), partitions("javas"));
}

#[test]
fn a_record_that_is_too_large_for_its_topic_is_rejected_and_its_neighbours_arrive() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    let address = broker.address();
    broker.make_topic("small", 1, &["max.message.bytes=2000"]);
    let lines: String = (0..200)
        .map(|n| match n % 50 {
            7 => format!("n{n} {}\n", "x".repeat(3000)),
            _ => format!("n{n} {}\n", "y".repeat(100)),
        })
        .collect();
    let sink = format!(
        "  out: {{ type: kafka, inputs: [kept], brokers: [\"{address}\"], topic: small, format: raw }}\n"
    );
    run_once(directory.path(), &lines, &sink);
    let arrived = broker.read_with_kcat("small", "%s\n");
    let expected: String = lines
        .lines()
        .filter(|line| line.len() < 2000)
        .map(|l| format!("{l}\n"))
        .collect();
    assert_eq!(arrived, expected);
    let rejected = fs::read(directory.path().join("data/rejected/out.msgpack")).unwrap();
    let rejected = String::from_utf8_lossy(&rejected).into_owned();
    for n in [7, 57, 107, 157] {
        assert_eq!(rejected.matches(&format!("n{n} xxx")).count(), 1, "{n}");
    }
}

#[test]
fn tls_and_sasl_admit_only_authorised_clients() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("the authority");
    authority.write_root(directory.path(), "ca");
    authority.issue(directory.path(), "broker", &["127.0.0.1"]);
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let pem = read("broker.pem") + &read("broker.key");
    let listeners = Listeners {
        tls: Some(&pem),
        sasl: true,
        network: None,
    };
    let broker = Broker::start_with(directory.path(), listeners, &[]);
    let (address, ca) = (broker.secure_address(), directory.path().join("ca.pem"));
    let (user, password) = USER;
    let sinks: String = ["plain", "scram-sha-256", "scram-sha-512"]
        .map(|sasl| {
            format!(
                "  s-{sasl}: {{ type: kafka, inputs: [kept], brokers: [\"{address}\"], topic: {sasl}, format: raw, \
                 tls: {{ ca: \"{}\" }}, auth: {{ sasl: {sasl}, username: {user}, password: \"{password}\" }} }}\n",
                ca.display()
            )
        })
        .concat();
    run_once(directory.path(), "in\n", &sinks);
    for topic in ["plain", "scram-sha-256", "scram-sha-512"] {
        assert_eq!(broker.read_with_kcat(topic, "%s\n"), "in\n", "{topic}");
    }
    let config = read("millstream.yaml").replace(password, "guessed");
    fs::remove_dir_all(directory.path().join("data")).unwrap();
    fs::remove_file(directory.path().join("log")).unwrap();
    // A cluster that refuses the credentials does not prevent a start; the sink logs the refusal and retries.
    let program = Program::start(directory.path(), &config);
    wait_until("it logs that no broker admits it", || {
        let log = program.log().to_lowercase();
        log.contains("authentication") && log.contains("started")
    });
    assert!(!program.log().contains("guessed"), "{}", program.log());
    assert_eq!(program.stop(), Some(0));
}
