//! Random numbers from the kernel, for ids, nonces and salts.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` random bytes, at most 256: `getrandom(2)` returns up to that many whole or not at all.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
