//! Tests with servers that accept, refuse, are busy or fail. The servers run on threads of the test.

mod bounds;
mod server;
mod stuck;

use std::{
    collections::HashSet,
    sync::Mutex,
    time::{Duration, Instant},
};

use millstream_pipeline::{condition::Trouble, reject::Rejected};
use millstream_sys::checksum::crc32c;
use millstream_wire::msgpack::{write_array_len, write_int, write_map_len, write_str};
use millstream_wire::record::records;

use super::*;
use crate::rig::{Rig, Upstream, build, check_contract, lines, misfit, packed, try_build};
use server::{Said, Scripted};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, future).await.expect("it hangs")
    })
}

/// Options of a sink for this server.
fn options(server: &Scripted, more: &str) -> String {
    format!(
        r#"{{"url": "http://127.0.0.1:{}/in", "retry": {{"first": "10ms", "max": "50ms"}}{more}}}"#,
        server.port()
    )
}

/// Runs a sink until it has delivered all batches in the channel.
fn run(options: &str, upstream: &Upstream) -> Rig {
    upstream.close();
    let mut rig = Rig::new(&COMPONENT, options, upstream, "unused".as_ref());
    block_on(rig.run()).unwrap();
    rig
}

/// The messages of the rejected records, with the reasons.
fn rejected(upstream: &Upstream) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for batch in upstream.rejected() {
        for (range, _) in records(&batch) {
            let rejected = Rejected::read(&batch.body[range]).unwrap();
            let message = String::from_utf8_lossy(&rejected.message).into_owned();
            found.push((message, rejected.reason.to_owned()));
        }
    }
    found
}

#[test]
fn records_leave_as_json_lines_and_are_settled_by_a_200() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::memory();
    let receipt = upstream.put(packed("t", "one\ntwo\n"), true);
    let rig = run(&options(&server, ""), &upstream);
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].line, "POST /in HTTP/1.1");
    assert_eq!(
        requests[0].header("content-type"),
        Some("application/x-ndjson")
    );
    assert_eq!(
        requests[0].text(),
        "{\"message\":\"one\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n{\"message\":\"two\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n"
    );
    assert_eq!(rig.meter("records_settled"), 2);
    assert_eq!(rig.meter("requests_sent"), 1);
}

#[test]
fn records_become_arrays_single_requests_or_templates_as_configured() {
    let server = Scripted::start(|_| Said::status(204));
    let bodies = |more: &str| {
        let upstream = Upstream::memory();
        upstream.put(packed("t", "a\nb\n"), true);
        run(&options(&server, more), &upstream);
        let requests = server.take_requests();
        requests
            .iter()
            .map(|request| request.text())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        bodies(r#", "framing": "array", "add": {}"#),
        [r#"[{"message":"a"},{"message":"b"}]"#]
    );
    let mut single = bodies(r#", "framing": "single", "add": {}"#);
    single.sort();
    assert_eq!(single, [r#"{"message":"a"}"#, r#"{"message":"b"}"#]);
    assert_eq!(
        bodies(r#", "format": "template", "template": "{tag}={.message};""#),
        ["t=a;t=b;"]
    );
    assert_eq!(
        bodies(r#", "format": "csv", "columns": ["message"], "header": true"#),
        ["message\na\nb\n"]
    );
}

#[test]
fn small_batches_leave_together_and_large_ones_are_split_by_size() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::memory();
    for n in 0..50 {
        upstream.put(packed("t", &format!("{n}\n")), false);
    }
    run(&options(&server, r#", "format": "raw""#), &upstream);
    let requests = server.take_requests();
    assert!(
        requests.len() < 10,
        "{} requests for 50 records",
        requests.len()
    );
    let upstream = Upstream::memory();
    upstream.put(packed("t", &"123456789\n".repeat(100)), false);
    run(
        &options(
            &server,
            r#", "format": "raw", "batch": {"size": "100B"}, "in_flight": 1"#,
        ),
        &upstream,
    );
    let sizes: Vec<_> = server
        .take_requests()
        .iter()
        .map(|request| request.body.len())
        .collect();
    assert_eq!(sizes, [100; 10]);
    let upstream = Upstream::memory();
    upstream.put(packed("t", &"123456789\n".repeat(10)), false);
    run(
        &options(
            &server,
            r#", "format": "raw", "batch": {"records": 4}, "in_flight": 1"#,
        ),
        &upstream,
    );
    let sizes: Vec<_> = server
        .take_requests()
        .iter()
        .map(|request| request.body.len())
        .collect();
    assert_eq!(sizes, [40, 40, 20]);
}

#[test]
fn url_headers_and_auth_are_rendered_per_record() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::memory();
    upstream.put(packed("web/front", "a\nb\na\n"), true);
    let port = server.port();
    let options = format!(
        r#"{{"url": "http://127.0.0.1:{port}/{{tag}}/{{.message}}?q=SELECT 1&m={{.message}}", "method": "put", "format": "raw",
             "headers": {{"X-Tag": "{{tag}}"}}, "auth": {{"username": "u", "password": "p"}}}}"#
    );
    run(&options, &upstream);
    let mut requests = server.take_requests();
    requests.sort_by_key(|request| request.line.clone());
    assert_eq!(requests.len(), 2);
    assert_eq!(
        requests[0].line,
        "PUT /web%2Ffront/a?q=SELECT%201&m=a HTTP/1.1"
    );
    assert_eq!(requests[0].text(), "a\na\n");
    assert_eq!(requests[1].text(), "b\n");
    assert_eq!(requests[0].header("x-tag"), Some("web/front"));
    assert_eq!(requests[0].header("authorization"), Some("Basic dTpw"));
    assert_eq!(
        requests[0].header("host"),
        Some(&*format!("127.0.0.1:{port}"))
    );
    // A record without a value for a template leaves by the rejected port.
    let upstream = Upstream::memory();
    upstream.put(packed("t", "a\n"), true);
    let options = format!(r#"{{"url": "http://127.0.0.1:{port}/{{.none}}"}}"#);
    run(&options, &upstream);
    assert!(rejected(&upstream)[0].1.contains(".none"));
}

#[test]
fn bodies_are_compressed_as_configured() {
    let server = Scripted::start(|_| Said::status(200));
    let text = "the same again\n".repeat(1000);
    for compression in ["gzip", "zstd", "deflate"] {
        let upstream = Upstream::memory();
        upstream.put(lines("t", &text), true);
        let more = format!(r#", "format": "raw", "compression": "{compression}""#);
        run(&options(&server, &more), &upstream);
        let request = server.take_requests().remove(0);
        assert_eq!(request.header("content-encoding"), Some(compression));
        assert!(request.body.len() < text.len() / 10);
        let mut plain = Vec::new();
        use std::io::Read;
        match compression {
            "gzip" => flate2::read::GzDecoder::new(&request.body[..]).read_to_end(&mut plain),
            "deflate" => flate2::read::ZlibDecoder::new(&request.body[..]).read_to_end(&mut plain),
            _ => {
                use millstream_wire::compression::{Codec, Inflater};
                plain.reserve(text.len() + 100);
                Inflater::new(Codec::Zstd)
                    .unwrap()
                    .inflate(&request.body, &mut plain)
                    .unwrap();
                Ok(0)
            }
        }
        .unwrap();
        assert_eq!(String::from_utf8(plain).unwrap(), text);
    }
}

#[test]
fn a_retried_request_has_the_same_body_and_key() {
    let server = Scripted::start(|n| match n {
        0 => Said::status(503),
        1 => Said::status(429).with("Retry-After", "1"),
        2 => Said::Nothing,
        3 => Said::status(500),
        _ => Said::status(200),
    });
    let upstream = Upstream::memory();
    let receipt = upstream.put(packed("t", "a\n"), true);
    let start = std::time::Instant::now();
    let rig = run(&options(&server, ""), &upstream);
    assert_eq!(receipt.try_outcome(), Some(Ok(())));
    assert!(start.elapsed() >= Duration::from_secs(1), "Retry-After");
    let requests = server.requests();
    assert_eq!(requests.len(), 5);
    let first = (
        requests[0].text(),
        requests[0].header("idempotency-key").unwrap().to_owned(),
    );
    for request in &requests[1..] {
        assert_eq!(request.text(), first.0);
        assert_eq!(request.header("idempotency-key"), Some(&*first.1));
    }
    assert!(rig.meter("requests_resent") >= 3);
    assert!(upstream.rejected().is_empty());
}

#[test]
fn good_records_in_a_refused_request_are_still_delivered() {
    let server = Scripted::answering(|request| match request.text().contains("bad") {
        true => Said::status(400).body("cannot read bad"),
        false => Said::status(200),
    });
    let upstream = Upstream::durable(7);
    let text: String = (0..100)
        .map(|n| {
            if n == 37 || n == 80 {
                "bad\n".to_owned()
            } else {
                format!("{n}\n")
            }
        })
        .collect();
    upstream.put(packed("t", &text), false);
    let rig = run(&options(&server, r#", "format": "raw""#), &upstream);
    let told = rejected(&upstream);
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|(message, reason)| message.contains("bad")
        && reason.contains("400 Bad Request: cannot read bad")));
    let taken: Vec<String> = server
        .requests()
        .iter()
        .filter(|request| !request.text().contains("bad"))
        .flat_map(|request| {
            request
                .text()
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(taken.len(), 98, "each good one once");
    assert_eq!(upstream.settled(), 1);
    assert_eq!(rig.meter("records_refused"), 2);
    // The same holds with many bad records.
    let text: String = (0..3000)
        .map(|n| match n % 100 {
            37 => "bad\n".to_owned(),
            _ => format!("{n}\n"),
        })
        .collect();
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &text), false);
    let rig = run(&options(&server, r#", "format": "raw""#), &upstream);
    assert_eq!(rig.meter("records_refused"), 30);
    assert!(
        rejected(&upstream)
            .iter()
            .all(|(message, _)| message.contains("bad"))
    );
    // A request that is too large is sent in parts.
    let server = Scripted::answering(|request| match request.body.len() > 50 {
        true => Said::status(413),
        false => Said::status(200),
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", &"123456789\n".repeat(40)), true);
    run(&options(&server, r#", "format": "raw""#), &upstream);
    assert!(upstream.rejected().is_empty());
}

#[test]
fn refused_records_leave_by_the_rejected_port_with_the_reason() {
    let server = Scripted::start(|_| Said::status(404).body("no such channel"));
    let upstream = Upstream::memory();
    let receipt = upstream.put(packed("t", "a\nb\n"), true);
    run(&options(&server, r#", "refuse_after": 0"#), &upstream);
    assert_eq!(
        receipt.try_outcome(),
        Some(Ok(())),
        "rejected records are settled"
    );
    assert_eq!(
        server.requests().len(),
        1,
        "a 404 does not depend on records, so the request is not split"
    );
    let told = rejected(&upstream);
    assert_eq!(told.len(), 2);
    assert!(told[0].1.contains("404 Not Found: no such channel"));
}

#[test]
fn a_redirection_is_followed_to_another_path_but_to_no_other_host() {
    let server = Scripted::answering(|request| match request.line.contains("/there") {
        true => Said::status(200),
        false => Said::status(308).with("Location", "/there"),
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", "a\n"), true);
    run(&options(&server, ""), &upstream);
    let lines: Vec<_> = server
        .requests()
        .into_iter()
        .map(|request| request.line)
        .collect();
    assert_eq!(lines, ["POST /in HTTP/1.1", "POST /there HTTP/1.1"]);
    let server = Scripted::start(|n| match n {
        0 => Said::status(307).with("Location", "http://evil.example/"),
        _ => Said::status(200),
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", "a\n"), true);
    run(&options(&server, ""), &upstream);
    assert_eq!(server.requests().len(), 2, "retried at this server");
}

#[test]
fn records_are_rejected_if_no_server_accepts_them_in_time() {
    let server = Scripted::start(|_| Said::status(503).body("full"));
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\nb\n"), false);
    let options = options(&server, "").replace(
        "\"max\": \"50ms\"",
        "\"max\": \"20ms\", \"give_up\": \"200ms\"",
    );
    run(&options, &upstream);
    let told = rejected(&upstream);
    assert_eq!(told.len(), 2);
    assert!(
        told[0].1.contains("retry.give_up") && told[0].1.contains("full"),
        "{told:?}"
    );
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn several_requests_are_in_flight_and_checkpoints_are_settled_in_order() {
    let server = Scripted::start(|n| match n {
        0 => Said::status(200).after(Duration::from_millis(400)),
        _ => Said::status(200),
    });
    let upstream = Upstream::durable(7);
    for n in 0..8 {
        upstream.put(packed("t", &format!("{n}\n")), false);
    }
    let rig = run(
        &options(&server, r#", "format": "raw", "in_flight": 4"#),
        &upstream,
    );
    assert_eq!(
        server.requests().len(),
        8,
        "behind a durable channel no request holds two frames"
    );
    assert_eq!(upstream.settled(), 8);
    assert!(rig.meter("connections_opened") <= 4);
}

#[test]
fn behind_a_durable_channel_keys_and_bodies_are_the_same_after_a_restart() {
    let text: String = (0..5000).map(|n| format!("line number {n}\n")).collect();
    let sent = |refusing: bool| {
        let server = Scripted::start(move |n| match refusing && n >= 2 {
            true => Said::Nothing,
            false => Said::status(200),
        });
        let upstream = Upstream::durable(0xab);
        upstream.put(packed("t", &text), false);
        upstream.put(packed("t", "last\n"), false);
        upstream.close();
        let options = options(
            &server,
            r#", "format": "raw", "batch": {"size": "10KiB"}, "in_flight": 3"#,
        );
        let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
        block_on(async {
            let limit = Duration::from_millis(if refusing { 300 } else { 50_000 });
            let _ = tokio::time::timeout(limit, rig.run()).await;
        });
        let mut seen = std::collections::BTreeMap::new();
        for request in server.requests() {
            let key = request.header("idempotency-key").unwrap().to_owned();
            let body = request.text();
            assert!(
                seen.insert(key, body.clone())
                    .is_none_or(|before| before == body)
            );
        }
        seen
    };
    let (broken, whole) = (sent(true), sent(false));
    assert!(broken.len() >= 3 && whole.len() >= 9);
    for (key, body) in broken {
        assert_eq!(whole.get(&key), Some(&body), "{key}");
    }
    assert!(
        whole
            .keys()
            .all(|key| key.starts_with("000000000000000000000000000000ab.sink.1."))
    );
    let all: usize = whole.values().map(|body| body.lines().count()).sum();
    assert_eq!(all, 5001);
}

#[test]
fn the_key_of_a_position_that_is_one_request_does_not_depend_on_what_processors_made_of_it() {
    let keys = |texts: &[&str], more: &str| -> Vec<String> {
        let server = Scripted::start(|_| Said::status(200));
        let upstream = Upstream::durable(0xab);
        upstream.put_parts(texts.iter().map(|text| packed("t", text)).collect());
        run(&options(&server, more), &upstream);
        let requests = server.requests();
        let key = |request: &server::Request| request.header("idempotency-key").unwrap().to_owned();
        requests.iter().map(key).collect()
    };
    let only = "000000000000000000000000000000ab.sink.1.1.1700000000123456789.0.0.1.00000000";
    assert_eq!(keys(&["a\nb\n"], ""), [only]);
    assert_eq!(keys(&["edited\n"], ""), [only]);
    // With several requests, the checksums tell different contents apart.
    let one = keys(
        &["a\n", "b\n"],
        r#", "in_flight": 1, "batch": {"records": 1}"#,
    );
    let other = keys(
        &["edited\n", "b\n"],
        r#", "in_flight": 1, "batch": {"records": 1}"#,
    );
    assert_eq!((one.len(), other.len()), (2, 2));
    assert!(
        one[0] != other[0] && one[1] != other[1],
        "{one:?} {other:?}"
    );
    assert!(
        one[1].starts_with("000000000000000000000000000000ab.sink.1.1.1700000000123456789.0.1.2.")
    );
}

#[test]
fn an_answer_that_the_option_success_excludes_is_retried_or_refused() {
    let answers = |n: usize| match n {
        0 => Said::status(200).with("X-ClickHouse-Exception-Code", "241"),
        1 => Said::status(200).body("Code: 241. DB::Exception: Memory limit exceeded"),
        2 => Said::status(201),
        _ => Said::status(200),
    };
    let success = r#"{"status": [200], "header": {"X-ClickHouse-Exception-Code": false}, "body": {"not": "DB::Exception"}}"#;
    let server = Scripted::start(answers);
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\n"), false);
    run(
        &options(&server, &format!(r#", "success": {success}"#)),
        &upstream,
    );
    assert_eq!(server.requests().len(), 4);
    assert_eq!(upstream.settled(), 1);
    assert!(upstream.rejected().is_empty());
    // With `otherwise: reject`, only the record that causes the failure is rejected.
    let server = Scripted::answering(|request| match request.text().contains("bad") {
        true => Said::status(200).body("DB::Exception"),
        false => Said::status(200),
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\nbad\nb\n"), false);
    let more = r#", "success": {"body": {"not": "DB::Exception"}, "otherwise": "reject"}"#;
    run(&options(&server, more), &upstream);
    let told = rejected(&upstream);
    assert_eq!(told.len(), 1);
    assert!(told[0].0.contains("bad") && told[0].1.contains("the body matches"));
}

#[test]
fn a_reset_of_an_idle_connection_is_no_failure() {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            let mut block = [0; 4096];
            // The request ends with the line of the record.
            while !bytes.ends_with(b"}\n") {
                let count = stream.read(&mut block).unwrap();
                bytes.extend_from_slice(&block[..count]);
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
            // The next request is reset: the socket is closed while its bytes are unread.
            let _ = stream.peek(&mut [0]);
        }
    });
    let upstream = Upstream::durable(7);
    for number in 0..5 {
        upstream.put(packed("t", &format!("{number}\n")), false);
    }
    upstream.close();
    let options = format!(
        r#"{{"url": "http://127.0.0.1:{port}/", "in_flight": 1, "retry": {{"first": "30s"}}}}"#
    );
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let start = Instant::now();
    block_on(rig.run()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(rig.meter("requests_resent"), 0);
    assert_eq!(upstream.settled(), 5);
}

#[test]
fn a_server_that_takes_a_request_and_does_not_answer_is_reported_before_the_timeout() {
    // The first attempt fails, the next two are answered late.
    let server = Scripted::start(|number| match number {
        0 => Said::status(503).body("the text of the last answer"),
        1 | 2 => Said::status(200).after(Duration::from_secs(3)),
        _ => Said::status(200),
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "one\n"), false);
    upstream.put(packed("t", "two\n"), false);
    upstream.close();
    let options = format!(
        r#"{{"url": "http://127.0.0.1:{}/in", "in_flight": 1, "batch": {{"records": 1}},
            "retry": {{"first": "10ms", "timeout": "4s"}}}}"#,
        server.port()
    );
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let reporter = rig.context.reporter.clone();
    let watch = std::thread::spawn(move || {
        let (mut seen, began) = (Vec::new(), Instant::now());
        while began.elapsed() < Duration::from_millis(5900) {
            for held in reporter.conditions() {
                let text = (held.trouble, held.why.contains("no answer yet"));
                if seen.last() != Some(&text) {
                    seen.push(text);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        seen
    });
    block_on(rig.run()).unwrap();
    let seen = watch.join().unwrap();
    let late = [Trouble::Retrying, Trouble::Blocked].map(|trouble| (trouble, true));
    assert_eq!(seen, [(Trouble::Retrying, false), late[0], late[1]]);
    // Nothing holds any more, and the log says so.
    assert_eq!(rig.context.reporter.conditions(), []);
    let events = rig.context.reporter.events();
    assert!(events.contains(&("info", "recovered", 2)), "{events:?}");
}

#[test]
fn a_request_over_a_slow_line_may_take_longer_than_the_timeout() {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        sync::atomic::{AtomicUsize, Ordering},
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A small window, so that the kernel cannot take the whole request at once.
    socket2::SockRef::from(&listener)
        .set_recv_buffer_size(16 << 10)
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let (mut bytes, mut block) = (Vec::new(), vec![0; 64 << 10]);
            while !bytes.ends_with(b"end\n") {
                let count = stream.read(&mut block).unwrap();
                if count == 0 {
                    break;
                }
                bytes.extend_from_slice(&block[..count]);
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let upstream = Upstream::durable(7);
    let line = "x".repeat(1000);
    let text = format!("{line}\n").repeat(6000) + "end\n";
    upstream.put(packed("t", &text), false);
    upstream.close();
    let options = format!(
        r#"{{"url": "http://127.0.0.1:{port}/", "format": "raw", "batch": {{"size": "16MiB"}}, "retry": {{"timeout": "800ms"}}}}"#
    );
    let mut rig = Rig::new(&COMPONENT, &options, &upstream, "unused".as_ref());
    let start = Instant::now();
    block_on(rig.run()).unwrap();
    assert!(
        start.elapsed() > Duration::from_millis(800),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert_eq!(rig.meter("requests_resent"), 0);
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn the_answer_to_bulk_is_read_item_by_item() {
    let server = Scripted::answering(|request| {
        let items: Vec<String> = request
            .text()
            .lines()
            .collect::<Vec<_>>()
            .chunks(2)
            .map(|pair| {
                let status = match pair[1] {
                    doc if doc.contains("busy") && !request.is_again => 429,
                    doc if doc.contains("bad") => 400,
                    doc if doc.contains("there") => 409,
                    _ => 201,
                };
                format!(r#"{{"create":{{"status":{status},"error":{{"type":"t","reason":"r"}}}}}}"#)
            })
            .collect();
        Said::status(200).body(&format!(
            r#"{{"errors":true,"items":[{}]}}"#,
            items.join(",")
        ))
    });
    let upstream = Upstream::durable(0xab);
    upstream.put(packed("logs", "a\nbusy\nbad\nthere\nb\n"), false);
    let more =
        r#", "framing": "bulk", "add": {}, "bulk": {"index": "{tag}-x"}, "idempotency_key": true"#;
    let rig = run(&options(&server, more), &upstream);
    let requests = server.requests();
    let first: Vec<String> = requests[0].text().lines().map(str::to_owned).collect();
    assert_eq!(first.len(), 10);
    let crc = crc32c(br#"{"message":"busy"}"#);
    assert_eq!(
        first[2],
        format!(
            r#"{{"create":{{"_index":"logs-x","_id":"000000000000000000000000000000ab.1.1.1.{crc:08x}"}}}}"#
        )
    );
    assert_eq!(first[3], r#"{"message":"busy"}"#);
    assert_eq!(requests.len(), 2);
    assert_eq!(
        requests[1].text(),
        format!("{}\n{}\n", first[2], first[3]),
        "only the busy document, with the same id"
    );
    let told = rejected(&upstream);
    assert_eq!(told.len(), 1);
    assert!(told[0].0.contains("bad") && told[0].1 == "400 t: r");
    assert_eq!(rig.meter("records_there_already"), 1);
    assert_eq!(upstream.settled(), 1);
    let key = |at: usize| requests[at].header("idempotency-key").unwrap().to_owned();
    assert_eq!(key(1), format!("{}.r1", key(0)), "the body is another one");
}

#[test]
fn bulk_requests_have_no_key_unless_the_options_say_so() {
    let server = Scripted::start(|_| {
        Said::status(200).body(r#"{"errors":false,"items":[{"create":{"status":201}}]}"#)
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("logs", "a\n"), false);
    let more = r#", "framing": "bulk", "bulk": {"index": "logs"}"#;
    run(&options(&server, more), &upstream);
    assert_eq!(server.requests()[0].header("idempotency-key"), None);
}

#[test]
fn waits_grow_while_the_server_puts_off_every_document() {
    let server = Scripted::start(|n| {
        let status = if n < 5 { 429 } else { 201 };
        Said::status(200).body(&format!(
            r#"{{"errors":true,"items":[{{"create":{{"status":{status}}}}}]}}"#
        ))
    });
    let upstream = Upstream::durable(0xab);
    upstream.put(packed("t", "a\n"), false);
    let more = r#", "framing": "bulk", "bulk": {"index": "logs"}, "idempotency_key": true"#;
    let options = options(&server, more).replace(
        "\"first\": \"10ms\", \"max\": \"50ms\"",
        "\"first\": \"20ms\", \"max\": \"10s\"",
    );
    let start = Instant::now();
    run(&options, &upstream);
    // 20 + 40 + 80 + 160 + 320 ms, less an eighth. If each answer counted as a success, five times 20 ms.
    assert!(start.elapsed() > Duration::from_millis(500));
    let requests = server.requests();
    assert_eq!(requests.len(), 6);
    // However often the server refuses, the key stays short.
    let key = |at: usize| requests[at].header("idempotency-key").unwrap().to_owned();
    assert_eq!(key(5), format!("{}.r5", key(0)));
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn documents_are_sent_again_in_halves_if_the_answer_is_too_long_to_be_read() {
    let server = Scripted::answering(|request| {
        let documents = request.text().lines().count() / 2;
        let padding = "x".repeat(if documents > 2 { 17 << 20 } else { 0 });
        let items = vec![r#"{"create":{"status":201}}"#; documents].join(",");
        Said::status(200).body(&format!(
            r#"{{"padding":"{padding}","errors":false,"items":[{items}]}}"#
        ))
    });
    let upstream = Upstream::durable(0xab);
    upstream.put(packed("t", "a\nb\nc\nd\n"), false);
    let more = r#", "framing": "bulk", "bulk": {"index": "logs"}"#;
    run(&options(&server, more), &upstream);
    let texts: Vec<String> = server
        .requests()
        .iter()
        .map(|request| request.text())
        .collect();
    assert_eq!(texts.len(), 3);
    assert_eq!(texts[0], format!("{}{}", texts[1], texts[2]));
    assert_eq!(upstream.settled(), 1);
}

#[test]
fn documents_of_several_batches_at_one_position_have_different_ids() {
    let server = Scripted::start(|_| Said::status(200).body(r#"{"errors":false,"items":[]}"#));
    let upstream = Upstream::durable(0xab);
    upstream.put_parts(vec![
        packed("a", "1\n2\n"),
        packed("b", "3\n"),
        packed("a", "4\n"),
    ]);
    upstream.put(packed("a", "5\n"), false);
    let more = r#", "framing": "bulk", "add": {}, "bulk": {"index": "logs"}"#;
    run(&options(&server, more), &upstream);
    let requests = server.requests();
    let lines = requests.iter().flat_map(|request| {
        let text = request.text();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let ids: Vec<_> = lines
        .filter_map(|line| {
            Some(
                line.split_once(r#""_id":"000000000000000000000000000000ab."#)?
                    .1
                    .to_owned(),
            )
        })
        .collect();
    let expected = [
        ("1.1.0", "1"),
        ("1.1.1", "2"),
        ("1.1.2", "3"),
        ("1.1.3", "4"),
        ("1.2.0", "5"),
    ];
    let expected = expected.map(|(place, message)| {
        let document = format!(r#"{{"message":"{message}"}}"#);
        format!(r#"{place}.{:08x}"}}}}"#, crc32c(document.as_bytes()))
    });
    assert_eq!(ids, expected);
}

#[test]
fn a_record_that_gets_the_number_of_another_one_after_a_reload_is_not_taken_for_it() {
    let documents = Mutex::new(HashSet::new());
    let server = Scripted::answering(move |request| {
        let text = request.text();
        let actions = text.lines().step_by(2);
        let statuses =
            actions.map(
                |action| match documents.lock().unwrap().insert(action.to_owned()) {
                    true => r#"{"create":{"status":201}}"#,
                    false => r#"{"create":{"status":409}}"#,
                },
            );
        let items: Vec<_> = statuses.collect();
        let body = format!(r#"{{"errors":true,"items":[{}]}}"#, items.join(","));
        Said::status(200).body(&body)
    });
    // The records of the position 1.1, which this run sends as `text`.
    let there_already = |text: &str| {
        let upstream = Upstream::durable(0xab);
        upstream.put(packed("t", text), false);
        let more = r#", "framing": "bulk", "bulk": {"index": "logs"}"#;
        run(&options(&server, more), &upstream).meter("records_there_already")
    };
    assert_eq!(there_already("a\nb\n"), 0);
    assert_eq!(there_already("a\nb\n"), 2, "the same records again");
    assert_eq!(there_already("b\n"), 0, "b has the number that a had");
}

#[test]
fn a_target_with_a_single_record_does_not_stall_a_sink_with_a_backlog() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::durable(0xab);
    upstream.put(packed("rare", "a\n"), false);
    // More requests than the sink tracks.
    for _ in 0..40 {
        upstream.put(packed("busy", &"b\n".repeat(1000)), false);
    }
    let port = server.port();
    let options = format!(
        r#"{{"url": "http://127.0.0.1:{port}/{{tag}}", "format": "raw", "idempotency_key": false, "batch": {{"records": 2}}, "in_flight": 16}}"#
    );
    let rig = run(&options, &upstream);
    assert_eq!(rig.meter("records_settled"), 40_001);
    assert_eq!(upstream.settled(), 41);
}

#[test]
fn otlp_groups_records_by_resource() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::memory();
    let mut batch = packed("shop", "");
    let mut body = Vec::new();
    write_array_len(&mut body, 2);
    write_int(&mut body, 1_700_000_000);
    write_map_len(&mut body, 3);
    for (name, value) in [("message", "hello"), ("level", "warn"), ("user", "ü")] {
        write_str(&mut body, name.as_bytes());
        write_str(&mut body, value.as_bytes());
    }
    batch.body = [&body[..], &body[..]].concat().into();
    batch.count = 2;
    upstream.put(batch, true);
    run(&options(&server, r#", "framing": "otlp_json""#), &upstream);
    let request = server.take_requests().remove(0);
    let told: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    let logs = &told["resourceLogs"];
    assert_eq!(logs.as_array().unwrap().len(), 1);
    assert_eq!(
        logs[0]["resource"]["attributes"][0]["value"]["stringValue"],
        "shop"
    );
    let records = logs[0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1]["timeUnixNano"], "1700000000000000000");
    assert_eq!(records[1]["body"]["stringValue"], "hello");
    assert_eq!(records[1]["severityNumber"], 13);
    assert_eq!(records[1]["attributes"][1]["key"], "user");
}

#[test]
fn records_that_a_server_drops_from_an_accepted_request_are_counted() {
    let server = Scripted::start(|_| {
        let told = r#"{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too old"}}"#;
        Said::status(200).body(told)
    });
    let upstream = Upstream::memory();
    upstream.put(packed("t", "a\nb\nc\n"), true);
    let rig = run(&options(&server, r#", "framing": "otlp_json""#), &upstream);
    assert_eq!(rig.meter("records_dropped_by_server"), 2);
}

#[test]
fn behind_a_durable_channel_a_stop_does_not_wait_for_a_server_that_is_down() {
    let server = Scripted::start(|_| Said::status(503));
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\n"), false);
    let mut rig = Rig::new(
        &COMPONENT,
        &options(&server, ""),
        &upstream,
        "unused".as_ref(),
    );
    let running = rig.sink.run(&mut rig.inlet, rig.context.clone());
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.stopper.stop();
    };
    let (ended, ()) = block_on(async { tokio::join!(running, stopping) });
    ended.unwrap();
    assert_eq!(upstream.settled(), 0, "it is sent after the next start");
}

#[test]
fn wrong_options_are_reported_by_name() {
    for (options, named) in [
        (r#"{"url": "ftp://a"}"#, "http://"),
        (r#"{"url": "http://{host}/"}"#, "fixed"),
        (r#"{"url": "http://a", "framing": "bulk"}"#, "index"),
        (r#"{"url": "http://a", "bulk": {"index": "x"}}"#, "framing"),
        (
            r#"{"url": "http://a", "framing": "array", "format": "csv", "columns": ["a"]}"#,
            "JSON",
        ),
        (
            r#"{"url": "http://a", "framing": "otlp", "format": "json"}"#,
            "OTLP",
        ),
        (r#"{"url": "http://a", "tls": true}"#, "https://"),
        (r#"{"url": "http://a", "headers": {"Host": "b"}}"#, "Host"),
        (
            r#"{"url": "http://a", "headers": {"Authorization": "b"}}"#,
            "auth",
        ),
        (
            r#"{"url": "http://a", "auth": {"bearer": "b", "username": "c"}}"#,
            "one of",
        ),
        (r#"{"url": "http://a", "in_flight": 0}"#, "1024"),
        (r#"{"url": "http://a", "colour": 1}"#, "colour"),
    ] {
        let problems = try_build(&COMPONENT, options).err().unwrap_or_default();
        assert!(
            problems.iter().any(|problem| problem.contains(named)),
            "{options}: {problems:?}"
        );
    }
}

#[test]
fn it_keeps_the_contract_of_sinks() {
    let server = Scripted::start(|_| Said::status(200));
    let sink = build(&COMPONENT, &options(&server, r#", "format": "raw""#));
    let arrived = move || {
        let requests = server.requests();
        let texts = requests.iter().map(|request| request.text());
        texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    block_on(check_contract(
        &sink,
        "unused".as_ref(),
        arrived,
        Some(misfit()),
    ));
}
