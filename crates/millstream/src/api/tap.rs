//! `GET /tap/{node}`: a live sample of the records that pass a node, as lines of JSON or as server-sent events.
//!
//! The data threads copy records into a bounded queue and never wait for it (`taps.rs` of the crate `pipeline`). This module converts
//! the copies to JSON, and hides the fields that `api.redact` names. After [`BEAT`] without a record, an empty line shows that the
//! connection is alive.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures_core::Stream;
use millstream_pipeline::{
    redact::{HIDDEN, Redaction},
    reject::{Original, Rejected},
    taps::{NoTap, Sample, Tap},
};
use millstream_record::Encoding;
use millstream_wire::{json, record::MESSAGE};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{Shown, query};
use crate::rejects::stamp;

/// The time without records after which an empty line is sent.
const BEAT: Duration = Duration::from_secs(20);
/// The number of records per second: the default, which a user can still follow, and the maximum.
const RATE: (u64, u64) = (100, 1000);
/// The seconds after which a sample ends: the default (a minute), and the maximum (a day).
const SECONDS: (u64, u64) = (60, 86_400);
/// The largest number of records after which a sample can end.
const RECORDS_MAX: u64 = 1_000_000;

/// Streams a sample. With `?records=N&seconds=S&rate=R` the sample ends after N records or S seconds, whichever is first, and has at most R
/// records per second.
pub async fn tap(
    State(shown): State<Arc<Shown>>,
    Path(node): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let known = [
        ("records", RECORDS_MAX, RECORDS_MAX),
        ("seconds", SECONDS.0, SECONDS.1),
        ("rate", RATE.0, RATE.1),
    ];
    let [records, seconds, rate] = match query::numbers(&uri, known) {
        Ok(numbers) => numbers,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let taps = shown.meters.taps();
    let tap = match taps.open(&node, u32::try_from(rate).unwrap_or(u32::MAX)) {
        Ok(tap) => tap,
        Err(NoTap::Unknown) => {
            let nodes = taps.nodes().join(", ");
            let why = format!("there is no node {node:?}; there are: {nodes}\n");
            return (StatusCode::NOT_FOUND, why).into_response();
        }
        Err(NoTap::Busy) => {
            let why = "too many taps are open; close one of them\n";
            return (StatusCode::TOO_MANY_REQUESTS, why).into_response();
        }
    };
    let accept = headers.get(header::ACCEPT).map(|it| it.as_bytes());
    let is_events = accept.is_some_and(|it| it.starts_with(b"text/event-stream"));
    let kind = match is_events {
        true => "text/event-stream",
        false => "application/x-ndjson",
    };
    let lines = Lines {
        node,
        tap,
        redaction: shown.redaction.clone(),
        is_events,
        left: records,
        end: Box::pin(sleep_until(Instant::now() + Duration::from_secs(seconds))),
        beat: Box::pin(sleep(BEAT)),
    };
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(lines)).into_response()
}

/// A sample as text.
struct Lines {
    node: String,
    tap: Tap,
    redaction: Redaction,
    is_events: bool,
    left: u64,
    end: Pin<Box<Sleep>>,
    beat: Pin<Box<Sleep>>,
}

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let own = &mut *self;
        if own.left == 0 || own.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let text = match own.tap.poll_next(context) {
            Poll::Ready(Some(sample)) => {
                own.left -= 1;
                let line = line(&own.node, &sample, &own.redaction);
                match own.is_events {
                    true => format!("data: {line}\n\n"),
                    false => line + "\n",
                }
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                if own.beat.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                match own.is_events {
                    true => ":\n\n".to_owned(),
                    false => "\n".to_owned(),
                }
            }
        };
        own.beat.as_mut().reset(Instant::now() + BEAT);
        // After the reset, the timer wakes this task only if it is polled again.
        let _ = own.beat.as_mut().poll(context);
        Poll::Ready(Some(Ok(text.into())))
    }
}

/// Returns `{"node", "port", "tag", "time", "record"}`, with `"cut": true` if the record was truncated.
fn line(node: &str, sample: &Sample, redaction: &Redaction) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let cut = match sample.is_cut {
        true => ",\"cut\":true",
        false => "",
    };
    format!(
        "{{\"node\":{},\"port\":{},\"tag\":{},\"time\":{},\"record\":{}{cut}}}",
        text(node),
        text(&sample.port),
        text(sample.tag.as_str()),
        text(&stamp(sample.time)),
        match rejected(sample, redaction) {
            Some(rejected) => rejected.to_string(),
            None => record(&sample.record, sample.encoding, redaction),
        },
    )
}

/// Returns a rejected record with the fields of `redaction` hidden, also in its reason and in the original record. `None` if the sample
/// is no rejected record, or nothing is to be hidden.
fn rejected(sample: &Sample, redaction: &Redaction) -> Option<Value> {
    if redaction.is_empty() || !sample.tag.as_str().ends_with(".rejected") {
        return None;
    }
    let rejected = Rejected::of_fields(&sample.record, 0, sample.time)?;
    if rejected.node.is_empty() || rejected.reason.is_empty() {
        return None;
    }
    // The rest of a long message does not tell its fields.
    let (reason, message) = match (sample.is_cut, rejected.original()) {
        (false, Original::Text(text)) => (redaction.reason(&rejected), redaction.text(text)),
        (false, Original::Entry(_, record)) => {
            (redaction.reason(&rejected), redaction.json(record))
        }
        (true, _) | (_, Original::Binary(_)) => (HIDDEN.into(), HIDDEN.to_owned()),
    };
    let mut fields = serde_json::Map::new();
    let own = [
        ("node", rejected.node),
        ("reason", &reason),
        ("tag", rejected.tag),
    ];
    for (name, value) in own.into_iter().chain(rejected.values.iter().copied()) {
        fields.insert(name.to_owned(), value.into());
    }
    fields.insert(MESSAGE.to_owned(), message.into());
    Some(Value::Object(fields))
}

/// Returns a record as JSON, with the fields of `redaction` hidden. Returns `null` if the record cannot be converted, or if it is
/// nested too deeply to be searched for these fields.
fn record(bytes: &[u8], encoding: Encoding, redaction: &Redaction) -> String {
    let mut out = Vec::new();
    match encoding {
        Encoding::Lines => {
            let line = String::from_utf8_lossy(bytes);
            let mut fields = serde_json::Map::new();
            fields.insert(MESSAGE.to_owned(), Value::from(&*line));
            out = Value::Object(fields).to_string().into_bytes();
        }
        Encoding::Packed => {
            if json::write_value(bytes, 0, &mut out).is_err() {
                return "null".to_owned();
            }
        }
    }
    if redaction.is_empty() {
        return String::from_utf8_lossy(&out).into_owned();
    }
    match serde_json::from_slice(&out) {
        Ok(mut value) => {
            redaction.apply(&mut value);
            value.to_string()
        }
        Err(_) => "null".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use millstream_record::Time;

    use super::*;

    fn sample(record: &[u8], encoding: Encoding) -> Sample {
        Sample {
            port: "out".into(),
            tag: "web".into(),
            time: Time(1_700_000_000_500_000_000),
            record: record.to_vec(),
            encoding,
            is_cut: false,
        }
    }

    #[test]
    fn a_line_has_node_port_tag_time_and_record_without_hidden_fields() {
        let redaction = Redaction::new(&[".password".to_owned()]);
        let packed = sample(b"\x82\xa1n\x01\xa8password\xa1x", Encoding::Packed);
        assert_eq!(
            line("in", &packed, &redaction),
            r#"{"node":"in","port":"out","tag":"web","time":"2023-11-14T22:13:20.5Z","record":{"n":1,"password":"***"}}"#
        );
        let text = Sample {
            is_cut: true,
            ..sample(b"{\"password\":\"x\"}", Encoding::Lines)
        };
        assert_eq!(
            line("in", &text, &redaction),
            r#"{"node":"in","port":"out","tag":"web","time":"2023-11-14T22:13:20.5Z","record":{"message":"{\"password\":\"***\"}"},"cut":true}"#
        );
        let none = Redaction::default();
        assert!(line("in", &text, &none).contains("\\\"x\\\""));
    }

    #[test]
    fn a_record_that_cannot_be_searched_is_not_shown() {
        let redaction = Redaction::new(&[".password".to_owned()]);
        let mut deep = vec![0x91; 500];
        deep.push(0x01);
        assert_eq!(record(&deep, Encoding::Packed, &redaction), "null");
        assert_eq!(record(b"\x81\xa1n", Encoding::Packed, &redaction), "null");
        let cut = record(b"{\"password\":\"x", Encoding::Lines, &redaction);
        assert_eq!(cut, "{\"message\":\"***\"}");
    }
}
