//! Golden cases, encoded headers, and properties that hold for any input.

mod encode;
mod golden;
mod properties;

use millstream_record::Time;
use rmpv::Value;

use super::*;
use crate::msgpack::Walker;

/// 2026-11-21T06:40:31.5Z
pub(super) const NOW: Time = Time(1_795_243_231_500_000_000);

pub(super) fn received() -> Received<'static> {
    Received {
        now: NOW,
        host: b"the-peer",
        peer: None,
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        framing: Framing::Auto,
        bytes_max: 1 << 20,
        too_long: TooLong::Split,
        strict: false,
        zone: TimeZone::UTC,
    }
}

/// The result of reading a whole stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) records: Vec<Value>,
    pub(super) left_over: Vec<(Vec<u8>, LeftOver)>,
    pub(super) bare: u32,
    pub(super) long: u32,
    pub(super) dropped: u64,
    pub(super) cut: u32,
}

/// Reads a stream that arrives in pieces, as a connection does.
pub(super) fn read<'a>(settings: &Settings, pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut decoder = Decoder::new(settings.clone());
    let (mut seen, mut waiting, mut out, mut count) = (Seen::default(), Vec::new(), Vec::new(), 0);
    let mut take = |waiting: &mut Vec<u8>, after| {
        loop {
            let run = decoder.run(waiting, after, &received(), &mut out, 4 << 10);
            assert!(run.consumed <= waiting.len());
            count += run.records;
            seen.bare += run.bare;
            seen.long += run.long;
            seen.dropped += run.dropped;
            seen.cut += run.cut;
            let more = run.full || run.left_over.is_some();
            if let Some((range, why)) = run.left_over {
                seen.left_over.push((waiting[range].to_vec(), why));
            }
            waiting.drain(..run.consumed);
            // A caller sends the records of each run as a batch, and then clears the output.
            assert_eq!(records(&out).len(), count as usize);
            seen.records.append(&mut records(&out));
            out.clear();
            count = 0;
            if !more {
                break;
            }
        }
    };
    for piece in pieces {
        waiting.extend_from_slice(piece);
        take(&mut waiting, After::More);
    }
    take(&mut waiting, After::End);
    assert_eq!(waiting, b"", "the end of a stream leaves nothing");
    seen
}

/// Returns the entries of a body, and checks that all of them are valid.
pub(super) fn records(body: &[u8]) -> Vec<Value> {
    let mut walker = Walker::new();
    walker.walk(body).unwrap();
    assert_eq!((walker.misfits(), walker.whole()), (0, body.len()));
    let (mut rest, mut records) = (body, Vec::new());
    while !rest.is_empty() {
        records.push(rmpv::decode::read_value(&mut rest).unwrap());
    }
    records
}

/// Returns a field of a record, or `None` if the record does not have it.
pub(super) fn field<'a>(record: &'a Value, name: &str) -> Option<&'a Value> {
    let map = record[1].as_map()?;
    let (_, value) = map.iter().find(|(key, _)| key.as_str() == Some(name))?;
    Some(value)
}

#[test]
fn the_line_end_of_a_datagram_or_counted_message_is_no_part_of_it() {
    for end in ["", "\n", "\r\n", "\r", "\0", "\n\0"] {
        let message = format!("<13>Oct 11 22:14:15 h a: x\ry{end}");
        let found = super::frame::trimmed(message.as_bytes());
        assert!(found.ends_with(b"x\ry"), "{end:?}");
    }
}

#[test]
fn a_datagram_may_have_a_peer() {
    let mut out = Vec::new();
    let from = Received {
        peer: Some(b"192.0.2.7"),
        ..received()
    };
    let mut decoder = Decoder::new(settings());
    let run = decoder.one(b"<14>plain\nof two lines\n\0", &from, &mut out);
    assert_eq!(run.records, 1);
    let record = &records(&out)[0];
    assert_eq!(field(record, "peer"), Some(&"192.0.2.7".into()));
    assert_eq!(field(record, "host"), Some(&"the-peer".into()));
    assert_eq!(
        field(record, "message"),
        Some(&"plain\nof two lines".into())
    );
    assert_eq!(decoder.one(b"\n", &from, &mut out).records, 0);
}

#[test]
fn parts_of_a_long_message_have_the_header_of_the_first_part() {
    let mut decoder = Decoder::new(settings());
    let mut out = Vec::new();
    let parts: [(&[u8], bool); 3] = [
        (b"<13>Nov 21 06:40:30 h su[1]: one", false),
        (b"two", false),
        (b"three", true),
    ];
    for (part, last) in parts {
        decoder.part(part, last, &received(), &mut out);
    }
    decoder.one(b"<13>another", &received(), &mut out);
    let records = records(&out);
    let of = |name| {
        records
            .iter()
            .map(|record| field(record, name).and_then(Value::as_str))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("message"),
        [Some("one"), Some("two"), Some("three"), Some("another")]
    );
    assert_eq!(of("app"), [Some("su"), Some("su"), Some("su"), None]);
    assert!(records[0][0] == records[2][0] && records[0][0] != records[3][0]);
}

#[test]
fn a_nul_ends_a_message_immediately_when_nothing_follows() {
    let mut decoder = Decoder::new(settings());
    let mut out = Vec::new();
    let text = b"<14>one\0<14>two\0";
    let run = decoder.run(text, After::More, &received(), &mut out, usize::MAX);
    assert_eq!((run.records, run.consumed), (1, 8));
    let run = decoder.run(&text[8..], After::Quiet, &received(), &mut out, usize::MAX);
    assert_eq!((run.records, run.consumed), (1, 8));
    assert_eq!(field(&records(&out)[1], "message"), Some(&"two".into()));
}

#[test]
fn times_before_1970_or_after_2106_are_whole_seconds() {
    let seen = read(
        &settings(),
        [&b"<13>1 1969-12-31T23:59:58Z h a - - - x\n<13>1 2200-01-01T00:00:00Z h a - - - x\n"[..]],
    );
    assert_eq!(seen.records[0][0], Value::from(-2));
    assert_eq!(seen.records[1][0], Value::from(7_258_118_400_i64));
    assert_eq!(field(&seen.records[1], "app"), Some(&"a".into()));
}

#[test]
fn a_header_that_is_too_long_is_not_repeated() {
    let data = "v".repeat(20 << 10);
    let line = format!(
        "<13>1 2026-11-21T06:40:31Z h su - - [a@1 b=\"{data}\"] {}\n<14>next\n",
        "<14>Nov 21 06:40:31 other app: ".repeat(1000)
    );
    let settings = Settings {
        bytes_max: 32 << 10,
        ..settings()
    };
    let seen = read(&settings, [line.as_bytes()]);
    assert_eq!((seen.records.len(), seen.long, seen.bare), (3, 1, 0));
    let [first, second, last] = &seen.records[..] else {
        panic!("three");
    };
    assert_eq!(field(first, "app"), Some(&"su".into()));
    // In a later piece, text that looks like a header is ordinary text.
    assert_eq!(field(second, "app"), None);
    assert_eq!(field(second, "priority"), None);
    assert!(field(second, "message").is_some());
    assert_eq!(field(last, "message"), Some(&"next".into()));
}

#[test]
fn long_messages_are_split_truncated_or_rejected() {
    let line = format!("<13>Nov 21 06:40:30 h su: {}\n<14>next\n", "x".repeat(100));
    let with = |too_long| {
        let settings = Settings {
            bytes_max: 50,
            too_long,
            ..settings()
        };
        read(&settings, [line.as_bytes()])
    };
    let split = with(TooLong::Split);
    let text: String = split.records[..3]
        .iter()
        .map(|record| field(record, "message").unwrap().as_str().unwrap())
        .collect();
    assert_eq!(text, "x".repeat(100));
    assert!(
        split.records[..3]
            .iter()
            .all(|record| field(record, "app") == Some(&"su".into()))
    );
    assert_eq!((split.records.len(), split.long, split.bare), (4, 1, 0));
    let cut = with(TooLong::Truncate);
    assert_eq!((cut.records.len(), cut.long, cut.dropped), (2, 1, 126 - 50));
    let reject = with(TooLong::Reject);
    assert_eq!((reject.records.len(), reject.left_over.len()), (1, 3));
    let whole: Vec<u8> = reject
        .left_over
        .iter()
        .flat_map(|(bytes, _)| bytes.clone())
        .collect();
    assert_eq!(whole, line.as_bytes()[..126]);
    assert_eq!(field(&reject.records[0], "message"), Some(&"next".into()));
}

#[test]
fn a_strict_decoder_rejects_messages_without_a_header() {
    let settings = Settings {
        strict: true,
        bytes_max: 40,
        ..settings()
    };
    let text = format!("<13>good\nbad\n<999>bad\n{}\n<13>good\n", "y".repeat(90));
    let seen = read(&settings, [text.as_bytes()]);
    assert_eq!(seen.records.len(), 2);
    let left: Vec<&[u8]> = seen.left_over.iter().map(|(bytes, _)| &bytes[..]).collect();
    let long = "y".repeat(40);
    assert_eq!(
        left,
        [
            b"bad",
            &b"<999>bad"[..],
            long.as_bytes(),
            long.as_bytes(),
            b"yyyyyyyyyy"
        ]
    );
    assert!(
        seen.left_over
            .iter()
            .all(|(_, why)| *why == LeftOver::NoHeader)
    );
}
