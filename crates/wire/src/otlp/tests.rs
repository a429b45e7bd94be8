use base64::{Engine, engine::general_purpose::STANDARD};
use millstream_record::Time;
use proptest::prelude::*;
use rmpv::Value as Packed;
use serde_json::{Value, json};

use super::*;
use crate::json::{Progress, to_msgpack, write_value};

const RECEIVED: Time = Time(1_600_000_000_000_000_007);

/// A protobuf message being written.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, number: u8, value: u64) -> Self {
        self.0.push(number << 3);
        self.0.extend(varint(value));
        self
    }

    fn fixed64(mut self, number: u8, value: u64) -> Self {
        self.0.push(number << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn fixed32(mut self, number: u8, value: u32) -> Self {
        self.0.push(number << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, number: u8, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(number << 3 | 2);
        self.0.extend(varint(bytes.as_ref().len() as u64));
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    fn message(self, number: u8, message: &Message) -> Self {
        self.bytes(number, &message.0)
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A value that both encodings support.
#[derive(Clone, Debug)]
enum Any {
    Nil,
    Text(String),
    Bool(bool),
    Int(i64),
    Double(f64),
    Bytes(Vec<u8>),
    List(Vec<Any>),
    Map(Vec<(String, Any)>),
}

impl Any {
    fn protobuf(&self) -> Message {
        let message = Message::default();
        match self {
            Self::Nil => message,
            Self::Text(text) => message.bytes(1, text),
            Self::Bool(value) => message.varint(2, u64::from(*value)),
            Self::Int(value) => message.varint(3, *value as u64),
            Self::Double(value) => message.fixed64(4, value.to_bits()),
            Self::Bytes(bytes) => message.bytes(7, bytes),
            Self::List(list) => {
                let list = list.iter().fold(Message::default(), |m, value| {
                    m.message(1, &value.protobuf())
                });
                message.message(5, &list)
            }
            Self::Map(pairs) => message.message(6, &pairs_of(Message::default(), 1, pairs)),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Nil => json!({}),
            Self::Text(text) => json!({ "stringValue": text }),
            Self::Bool(value) => json!({ "boolValue": value }),
            Self::Int(value) => json!({ "intValue": value.to_string() }),
            Self::Double(value) => json!({ "doubleValue": value }),
            Self::Bytes(bytes) => json!({ "bytesValue": STANDARD.encode(bytes) }),
            Self::List(list) => {
                let values: Vec<Value> = list.iter().map(Self::json).collect();
                json!({ "arrayValue": { "values": values } })
            }
            Self::Map(pairs) => json!({ "kvlistValue": { "values": json_pairs(pairs) } }),
        }
    }

    fn packed(&self) -> Packed {
        match self {
            Self::Nil => Packed::Nil,
            Self::Text(text) => text.as_str().into(),
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Double(value) => (*value).into(),
            Self::Bytes(bytes) => Packed::Binary(bytes.clone()),
            Self::List(list) => Packed::Array(list.iter().map(Self::packed).collect()),
            Self::Map(pairs) => packed_pairs(pairs),
        }
    }
}

type Pairs = Vec<(String, Any)>;

fn pairs_of(message: Message, number: u8, pairs: &Pairs) -> Message {
    pairs.iter().fold(message, |message, (key, value)| {
        let pair = Message::default()
            .bytes(1, key)
            .message(2, &value.protobuf());
        message.message(number, &pair)
    })
}

fn json_pairs(pairs: &Pairs) -> Vec<Value> {
    let pair = |(key, value): &(String, Any)| json!({ "key": key, "value": value.json() });
    pairs.iter().map(pair).collect()
}

fn packed_pairs(pairs: &Pairs) -> Packed {
    let pair = |(key, value): &(String, Any)| (key.as_str().into(), value.packed());
    Packed::Map(pairs.iter().map(pair).collect())
}

/// The result of a decoder: entries, and the parts that it could not read.
#[derive(Debug, Default, PartialEq)]
struct Decoded {
    out: Vec<u8>,
    records: usize,
    bad: Vec<(Vec<u8>, Bad)>,
}

fn decode(mut logs: Logs<'_>) -> Decoded {
    let mut found = Decoded::default();
    loop {
        let before = found.out.capacity();
        let next = logs.next(RECEIVED, &mut found.out);
        assert_eq!(found.out.capacity(), before, "`next` enlarged the output");
        match next {
            Next::Record => found.records += 1,
            Next::Bad(bytes, bad) => found.bad.push((bytes.to_vec(), bad)),
            Next::Room(bytes) => found.out.reserve_exact(bytes),
            Next::End => return found,
        }
    }
}

fn protobuf(request: &Message) -> Decoded {
    decode(Logs::protobuf(&request.0))
}

fn json(request: &Value) -> Decoded {
    let text = request.to_string();
    let mut packed = Vec::new();
    let read = to_msgpack(text.as_bytes(), &mut packed);
    assert_eq!(read, Ok(Progress::Consumed(text.len())));
    decode(Logs::json(&packed))
}

fn entries(found: &Decoded) -> Vec<(Time, Packed)> {
    let mut rest = &found.out[..];
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let time = crate::msgpack::entry_head(rest, 0).unwrap().time.unwrap();
        let entry = rmpv::decode::read_value(&mut rest).unwrap();
        entries.push((time, entry[1].clone()));
    }
    assert_eq!(entries.len(), found.records);
    entries
}

fn one(found: &Decoded) -> (Time, Value) {
    let mut text = Vec::new();
    let head = crate::msgpack::entry_head(&found.out, 0).unwrap();
    write_value(&found.out, head.record, &mut text).unwrap();
    assert_eq!((found.records, &found.bad[..]), (1, &[][..]));
    (head.time.unwrap(), serde_json::from_slice(&text).unwrap())
}

/// A request with one resource and one scope.
fn request(records: &[Message]) -> Message {
    let scope = records
        .iter()
        .fold(Message::default(), |scope, record| scope.message(2, record));
    let resource = Message::default().message(2, &scope);
    Message::default().message(1, &resource)
}

fn full_protobuf() -> Message {
    let text = |text: &str| Any::Text(text.to_owned());
    let record = Message::default()
        .fixed64(1, 1_700_000_000_123_456_789)
        .varint(2, 17)
        .bytes(3, "ERROR")
        .message(5, &text("it broke").protobuf())
        .varint(7, 3)
        .fixed32(8, 1)
        .bytes(9, [0xab; 16])
        .bytes(10, [1, 2, 3, 4, 5, 6, 7, 0xff])
        .fixed64(11, 1_700_000_000_999_999_999)
        .bytes(12, "app.broke");
    let record = pairs_of(record, 6, &vec![("http.status".to_owned(), Any::Int(500))]);
    let scope = Message::default()
        .bytes(1, "lib")
        .bytes(2, "1.2")
        .varint(4, 6);
    let scope = pairs_of(scope, 3, &vec![("s".to_owned(), Any::Bool(true))]);
    let logs = Message::default()
        .bytes(3, "https://a/scope")
        .message(2, &record)
        .message(1, &scope);
    let resource = pairs_of(
        Message::default(),
        1,
        &vec![("service.name".to_owned(), text("shop"))],
    );
    let resource = resource.varint(2, 5);
    // The resource follows the scopes that belong to it, which protobuf permits.
    let resource = Message::default()
        .message(2, &logs)
        .message(1, &resource)
        .bytes(3, "https://a/resource");
    Message::default().message(1, &resource)
}

fn full_json() -> Value {
    json!({ "resourceLogs": [{
        "scopeLogs": [{
            "logRecords": [{
                "timeUnixNano": "1700000000123456789",
                "observedTimeUnixNano": 1_700_000_000_999_999_999_u64,
                "severityNumber": "SEVERITY_NUMBER_ERROR",
                "severityText": "ERROR",
                "body": { "stringValue": "it broke" },
                "attributes": [{ "key": "http.status", "value": { "intValue": "500" } }],
                "droppedAttributesCount": 3,
                "flags": 1,
                "traceId": "ABABABABABABABABABABABABABABABAB",
                "spanId": "01020304050607ff",
                "eventName": "app.broke",
                "unknown": [1, { "a": null }],
            }],
            "scope": {
                "name": "lib",
                "version": "1.2",
                "droppedAttributesCount": 6,
                "attributes": [{ "key": "s", "value": { "boolValue": true } }],
            },
            "schemaUrl": "https://a/scope",
        }],
        "resource": {
            "attributes": [{ "key": "service.name", "value": { "stringValue": "shop" } }],
            "droppedAttributesCount": "5",
        },
        "schemaUrl": "https://a/resource",
    }]})
}

#[test]
fn every_field_of_a_log_record_is_read() {
    let expected = json!({
        "message": "it broke",
        "severity_text": "ERROR",
        "severity_number": 17,
        "trace_id": "abababababababababababababababab",
        "span_id": "01020304050607ff",
        "event_name": "app.broke",
        "flags": 1,
        "observed_time_unix_nano": 1_700_000_000_999_999_999_u64,
        "dropped_attributes_count": 3,
        "attributes": { "http.status": 500 },
        "resources": { "service.name": "shop" },
        "resource_schema_url": "https://a/resource",
        "resource_dropped_attributes_count": 5,
        "scope": {
            "name": "lib",
            "version": "1.2",
            "schema_url": "https://a/scope",
            "dropped_attributes_count": 6,
            "attributes": { "s": true },
        },
    });
    for found in [protobuf(&full_protobuf()), json(&full_json())] {
        let (time, record) = one(&found);
        assert_eq!(time, Time(1_700_000_000_123_456_789));
        assert_eq!(record, expected);
    }
}

#[test]
fn fields_that_are_not_set_are_left_out() {
    let empty = Message::default().bytes(9, [0; 16]).bytes(10, []);
    let (time, record) = one(&protobuf(&request(&[empty])));
    assert_eq!((time, record), (RECEIVED, json!({})));
    let logs = json!({ "resourceLogs": [{ "resource": null, "scopeLogs": [{ "logRecords": [{ "body": null, "traceId": "" }] }] }] });
    assert_eq!(one(&json(&logs)), (RECEIVED, json!({})));
    for logs in [
        json!({}),
        json!({ "resourceLogs": [] }),
        json!({ "resource_logs": null }),
    ] {
        assert_eq!(json(&logs), Decoded::default());
    }
    assert_eq!(protobuf(&Message::default()), Decoded::default());
}

#[test]
fn a_record_without_a_time_has_the_observed_time() {
    let record = Message::default().fixed64(11, 5_000_000_001);
    assert_eq!(one(&protobuf(&request(&[record]))).0, Time(5_000_000_001));
    // A time after 2262 does not fit into `Time`, so the record gets the receive time.
    let record = Message::default().fixed64(1, u64::MAX);
    assert_eq!(one(&protobuf(&request(&[record]))).0, RECEIVED);
}

#[test]
fn a_bad_record_does_not_affect_its_neighbours() {
    let good = Message::default().message(5, &Any::Text("x".to_owned()).protobuf());
    let deep = (0..LEVELS_MAX + 1).fold(Any::Nil, |value, _| Any::List(vec![value]));
    let bad = [
        (Message(vec![0x29, 1, 2]), Bad::Malformed),
        (Message(vec![0x2a, 5, 1]), Bad::Malformed),
        (Message(vec![0xff; 11]), Bad::Malformed),
        (Message(vec![0x0b]), Bad::Malformed),
        (Message::default().varint(1, 7), Bad::Type),
        (Message::default().bytes(9, [1; 33]), Bad::Type),
        (
            Message::default().message(5, &Message::default().varint(1, 7)),
            Bad::Type,
        ),
        (
            Message::default().message(5, &deep.protobuf()),
            Bad::TooDeep,
        ),
    ];
    for (bad, reason) in bad {
        let found = protobuf(&request(&[good.clone(), bad.clone(), good.clone()]));
        assert_eq!(found.records, 2);
        assert_eq!(found.bad, [(bad.0, reason)]);
        assert_eq!(entries(&found).len(), 2);
    }
}

#[test]
fn a_truncated_request_gives_its_complete_records() {
    let good = Message::default().message(5, &Any::Text("text".to_owned()).protobuf());
    let first = request(&[good.clone(), good.clone()]);
    let second = request(&[good.clone(), good]);
    let whole = [&first.0[..], &second.0].concat();
    for end in first.0.len() + 1..whole.len() {
        let found = decode(Logs::protobuf(&whole[..end]));
        assert_eq!(found.records, 2);
        assert_eq!(
            found.bad,
            [(whole[first.0.len()..end].to_vec(), Bad::Malformed)]
        );
    }
}

#[test]
fn an_oversized_resource_is_rejected() {
    let pairs = vec![("a".to_owned(), Any::Text("x".repeat(1 << 20)))];
    let resource = pairs_of(Message::default(), 1, &pairs);
    let one = Message::default().message(1, &resource);
    let found = protobuf(&Message::default().message(1, &one));
    assert_eq!((found.records, found.bad[0].1), (0, Bad::TooLong));
    let logs = json!({ "resourceLogs": [{ "resource": { "attributes": json_pairs(&pairs) } }] });
    assert_eq!(json(&logs).bad[0].1, Bad::TooLong);
}

#[test]
fn json_records_with_wrong_types_are_rejected_and_their_neighbours_are_kept() {
    let good = json!({ "body": { "stringValue": "x" } });
    let bad = [
        json!(7),
        json!({ "body": 7 }),
        json!({ "body": { "intValue": "seven" } }),
        json!({ "body": { "intValue": "99999999999999999999" } }),
        json!({ "body": { "bytesValue": "?" } }),
        json!({ "attributes": { "key": "a" } }),
        json!({ "traceId": "xyz" }),
        json!({ "timeUnixNano": -1 }),
        json!({ "severityNumber": "SEVERITY_NUMBER_LOUD" }),
    ];
    for bad in bad {
        let logs =
            json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [good, bad, good] }] }] });
        let found = json(&logs);
        assert_eq!((found.records, found.bad.len()), (2, 1), "{bad}");
        assert_eq!(found.bad[0].1, Bad::Type);
        entries(&found);
    }
    for logs in [
        json!([]),
        json!("x"),
        json!({ "resourceLogs": 1 }),
        json!({ "resourceLogs": [1] }),
    ] {
        let found = json(&logs);
        assert_eq!((found.records, found.bad.len()), (0, 1), "{logs}");
    }
}

#[test]
fn numbers_may_be_written_as_texts_or_numbers() {
    let value = |value: Value| {
        let logs =
            json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [{ "body": value }] }] }] });
        one(&json(&logs)).1["message"].clone()
    };
    assert_eq!(
        value(json!({ "intValue": "-9223372036854775808" })),
        json!(i64::MIN)
    );
    assert_eq!(value(json!({ "int_value": 42 })), json!(42));
    assert_eq!(value(json!({ "doubleValue": 5 })), json!(5.0));
    assert_eq!(value(json!({ "doubleValue": "2.5" })), json!(2.5));
    // JSON output writes null for NaN.
    assert_eq!(value(json!({ "doubleValue": "NaN" })), json!(null));
    assert_eq!(value(json!({ "bytesValue": "AAH/" })), json!("AAH/"));
}

#[test]
fn answers_have_the_format_that_exporters_read() {
    assert_eq!(accepted(Form::Protobuf, None), b"");
    assert_eq!(accepted(Form::Json, None), b"{}");
    assert_eq!(
        accepted(Form::Protobuf, Some((300, "why"))),
        b"\x0a\x08\x08\xac\x02\x12\x03why"
    );
    let partial: Value = serde_json::from_slice(&accepted(Form::Json, Some((2, "\"")))).unwrap();
    let expected = json!({ "partialSuccess": { "rejectedLogRecords": "2", "errorMessage": "\"" } });
    assert_eq!(partial, expected);
    assert_eq!(refused(Form::Protobuf, 3, "no"), b"\x08\x03\x12\x02no");
    let status: Value = serde_json::from_slice(&refused(Form::Json, 14, "later")).unwrap();
    assert_eq!(status, json!({ "code": 14, "message": "later" }));
}

fn any_value() -> impl Strategy<Value = Any> {
    let leaf = prop_oneof![
        Just(Any::Nil),
        ".{0,40}".prop_map(Any::Text),
        any::<bool>().prop_map(Any::Bool),
        any::<i64>().prop_map(Any::Int),
        prop::num::f64::NORMAL.prop_map(Any::Double),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Any::Bytes),
    ];
    leaf.prop_recursive(4, 40, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Any::List),
            prop::collection::vec(("[a-z]{0,3}", inner), 0..20).prop_map(Any::Map),
        ]
    })
}

fn pairs() -> impl Strategy<Value = Pairs> {
    prop::collection::vec(("[a-z.]{1,9}", any_value()), 0..20)
}

proptest! {
    #[test]
    fn both_encodings_give_the_same_records(
        resource in pairs(),
        records in prop::collection::vec((any_value(), pairs(), any::<u32>()), 0..4),
    ) {
        let mut scope = Message::default();
        let mut list = Vec::new();
        let mut expected = Vec::new();
        for (body, attributes, time) in &records {
            let nanos = u64::from(*time) * 1_000_000_001 + 1;
            let record = Message::default().fixed64(1, nanos).message(5, &body.protobuf());
            scope = scope.message(2, &pairs_of(record, 6, attributes));
            list.push(json!({ "timeUnixNano": nanos.to_string(), "body": body.json(), "attributes": json_pairs(attributes) }));
            let mut fields = vec![("message".into(), body.packed())];
            if !attributes.is_empty() {
                fields.push(("attributes".into(), packed_pairs(attributes)));
            }
            if !resource.is_empty() {
                fields.push(("resources".into(), packed_pairs(&resource)));
            }
            expected.push((Time(nanos as i64), Packed::Map(fields)));
        }
        let all = Message::default()
            .message(1, &pairs_of(Message::default(), 1, &resource))
            .message(2, &scope);
        let binary = protobuf(&Message::default().message(1, &all));
        prop_assert_eq!(&entries(&binary), &expected);
        let text = json(&json!({ "resourceLogs": [{
            "resource": { "attributes": json_pairs(&resource) },
            "scopeLogs": [{ "logRecords": list }],
        }]}));
        prop_assert_eq!(&text.out, &binary.out);
        prop_assert!(binary.bad.is_empty() && text.bad.is_empty());
    }

    #[test]
    fn damaged_requests_never_panic_and_leave_only_complete_entries(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut request = full_protobuf().0;
        for (place, byte) in &damage {
            let place = place.index(request.len());
            request[place] = *byte;
        }
        entries(&decode(Logs::protobuf(&request)));
        let mut text = full_json().to_string().into_bytes();
        for (place, byte) in &damage {
            let place = place.index(text.len());
            text[place] = *byte;
        }
        let mut packed = Vec::new();
        if let Ok(Progress::Consumed(_)) = to_msgpack(&text, &mut packed) {
            entries(&decode(Logs::json(&packed)));
        }
    }
}
