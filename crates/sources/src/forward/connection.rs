//! One connection: reads, decodes and sends, and writes acks at the same time.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> send -> keep`
//!
//! Reading continues while acks are outstanding, up to a limit. Reading stops while the outlet is full, but acks are still
//! written.

use std::{pin::pin, sync::Arc, time::Duration};

use millstream_net::{Connection, sides::Reading};
use millstream_pipeline::channel::Note;
use millstream_sys::random;
use millstream_wire::{
    forward::{Decoder, Step},
    json::packed_bytes_max,
};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    acks::Acks,
    end::{End, Last, report},
    frames::{self, Payload},
    gather::GATHER_BYTES,
    greeting::greet,
    input::{Input, Read},
    outgoing::{Holds, Outgoing},
    service::Service,
};
use crate::connection::{self, STASH_BYTES};

/// How long a connection that ends waits for the peer to close its side. If this side closed the socket while bytes are unread,
/// acks in flight would be discarded.
const LINGER: Duration = Duration::from_millis(500);
/// A JSON frame of up to this size is converted without memory of the pool, because the converted frame is no longer than the
/// read buffer.
const JSON_BYTES: usize = 16 << 10;

/// Serves one connection to its end.
pub(super) async fn serve(mut connection: Connection, service: Arc<Service>) {
    let early = match greet(&mut connection, &service).await {
        Ok(early) => early,
        Err(end) => {
            report(&end, &connection.peer.name, &service);
            if matches!(end, End::Unauthenticated(_)) {
                let mut stream = connection.stream;
                let _ = stream.shutdown().await;
                let _ = timeout(LINGER, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
            }
            return;
        }
    };
    let values = connection.peer.values(&service.context.host);
    let peer = connection.peer.name;
    let (mut reader, mut writer) = connection.stream.into_sides();
    // A random number that identifies this connection.
    let Ok(number) = random::bytes() else {
        let text = "cannot number a connection: the system gives no random numbers";
        return service.context.reporter.error("random", text);
    };
    let number = u64::from_ne_bytes(number);
    let (meters, patience) = (&service.meters, service.patience.with_answers());
    let (answers, answering) = connection::answers();
    let mut intake = Intake {
        decoder: Decoder::new(service.frame_bytes_max),
        converted: Vec::new(),
        input: Input::new(service.clone(), early),
        incoming: None,
        peer: peer.clone(),
        out: Outgoing::new(
            service.clone(),
            number,
            values,
            Acks::new(answers, meters.connections_acked.clone()),
        ),
    };
    let last = {
        let mut answering = pin!(answering.run(&mut writer, patience, &meters.chunks_acked));
        // Dropping `intake` closes the queue of answers, which ends the writing side.
        let mut reading = pin!(async {
            let last = intake.run(&mut reader).await;
            drop(intake);
            last
        });
        tokio::select! {
            biased;
            last = &mut reading => match answering.await {
                Ok(()) => last,
                Err(unanswered) => Last::unanswered(unanswered),
            },
            // The writing side ends before the reading side only after an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => Last::unanswered(unanswered),
            },
        }
    };
    if let Some(orderly) = last.orderly
        && service.durable
    {
        service.context.outlet.note(match orderly {
            true => Note::ConnectionClosed(number),
            false => Note::ConnectionBroken(number),
        });
    }
    let end = last.end;
    report(&end, &peer, &service);
    if !matches!(end, End::Closed | End::Broken) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// The reading side of a connection: turns bytes into batches.
struct Intake {
    input: Input,
    decoder: Decoder,
    /// A short JSON frame, converted to MessagePack. Freed when the connection waits for bytes.
    converted: Vec<u8>,
    /// A payload that was received completely, but whose options have not arrived yet.
    incoming: Option<Payload>,
    peer: Arc<str>,
    out: Outgoing,
}

impl Intake {
    /// Reads until the connection ends.
    async fn run(&mut self, reader: &mut Reading) -> Last {
        let end = self.read_all(reader).await;
        // Complete frames are kept, for whatever reason the connection ends.
        self.out.flush().await;
        let mut end = end.err().unwrap_or(End::Closed);
        if matches!(end, End::Closed) && self.decoder.is_amid(self.input.stash.bytes().len()) {
            end = End::Cut;
        }
        let acks = &self.out.acks;
        let orderly = matches!(end, End::Closed) && !acks.are_due();
        let orderly = acks.is_identified().then_some(orderly);
        Last { end, orderly }
    }

    async fn read_all(&mut self, reader: &mut Reading) -> Result<(), End> {
        let early = Read {
            count: self.input.stash.bytes().len(),
            drained: true,
        };
        if early.count > 0 {
            self.handle(reader, early).await?;
        }
        loop {
            let (begun, in_payload) = (self.begun_bytes(), self.incoming.is_some());
            let acks = &self.out.acks;
            let read = self.input.read(reader, acks, begun, in_payload).await?;
            if read.count == 0 {
                return Ok(());
            }
            if self.handle(reader, read).await? {
                reader.set_aside().map_err(|_| End::Broken)?;
                let closed = self.read_by_the_clock(reader).await;
                reader.watch().map_err(|_| End::Broken)?;
                self.input.pace.calm();
                if closed? {
                    return Ok(());
                }
            }
        }
    }

    /// Reads a busy connection once per tick (the option `gather`), until a tick passes without bytes or the peer waits for acks.
    /// Returns whether the peer has closed the connection.
    async fn read_by_the_clock(&mut self, reader: &mut Reading) -> Result<bool, End> {
        let tick = self.out.service.gather;
        reader.gather(tick).await;
        while reader.is_aside() {
            let Some(read) = self.input.read_aside(reader)? else {
                break;
            };
            if read.count == 0 {
                return Ok(true);
            }
            let busy = self.handle(reader, read).await?;
            if read.drained && !busy {
                break;
            }
            if read.drained {
                reader.gather(tick).await;
            }
        }
        Ok(false)
    }

    /// Decodes and sends the bytes of a read. Returns whether to wait for the next tick before the next read.
    async fn handle(&mut self, reader: &mut Reading, read: Read) -> Result<bool, End> {
        self.input.count(read.count);
        self.out.now = self.input.now;
        self.decode(reader).await?;
        if self.input.is_stopped() {
            return Err(End::Stopped);
        }
        if !read.drained || self.incoming.is_some() {
            return Ok(false);
        }
        self.out.flush().await;
        Ok(self.input.is_busy(read, &mut self.out.acks))
    }

    /// Decodes all complete frames in the read buffer, and reads long payloads from the connection.
    async fn decode(&mut self, reader: &mut Reading) -> Result<(), End> {
        loop {
            if let Some((body, count, head)) = self.out.gather.alike() {
                let (consumed, records) = self.decoder.run(self.input.stash.bytes(), head, body);
                *count += records;
                self.input.stash.consume(consumed);
            }
            let input = self.input.stash.bytes();
            self.out.holds = Holds::of(&self.input.stash);
            // The first byte distinguishes JSON from MessagePack. Until the decoder has read this byte, it is checked here.
            let begins_json =
                self.decoder.offset() == 0 && matches!(input.first(), Some(b'{' | b'['));
            self.out.acks.json = begins_json || self.decoder.is_json();
            let (consumed, step) = self.decoder.next(input).map_err(End::Refused)?;
            match step {
                Step::More => {
                    self.input.stash.consume(consumed);
                    return self.grow().await;
                }
                Step::Frame(frame) => frames::frame(&mut self.out, &frame, input).await?,
                Step::Json => self.json(consumed).await?,
                Step::Heartbeat => {}
                Step::Stray => self.report_stray(),
                Step::Misfit { value, chunk } => frames::misfit(&mut self.out, value, chunk).await,
                Step::Payload(head) => {
                    let kind = (self.out.tag(head.tag), head.encoding);
                    let length = head.length;
                    self.input.stash.consume(consumed);
                    reader.watch().map_err(|_| End::Broken)?;
                    // A connection that waits for memory must not hold any, so the gathered batch is sent first.
                    self.out.flush().await;
                    let acks = &self.out.acks;
                    let payload = self.input.payload(reader, acks, kind, length).await?;
                    self.out.now = self.input.now;
                    self.incoming = Some(payload);
                    continue;
                }
                Step::End(options) => {
                    if let Some(payload) = self.incoming.take() {
                        frames::deliver(&mut self.out, payload, &options).await?;
                    }
                }
            }
            self.input.stash.consume(consumed);
        }
    }

    /// Converts the JSON frame of `length` bytes at the front, and handles it.
    async fn json(&mut self, length: usize) -> Result<(), End> {
        let mut long;
        let converted: &mut Vec<u8> = match length {
            ..=JSON_BYTES => {
                self.converted.clear();
                &mut self.converted
            }
            _ => {
                // A connection that waits for memory must not hold any, so the gathered batch is sent first.
                self.out.flush().await;
                let text = self.input.stash.bytes().get(..length).unwrap_or_default();
                let bytes = packed_bytes_max(text);
                long = match self.input.stash.claim() {
                    Some(claim) => self.out.memory(bytes, claim).await?,
                    None => {
                        let pool = &self.out.service.context.pool;
                        // A buffer of the pool has at least 64 KiB, and a reused one may be four times as large as asked.
                        let claim = pool.claim(5 * bytes.max(STASH_BYTES) + GATHER_BYTES);
                        let long = claim.reserve(bytes).await;
                        self.out.holds = Holds::Claimed(claim);
                        long
                    }
                };
                &mut long
            }
        };
        let text = self.input.stash.bytes().get(..length).unwrap_or_default();
        let step = self
            .decoder
            .convert(text, converted)
            .map_err(End::Refused)?;
        match step {
            Step::Frame(frame) => frames::frame(&mut self.out, &frame, text).await?,
            Step::Misfit { value, chunk } => frames::misfit(&mut self.out, value, chunk).await,
            Step::Stray => self.report_stray(),
            _ => {}
        }
        self.out.holds = Holds::Nothing;
        Ok(())
    }

    /// Enlarges the read buffer if an incomplete frame fills it.
    async fn grow(&mut self) -> Result<(), End> {
        self.converted = Vec::new();
        if self.input.stash.is_full() {
            // A connection that waits for memory must not hold any, so the gathered batch is sent first.
            self.out.flush().await;
            let bytes_max = self.out.service.frame_bytes_max;
            if !self.input.stash.grow(bytes_max).await {
                return Err(End::NoMemory);
            }
        }
        Ok(())
    }

    /// The memory that an incomplete frame holds, in bytes; None if no frame has begun.
    fn begun_bytes(&self) -> Option<usize> {
        let stash = &self.input.stash;
        let payload = self.incoming.as_ref().map(|payload| payload.held);
        let held = stash.held() + payload.unwrap_or_default();
        (payload.is_some() || self.decoder.is_amid(stash.bytes().len())).then_some(held)
    }

    /// Reports a value that is not a frame. It is skipped.
    fn report_stray(&self) {
        let service = &self.out.service;
        service.meters.values_skipped.add(1);
        let text = format_args!(
            "{} sent a value that is not a frame of the forward protocol; skipped",
            self.peer
        );
        service.context.reporter.warn("stray", text);
    }
}
