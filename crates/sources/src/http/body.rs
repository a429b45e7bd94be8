//! Reads the body of a request within its limits, and decompresses it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode, body::Incoming, header::CONTENT_LENGTH};
use millstream_record::{Buffer, Claim};
use millstream_wire::compression::{
    Codec, InflateError, Inflated, Inflater, codec_of, size_claimed,
};
use tokio::time::timeout;

use super::{
    answer::Refusal,
    endpoint::Endpoint,
    memory::{RequestMemory, SPARE_BYTES},
    unpack::{Fault, Packing},
};
use crate::{connection::Progress, rest::Rest};

/// A compressed body may state its decompressed size. This constant limits the memory that is reserved in advance: to this many
/// times the size of the compressed body. If the content is larger, more memory is reserved step by step.
const INFLATE_FACTOR_MAX: usize = 32;
/// The assumed growth factor of a body that does not state its decompressed size.
const INFLATE_FACTOR: usize = 4;
/// The maximum time for which the rest of a rejected body is read.
const LINGER: Duration = Duration::from_secs(2);
/// Spare space in a buffer. With it, the decompressor can detect the end of the text without a larger buffer.
const END_BYTES: usize = 64;

/// The compression of a body (`Content-Encoding`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
    /// zlib's format, which is called `deflate` or `zlib`.
    Deflate,
    Snappy,
    Lz4,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
        }
    }

    /// The format, if it is decompressed at once.
    fn packing(self) -> Option<Packing> {
        match self {
            Self::Snappy => Some(Packing::Snappy),
            Self::Lz4 => Some(Packing::Lz4),
            Self::Gzip | Self::Zstd | Self::Deflate => None,
        }
    }

    fn inflater(self) -> Option<Inflater> {
        match self {
            Self::Gzip => Inflater::new(Codec::Gzip),
            Self::Zstd => Inflater::new(Codec::Zstd),
            Self::Deflate => Some(Inflater::zlib()),
            Self::Snappy | Self::Lz4 => None,
        }
    }

    /// The decompressed size that the body states, if it states one.
    fn size_claimed(self, body: &[u8]) -> Option<usize> {
        match self {
            Self::Gzip => size_claimed(Codec::Gzip, body),
            Self::Zstd => size_claimed(Codec::Zstd, body),
            Self::Deflate | Self::Snappy | Self::Lz4 => None,
        }
    }
}

/// A body that was read, and the claim on memory of its request.
pub(super) struct ReceivedBody {
    pub(super) body: Rest,
    pub(super) claim: Claim,
}

/// Reads the body of a request, without decompressing it.
pub(super) async fn read(
    request: Request<Incoming>,
    codec: Option<Encoding>,
    endpoint: &Endpoint,
) -> Result<ReceivedBody, Refusal> {
    let length = request.headers().get(CONTENT_LENGTH);
    let length: Option<u64> = length.and_then(|text| text.to_str().ok()?.parse().ok());
    let frame_bytes_max = endpoint.frame_bytes_max;
    if length.is_some_and(|bytes| bytes > frame_bytes_max as u64) {
        return Err(Refusal::too_large(frame_bytes_max, "limits.frame"));
    }
    // The length is at most `frame_bytes_max`.
    let length = length.map(|length| usize::try_from(length).unwrap_or(frame_bytes_max));
    let mut read = ReceivedBody {
        body: length.map_or_else(Rest::default, Rest::expecting),
        claim: endpoint
            .context
            .pool
            .claim(length.map_or(0, |length| memory_of(length, codec))),
    };
    let filling = fill(&mut read, request.into_body(), endpoint);
    let idle = endpoint.patience.idle;
    let filled = match idle.is_zero() {
        true => filling.await,
        false => timeout(idle, filling)
            .await
            .unwrap_or_else(|_| Err(late("was not complete within limits.idle"))),
    };
    filled.map(|()| read)
}

/// The memory that a request may need, in bytes: for its body, the decompressed body, and its records.
fn memory_of(length: usize, codec: Option<Encoding>) -> usize {
    let text = match codec {
        None => 0,
        Some(_) => length.saturating_mul(INFLATE_FACTOR),
    };
    let records = text.max(length) + SPARE_BYTES;
    length.saturating_add(text).saturating_add(records)
}

fn late(text: &str) -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, format!("the request {text}"))
}

async fn fill(
    read: &mut ReceivedBody,
    mut body: Incoming,
    endpoint: &Endpoint,
) -> Result<(), Refusal> {
    let refusal = match append_all(read, &mut body, endpoint).await {
        Ok(()) => return Ok(()),
        Err(refusal) => refusal,
    };
    // Frees the memory immediately, then reads the rest: many clients read the answer only after they have sent the whole body.
    read.body.clear();
    let _ = timeout(LINGER, pass_over(&mut body, endpoint.frame_bytes_max)).await;
    Err(refusal)
}

/// Reads and drops up to `bytes_max` bytes of a rejected body. Closing a connection with unread bytes would discard the answer.
async fn pass_over(body: &mut Incoming, bytes_max: usize) {
    let mut passed = 0;
    while passed < bytes_max
        && let Some(Ok(frame)) = body.frame().await
    {
        passed += frame.data_ref().map_or(0, Bytes::len);
    }
}

async fn append_all(
    read: &mut ReceivedBody,
    body: &mut Incoming,
    endpoint: &Endpoint,
) -> Result<(), Refusal> {
    let mut progress = Progress::new(endpoint.context.pool.clone(), endpoint.patience.progress);
    loop {
        let next = progress.wait(read.body.held(), body.frame()).await;
        let slow = |_| late("delivers too few bytes per second (limits.progress)");
        let Some(frame) = next.map_err(slow)? else {
            return Ok(());
        };
        let broken = |error: hyper::Error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        progress.came(data.len());
        endpoint.meters.bytes_received.add(data.len() as u64);
        if read.body.bytes().len() + data.len() > endpoint.frame_bytes_max {
            return Err(Refusal::too_large(endpoint.frame_bytes_max, "limits.frame"));
        }
        if !read.body.append(&data, &read.claim, endpoint.wait).await {
            return Err(Refusal::no_memory(endpoint.wait));
        }
    }
}

/// Decompresses a body.
pub(super) async fn inflate(
    codec: Encoding,
    input: &[u8],
    memory: RequestMemory<'_>,
) -> Result<Buffer, Refusal> {
    if let Some(packing) = codec.packing() {
        return unpack(codec, packing, input, memory).await;
    }
    let endpoint = memory.endpoint;
    let bytes_max = endpoint.decompressed_bytes_max;
    let claimed = codec
        .size_claimed(input)
        .unwrap_or(input.len() * INFLATE_FACTOR);
    let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
    let room = |bytes: usize| bytes.min(bytes_max) + END_BYTES;
    let mut output = memory.reserve(room(guess)).await?;
    let Some(mut inflater) = codec.inflater() else {
        return Err(Refusal::no_memory(endpoint.wait));
    };
    loop {
        let inflated = inflater
            .inflate(input, &mut output)
            .map_err(|error| cannot_inflate(codec, error))?;
        // The buffer has more space than the limit, so a text beyond the limit is noticed here.
        if output.len() > bytes_max {
            return Err(Refusal::too_large(bytes_max, "limits.decompressed"));
        }
        if inflated == Inflated::Done {
            return Ok(output);
        }
        let bytes = output.capacity();
        memory.enlarge(&mut output, bytes).await?;
        // Let other connections of this thread run.
        tokio::task::yield_now().await;
    }
}

/// Decompresses a body whose format is decompressed at once.
async fn unpack(
    codec: Encoding,
    packing: Packing,
    input: &[u8],
    memory: RequestMemory<'_>,
) -> Result<Buffer, Refusal> {
    let bytes_max = memory.endpoint.decompressed_bytes_max;
    let refused = |fault| match fault {
        Fault::Corrupt => cannot_inflate(codec, InflateError::Corrupt),
        Fault::Truncated => cannot_inflate(codec, InflateError::Truncated),
        Fault::TooLarge => Refusal::too_large(bytes_max, "limits.decompressed"),
    };
    let bytes = packing.measure(input, bytes_max).map_err(refused)?;
    let mut output = memory.reserve(bytes + END_BYTES).await?;
    output.resize(bytes, 0);
    packing.unpack(input, &mut output).map_err(refused)?;
    Ok(output)
}

fn cannot_inflate(codec: Encoding, error: InflateError) -> Refusal {
    let name = codec.name();
    let text = match error {
        InflateError::Corrupt => format!(
            "the request has `Content-Encoding: {name}`, but its body is not {name}, or it is damaged"
        ),
        InflateError::Truncated => {
            format!(
                "the body, `Content-Encoding: {name}`, ends before its {name} data are complete"
            )
        }
    };
    Refusal::new(StatusCode::BAD_REQUEST, text)
}

/// Rejects a compressed body without a `Content-Encoding`.
pub(super) fn check_plain(body: &[u8]) -> Result<(), Refusal> {
    let name = match codec_of(body) {
        None => return Ok(()),
        Some(Codec::Gzip) => Encoding::Gzip.name(),
        Some(Codec::Zstd) => Encoding::Zstd.name(),
    };
    let text = format!("the body is {name}: send it with the header `Content-Encoding: {name}`");
    Err(Refusal::new(StatusCode::BAD_REQUEST, text))
}
