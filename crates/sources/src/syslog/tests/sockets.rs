//! Tests of stream and datagram sockets.

use std::{
    net::UdpSocket,
    os::unix::net::{UnixDatagram, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
};

use millstream_pipeline::{
    channel::{BoxFuture, Channel, Group},
    meters::Meters,
    outlet::{Edge, Feed, Outlet},
    stop::stop,
};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::{task::LocalSet, time::timeout};

use super::*;
use crate::rig::context;

#[test]
fn every_kind_of_socket_delivers_the_same_records() {
    let directory = tempfile::tempdir().unwrap();
    let (stream, datagram) = (
        directory.path().join("stream"),
        directory.path().join("log"),
    );
    let options = format!(
        r#"{{"listen": ["tcp://127.0.0.1:0", "udp://127.0.0.1:0", "unix://{}", "unixgram://{}"], "tag": "t.{{host}}"}}"#,
        stream.display(),
        datagram.display()
    );
    let downstream = Downstream::memory();
    let (running, addresses) = start(&options, &downstream, directory.path());
    let text = "<13>Nov 21 06:40:30 su[7]: hello";
    send(&mut connect(addresses[0]), &format!("{text}\n"));
    until("tcp", || records(&downstream).len() == 1);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(text.as_bytes(), addresses[1]).unwrap();
    until("udp", || records(&downstream).len() == 2);
    UnixStream::connect(stream)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    until("unix", || records(&downstream).len() == 3);
    let unix = UnixDatagram::unbound().unwrap();
    unix.send_to(format!("{text}\n\0").as_bytes(), datagram)
        .unwrap();
    until("unixgram", || records(&downstream).len() == 4);
    running.stop();
    assert_eq!(field(&downstream, "message"), ["hello"; 4]);
    assert_eq!(field(&downstream, "procid"), ["7"; 4]);
    assert_eq!(
        field(&downstream, "host"),
        ["127.0.0.1", "127.0.0.1", "here", "here"]
    );
    assert_eq!(field(&downstream, "peer"), ["", "127.0.0.1", "", ""]);
    let batches = downstream.batches();
    let peers: Vec<_> = batches
        .iter()
        .map(|batch| batch.values.get("peer"))
        .collect();
    assert_eq!(peers, [Some("127.0.0.1"), None, Some("unix"), Some("unix")]);
    let tags: Vec<_> = batches.iter().map(|batch| batch.tag.as_str()).collect();
    // A batch of UDP datagrams may have several senders, so it has no value `host`, and its tag is the name of the node.
    assert_eq!(tags, ["t.127.0.0.1", "source", "t.here", "t.here"]);
}

#[test]
fn a_last_line_without_newline_and_an_incomplete_counted_message_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    let options = r#"{"listen": "tcp://127.0.0.1:0"}"#;
    let (running, addresses) = start(options, &downstream, directory.path());
    send(&mut connect(addresses[0]), "<13>one\n<13>two");
    until("both", || records(&downstream).len() == 2);
    send(&mut connect(addresses[0]), "99 <13>three");
    until("the cut one", || records(&downstream).len() == 3);
    assert_eq!(field(&downstream, "message"), ["one", "two", "three"]);
    until("it is counted", || running.meter("messages_cut") == 1);
    running.stop();
}

#[test]
fn messages_that_were_read_are_kept_when_the_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    let (running, addresses) = start(
        r#"{"listen": "tcp://127.0.0.1:0"}"#,
        &downstream,
        directory.path(),
    );
    let mut stream = connect(addresses[0]);
    send(&mut stream, "<13>whole\n<13>not yet");
    until("it is read", || running.meter("bytes_received") == 21);
    running.stop();
    assert_eq!(field(&downstream, "message"), ["whole", "not yet"]);
}

#[test]
fn a_stop_reads_what_the_kernel_holds() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("stream");
    let options = format!(
        r#"{{"listen": ["udp://127.0.0.1:0", "unix://{}"]}}"#,
        socket.display()
    );
    let downstream = Downstream::memory();
    let (running, addresses) = start(&options, &downstream, directory.path());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    // Both readers wait for space with their first message. The kernel holds the rest, which is more than one read takes.
    downstream.set_full(true);
    let datagram = |text: &str| udp.send_to(text.as_bytes(), addresses[0]).unwrap();
    datagram("<13>datagram");
    stream.write_all(b"<13>line\n").unwrap();
    until("both wait", || running.meter("bytes_received") == 21);
    for _ in 1..200 {
        datagram("<13>datagram");
    }
    let line = format!("<13>line{}\n", " ".repeat(91));
    stream.write_all(line.repeat(999).as_bytes()).unwrap();
    let stops = std::thread::spawn(move || running.stop());
    sleep(std::time::Duration::from_millis(200));
    downstream.set_full(false);
    stops.join().unwrap();
    let messages = field(&downstream, "message");
    let count = |name: &str| {
        messages
            .iter()
            .filter(|text| text.starts_with(name))
            .count()
    };
    assert_eq!((count("datagram"), count("line")), (200, 1000));
}

/// A channel that panics.
struct Panicking {
    is_closed: Arc<AtomicBool>,
}

impl Channel for Panicking {
    fn put(&self, _: Group) -> BoxFuture<'_, ()> {
        panic!("a fault")
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_of_datagrams_that_panics_ends_the_run_with_all_of_its_readers() {
    let directory = tempfile::tempdir().unwrap();
    let options = format!(
        r#"{{"listen": ["tcp://127.0.0.1:0", "unixgram://{}", "udp://127.0.0.1:0"]}}"#,
        directory.path().join("log").display()
    );
    let mut source = build(&options).unwrap();
    let (memory, meters) = (Downstream::memory(), Meters::default());
    let (_stopper, stop) = stop();
    let is_closed = Arc::<AtomicBool>::default();
    let edge = Edge::to(Feed::new(Arc::new(Panicking {
        is_closed: is_closed.clone(),
    })));
    let context = SourceContext {
        outlet: Outlet::new(vec![edge], &meters.of("source"), false),
        ..context(
            (&memory, &memory),
            source.values(),
            &meters,
            stop,
            directory.path(),
            false,
        )
    };
    source.bind(&context).unwrap();
    let (_, last) = source.server.addresses()[1];
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"<13>hello", last).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ended = LocalSet::new().block_on(&runtime, async {
        timeout(Duration::from_secs(20), source.run(context)).await
    });
    let failure = ended.expect("it ends without a stop").unwrap_err();
    assert!(failure.message.contains("a reader of datagrams failed"));
    // The other reader holds the port open.
    until("it ends, too", || is_closed.load(Ordering::Relaxed));
}

#[test]
fn while_the_channel_is_full_nothing_is_read_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    downstream.hold();
    let (running, addresses) = start(
        r#"{"listen": "tcp://127.0.0.1:0"}"#,
        &downstream,
        directory.path(),
    );
    let sent = 300_000;
    let sender = std::thread::spawn(move || {
        let mut stream = connect(addresses[0]);
        for first in (0..sent).step_by(1000) {
            let lines: String = (first..first + 1000)
                .map(|n| format!("<13>Nov 21 06:40:30 h a: {n} {}\n", "x".repeat(100)))
                .collect();
            send(&mut stream, &lines);
        }
    });
    // A sink that never answers stops the source before all is read.
    let mut last = 0;
    loop {
        sleep(Duration::from_millis(300));
        let now = running.meter("bytes_received");
        if now > 0 && now == last {
            break;
        }
        last = now;
    }
    downstream.settle();
    sender.join().unwrap();
    until("all came", || records_sent(&running) == sent);
    running.stop();
    let numbers = field(&downstream, "message");
    assert!(
        numbers
            .iter()
            .zip(0..)
            .all(|(text, n)| text.starts_with(&format!("{n} ")))
    );
}

fn records_sent(running: &Running) -> u64 {
    running.meter("records_sent")
}

#[test]
fn long_lines_and_lines_without_header_are_rejected_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    let options = r#"{"listen": ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"], "line_max": "70000B", "too_long": "reject", "unparsed": "reject"}"#;
    let (running, addresses) = start(options, &downstream, directory.path());
    let long = "y".repeat(200_000);
    send(
        &mut connect(addresses[0]),
        &format!(
            "<13>good\nbad\n<13>{long}\n<13>{}\n<14>good\n",
            "z".repeat(69_000)
        ),
    );
    until("three are good", || records_sent(&running) == 3);
    until("the rest is rejected", || {
        records(&running.rejected).len() == 4
    });
    let reasons = field(&running.rejected, "reason");
    assert_eq!(reasons[0], "a message has no syslog header");
    assert_eq!(reasons[1], "a message is longer than line_max");
    let peers = field(&running.rejected, "peer");
    assert!(peers.iter().all(|peer| peer.starts_with("127.0.0.1")));
    let whole: String = field(&running.rejected, "message")[1..].concat();
    assert_eq!(whole, format!("<13>{long}"));
    assert_eq!(running.meter("messages_too_long"), 1);
    running.stop();
}

#[test]
fn octet_counts_and_datagrams_beyond_the_limits_do_not_affect_other_messages() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("log");
    let long = "y".repeat(300_000);
    for (too_long, pieces) in [("split", true), ("truncate", false), ("reject", false)] {
        let options = format!(
            r#"{{"listen": ["tcp://127.0.0.1:0", "udp://127.0.0.1:0", "unixgram://{}"], "line_max": "1000B", "too_long": "{too_long}"}}"#,
            socket.display()
        );
        let downstream = Downstream::memory();
        let (running, addresses) = start(&options, &downstream, directory.path());
        let good = |name: &str| format!("<13>Nov 21 06:40:30 h a: {name}");
        let counted = |text: &str| format!("{} {text}", text.len());
        let [first, last] = ["first", "last"].map(good);
        let bad = good(&long);
        let stream = [&first, &bad, &last].map(|text| counted(text)).concat();
        // This text is nearly as long as the largest UDP datagram.
        let of_udp = &bad[..60_000];
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let unix = UnixDatagram::unbound().unwrap();
        set_socket_send_buffer_size(&unix, 512 << 10).unwrap();
        send(&mut connect(addresses[0]), &stream);
        for text in [&first, of_udp, &last] {
            udp.send_to(text.as_bytes(), addresses[1]).unwrap();
        }
        for text in [&first, &bad, &last] {
            unix.send_to(text.as_bytes(), &socket).unwrap();
        }
        let count = |name: &str| {
            let messages = field(&downstream, "message");
            messages.iter().filter(|text| *text == name).count()
        };
        until("the neighbours have come", || {
            (count("first"), count("last")) == (3, 3)
        });
        until("all are counted", || {
            running.meter("messages_too_long") == 3
        });
        assert_eq!(running.meter("datagrams_cut"), 1);
        // The unix datagram is cut to 256 KiB.
        let bytes = bad.len() + of_udp.len() + (256 << 10);
        let head = good("").len();
        let mut texts = field(&downstream, "message");
        texts.retain(|text| text.contains('y'));
        let (kept, set_aside) = (texts.concat().len(), &running.rejected);
        match too_long {
            "split" => assert_eq!(kept, bytes - 3 * head),
            "truncate" => {
                assert_eq!(kept, 3 * (1000 - head));
                assert_eq!(running.meter("bytes_dropped") as usize, bytes - 3000);
            }
            _ => {
                assert_eq!(kept, 0);
                assert_eq!(field(set_aside, "message").concat().len(), bytes);
                // Pieces of 1,000 bytes, from TCP and from UDP. Those from the unix socket have no address.
                let mut peers = field(set_aside, "peer");
                peers.retain(|peer| peer.starts_with("127.0.0.1"));
                assert_eq!(peers.len(), bad.len().div_ceil(1000) + 60);
            }
        }
        assert_eq!(texts.len() > 3, pieces);
        assert_eq!(records(set_aside).is_empty(), too_long != "reject");
        running.stop();
    }
}

#[test]
fn a_silent_connection_is_closed_only_if_no_message_can_be_lost() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    let options = r#"{"listen": "tcp://127.0.0.1:0", "limits": {"idle": "300ms"}}"#;
    let (running, addresses) = start(options, &downstream, directory.path());
    let (mut silent, mut amid, mut good) = (
        connect(addresses[0]),
        connect(addresses[0]),
        connect(addresses[0]),
    );
    send(&mut amid, "<13>half a li");
    send(&mut good, "<13>one\n");
    let mut byte = [0];
    assert_eq!(silent.read(&mut byte).unwrap(), 0);
    assert_eq!(amid.read(&mut byte).unwrap(), 0);
    sleep(Duration::from_millis(900));
    send(&mut good, "<13>two\n");
    until("all three", || records(&downstream).len() == 3);
    let mut messages = field(&downstream, "message");
    messages.sort();
    assert_eq!(messages, ["half a li", "one", "two"]);
    running.stop();
}

/// The next channel is full, so nothing is read, and the kernel's buffer overflows.
#[test]
fn datagrams_are_counted_as_dropped_while_nothing_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    downstream.hold();
    let options = r#"{"listen": "udp://127.0.0.1:0", "receive_buffer": "16KiB"}"#;
    let (running, addresses) = start(options, &downstream, directory.path());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let message = [b'x'; 1000];
    // Sends until the source waits for its channel; from then on everything is dropped.
    until("drops are counted", || {
        for _ in 0..1000 {
            udp.send_to(&message, addresses[0]).unwrap();
        }
        running.meter("datagrams_dropped") > 0
    });
    let counted = running.meter("datagrams_dropped");
    for _ in 0..20_000 {
        udp.send_to(&message, addresses[0]).unwrap();
    }
    until("later drops are counted, too", || {
        running.meter("datagrams_dropped") > counted
    });
    downstream.settle();
    running.stop();
}

#[test]
fn a_flood_of_datagrams_is_read_or_counted_as_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::memory();
    let options = r#"{"listen": "udp://127.0.0.1:0", "receive_buffer": "16KiB"}"#;
    let (running, addresses) = start(options, &downstream, directory.path());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sent = 20_000;
    for n in 0..sent {
        udp.send_to(
            format!("<13>Nov 21 06:40:30 h a: {n}").as_bytes(),
            addresses[0],
        )
        .unwrap();
    }
    // No further datagram is needed for that.
    until("all are accounted for", || {
        records_sent(&running) + running.meter("datagrams_dropped") >= sent
    });
    assert!(
        running.meter("datagrams_dropped") > 0,
        "a buffer of 16 KiB does not take 20,000 datagrams"
    );
    running.stop();
    let numbers: Vec<u64> = field(&downstream, "message")
        .iter()
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(numbers.is_sorted() && numbers.len() as u64 <= sent);
}
