//! Items that are sent together, and how a request is divided that a server answers with the same error each time.
//!
//! A status such as 500 may concern the server or one of the records. After [`EQUAL_MAX`] equal answers, the request is divided, and
//! so are its refused parts. Two outcomes are possible:
//!
//! - The server accepts other records. A record that alone still gets the same answer [`ALONE_MAX`] times is rejected.
//! - The server accepts nothing. So no record is at fault: the parts become one request again, which is retried as before. The next
//!   division happens after twice as many answers, and begins at the other end of the request.
//!
//! This module promises that a part has the same `Idempotency-Key` only if it has the same records.

use millstream_sys::checksum::crc32c;

/// Equal answers in a row after which a request is divided.
pub(super) const EQUAL_MAX: u32 = 5;
/// Equal answers to a single record after which it is rejected, if the server accepts others.
pub(super) const ALONE_MAX: u32 = 10;

/// Items that are sent together.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) items: Vec<u32>,
    /// Suffix for the request's `Idempotency-Key`, so that each piece has its own key.
    name: String,
    /// The number of answers that refused some of the items for now.
    answers: u32,
    /// The last status that a record may have caused, and how often in a row it was answered.
    equal: Option<(u16, u32)>,
    /// The number of equal answers after which the piece is divided.
    limit: u32,
    /// For a single item: the number of its equal answers since it is alone.
    alone: u32,
}

/// The judgement about an item that alone gets the same answer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The record is at fault.
    Record,
    /// It is not known yet.
    Open,
}

impl Piece {
    /// A whole request.
    pub(super) fn whole(items: Vec<u32>) -> Self {
        Self::new(items, String::new(), EQUAL_MAX)
    }

    fn new(items: Vec<u32>, name: String, limit: u32) -> Self {
        Self {
            items,
            name,
            answers: 0,
            equal: None,
            limit,
            alone: 0,
        }
    }

    /// The suffix for the request's `Idempotency-Key`. It changes with each answer, because the server could otherwise repeat its
    /// answer to the earlier body.
    pub(super) fn key(&self) -> String {
        match self.answers {
            0 => self.name.clone(),
            answers => format!("{}.r{answers}", self.name),
        }
    }

    /// Keeps only the items that failed.
    pub(super) fn keep(&mut self, failed: Vec<u32>) {
        if failed.len() < self.items.len() {
            self.equal = None;
        }
        self.items = failed;
        self.answers += 1;
    }

    /// Counts an answer. `status`: the status, if a record may have caused it. Returns whether the piece should be divided.
    pub(super) fn is_stuck(&mut self, status: Option<u16>) -> bool {
        let count = match (status, self.equal) {
            (None, _) => 0,
            (Some(status), Some((last, count))) if status == last => count.saturating_add(1),
            (Some(_), _) => 1,
        };
        self.equal = status.map(|status| (status, count));
        count >= self.limit
    }

    /// Counts an equal answer to a single item. `accepts_others`: whether the server accepts other records meanwhile.
    pub(super) fn blame(&mut self, accepts_others: bool) -> Blame {
        self.alone = self.alone.saturating_add(1);
        match self.alone >= ALONE_MAX && accepts_others {
            true => Blame::Record,
            false => Blame::Open,
        }
    }

    /// The two halves. A stuck piece is divided at once: its halves have the limit 1.
    pub(super) fn halves(mut self, is_stuck: bool) -> [Self; 2] {
        let key = self.key();
        let limit = if is_stuck { 1 } else { EQUAL_MAX };
        let second = self.items.split_off(self.items.len() / 2);
        [
            Self::new(self.items, format!("{key}.0"), limit),
            Self::new(second, format!("{key}.1"), limit),
        ]
    }

    /// One piece of all items in `pieces`. `all` is the number of items in the request, and `limit` the number of equal answers after
    /// which the piece is divided.
    pub(super) fn united(pieces: impl Iterator<Item = Self>, all: usize, limit: u32) -> Self {
        let mut items: Vec<u32> = pieces.flat_map(|piece| piece.items).collect();
        items.sort_unstable();
        // Other items than those of the request have a name that only they have.
        let name = match items.len() == all {
            true => String::new(),
            false => {
                let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_le_bytes()).collect();
                format!(".g{:08x}", crc32c(&bytes))
            }
        };
        Self::new(items, name, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_statuses_in_a_row_count() {
        let mut piece = Piece::whole(vec![0, 1]);
        let answers = [Some(500), Some(500), None, Some(500), Some(501)];
        assert!(answers.iter().all(|status| !piece.is_stuck(*status)));
        let last: Vec<_> = (0..4).map(|_| piece.is_stuck(Some(501))).collect();
        assert_eq!(last, [false, false, false, true]);
    }

    #[test]
    fn a_record_is_at_fault_only_if_the_server_accepts_others() {
        let mut piece = Piece::whole(vec![3]);
        assert!((0..2 * ALONE_MAX).all(|_| piece.blame(false) == Blame::Open));
        assert_eq!(piece.blame(true), Blame::Record);
        let mut piece = Piece::whole(vec![3]);
        let blames: Vec<_> = (0..ALONE_MAX).map(|_| piece.blame(true)).collect();
        assert_eq!(
            blames
                .iter()
                .filter(|blame| **blame == Blame::Record)
                .count(),
            1
        );
    }

    #[test]
    fn keys_of_parts_depend_on_their_records() {
        let [first, second] = Piece::whole(vec![0, 1, 2, 3]).halves(true);
        assert_eq!((first.key(), second.key()), (".0".into(), ".1".into()));
        let [a, b] = second.halves(true);
        assert_eq!((a.key(), b.key()), (".1.0".into(), ".1.1".into()));
        let united = |pieces: [Piece; 2], all| Piece::united(pieces.into_iter(), all, 10);
        assert_eq!(united([first, a], 3).key(), "");
        let part = |items: &[u32]| Piece::whole(items.to_vec());
        let one = united([part(&[3]), part(&[1])], 4);
        assert_eq!(one.items, [1, 3]);
        let same = united([part(&[1]), part(&[3])], 4);
        let other = united([part(&[1]), part(&[2])], 4);
        assert_eq!(one.key(), same.key());
        assert_ne!(one.key(), other.key());
    }
}
