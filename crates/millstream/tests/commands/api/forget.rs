//! A running channel forgets a consumer whose sink is no longer configured.

use std::{fmt::Write as _, path::Path, process::Command};

use super::get_here;
use crate::program::{Program, free_port, wait_until};

/// A generator that never ends, a small channel that it fills, and these sinks, which read the channel.
fn config(place: &Path, api: u16, sinks: &[&str]) -> String {
    let mut text = format!(
        "data_dir: {}/data\napi: {{ listen: \"127.0.0.1:{api}\" }}\n\
         sources:\n  load: {{ type: generate, size: 1KiB }}\n\
         channels:\n  kept: {{ type: disk, inputs: [load], size_max: 64MiB, sync: never }}\nsinks:\n",
        place.display()
    );
    for sink in sinks {
        let _ = writeln!(text, "  {sink}: {{ type: discard, inputs: [kept] }}");
    }
    text
}

fn forget(consumer: &str, channel: &str, api: u16) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["channel", "forget", "--running", "--consumer", consumer])
        .args([channel, "--api", &format!("127.0.0.1:{api}")])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_full_channel_continues_when_the_consumer_that_holds_it_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (place, api) = (directory.path(), free_port());
    let program = Program::start(place, &config(place, api, &["out", "old"])).listens(api);
    wait_until("records flow", || {
        get_here(api, "/status").contains("\"records_settled\"")
    });
    assert_eq!(program.stop(), Some(0));
    let program = Program::start(place, &config(place, api, &["out"])).listens(api);
    // The channel is degraded while everything still works.
    let gauge = |value: u64| {
        let line = format!("millstream_consumers_without_sink{{component=\"kept\"}} {value}\n");
        get_here(api, "/metrics").contains(&line)
    };
    let health = get_here(api, "/health");
    let command = "channel forget --running --consumer old kept";
    assert!(gauge(1) && health.contains(command), "{health}");
    let settled = || -> u64 {
        let page = get_here(api, "/metrics");
        let name = "millstream_records_settled_total{component=\"out\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    wait_until("the channel is full", || {
        get_here(api, "/status").contains("blocked")
    });
    assert!(program.log().contains(command));
    assert!(get_here(api, "/status").contains(&format!("size_max is 67108864 bytes); give a sink behind the channel this name again, or drop what only this consumer still needs with `millstream {command}`")));
    let (code, text) = forget("out", "kept", api);
    assert_eq!(code, Some(1));
    assert!(text.contains("without a sink are: old"), "{text}");
    assert_eq!(forget("old", "other", api).0, Some(1));
    let before = settled();
    // The channel can be given by its directory, as for the other commands, or by its name.
    let kept = place.join("data/channels/kept");
    let (code, text) = forget("old", kept.to_str().unwrap(), api);
    assert_eq!(code, Some(0), "{text}");
    wait_until("records flow again", || settled() > before + 100_000);
    assert!(gauge(0) && !get_here(api, "/status").contains("--consumer old"));
    let (code, text) = forget("old", "kept", api);
    assert_eq!(code, Some(1));
    assert!(text.contains("every consumer has a sink"), "{text}");
    let log = program.log();
    let change = "POST /channels/kept/forget?consumer=old: 200: forgotten";
    assert!(log.contains(change), "{log}");
    assert_eq!(program.stop(), Some(0));
}
