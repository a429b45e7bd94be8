//! The program is upgraded while senders are sending, and is started with the sockets of systemd. No sender is refused, and nothing
//! is lost.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program, free_port,
    prober::Prober,
    victim::{Generator, Random, generate, in_storm, settle, verify},
    wait_until,
};

/// The longest pause between two upgrades.
const PAUSE_MS_MAX: u64 = 700;

fn starts(program: &Program) -> usize {
    program.log().matches("INFO started ").count()
}

#[test]
fn an_upgrade_under_load_refuses_no_sender_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, datagrams) = (free_port(), free_port());
    let path = place.join("in.sock");
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n\
         \x20 in: {{ type: forward, listen: [\"tcp://127.0.0.1:{port}\", \"unix://{1}\"] }}\n\
         \x20 udp: {{ type: syslog, listen: \"udp://127.0.0.1:{datagrams}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n\
         \x20 out: {{ type: file, inputs: [kept], format: raw, path: \"{0}/out/{{tag}}.log\" }}\n\
         \x20 udp_out: {{ type: file, inputs: [udp], format: raw, path: \"{0}/udp.log\" }}\n",
        place.display(),
        path.display()
    );
    let program = Program::start(place, &config).listens(port);
    wait_until("it has started", || starts(&program) == 1);
    let process = program.id();
    let (records, upgrades) = (in_storm(300_000, 3_000_000), in_storm(8, 60));
    let generator = Generator::start(&generate(place, port, &records.to_string(), "50000"));
    let prober = Prober::start(port, path);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut random, mut sent) = (Random::new(), 0);
    let mut send = |milliseconds: u64| {
        for _ in 0..milliseconds / 5 {
            let message = format!("<13>Nov 21 06:40:30 h a: {sent}");
            sender
                .send_to(message.as_bytes(), ("127.0.0.1", datagrams))
                .unwrap();
            sent += 1;
            sleep(Duration::from_millis(5));
        }
    };
    for upgrade in 1..=upgrades {
        send(random.below(PAUSE_MS_MAX));
        if upgrade == 3 {
            // A configuration that the new program refuses changes nothing.
            fs::write(place.join("millstream.yaml"), "sources: []\n").unwrap();
            program.signal("USR2");
            wait_until("the refusal is logged", || {
                program.log().contains("not upgraded")
            });
            fs::write(place.join("millstream.yaml"), &config).unwrap();
        }
        program.signal("USR2");
        let started = usize::try_from(upgrade).unwrap() + 1;
        wait_until("the new program has started", || {
            send(10);
            starts(&program) == started
        });
    }
    assert_eq!(program.id(), process);
    prober.end();
    generator.finish();
    settle(&place.join("out"));
    let numbers = || -> Vec<u64> {
        let text = fs::read_to_string(place.join("udp.log")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    wait_until("all datagrams have arrived", || {
        numbers().len() as u64 >= sent
    });
    assert_eq!(program.stop(), Some(0));
    assert_eq!(numbers(), (0..sent).collect::<Vec<_>>());
    verify(&place.join("out"), &place.join("ledger"));
}

/// Opens two sockets as systemd does, and then executes the rest of the command line, which inherits them. The first socket has the
/// port of the source; no source has the port of the second.
const ACTIVATE: &str = "\
import os, socket, sys
listener = socket.socket()
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen(64)
other = socket.socket()
other.bind(('127.0.0.1', 0))
other.listen(1)
os.dup2(other.fileno(), 14)
os.dup2(listener.fileno(), 3)
os.dup2(14, 4)
os.environ.update(LISTEN_FDS='2', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn a_source_listens_on_the_socket_that_systemd_has_opened() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let port = free_port();
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: [] }}\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{0}/out/{{tag}}.log\" }}\n",
        place.display()
    );
    let number = port.to_string();
    let shell = ["python3", "-c", ACTIVATE, &number];
    let program = Program::start_after(place, &config, &shell).listens(port);
    Generator::start(&generate(place, port, "5000", "50000")).finish();
    settle(&place.join("out"));
    let log = program.log();
    assert!(log.contains("nothing listens at 127.0.0.1:"), "{log}");
    // After an upgrade, the source still uses the socket of systemd.
    program.signal("USR2");
    wait_until("the new program has started", || starts(&program) == 2);
    assert_eq!(program.stop(), Some(0));
    verify(&place.join("out"), &place.join("ledger"));
}

/// Copies the program to the file `millstream`, which a test can replace, and starts the copy.
fn start_copy(place: &Path, config: &str) -> Program {
    let (program, copy) = (env!("CARGO_BIN_EXE_millstream"), place.join("millstream"));
    if fs::hard_link(program, &copy).is_err() {
        fs::copy(program, &copy).unwrap();
    }
    let run = format!("shift; exec {} \"$@\"", copy.display());
    Program::start_after(place, config, &["sh", "-c", &run, "sh"])
}

/// Replaces `millstream` by a program that writes its process id to the file `checker` and never ends. A shell writes the new file.
/// If this process wrote it, a child process of another test could inherit the open file, which then could not be executed.
fn replace_by_one_that_hangs(place: &Path) {
    let write = "printf '#!/bin/sh\\necho $$ > %s/checker\\nexec sleep 600\\n' \"$0\" > \"$0/new\"\n\
                 chmod +x \"$0/new\" && mv \"$0/new\" \"$0/millstream\"";
    let written = Command::new("sh").args(["-c", write]).arg(place).status();
    assert!(written.unwrap().success());
}

#[test]
fn a_new_program_that_hangs_does_not_block_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{0}/out.log\" }}\n",
        place.display()
    );
    let program = start_copy(place, &config).listens(port);
    wait_until("it has started", || starts(&program) == 1);
    replace_by_one_that_hangs(place);
    program.signal("USR2");
    let checker = || fs::read_to_string(place.join("checker")).unwrap_or_default();
    wait_until("the new program checks", || checker().ends_with('\n'));
    program.signal("USR2");
    wait_until("the second signal is ignored", || {
        program.log().contains("SIGUSR2 is ignored")
    });
    let mut interface = TcpStream::connect(("127.0.0.1", api)).unwrap();
    let request = "GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    interface.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    interface.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    program.signal("HUP");
    wait_until("the reload is logged", || {
        program.log().contains("reloaded: ")
    });
    assert_eq!(program.stop(), Some(0));
    let checker = PathBuf::from(format!("/proc/{}", checker().trim()));
    wait_until("the new program is killed", || {
        let state = fs::read_to_string(checker.join("stat")).unwrap_or_default();
        // A process that has ended stays in `/proc`, in state Z, until its parent waits for it.
        state.is_empty() || state.contains(") Z ")
    });
}
