//! The ids by which a receiver recognizes what it has already got from a disk channel of another Millstream: the chunk ids of the
//! sink `forward` and the values of `Idempotency-Key` of the sink `http`.
//!
//! ```text
//! CHANNEL.SINK.EPOCH.SEQ.RECEIVED.FLOW.PART.PARTS.SUM
//! CHANNEL     the id of the channel, 32 hex digits
//! SINK        the name of the sink: each sink reads every position
//! EPOCH.SEQ   the position in the channel
//! RECEIVED    when the records at this position were received, in nanoseconds since 1970. A `data_dir` that is restored from a
//!             copy gives positions to other records again; their time differs.
//! FLOW        with `balance: hash`, the flow of the records; otherwise 0
//! PART        the number of this part of the position, from 0
//! PARTS       in the last part: the number of parts; in every other part: 0
//! SUM         8 hex digits. In the last part: the sum of the checksums of all parts before it, so 0 if it is the only part. In every
//!             other part: its own checksum.
//! ```
//! A position has the same content forever, but what the sink makes of it changes with the processors in front of the sink and with
//! its options, for example if they are edited between a crash and the next start. So an id identifies a position, not its content: a
//! receiver that holds the only part of a position, or all parts of one attempt, holds the position. Only if it has some of several
//! parts does it compare checksums, because other processors may have divided the position differently.

use std::{fmt, str};

use millstream_record::{Position, Time};

/// The maximum number of parts of a position.
pub const PARTS_MAX: u32 = 1 << 16;

/// Precedes the key in the id of a chunk that is a request of the source `http`. The channel does not trust an id alone if the id is
/// short or looks like a hash of the content. With this prefix, no id is short or looks like a hash.
pub const REQUEST_MARK: &[u8] = b"idempotency-key ";

/// Fields after the name of the sink.
const FIELDS: usize = 7;

/// The id of a part of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartId<'a> {
    /// The id of the channel.
    pub channel: u128,
    /// The name of the sink.
    pub sink: &'a str,
    /// The position in the channel.
    pub position: Position,
    /// When the records at this position were received.
    pub received: Time,
    /// The flow of the records; 0 if there are no flows.
    pub flow: u8,
    /// The number of the part, from 0.
    pub part: u32,
    /// The number of parts if this is the last one, otherwise 0.
    pub parts: u32,
    /// The sum of the checksums of all parts before the last one; of every other part its own checksum.
    pub sum: u32,
}

impl<'a> PartId<'a> {
    /// Reads an id; `None` if the text is any other id.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let mut fields = text.rsplitn(FIELDS + 1, '.');
        let sum = hex::<8>(fields.next()?)?;
        let parts = number(fields.next()?)?;
        let part = number(fields.next()?)?;
        let flow = number(fields.next()?)?;
        let received = Time(number(fields.next()?)?);
        let seq = number(fields.next()?)?;
        let epoch = number(fields.next()?)?;
        let (channel, sink) = fields.next()?.split_once('.')?;
        let id = Self {
            channel: hex::<32>(channel)?,
            sink,
            position: Position { epoch, seq },
            received,
            flow,
            part,
            parts,
            sum: sum as u32,
        };
        let is_in_bounds = part < PARTS_MAX && (parts == 0 || parts == part + 1);
        is_in_bounds.then_some(id)
    }

    /// Reads the id of a chunk, a value of MessagePack; `None` if it is any other id.
    pub fn of_chunk(id: &'a [u8]) -> Option<Self> {
        let text = id_text(id)?;
        Self::parse(text.strip_prefix(REQUEST_MARK).unwrap_or(text))
    }

    /// Whether this is the last part of its position.
    pub fn is_last(&self) -> bool {
        self.parts > 0
    }
}

impl fmt::Display for PartId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            sink,
            position,
            received,
            flow,
            part,
            parts,
            sum,
        } = self;
        let received = received.0;
        write!(
            f,
            "{channel:032x}.{sink}.{position}.{received}.{flow}.{part}.{parts}.{sum:08x}"
        )
    }
}

/// The bytes of the id of a chunk that is a MessagePack string or binary; `None` for any other value.
pub fn id_text(id: &[u8]) -> Option<&[u8]> {
    match id {
        [0xa0..=0xbf, text @ ..]
        | [0xd9 | 0xc4, _, text @ ..]
        | [0xda | 0xc5, _, _, text @ ..]
        | [0xdb | 0xc6, _, _, _, _, text @ ..] => Some(text),
        _ => None,
    }
}

/// A decimal number as `Display` writes it, so that two texts never have the same number.
fn number<T: str::FromStr + ToString>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// A number of exactly `DIGITS` lower-case hex digits.
fn hex<const DIGITS: usize>(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hex = text.len() == DIGITS && text.bytes().all(is_digit);
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> PartId<'static> {
        PartId {
            channel: 0xab,
            sink: "next-1",
            position: Position { epoch: 3, seq: 41 },
            received: Time(1_795_000_000_000_000_000),
            flow: 7,
            part: 1,
            parts: 2,
            sum: 0xe306_9283,
        }
    }

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let text = id().to_string();
        assert_eq!(
            text,
            "000000000000000000000000000000ab.next-1.3.41.1795000000000000000.7.1.2.e3069283"
        );
        assert_eq!(PartId::parse(text.as_bytes()), Some(id()));
        let more = PartId { parts: 0, ..id() };
        assert_eq!(PartId::parse(more.to_string().as_bytes()), Some(more));
        assert!(!more.is_last());
    }

    #[test]
    fn other_ids_and_ids_with_something_behind_are_no_parts() {
        let text = id().to_string();
        for other in [
            "",
            "PdjoG1yfRwmC9QbEo1eNzA==",
            "000000000000000000000000000000ab.3.41.0.e3069283",
            &format!("{text}.0"),
            &format!("{text}.r1"),
            &text.to_uppercase(),
            &text.replace(".1.2.", ".1.3."),
            &text.replace(".1.2.", ".01.2."),
            &text.replace(".1.2.", ".70000.0."),
            &text.replace("ab.", "b."),
        ] {
            assert_eq!(PartId::parse(other.as_bytes()), None, "{other}");
        }
    }
}
