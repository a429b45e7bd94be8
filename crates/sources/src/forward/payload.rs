//! Payloads with a buffer of their own: long ones, compressed ones, those of other Millstreams, and those with faults.

use std::sync::Arc;

use bytes::Bytes;
use millstream_record::{Batch, ChunkOrigin, Claim, Encoding, Origin, Tag};
use millstream_wire::{
    compression::{Codec, Inflated, Inflater, size_claimed},
    forward::{Check, Compressed, Options, Signal, sift},
    msgpack::Reader,
};

use super::{
    end::End,
    outgoing::{Outgoing, checksum},
    poison::Key,
};
use crate::connection::patiently;

/// Bad values of one payload are set aside one by one up to so many; more as one: each costs a hundred bytes.
const REJECTED_SINGLY_MAX: u32 = 1024;
/// A payload may claim to become so many times larger when it is decompressed; logs become about ten times larger. Beyond
/// that it has to show it.
const INFLATE_FACTOR_MAX: usize = 32;
/// What a payload that claims nothing is taken to become.
pub(super) const INFLATE_FACTOR: usize = 4;
/// A buffer has so much more room than it needs, so that its end is found without another one.
const SPARE_BYTES: usize = 64;

/// A payload that is whole.
pub(super) struct Arrived {
    pub tag: Tag,
    pub encoding: Encoding,
    pub body: Bytes,
    /// What was found in it, if it is not compressed.
    pub check: Check,
    /// Whether it could be read to its end.
    pub sound: bool,
    /// Its memory.
    pub claim: Claim,
}

/// What stands in a payload.
struct Content {
    body: Bytes,
    check: Check,
    sound: bool,
}

impl Outgoing {
    /// Takes a payload whose option map is known. Nothing is gathered before it.
    pub(super) async fn payload(
        &mut self,
        arrived: Arrived,
        options: &Options<'_>,
    ) -> Result<(), End> {
        self.note_asked(options.chunk);
        let Arrived {
            tag,
            encoding,
            body,
            check,
            sound,
            claim,
        } = arrived;
        if options.signal != Signal::Logs {
            let reason = "metrics or traces of Fluent Bit: no records";
            return self.set_aside(tag, &body, reason, options).await;
        }
        let codec = match options.compressed {
            Compressed::No => None,
            Compressed::Gzip => Some(Codec::Gzip),
            Compressed::Zstd => Some(Codec::Zstd),
            Compressed::Unknown => {
                let reason = "`compressed` names something else than text, gzip and zstd";
                return self.broken(tag, &body, reason, options).await;
            }
        };
        let content = match codec {
            None => Content {
                body: body.clone(),
                check,
                sound,
            },
            Some(codec) => match self.inflate(codec, encoding, &body, &claim).await? {
                Ok(content) => content,
                Err(reason) => return self.broken(tag, &body, &reason, options).await,
            },
        };
        let whole = content.sound && content.check.whole() == content.body.len();
        if !whole && self.refuses(&body, options) {
            return Err(End::Poisoned(fault(&content)));
        }
        if !whole || content.check.misfits() > 0 {
            return self
                .sort((tag, encoding), &body, content, options, &claim)
                .await;
        }
        if content.body.is_empty() {
            self.answer(Vec::new(), options.chunk).await;
            return Ok(());
        }
        let (records, plain) = (content.check.records(), content.check.is_plain());
        let batch = Batch {
            plain,
            ..self.batch(tag, encoding, content.body, records, &body, options)
        };
        let receipt = self.send(batch, options.chunk.is_some()).await;
        self.answer(vec![receipt], options.chunk).await;
        Ok(())
    }

    /// The batch that `received` became.
    fn batch(
        &self,
        tag: Tag,
        encoding: Encoding,
        body: Bytes,
        records: u32,
        received: &[u8],
        options: &Options<'_>,
    ) -> Batch {
        let origin = options.chunk.filter(|_| self.shared.durable).map(|id| {
            Origin::Chunk(ChunkOrigin {
                id: Bytes::copy_from_slice(id),
                connection: self.number,
                length: received.len() as u32,
                checksum: checksum(received),
                start: 0,
                end: body.len() as u32,
                records,
            })
        });
        let values = match &options.values {
            None => self.values.clone(),
            Some(values) => {
                let mut values = values.clone();
                for (name, text) in self.values.iter() {
                    if name == "peer" || values.get(name).is_none() {
                        values.set(name, text);
                    }
                }
                Arc::new(values)
            }
        };
        Batch {
            tag,
            plain: false,
            encoding,
            body,
            count: records,
            received: options.received.unwrap_or(self.now),
            values,
            origins: origin.into_iter().collect(),
        }
    }

    /// A payload with faults that is taken apart: what is good goes on, the rest is set aside, then it is acked.
    async fn sort(
        &mut self,
        (tag, encoding): (Tag, Encoding),
        received: &Bytes,
        content: Content,
        options: &Options<'_>,
        claim: &Claim,
    ) -> Result<(), End> {
        let end = content.check.whole();
        let rest = content.body.slice(end..);
        let (mut good, mut records) = (content.body.slice(..end), content.check.records());
        let mut bad = Bytes::new();
        let mut misfits = 0;
        if encoding == Encoding::Packed && content.check.misfits() > 0 {
            let mut sifted = self.memory(end, Some(claim)).await?;
            let mut misfit = self.shared.context.pool.take(end);
            let counts = sift(
                &good,
                options.received.unwrap_or(self.now),
                &mut sifted,
                &mut misfit,
            );
            (good, bad) = (sifted.freeze(), misfit.freeze());
            (records, misfits) = (counts.good, counts.bad);
        }
        let mut receipts = Vec::new();
        if !bad.is_empty() || !rest.is_empty() {
            let reason = fault(&content);
            let singly = (misfits <= REJECTED_SINGLY_MAX)
                .then(|| values(&bad))
                .into_iter()
                .flatten();
            let at_once = (misfits > REJECTED_SINGLY_MAX).then_some(&bad[..]);
            let items = singly
                .chain(at_once)
                .chain((!rest.is_empty()).then_some(&rest[..]));
            receipts.push(
                self.reject(tag.clone(), items, &reason, options.chunk)
                    .await,
            );
        }
        if records > 0 {
            let batch = Batch {
                plain: content.check.is_plain(),
                ..self.batch(tag, encoding, good, records, received, options)
            };
            receipts.push(self.send(batch, options.chunk.is_some()).await);
        }
        self.answer(receipts, options.chunk).await;
        Ok(())
    }

    /// A payload of which nothing can be read: refused a few times, then set aside whole.
    async fn broken(
        &mut self,
        tag: Tag,
        body: &Bytes,
        reason: &str,
        options: &Options<'_>,
    ) -> Result<(), End> {
        if self.refuses(body, options) {
            return Err(End::Poisoned(reason.to_owned()));
        }
        self.set_aside(tag, body, reason, options).await
    }

    async fn set_aside(
        &mut self,
        tag: Tag,
        body: &Bytes,
        reason: &str,
        options: &Options<'_>,
    ) -> Result<(), End> {
        let receipt = self.reject(tag, [&body[..]], reason, options.chunk).await;
        self.answer(vec![receipt], options.chunk).await;
        Ok(())
    }

    /// Whether to refuse it this time. Without an id nobody would send it again.
    fn refuses(&self, body: &[u8], options: &Options<'_>) -> bool {
        options.chunk.is_some_and(|id| {
            self.shared.poison.refuses(Key {
                id: id.to_vec(),
                length: body.len(),
                checksum: checksum(body),
            })
        })
    }

    /// What a compressed payload holds, or why it cannot be told.
    async fn inflate(
        &self,
        codec: Codec,
        encoding: Encoding,
        input: &[u8],
        claim: &Claim,
    ) -> Result<Result<Content, String>, End> {
        let bytes_max = self.shared.decompressed_bytes_max;
        let claimed = size_claimed(codec, input).unwrap_or(input.len() * INFLATE_FACTOR);
        let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
        let room = |bytes: usize| bytes.min(bytes_max) + SPARE_BYTES;
        let mut output = self.memory(room(guess), Some(claim)).await?;
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
            // A buffer that is full to its bound has more than that.
            if output.len() > bytes_max {
                let reason = format!(
                    "it has more than {bytes_max} bytes when decompressed (limits.decompressed)"
                );
                return Ok(Err(reason));
            }
            sound = sound && check.feed(&output).is_ok();
            if inflated == Inflated::Done {
                return Ok(Ok(Content {
                    body: output.freeze(),
                    check,
                    sound,
                }));
            }
            let larger = room(output.capacity() * 2);
            let grown = patiently(output.grow_more(claim, larger)).await;
            if grown != Some(true) {
                return Err(End::NoMemory);
            }
            // Other connections of this thread wait.
            tokio::task::yield_now().await;
        }
    }
}

/// The single values of a stream that is whole.
fn values(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(stream);
    std::iter::from_fn(move || reader.value().ok())
}

fn fault(content: &Content) -> String {
    let end = content.check.whole();
    if !content.sound {
        format!("the payload is not MessagePack behind byte {end}")
    } else if end < content.body.len() {
        format!("the payload ends within the record that begins at byte {end}")
    } else {
        "an entry that is no [time, record]".to_owned()
    }
}
