//! Container logs as the kubelet's runtimes (containerd, CRI-O) write them, in the logging format of the Container
//! Runtime Interface.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! ```text
//! 2026-11-21T07:00:00.123456789Z stdout F the text of a line
//! time (RFC 3339)                stream tags, separated by colons; the first is F if the record ends here, P if it continues
//! ```
//!
//! The runtime divides a line of more than 16 KiB into parts, each of which is a line of this format. The caller joins the
//! parts.
//!
//! Docker writes JSON instead. A `log` without a newline continues in the next line of its stream.
//!
//! ```text
//! {"log":"the text of a line\n","stream":"stdout","time":"2026-11-21T07:00:00.123456789Z"}
//! ```

use memchr::memchr;
use millstream_record::Time;

use crate::{
    json::{Progress, to_msgpack},
    msgpack::{Reader, write_array_len, write_map_len, write_str, write_time},
    record::MESSAGE,
};

/// The longest time, `2026-11-21T07:00:00.123456789+05:30`, with a margin.
const TIME_BYTES_MAX: usize = 40;
/// The name of the field that holds the stream.
pub const STREAM: &str = "stream";

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// When the container wrote the line.
    pub time: Time,
    /// `stdout` or `stderr`.
    pub stream: &'a [u8],
    /// Whether the record continues in the next line of this stream.
    pub partial: bool,
    /// The text that the container wrote.
    pub text: &'a [u8],
}

/// Parses a line without its newline; `None` if it has another format.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let head = line.get(..TIME_BYTES_MAX).unwrap_or(line);
    let (time, rest) = line.split_at_checked(memchr(b' ', head)?)?;
    let (stream, rest) = word(rest.get(1..)?)?;
    // A line with an empty text may end after its tags.
    let (tags, text) = word(rest).unwrap_or((rest, &[]));
    let first = tags.split(|byte| *byte == b':').next()?;
    let partial = match first {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    Some(Line {
        time: read_time(time)?,
        stream,
        partial,
        text,
    })
}

/// Parses a line without its newline in the format of CRI or of Docker; `None` if it has another format. The text of a line of
/// Docker is in `buffer`.
pub fn parse_any<'a>(line: &'a [u8], buffer: &'a mut Vec<u8>) -> Option<Line<'a>> {
    match line.first() {
        Some(b'{') => docker(line, buffer),
        _ => parse(line),
    }
}

fn docker<'a>(line: &[u8], buffer: &'a mut Vec<u8>) -> Option<Line<'a>> {
    buffer.clear();
    match to_msgpack(line, buffer).ok()? {
        Progress::Consumed(end) if line.get(end..)?.trim_ascii().is_empty() => {}
        Progress::Consumed(_) | Progress::NeedMore => return None,
    }
    let mut reader = Reader::new(buffer);
    let (mut log, mut stream, mut time) = (None, None, None);
    for _ in 0..reader.map_len().ok()? {
        let place = match reader.bytes().ok()? {
            b"log" => &mut log,
            b"stream" => &mut stream,
            b"time" => &mut time,
            _ => {
                reader.skip().ok()?;
                continue;
            }
        };
        *place = Some(reader.bytes().ok()?);
    }
    let log = log?;
    let text = log.strip_suffix(b"\n");
    Some(Line {
        time: read_time(time?)?,
        stream: stream?,
        partial: text.is_none(),
        text: text.unwrap_or(log),
    })
}

fn read_time(text: &[u8]) -> Option<Time> {
    let time: jiff::Timestamp = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Time(i64::try_from(time.as_nanosecond()).ok()?))
}

/// Splits `text` at the first space. Returns `None` if there is no space, or no byte before it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (word, rest) = text.split_at_checked(memchr(b' ', text)?)?;
    (!word.is_empty()).then_some((word, rest.get(1..)?))
}

/// Appends the entry `[time, {"message": text, "stream": stream}]`.
pub fn write_entry(out: &mut Vec<u8>, time: Time, stream: &[u8], text: &[u8]) {
    write_array_len(out, 2);
    write_time(out, time);
    write_map_len(out, 2);
    write_str(out, MESSAGE.as_bytes());
    write_str(out, text);
    write_str(out, STREAM.as_bytes());
    write_str(out, stream);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_and_partial_lines_are_read() {
        let line = parse(b"2016-10-06T00:17:09.669794202Z stdout P log content  1").unwrap();
        assert_eq!(
            line,
            Line {
                time: Time::from_parts(1_475_713_029, 669_794_202),
                stream: b"stdout",
                partial: true,
                text: b"log content  1",
            }
        );
        let line = parse(b"2016-10-06T05:47:09+05:30 stderr F:future ").unwrap();
        assert_eq!(line.time, Time::from_parts(1_475_713_029, 0));
        assert_eq!(
            (line.stream, line.partial, line.text),
            (&b"stderr"[..], false, &b""[..])
        );
        assert_eq!(parse(b"2016-10-06T00:17:09Z stdout F").unwrap().text, b"");
    }

    #[test]
    fn lines_of_another_format_are_not_parsed() {
        for line in [
            "",
            " ",
            "plain text of a program",
            "2016-10-06T00:17:09Z",
            "2016-10-06T00:17:09Z stdout",
            "2016-10-06T00:17:09Z stdout X text",
            "2016-10-06T00:17:09Z  F text",
            "2016-13-06T00:17:09Z stdout F text",
            "yesterday stdout F text",
            "9999-12-31T00:00:00Z stdout F beyond the range of time",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn lines_of_docker_are_read() {
        let mut buffer = Vec::new();
        let line = br#"{"log":"a \u00e4\r\n","stream":"stderr","attrs":{"a":"b"},"time":"2016-10-06T00:17:09.5Z"}"#;
        let line = parse_any(line, &mut buffer).unwrap();
        assert_eq!(line.time, Time::from_parts(1_475_713_029, 500_000_000));
        let expected = (&b"stderr"[..], false, "a \u{e4}\r".as_bytes());
        assert_eq!((line.stream, line.partial, line.text), expected);
        let line = br#"{"log":"part","stream":"stdout","time":"2016-10-06T00:17:09Z"}"#;
        let line = parse_any(line, &mut buffer).unwrap();
        assert_eq!((line.partial, line.text), (true, &b"part"[..]));
        for other in [
            r#"{"log":"x\n","stream":"stdout"}"#,
            r#"{"log":"x\n","time":"2016-10-06T00:17:09Z"}"#,
            r#"{"log":1,"stream":"stdout","time":"2016-10-06T00:17:09Z"}"#,
            r#"{"log":"x\n","stream":"stdout","time":"2016-10-06T00:17:09Z"} x"#,
            r#"{"level":"info"}"#,
            r#"{"log":"x"#,
        ] {
            assert_eq!(parse_any(other.as_bytes(), &mut buffer), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(line in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&line);
            let _ = parse(&[b"2016-10-06T00:17:09Z stdout ", &line[..]].concat());
        }
    }
}
