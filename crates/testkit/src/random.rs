//! Random numbers for tests: a seed gives the same numbers on every machine and in every version.

/// A small generator (SplitMix64) for the choices of a test. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator with the seed in the environment variable SEED. If the variable is not set, each call uses a new
    /// seed. Prints the seed.
    #[expect(clippy::print_stdout, reason = "a failing test shows its seed")]
    pub fn from_environment() -> Self {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let now = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |now| u64::from(now.subsec_nanos()))
        };
        let seed = seed.unwrap_or_else(now);
        println!("SEED={seed}");
        Self::new(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end - 1`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of the remainder does not matter for the small ranges of tests.
        if end == 0 { 0 } else { self.bits() % end }
    }

    /// True with probability `part` / `whole`.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// A random element; `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let place = self.below(from.len() as u64);
        from.get(usize::try_from(place).unwrap_or(0))
    }
}
