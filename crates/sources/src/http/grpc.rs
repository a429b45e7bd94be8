//! Answers the clients of OTLP/gRPC, so that their log says what to use instead.
//!
//! gRPC needs HTTP/2, which the source does not support. It speaks just enough of it to let each call fail with a message:
//!
//! ```text
//! client  preface | SETTINGS | HEADERS of a call | DATA ...
//! source  SETTINGS | SETTINGS ack | HEADERS: grpc-status 14, grpc-message | RST_STREAM | ... | GOAWAY
//!
//! frame   u24 length | u8 type | u8 flags | u32 stream | payload
//! ```
//! The status is `UNAVAILABLE`: on most others, the Collector drops its records instead of keeping them for later.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// The text in the logs of both sides.
pub(super) const ADVICE: &str =
    "OTLP/gRPC is not supported; use otlphttp, the Collector's exporter for OTLP over HTTP";

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Calls of a connection are answered for this long. Then the client connects again.
const SERVED_FOR: Duration = Duration::from_secs(10);

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const FRAME_HEAD_BYTES: usize = 9;
/// The largest payload that a client may send without asking.
const PAYLOAD_BYTES_MAX: usize = 16 << 10;

/// Answers the calls of a client whose first bytes are in `begun`.
pub(super) async fn answer(mut io: impl AsyncRead + AsyncWrite + Unpin, begun: &[u8]) {
    // The client may break the connection at any time.
    let _ = timeout(SERVED_FOR, answer_calls(&mut io, begun)).await;
    let _ = send(&mut io, GOAWAY, 0, 0, &[0; 8]).await;
    let _ = timeout(SERVED_FOR, io.shutdown()).await;
}

async fn answer_calls(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    begun: &[u8],
) -> io::Result<()> {
    let mut read = begun.to_vec();
    fill(io, &mut read, PREFACE.len()).await?;
    if !read.starts_with(PREFACE) {
        return Ok(());
    }
    read.drain(..PREFACE.len());
    send(io, SETTINGS, 0, 0, &[]).await?;
    loop {
        fill(io, &mut read, FRAME_HEAD_BYTES).await?;
        let Some(&[a, b, c, kind, flags, s, t, u, v]) = read.first_chunk() else {
            return Ok(());
        };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Ok(());
        }
        let end = FRAME_HEAD_BYTES + length;
        fill(io, &mut read, end).await?;
        let payload = read.get(FRAME_HEAD_BYTES..end).unwrap_or_default();
        let stream = u32::from_be_bytes([s, t, u, v]) & 0x7fff_ffff;
        match kind {
            SETTINGS if flags & ACK == 0 => send(io, SETTINGS, ACK, 0, &[]).await?,
            PING if flags & ACK == 0 => send(io, PING, ACK, 0, payload).await?,
            HEADERS | CONTINUATION if flags & END_HEADERS != 0 => {
                send(io, HEADERS, END_HEADERS | END_STREAM, stream, &refusal()).await?;
                if kind == CONTINUATION || flags & END_STREAM == 0 {
                    // The code 0 (`NO_ERROR`) ends the upload, whose bytes this side does not take.
                    send(io, RST_STREAM, 0, stream, &[0; 4]).await?;
                }
            }
            GOAWAY => return Ok(()),
            _ => {}
        }
        read.drain(..end);
    }
}

/// Reads until `read` has `length` bytes.
async fn fill(
    io: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
    length: usize,
) -> io::Result<()> {
    while read.len() < length {
        if io.read_buf(read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

async fn send(
    io: &mut (impl AsyncWrite + Unpin),
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> io::Result<()> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    io.write_all(&frame).await?;
    io.flush().await
}

/// The header fields of the answer, in HPACK without a table and without Huffman codes.
fn refusal() -> Vec<u8> {
    // `:status: 200` is entry 8 of the static table, and `content-type` is the name of entry 31.
    let mut block = vec![0x88, 0x0f, 0x10];
    text(&mut block, "application/grpc");
    for (name, value) in [("grpc-status", "14"), ("grpc-message", ADVICE)] {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// A text of fewer than 127 bytes.
fn text(block: &mut Vec<u8>, text: &str) {
    block.push(text.len() as u8);
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_fits_into_one_header_field() {
        assert!(ADVICE.len() < 127 && ADVICE.is_ascii() && !ADVICE.contains('%'));
    }

    #[tokio::test]
    async fn every_call_of_a_grpc_client_fails_with_the_advice() {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
            [&head, payload].concat()
        };
        let sent = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            &frame(PING, 0, 0, b"12345678"),
            // The header fields of the second call are in two frames.
            &frame(HEADERS, END_HEADERS, 1, b"any"),
            &frame(0, END_STREAM, 1, b"data"),
            &frame(HEADERS, 0, 3, b"any"),
            &frame(CONTINUATION, END_HEADERS, 3, b"more"),
            &frame(GOAWAY, 0, 0, &[0; 8]),
        ]
        .concat();
        let (begun, rest) = sent.split_at(30);
        client.write_all(rest).await.unwrap();
        answer(server, begun).await;
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        let mut frames = Vec::new();
        let mut left = &got[..];
        while let Some((head, behind)) = left.split_at_checked(FRAME_HEAD_BYTES) {
            let (payload, behind) = behind.split_at(usize::from(head[2]));
            frames.push((head[3], head[4], head[8], payload));
            left = behind;
        }
        let kinds: Vec<_> = frames
            .iter()
            .map(|(kind, flags, stream, _)| (*kind, *flags, *stream))
            .collect();
        let answered = |stream| (HEADERS, END_HEADERS | END_STREAM, stream);
        assert_eq!(
            kinds,
            [
                (SETTINGS, 0, 0),
                (SETTINGS, ACK, 0),
                (PING, ACK, 0),
                answered(1),
                (RST_STREAM, 0, 1),
                answered(3),
                (RST_STREAM, 0, 3),
                (GOAWAY, 0, 0)
            ]
        );
        assert_eq!(frames[2].3, b"12345678");
        let said = String::from_utf8_lossy(frames[3].3).into_owned();
        assert!(said.contains(ADVICE) && said.contains("14"), "{said}");
    }

    #[tokio::test]
    async fn other_bytes_are_not_answered() {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(&[0xff; 64]).await.unwrap();
        client.shutdown().await.unwrap();
        answer(server, b"PRI").await;
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert_eq!(got.get(3), Some(&GOAWAY));
    }
}
