//! The formats of syslog: RFC 3164 and the variants that devices send, RFC 5424 with structured data, and both framings of RFC
//! 6587.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> [encode] -> write -> settle`
//!
//! Messages become entries of the packed encoding (MessagePack `[time, map]`), which are appended to the body of a batch in one
//! pass. The bytes of a message's text never change. A message that cannot be parsed becomes a record with the whole line as
//! `message`. A record does not depend on how the input is divided, or on earlier messages. The decoder stores only the state of
//! the framing, the header of a message that is read in pieces, and two caches: one of times, and one of header fields and
//! structured data ([`known`]). A cache is used only for bytes that equal the cached bytes. Nothing is allocated per record. There
//! is no I/O and no clock: the caller passes the receive time.
//!
//! ```text
//! [EventTime, { "facility": str, "severity": str,    if the message has a priority
//!               "host": str,                         the message's, otherwise the caller's
//!               "peer": str,                         only if the caller passes one (datagrams of many senders)
//!               "app", "procid", "msgid": str,       if the message has them
//!               "structured_data": {id: {name: value, or [values]}},
//!               "sequence", "timestamp": str,        Cisco's number; a time in a known format that is not a valid date
//!               "message": str, or bin if it is not UTF-8 }]
//! ```

mod civil;
mod decode;
mod digits;
mod encode;
mod frame;
mod header;
mod known;
mod legacy;
mod parse;
mod priority;
mod record;
mod structured;
mod structured_text;
mod text;
mod time;
mod word;
mod words;

#[cfg(test)]
mod tests;

pub use decode::{Decoder, LeftOver, Run, Settings, TooLong};
pub use encode::{Defaults, Encoder, Header};
pub use frame::{After, Framing};
pub use header::Received;
pub use jiff::tz::TimeZone;
pub use parse::{Parsed, Parser};
pub(crate) use priority::{FACILITIES, SEVERITIES};
pub use priority::{facility, severity};
pub(crate) use time::is_surely_newest;
pub use time::newest;
