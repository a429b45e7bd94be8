//! The ids of what is sent: chunks of `forward`, requests of `http`.
//!
//! Behind a durable channel `CHANNEL.EPOCH.SEQ.PART.CRC`: the channel's id (32 hex digits), the frame's position, the
//! number of the part and the CRC-32C of its stored bytes (8 hex digits). One frame is one or more chunks by its bytes
//! alone, never the other way round, so the same bytes have the same id after a restart, and other bytes (after a change
//! of where frames are cut) have another. Behind memory `RANDOM-COUNTER`: what is not settled when the process ends is
//! sent again by its source, under whatever id.

use std::{fmt::Write, io};

use crc_fast::CrcAlgorithm;
use millstream_record::Position;
use rustix::rand::{GetRandomFlags, getrandom};

/// Where ids come from.
#[derive(Debug)]
pub(crate) enum Ids {
    /// The durable channel with this id.
    Channel(u128),
    /// This run of the sink: a random number and a counter.
    Run {
        /// Told apart from all other runs.
        random: u128,
        /// The number of the last id.
        last: u64,
    },
}

impl Ids {
    /// Of a durable channel, or of this run.
    pub(crate) fn new(channel: Option<u128>) -> io::Result<Self> {
        if let Some(channel) = channel {
            return Ok(Self::Channel(channel));
        }
        let mut random = [0; 16];
        // Up to 256 bytes come whole or not at all (getrandom(2)).
        getrandom(&mut random, GetRandomFlags::empty())?;
        Ok(Self::Run {
            random: u128::from_ne_bytes(random),
            last: 0,
        })
    }

    /// The id of a part. `stored`: its bytes as the channel holds them, or as they are sent.
    pub(crate) fn next(
        &mut self,
        position: Option<Position>,
        part: usize,
        stored: &[u8],
    ) -> String {
        let mut text = String::with_capacity(96);
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Channel(channel) => {
                let position = position.unwrap_or_default();
                let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, stored);
                write!(text, "{channel:032x}.{position}.{part}.{crc:08x}")
            }
            Self::Run { random, last } => {
                *last += 1;
                write!(text, "{random:032x}-{last}")
            }
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_durable_channel_an_id_is_the_position_and_the_bytes() {
        let position = Some(Position { epoch: 3, seq: 41 });
        let id = |part, stored: &[u8]| {
            let mut ids = Ids::new(Some(0xab)).unwrap();
            ids.next(position, part, stored)
        };
        // CRC-32C's check value (RFC 3720 and the catalogue of CRCs).
        assert_eq!(
            id(0, b"123456789"),
            "000000000000000000000000000000ab.3.41.0.e3069283"
        );
        assert_eq!(id(1, b"x"), id(1, b"x"));
        assert_ne!(id(1, b"x"), id(1, b"y"));
        assert_ne!(id(0, b"x"), id(1, b"x"));
    }

    #[test]
    fn behind_memory_no_id_comes_twice_and_none_looks_durable() {
        let (mut one, mut other) = (Ids::new(None).unwrap(), Ids::new(None).unwrap());
        let ids = [
            one.next(None, 0, b""),
            one.next(None, 0, b""),
            other.next(None, 0, b""),
        ];
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert!(ids.iter().all(|id| !id.contains('.')));
    }
}
