//! The content of a payload: decompressed and checked.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `read -> [decode] -> send -> keep`

use bytes::Bytes;
use millstream_record::{Claim, Encoding};
use millstream_wire::{
    compression::{Codec, Inflated, Inflater, size_claimed},
    forward::Check,
};

use super::{end::End, outgoing::Outgoing};
use crate::connection::patiently;

/// Maximum growth factor for the first buffer, even if a compressed payload states a larger decompressed size. Logs grow about
/// tenfold. If the content turns out to be larger than the buffer, more memory is reserved step by step.
const INFLATE_FACTOR_MAX: usize = 32;
/// The assumed growth factor of a payload that does not state its decompressed size.
pub(super) const INFLATE_FACTOR: usize = 4;
/// Spare space in a buffer, so that the decompressor reaches the end of the content without another buffer.
const SPARE_BYTES: usize = 64;

/// The content of a payload.
pub(super) struct Content {
    pub(super) body: Bytes,
    /// The result of checking `body`.
    pub(super) check: Check,
    /// Whether `body` is MessagePack to its end.
    pub(super) sound: bool,
}

impl Content {
    /// Decompresses `input`. The inner error is a fault of the payload, the outer one ends the connection.
    pub(super) async fn inflate(
        out: &Outgoing,
        codec: Codec,
        encoding: Encoding,
        input: &[u8],
        claim: &Claim,
    ) -> Result<Result<Self, String>, End> {
        let bytes_max = out.service.decompressed_bytes_max;
        let claimed = size_claimed(codec, input).unwrap_or(input.len() * INFLATE_FACTOR);
        let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
        let room = |bytes: usize| bytes.min(bytes_max) + SPARE_BYTES;
        let mut output = out.memory(room(guess), claim).await?;
        let Some(mut inflater) = Inflater::new(codec) else {
            return Err(End::NoMemory);
        };
        let mut check = Check::new(encoding);
        let mut sound = true;
        loop {
            let inflated = match inflater.inflate(input, &mut output) {
                Ok(inflated) => inflated,
                Err(error) => return Ok(Err(error.to_string())),
            };
            // The buffer has more space than the limit, so content beyond the limit is noticed here.
            if output.len() > bytes_max {
                let reason = format!(
                    "it has more than {bytes_max} bytes when decompressed (limits.decompressed)"
                );
                return Ok(Err(reason));
            }
            sound = sound && check.feed(&output).is_ok();
            if inflated == Inflated::Done {
                return Ok(Ok(Self {
                    body: output.freeze(),
                    check,
                    sound,
                }));
            }
            let larger = room(output.capacity() * 2);
            if patiently(output.grow_more(claim, larger)).await != Some(true) {
                return Err(End::NoMemory);
            }
            // Let other connections of this thread run.
            tokio::task::yield_now().await;
        }
    }

    /// Whether the content consists of complete entries.
    pub(super) fn is_whole(&self) -> bool {
        self.sound && self.check.whole() == self.body.len()
    }

    /// Describes the fault of the content.
    pub(super) fn fault(&self) -> String {
        let end = self.check.whole();
        if !self.sound {
            format!("the payload is not MessagePack after byte {end}")
        } else if end < self.body.len() {
            format!("the payload ends within the record that begins at byte {end}")
        } else {
            "an entry that is not [time, record]".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_described_with_its_byte_offset() {
        let content = |bytes: &'static [u8]| {
            let mut check = Check::new(Encoding::Packed);
            let sound = check.feed(bytes).is_ok();
            let body = Bytes::from_static(bytes);
            Content { body, check, sound }
        };
        assert!(content(b"\x92\x01\x80").is_whole());
        let cut = content(b"\x92\x01\x80\x92");
        assert!(!cut.is_whole());
        assert!(
            cut.fault()
                .ends_with("within the record that begins at byte 3")
        );
        let invalid = content(b"\x92\x01\x80\xc1");
        assert!(!invalid.is_whole() && invalid.fault().contains("after byte 3"));
    }
}
