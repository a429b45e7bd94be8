//! Syslog as it is sent: RFC 3164 and what devices make of it, RFC 5424 with structured data, both framings of RFC 6587.
//!
//! `read -> [decode] -> send -> keep -> take -> process -> [encode] -> write -> settle`
//!
//! Messages become records of the packed encoding, appended straight to a batch's body in one pass. It promises: no byte
//! of a message's text is changed; what cannot be parsed is a record too, the whole line as `message`; nothing is
//! remembered from one message for the next but what equal bytes mean ([`known`], and how a time is counted; the head of
//! one that is too long, for its own pieces); no split of the input changes the records; nothing allocates for each record. No I/O, no clock: who calls says when it was received.
//!
//! ```text
//! [EventTime, { "facility": str, "severity": str,    when the message has a priority
//!               "host": str,                         the message's, else what the caller says
//!               "peer": str,                         only if the caller says one (datagrams of many senders)
//!               "app", "procid", "msgid": str,       when the message has them
//!               "structured_data": {id: {name: value, or [values]}},
//!               "sequence", "timestamp": str,        Cisco's number; a time of the right form that names no date
//!               "message": str, or bin if it is not UTF-8 }]
//! ```

mod civil;
mod decode;
mod digits;
mod encode;
mod frame;
mod known;
mod legacy;
mod parse;
mod priority;
mod record;
mod structured;
mod structured_text;
mod time;
mod words;

#[cfg(test)]
mod tests;

pub use decode::{Decoder, LeftOver, Run, Settings, TooLong};
pub use encode::{Defaults, Encoder, Header};
pub use frame::{After, Framing};
pub use jiff::tz::TimeZone;
pub use parse::{Parsed, Parser, Received};
pub(crate) use priority::{FACILITIES, SEVERITIES};
pub use priority::{facility, severity};
