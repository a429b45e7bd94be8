//! Runs the settings in docs/guides/http.md against small imitations of the servers: with records that the servers
//! accept, with records that they refuse, and with servers that are busy.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::Write,
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::http_peers::{Request, Said, Service};
use crate::program::{Program, free_port, tree, wait_until};
use millstream_record::Time;
use millstream_wire::otlp::{Logs, Next};
use serde_json::{Value, json};

const PAGE: &str = "docs/guides/http.md";

/// The settings below a heading of the page.
fn settings(heading: &str) -> String {
    let page = fs::read_to_string(tree().join(PAGE)).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```yaml\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Runs the settings below a heading against a server that responds with `answer`. Sends the records and waits until `done`
/// is true. Returns the requests and the contents of the files of rejected records.
fn run(
    heading: &str,
    records: &[Value],
    done: impl Fn(&[Request]) -> bool,
    answer: impl Fn(&Request, usize) -> Said + Send + Sync + 'static,
) -> (Vec<Request>, String) {
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (seen, count) = (requests.clone(), AtomicUsize::new(0));
    let service = Service::start(0, move |request| {
        let said = answer(request, count.fetch_add(1, Ordering::SeqCst));
        seen.lock().unwrap().push(request.clone());
        said
    });
    let directory = tempfile::tempdir().unwrap();
    let input = free_port();
    let mut sinks = settings(heading);
    // Replace the host with the address of the imitation, and each secret with a word.
    let start = sinks.find("url: \"http").unwrap() + 6;
    let host = start + sinks[start..].find(".example").unwrap();
    let behind = host + sinks[host..].find('/').unwrap();
    sinks.replace_range(
        start..behind,
        &format!("http://127.0.0.1:{}", service.port()),
    );
    while let Some(start) = sinks.find("${") {
        let end = start + sinks[start..].find('}').unwrap();
        sinks.replace_range(start..=end, "s3cret");
    }
    let sinks = sinks.replace(
        "type: http\n",
        "type: http\n    retry: { first: 50ms, max: 200ms }\n",
    );
    let config = format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: http, listen: \"tcp://127.0.0.1:{input}\", tag: shop }}\n\
         channels:\n  buffer: {{ type: disk, inputs: [in], size_max: 1GiB }}\n{sinks}",
        directory.path().display()
    );
    let program = Program::start(directory.path(), &config).listens(input);
    post(input, records);
    wait_until("the server has everything", || {
        done(&requests.lock().unwrap())
    });
    let log = program.log();
    assert_eq!(program.stop(), Some(0), "{log}");
    let mut rejected = String::new();
    for entry in fs::read_dir(directory.path().join("data/rejected"))
        .into_iter()
        .flatten()
        .flatten()
    {
        rejected += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap());
    }
    let requests = requests.lock().unwrap().clone();
    (requests, rejected)
}

fn post(port: u16, records: &[Value]) {
    let body: String = records.iter().map(|record| format!("{record}\n")).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn messages(count: usize) -> Vec<Value> {
    (0..count)
        .map(|n| json!({"message": format!("line {n}"), "n": n}))
        .collect()
}

fn said(status: u16, body: impl ToString) -> Said {
    (status, String::new(), body.to_string())
}

/// Imitates Elasticsearch's `_bulk`. Refuses a second document with the same id, and documents whose field `n` is not a number.
/// Answers 429 twice for every fifth document, and accepts this document at the third attempt.
struct Indices {
    documents: Mutex<HashSet<String>>,
    put_off: Mutex<HashMap<String, u32>>,
}

impl Indices {
    fn new() -> Self {
        Self {
            documents: Mutex::default(),
            put_off: Mutex::default(),
        }
    }

    fn bulk(&self, request: &Request, index: &str) -> Said {
        assert_eq!(request.header("content-type"), Some("application/x-ndjson"));
        let text = request.text();
        assert!(
            text.ends_with('\n'),
            "The bulk request must be terminated by a newline"
        );
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let items: Vec<Value> = lines
            .chunks(2)
            .map(|pair| self.item(&pair[0], &pair[1], index))
            .collect();
        let errors = items.iter().any(|item| item["create"]["error"].is_object());
        said(200, json!({"took": 1, "errors": errors, "items": items}))
    }

    fn item(&self, action: &Value, document: &Value, index: &str) -> Value {
        let action = &action["create"];
        assert!(
            action["_index"].as_str().unwrap().starts_with(index),
            "{action}"
        );
        assert!(document["@timestamp"].is_string());
        let id = action["_id"].as_str().unwrap().to_owned();
        assert!(id.len() <= 512);
        let error = |status: u16, kind: &str| json!({"create": {"_id": id, "status": status, "error": {"type": kind, "reason": "for the test"}}});
        let Some(n) = document["n"].as_u64() else {
            return error(400, "document_parsing_exception");
        };
        let mut put_off = self.put_off.lock().unwrap();
        let tries = put_off.entry(id.clone()).or_default();
        *tries += 1;
        if n % 5 == 0 && *tries <= 2 {
            return error(429, "es_rejected_execution_exception");
        }
        match self.documents.lock().unwrap().insert(id.clone()) {
            true => json!({"create": {"_id": id, "status": 201}}),
            false => error(409, "version_conflict_engine_exception"),
        }
    }
}

/// Sends 100 documents, one of which the server refuses. A 502 replaces the first answer, so all documents are sent again.
fn search(heading: &str, index: &'static str, authorization: &'static str) {
    let mut records = messages(100);
    records[37]["n"] = "no number".into();
    let indices = Arc::new(Indices::new());
    let (shared, there) = (indices.clone(), indices.clone());
    let (requests, rejected) = run(
        heading,
        &records,
        move |_| there.documents.lock().unwrap().len() == 99,
        move |request, n| {
            assert_eq!(request.method, "POST");
            assert!(request.path.starts_with("/_bulk"));
            assert_eq!(request.header("authorization"), Some(authorization));
            let answer = shared.bulk(request, index);
            match n {
                0 => (
                    502,
                    String::new(),
                    "the gateway has lost the answer".to_owned(),
                ),
                _ => answer,
            }
        },
    );
    assert_eq!(requests.len(), 3);
    assert_eq!(
        requests[2].text().lines().count(),
        2 * 20,
        "only the postponed documents are sent again"
    );
    assert!(rejected.contains("document_parsing_exception") && rejected.contains("no number"));
    assert!(
        !rejected.contains("version_conflict"),
        "documents that exist already count as delivered"
    );
}

#[test]
fn elasticsearch_indexes_each_document_once_and_refused_ones_are_rejected() {
    search("Elasticsearch", "logs-shop-default", "ApiKey s3cret");
}

#[test]
fn opensearch_indexes_each_document_once_and_refused_ones_are_rejected() {
    search("OpenSearch", "logs-20", "Basic c2hpcHBlcjpzM2NyZXQ=");
}

#[test]
fn loki_accepts_otlp() {
    let (requests, rejected) = run(
        "Loki",
        &messages(50),
        |requests| requests.len() >= 2,
        |request, n| {
            assert_eq!(request.path, "/otlp/v1/logs");
            assert_eq!(
                request.header("content-type"),
                Some("application/x-protobuf")
            );
            assert_eq!(request.header("x-scope-orgid"), Some("tenant-1"));
            match n {
                0 => (
                    429,
                    "Retry-After: 1\r\n".to_owned(),
                    "ingestion rate limit exceeded".to_owned(),
                ),
                _ => said(204, ""),
            }
        },
    );
    assert_eq!(rejected, "");
    let mut packed = Vec::with_capacity(1 << 20);
    let mut logs = Logs::protobuf(&requests[1].body);
    let mut count = 0;
    while let Next::Record = logs.next(Time(0), &mut packed) {
        count += 1;
    }
    assert_eq!(count, 50);
    let text = String::from_utf8_lossy(&packed);
    assert!(text.contains("service.name") && text.contains("shop") && text.contains("line 49"));
}

#[test]
fn clickhouse_inserts_rows_and_an_unreadable_line_is_rejected() {
    let mut records = messages(100);
    records[61]["n"] = "no number".into();
    let rows = Arc::new(Mutex::new(HashSet::new()));
    let (inserted, there) = (rows.clone(), rows.clone());
    let (_, rejected) = run(
        "ClickHouse",
        &records,
        move |_| there.lock().unwrap().len() == 99,
        move |request, n| {
            let path = "/?query=INSERT%20INTO%20logs.events%20FORMAT%20JSONEachRow&date_time_input_format=best_effort&input_format_skip_unknown_fields=1&wait_end_of_query=1";
            assert_eq!(request.path, path);
            assert_eq!(
                request.header("authorization"),
                Some("Basic c2hpcHBlcjpzM2NyZXQ=")
            );
            if n == 0 {
                return said(
                    503,
                    "Code: 202. DB::Exception: Too many simultaneous queries",
                );
            }
            // ClickHouse had begun its answer when the insert failed.
            if n == 1 {
                let header = "X-ClickHouse-Exception-Code: 241\r\n".to_owned();
                return (200, header, String::new());
            }
            if n == 2 {
                return said(
                    200,
                    "__exception__\r\nCode: 241. DB::Exception: Memory limit exceeded",
                );
            }
            let lines: Vec<Value> = request
                .text()
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            if lines.iter().any(|line| !line["n"].is_u64()) {
                return said(
                    400,
                    "Code: 27. DB::Exception: Cannot parse input: expected a number. (CANNOT_PARSE_INPUT_ASSERTION_FAILED)",
                );
            }
            for line in lines {
                assert!(line["time"].is_string() && line["tag"] == "shop");
                assert!(
                    inserted.lock().unwrap().insert(line["n"].as_u64().unwrap()),
                    "twice"
                );
            }
            said(200, "")
        },
    );
    assert!(rejected.contains("Code: 27") && rejected.contains("no number"));
}

#[test]
fn splunk_accepts_events() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (taken, there) = (events.clone(), events.clone());
    run(
        "Splunk",
        &[
            json!({"message": "he said \"ü\"", "n": 1}),
            json!({"message": "two"}),
        ],
        move |_| there.lock().unwrap().len() == 2,
        move |request, n| {
            assert_eq!(request.path, "/services/collector/event");
            assert_eq!(request.header("authorization"), Some("Splunk s3cret"));
            assert_eq!(request.header("content-type"), Some("application/json"));
            if n == 0 {
                return said(503, json!({"text": "Server is busy", "code": 9}));
            }
            if n == 1 {
                return said(200, json!({"text": "Server is busy", "code": 9}));
            }
            for event in serde_json::Deserializer::from_slice(&request.body).into_iter::<Value>() {
                taken.lock().unwrap().push(event.unwrap());
            }
            said(200, json!({"text": "Success", "code": 0}))
        },
    );
    let events = events.lock().unwrap();
    assert_eq!(
        events[0]["event"],
        json!({"message": "he said \"ü\"", "n": 1})
    );
    assert_eq!(events[0]["source"], "shop");
    assert!(events[0]["time"].as_f64().unwrap() > 1.7e9);
    assert_eq!(events[1]["event"]["message"], "two");
}

#[test]
fn slack_gets_one_message_at_a_time_at_the_rate_it_allows() {
    let (requests, rejected) = run(
        "Slack",
        &[
            json!({"message": "disk \"a\" is full\n& so on"}),
            json!({"message": "two"}),
            json!({"no": "message"}),
        ],
        |requests| requests.len() == 3,
        |request, n| {
            assert_eq!(request.path, "/services/s3cret");
            assert_eq!(request.header("content-type"), Some("application/json"));
            match n {
                0 => (
                    429,
                    "Retry-After: 1\r\n".to_owned(),
                    "rate_limited".to_owned(),
                ),
                _ => said(200, "ok"),
            }
        },
    );
    let texts: Vec<Value> = requests
        .iter()
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .collect();
    let first = json!({"text": "disk \"a\" is full\n& so on"});
    assert_eq!(texts, [first.clone(), first, json!({"text": "two"})]);
    assert!(
        rejected.contains(".message"),
        "a record without a text cannot be posted: {rejected}"
    );
}

#[test]
fn alertmanager_accepts_alerts() {
    let (requests, rejected) = run(
        "Alertmanager",
        &[
            json!({"alert": "DiskFull", "severity": "critical", "message": "95 %"}),
            json!({"message": "something"}),
        ],
        |requests| requests.len() == 1,
        |request, _| {
            assert_eq!(request.path, "/api/v2/alerts");
            assert_eq!(request.header("content-type"), Some("application/json"));
            said(200, "")
        },
    );
    assert_eq!(rejected, "");
    let alerts: Value = serde_json::from_slice(&requests[0].body).unwrap();
    let alerts = alerts.as_array().unwrap();
    assert_eq!(alerts[0]["labels"]["alertname"], "DiskFull");
    assert_eq!(alerts[0]["annotations"]["summary"], "95 %");
    let labels = &alerts[1]["labels"];
    assert_eq!(
        (&labels["alertname"], &labels["severity"]),
        (&json!("log"), &json!("warning"))
    );
    assert!(labels["host"].as_str().is_some_and(|host| !host.is_empty()));
    assert!(alerts[1]["startsAt"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn another_millstream_accepts_lines_with_a_token_and_a_key() {
    let (requests, _) = run(
        "Another Millstream",
        &messages(3),
        |requests| requests.len() == 1,
        |request, _| {
            assert_eq!(request.path, "/shop");
            assert_eq!(request.header("authorization"), Some("Bearer s3cret"));
            assert!(request.header("idempotency-key").unwrap().contains('.'));
            said(200, json!({"accepted": 3}))
        },
    );
    assert_eq!(requests[0].text().lines().count(), 3);
}
