//! A generator that is killed, or whose server goes away, sends the same chunks again, byte for byte, until all are acknowledged.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::HashMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A forward server for PackedForward as the generator writes it: stores new chunks, acknowledges them, and misbehaves as
/// configured.
#[derive(Default)]
struct Server {
    /// Payload by chunk id.
    chunks: HashMap<Vec<u8>, Vec<u8>>,
    /// The records' texts, one per line, in the order in which they first arrived.
    lines: Vec<u8>,
    /// How often a stored chunk arrived again.
    repeats: u64,
    /// The number of messages received.
    messages: u64,
}

/// The reaction to the n-th message: store and ack, store and close, or close.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Ack,
    StoreOnly,
    HangUp,
}

fn start(act: fn(u64) -> Act) -> (String, Arc<Mutex<Server>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Arc::new(Mutex::new(Server::default()));
    let shared = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, server) = (stream.unwrap(), Arc::clone(&shared));
            // An error only means that the sender was killed.
            thread::spawn(move || {
                let _ = connection(stream, &server, act);
            });
        }
    });
    (address, server)
}

fn connection(
    mut stream: TcpStream,
    server: &Mutex<Server>,
    act: fn(u64) -> Act,
) -> std::io::Result<()> {
    loop {
        // 93 a5 "bench" db len32 payload, then 83 ... "chunk" b9 id25: 59 bytes of option
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        assert_eq!(&head[..8], b"\x93\xa5bench\xdb", "the layout of a chunk");
        let len = u32::from_be_bytes(head[8..].try_into().unwrap());
        let mut payload = vec![0; len as usize];
        stream.read_exact(&mut payload)?;
        let mut option = [0; 1 + 5 + 5 + 11 + 5 + 6 + 26];
        stream.read_exact(&mut option)?;
        assert_eq!(&option[..6], b"\x83\xa4size");
        let id = &option[option.len() - 26..];
        let mut server = server.lock().unwrap();
        server.messages += 1;
        let act = act(server.messages);
        if act == Act::HangUp {
            return Ok(());
        }
        server.store(&id[1..], payload);
        drop(server);
        if act == Act::StoreOnly {
            return Ok(());
        }
        stream.write_all(&[b"\x81\xa3ack", id].concat())?;
    }
}

impl Server {
    fn store(&mut self, id: &[u8], payload: Vec<u8>) {
        if let Some(before) = self.chunks.get(id) {
            self.repeats += 1;
            assert!(*before == payload, "the same id with other bytes");
            return;
        }
        // entries of 122 bytes: 22 of head, 100 of text
        for entry in payload.chunks(122) {
            self.lines.extend_from_slice(&entry[22..]);
            self.lines.push(b'\n');
        }
        self.chunks.insert(id.to_vec(), payload);
    }
}

fn generator(address: &str, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_millbench"))
        .args(["generate", "--forward", address, "--acks", "--chunk", "50"])
        .args(arguments)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

/// Asserts that the verifier accepts the records that the server stored.
fn verify(server: &Mutex<Server>, directory: &Path, ledger: Option<&Path>) {
    let path = directory.join("stored.log");
    fs::write(&path, &server.lock().unwrap().lines).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millbench"));
    command.arg("verify").arg(&path);
    if let Some(ledger) = ledger {
        command.arg("--ledger").arg(ledger);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

#[test]
fn an_unacknowledged_chunk_is_sent_again_with_the_same_id_and_bytes() {
    let directory = tempfile::tempdir().unwrap();
    // Every third message is lost, or stored without an ack.
    let (address, server) = start(|message| match message % 6 {
        0 => Act::HangUp,
        3 => Act::StoreOnly,
        _ => Act::Ack,
    });
    for window in ["1", "4"] {
        let arguments = ["--records", "5k", "--connections", "2", "--window", window];
        let output = generator(&address, &arguments).wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(server.lock().unwrap().repeats > 20);
    verify(&server, directory.path(), None);
}

#[test]
fn a_generator_killed_at_random_moments_leaves_nothing_out() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let (address, server) = start(|message| match message % 97 {
        0 => Act::StoreOnly,
        _ => Act::Ack,
    });
    let arguments = [
        "--ledger",
        ledger.to_str().unwrap(),
        "--records",
        "60k",
        "--connections",
        "3",
        "--window",
        "2",
    ];
    let (mut moment, mut kills) = (0x9e37_79b9_u64, 0);
    loop {
        let mut child = generator(&address, &arguments);
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        thread::sleep(Duration::from_millis(2 + (moment >> 33) % 30));
        if kills >= 25 {
            assert!(child.wait().unwrap().success());
            break;
        }
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.success())
        {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        // All records that the ledger lists as acknowledged must have arrived.
        if kills % 5 == 0 && ledger.exists() && server.lock().unwrap().messages > 0 {
            verify(&server, directory.path(), Some(&ledger));
        }
    }
    assert!(kills >= 5, "only {kills} kills: the run was over too soon");
    verify(&server, directory.path(), None);
    verify(&server, directory.path(), Some(&ledger));
    // If the generator is started again, nothing is left to send.
    let before = server.lock().unwrap().messages;
    let output = generator(&address, &arguments).wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(server.lock().unwrap().messages, before);
}

#[test]
fn acknowledged_records_of_the_ledger_that_did_not_arrive_are_reported_as_lost() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let text = "millbench-ledger 1 run=00000007 flows=2 size=100 chunk=50 base=1 mode=Packed tag=bench\n\
                0 acked 0 50\n0 acked 100 50\n";
    fs::write(&ledger, text).unwrap();
    let path = directory.path().join("out.log");
    fs::write(&path, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millbench"))
        .args(["verify", "--json", "--ledger"])
        .args([&ledger, &path])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["flows"][0]["lost"], 100);
    assert_eq!(
        report["flows"][0]["missing"],
        serde_json::json!([[0, 49], [100, 149]])
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_ledger_of_a_run_with_other_settings_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let (address, _server) = start(|_| Act::Ack);
    let path = ledger.to_str().unwrap();
    let first = generator(&address, &["--records", "100", "--ledger", path]);
    assert!(first.wait_with_output().unwrap().status.success());
    let other = ["--records", "100", "--size", "120", "--ledger", path];
    let second = generator(&address, &other).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&second.stderr).contains("size=100"));
}

#[test]
fn a_generator_waits_for_its_server_and_then_sends_in_every_mode() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{port}");
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("saved.log");
    let first = generator(&address, &["--records", "1k"]);
    thread::sleep(Duration::from_millis(100));
    let mut server = Command::new(env!("CARGO_BIN_EXE_millbench"))
        .args(["flow", "--listen", &address, "--save"])
        .arg(&saved)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(first.wait_with_output().unwrap().status.success());
    // Send in every mode, with and without acks. The receiver is `millbench flow`, because the server of the other tests reads only
    // mode `packed`.
    for mode in ["message", "forward", "packed", "gzip"] {
        let plain = Command::new(env!("CARGO_BIN_EXE_millbench"))
            .args([
                "generate",
                "--forward",
                &address,
                "--mode",
                mode,
                "--records",
                "1k",
            ])
            .output()
            .unwrap();
        assert!(plain.status.success(), "{plain:?}");
        let acks = generator(&address, &["--records", "1k", "--mode", mode]);
        assert!(acks.wait_with_output().unwrap().status.success());
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millbench"))
        .arg("verify")
        .arg(&saved)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.contains(".0000 ")).count(),
        9,
        "{text}"
    );
}
