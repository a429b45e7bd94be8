//! Parses the rest of an RFC 3164 message after the priority: a time, an optional host, an optional tag with a process id, a
//! text.
//!
//! ```text
//! Mmm dd hh:mm:ss SP HOST SP TAG[PID]: TEXT     RFC 3164; the time may also be one of RFC 3339 (rsyslog, hammer)
//! Mmm dd hh:mm:ss SP TAG[PID]: TEXT             without a host: /dev/log
//! TAG: TEXT                                     without a time: Python
//! SEQ: HOST: *Mmm dd hh:mm:ss.mmm UTC: TEXT     Cisco IOS; each of SEQ, HOST, `*` and the zone may be missing
//! Mmm dd yyyy hh:mm:ss HOST : TEXT              Cisco ASA
//! Mmm dd hh:mm:ss ZONE SP HOST SP TAG[PID]: ... a zone behind the time: `EST`, `+0100`
//! Mmm dd hh:mm:ss Message forwarded from HOST: TAG[PID]: TEXT     AIX and Solaris
//! Mmm dd hh:mm:ss last message repeated 3 times                   also `-- MARK --`: a daemon about itself, without a host
//! ```
//!
//! Except in Cisco's formats, a word is a host only if it follows a time. A word is a tag only if it is followed by a colon and a
//! space, by a colon at the end of the message, or by a process id in brackets. Any other word belongs to the text.

use millstream_record::Time;

use super::{
    digits::{fraction, number, offset},
    header::Header,
    time::{Clock, Stamp, Zone},
    words::find,
};
use crate::zone::named;

/// A longer word is not a tag (RFC 3164 allows 32 bytes, RFC 5424 48; file names occur as well).
const TAG_BYTES_MAX: usize = 128;
/// A longer text is not the name of a host.
const HOST_BYTES_MAX: usize = 256;

/// Parses a message whose time has been read. `rest` begins with the time, and `stamp` has the time and the length of its text.
#[inline(always)]
pub(super) fn behind_time<'a>(
    rest: &'a [u8],
    stamp: Stamp,
    clock: &Clock,
    now: Time,
) -> Header<'a> {
    let mut header = Header {
        time: stamp.time,
        ..Header::default()
    };
    let (time, text) = rest.split_at_checked(stamp.length).unwrap_or((rest, &[]));
    if stamp.time.is_none() {
        header.timestamp = time;
    }
    let text = match text {
        [b' ', text @ ..] => text,
        [b':', b' ', text @ ..] => {
            tagged(text, &mut header);
            return header;
        }
        // Neither a space nor a colon follows the time, so the text begins here.
        _ => {
            header.message = text;
            return header;
        }
    };
    if let Some(zone) = zone_word(text) {
        return in_zone(rest, text, zone, header, now);
    }
    let mut text = text;
    if may_be_no_host(text) {
        if about_itself(text, &mut header) {
            return header;
        }
        if let Some((zone, behind)) = zone_behind(text) {
            if let Some(time) = stamp.time {
                header.time = Some(clock.in_zone(rest, stamp.length, zone, now).unwrap_or(time));
            }
            text = behind;
        }
    }
    let Some((host, behind)) = host(text) else {
        tagged(text, &mut header);
        return header;
    };
    header.host = host;
    tagged(behind, &mut header);
    // Words are cached only if they end with a space. Otherwise their meaning could depend on the text that follows.
    if !header.app.is_empty()
        && stamp.time.is_some()
        && let Some(words) = text.get(..text.len() - header.message.len())
        && words.last() == Some(&b' ')
    {
        header.words = words;
    }
    header
}

/// Returns the host at the start of `text`, and the text after it. Returns `None` if the first word is a tag, or if no space
/// follows it.
#[inline(always)]
fn host(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (host, rest) = text.split_at_checked(find([b' '], text)?)?;
    let (_, others) = host.split_first()?;
    // An IPv6 address may end with two colons.
    let is_tag = host.ends_with(b":") && !host.ends_with(b"::");
    // `[::1]` is a host, `su[123]` is a tag.
    let brackets = find([b'['], others).is_some();
    (!is_tag && !brackets).then_some((host, rest.get(1..)?))
}

/// Whether the first word may be another one than a host although no colon follows it.
#[inline(always)]
fn may_be_no_host(text: &[u8]) -> bool {
    matches!(
        text,
        [b'A'..=b'Z', b'A'..=b'Z', ..]
            | [b'-' | b'+', b'-' | b'0'..=b'9', ..]
            | [b'M' | b'm', b'e', b's', b's', ..]
            | [b'l', b'a', b's', b't', ..]
    )
}

/// Parses a text that a daemon writes about itself, and in which no host follows the time. Returns whether `text` is one.
#[cold]
fn about_itself<'a>(text: &'a [u8], header: &mut Header<'a>) -> bool {
    if let Some(rest) = text.strip_prefix(b"Message forwarded from ") {
        let near = rest.get(..HOST_BYTES_MAX).unwrap_or(rest);
        let end = near.windows(2).position(|pair| pair == b": ");
        if let Some((host, behind)) = end.and_then(|end| rest.split_at_checked(end))
            && !host.contains(&b' ')
        {
            header.host = host;
            tagged(behind.get(2..).unwrap_or_default(), header);
            return true;
        }
    }
    const STARTS: [&[u8]; 3] = [b"last message repeated ", b"message repeated ", b"--"];
    if STARTS.iter().any(|start| text.starts_with(start)) {
        header.message = text;
        return true;
    }
    false
}

/// Returns the zone at the start of `text`, and the text after it. There is none if the next word is not a host: `EST su: x` comes
/// from a host that is called EST.
#[cold]
fn zone_behind(text: &[u8]) -> Option<(Zone<'_>, &[u8])> {
    let (word, behind) = text.split_at_checked(find([b' '], text)?)?;
    let behind = behind.get(1..)?;
    let zone = match word {
        [sign @ (b'+' | b'-'), digits @ ..] => {
            let (seconds, rest) = offset(digits)?;
            rest.is_empty().then_some(())?;
            Zone::Offset(if *sign == b'-' { -seconds } else { seconds })
        }
        name if name.iter().all(u8::is_ascii_uppercase) => Zone::Name(name, named(name)?),
        _ => return None,
    };
    host(behind)?;
    Some((zone, behind))
}

/// Sets the tag, the process id and the message in `header` from `text`.
#[inline(always)]
fn tagged<'a>(text: &'a [u8], header: &mut Header<'a>) {
    header.message = text;
    let near = text.get(..TAG_BYTES_MAX).unwrap_or(text);
    let Some(end) = find([b':', b'[', b' '], near) else {
        return;
    };
    let Some((tag, rest)) = text.split_at_checked(end) else {
        return;
    };
    match rest {
        // Cisco ASA writes a space before the colon.
        [b' ', b':', b' ', b'%', ..] if header.host.is_empty() => {
            header.host = tag;
            tagged(rest.get(3..).unwrap_or_default(), header);
        }
        [b':', b' ', b'%', ..] if tag.is_empty() => {
            tagged(rest.get(2..).unwrap_or_default(), header);
        }
        _ if tag.is_empty() => {}
        [b':'] => (header.app, header.message) = (tag, &[]),
        [b':', b' ', message @ ..] => (header.app, header.message) = (tag, message),
        [b'[', rest @ ..] => {
            let near = rest.get(..TAG_BYTES_MAX).unwrap_or(rest);
            let close = find([b']', b' ', b'['], near);
            let Some((procid, behind)) = close.and_then(|close| rest.split_at_checked(close))
            else {
                return;
            };
            let message = match behind {
                [b']', b':', b' ', message @ ..] | [b']', b' ', message @ ..] => message,
                [b']', b':'] | [b']'] => &[],
                // glibc writes a space after the colon, other senders do not.
                [b']', b':', message @ ..] => message,
                _ => return,
            };
            header.app = tag;
            header.procid = procid;
            header.message = message;
        }
        _ => {}
    }
}

/// Returns the length of a zone's name at the start of `text` if `: %` follows, as in `UTC: %SYS-5`. Returns `None` otherwise.
#[inline(always)]
fn zone_word(text: &[u8]) -> Option<usize> {
    if !text.first()?.is_ascii_uppercase() {
        return None;
    }
    let letters = text.iter().take(6);
    let count = letters.take_while(|byte| byte.is_ascii_uppercase()).count();
    let behind = text.get(count..)?;
    ((3..=5).contains(&count) && behind.starts_with(b": %")).then_some(count)
}

/// Parses a message of Cisco, in which the name of a zone follows the time. Names other than UTC and GMT mean different zones in
/// different places, so the configured zone is used for them.
#[cold]
fn in_zone<'a>(
    rest: &'a [u8],
    text: &'a [u8],
    zone: usize,
    mut header: Header<'a>,
    now: Time,
) -> Header<'a> {
    if matches!(text.get(..zone), Some(b"UTC" | b"GMT"))
        && let Some(stamp) = Clock::read_utc(rest, now)
    {
        header.time = stamp.time;
    }
    tagged(text.get(zone + 2..).unwrap_or_default(), &mut header);
    header
}

/// Parses a message of Meraki after its version: `SECONDS.FRACTION HOST TEXT`.
#[cold]
pub(super) fn meraki(text: &[u8]) -> Option<Header<'_>> {
    let (seconds, rest) = number(text, 9, 11)?;
    let (nanos, rest) = fraction(rest);
    let (host, rest) = host(rest.strip_prefix(b" ")?)?;
    let mut header = Header {
        time: Some(Time::from_parts(seconds, nanos)),
        host,
        ..Header::default()
    };
    tagged(rest, &mut header);
    Some(header)
}

/// Parses a message that does not begin with a time: one of Cisco's formats, or a message without a time.
#[cold]
pub(super) fn odd<'a>(rest: &'a [u8], clock: &mut Clock, now: Time) -> Header<'a> {
    if let Some(header) = cisco(rest, clock, now) {
        return header;
    }
    let mut header = Header::default();
    tagged(rest, &mut header);
    header
}

/// Parses `[SEQ: ][SEQ: ][HOST: ][*|.]TIME...`. Returns `None` if there is no time after these parts.
fn cisco<'a>(rest: &'a [u8], clock: &mut Clock, now: Time) -> Option<Header<'a>> {
    let text = rest.strip_prefix(b":").unwrap_or(rest);
    let mut text = text.strip_prefix(b" ").unwrap_or(text);
    let (mut sequence, mut host): (&[u8], &[u8]) = (b"", b"");
    // There may be two sequence numbers: the syslog process counts messages, and the device may count, too.
    for _ in 0..3 {
        let text_at = match text {
            [b'*' | b'.', behind @ ..] => behind,
            _ => text,
        };
        if let Some(stamp) = clock.read(text_at, now) {
            let mut header = behind_time(text_at, stamp, clock, now);
            header.sequence = sequence;
            if header.host.is_empty() {
                header.host = host;
            }
            return Some(header);
        }
        let near = text.get(..TAG_BYTES_MAX).unwrap_or(text);
        let end = near.iter().position(|byte| matches!(byte, b':' | b' '))?;
        let (word, behind) = text.split_at_checked(end)?;
        text = behind.strip_prefix(b": ")?;
        if word.iter().all(u8::is_ascii_digit) {
            sequence = word;
        } else {
            host = word;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_tag_only_before_a_colon_or_a_bracketed_number() {
        let tag = |text: &'static str| {
            let mut header = Header::default();
            tagged(text.as_bytes(), &mut header);
            [header.app, header.procid, header.message].map(|part| str::from_utf8(part).unwrap())
        };
        assert_eq!(tag("su: x"), ["su", "", "x"]);
        assert_eq!(tag("su[12]: x"), ["su", "12", "x"]);
        assert_eq!(tag("su[12] x"), ["su", "12", "x"]);
        assert_eq!(tag("su[12]:x"), ["su", "12", "x"]);
        assert_eq!(tag("su:"), ["su", "", ""]);
        assert_eq!(tag("a/b[c.d-1]: "), ["a/b", "c.d-1", ""]);
        for plain in [
            "su x",
            "http://x",
            ": x",
            "[12]: x",
            "su[1 2]: x",
            "su[12",
            "last message repeated 2 times",
            "",
        ] {
            assert_eq!(tag(plain), ["", "", plain]);
        }
        assert_eq!(tag(": %ASA-6-1: x"), ["%ASA-6-1", "", "x"]);
    }

    #[test]
    fn a_word_after_the_time_is_a_host_unless_it_is_a_tag() {
        let host = |text: &'static str| {
            host(text.as_bytes()).map(|(host, _)| str::from_utf8(host).unwrap())
        };
        for name in [
            "web-1",
            "10.0.0.1",
            "2001:db8::1",
            "fe80::",
            "[::1]",
            "a.b.c",
            "%host",
        ] {
            let text: &'static str = format!("{name} su: x").leak();
            assert_eq!(host(text), Some(name));
        }
        for text in ["su: x", "su[12]: x", "alone", " x", ""] {
            assert_eq!(host(text), None, "{text}");
        }
    }
}
