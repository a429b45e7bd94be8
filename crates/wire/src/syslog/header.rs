//! The header of a message, and properties of a message that are not in its bytes.

use millstream_record::Time;

/// Properties of a message that are not in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The receive time.
    pub now: Time,
    /// The value of the field `host` for messages without a host.
    pub host: &'a [u8],
    /// The value of the field `peer`; `None` if the record gets no such field.
    pub peer: Option<&'a [u8]>,
}

/// The header of a message. Missing texts are empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header<'a> {
    pub(super) priority: Option<u8>,
    pub(super) time: Option<Time>,
    pub(super) host: &'a [u8],
    pub(super) app: &'a [u8],
    pub(super) procid: &'a [u8],
    pub(super) msgid: &'a [u8],
    /// The sequence number of Cisco's devices.
    pub(super) sequence: &'a [u8],
    /// The text of a time that is not a valid date.
    pub(super) timestamp: &'a [u8],
    /// The bytes between the time and the text (in RFC 5424: between the time and the structured data). Empty if the host is
    /// missing, or if host, app, procid and msgid also depend on other bytes of the message.
    pub(super) words: &'a [u8],
    /// Whether `message` begins with structured data, at the bracket of its first element.
    pub(super) structured: bool,
    pub(super) message: &'a [u8],
}
