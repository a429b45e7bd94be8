//! Compares files with those of Java's Avro (`testdata`, written by Avro 1.11.4 with the sync marker
//! `0123456789abcdef`), and reads every record back with [`Reader`]. The program's test `hdfs` shows that
//! Avro's own readers read our files, too.

use std::{collections::BTreeMap, sync::Arc};

use jiff::tz::TimeZone;
use millstream_record::{Batch, Encoding, Time, Values};
use proptest::prelude::*;
use rmpv::Value;

use super::*;
use crate::{
    avro::Reader,
    format::{Add, Format, Headers, Options},
    record::FieldPath,
    template::Template,
};

const SYNC: Sync = Sync(*b"0123456789abcdef");
const CODECS: [Codec; 4] = [Codec::Null, Codec::Deflate, Codec::Snappy, Codec::Zstandard];

/// An event as a reader returns it.
type Seen = (BTreeMap<String, String>, Vec<u8>);

fn bare() -> Options {
    Options {
        format: Format::AvroEvent,
        add: Some(Add::default()),
        ..Options::default()
    }
}

fn stamped() -> Options {
    Options {
        add: None,
        ..bare()
    }
}

fn flume() -> Options {
    Options {
        headers: Some(Headers::Flume),
        ..stamped()
    }
}

fn batch(encoding: Encoding, body: Vec<u8>, count: usize) -> Batch {
    let mut values = Values::new();
    values.set("host", "box");
    Batch {
        tag: "web".into(),
        plain: false,
        encoding,
        body: body.into(),
        count: count as u32,
        received: Time(1_600_000_000_000_000_001),
        values: Arc::new(values),
        origins: Vec::new(),
    }
}

/// Records at 1,700,000,000.123456789.
fn packed(records: &[Value]) -> Batch {
    let mut body = Vec::new();
    for record in records {
        body.extend_from_slice(b"\x92\xd7\0\x65\x53\xf1\0\x07\x5b\xcd\x15");
        rmpv::encode::write_value(&mut body, record).unwrap();
    }
    batch(Encoding::Packed, body, records.len())
}

fn lines(text: &str) -> Batch {
    batch(
        Encoding::Lines,
        text.as_bytes().to_vec(),
        text.lines().count(),
    )
}

fn map(fields: &[(&str, Value)]) -> Value {
    let pairs = fields.iter();
    Value::Map(pairs.map(|(k, v)| ((*k).into(), v.clone())).collect())
}

/// Returns a file with these batches, and the rejects. Every batch begins a new block.
fn file(options: &Options, codec: Codec, batches: &[Batch]) -> (Vec<u8>, Vec<Reject>) {
    let mut encoder = options.encoder(&TimeZone::UTC).unwrap();
    let mut packer = Packer::new(codec).unwrap();
    let mut container = Container::new(SYNC);
    let (mut out, mut rejects) = (Vec::new(), Vec::new());
    container.begin(codec, &mut out);
    for batch in batches {
        let range = 0..batch.body.len();
        container
            .encode(
                &mut encoder,
                &mut packer,
                batch,
                range,
                &mut out,
                &mut rejects,
            )
            .unwrap();
        container.end_block(&mut packer, &mut out).unwrap();
        assert_eq!(container.waiting_bytes(), 0);
    }
    (out, rejects)
}

fn unpack(codec: &str, block: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut records = Vec::new();
    match codec {
        "null" => records.extend_from_slice(block),
        "deflate" => {
            let mut decoder = flate2::read::DeflateDecoder::new(block);
            decoder.read_to_end(&mut records).unwrap();
        }
        "snappy" => {
            let (block, crc) = block.split_last_chunk::<4>().unwrap();
            records = snap::raw::Decoder::new().decompress_vec(block).unwrap();
            let right = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &records);
            assert_eq!(u64::from(u32::from_be_bytes(*crc)), right);
        }
        "zstandard" => records = zstd::decode_all(block).unwrap(),
        other => panic!("{other}"),
    }
    records
}

/// Reads a file; returns the events of each block.
fn read(bytes: &[u8]) -> Vec<Vec<Seen>> {
    let mut reader = Reader::at(bytes.strip_prefix(MAGIC).unwrap(), 0);
    let mut meta = BTreeMap::new();
    loop {
        let count = reader.block().unwrap();
        for _ in 0..count {
            let key = str::from_utf8(reader.bytes().unwrap()).unwrap();
            meta.insert(key, str::from_utf8(reader.bytes().unwrap()).unwrap());
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!(meta["avro.schema"], SCHEMA);
    let sync = reader.take(SYNC_BYTES).unwrap();
    assert_eq!(sync, SYNC.0);
    let mut blocks = Vec::new();
    while reader.position() < bytes.len() - MAGIC.len() {
        let records = reader.long().unwrap();
        let block = unpack(meta["avro.codec"], reader.bytes().unwrap());
        assert_eq!(reader.take(SYNC_BYTES).unwrap(), sync);
        let mut reader = Reader::at(&block, 0);
        blocks.push((0..records).map(|_| event(&mut reader)).collect());
        assert_eq!(reader.position(), block.len());
    }
    blocks
}

fn event(reader: &mut Reader<'_>) -> Seen {
    let mut headers = BTreeMap::new();
    loop {
        let count = reader.block().unwrap();
        for _ in 0..count {
            let name = str::from_utf8(reader.bytes().unwrap()).unwrap().to_owned();
            let value = str::from_utf8(reader.bytes().unwrap()).unwrap().to_owned();
            headers.insert(name, value);
        }
        if count == 0 {
            return (headers, reader.bytes().unwrap().to_vec());
        }
    }
}

fn seen(headers: &[(&str, &str)], body: &str) -> Seen {
    let headers = headers.iter();
    let headers = headers.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    (headers.collect(), body.as_bytes().to_vec())
}

/// The events of one batch.
fn events(options: &Options, batch: &Batch) -> Vec<Seen> {
    let (file, rejects) = file(options, Codec::Null, std::slice::from_ref(batch));
    assert_eq!(rejects, []);
    read(&file).concat()
}

#[test]
fn a_file_equals_that_of_javas_avro_except_for_the_checksum_of_zstandard() {
    let first = map(&[("host", "a".into()), ("message", "first".into())]);
    let second = map(&[("message", "second".into())]);
    let batches = [packed(&[first]), packed(&[second])];
    let java: [&[u8]; 4] = [
        include_bytes!("testdata/null.avro"),
        include_bytes!("testdata/deflate.avro"),
        include_bytes!("testdata/snappy.avro"),
        include_bytes!("testdata/zstandard.avro"),
    ];
    for (codec, java) in CODECS.into_iter().zip(java) {
        let (ours, _) = file(&bare(), codec, &batches);
        assert_eq!(read(&ours), read(java), "{codec:?}");
        // Different compressors may produce different output for the same block. Here only zstandard differs: our
        // frames have a checksum.
        if codec != Codec::Zstandard {
            assert_eq!(ours, java, "{codec:?}");
        }
    }
}

#[test]
fn fields_are_headers_and_the_message_is_the_body() {
    let nested = Value::Array(vec![1.into(), map(&[("a", Value::Nil)])]);
    let record = map(&[
        ("host", "web-1".into()),
        ("message", "the text".into()),
        ("status", 200.into()),
        ("huge", u64::MAX.into()),
        ("below", (-7).into()),
        ("ratio", 0.5.into()),
        ("yes", true.into()),
        ("none", Value::Nil),
        ("nested", nested),
        ("long", "é".repeat(100).into()),
        ("raw", Value::Binary(vec![0xff, 0])),
        ("time", Value::Ext(0, vec![0x65, 0x53, 0xf1, 0, 0, 0, 0, 0])),
        ("other", Value::Ext(5, vec![0xff])),
        ("message", "another".into()),
    ]);
    let long = "é".repeat(100);
    let expected = seen(
        &[
            ("host", "web-1"),
            ("status", "200"),
            ("huge", "18446744073709551615"),
            ("below", "-7"),
            ("ratio", "0.5"),
            ("yes", "true"),
            ("none", ""),
            ("nested", r#"[1,{"a":null}]"#),
            ("long", &long),
            ("raw", "/wA="),
            ("time", "2023-11-14T22:13:20.000000000Z"),
            ("other", r#"{"type":5,"data":"/w=="}"#),
            ("message", "another"),
        ],
        "the text",
    );
    assert_eq!(events(&bare(), &packed(&[record])), [expected]);
}

#[test]
fn a_body_may_be_anything_or_missing() {
    let bodies = [
        (Value::from("text"), &b"text"[..]),
        (Value::Binary(vec![0xff, 0xfe]), b"\xff\xfe"),
        (Value::Nil, b""),
        (7.into(), b"7"),
        (map(&[("a", 1.into())]), br#"{"a":1}"#),
        (
            "x".repeat(70_000).into(),
            "x".repeat(70_000).leak().as_bytes(),
        ),
    ];
    for (value, body) in bodies {
        let [(headers, seen)] = &events(&bare(), &packed(&[map(&[("message", value)])]))[..] else {
            panic!("one record")
        };
        assert!(headers.is_empty() && seen == body);
    }
    let none = packed(&[map(&[("a", 1.into())]), map(&[])]);
    assert_eq!(
        events(&bare(), &none),
        [seen(&[("a", "1")], ""), seen(&[], "")]
    );
}

#[test]
fn lines_are_bodies_with_the_receive_time_as_a_header() {
    assert_eq!(
        events(&stamped(), &lines("one\n\n")),
        [
            seen(&[("timestamp", "1600000000000")], "one"),
            seen(&[("timestamp", "1600000000000")], ""),
        ]
    );
}

#[test]
fn the_event_time_is_a_header_unless_the_record_has_one() {
    let own = map(&[("timestamp", "mine".into()), ("message", "a".into())]);
    let none = map(&[("message", "b".into())]);
    assert_eq!(
        events(&stamped(), &packed(&[own, none])),
        [
            seen(&[("timestamp", "mine")], "a"),
            seen(&[("timestamp", "1700000000123")], "b"),
        ]
    );
    let added = Options {
        add: Some(Add {
            fields: vec![
                ("from".to_owned(), Template::parse("{host}").unwrap()),
                ("n".to_owned(), Template::parse("{.n|7}").unwrap()),
            ],
            without: vec!["timestamp".to_owned()],
        }),
        ..bare()
    };
    let expected = seen(&[("from", "box"), ("n", "7")], "one");
    assert_eq!(events(&added, &lines("one\n")), [expected]);
}

#[test]
fn headers_can_have_the_names_of_flumes_syslog_sources() {
    let record = |facility: &str, severity: &str| {
        map(&[
            ("facility", facility.into()),
            ("severity", severity.into()),
            ("host", "web-1".into()),
            ("message", "text".into()),
        ])
    };
    // Known levels come twice: the encoder remembers those of the first record, and recognizes them in the second one.
    let records = [
        record("user", "notice"),
        record("user", "notice"),
        record("local7", "debug"),
        record("local7", "debug"),
        record("no such", "debug"),
        map(&[("severity", "err".into()), ("facility", "kern".into())]),
        map(&[("severity", "err".into())]),
    ];
    let stamp = ("timestamp", "1700000000123");
    let user = [
        ("Facility", "1"),
        ("Severity", "5"),
        ("priority", "13"),
        ("host", "web-1"),
        stamp,
    ];
    let local = [
        ("Facility", "23"),
        ("Severity", "7"),
        ("priority", "191"),
        ("host", "web-1"),
        stamp,
    ];
    let unknown = [
        ("facility", "no such"),
        ("Severity", "7"),
        ("host", "web-1"),
        stamp,
    ];
    let turned = [
        ("Facility", "0"),
        ("Severity", "3"),
        ("priority", "3"),
        stamp,
    ];
    assert_eq!(
        events(&flume(), &packed(&records)),
        [
            seen(&user, "text"),
            seen(&user, "text"),
            seen(&local, "text"),
            seen(&local, "text"),
            seen(&unknown, "text"),
            seen(&turned, ""),
            seen(&[("Severity", "3"), stamp], ""),
        ]
    );
}

#[test]
fn the_body_may_be_another_field() {
    let deep = Options {
        field: Some(".a.b".parse::<FieldPath>().unwrap()),
        ..bare()
    };
    let record = map(&[("a", map(&[("b", "text".into())])), ("message", "m".into())]);
    let expected = seen(&[("a", r#"{"b":"text"}"#), ("message", "m")], "text");
    assert_eq!(events(&deep, &packed(&[record])), [expected]);
    let other = Options {
        field: Some("log".parse::<FieldPath>().unwrap()),
        ..bare()
    };
    let record = map(&[("message", "m".into()), ("log", "text".into())]);
    assert_eq!(
        events(&other, &packed(&[record])),
        [seen(&[("message", "m")], "text")]
    );
    assert_eq!(
        events(&other, &lines("one\n")),
        [seen(&[("message", "one")], "")]
    );
}

#[test]
fn a_record_may_have_more_headers_than_fit_into_a_one_byte_count() {
    let names: Vec<String> = (0..200).map(|n| format!("field{n:03}")).collect();
    let fields: Vec<(&str, Value)> = names.iter().map(|name| (&name[..], "x".into())).collect();
    let [(headers, _)] = &events(&bare(), &packed(&[map(&fields)]))[..] else {
        panic!("one record")
    };
    assert_eq!(headers.len(), 200);
}

#[test]
fn a_block_ends_when_it_is_full() {
    let text = format!("{}\n", "x".repeat(999)).repeat(200);
    let (bytes, _) = file(&bare(), Codec::Null, &[lines(&text)]);
    let records: Vec<usize> = read(&bytes).iter().map(Vec::len).collect();
    // A record has 1002 bytes, so 66 of them fill a block of 64 KiB.
    assert_eq!(records, [66, 66, 66, 2]);
}

#[test]
fn records_that_cannot_be_written_are_rejected_and_the_others_are_written() {
    let bad = Value::Map(vec![(Value::Array(Vec::new()), "x".into())]);
    let good = map(&[("message", "a".into())]);
    let batch = packed(&[good.clone(), bad, good]);
    let (bytes, rejects) = file(&bare(), Codec::Snappy, &[batch]);
    assert_eq!(read(&bytes).concat(), [seen(&[], "a"), seen(&[], "a")]);
    assert_eq!(rejects.len(), 1);
}

#[test]
fn equal_input_gives_equal_bytes() {
    let batch = lines(&"some text that repeats\n".repeat(5000));
    for codec in CODECS {
        let batches = [batch.clone(), batch.clone()];
        assert_eq!(
            file(&stamped(), codec, &batches),
            file(&stamped(), codec, &batches)
        );
    }
    assert_eq!(Sync::of(b"a"), Sync::of(b"a"));
    assert_ne!(Sync::of(b"a"), Sync::of(b"b"));
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[a-z]{0,70}".prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Binary),
        Just(Value::Nil),
    ]
}

/// The expected text of a value, according to the documented rules.
fn text(value: &Value) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    match value {
        Value::Nil => String::new(),
        Value::String(text) => text.as_str().unwrap().to_owned(),
        Value::Binary(data) => match str::from_utf8(data) {
            Ok(text) => text.to_owned(),
            Err(_) => STANDARD.encode(data),
        },
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn every_record_reads_back(
        records in prop::collection::vec(
            prop::collection::btree_map("[a-zé]{1,40}|message", any_value(), 0..9),
            1..20,
        ),
        codec in 0..4_usize,
    ) {
        let values: Vec<Value> = records
            .iter()
            .map(|record| Value::Map(record.iter().map(|(k, v)| (k.as_str().into(), v.clone())).collect()))
            .collect();
        let (bytes, rejects) = file(&bare(), CODECS[codec], &[packed(&values)]);
        prop_assert!(rejects.is_empty());
        let expected: Vec<Seen> = records
            .iter()
            .map(|record| {
                let headers = record.iter().filter(|(name, _)| *name != "message");
                let body = match record.get("message") {
                    None => Vec::new(),
                    Some(Value::Binary(data)) => data.clone(),
                    Some(value) => text(value).into_bytes(),
                };
                (headers.map(|(name, value)| (name.clone(), text(value))).collect(), body)
            })
            .collect();
        prop_assert_eq!(read(&bytes).concat(), expected);
    }
}
