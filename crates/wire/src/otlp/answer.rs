//! The answer to an exporter, in the encoding of its request.
//!
//! ```text
//! ExportLogsServiceResponse   partial_success 1 { rejected_log_records 1 int64 | error_message 2 }
//! Status                      code 1 | message 2            (google.rpc.Status, for everything but 200)
//! ```

use super::{
    protobuf::{Field, Fields},
    write_protobuf::{bytes, varint},
};
use crate::{
    json::{append_string, to_msgpack},
    msgpack::Reader,
    record::{FieldPath, Record, Value},
};

/// The encoding of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/x-protobuf`.
    Protobuf,
    /// `application/json`.
    Json,
}

impl Form {
    /// Returns the content type of the encoding.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }
}

/// Returns the body of an answer with the status 200. `rejected` is the number of log records that were not accepted, and the
/// reason; `None` if all were accepted.
pub fn accepted(form: Form, rejected: Option<(u64, &str)>) -> Vec<u8> {
    let mut out = Vec::new();
    match (form, rejected) {
        (Form::Protobuf, None) => {}
        (Form::Protobuf, Some((count, reason))) => {
            let mut partial = vec![0x08];
            varint(count, &mut partial);
            bytes(2, reason.as_bytes(), &mut partial);
            bytes(1, &partial, &mut out);
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

/// Returns the body of an answer with another status. `code` is the gRPC code (3: invalid argument, 14: unavailable, ...).
pub fn refused(form: Form, code: u8, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match form {
        Form::Protobuf => {
            out.extend_from_slice(&[0x08, code & 0x7f]);
            bytes(2, reason.as_bytes(), &mut out);
        }
        Form::Json => {
            out.extend_from_slice(format!("{{\"code\":{code},\"message\":").as_bytes());
            append_string(reason.as_bytes(), &mut out);
            out.push(b'}');
        }
    }
    out
}

/// Returns the number of rejected log records in an answer, and the reason. Returns `None` if the number is 0 or missing, or if
/// the body cannot be read.
pub fn rejected(form: Form, body: &[u8]) -> Option<(u64, String)> {
    let (count, reason) = match form {
        Form::Protobuf => {
            let partial = Fields::new(body).next_of(1).ok()??;
            let (mut count, mut reason) = (0, &b""[..]);
            let mut fields = Fields::new(partial);
            while let Some((number, field)) = fields.next().ok()? {
                match (number, field) {
                    (1, Field::Varint(rejected)) => count = rejected,
                    (2, Field::Bytes(text)) => reason = text,
                    _ => {}
                }
            }
            (count, String::from_utf8_lossy(reason).into_owned())
        }
        Form::Json => {
            let mut packed = Vec::new();
            to_msgpack(body, &mut packed).ok()?;
            let find = |name: &str| {
                let path: FieldPath = format!(".partialSuccess.{name}").parse().ok()?;
                path.find(Record::Packed(&packed))
            };
            let text = |name: &str| {
                let text = find(name).and_then(Value::text).unwrap_or_default();
                String::from_utf8_lossy(text).into_owned()
            };
            let number = match find("rejectedLogRecords") {
                Some(Value::Packed(value)) => Reader::new(value).int().ok(),
                _ => None,
            };
            // Protobuf's JSON writes a 64-bit number as a text.
            let number = number.and_then(|number| u64::try_from(number).ok());
            let number = number.or_else(|| text("rejectedLogRecords").parse().ok());
            (number.unwrap_or(0), text("errorMessage"))
        }
    };
    (count > 0).then_some((count, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_answer_is_read_back() {
        for form in [Form::Protobuf, Form::Json] {
            let told = accepted(form, Some((3, "too \"old\"")));
            assert_eq!(rejected(form, &told), Some((3, "too \"old\"".to_owned())));
            assert_eq!(rejected(form, &accepted(form, None)), None);
            assert_eq!(rejected(form, b"\xff nonsense"), None);
            assert_eq!(rejected(form, b""), None);
        }
    }
}
