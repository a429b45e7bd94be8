//! Random numbers: from the kernel for ids, nonces and salts, and cheap ones that only have to differ between processes.

use std::{
    hash::{BuildHasher, RandomState},
    io,
};

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` random bytes. `N` is at most 256, because `getrandom(2)` may return fewer bytes than requested if more than 256
/// are requested.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(bytes)
}

/// Numbers that differ between processes and cost no system call, for jitter and for spreading load; predictable, so not for ids
/// or secrets. Marsaglia, "Xorshift RNGs", 2003: 64 bits, shifts 13, 7 and 17.
#[derive(Debug)]
pub struct Spread(u64);

impl Spread {
    /// Seeds the generator from the random keys of this process.
    pub fn new() -> Self {
        // The state must not be 0.
        Self(RandomState::new().hash_one(0) | 1)
    }

    /// The next number; never 0.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl Default for Spread {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_remainder_is_drawn_about_equally_often() {
        let mut spread = Spread::new();
        let mut counts = [0; 8];
        for _ in 0..8000 {
            counts[(spread.draw() % 8) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
