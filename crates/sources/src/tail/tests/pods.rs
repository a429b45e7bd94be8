//! Tests of `kubernetes` with Docker's format, with other framings, and with roots in other forms.

use std::fs;

use super::{
    COMPONENT, Place, append,
    framed::{cri, messages},
};
use crate::{
    rig::{Downstream, Running},
    tail::options,
};

/// Reads `text` as the log of a pod.
fn read(text: &str, more: &str) -> (Vec<String>, Running, Downstream) {
    let (place, to) = (Place::new(), Downstream::durable());
    let directory = place.log("shop_web-1_0a1b/nginx");
    fs::create_dir_all(&directory).unwrap();
    append(&directory.join("0.log"), text);
    let root = place.logs.display();
    let options = format!(r#"{{"kubernetes": {{"root": "{root}/./", "own_pod": "x"}}{more}}}"#);
    let running = Running::once(&COMPONENT, &options, &to, &place.state);
    (messages(&to), running, to)
}

#[test]
fn logs_of_docker_are_read_like_those_of_cri() {
    let docker = |stream: &str, text: &str| {
        let time = "2026-01-02T03:04:05.000000006Z";
        format!(r#"{{"log":"{text}","stream":"{stream}","time":"{time}"}}"#) + "\n"
    };
    let text = [
        docker("stdout", r"one \u00e4\n"),
        docker("stdout", "a line in "),
        docker("stderr", r"between\r\n"),
        docker("stdout", r"two parts\n"),
        docker("stdout", r"\n"),
        r#"{"level":"info"}"#.to_owned() + "\n",
    ];
    let (messages, running, to) = read(&text.concat(), "");
    assert_eq!(
        messages,
        ["one \u{e4}", "between", "a line in two parts", ""]
    );
    assert_eq!(running.rejected.batches().len(), 1);
    let batch = &to.batches()[0];
    assert_eq!(batch.tag.as_str(), "kube.shop.web-1.nginx");
    assert_eq!(batch.values.get("kubernetes.uid"), Some("0a1b"));
}

#[test]
fn the_lines_of_each_stream_are_joined_behind_the_runtime() {
    let more = r#", "framing": {"multiline": {"start": "^\\d"}}"#;
    let text = [
        cri("stdout", "F", "1 one"),
        cri("stderr", "F", "1 wrong\r"),
        cri("stdout", "F", "  at a"),
        cri("stderr", "P", "  at "),
        cri("stdout", "F", "2 two"),
        cri("stderr", "F", "b\r"),
        cri("stdout", "P", "3 thr"),
        cri("stdout", "P", "e\r"),
        cri("stdout", "F", ""),
    ];
    let (mut messages, ..) = read(&text.concat(), more);
    messages.sort();
    let expected = ["1 one\n  at a", "1 wrong\n  at b", "2 two", "3 thre"];
    assert_eq!(messages, expected);
}

#[test]
fn a_framing_that_cannot_be_is_refused_and_cri_is_accepted() {
    let check = |framing: &str| {
        let json = format!(r#"{{"kubernetes": {{}}{framing}}}"#);
        options::check(&crate::rig::node(serde_json::from_str(&json).unwrap()))
    };
    for framing in ["", r#", "framing": "cri""#] {
        assert!(check(framing).is_ok(), "{framing}");
    }
    let problems = check(r#", "framing": "lines""#).unwrap_err();
    assert!(format!("{problems:?}").contains("container runtimes"));
}
