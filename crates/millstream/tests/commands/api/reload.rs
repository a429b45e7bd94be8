//! `millstream reload`, `POST /reload` and SIGHUP.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output},
};

use super::{get_here, send_three};
use crate::program::{Program, free_port, wait_until};

fn config(directory: &Path, port: u16, api: u16, processors: &str, input: &str) -> String {
    format!(
        "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n{processors}\
         sinks:\n  nowhere: {{ type: discard, inputs: [{input}] }}\n",
        directory.display()
    )
}

fn reload(api: u16) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["reload", "--api", &format!("127.0.0.1:{api}")])
        .output()
        .unwrap()
}

fn post(api: u16, more: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", api)).unwrap();
    write!(
        stream,
        "POST /reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n{more}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_reload_says_what_became_of_each_node_and_a_broken_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let write = |processors: &str, input: &str| {
        let text = config(place, port, api, processors, input);
        fs::write(place.join("millstream.yaml"), text).unwrap();
    };
    let plain = config(place, port, api, "", "fleet");
    let program = Program::start(place, &plain).listens(port);
    let filtered = |count: u64| {
        let meter = format!("millstream_records_filtered_total{{component=\"ones\"}} {count}");
        wait_until("the records are filtered", || {
            get_here(api, "/metrics").contains(&meter)
        });
    };

    let ones =
        "processors:\n  ones: { type: filter, inputs: [fleet], where: { not: { .n: 1 } } }\n";
    write(ones, "ones");
    let output = reload(api);
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert_eq!(
        page,
        "NODE     RESULT\nfleet    kept\nones     added\nnowhere  reconnected\n"
    );
    send_three(port);
    filtered(3);
    assert!(get_here(api, "/status").contains("\"name\":\"ones\""));

    write(
        "processors:\n  ones: { type: filter, inputs: [fleet], wher: 1 }\n",
        "ones",
    );
    let output = reload(api);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("millstream.yaml:6:"), "{errors}");
    assert!(errors.ends_with("nothing has changed\n"), "{errors}");
    // The files do not say what runs, until a reload succeeds.
    let failed = || get_here(api, "/metrics").contains("\nmillstream_reload_failed 1\n");
    let health = get_here(api, "/health");
    assert!(health.starts_with("HTTP/1.1 200 ") && failed(), "{health}");
    assert!(health.contains("\"verdict\":\"degraded\""), "{health}");
    assert!(
        health.contains("the last reload failed: 1 error"),
        "{health}"
    );
    let page = super::status(&["--api", &format!("127.0.0.1:{api}")]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert_eq!(page.status.code(), Some(1), "{text}");
    assert!(text.contains("configuration degraded for "), "{text}");
    send_three(port);
    filtered(6);

    fs::write(place.join("millstream.yaml"), &plain).unwrap();
    let output = reload(api);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("ones     removed\n"), "{page}");
    assert!(!failed() && get_here(api, "/health").contains("\"verdict\":\"healthy\""));
    send_three(port);
    let settled = "millstream_records_settled_total{component=\"nowhere\"} 3";
    wait_until("the records arrive", || {
        get_here(api, "/metrics").contains(settled)
    });
    assert!(!get_here(api, "/metrics").contains("component=\"ones\""));
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_renamed_source_takes_over_the_listener_and_shares_it_with_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let write = |text: &str| fs::write(place.join("millstream.yaml"), text).unwrap();
    let plain = config(place, port, api, "", "fleet");
    let program = Program::start(place, &plain).listens(port);
    let shows = |sample: &str| {
        wait_until(sample, || get_here(api, "/metrics").contains(sample));
    };
    let open = TcpStream::connect(("127.0.0.1", port)).unwrap();
    shows("millstream_peer_connections{component=\"fleet\",peer=\"127.0.0.1\"} 1");

    let more = format!("  twice: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\nsinks:");
    let renamed = plain.replace("fleet", "hosts");
    let both = renamed.replace("[hosts]", "[hosts, twice]");
    write(&both.replace("sinks:", &more));
    let output = reload(api);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("Address already in use"), "{errors}");

    write(&renamed);
    let page = String::from_utf8(reload(api).stdout).unwrap();
    assert!(page.contains("hosts    added\n"), "{page}");
    assert!(page.contains("fleet    removed\n"), "{page}");
    drop(open);
    send_three(port);
    shows("millstream_records_settled_total{component=\"nowhere\"} 3");
    shows("millstream_records_sent_total{component=\"hosts\"} 3");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn nodes_are_added_and_settings_that_need_a_restart_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let plain = config(place, port, api, "", "fleet");
    let program = Program::start(place, &plain).listens(port);
    let new = plain.replace("data_dir:", "memory_max: 256MiB\ndata_dir:");
    let new = format!("{new}  more: {{ type: discard, inputs: [fleet] }}\n");
    fs::write(place.join("millstream.yaml"), new).unwrap();
    let page = String::from_utf8(reload(api).stdout).unwrap();
    assert!(page.contains("\nmore     added\n"), "{page}");
    assert!(
        page.contains("\nmemory_max: the setting has changed; this needs a restart\n"),
        "{page}"
    );
    send_three(port);
    let settled = "millstream_records_settled_total{component=\"more\"} 3";
    wait_until("the new sink gets the records", || {
        get_here(api, "/metrics").contains(settled)
    });
    program.signal("HUP");
    wait_until("the reload is logged", || {
        program.log().contains("reloaded: 3 kept")
    });
    assert_eq!(program.stop(), Some(0));
}

/// A source and a disk channel with two sinks. `stuck` is the configuration of the second sink, which cannot write.
fn with_stuck_sink(place: &Path, ports: (u16, u16), size: &str, stuck: &str) -> String {
    let (port, api) = ports;
    let text = config(place, port, api, "", "kept");
    let channel =
        format!("channels:\n  kept: {{ type: disk, inputs: [fleet], size_max: {size} }}\nsinks:\n");
    text.replace("sinks:\n", &channel) + stuck
}

#[test]
fn a_reload_that_removes_a_sink_with_unsettled_records_is_refused_without_forget() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let closed = free_port();
    let stuck = |name: &str| {
        format!("  {name}: {{ type: forward, inputs: [kept], servers: \"127.0.0.1:{closed}\" }}\n")
    };
    let text = |size: &str, stuck: &str| with_stuck_sink(place, (port, api), size, stuck);
    let program = Program::start(place, &text("1GiB", &stuck("stuck"))).listens(port);
    send_three(port);
    let settled = |sink: &str| {
        let meter = format!("millstream_records_settled_total{{component=\"{sink}\"}} 3");
        wait_until("the other sink settles", || {
            get_here(api, "/metrics").contains(&meter)
        });
    };
    settled("nowhere");
    // A sink that is removed or renamed would never write its unsettled records.
    for removed in [String::new(), stuck("renamed")] {
        fs::write(place.join("millstream.yaml"), text("1GiB", &removed)).unwrap();
        let output = reload(api);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("bytes that stuck has not settled"),
            "{errors}"
        );
        assert!(
            errors.contains("`millstream reload --forget stuck`"),
            "{errors}"
        );
    }
    // This reload also changes the options of the channel.
    fs::write(place.join("millstream.yaml"), text("512MiB", "")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args([
            "reload",
            "--forget",
            "stuck",
            "--api",
            &format!("127.0.0.1:{api}"),
        ])
        .output()
        .unwrap();
    let page = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert!(
        page.contains("stuck    removed\n") && page.contains("kept     replaced\n"),
        "{page}"
    );
    wait_until("the channel forgets it", || {
        program.log().contains("stuck is forgotten")
    });
    wait_until("the channel has its new size", || {
        get_here(api, "/metrics").contains("size_max_bytes{component=\"kept\"} 536870912")
    });
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_reload_that_corrects_the_address_of_a_sink_delivers_its_backlog() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api, wrong, right) = (free_port(), free_port(), free_port(), free_port());
    let text = |to: u16| {
        let sinks = ["kept", "fleet"].map(|input| {
            format!("  to_{input}: {{ type: forward, inputs: [{input}], servers: \"127.0.0.1:{to}\" }}\n")
        });
        with_stuck_sink(place, (port, api), "1GiB", &sinks.concat())
    };
    let program = Program::start(place, &text(wrong)).listens(port);
    send_three(port);
    wait_until("the sinks cannot write", || {
        program.log().matches("retrying in").count() >= 2
    });
    let (there, there_api) = (place.join("there"), free_port());
    fs::create_dir(&there).unwrap();
    let receiver = Program::start(&there, &config(&there, right, there_api, "", "fleet"));
    let receiver = receiver.listens(right);
    fs::write(place.join("millstream.yaml"), text(right)).unwrap();
    let output = reload(api);
    let page = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(page.contains("to_kept   replaced\n"), "{page}");
    // The records of the sink without a channel either arrive as well, or were refused, and their sender was notified.
    wait_until("the records of the channel arrive", || {
        let page = get_here(there_api, "/metrics");
        let meter = "millstream_records_settled_total{component=\"nowhere\"} ";
        let count = page
            .split(meter)
            .nth(1)
            .and_then(|rest| rest.split('\n').next());
        count.and_then(|count| count.parse::<u64>().ok()) >= Some(3)
    });
    assert_eq!(program.stop(), Some(0));
    assert_eq!(receiver.stop(), Some(0));
}

#[test]
fn a_pipeline_that_has_ended_does_not_prevent_a_reload_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let text = |ones: &str, input: &str| {
        let over = "  over: { type: filter, inputs: [ended], where: { .n: 1 } }\n";
        let processors = format!("processors:\n{over}{ones}");
        let text = config(place, port, api, &processors, input);
        let text = text.replace("sources:\n", "sources:\n  ended: { type: stdin }\n");
        text + "  gone: { type: discard, inputs: [over] }\n"
    };
    let program = Program::start(place, &text("", "fleet")).listens(port);
    wait_until("the first flow has ended", || {
        get_here(api, "/status")
            .matches("\"state\":\"ended\"")
            .count()
            == 2
    });
    let ones = "  ones: { type: filter, inputs: [fleet], where: { not: { .n: 1 } } }\n";
    fs::write(place.join("millstream.yaml"), text(ones, "ones")).unwrap();
    let output = reload(api);
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert!(page.contains("gone     kept\n"), "{page}");
    // A node that has ended cannot get a new input.
    let revived = text(ones, "ones").replace("inputs: [over]", "inputs: [over, fleet]");
    fs::write(place.join("millstream.yaml"), revived).unwrap();
    let output = reload(api);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("gone has ended"), "{errors}");
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn a_web_page_in_a_browser_may_not_reload() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (port, api) = (free_port(), free_port());
    let program = Program::start(place, &config(place, port, api, "", "fleet")).listens(port);
    let answer = post(api, "Origin: http://localhost\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(post(api, "").starts_with("HTTP/1.1 200"));
    assert!(get_here(api, "/reload").starts_with("HTTP/1.1 405"));
    assert_eq!(program.stop(), Some(0));
}
