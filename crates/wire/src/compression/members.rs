//! Writes output as a sequence of complete members (gzip, RFC 1952) or frames (zstd, RFC 8878). A file that ends after
//! any member or frame is a complete stream, which `zcat` and `zstdcat` can read.
//!
//! Members are independent, so one compressor serves thousands of files and keeps no state between two members. The
//! same input always gives the same member, because a member contains no timestamp.

use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use super::{Codec, Inflated, Inflater};

/// Compression level for stored data: the default of the `gzip` tool.
const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;
/// The step in bytes by which the output grows when a member does not fit.
const STEP_BYTES: usize = 64 << 10;
/// The maximum number of places in the end of a file that are checked for the start of a member.
const STARTS_MAX: usize = 256;

/// Writes members or frames.
pub struct Members {
    engine: Engine,
}

enum Engine {
    Gzip,
    Zstd(Encoder<'static>),
}

impl Members {
    /// A compressor for files.
    ///
    /// # Errors
    /// The library ran out of memory.
    pub fn new(codec: Codec) -> io::Result<Self> {
        let engine = match codec {
            Codec::Gzip => Engine::Gzip,
            Codec::Zstd => {
                let mut encoder = Encoder::new(ZSTD_LEVEL)?;
                // zstd has no checksum by default. With one, every reader notices damage, as with gzip.
                encoder.set_parameter(CParameter::ChecksumFlag(true))?;
                Engine::Zstd(encoder)
            }
        };
        Ok(Self { engine })
    }

    /// Appends `parts`, concatenated, to `output` as one member or frame.
    ///
    /// # Errors
    /// The library ran out of memory.
    pub fn append(&mut self, parts: &[impl AsRef<[u8]>], output: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.engine {
            Engine::Gzip => {
                let mut encoder = GzBuilder::new().write(output, Compression::new(GZIP_LEVEL));
                parts
                    .iter()
                    .try_for_each(|part| encoder.write_all(part.as_ref()))?;
                encoder.finish().map(drop)
            }
            Engine::Zstd(encoder) => zstd_frame(encoder, parts, output),
        }
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.engine {
            Engine::Gzip => "Members(gzip)",
            Engine::Zstd(_) => "Members(zstd)",
        })
    }
}

fn zstd_frame(
    encoder: &mut Encoder<'static>,
    parts: &[impl AsRef<[u8]>],
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let bytes: usize = parts.iter().map(|part| part.as_ref().len()).sum();
    encoder.reinit()?;
    // If zstd knows the size, it uses small tables for short frames.
    encoder.set_pledged_src_size(Some(bytes as u64))?;
    for part in parts {
        let mut input = InBuffer::around(part.as_ref());
        while input.pos() < part.as_ref().len() {
            with_room(output, |room| encoder.run(&mut input, room))?;
        }
    }
    while with_room(output, |room| encoder.finish(room, true))? > 0 {}
    Ok(())
}

/// Calls `step` with the spare capacity of `output`.
fn with_room<T>(
    output: &mut Vec<u8>,
    step: impl FnOnce(&mut OutBuffer<'_, Vec<u8>>) -> io::Result<T>,
) -> io::Result<T> {
    output.reserve(STEP_BYTES);
    let end = output.len();
    step(&mut OutBuffer::around_pos(output, end))
}

/// The number of bytes at the start of `input` that are complete members or frames. The bytes after them are a torn
/// write or damaged.
pub fn whole_bytes(codec: Codec, input: &[u8]) -> usize {
    let Some(mut inflater) = Inflater::new(codec) else {
        return 0;
    };
    let mut output = Vec::with_capacity(STEP_BYTES);
    while let Ok(Inflated::Full) = inflater.inflate(input, &mut output) {
        output.clear();
    }
    inflater.whole
}

/// Whether a file whose last bytes are `tail` ends with a complete member or frame. `None` if no complete one begins in `tail`, or
/// if other bytes follow it.
pub fn ends_whole(codec: Codec, tail: &[u8]) -> Option<bool> {
    let magic: &[u8] = match codec {
        // The third byte is the only compression method (deflate).
        Codec::Gzip => &[0x1f, 0x8b, 8],
        Codec::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
    };
    let mut starts = memchr::memmem::rfind_iter(tail, magic).take(STARTS_MAX);
    starts.find_map(|start| {
        let members = tail.get(start..).unwrap_or_default();
        let whole = whole_bytes(codec, members);
        let after = members.get(whole..).unwrap_or_default();
        let begins = after.starts_with(magic) || magic.starts_with(after);
        match whole {
            // The magic bytes may also occur in the data of a member. The data may even contain a complete member.
            0 => None,
            _ => begins.then_some(after.is_empty()),
        }
    })
}

/// The compression of a file that begins with `head`, if any.
pub fn codec_of(head: &[u8]) -> Option<Codec> {
    match head {
        [0x1f, 0x8b, ..] => Some(Codec::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Codec::Zstd),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflated(codec: Codec, input: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(1 << 22);
        let done = Inflater::new(codec).unwrap().inflate(input, &mut output);
        assert_eq!(done, Ok(Inflated::Done));
        output
    }

    #[test]
    fn a_file_up_to_the_end_of_any_member_is_a_complete_stream() {
        let text: Vec<u8> = (0..200_000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        for codec in [Codec::Gzip, Codec::Zstd] {
            let mut members = Members::new(codec).unwrap();
            let (mut output, mut ends) = (b"before".to_vec(), vec![]);
            for part in text.chunks(700_001) {
                let (a, b) = part.split_at(part.len() / 3);
                members.append(&[a, &[], b], &mut output).unwrap();
                ends.push(output.len());
            }
            members.append(&[b""; 0], &mut output).unwrap();
            assert_eq!(codec_of(&output[6..]), Some(codec));
            assert!(inflated(codec, &output[6..]) == text);
            for (n, end) in ends.iter().enumerate() {
                let length = text.len().min((n + 1) * 700_001);
                assert!(inflated(codec, &output[6..*end]) == text[..length]);
            }
            let (mut again, (a, b)) = (Vec::new(), text[..700_001].split_at(700_001 / 3));
            members.append(&[a, &[], b], &mut again).unwrap();
            assert!(
                again == output[6..ends[0]],
                "the same parts are the same member"
            );
        }
    }

    #[test]
    fn a_torn_member_is_detected_at_any_length() {
        for codec in [Codec::Gzip, Codec::Zstd] {
            let mut members = Members::new(codec).unwrap();
            let (mut output, mut ends) = (Vec::new(), vec![0]);
            for n in 0..4 {
                let text = format!("member {n} ").repeat(20 * n + 1);
                members.append(&[text.as_bytes()], &mut output).unwrap();
                ends.push(output.len());
            }
            for length in 0..=output.len() {
                let whole = ends.iter().rfind(|end| **end <= length);
                assert_eq!(Some(&whole_bytes(codec, &output[..length])), whole);
            }
            for (start, length) in [(0, output.len()), (7, output.len()), (7, output.len() - 3)] {
                let tail = &output[start..length];
                let expected = Some(length == output.len());
                assert_eq!(ends_whole(codec, tail), expected, "{start}..{length}");
            }
            for length in 1..ends[1] {
                assert_eq!(ends_whole(codec, &output[..length]), None);
            }
            output[ends[2] + 15] ^= 0x55;
            assert_eq!(whole_bytes(codec, &output), ends[2]);
            assert_eq!(whole_bytes(codec, b"no stream"), 0);
        }
    }

    #[test]
    fn a_member_that_contains_another_one_is_complete() {
        let mut random = 1_u64;
        let mut noise = Vec::new();
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            noise.extend(&random.to_be_bytes()[..4]);
        }
        for codec in [Codec::Gzip, Codec::Zstd] {
            let mut members = Members::new(codec).unwrap();
            let (mut inner, mut output) = (Vec::new(), Vec::new());
            members.append(&[&b"inner"[..]], &mut inner).unwrap();
            members
                .append(&[&noise, &inner, &noise], &mut output)
                .unwrap();
            assert_eq!(ends_whole(codec, &output), Some(true));
            assert_eq!(ends_whole(codec, &output[..output.len() - 1]), None);
        }
    }
}
