//! Avro RPC as Flume's agents speak it (`AvroSourceProtocol`), the receiver's side, without I/O.
//!
//! On the line: read -> [decode] -> send -> keep.
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
//! An event becomes an entry of the packed encoding while it arrives:
//!
//! ```text
//! {timestamp: "1700000000123", host: "a"}, "text"   ->   [1700000000.123, {timestamp: "1700000000123", host: "a", message: "text"}]
//! ```
//!
//! Every header is a field, a text, in its order; the body is `message`, byte for byte. A header that is called `message`
//! itself becomes [`MESSAGE_HEADER`]. The header `timestamp` (milliseconds since 1970, as Flume's interceptors write it)
//! gives the event time; without a sound one it is the receive time.
//!
//! This promises: no length is believed before its bytes are there, nothing is looked at twice but the head of a cut value,
//! nothing recurses. It leaves to others: reading, buffers, answers in order (`sources/flume`).

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

/// What a header called `message` becomes: the body has that name.
pub const MESSAGE_HEADER: &str = "message_header";

/// Appends the frame that answers the call `serial`: `handshake` is what [`Outcome`] gave, `failure` the text of a call that
/// was refused; without one it says that the call is kept.
pub fn write_answer(out: &mut Vec<u8>, serial: u32, handshake: &[u8], failure: Option<&str>) {
    let mut answer = handshake.to_vec();
    // No metadata.
    answer.push(0);
    match failure {
        None => answer.extend_from_slice(&[0, STATUS_OK]),
        Some(text) => {
            // It is an error, and of its union the first branch: a string.
            answer.extend_from_slice(&[1, 0]);
            write_bytes(&mut answer, text.as_bytes());
        }
    }
    frame::write_frame(out, serial, &answer);
}

/// Appends the frame that answers a call that was nothing but a handshake.
pub fn write_greeting(out: &mut Vec<u8>, serial: u32, handshake: &[u8]) {
    frame::write_frame(out, serial, handshake);
}

/// `Status.OK`, as an enum is written.
const STATUS_OK: u8 = 0;

/// A long.
fn write_long(out: &mut Vec<u8>, value: i64) {
    let mut bits = ((value << 1) ^ (value >> 63)) as u64;
    while bits >= 0x80 {
        out.push(bits as u8 | 0x80);
        bits >>= 7;
    }
    out.push(bits as u8);
}

/// Bytes or a string.
fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_long(out, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    out.extend_from_slice(bytes);
}
