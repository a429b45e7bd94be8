//! One message: what its header says, and the record that it becomes.

use jiff::tz::TimeZone;
use memchr::memchr;
use millstream_record::Time;

use super::{
    legacy, priority,
    record::{self, Written},
    structured,
    time::{Clock, Stamp},
};
use crate::room::Room;

/// What is known of a message from outside.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// When.
    pub now: Time,
    /// The field `host` where the message names none.
    pub host: &'a [u8],
    /// The field `peer`, where the batch does not say whom it is from.
    pub peer: Option<&'a [u8]>,
}

/// How much of a message was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A priority or a time at least.
    Header,
    /// Nothing: the record has the whole of it as `message`.
    Nothing,
}

/// What the header of a message says. Text that is not there is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header<'a> {
    pub(super) priority: Option<u8>,
    pub(super) time: Option<Time>,
    pub(super) host: &'a [u8],
    pub(super) app: &'a [u8],
    pub(super) procid: &'a [u8],
    pub(super) msgid: &'a [u8],
    /// The number that Cisco's devices count their messages with.
    pub(super) sequence: &'a [u8],
    /// A time that names no date that there is, as it came.
    pub(super) timestamp: &'a [u8],
    /// From the bracket of the first element; `message` starts where it does.
    pub(super) structured: bool,
    pub(super) message: &'a [u8],
}

/// Parses messages. Holds nothing of them but how a time that was seen last is counted.
#[derive(Clone, Debug)]
pub struct Parser {
    clock: Clock,
}

impl Parser {
    /// A parser that takes times that name no zone as of `zone`.
    pub fn new(zone: TimeZone) -> Self {
        Self {
            clock: Clock::new(zone),
        }
    }

    /// Appends the record of one message (without what ends it) to `out`.
    pub fn message(&mut self, message: &[u8], from: &Received<'_>, out: &mut Vec<u8>) -> Parsed {
        self.write(message, from, &mut Room::new(out)).0
    }

    /// The same; also says where in `room` the message's text begins.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        message: &[u8],
        from: &Received<'_>,
        room: &mut Room<'_>,
    ) -> (Parsed, Written) {
        match self.header(message, from.now) {
            Some(header) => (Parsed::Header, record::write(&header, from, room)),
            None => {
                let header = Header {
                    message,
                    ..Header::default()
                };
                (Parsed::Nothing, record::write(&header, from, room))
            }
        }
    }

    /// What the header says; `None`: there is none.
    #[inline(always)]
    pub(super) fn header<'a>(&mut self, line: &'a [u8], now: Time) -> Option<Header<'a>> {
        let Some((priority, rest)) = priority::read(line) else {
            return self.without_priority(line, now);
        };
        let mut header = match rest.first_chunk() {
            Some([b'1'..=b'9', b' ']) => match self.modern(rest.get(2..)?) {
                Some(header) => header,
                None => self.legacy(rest, now),
            },
            _ => self.legacy(rest, now),
        };
        header.priority = Some(priority);
        Some(header)
    }

    /// A line may begin with its time, as in a file that a syslog daemon wrote.
    #[cold]
    fn without_priority<'a>(&mut self, line: &'a [u8], now: Time) -> Option<Header<'a>> {
        if line.first() == Some(&b'<') {
            return None;
        }
        let header = self.legacy(line, now);
        (header.time.is_some() || !header.timestamp.is_empty()).then_some(header)
    }

    #[inline(always)]
    fn legacy<'a>(&mut self, rest: &'a [u8], now: Time) -> Header<'a> {
        match self.clock.read(rest, now) {
            Some(stamp) => legacy::behind_time(rest, stamp, now),
            None => legacy::odd(rest, &mut self.clock, now),
        }
    }

    /// RFC 5424 behind the version: `TIMESTAMP SP HOSTNAME SP APP-NAME SP PROCID SP MSGID SP STRUCTURED-DATA [SP MSG]`.
    #[inline(always)]
    fn modern<'a>(&self, text: &'a [u8]) -> Option<Header<'a>> {
        let mut header = Header::default();
        let rest = match text {
            [b'-', b' ', rest @ ..] => rest,
            _ => {
                let Stamp { time, length } = self.clock.iso(text)?;
                let (stamp, rest) = text.split_at_checked(length)?;
                header.time = time;
                if time.is_none() {
                    header.timestamp = stamp;
                }
                rest.strip_prefix(b" ")?
            }
        };
        let (host, rest) = word(rest)?;
        let (app, rest) = word(rest)?;
        let (procid, rest) = word(rest)?;
        let (msgid, rest) = word(rest)?;
        header.host = host;
        header.app = app;
        header.procid = procid;
        header.msgid = msgid;
        match rest {
            [b'-'] => {}
            [b'-', b' ', rest @ ..] => header.message = structured::without_mark(rest),
            // What is no structured data is the message.
            _ => {
                header.structured = rest.first() == Some(&b'[');
                header.message = rest;
            }
        }
        Some(header)
    }
}

/// A field of the header, empty if it is nil, and what is behind the space behind it. The last field may end the message.
#[inline(always)]
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at_checked(memchr(b' ', text)?)?;
    let rest = rest.get(1..)?;
    Some((if word == b"-" { b"" } else { word }, rest))
}
