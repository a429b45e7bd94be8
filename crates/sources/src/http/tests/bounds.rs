//! Tests of authentication and limits.

use std::{
    io::Write,
    net::Shutdown,
    thread::sleep,
    time::{Duration, Instant},
};

use millstream_wire::compression::{Codec, compress};
use serde_json::json;

use super::{COMPONENT, Rig, until};
use crate::rig::try_build;

#[test]
fn requests_need_the_token() {
    let rig = Rig::new(r#", "auth": {"bearer": "s3cret"}"#);
    for header in [
        "X: y",
        "Authorization: Bearer",
        "Authorization: Bearer s3cre",
        "Authorization: Bearer s3cret2",
        "Authorization: Basic s3cret",
        "Authorization: s3cret",
    ] {
        let answer = rig.post("/", &[header], b"{}");
        assert_eq!(answer.status, 401, "{header}");
        assert!(answer.has("www-authenticate: Bearer"));
    }
    for header in [
        "Authorization: Bearer s3cret",
        "authorization: bearer  s3cret ",
    ] {
        assert_eq!(rig.post("/", &[header], b"{}").status, 200, "{header}");
    }
    let mut client = rig.connect();
    client.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().json(), json!({"status": "ok"}));
    assert_eq!(rig.records().len(), 2);
    rig.running.stop();
}

#[test]
fn protocols_that_the_source_does_not_speak_are_refused_unless_their_path_is_named() {
    let foreign = [
        "/_bulk",
        "/services/collector/event",
        "/loki/api/v1/push",
        "/insert/jsonline",
        "/app",
        "//",
    ];
    let rig = Rig::new("");
    for path in foreign {
        let answer = rig.post(path, &[], b"{\"index\":{}}\n{\"n\":1}\n");
        assert_eq!(answer.status, 404, "{path}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        let told = [path, "JSON lines at `/`", "`/v1/logs`", "the option `path`"];
        assert!(told.iter().all(|text| error.contains(text)), "{error}");
    }
    assert_eq!(rig.post("/?a=b", &[], b"{}").status, 200);
    assert_eq!(rig.records().len(), 1);
    rig.running.stop();
    let rig = Rig::new(r#", "path": ["/app", "/_bulk", "/logs/*"]"#);
    for (path, status) in [
        ("/app", 200),
        ("/_bulk", 200),
        ("/logs/", 200),
        ("/logs/a/b", 200),
        ("/", 404),
        ("/logs", 404),
        ("/app/", 404),
    ] {
        assert_eq!(rig.post(path, &[], b"{}").status, status, "{path}");
    }
    rig.running.stop();
}

#[test]
fn each_unsupported_path_method_and_type_gets_its_status() {
    let rig = Rig::new(r#", "path": "/in""#);
    let json = "Content-Type: application/json; charset=utf-8";
    let cases: [(&str, &[&str], u16); 12] = [
        ("/in", &[], 200),
        ("/in?a=b", &[json], 200),
        ("/in", &["Content-Type: application/x-ndjson"], 200),
        ("/in", &["Content-Type: text/html"], 415),
        ("/in", &["Content-Type: application/x-protobuf"], 415),
        ("/in", &["Content-Encoding: br"], 415),
        ("/in", &["Content-Encoding: identity"], 200),
        ("/other", &[], 404),
        ("/v1/traces", &[json], 404),
        ("/v1/metrics", &[json], 404),
        ("/v1/logs", &["Content-Type: text/plain"], 415),
        ("/v1/logs", &[], 415),
    ];
    for (path, headers, status) in cases {
        let answer = rig.post(path, headers, b"{}");
        assert_eq!(answer.status, status, "{path} {headers:?}: {answer:?}");
    }
    let mut client = rig.connect();
    client.write(b"PUT /in HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    let answer = client.answer();
    assert_eq!(answer.status, 405);
    assert!(answer.has("allow: POST"));
    assert_eq!(rig.records().len(), 4);
    rig.running.stop();
}

#[test]
fn a_request_above_the_limit_is_rejected_before_it_is_read() {
    let rig = Rig::new(r#", "limits": {"frame": "1MiB", "decompressed": "2MiB"}"#);
    let mut client = rig.connect();
    client.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(client.answer().status, 413);
    // A body without a length is rejected when it becomes too long.
    let mut client = rig.connect();
    client.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..17 {
        // The server may have closed the connection by then.
        let _ = client.0.get_mut().write_all(&chunk);
    }
    assert_eq!(client.answer().status, 413);
    // A decompression bomb: sixty megabytes of white space in a few kilobytes.
    for (codec, name) in [(Codec::Gzip, "gzip"), (Codec::Zstd, "zstd")] {
        let mut bomb = Vec::new();
        compress(codec, &vec![b' '; 64 << 20], &mut bomb).unwrap();
        assert!(bomb.len() < 1 << 20);
        let header = format!("Content-Encoding: {name}");
        assert_eq!(rig.post("/", &[&header], &bomb).status, 413);
    }
    let mut bomb = lz4_flex::frame::FrameEncoder::new(Vec::new());
    bomb.write_all(&vec![b' '; 64 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    let header = "Content-Encoding: lz4";
    assert_eq!(rig.post("/", &[header], &bomb).status, 413);
    // Small objects grow when they become records.
    let text = "{}\n".repeat(300_000);
    assert_eq!(rig.post("/", &[], text.as_bytes()).status, 413);
    assert!(rig.records().is_empty());
    assert_eq!(rig.post("/", &[], b"{}").status, 200);
    rig.running.stop();
}

#[test]
fn a_slow_body_is_accepted_and_one_that_stalls_is_rejected() {
    let rig = Rig::new(r#", "limits": {"idle": "2s"}"#);
    let mut slow = rig.connect();
    let mut endless = rig.connect();
    endless.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    for byte in b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"n\": 1}\n" {
        slow.write(&[*byte]);
        sleep(Duration::from_millis(5));
    }
    assert_eq!(slow.answer().status, 200);
    let start = Instant::now();
    while endless.is_silent() {
        assert!(start.elapsed() < Duration::from_secs(10));
        // Single bytes do not keep the request alive.
        endless.write(b" ");
        sleep(Duration::from_millis(100));
    }
    assert_eq!(endless.answer().status, 408);
    rig.running.stop();
}

#[test]
fn garbage_silence_and_incomplete_requests_leave_nothing_behind() {
    let rig = Rig::new(r#", "limits": {"handshake": "500ms"}"#);
    let mut silent = rig.connect();
    let mut head = rig.connect();
    head.write(b"POST / HTTP/1.1\r\nHost:");
    let mut garbage = rig.connect();
    garbage.write(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n");
    assert_eq!(garbage.answer().status, 400);
    let mut long = rig.connect();
    let endless = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 100 << 10]].concat();
    let _ = long.0.get_mut().write_all(&endless);
    assert_eq!(long.answer().status, 431);
    assert!(silent.is_closed() && head.is_closed());
    let mut half = rig.connect();
    half.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{}");
    half.0.get_ref().shutdown(Shutdown::Write).unwrap();
    let _ = half.answer();
    drop((garbage, long, half));
    until("all are gone", || rig.running.meter("connections") == 0);
    assert!(rig.records().is_empty());
    // A client that closes its side after sending everything is answered.
    let mut client = rig.connect();
    client.post("/", &[], b"{}");
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer().status, 200);
    rig.running.stop();
}

#[test]
fn requests_wait_for_memory_and_are_then_asked_to_retry() {
    // The pool of the rig has 64 MiB, of which incoming data may take 48 MiB.
    let rig = Rig::new(r#", "wait": "300ms""#);
    let large = [b"{\"a\":\"".as_slice(), &vec![b'x'; 10 << 20], b"\"}"].concat();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    let holders = [(); 3].map(|()| {
        let mut client = rig.connect();
        client.write(head.as_bytes());
        client.write(&large[..large.len() - 1]);
        client
    });
    sleep(Duration::from_millis(300));
    let answer = rig.post("/", &[], &large);
    assert_eq!(answer.status, 429);
    assert!(answer.has("retry-after: 1"));
    assert_eq!(rig.post("/", &[], b"{\"n\":1}").status, 200);
    drop(holders);
    until("the memory is back", || {
        rig.post("/", &[], &large).status == 200
    });
    rig.running.stop();
}

#[test]
fn the_records_of_a_request_count_as_memory() {
    let rig = Rig::new(r#", "wait": "300ms""#);
    // The bad parts of a large request, or its numbers once they are packed, take more than the 48 MiB for incoming data.
    let bad = |bytes: usize| [b"{}\n".to_vec(), b"bad\n".repeat(bytes / 4)].concat();
    let numbers = |bytes: usize| {
        let zeros = "-0,".repeat(bytes / 3);
        format!("{{\"x\":[{zeros}0],\"resourceLogs\":[]}}").into_bytes()
    };
    let json: &[&str] = &["Content-Type: application/json"];
    let small = [("/", bad(1 << 20)), ("/v1/logs", numbers(1 << 20))];
    let large = [("/", bad(12 << 20)), ("/v1/logs", numbers(14 << 20))];
    for (path, body) in small {
        assert_eq!(rig.post(path, json, &body).status, 200, "{path}");
    }
    for (path, body) in large {
        assert_eq!(rig.post(path, json, &body).status, 429, "{path}");
    }
    rig.running.stop();
}

#[test]
fn wrong_options_are_refused() {
    for (options, why) in [
        (r#"{"listen": "tcp://127.0.0.1"}"#, "names no port"),
        (
            r#"{"listen": "tcp://127.0.0.1:1", "path": "in"}"#,
            "must begin with `/`",
        ),
        (
            r#"{"listen": "tcp://127.0.0.1:1", "auth": {"bearer": ""}}"#,
            "is empty",
        ),
        (
            r#"{"listen": "tcp://127.0.0.1:1", "auth": {"password": "x"}}"#,
            "password",
        ),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap();
        assert!(problems[0].contains(why), "{problems:?}");
    }
}
