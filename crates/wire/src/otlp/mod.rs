//! OpenTelemetry's logs (OTLP 1.x, `ExportLogsServiceRequest`) in protobuf and in JSON, as records.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! [`Logs`] reads requests; [`Encoder`] and [`write_request`] write them. These are the messages, with the numbers of their
//! fields in protobuf. A `*` marks a repeated field:
//!
//! ```text
//! request        resource_logs 1 *
//! ResourceLogs   resource 1 | scope_logs 2 * | schema_url 3
//! Resource       attributes 1 * | dropped_attributes_count 2
//! ScopeLogs      scope 1 | log_records 2 * | schema_url 3
//! Scope          name 1 | version 2 | attributes 3 * | dropped_attributes_count 4
//! LogRecord      time_unix_nano 1 fixed64 | severity_number 2 | severity_text 3 | body 5 AnyValue | attributes 6 *
//!                dropped_attributes_count 7 | flags 8 fixed32 | trace_id 9 | span_id 10
//!                observed_time_unix_nano 11 fixed64 | event_name 12
//! KeyValue       key 1 | value 2 AnyValue
//! AnyValue       string 1 | bool 2 | int 3 | double 4 fixed64 | array 5 {values 1 *} | kvlist 6 {values 1 *} | bytes 7
//! ```
//!
//! Every log record becomes an entry of the packed encoding (MessagePack `[time, map]`). The event time is `time_unix_nano`,
//! otherwise `observed_time_unix_nano`, otherwise the receive time. The fields have the names that Vector uses. Fields that are not
//! set (zero, empty) are left out:
//!
//! | Field | Content |
//! |---|---|
//! | `message` | the body, unchanged: a text, a number, a list or a map |
//! | `severity_text`, `severity_number` | |
//! | `attributes` | a map |
//! | `trace_id`, `span_id` | hexadecimal digits |
//! | `flags`, `event_name`, `dropped_attributes_count` | |
//! | `observed_time_unix_nano` | a number, exact |
//! | `resources` | the attributes of the resource: a map |
//! | `resource_schema_url`, `resource_dropped_attributes_count` | |
//! | `scope` | `name`, `version`, `schema_url`, `dropped_attributes_count`, `attributes` |
//!
//! `walk` reads requests of both encodings; `protobuf` and `json` parse their messages. A request is read in one pass, without a
//! tree per record. Nothing recurses, and no length in a request causes an allocation. An unreadable record does not affect other
//! records. HTTP, decompression and buffers are the task of `sources/http`.

mod answer;
mod around;
mod encode;
mod json;
mod known;
mod protobuf;
mod record;
mod value;
mod walk;
mod write_json;
mod write_protobuf;

#[cfg(test)]
mod encode_tests;
#[cfg(test)]
mod tests;

use millstream_record::Time;

pub use answer::{Form, accepted, refused, rejected};
pub use encode::{Encoder, write_request};

/// The deepest nesting of arrays and maps in one value. A record with such a value, including the levels around the value, stays below the
/// limit of JSON output ([`crate::json::DEPTH_MAX`]).
pub const LEVELS_MAX: usize = 64;

/// Reads the log records of one request.
#[derive(Debug)]
pub struct Logs<'a>(Request<'a>);

#[derive(Debug)]
enum Request<'a> {
    Protobuf(walk::Logs<'a, protobuf::Protobuf>),
    Json(walk::Logs<'a, json::Json>),
}

/// The result of [`Logs::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record, whose entry is at the end of the output.
    Record,
    /// Unreadable bytes of the request (for JSON: as MessagePack), and the reason.
    Bad(&'a [u8], Bad),
    /// The next record may need this many bytes of free capacity in the output. The caller must reserve them, and then call again.
    Room(usize),
    /// The end of the request.
    End,
}

/// Why a part of a request cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// Not protobuf, or truncated.
    #[error("not protobuf of the OpenTelemetry protocol")]
    Malformed,
    /// A value of the wrong type.
    #[error("a value of the wrong type for the OpenTelemetry protocol")]
    Type,
    /// More than [`LEVELS_MAX`] nested arrays and maps.
    #[error("more than {LEVELS_MAX} levels of nesting")]
    TooDeep,
    /// A resource or scope of more than 1 MiB.
    #[error("a resource or scope of more than 1 MiB")]
    TooLong,
}

impl<'a> Logs<'a> {
    /// Reads a request in protobuf.
    pub fn protobuf(body: &'a [u8]) -> Self {
        Self(Request::Protobuf(walk::Logs::new(body)))
    }

    /// Reads a request in JSON that [`crate::json::to_msgpack`] has converted to MessagePack.
    pub fn json(packed: &'a [u8]) -> Self {
        Self(Request::Json(walk::Logs::new(packed)))
    }

    /// Appends the next record to `out`, within its capacity. A record without a time gets `received`.
    pub fn next(&mut self, received: Time, out: &mut Vec<u8>) -> Next<'a> {
        match &mut self.0 {
            Request::Protobuf(logs) => logs.next(received, out),
            Request::Json(logs) => logs.next(received, out),
        }
    }
}
