//! Parses the header of a message and writes its record.

use jiff::tz::TimeZone;
use millstream_record::Time;

use super::{
    header::{Header, Received},
    known::Known,
    legacy, priority,
    record::{self, DATA, WORDS, Written},
    structured,
    time::{Clock, Stamp},
    words::find,
};
use crate::room::Room;

/// Whether a message has a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// It has at least a priority or a time.
    Header,
    /// It has neither a priority nor a time. The record has the complete line as `message`.
    Nothing,
}

/// Parses messages. It caches parts of the last header: its time, its words (the bytes between the time and the text) in each of
/// the two formats, and its structured data.
#[derive(Clone, Debug)]
pub struct Parser {
    clock: Clock,
    legacy: Known<WORDS>,
    modern: Known<WORDS>,
    data: Known<DATA>,
}

impl Parser {
    /// Creates a parser. Times without a zone are in `zone`.
    pub fn new(zone: TimeZone) -> Self {
        Self {
            clock: Clock::new(zone),
            legacy: Known::new(),
            modern: Known::new(),
            data: Known::new(),
        }
    }

    /// Appends the record of one message (without its line end) to `out`.
    pub fn message(&mut self, message: &[u8], from: &Received<'_>, out: &mut Vec<u8>) -> Parsed {
        self.write(message, from, &mut Room::new(out)).0
    }

    /// Like [`Parser::message`], but also returns where in the output `room` the record and its text begin.
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

    /// Writes a message whose time and words are in the cache. Returns `None` if the message must be parsed instead, for example
    /// because it has other words, or because its record gets the field `peer`.
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
        // The cached fields do not include the peer.
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

    /// Writes a record that has no header fields, only a text.
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

    /// Parses the header. Also returns whether it is one of RFC 5424. Returns `None` if there is no header.
    #[inline(always)]
    pub(super) fn header<'a>(&mut self, line: &'a [u8], now: Time) -> Option<(Header<'a>, bool)> {
        let Some((priority, rest)) = priority::read(line) else {
            return Some((self.without_priority(line, now)?, false));
        };
        let versioned = match rest {
            [b'1'..=b'9', b' ', text @ ..]
            | [b'1'..=b'9', b'0'..=b'9', b' ', text @ ..]
            | [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9', b' ', text @ ..] => Some(text),
            _ => None,
        };
        let modern = versioned.and_then(|text| self.modern(text));
        let is_modern = modern.is_some();
        let meraki = || legacy::meraki(versioned?);
        let mut header = match modern.or_else(meraki) {
            Some(header) => header,
            None => self.legacy(rest, now),
        };
        header.priority = Some(priority);
        Some((header, is_modern))
    }

    /// Parses a line that begins with its time, as in a file written by a syslog daemon.
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
            Some(stamp) => legacy::behind_time(rest, stamp, &self.clock, now),
            None => legacy::odd(rest, &mut self.clock, now),
        }
    }

    /// Parses RFC 5424 after the version: `TIMESTAMP SP HOSTNAME SP APP-NAME SP PROCID SP MSGID SP STRUCTURED-DATA [SP MSG]`.
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

/// Parses the part after the words of RFC 5424. If this part begins with structured data, returns `true`, and the structured data
/// with the message. Otherwise returns `false`, and only the message.
#[inline(always)]
fn data(rest: &[u8]) -> (bool, &[u8]) {
    match rest {
        [b'-'] => (false, &[]),
        [b'-', b' ', rest @ ..] => (false, structured::without_mark(rest)),
        // Text that is not structured data is the message.
        _ => (rest.first() == Some(&b'['), rest),
    }
}

/// Returns a field of the header, which is empty if it is nil (`-`), and the bytes after the space that follows it. Returns `None`
/// if there is no space.
#[inline(always)]
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at_checked(find([b' '], text)?)?;
    let rest = rest.get(1..)?;
    Some((if word == b"-" { b"" } else { word }, rest))
}
