//! The body of a request: read whole within its bounds, then decompressed.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode, body::Incoming, header::CONTENT_LENGTH};
use millstream_record::Buffer;
use millstream_wire::compression::{
    Codec, InflateError, Inflated, Inflater, codec_of, size_claimed,
};
use tokio::time::timeout;

use super::{Shared, answer::Refusal};
use crate::rest::Rest;

/// A body may claim to become so many times larger when it is decompressed; beyond that it has to show it.
const INFLATE_FACTOR_MAX: usize = 32;
/// What a body that claims nothing is taken to become.
const INFLATE_FACTOR: usize = 4;
/// How long the rest of a body that is refused is still read.
const LINGER: Duration = Duration::from_secs(2);
/// A buffer has so much more room than it needs, so that its end is found without another one.
const SPARE_BYTES: usize = 64;

/// Reads the body as it comes.
pub(super) async fn read(request: Request<Incoming>, shared: &Shared) -> Result<Rest, Refusal> {
    let claimed = request.headers().get(CONTENT_LENGTH);
    let claimed: Option<u64> = claimed.and_then(|text| text.to_str().ok()?.parse().ok());
    if claimed.is_some_and(|bytes| bytes > shared.frame_bytes_max as u64) {
        return Err(too_large(shared.frame_bytes_max, "limits.frame"));
    }
    let reading = collect(request.into_body(), shared);
    if shared.idle.is_zero() {
        return reading.await;
    }
    timeout(shared.idle, reading).await.unwrap_or_else(|_| {
        let text = "the request did not come whole within limits.idle";
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text))
    })
}

async fn collect(mut body: Incoming, shared: &Shared) -> Result<Rest, Refusal> {
    let mut read = Rest::default();
    let refusal = match fill(&mut read, &mut body, shared).await {
        Ok(()) => return Ok(read),
        Err(refusal) => refusal,
    };
    // What it holds goes back at once; the answer is read by those who have sent everything.
    drop(read);
    let _ = timeout(LINGER, pass_over(&mut body, shared.frame_bytes_max)).await;
    Err(refusal)
}

/// Reads up to `bytes_max` bytes of a body that is refused: closing over unread bytes would destroy the answer.
async fn pass_over(body: &mut Incoming, bytes_max: usize) {
    let mut passed = 0;
    while passed < bytes_max
        && let Some(Ok(frame)) = body.frame().await
    {
        passed += frame.data_ref().map_or(0, Bytes::len);
    }
}

async fn fill(read: &mut Rest, body: &mut Incoming, shared: &Shared) -> Result<(), Refusal> {
    while let Some(frame) = body.frame().await {
        let broken = |error: hyper::Error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        shared.meters.bytes_received.add(data.len() as u64);
        if read.bytes().len() + data.len() > shared.frame_bytes_max {
            return Err(too_large(shared.frame_bytes_max, "limits.frame"));
        }
        let pool = &shared.context.pool;
        if !read.append(&data, pool, shared.wait).await {
            return Err(no_memory(shared));
        }
    }
    Ok(())
}

/// What a compressed body holds.
pub(super) async fn inflate(
    codec: Codec,
    input: &[u8],
    shared: &Shared,
) -> Result<Buffer, Refusal> {
    let bytes_max = shared.decompressed_bytes_max;
    let claimed = size_claimed(codec, input).unwrap_or(input.len() * INFLATE_FACTOR);
    let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
    let room = |bytes: usize| bytes.min(bytes_max) + SPARE_BYTES;
    let mut output = memory(room(guess), shared).await?;
    let Some(mut inflater) = Inflater::new(codec) else {
        return Err(no_memory(shared));
    };
    loop {
        let inflated = inflater
            .inflate(input, &mut output)
            .map_err(|error| cannot_inflate(codec, error))?;
        // A buffer that is full to its bound has more than that.
        if output.len() > bytes_max {
            return Err(too_large(bytes_max, "limits.decompressed"));
        }
        if inflated == Inflated::Done {
            return Ok(output);
        }
        output = enlarge(&output, output.capacity(), shared).await?;
        // Other connections of this thread wait.
        tokio::task::yield_now().await;
    }
}

fn cannot_inflate(codec: Codec, error: InflateError) -> Refusal {
    let name = encoding(codec);
    let text = match error {
        InflateError::Corrupt => format!(
            "the request says `Content-Encoding: {name}`, but its body is not {name}, or it is damaged"
        ),
        InflateError::Truncated => {
            format!(
                "the body, `Content-Encoding: {name}`, ends before its {name} data are complete"
            )
        }
    };
    Refusal::new(StatusCode::BAD_REQUEST, text)
}

/// Refuses a body that is compressed although its request does not say so.
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

/// A buffer with room for so many bytes more, and at least twice as large.
pub(super) async fn enlarge(
    buffer: &Buffer,
    bytes: usize,
    shared: &Shared,
) -> Result<Buffer, Refusal> {
    let wanted = (buffer.len() + bytes).max(buffer.capacity() * 2);
    let mut larger = memory(wanted, shared).await?;
    larger.extend_from_slice(buffer);
    Ok(larger)
}

/// A buffer of the pool, unless there is none for a while.
pub(super) async fn memory(bytes: usize, shared: &Shared) -> Result<Buffer, Refusal> {
    timeout(shared.wait, shared.context.pool.reserve(bytes))
        .await
        .map_err(|_| no_memory(shared))
}

pub(super) fn too_large(bytes_max: usize, option: &str) -> Refusal {
    let text = format!("more than {bytes_max} bytes ({option})");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn no_memory(shared: &Shared) -> Refusal {
    let text = "all memory for what comes in is taken (memory_max)";
    Refusal::later(StatusCode::TOO_MANY_REQUESTS, text, retry(shared))
}

/// When to try again.
pub(super) fn retry(shared: &Shared) -> Duration {
    shared.wait
}
