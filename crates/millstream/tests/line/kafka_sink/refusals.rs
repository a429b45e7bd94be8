//! Records that a broker refuses because of their content are rejected, and the other records of the same chunk arrive.

use std::{fs, net::TcpStream, time::SystemTime};

use millstream_testkit::server::kafka::Broker;

use crate::program::{self, Program, free_port, wait_until};

/// Sends one chunk of the forward protocol, with a time and a message for each record, and waits for its ack.
fn forward(port: u16, tag: &str, records: &[(u64, &str)]) {
    let entry = |(seconds, message): &(u64, &str)| {
        let record = rmpv::Value::Map(vec![("message".into(), (*message).into())]);
        rmpv::Value::Array(vec![(*seconds).into(), record])
    };
    let entries = rmpv::Value::Array(records.iter().map(entry).collect());
    let id = format!("{tag} {}", records[0].1);
    let option = rmpv::Value::Map(vec![("chunk".into(), id.as_str().into())]);
    let message = rmpv::Value::Array(vec![tag.into(), entries, option]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(program::PATIENCE)).unwrap();
    rmpv::encode::write_value(&mut stream, &message).unwrap();
    let ack = rmpv::decode::read_value(&mut stream).unwrap();
    assert_eq!(ack["ack"], id.into());
}

#[test]
fn records_that_a_topic_refuses_are_rejected_and_their_neighbours_arrive_once() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::start(directory.path(), &[]);
    for sink in ["exact", "memory"] {
        // By default, Kafka 4 refuses times more than an hour in the future. The test brokers allow any time, so set the limit here.
        let hour = ["message.timestamp.after.max.ms=3600000"];
        broker.make_topic(&format!("{sink}.clock"), 1, &hour);
        // This topic refuses records without a key.
        broker.make_topic(&format!("{sink}.compact"), 1, &["cleanup.policy=compact"]);
    }
    broker.make_topic("positions", 1, &[]);
    let (address, port, place) = (broker.address(), free_port(), directory.path().display());
    let sink = format!("type: kafka, brokers: [\"{address}\"], format: raw");
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  exact: {{ {sink}, inputs: [kept], topic: \"exact.{{tag}}\", position: positions }}\n\
         \x20 memory: {{ {sink}, inputs: [in], topic: \"memory.{{tag}}\" }}\n"
    );
    let program = Program::start(directory.path(), &config).listens(port);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs();
    let ahead = now + 7200;
    forward(port, "clock", &[(now, "a"), (ahead, "bad 1"), (now, "b")]);
    forward(
        port,
        "clock",
        &[(ahead, "bad 2"), (now, "c"), (ahead, "bad 3"), (now, "d")],
    );
    forward(port, "clock", &[(ahead, "bad 4"), (ahead, "bad 5")]);
    forward(port, "compact", &[(now, "bad 6")]);
    forward(port, "compact", &[(now, "bad 7"), (now, "bad 8")]);
    forward(port, "clock", &[(now, "last")]);
    for sink in ["exact", "memory"] {
        let read = || broker.read_with_kcat(&format!("{sink}.clock"), "%s\n");
        wait_until("the last record is there", || read().contains("last"));
    }
    assert_eq!(program.stop(), Some(0));
    for sink in ["exact", "memory"] {
        let text = broker.read_with_kcat(&format!("{sink}.clock"), "%s\n");
        let mut lines: Vec<_> = text.lines().collect();
        // Without a disk channel, the other records of a chunk with a refused record may be sent again, and so arrive after later
        // records.
        lines.sort_unstable();
        assert_eq!(lines, ["a", "b", "c", "d", "last"], "{sink}");
        let rejected = directory
            .path()
            .join(format!("data/rejected/{sink}.peer-127_0_0_1.msgpack"));
        let rejected = String::from_utf8_lossy(&fs::read(rejected).unwrap()).into_owned();
        for number in 1..=8 {
            let bad = format!("bad {number}");
            assert_eq!(rejected.matches(&bad).count(), 1, "{sink}: {bad}");
        }
        assert_eq!(
            rejected.matches("refuses the record permanently").count(),
            8
        );
    }
}
