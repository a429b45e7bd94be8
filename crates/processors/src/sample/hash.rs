//! The hash that decides which records are kept. It is the same on every machine and in every version, because a replay after an
//! upgrade must keep the same records.
//!
//! Words of eight bytes are multiplied in pairs to 128 bits and folded, as in wyhash and foldhash. The hash does not protect
//! against a sender that chooses its records: such a sender can choose which of them are kept.

/// Odd numbers without a pattern: the first hexadecimal digits of pi. The last digit of `FACTOR` is changed to make it odd.
const START: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x1319_8a2e_0370_7345;

/// A hash to which input is added piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(u64);

impl Hash {
    /// Starts a hash without input.
    pub(super) fn new() -> Self {
        Self(START)
    }

    /// Adds bytes and their number, so that `ab` and `c` differ from `a` and `bc`.
    #[inline]
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let start = self.number(bytes.len() as u64);
        let (blocks, rest) = bytes.as_chunks::<32>();
        // Two independent chains of products, which the CPU computes at the same time.
        let (mut one, mut other) = (start.0, start.0 ^ FACTOR);
        for block in blocks {
            let [a, b, c, d] = words(block);
            one = fold(one ^ a, FACTOR ^ b);
            other = fold(other ^ c, FACTOR ^ d);
        }
        let hash = Self(one ^ other.rotate_left(32));
        if rest.is_empty() {
            return hash;
        }
        let mut last = [0; 32];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        let [a, b, c, d] = words(&last);
        Self(fold(hash.0 ^ a, FACTOR ^ b) ^ fold(hash.0 ^ c, START ^ d).rotate_left(32))
    }

    /// Adds a number.
    #[inline]
    pub(super) fn number(self, number: u64) -> Self {
        Self(fold(self.0 ^ number, FACTOR))
    }

    /// Returns the hash: a 64-bit number that is evenly distributed.
    #[inline]
    pub(super) fn finish(self) -> u64 {
        fold(self.0 ^ START, FACTOR)
    }
}

/// The four words of a block.
#[inline]
fn words(block: &[u8; 32]) -> [u64; 4] {
    let (words, _) = block.as_chunks::<8>();
    let mut all = [0; 4];
    for (to, from) in all.iter_mut().zip(words) {
        *to = u64::from_le_bytes(*from);
    }
    all
}

/// Multiplies two numbers and combines the halves of the product. If `b` is 0, the product does not depend on `a`, so `a` is
/// mixed in again.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64) ^ a.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If these numbers change, every running pipeline keeps other records than before.
    #[test]
    fn the_hash_stays_the_same_in_every_version() {
        let hash = |text: &str| Hash::new().bytes(text.as_bytes()).finish();
        let long = "a text that is longer than one block of 32 bytes";
        let found = ["", "a", "12345678", "a longer text", long].map(hash);
        let expected = [
            14_552_813_655_862_518_433,
            15_766_061_887_756_024_841,
            14_107_020_147_735_463_707,
            17_857_624_040_109_508_179,
            4_069_510_550_375_434_049,
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
            // Each bucket should have 1000 records, with a standard deviation of 32.
            assert!(
                buckets.iter().all(|count| (840..1160).contains(count)),
                "{buckets:?}"
            );
        }
    }

    #[test]
    fn each_bit_of_a_text_changes_half_of_the_hash() {
        for length in [1, 8, 9, 31, 32, 33, 64, 65] {
            let text: Vec<u8> = (0..length).map(|n| b'a' + n % 26).collect();
            let hash = |text: &[u8]| Hash::new().bytes(text).finish();
            for bit in 0..text.len() * 8 {
                let mut other = text.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let changed = (hash(&text) ^ hash(&other)).count_ones();
                // 32 bits should change, with a standard deviation of 4.
                assert!(
                    (10..=54).contains(&changed),
                    "bit {bit} of {length} bytes: {changed}"
                );
            }
        }
    }

    #[test]
    fn the_boundaries_between_pieces_change_the_hash() {
        let pieces =
            |a: &str, b: &str| Hash::new().bytes(a.as_bytes()).bytes(b.as_bytes()).finish();
        assert_ne!(pieces("ab", "c"), pieces("a", "bc"));
        assert_ne!(pieces("a", ""), pieces("a\0", ""));
        assert_ne!(pieces("", "a"), pieces("a", ""));
    }
}
