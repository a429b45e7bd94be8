//! Tests of OTLP over HTTP: routes, encodings and answers. The decoders have their own tests in `wire`.

use serde_json::{Value, json};

use super::Rig;

const PROTOBUF: &str = "Content-Type: application/x-protobuf";
const JSON: &str = "Content-Type: application/json";

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
}

/// A request with these log records.
fn request(records: &[&[u8]]) -> Vec<u8> {
    let records: Vec<u8> = records.iter().flat_map(|record| field(2, record)).collect();
    field(1, &field(2, &records))
}

#[test]
fn logs_are_accepted_in_both_encodings() {
    let rig = Rig::new(r#", "path": "/elsewhere""#);
    let record = field(5, &field(1, b"hello"));
    let answer = rig.post("/v1/logs", &[PROTOBUF], &request(&[&record, &record]));
    assert_eq!((answer.status, &answer.body[..]), (200, &b""[..]));
    assert!(answer.has("content-type: application/x-protobuf"));
    let logs = json!({"resourceLogs": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
        "scopeLogs": [{"logRecords": [{"timeUnixNano": "1700000000000000001", "body": {"stringValue": "hello"}}]}],
    }]});
    let answer = rig.post("/v1/logs", &[JSON], logs.to_string().as_bytes());
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    let hello = json!({"message": "hello"});
    let shop = json!({"message": "hello", "resources": {"service.name": "shop"}});
    assert_eq!(rig.records(), [hello.clone(), hello, shop]);
    rig.running.stop();
}

#[test]
fn bad_records_are_reported_as_a_partial_success_and_rejected() {
    let rig = Rig::new("");
    let good = field(5, &field(1, b"good"));
    let answer = rig.post(
        "/v1/logs",
        &[PROTOBUF],
        &request(&[&good, b"\x29bad", &good]),
    );
    assert_eq!(answer.status, 200);
    // The answer is `partial_success`: one rejected record, and the reason.
    assert_eq!(answer.body[..1], [0x0a]);
    assert_eq!(answer.body[2..4], [0x08, 1]);
    assert_eq!(rig.records().len(), 2);
    assert_eq!(rig.rejected()[0].1, ")bad");
    let logs = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [{}, {"body": 1}]}]}]});
    let answer = rig.post("/v1/logs", &[JSON], logs.to_string().as_bytes());
    let partial = answer.json();
    assert_eq!(partial["partialSuccess"]["rejectedLogRecords"], json!("1"));
    assert_eq!(rig.rejected()[1].1, "{\"body\":1}");
    rig.running.stop();
}

#[test]
fn an_undecodable_request_is_answered_in_its_own_encoding() {
    let rig = Rig::new("");
    let answer = rig.post("/v1/logs", &[PROTOBUF], b"\xff\xff\xff");
    assert_eq!((answer.status, &answer.body[..2]), (400, &[0x08, 3][..]));
    for (body, why) in [
        ("{", "line 1, byte 2: more of the request expected"),
        ("{\"a\" 1}", "line 1, byte 6: `:` expected"),
        (
            "{\"resourceLogs\":[{\"scopeLogs\":[{\"logRecords\":[{}]}]}]}\n{\"resourceLogs\":[]}\n",
            "line 2, byte 1: the end of the request expected",
        ),
        ("[]", "of the wrong type"),
    ] {
        let answer = rig.post("/v1/logs", &[JSON], body.as_bytes());
        let status: Value = answer.json();
        assert_eq!((answer.status, &status["code"]), (400, &json!(3)));
        assert!(
            status["message"].as_str().unwrap().contains(why),
            "{status}"
        );
    }
    assert!(rig.records().is_empty() && rig.rejected().is_empty());
    rig.running.stop();
}

#[test]
fn other_paths_take_otlp_only_if_they_are_configured() {
    let logs = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "hello"}}]}]}]});
    let record = field(5, &field(1, b"hello"));
    let bodies = [
        (PROTOBUF, request(&[&record])),
        (JSON, logs.to_string().into_bytes()),
    ];
    let paths = ["/otlp/v1/logs", "/v1/logs/", "/otlp/v1/logs/"];
    let named = format!(r#", "path": {}"#, json!(paths));
    for (kind, body) in &bodies {
        let rig = Rig::new("");
        for path in paths {
            let answer = rig.post(path, &[kind], body);
            assert_eq!(answer.status, 404, "{path}");
            let told = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(told.contains("`/v1/logs`, or name"), "{told}");
        }
        assert!(rig.records().is_empty());
        rig.running.stop();
        for option in [r#", "path": "/*""#, &named] {
            let rig = Rig::new(option);
            for path in paths {
                let answer = rig.post(path, &[kind], body);
                assert_eq!(answer.status, 200, "{path}");
                assert!(answer.has(&kind.to_ascii_lowercase()), "{answer:?}");
            }
            assert_eq!(rig.records(), vec![json!({"message": "hello"}); 3]);
            for path in ["/otlp/v1/traces", "/v1/metrics/"] {
                assert_eq!(rig.post(path, &[kind], body).status, 404, "{path}");
            }
            rig.running.stop();
        }
    }
}
