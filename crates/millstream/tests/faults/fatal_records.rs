//! Records behind a disk channel that end the process: they are set aside, and their neighbors are delivered.

use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::program::{Program, free_port, wait_until};

/// How long a process hangs before the test kills it.
const HANGS: Duration = Duration::from_secs(4);
/// The number of starts after which a fatal record must be set aside: the first death counts for no position.
const STARTS: usize = 5;

struct Rig {
    directory: tempfile::TempDir,
    port: u16,
    api: u16,
}

impl Rig {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            port: free_port(),
            api: free_port(),
        }
    }

    fn place(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the program. `options` are further options of the processor.
    fn start(&self, options: &str) -> Program {
        let (place, port, api) = (self.place().display(), self.port, self.api);
        let config = format!(
            "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\nthreads: 2\n\
             sources:\n  in: {{ type: http, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             channels:\n  kept: {{ type: disk, inputs: [in], size_max: 256MiB }}\n\
             processors:\n  risky: {{ type: fatal, inputs: [kept]{options} }}\n\
             sinks:\n  out: {{ type: file, inputs: [risky], format: raw, path: \"{place}/out.log\" }}\n\
             \x20 beside: {{ type: file, inputs: [kept], format: raw, path: \"{place}/beside.log\" }}\n"
        );
        let program = Path::new(env!("CARGO_BIN_EXE_millstream")).with_file_name("examples/fatal");
        assert!(
            program.exists(),
            "{} is missing: build the workspace (`cargo test --workspace`)",
            program.display()
        );
        Program::start_program(&program, self.place(), &config)
    }

    /// Sends a record until it is kept.
    fn send(&self, record: &str) {
        let body = format!("{{\"message\": \"{record}\"}}");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {record}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let once = || -> io::Result<bool> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.starts_with("HTTP/1.1 200"))
        };
        wait_until("the record is kept", || once().unwrap_or(false));
    }

    fn delivered(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.place().join(file)).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(arguments)
            .args(["--api", &format!("127.0.0.1:{}", self.api)])
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// Sends records before and after the record `fatal`, and starts the program until it delivers.
    fn survives(&self, fatal: &str, options: &str) {
        let program = self.start(options);
        self.send("before");
        wait_until("it is delivered", || {
            self.delivered("out.log") == ["before"]
        });
        self.send("neighbor 1");
        // The process may die as soon as the record is kept, so no answer comes.
        let body = format!("{{\"message\": \"{fatal}\"}}");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        self.dies(program, fatal, 1);
        for start in 2..=STARTS {
            let program = self.start(options);
            if start < STARTS {
                self.dies(program, fatal, start);
                continue;
            }
            self.send("neighbor 2");
            let all = ["before", "neighbor 1", "neighbor 2"];
            wait_until("the neighbors are delivered", || {
                self.delivered("out.log") == all
            });
            wait_until("the other path delivers", || {
                self.delivered("beside.log").len() == 4
            });
            let status = self.said(&["status"]);
            assert!(
                status.contains("set aside as rejected records of out"),
                "{status}"
            );
            assert_eq!(program.stop(), Some(0));
        }
    }

    /// Waits until the program has died. Kills it if it hangs. `start` is the number of its start.
    fn dies(&self, program: Program, fatal: &str, start: usize) {
        if fatal == "hang" {
            wait_until("it has started", || {
                program.log().matches(" INFO started ").count() == start
            });
            sleep(HANGS);
            return program.kill();
        }
        assert_eq!(program.ended(), None, "a signal ends it");
    }

    /// The text of the rejected records.
    fn rejected(&self) -> String {
        let files = fs::read_dir(self.place().join("data/rejected")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        String::from_utf8_lossy(&fs::read(&files[0]).unwrap()).into_owned()
    }
}

fn check(fatal: &str, options: &str) {
    let rig = Rig::new();
    rig.survives(fatal, options);
    let rejected = rig.rejected();
    assert_eq!(rejected.matches("times in a row").count(), 1, "{rejected}");
    assert!(rejected.contains(fatal), "{rejected}");
}

#[test]
fn a_record_on_which_the_process_aborts_is_set_aside_and_its_neighbors_are_delivered() {
    check("abort", "");
}

#[test]
fn a_record_that_overflows_the_stack_of_a_processors_thread_is_set_aside() {
    check("overflow", ", parallelism: 2");
}

#[test]
fn a_record_that_takes_all_memory_is_set_aside() {
    check("memory", "");
}

#[test]
fn a_record_that_hangs_the_process_until_it_is_killed_is_set_aside() {
    check("hang", "");
}

#[test]
fn a_process_that_is_killed_again_and_again_sets_nothing_aside() {
    let rig = Rig::new();
    let program = rig.start("");
    let all: Vec<_> = (100..140)
        .map(|number| format!("record {number}"))
        .collect();
    all.iter().for_each(|record| rig.send(record));
    program.kill();
    for pause in 0..20 {
        let program = rig.start("");
        sleep(Duration::from_millis(20 * pause));
        program.kill();
    }
    let program = rig.start("").listens(rig.port);
    wait_until("everything is delivered", || {
        rig.delivered("out.log") == all
    });
    assert_eq!(program.stop(), Some(0));
    assert!(!rig.place().join("data/rejected").exists());
}
