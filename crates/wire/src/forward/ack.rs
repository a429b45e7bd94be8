//! Acks: `{"ack": id}`, with the chunk id exactly as the sender wrote it.

use crate::{
    json::{Unfit, write_value},
    msgpack::{ReadError, Reader, write_map_len, write_str},
};

/// An ack that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The chunk id, as a MessagePack value.
    pub chunk: &'a [u8],
    /// The length of the ack in bytes.
    pub length: usize,
}

/// Appends the ack for `chunk`, a MessagePack value, in MessagePack.
pub fn write_ack(out: &mut Vec<u8>, chunk: &[u8]) {
    write_map_len(out, 1);
    write_str(out, b"ack");
    out.extend_from_slice(chunk);
}

/// Appends the ack for `chunk` in JSON. The decoder has converted the sender's JSON to the MessagePack value `chunk`; this
/// function converts it back.
///
/// # Errors
/// [`Unfit`]: never for a value that arrived as JSON.
pub fn write_json_ack(out: &mut Vec<u8>, chunk: &[u8]) -> Result<(), Unfit> {
    let start = out.len();
    out.extend_from_slice(b"{\"ack\":");
    if let Err(unfit) = write_value(chunk, 0, out) {
        out.truncate(start);
        return Err(unfit);
    }
    out.push(b'}');
    Ok(())
}

/// Reads the ack at the start of `input`.
///
/// # Errors
/// [`ReadError::Short`]: read more bytes; [`ReadError::Type`]: this is not an ack.
pub fn read_ack(input: &[u8]) -> Result<Ack<'_>, ReadError> {
    let mut reader = Reader::new(input);
    let mut chunk = None;
    for _ in 0..reader.map_len()? {
        let key = reader.value()?;
        let value = reader.value()?;
        if Reader::new(key).bytes() == Ok(b"ack") {
            chunk = Some(value);
        }
    }
    Ok(Ack {
        chunk: chunk.ok_or(ReadError::Type)?,
        length: reader.position(),
    })
}
