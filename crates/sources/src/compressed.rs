//! Recognizes compressed files by their first bytes.

use std::{ffi::OsStr, path::Path};

/// The first bytes of gzip, zstd, xz, lz4, compress, zip, lzma, lzip and framed snappy.
const MAGICS: [&[u8]; 9] = [
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"\x04\x22\x4d\x18",
    b"\x1f\x9d",
    b"PK\x03\x04",
    b"\x5d\0\0",
    b"LZIP\x01",
    b"\xff\x06\0\0sNaPpY",
];
/// bzip2: three letters, a digit, and the magic of the first block. A text line may begin with the letters alone.
const BZIP2: (&[u8], &[u8]) = (b"BZh", b"\x31\x41\x59\x26\x53\x59");

/// The endings of names that compressors other than gzip add.
const ENDINGS: [&str; 10] = [
    "zst", "zstd", "xz", "bz2", "lz4", "Z", "zip", "lzma", "lz", "sz",
];

/// Whether a file with this name will be compressed by a compressor other than gzip, once its first bytes are written.
pub(crate) fn is_named_compressed(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Whether a file whose first bytes are `start` is compressed.
pub(crate) fn is_compressed(start: &[u8]) -> bool {
    let behind_digit = start.strip_prefix(BZIP2.0).and_then(|rest| rest.get(1..));
    MAGICS.iter().any(|magic| start.starts_with(magic))
        || behind_digit.is_some_and(|rest| rest.starts_with(BZIP2.1))
}

/// Whether a file whose first bytes are `start` is not a text: it has a NUL. NULs at the very start do not count. They are the
/// hole that a rotation leaves in the file of a program that continues at its old offset.
pub(crate) fn is_binary(start: &[u8]) -> bool {
    let text = start.iter().skip_while(|byte| **byte == 0);
    text.clone().any(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_are_distinguished_from_text() {
        assert!(is_compressed(b"\x1f\x8b\x08\0"));
        assert!(is_compressed(b"BZh91AY&SY"));
        assert!(is_named_compressed("/a/app.log.1.zst".as_ref()));
        assert!(!is_named_compressed("/a/zst".as_ref()));
        for text in [&b""[..], b"BZh is a line\n", b"PK\n", b"\x1f"] {
            assert!(!is_compressed(text), "{text:?}");
        }
    }

    #[test]
    fn a_text_after_a_hole_is_not_binary() {
        assert!(is_binary(b"\xff\xd8\xff\xe0\0\x10JFIF"));
        for text in [&b""[..], b"\0\0\0\0", b"\0\0a line\n", b"caf\xe9\n"] {
            assert!(!is_binary(text), "{text:?}");
        }
    }
}
