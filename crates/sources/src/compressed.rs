//! Recognizes compressed files by their first bytes.

/// The first bytes of gzip, zstd, xz, lz4, compress and zip.
const MAGICS: [&[u8]; 6] = [
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"\x04\x22\x4d\x18",
    b"\x1f\x9d",
    b"PK\x03\x04",
];
/// bzip2: three letters, a digit, and the magic of the first block. A text line may begin with the letters alone.
const BZIP2: (&[u8], &[u8]) = (b"BZh", b"\x31\x41\x59\x26\x53\x59");

/// Whether a file whose first bytes are `start` is compressed.
pub(crate) fn is_compressed(start: &[u8]) -> bool {
    let behind_digit = start.strip_prefix(BZIP2.0).and_then(|rest| rest.get(1..));
    MAGICS.iter().any(|magic| start.starts_with(magic))
        || behind_digit.is_some_and(|rest| rest.starts_with(BZIP2.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_are_distinguished_from_text() {
        assert!(is_compressed(b"\x1f\x8b\x08\0"));
        assert!(is_compressed(b"BZh91AY&SY"));
        for text in [&b""[..], b"BZh is a line\n", b"PK\n", b"\x1f"] {
            assert!(!is_compressed(text), "{text:?}");
        }
    }
}
