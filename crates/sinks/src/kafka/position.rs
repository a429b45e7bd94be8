//! The position that is committed with the records, as text in the metadata of a consumer group's offset.
//!
//! ```text
//! millstream 1 CHANNEL EPOCH.SEQ OWNER [EPOCH.SEQ BYTES SUM]
//! ```
//! The last three words follow if a frame is divided (see `progress`). CHANNEL is the id of the disk channel. OWNER is a random number that each start of the program generates. Both are hexadecimal.
//! The consumer group is `millstream-CHANNEL-SINK`, which never has a member; the transactional id has the same name. So each pair
//! of channel and sink has one position, and only the producer that started last may move the position.

use millstream_pipeline::failure::Failure;
use millstream_record::Position;

use super::progress::Part;

const TITLE: &str = "millstream 1 ";

/// A position in a channel, and the process that has committed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) channel: u128,
    pub(super) position: Position,
    pub(super) owner: u64,
    /// The part of a later frame that is committed, too.
    pub(super) part: Option<Part>,
}

impl Committed {
    pub(super) fn text(&self) -> String {
        let Self {
            channel,
            position,
            owner,
            part,
        } = self;
        let text = format!("{TITLE}{channel:032x} {position} {owner:016x}");
        match part {
            Some(part) => format!("{text} {} {} {:08x}", part.position, part.bytes, part.sum),
            None => text,
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let read = || {
            let mut words = text.strip_prefix(TITLE)?.split(' ');
            let channel = u128::from_str_radix(words.next()?, 16).ok()?;
            let position = words.next()?.parse().ok()?;
            let owner = u64::from_str_radix(words.next()?, 16).ok()?;
            let part = match words.next() {
                Some(position) => Some(Part {
                    position: position.parse().ok()?,
                    bytes: words.next()?.parse().ok()?,
                    sum: u32::from_str_radix(words.next()?, 16).ok()?,
                }),
                None => None,
            };
            let committed = Self {
                channel,
                position,
                owner,
                part,
            };
            words.next().is_none().then_some(committed)
        };
        read().ok_or_else(|| {
            Failure::peer(format!(
                "the position that is committed with the records is `{}`: another version or another program wrote it",
                text.escape_debug()
            ))
        })
    }
}

/// The name of the consumer group and of the transactional id of a sink that reads from a channel.
pub(super) fn identity(channel: u128, sink: &str) -> String {
    format!("millstream-{channel:032x}-{sink}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_position_is_read_back_and_other_text_is_refused() {
        let mut committed = Committed {
            channel: 0xabc,
            position: Position { epoch: 3, seq: 42 },
            owner: 7,
            part: None,
        };
        let text = committed.text();
        assert_eq!(
            text,
            "millstream 1 00000000000000000000000000000abc 3.42 0000000000000007"
        );
        assert_eq!(Committed::parse(&text).unwrap(), committed);
        committed.part = Some(Part {
            position: Position { epoch: 3, seq: 44 },
            bytes: 1 << 20,
            sum: 0xbeef,
        });
        let divided = committed.text();
        assert_eq!(divided, format!("{text} 3.44 1048576 0000beef"));
        assert_eq!(Committed::parse(&divided).unwrap(), committed);
        for bad in [
            "",
            "millstream 1 a 1.1 1 1.2",
            "millstream 1 a 1.1 1 1.2 3",
            "millstream 1 a 1.1 1 1.2 3 4 5",
            "millstream 2 a 1.1 1",
            "millstream 1 a 1.1",
            "pos=1",
            "ä",
        ] {
            assert!(Committed::parse(bad).is_err(), "{bad}");
        }
    }
}
