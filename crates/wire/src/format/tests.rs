//! Encoders, case by case; `properties` compares them with other implementations.

mod invalid;
mod properties;
mod separated;

use std::sync::Arc;

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time, Values};
use rmpv::Value;
use serde_json::json;

use super::*;
use crate::{record::records, template::Template};

/// The time of all records.
const EVENT_TEXT: &str = "2023-11-14T22:13:20.123456789Z";

fn batch(encoding: Encoding, body: Vec<u8>, count: usize) -> Batch {
    let mut values = Values::new();
    values.set("host", "box\"1");
    Batch {
        tag: "web.front".into(),
        plain: false,
        encoding,
        body: body.into(),
        count: count as u32,
        received: Time(1_600_000_000_000_000_001),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

fn lines(text: &[u8]) -> Batch {
    batch(
        Encoding::Lines,
        text.to_vec(),
        crate::lines::count(text) as usize,
    )
}

/// A batch of records at [`EVENT_TEXT`].
fn packed(records: &[Value]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        body.extend_from_slice(b"\x92\xd7\0\x65\x53\xf1\0\x07\x5b\xcd\x15");
        rmpv::encode::write_value(&mut body, record).unwrap();
    }
    batch(Encoding::Packed, body, records.len())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn add<const N: usize>(fields: [(&str, &str); N]) -> Option<Add> {
    let fields = fields.map(|(name, text)| (name.to_owned(), Template::parse(text).unwrap()));
    Some(Add::from(Vec::from(fields)))
}

/// Adds these fields, but not the event time.
fn only<const N: usize>(fields: [(&str, &str); N]) -> Option<Add> {
    let without = vec!["time".to_owned()];
    add(fields).map(|add| Add { without, ..add })
}

fn bare() -> Options {
    Options {
        add: add([]),
        ..Options::default()
    }
}

fn raw() -> Options {
    Options {
        format: Format::Raw,
        ..Options::default()
    }
}

/// Returns the output, and the reasons why records were rejected. Also checks that each record is either encoded or rejected, and
/// that the output does not depend on how the batch is divided.
fn encode(options: &Options, batch: &Batch) -> (String, Vec<String>) {
    let (out, rejects) = encode_bytes(options, batch);
    let reasons = rejects.iter().map(|reject| reject.reason.to_string());
    (String::from_utf8(out).unwrap(), reasons.collect())
}

fn encode_bytes(options: &Options, batch: &Batch) -> (Vec<u8>, Vec<Reject>) {
    let mut encoder = options.encoder(&TimeZone::UTC).unwrap();
    let (mut out, mut rejects) = (b"before".to_vec(), Vec::new());
    let encoded = encoder.encode(batch, &mut out, &mut rejects);
    assert_eq!(encoded + rejects.len() as u32, batch.count);
    // Encoding one record at a time gives the same result.
    let (mut single, mut single_rejects) = (b"before".to_vec(), Vec::new());
    for (range, _) in records(batch) {
        encoder.encode_range(batch, range, &mut single, &mut single_rejects);
    }
    assert_eq!((&single, &single_rejects), (&out, &rejects));
    assert_eq!(&out[..6], b"before");
    (out.split_off(6), rejects)
}

fn text(options: &Options, batch: &Batch) -> String {
    let (text, rejects) = encode(options, batch);
    assert_eq!(rejects, [""; 0]);
    text
}

#[test]
fn the_event_time_is_added_unless_the_record_has_a_field_of_that_name() {
    let records = [
        map([("a", 1.into())]),
        map([("time", "mine".into())]),
        Value::Map(vec![]),
    ];
    let expected = format!(
        "{{\"a\":1,\"time\":\"{EVENT_TEXT}\"}}\n{{\"time\":\"mine\"}}\n{{\"time\":\"{EVENT_TEXT}\"}}\n"
    );
    assert_eq!(text(&Options::default(), &packed(&records)), expected);
    assert_eq!(
        text(&Options::default(), &lines(b"x\n")),
        "{\"message\":\"x\",\"time\":\"2020-09-13T12:26:40.000000001Z\"}\n"
    );
}

#[test]
fn the_event_time_is_added_beside_other_fields_unless_it_is_null() {
    let record = map([("a", 1.into())]);
    let written = |format, add: &str| {
        let options = Options {
            format,
            add: Some(serde_json::from_str(add).unwrap()),
            columns: (format == Format::Csv)
                .then(|| vec![".env".parse().unwrap(), ".time".parse().unwrap()]),
            ..Options::default()
        };
        text(&options, &packed(std::slice::from_ref(&record)))
    };
    for (add, expected) in [
        (
            r#"{"env":"prod"}"#,
            format!("{{\"a\":1,\"time\":\"{EVENT_TEXT}\",\"env\":\"prod\"}}\n"),
        ),
        (
            r#"{"env":"prod","time":null}"#,
            "{\"a\":1,\"env\":\"prod\"}\n".to_owned(),
        ),
        (r#"{"time":null}"#, "{\"a\":1}\n".to_owned()),
        ("{}", "{\"a\":1}\n".to_owned()),
        // The event time is not added if another added field contains it or has the name `time`.
        (
            r#"{"at":"{time:unix}"}"#,
            "{\"a\":1,\"at\":1700000000}\n".to_owned(),
        ),
        (
            r#"{"time":"{tag}"}"#,
            "{\"a\":1,\"time\":\"web.front\"}\n".to_owned(),
        ),
        // A date alone does not count as an event time.
        (
            r#"{"day":"%F"}"#,
            format!("{{\"a\":1,\"time\":\"{EVENT_TEXT}\",\"day\":\"2023-11-14\"}}\n"),
        ),
    ] {
        assert_eq!(written(Format::Json, add), expected, "{add}");
    }
    assert_eq!(
        written(Format::Ltsv, r#"{"env":"prod"}"#),
        format!("a:1\ttime:{EVENT_TEXT}\tenv:prod\n")
    );
    assert_eq!(
        written(Format::Csv, r#"{"env":"prod"}"#),
        format!("prod,{EVENT_TEXT}\n")
    );
    for (format, name) in [(Format::Json, "env"), (Format::Msgpack, "time")] {
        let options = Options {
            format,
            add: Some(serde_json::from_str(&format!("{{\"{name}\":null}}")).unwrap()),
            ..Options::default()
        };
        let error = options.encoder(&TimeZone::UTC).unwrap_err();
        assert_eq!(
            (error.option, error.message),
            ("add", format!("`{name}` has no template"))
        );
    }
}

#[test]
fn integer_times_and_entries_with_metadata_are_read() {
    let body =
        b"\x92\x02\x81\xa1a\x01\x92\x92\xce\x65\x53\xf1\0\x81\xa1m\xc0\x81\xa1b\x02".to_vec();
    assert_eq!(
        text(&Options::default(), &batch(Encoding::Packed, body, 2)),
        "{\"a\":1,\"time\":\"1970-01-01T00:00:02.000000000Z\"}\n\
         {\"b\":2,\"time\":\"2023-11-14T22:13:20.000000000Z\"}\n"
    );
}

#[test]
fn added_fields_keep_their_types_and_overwrite_nothing() {
    let options = Options {
        add: add([
            ("a", "{.n}"),
            ("b", "{.n}!"),
            ("c", "{.deep.er}"),
            ("d", "{.gone|none}"),
            ("e", "{host}"),
            ("f", "{time:unix_ms}"),
            ("g", "%F"),
            ("message", "{tag}"),
            ("nil", "{.nil}"),
            ("full", "{.nil|empty}"),
        ]),
        ..Options::default()
    };
    let record = map([
        ("n", 5.into()),
        (
            "deep",
            map([("er", Value::Array(vec![1.into(), Value::Nil]))]),
        ),
        ("message", "mine".into()),
        ("nil", Value::Nil),
    ]);
    assert_eq!(
        text(&options, &packed(&[record])),
        "{\"n\":5,\"deep\":{\"er\":[1,null]},\"message\":\"mine\",\"nil\":null,\
         \"a\":5,\"b\":\"5!\",\"c\":[1,null],\"d\":\"none\",\"e\":\"box\\\"1\",\
         \"f\":1700000000123,\"g\":\"2023-11-14\",\"full\":\"empty\"}\n"
    );
}

#[test]
fn a_record_without_a_value_of_the_template_is_rejected_and_the_others_are_written() {
    let options = Options {
        add: only([("u", "{.user}")]),
        ..Options::default()
    };
    let batch = packed(&[map([]), map([("user", 1.into())]), map([("a", "b".into())])]);
    let (out, rejects) = encode_bytes(&options, &batch);
    assert_eq!(out, b"{\"user\":1,\"u\":1}\n");
    let places: Vec<_> = records(&batch).map(|(range, _)| range).collect();
    assert_eq!(
        rejects.iter().map(|r| r.range.clone()).collect::<Vec<_>>(),
        [places[0].clone(), places[2].clone()]
    );
    assert_eq!(
        rejects[0].reason.to_string(),
        "no value for `.user`; to write such records give it a default: `{.user|unknown}`"
    );
    let options = Options {
        add: only([("p", "{pod}")]),
        ..Options::default()
    };
    let (out, rejects) = encode(&options, &batch);
    assert_eq!((out.as_str(), rejects.len()), ("", 3));
}

#[test]
fn raw_writes_one_field() {
    let batch = packed(&[
        map([("message", "first".into())]),
        map([
            ("a", Value::Nil),
            ("message", "second".into()),
            ("b", 1.into()),
        ]),
        map([
            ("message", "third".into()),
            ("z", Value::Array(vec![1.into()])),
        ]),
        map([("message", map([("n", 1.into())]))]),
        map([("message", Value::Binary(vec![b'\xff', b'x']))]),
        map([("messag", "no".into())]),
    ]);
    let (out, rejects) = encode_bytes(&raw(), &batch);
    assert_eq!(out, b"first\nsecond\nthird\n{\"n\":1}\n\xffx\n");
    assert_eq!(rejects.len(), 1);
    assert_eq!(
        rejects[0].reason.to_string(),
        "no field `.message`, which is what `format: raw` writes (option `field`)"
    );
    let options = Options {
        field: Some(".a.b".parse().unwrap()),
        delimiter: Some("\0".into()),
        ..raw()
    };
    let batch = packed(&[map([("a", map([("b", "x".into())]))])]);
    assert_eq!(text(&options, &batch), "x\0");
    assert_eq!(encode(&options, &lines(b"x\ny\n")).1.len(), 2);
}

#[test]
fn templates_are_rendered_per_record() {
    let options = Options {
        format: Format::Template,
        template: Some(Template::parse("%FT%T.%9fZ {host} {.message}\n").unwrap()),
        ..Options::default()
    };
    let batch = packed(&[map([("message", "m".into())]), map([])]);
    let (out, rejects) = encode(&options, &batch);
    assert_eq!(out, format!("{EVENT_TEXT} box\"1 m\n"));
    assert_eq!(rejects.len(), 1);
}

#[test]
fn text_that_is_not_utf8_becomes_base64() {
    assert_eq!(
        text(&bare(), &lines(b"a\xff\n\xc3\xa9\n")),
        "{\"message\":\"Yf8=\"}\n{\"message\":\"é\"}\n"
    );
    let body = b"\x92\x02\x81\xa2\xff\xfe\xa2\xff\xfe".to_vec();
    assert_eq!(
        text(&bare(), &batch(Encoding::Packed, body, 1)),
        "{\"//4=\":\"//4=\"}\n"
    );
}

#[test]
fn times_within_records_become_text() {
    let event_time = Value::Ext(0, b"\x65\x53\xf1\0\x07\x5b\xcd\x15".to_vec());
    let timestamp32 = Value::Ext(-1, b"\0\0\0\x02".to_vec());
    let timestamp64 = Value::Ext(-1, ((5_u64 << 34) | 3).to_be_bytes().to_vec());
    let timestamp96 = Value::Ext(
        -1,
        [&7_u32.to_be_bytes()[..], &(-1_i64).to_be_bytes()].concat(),
    );
    let beyond = Value::Ext(
        -1,
        [&7_u32.to_be_bytes()[..], &i64::MAX.to_be_bytes()].concat(),
    );
    let record = map([
        ("e", event_time),
        ("a", timestamp32),
        ("b", timestamp64),
        ("c", timestamp96),
        ("d", beyond),
    ]);
    assert_eq!(
        text(&bare(), &packed(&[record])),
        format!(
            "{{\"e\":\"{EVENT_TEXT}\",\"a\":\"1970-01-01T00:00:02.000000000Z\",\
             \"b\":\"1970-01-01T00:00:03.000000005Z\",\"c\":\"1969-12-31T23:59:59.000000007Z\",\
             \"d\":{{\"type\":-1,\"data\":\"AAAAB3//////////\"}}}}\n"
        )
    );
}

#[test]
fn a_record_that_json_cannot_represent_is_rejected() {
    let nested = |levels| (0..levels).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
    let keyed = Value::Map(vec![(Value::Array(vec![]), 1.into())]);
    let batch = packed(&[
        map([("a", nested(128))]),
        map([("a", nested(129))]),
        map([("a", keyed.clone())]),
        keyed,
        map([("a", 1.into())]),
    ]);
    let (out, rejects) = encode(&bare(), &batch);
    assert_eq!(out.lines().count(), 2);
    assert_eq!(
        rejects,
        [
            "more than 128 levels of nesting",
            "a map has a key that is neither text nor a number",
            "a map has a key that is neither text nor a number"
        ]
    );
}

#[test]
fn the_encoder_knows_which_batches_pass_unchanged() {
    let passes =
        |options: &Options, batch: &Batch| options.encoder(&TimeZone::UTC).unwrap().passes(batch);
    let (lines, packed) = (lines(b"x\n"), packed(&[]));
    let msgpack = Options {
        format: Format::Msgpack,
        ..Options::default()
    };
    assert!(passes(&raw(), &lines) && !passes(&raw(), &packed));
    assert!(passes(&msgpack, &packed) && !passes(&msgpack, &lines));
    assert!(!passes(&Options::default(), &lines));
}

#[test]
fn incompatible_options_are_rejected() {
    let add_to_raw = Options {
        add: add([]),
        ..raw()
    };
    let no_template = Options {
        format: Format::Template,
        ..Options::default()
    };
    let field_of_json = Options {
        field: Some(FieldPath::top("a")),
        ..Options::default()
    };
    for (options, option) in [
        (add_to_raw, "add"),
        (no_template, "template"),
        (field_of_json, "field"),
        (separated::csv(&[]), "columns"),
        (
            Options {
                columns: separated::csv(&["a"]).columns,
                ..raw()
            },
            "columns",
        ),
        (
            Options {
                header: Some(false),
                ..raw()
            },
            "header",
        ),
    ] {
        assert_eq!(options.encoder(&TimeZone::UTC).unwrap_err().option, option);
    }
}

#[test]
fn serialized_options_read_back() {
    let add: Add = serde_json::from_str(r#"{"z":"{time}","a":"{.n|0}"}"#).unwrap();
    assert_eq!(add.fields[0].0, "z");
    assert_eq!(
        serde_json::to_string(&add).unwrap(),
        r#"{"z":"{time}","a":"{.n|0}"}"#
    );
    let without = r#"{"a":"b","time":null}"#;
    let add: Add = serde_json::from_str(without).unwrap();
    assert_eq!(serde_json::to_string(&add).unwrap(), without);
    let error = serde_json::from_str::<Add>(r#"{"z":"{"}"#).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("a `{` that is not closed at byte 0"),
        "{error}"
    );
    assert_eq!(
        serde_json::to_string(&Format::Msgpack).unwrap(),
        "\"msgpack\""
    );
    let schema = schemars::schema_for!(Add);
    assert_eq!(schema.get("type"), Some(&json!("object")));
}

#[test]
fn an_output_stays_within_its_limit_unless_its_first_record_is_longer() {
    let batch = lines(b"a\nbb\ncccccccc\nd\n");
    let mut encoder = Options {
        add: add([("tag", "{tag}")]),
        ..Options::default()
    }
    .encoder(&TimeZone::UTC)
    .unwrap();
    let mut whole = Vec::new();
    encoder.encode(&batch, &mut whole, &mut Vec::new());
    for bytes_max in 0..whole.len() + 2 {
        let (mut at, mut joined, mut count) = (0, Vec::new(), 0);
        while at < batch.body.len() {
            let (mut out, mut rejects) = (Vec::new(), Vec::new());
            let range = at..batch.body.len();
            let part = encoder.encode_within(&batch, range, bytes_max, &mut out, &mut rejects);
            assert!(out.len() <= bytes_max || part.records == 1, "{bytes_max}");
            assert!(part.end > at && part.records > 0 && rejects.is_empty());
            at = part.end;
            count += part.records;
            joined.extend(out);
        }
        assert_eq!((joined, count), (whole.clone(), 4));
    }
}

#[test]
fn of_a_repeated_field_only_the_last_value_is_written_as_json() {
    let fields = |names: &[&str]| {
        let pairs = names.iter().enumerate();
        Value::Map(pairs.map(|(n, name)| ((*name).into(), n.into())).collect())
    };
    // The keys of the previous record are remembered by their index, and all fields except the last one together.
    let records = [
        fields(&["a", "b", "c"]),
        fields(&["a", "b", "c"]),
        fields(&["a", "b", "a"]),
        fields(&["a", "b", "a"]),
        fields(&["b", "b", "c"]),
        fields(&["a", "b", "c"]),
        fields(&["a", "x", "c"]),
        fields(&["a", "x", "c", "x"]),
        fields(&["a", "x", "c", "d"]),
        fields(&["a", "a"]),
        fields(&["a", "x"]),
        fields(&["k", "a key of many more bytes than are remembered", "k"]),
        map([("m", fields(&["n", "n"])), ("n", 1.into())]),
    ];
    let text = text(&bare(), &packed(&records));
    let expected = [
        r#"{"a":0,"b":1,"c":2}"#,
        r#"{"a":0,"b":1,"c":2}"#,
        r#"{"b":1,"a":2}"#,
        r#"{"b":1,"a":2}"#,
        r#"{"b":1,"c":2}"#,
        r#"{"a":0,"b":1,"c":2}"#,
        r#"{"a":0,"x":1,"c":2}"#,
        r#"{"a":0,"c":2,"x":3}"#,
        r#"{"a":0,"x":1,"c":2,"d":3}"#,
        r#"{"a":1}"#,
        r#"{"a":0,"x":1}"#,
        r#"{"a key of many more bytes than are remembered":1,"k":2}"#,
        r#"{"m":{"n":1},"n":1}"#,
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}
