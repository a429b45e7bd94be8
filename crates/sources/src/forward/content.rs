//! The content of a payload: decompressed and checked.
//!
//! `read -> [decode] -> send -> keep`

use bytes::Bytes;
use millstream_record::{Claim, Encoding};
use millstream_wire::{
    compression::{Codec, Inflated, Inflater, size_claimed},
    forward::Check,
};

use super::{end::End, outgoing::Outgoing};
use crate::connection::patiently;

/// The most by which a payload may claim to grow when it is decompressed, as a factor; logs grow about tenfold. Beyond it memory
/// is reserved as bytes appear.
const INFLATE_FACTOR_MAX: usize = 32;
/// The factor by which a payload that claims nothing is expected to grow.
pub(super) const INFLATE_FACTOR: usize = 4;
/// Spare room in a buffer, so that the end of the content is found without another one.
const SPARE_BYTES: usize = 64;

/// The content of a payload.
pub(super) struct Content {
    pub(super) body: Bytes,
    /// What was found in `body`.
    pub(super) check: Check,
    /// Whether `body` could be read to its end.
    pub(super) sound: bool,
}

impl Content {
    /// Decompresses `input`; the inner error says why that is impossible.
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
        let mut output = out.memory(room(guess), Some(claim)).await?;
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
            // A buffer that is filled beyond its limit has more than that.
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
            // Other connections of this thread wait.
            tokio::task::yield_now().await;
        }
    }

    /// Whether it consists of whole values.
    pub(super) fn is_whole(&self) -> bool {
        self.sound && self.check.whole() == self.body.len()
    }

    /// What is wrong with it.
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
