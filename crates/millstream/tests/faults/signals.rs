//! Signals at the worst moments: while the program starts, and while an upgrade replaces it. None ends the program or is lost. An
//! upgrade leaves no zombie, keeps the port of the HTTP interface, and its variables and sockets do not leak into other programs.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpStream, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Program, free_port, victim::Random, wait_until};

/// The time after a start in which a signal used to end the program.
const START_US: u64 = 40_000;

/// A program that collects datagrams into a file.
fn config(place: &Path, api: u16) -> String {
    format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 1\n\
         sources:\n  in: {{ type: syslog, listen: \"udp://127.0.0.1:0\" }}\n\
         sinks:\n  out: {{ type: file, inputs: [in], path: \"{0}/out.log\" }}\n",
        place.display()
    )
}

fn send(program: &Program, signal: Signal) {
    let id = i32::try_from(program.id()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

/// The set of signals that a line of `/proc/ID/status` shows.
fn signals(process: u32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut found = status.lines().filter_map(|it| it.strip_prefix(line));
    let set = found.next().unwrap_or_default();
    u64::from_str_radix(set.trim_start_matches(':').trim(), 16).unwrap_or(0)
}

/// Waits until the code of the program runs: it blocks SIGHUP, or has a handler for it. Returns whether it blocks SIGHUP.
fn wait_for_main(program: &Program) -> bool {
    let (start, hangup) = (Instant::now(), 1);
    loop {
        let is_held = signals(program.id(), "SigBlk") & hangup != 0;
        if is_held || signals(program.id(), "SigCgt") & hangup != 0 {
            return is_held;
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

fn starts(program: &Program) -> usize {
    program.log().matches("INFO started ").count()
}

#[test]
fn a_signal_during_the_start_is_handled_after_the_start() {
    let (mut random, mut held) = (Random::new(), 0);
    for round in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let program = Program::start(place, &config(place, free_port()));
        held += usize::from(wait_for_main(&program));
        sleep(Duration::from_micros(random.below(START_US)));
        let (signal, handled) = match round % 3 {
            0 => (Signal::HUP, "reloaded: "),
            1 => (Signal::USR1, "INFO status: "),
            _ => (Signal::USR2, "draining for at most"),
        };
        send(&program, signal);
        wait_until("the signal is handled", || {
            let status = fs::read_to_string(format!("/proc/{}/status", program.id()));
            assert!(
                !status.unwrap().contains("State:\tZ"),
                "{signal:?} has ended the program"
            );
            program.log().contains(handled)
        });
        if signal == Signal::USR2 {
            wait_until("the new program has started", || starts(&program) == 2);
        }
        assert_eq!(program.stop(), Some(0));
    }
    assert!(held > 0, "no signal is blocked before there are handlers");
}

#[test]
fn signals_during_an_upgrade_do_not_end_the_program_and_a_stop_is_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut random = Random::new();
    let program = Program::start(place, &config(place, free_port()));
    wait_until("it has started", || starts(&program) == 1);
    for upgrade in 1..=8 {
        send(&program, Signal::USR2);
        let start = Instant::now();
        while starts(&program) == upgrade {
            assert!(start.elapsed() < Duration::from_secs(120));
            for signal in [Signal::HUP, Signal::USR1] {
                send(&program, signal);
                sleep(Duration::from_micros(random.below(1000)));
            }
        }
    }
    wait_until("the new program takes requests", || {
        let log = program.log();
        let (_, last) = log.rsplit_once("INFO started ").unwrap();
        last.contains("reloaded: ")
    });
    assert_eq!(program.stop(), Some(0));
    for _ in 0..12 {
        let program = Program::start(place, &config(place, free_port()));
        let before = starts(&program);
        wait_until("it has started", || starts(&program) > before);
        send(&program, Signal::USR2);
        sleep(Duration::from_micros(random.below(150_000)));
        send(&program, Signal::TERM);
        assert_eq!(program.ended(), Some(0));
    }
}

/// Asks the HTTP interface whether the program lives, on one connection after the other. Returns the number of answers.
fn ask(api: u16, end: &AtomicBool) -> usize {
    let mut answers = 0;
    while !end.load(Ordering::Relaxed) {
        let mut interface = TcpStream::connect(("127.0.0.1", api)).expect("the port is open");
        let request = "GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        // The program that has accepted the connection may be replaced before it answers.
        let _ = interface.write_all(request.as_bytes());
        let _ = interface.read_to_string(&mut answer);
        answers += usize::from(answer.starts_with("HTTP/1.1 200 "));
    }
    answers
}

/// The processes whose parent is `process`, each with its state.
fn children(process: u32) -> Vec<(u32, char)> {
    let all = fs::read_dir("/proc").unwrap();
    let stat = all.filter_map(|entry| {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let state = words.next()?.chars().next()?;
        (words.next()?.parse() == Ok(process)).then_some((id, state))
    });
    stat.collect()
}

#[test]
fn an_upgrade_keeps_the_port_of_the_interface_and_leaves_no_zombie_and_no_trace_in_other_programs()
{
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let api = free_port();
    let path = place.display();
    let port = free_port();
    let config = format!(
        "{}processors:\n\
         \x20 cat: {{ type: exec, inputs: [in], command: [sh, -c, \"env > {path}/env; ls -l /proc/$$/fd > {path}/fd; exec cat\"] }}\n",
        config(place, api)
            .replace("inputs: [in]", "inputs: [cat]")
            .replace("127.0.0.1:0", &format!("127.0.0.1:{port}"))
    );
    let program = Program::start(place, &config).listens(api);
    let id = program.id();
    let end = Arc::new(AtomicBool::new(false));
    let asking = thread::spawn({
        let end = end.clone();
        move || ask(api, &end)
    });
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let pass_a_record = |start: usize| {
        wait_until("it has started", || starts(&program) == start);
        let message = format!("<13>Nov 21 06:40:30 h a: record {start}");
        sender
            .send_to(message.as_bytes(), ("127.0.0.1", port))
            .unwrap();
        wait_until("the record has passed the other program", || {
            let out = fs::read_to_string(place.join("out.log")).unwrap_or_default();
            out.contains(&format!("record {start}"))
        });
    };
    for upgrade in 1..=3 {
        pass_a_record(upgrade);
        send(&program, Signal::USR2);
    }
    pass_a_record(4);
    end.store(true, Ordering::Relaxed);
    assert!(asking.join().unwrap() > 0);
    wait_until("no zombie is left", || {
        children(id).iter().all(|(_, state)| *state != 'Z')
    });
    let running = children(id);
    assert_eq!(running.len(), 1, "{running:?}");
    for (child, _) in running {
        assert_eq!(signals(child, "SigBlk"), 0);
    }
    let seen = fs::read_to_string(place.join("env")).unwrap();
    assert!(!seen.contains("MILLSTREAM_LISTENERS"), "{seen}");
    let open = fs::read_to_string(place.join("fd")).unwrap();
    assert!(!open.contains("socket:"), "{open}");
    assert_eq!(program.stop(), Some(0));
}
