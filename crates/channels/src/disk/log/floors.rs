//! What other Millstreams have settled: the lower bound of what each of their channels can still send again.
//!
//! A chunk of a Millstream carries the id `CHANNEL.EPOCH.SEQ.PART.CRC` (the channel as 32 hex digits). Once the sender says
//! that a position is settled, a copy of a chunk at or below it can only be a late one: it is a repeat, whether the window
//! still holds its id or not. Floors need not survive a restart: no connection that could hold a late copy does, and the
//! sender says its floor again.

use std::collections::HashMap;

use millstream_record::Position;

/// Senders that are remembered; a fleet has fewer, and one that is forgotten says its floor again.
const SENDERS_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Floors(HashMap<u128, Position, foldhash::fast::RandomState>);

impl Floors {
    pub(super) fn set(&mut self, channel: u128, position: Position) {
        if self.0.len() >= SENDERS_MAX && !self.0.contains_key(&channel) {
            self.0.clear();
        }
        let floor = self.0.entry(channel).or_insert(position);
        *floor = position.max(*floor);
    }

    /// Whether the chunk with this id (a MessagePack value) is at or below the floor of its channel.
    pub(super) fn is_settled(&self, id: &[u8]) -> bool {
        !self.0.is_empty()
            && parse(id).is_some_and(|(channel, position)| {
                self.0.get(&channel).is_some_and(|floor| position <= *floor)
            })
    }
}

fn parse(id: &[u8]) -> Option<(u128, Position)> {
    // A string of 36 bytes or more has a header of two bytes: 0xd9 and its length.
    let [0xd9 | 0xc4, _, text @ ..] = id else {
        return None;
    };
    let mut parts = std::str::from_utf8(text).ok()?.split('.');
    let channel = parts.next().filter(|hex| hex.len() == 32)?;
    let channel = u128::from_str_radix(channel, 16).ok()?;
    let epoch = parts.next()?.parse().ok()?;
    let seq = parts.next()?.parse().ok()?;
    (parts.count() == 2).then_some((channel, Position { epoch, seq }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Vec<u8> {
        [&[0xd9, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }

    #[test]
    fn a_late_copy_below_the_floor_is_settled_and_nothing_else_is() {
        let mut floors = Floors::default();
        let channel = "000000000000000000000000000000ff";
        let at = |position: &str| id(&format!("{channel}.{position}.0.1a2b3c4d"));
        assert!(!floors.is_settled(&at("1.5")));
        floors.set(255, Position { epoch: 2, seq: 5 });
        floors.set(255, Position { epoch: 2, seq: 3 });
        assert!(floors.is_settled(&at("2.5")) && floors.is_settled(&at("1.900")));
        assert!(!floors.is_settled(&at("2.6")) && !floors.is_settled(&at("3.1")));
        assert!(!floors.is_settled(&id(&format!("{}.1.1.0.1", "0".repeat(32)))));
        assert!(!floors.is_settled(b"\xa3abc"));
    }
}
