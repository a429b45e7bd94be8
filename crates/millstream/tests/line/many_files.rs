//! tail reads more files than the process may open: in turns, while the disk channel, the sink and the API work.

use std::{
    collections::HashMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
};

use crate::program::{Program, free_port, wait_until};

/// Tailed files.
const FILES: usize = 800;
/// The hard limit of open files.
const LIMIT: &str = "256";

fn append(directory: &Path, name: &str, line: &str) {
    let path = directory.join(name);
    let mut file = fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    writeln!(file, "{line}").unwrap();
}

fn status(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn more_files_than_the_process_may_open_are_read_in_turns() {
    let directory = tempfile::tempdir().unwrap();
    let (place, port) = (directory.path().display(), free_port());
    let config = format!(
        "data_dir: {place}/data\napi: {{ listen: \"127.0.0.1:{port}\" }}\nthreads: 2\n\
         sources:\n  in: {{ type: tail, paths: [\"{place}/logs/*.log\"], rescan: 1s }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{place}/out\" }}\n"
    );
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let write = |round: usize| {
        for file in 0..FILES {
            append(&logs, &format!("{file}.log"), &format!("{round} of {file}"));
        }
    };
    let arrived = || {
        let text = fs::read_to_string(directory.path().join("out")).unwrap_or_default();
        let mut times: HashMap<String, usize> = HashMap::new();
        for line in text.lines() {
            *times.entry(line.to_owned()).or_default() += 1;
        }
        times
    };
    write(0);
    let limit = format!("ulimit -n {LIMIT} && exec \"$@\"");
    let shell = ["sh", "-c", &limit, "sh"];
    let program = Program::start_after(directory.path(), &config, &shell).listens(port);
    wait_until("the lines of all files", || arrived().len() == FILES);
    let text = status(port);
    assert!(text.contains("may open only 256 files"), "{text}");
    write(1);
    wait_until("more lines", || arrived().len() == 2 * FILES);
    // Rotates all files at the same time.
    for file in 0..FILES {
        let path = logs.join(format!("{file}.log"));
        fs::rename(&path, path.with_extension("log.1")).unwrap();
        append(&logs, &format!("{file}.log.1"), &format!("late of {file}"));
    }
    write(2);
    wait_until("the ends and the new files", || {
        arrived().len() == 4 * FILES
    });
    assert!(status(port).contains("200 OK"));
    assert_eq!(program.stop(), Some(0));
    assert!(arrived().values().all(|times| *times == 1));
}
