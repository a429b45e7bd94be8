//! Programs and files that would take all memory, all stack or all time: `check` and a reload refuse them, name the line, and the
//! running instance is not harmed.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::program::{Program, free_port, wait_until};

/// An answer must come within this time, also on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(100);

fn config(place: &Path, api: u16, program: &str) -> String {
    format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 1\n\
         sources:\n  in: {{ type: syslog, listen: \"udp://127.0.0.1:0\" }}\n\
         processors:\n  p:\n    type: remap\n    inputs: [in]\n    program: '{program}'\n\
         sinks:\n  out: {{ type: file, inputs: [p], path: \"{0}/out.log\" }}\n",
        place.display()
    )
}

/// Runs `millstream check` with these arguments.
fn check(arguments: &[&Path]) -> Output {
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .arg("check")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(start.elapsed() < ANSWER_MAX, "{:?}", start.elapsed());
    output
}

/// Programs that the compiler does not bear, and a part of the error.
fn programs() -> Vec<(String, &'static str)> {
    let branches = " else if .a == 1 { .b = 1 }".repeat(600);
    // The type of `x` is twice as large after each line.
    let doubles = "x = {\"a\": x, \"b\": x}; ".repeat(60);
    vec![
        (".p[100000000] = 1".to_owned(), "the indexes of a path"),
        (".p[-30000] = 1".to_owned(), "the indexes of a path"),
        (".x = .p[100000000]".to_owned(), "the indexes of a path"),
        (format!(".x = {}true", "!".repeat(5000)), "nests deeper"),
        (format!("if .a == 0 {{ .b = 0 }}{branches}"), "nests deeper"),
        (format!(".x = .a{}", " + .a".repeat(20_000)), "nests deeper"),
        (format!("x = .a; {doubles}.x = x"), "cannot be compiled"),
    ]
}

#[test]
fn a_program_that_the_compiler_cannot_bear_is_refused_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("millstream.yaml");
    for (program, wanted) in programs() {
        fs::write(&file, config(directory.path(), 1, &program)).unwrap();
        let output = check(&[&file]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(wanted), "{said}");
        assert!(said.contains("millstream.yaml:10:"), "{said}");
    }
}

/// Asks the HTTP interface whether the program lives.
fn lives(api: u16) -> bool {
    let Ok(mut interface) = TcpStream::connect(("127.0.0.1", api)) else {
        return false;
    };
    let request = "GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let asked = interface.write_all(request.as_bytes());
    let answered = asked.and_then(|()| interface.read_to_string(&mut answer));
    answered.is_ok() && answer.starts_with("HTTP/1.1 200 ")
}

#[test]
fn a_reload_of_such_a_program_is_refused_and_the_interface_answers_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let api = free_port();
    let program = Program::start(place, &config(place, api, ".a = 1")).listens(api);
    wait_until("it has started", || program.log().contains("INFO started "));
    for (number, (text, _)) in (1..).zip(programs()) {
        fs::write(place.join("millstream.yaml"), config(place, api, &text)).unwrap();
        program.signal("HUP");
        wait_until("the reload is refused", || {
            let start = Instant::now();
            assert!(lives(api));
            assert!(start.elapsed() < Duration::from_secs(5));
            program.log().matches("cannot reload: 1 error").count() == number
        });
    }
    fs::write(place.join("millstream.yaml"), config(place, api, ".a = 2")).unwrap();
    program.signal("HUP");
    wait_until("it reloads", || program.log().contains("replaced p"));
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_stop_does_not_wait_for_a_configuration_that_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let api = free_port();
    let program = Program::start(place, &config(place, api, ".a = 1")).listens(api);
    wait_until("it has started", || program.log().contains("INFO started "));
    // Five programs that each take seconds.
    let (text, _) = programs().pop().unwrap();
    let mut slow = config(place, api, &text);
    for number in 0..5 {
        let one =
            format!("  p{number}:\n    type: remap\n    inputs: [in]\n    program: '{text}'\n");
        slow = slow.replace("sinks:\n", &format!("{one}sinks:\n"));
    }
    fs::write(place.join("millstream.yaml"), slow).unwrap();
    program.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    assert_eq!(program.stop(), Some(0));
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_file_that_never_ends_is_refused_at_once_and_a_pipe_of_the_shell_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (fifo, file) = (place.join("fifo"), place.join("millstream.yaml"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let path = fifo.display();
    let good = config(place, 1, ".a = 1");
    let of_program = good.replace("program: '.a = 1'", &format!("file: {path}"));
    let secret = good.replace("threads: 1", &format!("host: \"${{file:{path}}}\""));
    let certificate = good.replace(
        "udp://127.0.0.1:0\"",
        &format!("tcp://127.0.0.1:0\", tls: {{ cert: {path}, key: {path} }}"),
    );
    for text in [of_program, secret, certificate] {
        fs::write(&file, &text).unwrap();
        let output = check(&[&file]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("not a regular file, but a FIFO"), "{said}");
    }
    for given in [&*fifo, Path::new("/dev/zero")] {
        let output = check(&[given]);
        assert_eq!(output.status.code(), Some(78));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("not a regular file"), "{said}");
    }
    fs::write(&file, &good).unwrap();
    for command in [
        "\"$0\" check <(cat \"$1\")",
        "cat \"$1\" | \"$0\" check /dev/stdin",
        "\"$0\" check /dev/stdin < \"$1\"",
    ] {
        let output = Command::new("bash")
            .args(["-c", command, env!("CARGO_BIN_EXE_millstream")])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}: {said}");
    }
}
