//! Golden cases, single records, hostile input, and properties that hold for any input.

mod golden;
mod hostile;
mod options;
mod properties;
mod records;

use jiff::tz::TimeZone;
use millstream_record::Time;

use super::*;
use crate::{
    json,
    msgpack::{Walker, entry_head, write_array_len, write_time},
};

/// 2026-11-21T06:40:31.5Z
pub(super) const NOW: Time = Time(1_795_243_231_500_000_000);

pub(super) fn parser(options: &str) -> Parser {
    let options: ParseOptions = serde_json::from_str(options).unwrap();
    Parser::new(&options, TimeZone::UTC).unwrap()
}

/// Returns the time and the JSON of an entry.
pub(super) fn shown(entry: &[u8]) -> String {
    let mut walker = Walker::new();
    walker.walk(entry).unwrap();
    assert_eq!(
        (walker.entries(), walker.misfits(), walker.whole()),
        (1, 0, entry.len()),
        "{entry:x?}"
    );
    let head = entry_head(entry, 0).unwrap();
    let mut text = Vec::new();
    json::write_value(entry, head.record, &mut text).unwrap();
    let time = crate::rfc3339::timestamp(head.time.unwrap());
    format!("{time} {}", String::from_utf8(text).unwrap())
}

/// Parses one record, and checks that the bytes before it in the output are unchanged.
pub(super) fn parse(parser: &mut Parser, input: Input<'_>) -> Result<Vec<u8>, Fault> {
    let mut out = b"before".to_vec();
    let result = parser.entry(input, NOW, &mut out);
    assert_eq!(out[..6], *b"before");
    match result {
        Ok(()) => Ok(out.split_off(6)),
        Err(fault) => {
            assert_eq!(out.len(), 6, "a fault leaves the output as it was");
            Err(fault)
        }
    }
}

/// Parses a line, and returns the result as text.
pub(super) fn line(parser: &mut Parser, line: &[u8]) -> String {
    match parse(parser, Input::Line(line)) {
        Ok(entry) => shown(&entry),
        Err(fault) => format!("fault: {fault}"),
    }
}

/// Returns an entry with the fields of a JSON object.
pub(super) fn entry(time: Time, object: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    write_array_len(&mut entry, 2);
    write_time(&mut entry, time);
    json::to_msgpack(object.as_bytes(), &mut entry).unwrap();
    entry
}

/// Parses the text in a record, and returns the result as JSON. The event time must not change.
pub(super) fn record(options: &str, object: &str) -> String {
    let time = Time::from_parts(1_700_000_000, 5);
    match parse(&mut parser(options), Input::Entry(&entry(time, object))) {
        Ok(entry) => {
            let shown = shown(&entry);
            let (time, object) = shown.split_once(' ').unwrap();
            assert_eq!(time, "2023-11-14T22:13:20.000000005Z");
            object.to_owned()
        }
        Err(fault) => format!("fault: {fault}"),
    }
}
