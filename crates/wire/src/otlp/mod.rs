//! OpenTelemetry's logs (OTLP 1.x, `ExportLogsServiceRequest`) in protobuf and in JSON, as records.
//!
//! On the line: read -> [decode] -> send -> keep -> take -> [encode] -> write. [`Logs`] reads requests, [`Encoder`] and
//! [`write_request`] write them.
//!
//! ```text
//! request        resource_logs 1 *
//! ResourceLogs   resource 1 | scope_logs 2 *
//! Resource       attributes 1 * | dropped_attributes_count 2
//! ScopeLogs      scope 1 | log_records 2 *
//! Scope          name 1 | version 2 | attributes 3 * | dropped_attributes_count 4
//! LogRecord      time_unix_nano 1 fixed64 | severity_number 2 | severity_text 3 | body 5 AnyValue | attributes 6 *
//!                dropped_attributes_count 7 | flags 8 fixed32 | trace_id 9 | span_id 10
//!                observed_time_unix_nano 11 fixed64 | event_name 12
//! KeyValue       key 1 | value 2 AnyValue
//! AnyValue       string 1 | bool 2 | int 3 | double 4 fixed64 | array 5 {values 1 *} | kvlist 6 {values 1 *} | bytes 7
//! ```
//!
//! Every log record becomes an entry of the packed encoding. The event time is `time_unix_nano`, else
//! `observed_time_unix_nano`, else the receive time. Its fields have the names that Vector gives them; what is not set
//! (zero, empty) is left out:
//!
//! | Field | What it is |
//! |---|---|
//! | `message` | the body: a text, a number, a list or a map, as it came |
//! | `severity_text`, `severity_number` | |
//! | `attributes` | a map |
//! | `trace_id`, `span_id` | hexadecimal digits |
//! | `flags`, `event_name`, `dropped_attributes_count` | |
//! | `observed_time_unix_nano` | a number, exact |
//! | `resources` | the attributes of the resource: a map |
//! | `scope` | `name`, `version`, `attributes` |
//!
//! This promises: one pass without a tree for each record, nothing recurses, nothing is allocated by what a length says;
//! a record that cannot be read costs its neighbours nothing. It leaves to others: HTTP, decompression, buffers
//! (`sources/http`).

mod answer;
mod any;
mod encode;
mod json;
mod known;
mod protobuf;
mod record;
mod request;
mod value;
mod write_json;
mod write_protobuf;

#[cfg(test)]
mod encode_tests;
#[cfg(test)]
mod tests;

use std::fmt;

use millstream_record::Time;

pub use answer::{Form, accepted, refused, rejected};
pub use encode::{Encoder, write_request};

/// Arrays and maps within each other in one value: with those around it they stay below what JSON output shows
/// ([`crate::json::DEPTH_MAX`]).
pub const LEVELS_MAX: usize = 64;

/// Reads the log records of one request.
#[derive(Debug)]
pub struct Logs<'a>(Request<'a>);

#[derive(Debug)]
enum Request<'a> {
    Protobuf(request::Logs<'a>),
    Json(json::Logs<'a>),
}

/// What [`Logs::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record: its entry stands at the end of the output.
    Record,
    /// Bytes that cannot be read, as they stand in the request (of JSON: as MessagePack), and why.
    Bad(&'a [u8], Bad),
    /// The next record may need so many bytes more than the output has: enlarge it, then ask again.
    Room(usize),
    /// The request is at its end.
    End,
}

/// Why something cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// No protobuf, or cut.
    Malformed,
    /// Not of the type that it should be.
    Type,
    /// More than [`LEVELS_MAX`] arrays and maps within each other.
    TooDeep,
    /// A resource or scope of more than 1 MiB.
    TooLong,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("no protobuf of the OpenTelemetry protocol"),
            Self::Type => {
                f.write_str("a value of another type than the OpenTelemetry protocol has there")
            }
            Self::TooDeep => write!(f, "more than {LEVELS_MAX} levels of nesting"),
            Self::TooLong => f.write_str("a resource or scope of more than 1 MiB"),
        }
    }
}

impl std::error::Error for Bad {}

impl<'a> Logs<'a> {
    /// Of a request in protobuf.
    pub fn protobuf(body: &'a [u8]) -> Self {
        Self(Request::Protobuf(request::Logs::new(body)))
    }

    /// Of a request in JSON that [`crate::json::to_msgpack`] has read.
    pub fn json(packed: &'a [u8]) -> Self {
        Self(Request::Json(json::Logs::new(packed)))
    }

    /// Appends the next record to `out`, within its capacity. `received` is the time of records that have none.
    pub fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next<'a> {
        match &mut self.0 {
            Request::Protobuf(logs) => logs.next(received, out),
            Request::Json(logs) => logs.next(received, out),
        }
    }
}
