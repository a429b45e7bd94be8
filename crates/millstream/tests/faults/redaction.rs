//! Values that `api.redact` hides do not show in texts about their records: errors of programs, answers of servers, last
//! words of other programs; in the log, in `status`, among the rejected records and in samples.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use crate::program::{Program, free_port, wait_until};

// No port and no time of a log line contains the number.
const SECRET: &str = "hunter2 \\\"x\\\" 47-11";

/// A server that answers each request with its body: 503 to the first ones, 400 to the others.
fn quoting_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let status = if number < 20 { "503 Busy" } else { "400 Bad" };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream
                .get_mut()
                .write_all(&[head.as_bytes(), &body].concat());
        }
    });
    port
}

fn ask(port: u16, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn hidden_values_show_nowhere_in_texts_about_their_records() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api, server) = (free_port(), free_port(), quoting_server());
    let config = format!(
        "data_dir: {0}/data\napi: {{ listen: \"127.0.0.1:{api}\", redact: [.password] }}\n\
         sources:\n  in: {{ type: http, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         processors:\n\
         \x20 number: {{ type: remap, inputs: [in], program: '.n = to_int!(.password)' }}\n\
         \x20 quote: {{ type: exec, inputs: [in], command: [sh, -c, 'while read -r line; do case \"$line\" in *first*) echo null;; *) echo \"$line\" >&2; exit 1;; esac; done'] }}\n\
         sinks:\n\
         \x20 numbers: {{ type: file, inputs: [number, quote], path: \"{0}/out.log\" }}\n\
         \x20 server: {{ type: http, inputs: [in], url: \"http://127.0.0.1:{server}/\", retry: {{ max: 100ms }} }}\n",
        place.display()
    );
    let program = Program::start(place, &config).listens(port).listens(api);
    // The program answers the first record, and quotes the second one before it ends.
    let records = format!(
        "{{\"password\": \"letmein\", \"note\": \"first\"}}\n{{\"password\": \"{SECRET}\", \"note\": \"open\"}}\n"
    );
    let sending = thread::spawn(move || ask(port, "POST", "/", &records));
    let mut seen = String::new();
    let mut is_seen = |path: &str, wanted: &str| {
        wait_until(&format!("{path} shows {wanted}"), || {
            let answer = ask(api, "GET", path, "");
            let is_there = answer.contains(wanted);
            seen.push_str(&answer);
            is_there
        });
    };
    is_seen(
        "/status",
        "503 Service Unavailable: {\\\"password\\\":\\\"***\\\"",
    );
    is_seen("/rejected/number", "***");
    is_seen("/rejected/quote", "standard error");
    is_seen(
        "/rejected/server",
        "400 Bad Request: {\\\"password\\\":\\\"***\\\"",
    );
    let answer = sending.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let log = program.log();
    for wanted in ["to_int", "\"***\"", "503 Service", "400 Bad", "open"] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    for secret in ["hunter2", "47-11", "letmein"] {
        assert!(!log.contains(secret), "{log}");
        assert!(!seen.contains(secret), "{seen}");
    }
    assert_eq!(program.stop(), Some(0));
}
