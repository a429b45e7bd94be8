//! The handshake of a connection with a shared key: HELO, PING, PONG. Forward protocol specification v1, section
//! "Handshake".
//!
//! The server speaks first. Three MessagePack arrays precede the first frame:
//!
//! ```text
//! server  ["HELO", {"nonce": 16 bytes, "auth": 16 bytes or "", "keepalive": bool}]      auth: "" = no user is required
//! client  ["PING", hostname, salt, digest(salt hostname nonce key), user, digest(auth user password)]
//! server  ["PONG", true, "", hostname, digest(salt hostname nonce key)]                 or
//! server  ["PONG", false, reason, "", ""]                                               and the server closes the connection
//!
//! digest(a b c) = SHA-512 of the concatenated bytes of a, b, c, as 128 lower-case hex digits
//! ```
//!
//! Senders write texts as str or bin; both are accepted. Nonce and salts are sent as bin, as in fluentd. No memory is allocated
//! for announced bytes before they have arrived. Digests are compared in constant time. Random numbers, deadlines and keys are
//! the task of `sources/forward` and `sinks/forward`.

use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use crate::msgpack::{
    ReadError, Reader, write_array_len, write_bin, write_bool, write_map_len, write_str,
};

/// Length of a digest in hex.
pub const DIGEST_CHARS: usize = 128;

/// The server's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helo<'a> {
    /// New for each connection.
    pub nonce: &'a [u8],
    /// The salt of the password's digest; empty if no user is required.
    pub auth: &'a [u8],
    /// Whether the connection may be used for many chunks.
    pub keepalive: bool,
}

/// The client's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping<'a> {
    /// The client's name.
    pub hostname: &'a [u8],
    /// The salt of the key's digests.
    pub salt: &'a [u8],
    /// Proves that the client has the key.
    pub key_digest: &'a [u8],
    /// The user name; empty if there is none.
    pub user: &'a [u8],
    /// Proves that the client has the user's password; empty if no user is required.
    pub password_digest: &'a [u8],
}

/// The server's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pong<'a> {
    /// Frames may follow.
    Welcome {
        /// The server's name.
        hostname: &'a [u8],
        /// Proves that the server has the key.
        key_digest: &'a [u8],
    },
    /// The connection ends for this reason.
    Refused(&'a [u8]),
}

/// SHA-512 of the concatenated parts in lower-case hex.
#[must_use]
pub fn digest(parts: &[&[u8]]) -> [u8; DIGEST_CHARS] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut hash = Sha512::new();
    for part in parts {
        hash.update(part);
    }
    let mut out = [0; DIGEST_CHARS];
    for (pair, byte) in out.chunks_exact_mut(2).zip(hash.finalize()) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
    out
}

/// Whether a peer sent the expected digest. The comparison takes constant time.
#[must_use]
pub fn is_digest(sent: &[u8], wanted: &[u8; DIGEST_CHARS]) -> bool {
    sent.ct_eq(wanted).into()
}

/// Appends a HELO.
pub fn write_helo(out: &mut Vec<u8>, helo: &Helo<'_>) {
    write_array_len(out, 2);
    write_str(out, b"HELO");
    write_map_len(out, 3);
    write_str(out, b"nonce");
    write_bin(out, helo.nonce);
    write_str(out, b"auth");
    match helo.auth {
        [] => write_str(out, b""),
        salt => write_bin(out, salt),
    }
    write_str(out, b"keepalive");
    write_bool(out, helo.keepalive);
}

/// Reads the HELO at the start of `input`; returns it and its length.
///
/// # Errors
/// [`ReadError::Short`]: read more bytes; any other error: the server does not use this handshake.
pub fn read_helo(input: &[u8]) -> Result<(Helo<'_>, usize), ReadError> {
    let mut reader = Reader::new(input);
    expect(&mut reader, b"HELO", 2)?;
    let mut helo = Helo {
        nonce: b"",
        auth: b"",
        keepalive: true,
    };
    for _ in 0..reader.map_len()? {
        match reader.bytes()? {
            b"nonce" => helo.nonce = reader.bytes()?,
            b"auth" => helo.auth = reader.bytes()?,
            b"keepalive" => helo.keepalive = reader.bool()?,
            _ => reader.skip()?,
        }
    }
    Ok((helo, reader.position()))
}

/// Appends a PING.
pub fn write_ping(out: &mut Vec<u8>, ping: &Ping<'_>) {
    write_array_len(out, 6);
    write_str(out, b"PING");
    write_str(out, ping.hostname);
    write_bin(out, ping.salt);
    write_str(out, ping.key_digest);
    write_str(out, ping.user);
    write_str(out, ping.password_digest);
}

/// Reads the PING at the start of `input`; returns it and its length.
///
/// # Errors
/// [`ReadError::Short`]: read more bytes; any other error: this is not a PING.
pub fn read_ping(input: &[u8]) -> Result<(Ping<'_>, usize), ReadError> {
    let mut reader = Reader::new(input);
    expect(&mut reader, b"PING", 6)?;
    let ping = Ping {
        hostname: reader.bytes()?,
        salt: reader.bytes()?,
        key_digest: reader.bytes()?,
        user: reader.bytes()?,
        password_digest: reader.bytes()?,
    };
    Ok((ping, reader.position()))
}

/// Appends a PONG.
pub fn write_pong(out: &mut Vec<u8>, pong: &Pong<'_>) {
    let (good, reason, hostname, digest): (_, &[u8], &[u8], &[u8]) = match *pong {
        Pong::Welcome {
            hostname,
            key_digest,
        } => (true, b"", hostname, key_digest),
        Pong::Refused(reason) => (false, reason, b"", b""),
    };
    write_array_len(out, 5);
    write_str(out, b"PONG");
    write_bool(out, good);
    write_str(out, reason);
    write_str(out, hostname);
    write_str(out, digest);
}

/// Reads the PONG at the start of `input`; returns it and its length.
///
/// # Errors
/// [`ReadError::Short`]: read more bytes; any other error: this is not a PONG.
pub fn read_pong(input: &[u8]) -> Result<(Pong<'_>, usize), ReadError> {
    let mut reader = Reader::new(input);
    expect(&mut reader, b"PONG", 5)?;
    let good = reader.bool()?;
    let (reason, hostname, key_digest) = (reader.bytes()?, reader.bytes()?, reader.bytes()?);
    let pong = match good {
        true => Pong::Welcome {
            hostname,
            key_digest,
        },
        false => Pong::Refused(reason),
    };
    Ok((pong, reader.position()))
}

/// Reads the head of an array of `length` elements, the first of which must be `name`.
fn expect(reader: &mut Reader<'_>, name: &[u8], length: u32) -> Result<(), ReadError> {
    if reader.array_len()? != length || reader.bytes()? != name {
        return Err(ReadError::Type);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &[u8] = b"0123456789abcdef";
    const AUTH: &[u8] = &[0, 255, 1, 254];

    /// Checks that the complete message reads back, that `read` returns [`ReadError::Short`] for every truncated message, and
    /// that a changed byte causes no panic.
    fn comes_back(bytes: &[u8], read: impl Fn(&[u8]) -> Result<usize, ReadError>) {
        let mut longer = bytes.to_vec();
        longer.extend_from_slice(b"what follows");
        assert_eq!(read(&longer), Ok(bytes.len()));
        for end in 0..bytes.len() {
            assert!(
                matches!(read(&bytes[..end]), Err(ReadError::Short)),
                "{end}"
            );
            let mut changed = bytes.to_vec();
            for value in [0, 0x7f, 0x93, 0xc1, 0xdf, 0xff] {
                changed[end] = value;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn a_written_message_reads_back_and_a_truncated_one_is_short() {
        let mut out = Vec::new();
        let helo = Helo {
            nonce: NONCE,
            auth: AUTH,
            keepalive: false,
        };
        write_helo(&mut out, &helo);
        assert_eq!(read_helo(&out), Ok((helo, out.len())));
        comes_back(&out, |bytes| Ok(read_helo(bytes)?.1));

        let mut out = Vec::new();
        let ping = Ping {
            hostname: b"web-1",
            salt: AUTH,
            key_digest: &digest(&[b"x"]),
            user: b"alice",
            password_digest: &digest(&[b"y"]),
        };
        write_ping(&mut out, &ping);
        assert_eq!(read_ping(&out), Ok((ping, out.len())));
        comes_back(&out, |bytes| Ok(read_ping(bytes)?.1));

        for pong in [
            Pong::Welcome {
                hostname: b"agg-1",
                key_digest: &digest(&[b"z"]),
            },
            Pong::Refused(b"shared_key mismatch"),
        ] {
            let mut out = Vec::new();
            write_pong(&mut out, &pong);
            assert_eq!(read_pong(&out), Ok((pong, out.len())));
            comes_back(&out, |bytes| Ok(read_pong(bytes)?.1));
        }
    }

    #[test]
    fn a_helo_is_written_as_specified_and_variants_are_read() {
        let mut out = Vec::new();
        write_helo(
            &mut out,
            &Helo {
                nonce: b"ab",
                auth: b"",
                keepalive: true,
            },
        );
        let wanted = b"\x92\xa4HELO\x83\xa5nonce\xc4\x02ab\xa4auth\xa0\xa9keepalive\xc3";
        assert_eq!(out, wanted);
        // Other servers may send str instead of bin, keys in another order, unknown keys or no keys.
        let other =
            b"\x92\xa4HELO\x84\xa4auth\xc4\x01s\xa1x\x91\x01\xa5nonce\xa2ab\xa9keepalive\xc2";
        let helo = Helo {
            nonce: b"ab",
            auth: b"s",
            keepalive: false,
        };
        assert_eq!(read_helo(other), Ok((helo, other.len())));
        assert!(read_helo(b"\x92\xa4HELO\x80").is_ok());
    }

    #[test]
    fn an_invalid_ping_is_detected_before_it_is_complete() {
        for no_ping in [
            &b"\x93"[..],
            b"\x96\xa4PONG",
            b"[",
            b"\xc1",
            b"\x96\x01",
            b"\x16\x03\x01",
        ] {
            assert!(
                !matches!(read_ping(no_ping), Ok(_) | Err(ReadError::Short)),
                "{no_ping:?}"
            );
        }
    }

    #[test]
    fn a_digest_is_sha_512_in_hex() {
        let wanted = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
            2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        let given = digest(&[b"a", b"", b"bc"]);
        assert_eq!(std::str::from_utf8(&given), Ok(wanted));
        assert!(is_digest(wanted.as_bytes(), &given));
        assert!(!is_digest(&wanted.as_bytes()[..127], &given));
        assert!(!is_digest(b"", &given));
        assert!(!is_digest(wanted.to_uppercase().as_bytes(), &given));
    }
}
