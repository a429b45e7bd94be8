//! The verifier accepts the generator's output and detects every kind of defect.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn millbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millbench"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Writes a file with two flows (independently numbered sequences) of 1,000 data records each. Each flow ends with an end record.
fn generate(path: &Path) {
    let path = path.to_str().unwrap();
    let arguments = [
        "generate",
        "--file",
        path,
        "--records",
        "2k",
        "--flows",
        "2",
    ];
    let output = millbench(&[&arguments[..], &["--run", "7", "--chunk", "100"]].concat());
    assert!(output.status.success(), "{output:?}");
}

/// Runs the verifier. Returns its exit code and its JSON report.
fn verify(arguments: &[&str]) -> (Option<i32>, Value) {
    let output = millbench(&[&["verify", "--json"], arguments].concat());
    let report = serde_json::from_slice(&output.stdout);
    (output.status.code(), report.unwrap_or(Value::Null))
}

/// Generates a file, applies `change` to its lines, and verifies the result. Returns what [`verify`] returns.
fn changed(change: impl FnOnce(Vec<String>) -> String) -> (Option<i32>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.log");
    generate(&path);
    let lines = fs::read_to_string(&path).unwrap();
    let text = change(lines.lines().map(str::to_owned).collect());
    fs::write(&path, text).unwrap();
    verify(&[path.to_str().unwrap()])
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The index in `lines` of flow 0's data record with this number.
fn at(lines: &[String], number: u64) -> usize {
    let head = format!("mb1 00000007.0000 d{number:016} ");
    lines
        .iter()
        .position(|line| line.starts_with(&head))
        .unwrap()
}

#[test]
fn an_unchanged_output_passes() {
    let (code, report) = changed(|lines| joined(&lines));
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["flows"][0]["sent"], 1000);
    assert_eq!(report["flows"][1]["distinct"], 1000);
    assert_eq!(report["right"], true);
}

#[test]
fn lost_records_are_reported_as_ranges() {
    let (code, report) = changed(|mut lines| {
        let from = at(&lines, 20);
        lines.drain(from..from + 5);
        let last = at(&lines, 999);
        lines.remove(last);
        joined(&lines)
    });
    assert_eq!(code, Some(1));
    assert_eq!(report["flows"][0]["lost"], 6);
    let ranges = serde_json::json!([[20, 24], [999, 999]]);
    assert_eq!(report["flows"][0]["missing"], ranges);
    assert_eq!(report["flows"][1]["lost"], 0);
}

#[test]
fn repeated_records_are_counted() {
    let (code, report) = changed(|mut lines| {
        let from = at(&lines, 20);
        let again: Vec<String> = lines[from..from + 7].to_vec();
        lines.extend(again);
        joined(&lines)
    });
    assert_eq!(code, Some(1));
    assert_eq!(report["flows"][0]["duplicated"], 7);
    assert_eq!(report["flows"][0]["reordered"], 0);
    assert_eq!(report["flows"][0]["received"], 1007);
}

#[test]
fn a_record_that_follows_a_later_one_counts_as_reordered() {
    let (code, report) = changed(|mut lines| {
        let from = at(&lines, 20);
        lines.swap(from, from + 1);
        joined(&lines)
    });
    assert_eq!(code, Some(1));
    assert_eq!(report["flows"][0]["reordered"], 1);
    assert_eq!(report["flows"][0]["lost"], 0);
}

#[test]
fn a_changed_byte_makes_a_record_corrupt_and_lost() {
    let (code, report) = changed(|mut lines| {
        let from = at(&lines, 20);
        let last = lines[from].pop().unwrap();
        lines[from].push(if last == 'x' { 'y' } else { 'x' });
        joined(&lines)
    });
    assert_eq!(code, Some(1));
    assert_eq!(report["corrupt"], 1);
    assert_eq!(report["flows"][0]["lost"], 1);
    let line = report["corrupt_lines"][0]["line"].as_u64().unwrap();
    assert!(line > 1, "{report:#}");
}

#[test]
fn a_truncated_line_and_two_joined_lines_are_corrupt() {
    let (_, report) = changed(|mut lines| {
        let from = at(&lines, 20);
        lines[from].truncate(60);
        let next = lines.remove(at(&lines, 31));
        let before = at(&lines, 30);
        lines[before] += &next;
        joined(&lines)
    });
    assert_eq!(report["corrupt"], 2);
    assert_eq!(report["flows"][0]["lost"], 3);
}

#[test]
fn an_incomplete_last_line_is_corrupt() {
    let (code, report) = changed(|lines| {
        let text = joined(&lines);
        text[..text.len() - 1].to_owned()
    });
    assert_eq!(code, Some(1));
    assert_eq!(report["corrupt"], 1);
    // The incomplete last line was the end record of flow 1.
    assert_eq!(report["flows"][1]["basis"], "unknown");
}

#[test]
fn without_an_end_record_the_number_sent_is_unknown_unless_an_option_gives_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.log");
    generate(&path);
    let lines = fs::read_to_string(&path).unwrap();
    let data: Vec<String> = lines
        .lines()
        .filter(|line| line.as_bytes()[18] == b'd')
        .map(str::to_owned)
        .collect();
    fs::write(&path, joined(&data)).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(verify(&[path]).0, Some(1));
    assert_eq!(verify(&[path, "--allow", "unended"]).0, Some(0));
    assert_eq!(verify(&[path, "--sent", "1000"]).0, Some(0));
    let (code, report) = verify(&[path, "--sent", "1000", "--sent", "00000007.0001=1001"]);
    assert_eq!((code, &report["flows"][1]["lost"]), (Some(1), &1.into()));
    // The verification also fails if more records arrived than were sent.
    assert_eq!(verify(&[path, "--sent", "999"]).0, Some(1));
}

#[test]
fn an_empty_output_fails() {
    let (code, _) = changed(|_| String::new());
    assert_eq!(code, Some(1));
}

#[test]
fn json_lines_are_read_and_incomplete_objects_are_corrupt() {
    let json = |line: &String| format!(r#"{{"a":1,"message":"{line}","time":"x"}}"#);
    let (code, report) = changed(|lines| {
        let lines: Vec<String> = lines.iter().map(json).collect();
        joined(&lines)
    });
    assert_eq!(code, Some(0), "{report:#}");
    let (code, report) = changed(|lines| {
        let mut lines: Vec<String> = lines.iter().map(json).collect();
        lines[5].pop();
        // `\u002d` decodes to `-`, so the record is unchanged.
        lines[6] = lines[6].replace('-', "\\u002d");
        joined(&lines)
    });
    assert_eq!((code, &report["corrupt"]), (Some(1), &1.into()));
}

#[test]
fn one_report_covers_several_files_directories_and_gzip() {
    use std::io::Write as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole");
    generate(&path);
    let lines = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("a.log"), joined(&lines[..700])).unwrap();
    fs::write(directory.path().join("b.log"), joined(&lines[700..1500])).unwrap();
    let packed = fs::File::create(inner.join("c.log.gz")).unwrap();
    // A gzip file of two members.
    for part in [&lines[1500..1700], &lines[1700..]] {
        let mut gzip = flate2::write::GzEncoder::new(&packed, flate2::Compression::fast());
        gzip.write_all(joined(part).as_bytes()).unwrap();
        gzip.finish().unwrap();
    }
    let (code, report) = verify(&[directory.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["files"], 3);

    let whole = fs::read(inner.join("c.log.gz")).unwrap();
    fs::write(inner.join("c.log.gz"), &whole[..whole.len() - 20]).unwrap();
    let (code, _) = verify(&[directory.path().to_str().unwrap()]);
    assert_eq!(code, Some(1));
}

#[test]
fn the_option_as_flume_prints_flumes_integrity_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.log");
    generate(&path);
    let mut lines = fs::read_to_string(&path).unwrap();
    let first = lines.lines().next().unwrap().to_owned();
    lines += &format!("{first}\n");
    fs::write(&path, lines).unwrap();
    let output = millbench(&["verify", "--as", "flume", path.to_str().unwrap()]);
    let expect = "WARNING: 00000007/hammer-0: dups: 1\n\
                  INFO: 00000007/hammer-0: total=1001 is OK\n\
                  INFO: 00000007/hammer-1: total=1000 is OK\n\
                  INFO: grand total=2001\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expect);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn after_a_rotation_the_generator_writes_a_new_file_and_splits_no_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.log");
    let mut generator = Command::new(env!("CARGO_BIN_EXE_millbench"))
        .args(["generate", "--records", "20k", "--rate", "40k", "--file"])
        .arg(&path)
        .spawn()
        .unwrap();
    for at in 0..4 {
        while !path.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(60));
        fs::rename(&path, directory.path().join(format!("app.log.{at}"))).unwrap();
    }
    assert!(generator.wait().unwrap().success());
    let (code, report) = verify(&[directory.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["flows"][0]["sent"], 20_000);
    assert!(report["files"].as_u64().unwrap() >= 4, "{report:#}");
}

#[test]
fn an_invalid_command_line_exits_with_code_64() {
    for arguments in [
        &["generate"][..],
        &["generate", "--records", "5"],
        &["generate", "--records", "5", "--stdout", "--file", "x"],
        &["generate", "--records", "5", "--stdout", "--size", "10"],
        &["generate", "--records", "5", "--stdout", "--acks"],
        &["generate", "--records", "5", "--stdout", "--repeat"],
        &["generate", "--records", "5", "--forward", "nowhere"],
        &[
            "generate",
            "--records",
            "5",
            "--forward",
            "a:1",
            "--ledger",
            "x",
        ],
        &["reader", "--threads", "2"],
        &["verify"],
    ] {
        assert_eq!(
            millbench(arguments).status.code(),
            Some(64),
            "{arguments:?}"
        );
    }
}

#[test]
fn syslog_messages_of_every_format_carry_the_records() {
    use std::io::Read as _;
    for (form, octets) in [
        ("rfc3164", false),
        ("rfc5424", false),
        ("rfc3164", true),
        ("rfc5424", true),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut arguments = vec!["generate", "--syslog", &address, "--form", form];
        arguments.extend(["--records", "1000", "--chunk", "64"]);
        if octets {
            arguments.push("--octets");
        }
        assert!(millbench(&arguments).status.success());
        let bytes = reader.join().unwrap();
        let messages = match octets {
            false => String::from_utf8(bytes).unwrap(),
            // Each octet count covers exactly its message.
            true => {
                let (mut rest, mut messages) = (&bytes[..], String::new());
                while !rest.is_empty() {
                    let space = rest.iter().position(|byte| *byte == b' ').unwrap();
                    let count = str::from_utf8(&rest[..space]).unwrap().parse::<usize>();
                    let end = space + 1 + count.unwrap();
                    messages += str::from_utf8(&rest[space + 1..end]).unwrap();
                    messages.push('\n');
                    rest = &rest[end..];
                }
                messages
            }
        };
        assert_eq!(messages.lines().count(), 1001);
        let second = if form == "rfc3164" {
            "]: mb1 "
        } else {
            "\"] mb1 "
        };
        assert!(
            messages
                .lines()
                .all(|line| line.starts_with("<13>") && line.contains(second))
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.log");
        fs::write(&path, messages).unwrap();
        let (code, report) = verify(&[path.to_str().unwrap()]);
        assert_eq!(
            (code, &report["flows"][0]["sent"]),
            (Some(0), &1000.into()),
            "{report:#}"
        );
    }
}

#[test]
fn each_syslog_datagram_carries_one_record() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .unwrap();
    let address = format!("udp://{}", socket.local_addr().unwrap());
    let sent = millbench(&["generate", "--syslog", &address, "--records", "50"]);
    assert!(sent.status.success(), "{sent:?}");
    let mut datagram = [0; 2048];
    for _ in 0..51 {
        let length = socket.recv(&mut datagram).unwrap();
        assert!(datagram.starts_with(b"<13>") && !datagram[..length].ends_with(b"\n"));
    }
}
