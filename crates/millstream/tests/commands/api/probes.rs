//! `/live`, `/ready` and `/health` as the probes of Kubernetes see them.

use std::{fs, net::TcpListener};

use serde_json::Value;

use super::{get_here, send_three};
use crate::program::{Program, free_port, wait_until};

/// The status and the body of the answer to a probe.
fn probe(api: u16, path: &str) -> (u16, Value) {
    let answer = get_here(api, path);
    let code = answer[9..12].parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (code, serde_json::from_str(body).unwrap())
}

#[test]
fn a_node_that_cannot_deliver_is_not_ready_and_the_process_lives() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let config = format!(
        "data_dir: {0}/data\nthreads: 1\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         sinks:\n  out: {{ type: file, inputs: [fleet], path: \"{0}/in-the-way/x.log\" }}\n",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(port);
    for path in ["/live", "/ready", "/health"] {
        assert_eq!(probe(api, path).0, 200, "{path}");
    }
    let place = directory.path().join("in-the-way");
    fs::write(&place, "").unwrap();
    send_three(port);
    wait_until("it is not ready", || probe(api, "/ready").0 == 503);
    let (_, page) = probe(api, "/ready");
    assert_eq!(page["failing"][0]["node"], "out", "{page}");
    assert!(
        page["failing"][0]["why"]
            .as_str()
            .unwrap()
            .contains("in-the-way"),
        "{page}"
    );
    assert_eq!(probe(api, "/live").0, 200);
    let state = "millstream_node_state{component=\"out\",state=\"retrying\"} 1";
    assert!(get_here(api, "/metrics").contains(state));
    fs::remove_file(&place).unwrap();
    wait_until("it is ready again", || probe(api, "/ready").0 == 200);
    assert_eq!(program.stop(), Some(0));
}

/// The server accepts requests and never answers, and the timeout of the sink is five minutes.
#[test]
fn an_instance_whose_records_wait_while_nothing_moves_is_unhealthy() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "data_dir: {}/data\nthreads: 1\napi: {{ listen: \"127.0.0.1:{api}\" }}\nhealth: {{ stalled: 2s }}\n\
         sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [fleet], size_max: 64MiB }}\n\
         sinks:\n  out: {{ type: http, inputs: [buffer], url: \"http://{}/in\", retry: {{ timeout: 5m }} }}\n",
        directory.path().display(),
        silent.local_addr().unwrap()
    );
    let program = Program::start(directory.path(), &config).listens(port);
    send_three(port);
    wait_until("it is unhealthy", || probe(api, "/health").0 == 503);
    let (_, page) = probe(api, "/health");
    let failing = &page["failing"][0];
    assert_eq!(
        (&failing["node"], &failing["state"]),
        (&"out".into(), &"blocked".into()),
        "{page}"
    );
    let why = failing["why"].as_str().unwrap();
    assert!(
        why.contains("bytes wait") && why.contains("nothing has moved"),
        "{why}"
    );
    assert_eq!(probe(api, "/ready").0, 503);
    assert_eq!(probe(api, "/live").0, 200);
    assert!(get_here(api, "/metrics").contains("millstream_healthy 0\n"));
    program.kill();
}

#[test]
fn a_reload_changes_the_fingerprint_of_the_configuration_unless_it_fails() {
    let directory = tempfile::tempdir().unwrap();
    let (port, api) = (free_port(), free_port());
    let config = |keep: &str| {
        format!(
            "data_dir: {}/data\nthreads: 1\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
             sources:\n  fleet: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
             processors:\n  some: {{ type: fields, inputs: [fleet], remove: [{keep}] }}\n\
             sinks:\n  out: {{ type: discard, inputs: [some] }}\n",
            directory.path().display()
        )
    };
    let program = Program::start(directory.path(), &config(".a")).listens(port);
    let hash = || {
        let page = get_here(api, "/metrics");
        let line = page
            .lines()
            .find(|line| line.starts_with("millstream_config_info"));
        line.unwrap().to_owned()
    };
    let before = hash();
    fs::write(directory.path().join("millstream.yaml"), config(".b")).unwrap();
    let reload = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["reload", "--api", &format!("127.0.0.1:{api}")])
        .output()
        .unwrap();
    assert!(reload.status.success(), "{reload:?}");
    let after = hash();
    assert_ne!(before, after);
    fs::write(directory.path().join("millstream.yaml"), config("x: [")).unwrap();
    let _ = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["reload", "--api", &format!("127.0.0.1:{api}")])
        .output();
    assert_eq!(hash(), after);
    assert_eq!(program.stop(), Some(0));
}
