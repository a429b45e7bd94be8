//! RELP: an answer means that the message is kept.

use std::sync::Mutex;

use millstream_testkit::{block_on, contract::SourceCase};

use super::*;
use crate::rig::peer;

const OPEN: &str = "1 open 15 commands=syslog\n";

fn frame(number: u32, message: &str) -> String {
    format!("{number} syslog {} {message}\n", message.len())
}

/// An open session.
fn session(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    send(&mut stream, OPEN);
    let answer = lines(&mut stream, 4);
    assert!(
        answer.starts_with("1 rsp ") && answer.contains(" 200 OK\nrelp_version=0\n"),
        "{answer}"
    );
    stream
}

fn relp(options: &str, downstream: &Downstream, directory: &Path) -> (Running, SocketAddr) {
    let options = format!(r#"{{"listen": "relp://127.0.0.1:0"{options}}}"#);
    let (running, addresses) = start(&options, downstream, directory);
    (running, addresses[0])
}

#[test]
fn a_message_is_answered_when_it_is_kept_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp("", &downstream, directory.path());
    let mut stream = session(address);
    downstream.hold();
    send(
        &mut stream,
        &(frame(2, "<13>Nov 21 06:40:30 h su[1]: one") + &frame(3, "<13>two\n")),
    );
    until("both are sent on", || records(&downstream).len() == 2);
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(
        stream.read(&mut [0]).is_err(),
        "an answer came before anything was kept"
    );
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    downstream.settle();
    assert_eq!(lines(&mut stream, 2), "2 rsp 6 200 OK\n3 rsp 6 200 OK\n");
    send(&mut stream, "4 syslog 0\n5 starttls 0\n6 close 0\n");
    assert_eq!(
        lines(&mut stream, 4),
        "4 rsp 6 200 OK\n5 rsp 32 500 this command was not offered\n6 rsp 0\n0 serverclose 0\n"
    );
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(field(&downstream, "message"), ["one", "two"]);
    assert_eq!(running.meter("messages_answered"), 3);
    running.stop();
}

#[test]
fn lost_messages_are_not_answered() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp("", &downstream, directory.path());
    let mut stream = session(address);
    downstream.hold();
    send(&mut stream, &frame(2, "<13>one"));
    until("it is sent on", || records(&downstream).len() == 1);
    downstream.drop_held();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    let mut stream = session(address);
    send(&mut stream, &frame(2, "<13>one"));
    assert_eq!(lines(&mut stream, 1), "2 rsp 6 200 OK\n");
    assert_eq!(field(&downstream, "message"), ["one"]);
    running.stop();
}

#[test]
fn a_session_with_a_protocol_error_is_closed_after_earlier_messages_are_answered() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp("", &downstream, directory.path());
    for bad in [
        "9 syslog 1 x\n",
        "<13>Nov 21 06:40:30 h su: plain\n",
        "3 open 0\n",
    ] {
        let mut stream = session(address);
        send(&mut stream, &(frame(2, "<13>good") + bad));
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "2 rsp 6 200 OK\n0 serverclose 0\n", "{bad}");
    }
    let mut stream = connect(address);
    send(&mut stream, "1 open 14 relp_version=0\n");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(
        rest.starts_with("1 rsp ") && rest.contains(" 500 "),
        "{rest}"
    );
    assert_eq!(running.meter("connections_refused"), 4);
    running.stop();
    assert_eq!(field(&downstream, "message"), ["good"; 3]);
}

#[test]
fn a_stop_answers_received_messages_and_announces_the_close() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp("", &downstream, directory.path());
    let mut stream = session(address);
    downstream.hold();
    send(
        &mut stream,
        &(frame(2, "<13>one") + "3 syslog 99 <13>not whole"),
    );
    until("it is sent on", || records(&downstream).len() == 1);
    let stopping = std::thread::spawn(move || running.stop());
    std::thread::sleep(Duration::from_millis(100));
    downstream.settle();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "2 rsp 6 200 OK\n0 serverclose 0\n");
    drop(stream);
    stopping.join().unwrap();
    assert_eq!(field(&downstream, "message"), ["one"]);
}

#[test]
fn long_messages_are_split_and_answered_once() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp(r#", "line_max": "100000B""#, &downstream, directory.path());
    let mut stream = session(address);
    let long = format!("<13>Nov 21 06:40:30 h su[1]: {}", "x".repeat(1_000_000));
    send(
        &mut stream,
        &(frame(2, "<13>before") + &frame(3, &long) + &frame(4, "<13>after")),
    );
    assert_eq!(
        lines(&mut stream, 3),
        "2 rsp 6 200 OK\n3 rsp 6 200 OK\n4 rsp 6 200 OK\n"
    );
    let messages = field(&downstream, "message");
    assert_eq!(
        messages[1..messages.len() - 1].concat(),
        "x".repeat(1_000_000)
    );
    assert!(
        messages.len() > 10
            && field(&downstream, "app")[1..messages.len() - 1]
                .iter()
                .all(|app| app == "su")
    );
    running.stop();
}

#[test]
fn many_small_frames_in_one_read_are_answered_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let downstream = Downstream::durable();
    let (running, address) = relp("", &downstream, directory.path());
    let mut stream = session(address);
    let count = 20_000;
    let text: String = (0..count)
        .map(|n| frame(n + 2, &format!("<13>Nov 21 06:40:30 h a: {n}")))
        .collect();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || send(&mut writer, &text));
    let answers = lines(&mut stream, count as usize);
    sender.join().unwrap();
    assert!(
        answers
            .lines()
            .zip(2..)
            .all(|(line, n)| line == format!("{n} rsp 6 200 OK"))
    );
    let numbers = field(&downstream, "message");
    assert!(
        numbers
            .iter()
            .zip(0..count)
            .all(|(text, n)| *text == n.to_string())
    );
    assert_eq!(numbers.len(), count as usize);
    running.stop();
}

#[test]
fn it_keeps_the_contract_of_sources() {
    let (tell, told) = mpsc::sync_channel(8);
    let build = || {
        let source = build(r#"{"listen": "relp://127.0.0.1:0"}"#).unwrap();
        let tell = tell.clone();
        Box::new(Telling { source, tell }) as Box<dyn Source>
    };
    let latest = Mutex::new((told, None));
    let connect = move || {
        let (told, address) = &mut *latest.lock().unwrap();
        let bound = told.try_iter().last();
        *address = bound.map(|all| all[0].1).or(*address);
        TcpStream::connect(address.unwrap())
    };
    let messages = OPEN.to_owned() + &frame(2, "<13>one") + &frame(3, "<13>two");
    let case = SourceCase {
        build: &build,
        // Answers arrive in order, so the last one implies the others.
        peer: Some(peer(connect, messages.into(), "\n3 rsp 6 200 OK\n")),
        records: 2,
        rejected: 0,
        directory: "unused".as_ref(),
    };
    block_on(case.check());
}
