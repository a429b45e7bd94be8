//! The body of a request: read completely within its limits, then decompressed.

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
};
use crate::{connection::Progress, rest::Rest};

/// A body may claim to become at most this many times larger by decompression; more memory is reserved only as it does.
const INFLATE_FACTOR_MAX: usize = 32;
/// The assumed factor for a body that claims nothing.
const INFLATE_FACTOR: usize = 4;
/// How long the rest of a rejected body is still read.
const LINGER: Duration = Duration::from_secs(2);
/// A buffer is this much larger than its text, so that the end is found without another buffer.
const END_BYTES: usize = 64;

/// A body that was read, and the claim to memory of its request.
pub(super) struct ReceivedBody {
    pub(super) body: Rest,
    pub(super) claim: Claim,
}

/// Reads the body of a request, without decompressing it.
pub(super) async fn read(
    request: Request<Incoming>,
    codec: Option<Codec>,
    endpoint: &Endpoint,
) -> Result<ReceivedBody, Refusal> {
    let length = request.headers().get(CONTENT_LENGTH);
    let length: Option<u64> = length.and_then(|text| text.to_str().ok()?.parse().ok());
    let frame_bytes_max = endpoint.frame_bytes_max;
    if length.is_some_and(|bytes| bytes > frame_bytes_max as u64) {
        return Err(Refusal::too_large(frame_bytes_max, "limits.frame"));
    }
    // At most `frame_bytes_max`.
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

/// The memory that a request may need: for its body, the decompressed body, and its records.
fn memory_of(length: usize, codec: Option<Codec>) -> usize {
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
    // Frees its memory at once. The client reads the answer only when it has sent everything.
    read.body.clear();
    let _ = timeout(LINGER, pass_over(&mut body, endpoint.frame_bytes_max)).await;
    Err(refusal)
}

/// Reads up to `bytes_max` bytes of a rejected body: closing a connection with unread bytes would destroy the answer.
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
    codec: Codec,
    input: &[u8],
    memory: RequestMemory<'_>,
) -> Result<Buffer, Refusal> {
    let endpoint = memory.endpoint;
    let bytes_max = endpoint.decompressed_bytes_max;
    let claimed = size_claimed(codec, input).unwrap_or(input.len() * INFLATE_FACTOR);
    let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
    let room = |bytes: usize| bytes.min(bytes_max) + END_BYTES;
    let mut output = memory.reserve(room(guess)).await?;
    let Some(mut inflater) = Inflater::new(codec) else {
        return Err(Refusal::no_memory(endpoint.wait));
    };
    loop {
        let inflated = inflater
            .inflate(input, &mut output)
            .map_err(|error| cannot_inflate(codec, error))?;
        // A buffer that is full at its limit has more text.
        if output.len() > bytes_max {
            return Err(Refusal::too_large(bytes_max, "limits.decompressed"));
        }
        if inflated == Inflated::Done {
            return Ok(output);
        }
        let bytes = output.capacity();
        memory.enlarge(&mut output, bytes).await?;
        // Lets other connections of this thread run.
        tokio::task::yield_now().await;
    }
}

fn cannot_inflate(codec: Codec, error: InflateError) -> Refusal {
    let name = encoding(codec);
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

/// Rejects a compressed body whose request does not declare it.
pub(super) fn check_plain(body: &[u8]) -> Result<(), Refusal> {
    let Some(codec) = codec_of(body) else {
        return Ok(());
    };
    let name = encoding(codec);
    let text = format!("the body is {name}: send it with the header `Content-Encoding: {name}`");
    Err(Refusal::new(StatusCode::BAD_REQUEST, text))
}

/// The codec as `Content-Encoding` names it.
fn encoding(codec: Codec) -> &'static str {
    match codec {
        Codec::Gzip => "gzip",
        Codec::Zstd => "zstd",
    }
}
