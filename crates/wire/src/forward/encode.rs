//! Writes the frames of a sender: the head and the option map. The caller writes the payload between them.

use millstream_record::Encoding;

use super::{Compressed, LINES, Options};
use crate::msgpack::{write_int, write_map_len, write_str, write_uint};

/// Writes the head for a payload of `length` bytes. [`write_options`] must follow the payload.
///
/// ```text
/// 93 | tag as str | db l l l l        entries: str 32, as fluentd sends it and every receiver accepts it
///                 | c9 l l l l 4c     lines: ext 32 of type 76, only to another Millstream
/// ```
pub fn write_frame_head(out: &mut Vec<u8>, tag: &[u8], encoding: Encoding, length: u32) {
    out.push(0x93);
    write_str(out, tag);
    match encoding {
        Encoding::Packed => {
            out.push(0xdb);
            out.extend_from_slice(&length.to_be_bytes());
        }
        Encoding::Lines => {
            out.push(0xc9);
            out.extend_from_slice(&length.to_be_bytes());
            out.push(LINES as u8);
        }
    }
}

/// Writes the option map. A key is left out if `options` has no value for it. The key `compressed` is always written,
/// as in fluentd.
pub fn write_options(out: &mut Vec<u8>, options: &Options<'_>) {
    let ours = u32::from(options.values.is_some())
        + u32::from(options.received.is_some())
        + u32::from(options.frames.is_some());
    let keys = 1
        + u32::from(options.size.is_some())
        + u32::from(options.chunk.is_some())
        + u32::from(ours > 0);
    write_map_len(out, keys);
    if let Some(size) = options.size {
        write_str(out, b"size");
        write_uint(out, size);
    }
    write_str(out, b"compressed");
    write_str(
        out,
        match options.compressed {
            Compressed::No | Compressed::Unknown => b"text",
            Compressed::Gzip => b"gzip",
            Compressed::Zstd => b"zstd",
        },
    );
    if let Some(chunk) = options.chunk {
        write_str(out, b"chunk");
        out.extend_from_slice(chunk);
    }
    if ours == 0 {
        return;
    }
    write_str(out, b"millstream");
    write_map_len(out, ours);
    if let Some(values) = &options.values {
        write_str(out, b"values");
        write_map_len(out, u32::try_from(values.len()).unwrap_or(u32::MAX));
        for (name, text) in values.iter() {
            write_str(out, name.as_bytes());
            write_str(out, text.as_bytes());
        }
    }
    if let Some(received) = options.received {
        write_str(out, b"received");
        write_int(out, received.0);
    }
    if let Some(frames) = options.frames {
        write_str(out, b"frames");
        write_uint(out, frames);
    }
}
