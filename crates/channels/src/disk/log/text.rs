//! Names and values in the head of a frame.

use millstream_state::Fields;

/// Appends the length of the name (4), the length of the value (4), the name and the value. Both lengths are far below 4 GiB, because
/// larger groups are refused earlier (`Error::TooLarge`).
pub(super) fn put_text(out: &mut Vec<u8>, name: &str, value: &str) {
    for text in [name, value] {
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// A name and a value as [`put_text`] wrote them.
pub(super) fn take_text<'a>(fields: &mut Fields<'a>) -> Option<(&'a str, &'a str)> {
    let (name, value) = (fields.u32()?, fields.u32()?);
    let name = std::str::from_utf8(fields.take(usize::try_from(name).ok()?)?).ok()?;
    let value = std::str::from_utf8(fields.take(usize::try_from(value).ok()?)?).ok()?;
    Some((name, value))
}
