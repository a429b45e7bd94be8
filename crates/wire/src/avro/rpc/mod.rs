//! The receiver's side of Avro RPC as Flume's agents use it (protocol `AvroSourceProtocol`), without I/O.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`
//!
//! ```text
//! frame      serial i32 | n i32 | n times: length i32, bytes     all big endian; the bytes of all n together are the call
//! call       handshake (until one has matched) | metadata map<bytes> | message string | parameters
//! answer     handshake (if the call had one) | metadata map<bytes> | error boolean | Status, or union [string]
//!
//! handshake  client hash [16] | client protocol union [null, string] | server hash [16] | union [null, map<bytes>]
//!            answer: match enum BOTH CLIENT NONE | server protocol union [null, string] | server hash union [null, [16]]
//!                    | union [null, map<bytes>]
//! append       one event                     event   headers map<string> | body bytes
//! appendBatch  array of events               Status  enum OK FAILED UNKNOWN
//! ```
//!
//! An event becomes an entry of the packed encoding (MessagePack `[time, map]`) while it arrives:
//!
//! ```text
//! {timestamp: "1700000000123", host: "a"}, "text"   ->   [1700000000.123, {timestamp: "1700000000123", host: "a", message: "text"}]
//! ```
//!
//! Every header becomes a text field, in order; the body becomes the field `message`, unchanged. A header with the name
//! `message` becomes [`MESSAGE_HEADER`]. The header `timestamp` (milliseconds since 1970, as Flume's interceptors write it) is
//! the event time. Without a valid header `timestamp`, the event time is the receive time.
//!
//! A length takes no memory before the bytes that it announces have arrived. If a value is incomplete, it is read again when
//! more bytes arrive; this takes little time, because texts are skipped by their lengths. Nothing recurses. Reading, buffers
//! and the order of answers are the task of `sources/flume`.

mod call;
mod deflate;
mod frame;
mod handshake;
mod protocol;

#[cfg(test)]
mod tests;

pub use call::{Calls, Fault, Fed, Outcome};
pub use deflate::{Corrupt, Deflate, Inflate};
pub use frame::{Frames, Refusal, Step};

/// The field for a header called `message`, because the body becomes the field `message`.
pub const MESSAGE_HEADER: &str = "message_header";

/// Appends the frame that answers the call `serial`. `handshake` is from the call's [`Outcome`]. `failure` is the reason why
/// the call is refused, or `None` if the records of the call are stored.
pub fn write_answer(out: &mut Vec<u8>, serial: u32, handshake: &[u8], failure: Option<&str>) {
    let mut answer = handshake.to_vec();
    // No metadata.
    answer.push(0);
    match failure {
        None => answer.extend_from_slice(&[0, STATUS_OK]),
        Some(text) => {
            // The error flag, then the first branch of the error union: a string.
            answer.extend_from_slice(&[1, 0]);
            write_bytes(&mut answer, text.as_bytes());
        }
    }
    frame::write_frame(out, serial, &answer);
}

/// Appends the frame that answers a call which was only a handshake.
pub fn write_greeting(out: &mut Vec<u8>, serial: u32, handshake: &[u8]) {
    frame::write_frame(out, serial, handshake);
}

/// `Status.OK`, encoded as an enum.
const STATUS_OK: u8 = 0;

/// Appends a long.
fn write_long(out: &mut Vec<u8>, value: i64) {
    let mut bits = ((value << 1) ^ (value >> 63)) as u64;
    while bits >= 0x80 {
        out.push(bits as u8 | 0x80);
        bits >>= 7;
    }
    out.push(bits as u8);
}

/// Appends bytes or a string.
fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_long(out, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    out.extend_from_slice(bytes);
}
