//! A rejected record as a line of JSON, for `millstream rejected cat` and the HTTP interface.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use millstream_pipeline::{
    redact::Redaction,
    reject::{Original, Rejected},
};
use millstream_record::Time;
use serde_json::{Map, Value};

/// The record on one line, with the fields of `redaction` hidden. A binary record cannot be searched. If there are fields to hide, only
/// its number of bytes is shown.
pub fn line(rejected: &Rejected<'_>, redaction: &Redaction) -> String {
    let values = rejected.values.iter();
    let values: Map<String, Value> = values
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect();
    let mut fields = vec![
        ("node", text(rejected.node)),
        ("reason", text(&redaction.reason(rejected))),
        ("time", text(&stamp(rejected.time))),
        ("tag", text(rejected.tag)),
        ("values", Value::Object(values).to_string()),
    ];
    match rejected.original() {
        Original::Text(original) if redaction.is_empty() => fields.push(("record", text(original))),
        Original::Text(original) => fields.push(("record", text(&redaction.text(original)))),
        Original::Entry(time, record) => {
            fields.extend(time.map(|time| ("event_time", text(&stamp(time)))));
            fields.push(("record", redaction.json(record)));
        }
        Original::Binary(bytes) if redaction.is_empty() => {
            fields.push(("record_base64", text(&STANDARD.encode(bytes))));
        }
        Original::Binary(bytes) => fields.push(("record_bytes", bytes.len().to_string())),
    }
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}", fields.join(","))
}

fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// A time in the format of RFC 3339.
pub fn stamp(time: Time) -> String {
    Timestamp::from_nanosecond(time.0.into()).map_or(String::new(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(message: &[u8], redact: &[&str]) -> Value {
        let rejected = Rejected {
            time: Time(1_700_000_000_000_000_000),
            node: "in",
            reason: "no JSON",
            tag: "web",
            values: vec![("peer", "10.0.0.1")],
            records: 1,
            message: message.into(),
        };
        let fields: Vec<_> = redact.iter().map(|&field| field.to_owned()).collect();
        serde_json::from_str(&line(&rejected, &Redaction::new(&fields))).unwrap()
    }

    #[test]
    fn a_record_is_shown_without_the_fields_that_are_hidden() {
        let entry = b"\x92\xce\x60\x00\x00\x00\x82\xa1n\x01\xa8password\xa1x";
        for (message, field, bare, hidden) in [
            (
                &b"{\"password\":\"x\"}"[..],
                "record",
                Value::from("{\"password\":\"x\"}"),
                Value::from("{\"password\":\"***\"}"),
            ),
            (
                b"{\"password\":\"x",
                "record",
                Value::from("{\"password\":\"x"),
                Value::from("***"),
            ),
            (
                entry,
                "record",
                serde_json::json!({ "n": 1, "password": "x" }),
                serde_json::json!({ "n": 1, "password": "***" }),
            ),
            (
                b"\xff\xfe",
                "record_base64",
                Value::from("//4="),
                Value::Null,
            ),
        ] {
            assert_eq!(shown(message, &[])[field], bare);
            let line = shown(message, &[".password"]);
            assert_eq!(line[field], hidden, "{line}");
            assert_eq!(line["values"]["peer"], "10.0.0.1");
        }
        assert_eq!(shown(b"\xff\xfe", &[".a"])["record_bytes"], 2);
    }
}
