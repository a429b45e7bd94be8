//! What an exporter is told, in the encoding that it speaks.
//!
//! ```text
//! ExportLogsServiceResponse   partial_success 1 { rejected_log_records 1 int64 | error_message 2 }
//! Status                      code 1 | message 2            (google.rpc.Status, for everything but 200)
//! ```

use crate::json::append_string;

/// The encoding of a request, and so of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/x-protobuf`.
    Protobuf,
    /// `application/json`.
    Json,
}

impl Form {
    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }
}

/// The body of a 200. `rejected`: log records that were not taken, and why.
pub fn accepted(form: Form, rejected: Option<(u64, &str)>) -> Vec<u8> {
    let mut out = Vec::new();
    match (form, rejected) {
        (Form::Protobuf, None) => {}
        (Form::Protobuf, Some((count, reason))) => {
            let mut partial = vec![0x08];
            write_varint(count, &mut partial);
            write_bytes(2, reason.as_bytes(), &mut partial);
            write_bytes(1, &partial, &mut out);
        }
        (Form::Json, None) => out.extend_from_slice(b"{}"),
        (Form::Json, Some((count, reason))) => {
            let head = format!(
                "{{\"partialSuccess\":{{\"rejectedLogRecords\":\"{count}\",\"errorMessage\":"
            );
            out.extend_from_slice(head.as_bytes());
            append_string(reason.as_bytes(), &mut out);
            out.extend_from_slice(b"}}");
        }
    }
    out
}

/// The body of an answer that is no 200; `code` is gRPC's (3: invalid argument, 14: unavailable, ...).
pub fn refused(form: Form, code: u8, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match form {
        Form::Protobuf => {
            out.extend_from_slice(&[0x08, code & 0x7f]);
            write_bytes(2, reason.as_bytes(), &mut out);
        }
        Form::Json => {
            out.extend_from_slice(format!("{{\"code\":{code},\"message\":").as_bytes());
            append_string(reason.as_bytes(), &mut out);
            out.push(b'}');
        }
    }
    out
}

/// A field of bytes with a number below 16.
fn write_bytes(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(number << 3 | 2);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
