//! Servers that answer some records, or everything for a while, with the same error again and again.

use std::collections::HashMap;

use super::*;

/// Fast retries, and lines as they are.
const FAST: &str = r#", "format": "raw""#;

fn fast(server: &Scripted, more: &str) -> String {
    let text = options(server, more);
    text.replace(r#""10ms", "max": "50ms""#, r#""1ms", "max": "2ms""#)
}

/// A server that stores each key once, and returns `status` for bodies that `is_bad` names.
struct Store {
    server: Scripted,
    stored: std::sync::Arc<Mutex<HashMap<String, String>>>,
}

impl Store {
    fn start(is_bad: impl Fn(&str, usize) -> bool + Send + Sync + 'static, status: u16) -> Self {
        let stored = std::sync::Arc::new(Mutex::new(HashMap::<String, String>::new()));
        let (kept, count) = (stored.clone(), Mutex::new(0));
        let server = Scripted::answering(move |request| {
            let number = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count - 1
            };
            let text = request.text();
            if is_bad(&text, number) {
                let body = format!("Code: 27. DB::Exception: no number, request {number}");
                return Said::status(status).body(&body);
            }
            let key = request.header("idempotency-key").unwrap().to_owned();
            let mut kept = kept.lock().unwrap();
            let before = kept.entry(key).or_insert_with(|| text.clone());
            assert_eq!(*before, text, "a key stands for one body");
            Said::status(200)
        });
        Self { server, stored }
    }

    fn lines(&self) -> Vec<String> {
        let stored = self.stored.lock().unwrap();
        let mut lines: Vec<String> = stored
            .values()
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        lines.sort();
        lines
    }
}

fn numbered(count: usize, bad: &[usize]) -> String {
    let line = |n| match bad.contains(&n) {
        true => format!("bad {n:04}\n"),
        false => format!("good {n:04}\n"),
    };
    (0..count).map(line).collect()
}

fn good(count: usize, bad: &[usize]) -> Vec<String> {
    let text = numbered(count, bad);
    let good = text.lines().filter(|line| line.starts_with("good"));
    good.map(str::to_owned).collect()
}

#[test]
fn records_that_cause_a_500_are_rejected_and_all_others_are_stored_once() {
    for bad in [
        &[500][..],
        &[0],
        &[999],
        &[998, 999],
        &[0, 1, 2, 3, 400, 401, 998, 999],
    ] {
        for in_flight in [1, 4] {
            let store = Store::start(|text, _| text.contains("bad"), 500);
            let upstream = Upstream::durable(7);
            upstream.put(packed("t", &numbered(1000, bad)), false);
            let more = format!(r#"{FAST}, "in_flight": {in_flight}"#);
            let rig = run(&fast(&store.server, &more), &upstream);
            assert_eq!(store.lines(), good(1000, bad), "{bad:?}");
            let told = rejected(&upstream);
            assert_eq!(told.len(), bad.len(), "{bad:?}");
            for (message, reason) in told {
                assert!(message.contains("bad"), "{message}");
                assert!(
                    reason.contains("500 Internal Server Error: Code: 27"),
                    "{reason}"
                );
            }
            assert_eq!(rig.meter("records_refused"), bad.len() as u64);
            assert_eq!(upstream.settled(), 1);
        }
    }
}

#[test]
fn a_server_that_answers_everything_with_500_for_a_while_causes_no_rejection() {
    for requests in [3, 6, 20, 100, 400] {
        for text in [numbered(1, &[]), numbered(300, &[])] {
            let store = Store::start(move |_, number| number < requests, 500);
            let upstream = Upstream::durable(7);
            upstream.put(packed("t", &text), false);
            run(&fast(&store.server, FAST), &upstream);
            assert!(upstream.rejected().is_empty(), "{requests}");
            let mut wanted: Vec<_> = text.lines().collect();
            wanted.sort_unstable();
            assert_eq!(store.lines(), wanted, "{requests}");
        }
    }
}

#[test]
fn a_server_that_is_not_available_gets_the_same_request_again() {
    for status in [502, 503, 504, 429] {
        let store = Store::start(|_, number| number < 30, status);
        let upstream = Upstream::durable(7);
        upstream.put(packed("t", &numbered(100, &[])), false);
        run(&fast(&store.server, FAST), &upstream);
        let bodies: HashSet<_> = store
            .server
            .requests()
            .iter()
            .map(|request| request.text())
            .collect();
        assert_eq!(bodies.len(), 1, "{status}");
        assert_eq!(store.lines().len(), 100);
    }
}

#[test]
fn a_bad_record_that_is_alone_in_its_request_is_rejected_if_others_are_accepted() {
    let store = Store::start(|text, _| text.contains("bad"), 500);
    let upstream = Upstream::durable(7);
    // The server is fast: the retries of the bad record take as long as hundreds of requests.
    for number in 0..3000 {
        let line = if number == 7 { "bad\n" } else { "good\n" };
        upstream.put(packed("t", line), false);
    }
    run(&fast(&store.server, FAST), &upstream);
    let told = rejected(&upstream);
    assert!(
        told.iter().all(|(message, _)| message.contains("bad")),
        "{told:?}"
    );
    assert!(!told.is_empty());
}

#[test]
fn an_exception_behind_a_200_is_found_like_a_500() {
    let server = Scripted::answering(|request| match request.text().contains("bad") {
        true => Said::status(200).body("DB::Exception"),
        false => Said::status(200),
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &numbered(50, &[20])), false);
    let more = format!(r#"{FAST}, "success": {{"body": {{"not": "DB::Exception"}}}}"#);
    run(&fast(&server, &more), &upstream);
    let told = rejected(&upstream);
    assert_eq!(told.len(), 1);
    assert!(told[0].0.contains("bad"));
}

#[test]
fn a_table_that_is_missing_for_a_moment_rejects_nothing() {
    for status in [404, 409, 451] {
        let server = Scripted::start(move |n| match n {
            0..20 => Said::status(status).body("Unknown table"),
            _ => Said::status(200),
        });
        let upstream = Upstream::durable(7);
        upstream.put(packed("t", "a\nb\n"), false);
        run(&fast(&server, ""), &upstream);
        assert!(upstream.rejected().is_empty());
        assert_eq!(server.requests().len(), 21, "the request stays whole");
    }
}

#[test]
fn a_table_that_stays_missing_rejects_all_after_the_stated_time() {
    let server = Scripted::start(|_| Said::status(404).body("Unknown table"));
    let upstream = Upstream::durable(7);
    for _ in 0..20 {
        upstream.put(packed("t", "a\nb\n"), false);
    }
    let started = Instant::now();
    run(
        &fast(&server, r#", "refuse_after": "300ms", "in_flight": 1"#),
        &upstream,
    );
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300));
    assert_eq!(rejected(&upstream).len(), 40);
    assert!(
        took < Duration::from_secs(5),
        "only the first request waits: {took:?}"
    );
}

/// The answer of `_bulk` to documents that `status` judges by their text.
fn bulk_answer(request: &str, status: impl Fn(&str) -> u16) -> String {
    let documents = request.lines().skip(1).step_by(2);
    let items: Vec<_> = documents
        .enumerate()
        .map(|(number, document)| match status(document) {
            201 => r#"{"create":{"status":201}}"#.to_owned(),
            409 => format!(
                r#"{{"create":{{"status":409,"error":{{"type":"version_conflict_engine_exception","reason":"[id-{number}]: version conflict, document already exists (current version [{number}])"}}}}}}"#
            ),
            status => format!(
                r#"{{"create":{{"status":{status},"error":{{"type":"x","reason":"failed in document with id 'a{number}'"}}}}}}"#
            ),
        })
        .collect();
    format!(r#"{{"errors":true,"items":[{}]}}"#, items.join(","))
}

#[test]
fn a_document_that_fails_with_500_each_time_is_rejected_alone() {
    let server = Scripted::answering(|request| {
        let answer = bulk_answer(&request.text(), |document| match document.contains("bad") {
            true => 500,
            false => 201,
        });
        Said::status(200).body(&answer)
    });
    for (count, bad) in [(50, &[20, 21][..]), (3, &[2])] {
        let upstream = Upstream::durable(7);
        upstream.put(packed("t", &numbered(count, bad)), false);
        let more = r#", "framing": "bulk", "bulk": {"index": "i"}, "in_flight": 1"#;
        run(&fast(&server, more), &upstream);
        let told = rejected(&upstream);
        assert_eq!(told.len(), bad.len());
        assert!(told.iter().all(|(message, _)| message.contains("bad")));
    }
}

#[test]
fn an_index_that_is_missing_for_a_moment_rejects_nothing() {
    let count = Mutex::new(0);
    let server = Scripted::answering(move |request| {
        let mut count = count.lock().unwrap();
        *count += 1;
        let missing = *count < 20;
        let answer = bulk_answer(&request.text(), |document| {
            match missing && document.contains("bad") {
                true => 404,
                false => 201,
            }
        });
        Said::status(200).body(&answer)
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &numbered(10, &[3, 4])), false);
    run(
        &fast(&server, r#", "framing": "bulk", "bulk": {"index": "i"}"#),
        &upstream,
    );
    assert!(upstream.rejected().is_empty());
}

#[test]
fn thousands_of_conflicts_have_one_reason() {
    let server = Scripted::answering(|request| {
        Said::status(200).body(&bulk_answer(&request.text(), |_| 409))
    });
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", &numbered(3000, &[])), false);
    let more = r#", "framing": "bulk", "bulk": {"index": "i", "id": "none"}"#;
    run(&fast(&server, more), &upstream);
    let reasons: HashSet<_> = rejected(&upstream)
        .into_iter()
        .map(|(_, reason)| reason)
        .collect();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
}

#[test]
fn a_key_may_be_a_parameter_of_the_url() {
    let server = Scripted::start(|_| Said::status(200));
    let upstream = Upstream::durable(7);
    upstream.put(packed("t", "a\n"), false);
    let more = r#", "idempotency_key": {"query": "insert_deduplication_token"}"#;
    let with_query = fast(&server, more).replace("/in\"", "/in?query=INSERT x\"");
    run(&with_query, &upstream);
    let requests = server.requests();
    let line = &requests[0].line;
    assert!(
        line.starts_with("POST /in?query=INSERT%20x&insert_deduplication_token=0000"),
        "{line}"
    );
    assert_eq!(requests[0].header("idempotency-key"), None);
    let wrong = fast(&server, r#", "idempotency_key": {"query": "a b"}"#);
    assert!(try_build(&COMPONENT, &wrong).is_err());
}
