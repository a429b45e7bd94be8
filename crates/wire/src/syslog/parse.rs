//! One message: what its header says, and the record that it becomes.

use jiff::tz::TimeZone;
use millstream_record::Time;

use super::{
    known::Known,
    legacy, priority,
    record::{self, DATA, WORDS, Written},
    structured,
    time::{Clock, Stamp},
    words::find,
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
    /// All that stands between the time and the text (in RFC 5424 the structured data), if host, app, procid and msgid
    /// follow from it alone and the host is named.
    pub(super) words: &'a [u8],
    /// From the bracket of the first element; `message` starts where it does.
    pub(super) structured: bool,
    pub(super) message: &'a [u8],
}

/// Parses messages. Holds nothing of them but what the bytes of the last header mean: its time, its words in either
/// form, and its structured data.
#[derive(Clone, Debug)]
pub struct Parser {
    clock: Clock,
    legacy: Known<WORDS>,
    modern: Known<WORDS>,
    data: Known<DATA>,
}

impl Parser {
    /// A parser that takes times that name no zone as of `zone`.
    pub fn new(zone: TimeZone) -> Self {
        Self {
            clock: Clock::new(zone),
            legacy: Known::new(),
            modern: Known::new(),
            data: Known::new(),
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
        match self.again(message, from, room) {
            Some(written) => (Parsed::Header, written),
            None => self.anew(message, from, room),
        }
    }

    /// A message of a time and with words that were seen last: nothing but the text is new.
    #[inline(always)]
    fn again(
        &mut self,
        message: &[u8],
        from: &Received<'_>,
        room: &mut Room<'_>,
    ) -> Option<Written> {
        let (priority, rest) = priority::read(message)?;
        let (moment, text, modern) = match rest {
            [b'1'..=b'9', b' ', text @ ..] => (self.clock.iso_again(text)?, text, true),
            _ => (self.clock.again(rest, from.now)?, rest, false),
        };
        let [b' ', text @ ..] = text.get(moment.length..)? else {
            return None;
        };
        let known = if modern { &self.modern } else { &self.legacy };
        let behind = known.behind(text)?;
        // The fields have no peer between them.
        if from.peer.is_some() {
            return None;
        }
        let (structured, message) = match modern {
            true => data(behind),
            false => (false, behind),
        };
        record::again(
            priority,
            &moment,
            known,
            &mut self.data,
            structured,
            message,
            room,
        )
    }

    #[inline(never)]
    fn anew(
        &mut self,
        message: &[u8],
        from: &Received<'_>,
        room: &mut Room<'_>,
    ) -> (Parsed, Written) {
        let Some((header, modern)) = self.header(message, from.now) else {
            return (Parsed::Nothing, self.bare(message, from, room));
        };
        let (written, fields) = record::write(&header, from, &mut self.data, room);
        if !header.words.is_empty() && from.peer.is_none() {
            let known = match modern {
                true => &mut self.modern,
                false => &mut self.legacy,
            };
            known.learn(
                header.words,
                room.between(fields.start, fields.end),
                fields.count,
            );
        }
        (Parsed::Header, written)
    }

    /// A record with nothing but a text, whatever that begins with.
    pub(super) fn bare(
        &mut self,
        message: &[u8],
        from: &Received<'_>,
        room: &mut Room<'_>,
    ) -> Written {
        let header = Header {
            message,
            ..Header::default()
        };
        record::write(&header, from, &mut self.data, room).0
    }

    /// What the header says, and whether it is one of RFC 5424; `None`: there is none.
    #[inline(always)]
    pub(super) fn header<'a>(&mut self, line: &'a [u8], now: Time) -> Option<(Header<'a>, bool)> {
        let Some((priority, rest)) = priority::read(line) else {
            return Some((self.without_priority(line, now)?, false));
        };
        let modern = match rest.first_chunk() {
            Some([b'1'..=b'9', b' ']) => self.modern(rest.get(2..)?),
            _ => None,
        };
        let is_modern = modern.is_some();
        let mut header = match modern {
            Some(header) => header,
            None => self.legacy(rest, now),
        };
        header.priority = Some(priority);
        Some((header, is_modern))
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
    fn modern<'a>(&mut self, text: &'a [u8]) -> Option<Header<'a>> {
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
        let words = rest;
        let (host, rest) = word(rest)?;
        let (app, rest) = word(rest)?;
        let (procid, rest) = word(rest)?;
        let (msgid, rest) = word(rest)?;
        header.host = host;
        header.app = app;
        header.procid = procid;
        header.msgid = msgid;
        if !host.is_empty() {
            header.words = words.get(..words.len() - rest.len()).unwrap_or_default();
        }
        (header.structured, header.message) = data(rest);
        Some(header)
    }
}

/// What stands behind the words of RFC 5424: whether it is structured data, and from there on, or the message.
#[inline(always)]
fn data(rest: &[u8]) -> (bool, &[u8]) {
    match rest {
        [b'-'] => (false, &[]),
        [b'-', b' ', rest @ ..] => (false, structured::without_mark(rest)),
        // What is no structured data is the message.
        _ => (rest.first() == Some(&b'['), rest),
    }
}

/// A field of the header, empty if it is nil, and what is behind the space behind it. The last field may end the message.
#[inline(always)]
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at_checked(find([b' '], text)?)?;
    let rest = rest.get(1..)?;
    Some((if word == b"-" { b"" } else { word }, rest))
}
