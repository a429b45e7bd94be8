//! The body of a request: read whole within its bounds, then decompressed.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode, body::Incoming, header::CONTENT_LENGTH};
use millstream_record::{Buffer, Claim};
use millstream_wire::compression::{
    Codec, InflateError, Inflated, Inflater, codec_of, size_claimed,
};
use tokio::time::timeout;

use super::{Shared, answer::Refusal, decode};
use crate::{connection::Progress, rest::Rest};

/// A body may claim to become so many times larger when it is decompressed; beyond that it has to show it.
const INFLATE_FACTOR_MAX: usize = 32;
/// What a body that claims nothing is taken to become.
const INFLATE_FACTOR: usize = 4;
/// How long the rest of a body that is refused is still read.
const LINGER: Duration = Duration::from_secs(2);
/// A buffer has so much more room than it needs, so that its end is found without another one.
const SPARE_BYTES: usize = 64;

/// A body that was read, and the memory of its request.
pub(super) struct Read {
    pub(super) body: Rest,
    pub(super) claim: Claim,
}

/// Reads the body as it comes. `codec`: its compression.
pub(super) async fn read(
    request: Request<Incoming>,
    codec: Option<Codec>,
    shared: &Shared,
) -> Result<Read, Refusal> {
    let length = request.headers().get(CONTENT_LENGTH);
    let length: Option<u64> = length.and_then(|text| text.to_str().ok()?.parse().ok());
    let frame_bytes_max = shared.frame_bytes_max;
    if length.is_some_and(|bytes| bytes > frame_bytes_max as u64) {
        return Err(too_large(frame_bytes_max, "limits.frame"));
    }
    // At most `frame_bytes_max`.
    let length = length.map(|length| usize::try_from(length).unwrap_or(frame_bytes_max));
    let mut read = Read {
        body: length.map_or_else(Rest::default, Rest::expecting),
        claim: shared
            .context
            .pool
            .claim(length.map_or(0, |length| memory_of(length, codec))),
    };
    let filling = fill(&mut read, request.into_body(), shared);
    let idle = shared.patience.idle;
    let filled = match idle.is_zero() {
        true => filling.await,
        false => timeout(idle, filling)
            .await
            .unwrap_or_else(|_| Err(late("did not come whole within limits.idle"))),
    };
    filled.map(|()| read)
}

/// What a request may take: its body, what that is without its compression, and its records.
fn memory_of(length: usize, codec: Option<Codec>) -> usize {
    let text = match codec {
        None => 0,
        Some(_) => length.saturating_mul(INFLATE_FACTOR),
    };
    let records = text.max(length) + decode::SPARE_BYTES;
    length.saturating_add(text).saturating_add(records)
}

fn late(text: &str) -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, format!("the request {text}"))
}

async fn fill(read: &mut Read, mut body: Incoming, shared: &Shared) -> Result<(), Refusal> {
    let refusal = match append_all(read, &mut body, shared).await {
        Ok(()) => return Ok(()),
        Err(refusal) => refusal,
    };
    // What it holds goes back at once; the answer is read by those who have sent everything.
    read.body.clear();
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

async fn append_all(read: &mut Read, body: &mut Incoming, shared: &Shared) -> Result<(), Refusal> {
    let mut progress = Progress::new(shared.context.pool.clone(), shared.patience.progress);
    loop {
        let next = progress.wait(read.body.held(), body.frame()).await;
        let slow = |_| late("brings too few bytes a second (limits.progress)");
        let Some(frame) = next.map_err(slow)? else {
            return Ok(());
        };
        let broken = |error: hyper::Error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        progress.came(data.len());
        shared.meters.bytes_received.add(data.len() as u64);
        if read.body.bytes().len() + data.len() > shared.frame_bytes_max {
            return Err(too_large(shared.frame_bytes_max, "limits.frame"));
        }
        if !read.body.append(&data, &read.claim, shared.wait).await {
            return Err(no_memory(shared));
        }
    }
}

/// What a compressed body holds.
pub(super) async fn inflate(codec: Codec, input: &[u8], work: Work<'_>) -> Result<Buffer, Refusal> {
    let shared = work.shared;
    let bytes_max = shared.decompressed_bytes_max;
    let claimed = size_claimed(codec, input).unwrap_or(input.len() * INFLATE_FACTOR);
    let guess = claimed.clamp(input.len(), input.len() * INFLATE_FACTOR_MAX);
    let room = |bytes: usize| bytes.min(bytes_max) + SPARE_BYTES;
    let mut output = work.memory(room(guess)).await?;
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
        let bytes = output.capacity();
        work.enlarge(&mut output, bytes).await?;
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

/// What decodes a request: the source, and the memory of the request.
#[derive(Clone, Copy)]
pub(super) struct Work<'r> {
    pub(super) shared: &'r Shared,
    pub(super) claim: &'r Claim,
}

impl Work<'_> {
    /// A buffer of the pool, unless there is none for a while.
    pub(super) async fn memory(self, bytes: usize) -> Result<Buffer, Refusal> {
        let buffer = timeout(self.shared.wait, self.claim.reserve_more(bytes)).await;
        buffer.ok().flatten().ok_or_else(|| no_memory(self.shared))
    }

    /// Makes a buffer larger by `bytes`, and at least twice as large.
    pub(super) async fn enlarge(self, buffer: &mut Buffer, bytes: usize) -> Result<(), Refusal> {
        let wanted = (buffer.len() + bytes).max(buffer.capacity() * 2);
        let grown = timeout(self.shared.wait, buffer.grow_more(self.claim, wanted)).await;
        match grown {
            Ok(true) => Ok(()),
            _ => Err(no_memory(self.shared)),
        }
    }
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
