//! `millstream rejected cat`: writes rejected records as JSON lines.

use std::io::{self, BufWriter, Write, stdout};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Args;
use jiff::Timestamp;
use millstream_pipeline::reject::{Original, Rejected};
use millstream_record::Time;
use serde_json::{Map, Value};

use super::{Which, ended};
use crate::exit;

/// Write rejected records to stdout, one JSON object per line.
///
/// The fields are `node`, `reason`, `time` (the receive time), `tag`, `values` (such as the `peer` that sent it) and `record`: a
/// string, or an object if the record was one (then with its `event_time`). Bytes that are not text are in `record_base64`.
#[derive(Args)]
pub struct Cat {
    #[command(flatten)]
    which: Which,
    /// Show at most this many records; 0 shows all.
    #[arg(long, value_name = "RECORDS", default_value_t = 0)]
    limit: u64,
}

impl Cat {
    /// Writes; returns the exit code.
    pub fn execute(self) -> u8 {
        let place = match self.which.place() {
            Ok(place) => place,
            Err(code) => return code,
        };
        let mut out = BufWriter::new(stdout().lock());
        let mut written = 0;
        let read = self.which.read(&place, |rejected| {
            if self.limit > 0 && written == self.limit {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            written += 1;
            out.write_all(line(rejected).as_bytes())
        });
        let flushed = out.flush();
        match ended(&place, read) {
            exit::DRAINED => ended(&place, flushed),
            code => code,
        }
    }
}

/// A record on its line.
fn line(rejected: &Rejected<'_>) -> String {
    let values = rejected.values.iter();
    let values: Map<String, Value> = values
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect();
    let mut fields = vec![
        ("node", text(rejected.node)),
        ("reason", text(rejected.reason)),
        ("time", text(&stamp(rejected.time))),
        ("tag", text(rejected.tag)),
        ("values", Value::Object(values).to_string()),
    ];
    match rejected.original() {
        Original::Text(original) => fields.push(("record", text(original))),
        Original::Entry(time, record) => {
            fields.extend(time.map(|time| ("event_time", text(&stamp(time)))));
            // The unchanged JSON text: all its digits, and fields of the same name.
            fields.push(("record", record));
        }
        Original::Binary(bytes) => {
            fields.push(("record_base64", text(&STANDARD.encode(bytes))));
        }
    }
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}\n", fields.join(","))
}

fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// A time to the nanosecond.
fn stamp(time: Time) -> String {
    Timestamp::from_nanosecond(time.0.into()).map_or(String::new(), |time| time.to_string())
}
