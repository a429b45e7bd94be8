//! The hash that decides about records: the same on every machine and in every version, because a replay after an upgrade must decide
//! as before.
//!
//! Eight bytes are multiplied to 128 bits and folded, as in wyhash and foldhash. It is no protection against a sender that chooses
//! its records: such a sender can choose which of them are kept.

/// Odd numbers without a pattern: digits of pi.
const START: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x1319_8a2e_0370_7345;

/// A hash that grows piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(u64);

impl Hash {
    /// The hash of nothing.
    pub(super) fn new() -> Self {
        Self(START)
    }

    /// With these bytes and their number, so that `ab` and `c` differ from `a` and `bc`.
    #[inline]
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut hash = self.number(bytes.len() as u64);
        for word in words {
            hash = hash.number(u64::from_le_bytes(*word));
        }
        if rest.is_empty() {
            return hash;
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        hash.number(u64::from_le_bytes(last))
    }

    /// With this number.
    #[inline]
    pub(super) fn number(self, number: u64) -> Self {
        Self(fold(self.0 ^ number, FACTOR))
    }

    /// A number of 64 bits that are evenly distributed.
    #[inline]
    pub(super) fn finish(self) -> u64 {
        fold(self.0 ^ START, FACTOR)
    }
}

/// The halves of the product. An operand of 0 would lose the other one, so the sum of both is added.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64) ^ a.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of these numbers changes the samples of every running pipeline.
    #[test]
    fn the_hash_stays_the_same_in_every_version() {
        let hash = |text: &str| Hash::new().bytes(text.as_bytes()).finish();
        let found = ["", "a", "12345678", "a longer text"].map(hash);
        let expected = [
            13_981_304_374_533_618_885,
            12_798_217_170_436_378_256,
            1_618_185_474_464_443_389,
            10_684_041_198_971_400_686,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn similar_inputs_are_spread_evenly() {
        // Counters, alone and within a text, are the inputs with the fewest differing bits.
        let plain = |n: u64| Hash::new().number(n).finish();
        let text = |n: u64| {
            Hash::new()
                .bytes(format!("request {n} done").as_bytes())
                .finish()
        };
        for hashes in [plain as fn(u64) -> u64, text] {
            let (mut buckets, records) = ([0_u32; 64], 64_000);
            for n in 0..records {
                buckets[(hashes(n) >> 58) as usize] += 1;
            }
            // 1000 in each with a deviation of 32.
            assert!(
                buckets.iter().all(|count| (840..1160).contains(count)),
                "{buckets:?}"
            );
        }
    }

    #[test]
    fn the_borders_between_pieces_count() {
        let pieces =
            |a: &str, b: &str| Hash::new().bytes(a.as_bytes()).bytes(b.as_bytes()).finish();
        assert_ne!(pieces("ab", "c"), pieces("a", "bc"));
        assert_ne!(pieces("a", ""), pieces("a\0", ""));
        assert_ne!(pieces("", "a"), pieces("a", ""));
    }
}
