//! One connection: reads, decodes, sends; and writes acks at the same time.
//!
//! `[read] -> [decode] -> send -> keep`
//!
//! Reading goes on while acks are due, up to a bound, and stops while the outlet has no room; acks go on meanwhile.

use std::{
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BufMut;
use millstream_net::{Connection, sides::Reading};
use millstream_pipeline::channel::Note;
use millstream_record::{Buffer, Claim, Encoding, Tag, Time};
use millstream_wire::{
    compression::codec_of,
    forward::{Check, Decoder, Step},
};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    Shared,
    end::{End, Last, report},
    greeting::greet,
    outgoing::Outgoing,
    payload::{Arrived, INFLATE_FACTOR},
};
use crate::connection::{self, Pace, Quit, Stash, Watch, patiently};

/// Behind a payload only so much is read at first: it holds the option map and the next head, and little that must be
/// copied.
const BEHIND_PAYLOAD_BYTES: usize = 4 << 10;
/// So much of a payload is waited for before the next read: a part of it is no use to anybody, and each wake-up costs as
/// much as validating a thousand records. More would stand in the way of what the system can hold for a connection.
const WAKE_BYTES: usize = 256 << 10;
/// So much of a payload must have come before memory is reserved for it.
const FIRST_BYTES: usize = 1 << 10;
/// Memory for a payload grows by this factor, as its bytes arrive: so they are copied at most once and a third.
const GROWTH: usize = 4;
/// A peer whose payloads have come whole gets memory for another one of that length at once, up to so many bytes.
const PROVEN_BYTES_MAX: usize = 4 << 20;
/// How long the end of a connection waits for the peer to close too: closing over unread bytes would destroy the acks
/// that are under way.
const LINGER: Duration = Duration::from_millis(500);

/// Serves one connection to its end.
pub(super) async fn serve(mut connection: Connection, shared: Arc<Shared>) {
    let early = match greet(&mut connection, &shared).await {
        Ok(early) => early,
        Err(end) => {
            report(&end, &connection.peer.name, &shared);
            if matches!(end, End::Unauthenticated(_)) {
                let mut stream = connection.stream;
                let _ = stream.shutdown().await;
                let _ = timeout(LINGER, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
            }
            return;
        }
    };
    let values = connection.peer.values(&shared.context.host);
    let peer = connection.peer.name;
    let (mut reader, mut writer) = connection.stream.into_sides();
    let Ok(number) = random() else {
        let text = "no random number for a connection: the system's source of them fails";
        return shared.context.reporter.error("random", text);
    };
    let (meters, patience) = (&shared.meters, shared.patience.with_answers());
    let (answers, answering) = connection::answers();
    let out = Outgoing::new(shared.clone(), number, peer.clone(), values, answers);
    let mut intake = Intake {
        decoder: Decoder::new(shared.frame_bytes_max),
        stash: Stash::new(shared.context.pool.clone(), early),
        incoming: None,
        pace: Pace::new(shared.gather),
        watch: Watch::new(&shared.context, shared.patience),
        proven: 0,
        out,
    };
    let last = {
        let mut answering = pin!(answering.run(&mut writer, patience, &meters.chunks_acked));
        // The queue of answers ends with `intake`, and then the side that writes.
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
            // It ends before the reading side only by an error.
            answered = &mut answering => match answered {
                Ok(()) => reading.await,
                Err(unanswered) => Last::unanswered(unanswered),
            },
        }
    };
    if let Some(orderly) = last.orderly
        && shared.durable
    {
        shared.context.outlet.note(match orderly {
            true => Note::ConnectionClosed(number),
            false => Note::ConnectionBroken(number),
        });
    }
    let end = last.end;
    report(&end, &peer, &shared);
    if !matches!(end, End::Closed | End::Broken) {
        let _ = writer.shutdown().await;
        let _ = timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    }
}

/// A number that no other connection ever has.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // Linux gives up to 256 bytes at once.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The reading side.
struct Intake {
    decoder: Decoder,
    stash: Stash,
    incoming: Option<Incoming>,
    pace: Pace,
    watch: Watch,
    /// Bytes of the longest payload that has come whole, up to [`PROVEN_BYTES_MAX`].
    proven: usize,
    out: Outgoing,
}

/// A payload that was announced.
struct Incoming {
    tag: Tag,
    encoding: Encoding,
    buffer: Buffer,
    claim: Claim,
    check: Check,
    sound: bool,
}

impl Intake {
    async fn run(&mut self, reader: &mut Reading) -> Last {
        let end = self.read_all(reader).await;
        // What stands whole is kept, however the connection ends.
        self.out.leave().await;
        let mut end = end.err().unwrap_or(End::Closed);
        if matches!(end, End::Closed) && self.decoder.is_amid(self.stash.bytes().len()) {
            end = End::Cut;
        }
        let orderly = matches!(end, End::Closed) && self.out.answers.open() == 0;
        let orderly = self.out.identified.then_some(orderly);
        Last { end, orderly }
    }

    async fn read_all(&mut self, reader: &mut Reading) -> Result<(), End> {
        // What came together with the peer's credentials.
        let early = self.stash.bytes().len();
        if early > 0 {
            self.take(reader, early, true).await?;
        }
        loop {
            let limit = if self.incoming.is_some() {
                BEHIND_PAYLOAD_BYTES
            } else {
                usize::MAX
            };
            let amid = self.amid();
            let fill = self.stash.fill(reader, limit);
            let read = self
                .watch
                .until(|| self.out.answers.open() > 0, amid, fill)
                .await?;
            let (count, drained) = read?;
            if count == 0 {
                return Ok(());
            }
            if self.take(reader, count, drained).await? {
                reader.set_aside().map_err(|_| End::Broken)?;
                let ended = self.read_by_the_clock(reader).await;
                reader.watch().map_err(|_| End::Broken)?;
                self.pace.calm();
                if ended? {
                    return Ok(());
                }
            }
        }
    }

    /// Reads a busy connection once a tick, until nothing has come for a tick or somebody waits for acks. Whether its
    /// peer has closed it.
    async fn read_by_the_clock(&mut self, reader: &mut Reading) -> Result<bool, End> {
        reader.gather(self.out.shared.gather).await;
        while reader.is_aside() {
            let read = self.stash.fill_aside(reader)?;
            let Some((count, drained)) = read else {
                break;
            };
            if count == 0 {
                return Ok(true);
            }
            let busy = self.take(reader, count, drained).await?;
            if drained && !busy {
                break;
            }
            if drained {
                reader.gather(self.out.shared.gather).await;
            }
        }
        Ok(false)
    }

    /// Decodes what a read of `count` bytes brought; `drained`: nothing more is there. Whether to wait before the next.
    async fn take(
        &mut self,
        reader: &mut Reading,
        count: usize,
        drained: bool,
    ) -> Result<bool, End> {
        self.note_read(count);
        self.decode(reader).await?;
        if self.watch.stop.is_stopped() {
            return Err(End::Stopped);
        }
        if !drained || self.incoming.is_some() {
            return Ok(false);
        }
        self.out.leave().await;
        let asked = std::mem::take(&mut self.out.asked) || self.out.answers.open() > 0;
        Ok(self.pace.is_busy(count, self.watch.last, asked))
    }

    fn note_read(&mut self, count: usize) {
        self.watch.came(count);
        self.out.now = Time::now();
        self.out.shared.meters.bytes_received.add(count as u64);
    }

    /// Takes everything from the read buffer that stands whole in it, and long payloads from the connection.
    async fn decode(&mut self, reader: &mut Reading) -> Result<(), End> {
        loop {
            if let Some((body, count, head)) = self.out.gather.run() {
                let (consumed, records) = self.decoder.run(self.stash.bytes(), head, body);
                *count += records;
                self.stash.consume(consumed);
            }
            let input = self.stash.bytes();
            // The first byte tells, which the decoder has not seen yet.
            let begins_json =
                self.decoder.offset() == 0 && matches!(input.first(), Some(b'{' | b'['));
            self.out.json = begins_json || self.decoder.is_json();
            let (consumed, step) = self.decoder.next(input).map_err(End::Refused)?;
            match step {
                Step::More => {
                    self.stash.consume(consumed);
                    let bytes_max = self.out.shared.frame_bytes_max;
                    if self.stash.is_full() {
                        // Who waits for memory holds none.
                        self.out.leave().await;
                        if !self.stash.grow(bytes_max).await {
                            return Err(End::NoMemory);
                        }
                    }
                    return Ok(());
                }
                Step::Frame(frame) => self.out.frame(&frame, input).await?,
                Step::Heartbeat => {}
                Step::Stray => self.out.stray(),
                Step::Misfit { value, chunk } => self.out.misfit(value, chunk).await,
                Step::Payload(head) => {
                    let (tag, encoding, length) =
                        (self.out.tag(head.tag), head.encoding, head.length);
                    self.stash.consume(consumed);
                    self.receive(reader, tag, encoding, length).await?;
                    continue;
                }
                Step::End(options) => {
                    if let Some(incoming) = self.incoming.take() {
                        let arrived = Arrived {
                            tag: incoming.tag,
                            encoding: incoming.encoding,
                            body: incoming.buffer.freeze(),
                            check: incoming.check,
                            sound: incoming.sound,
                            claim: incoming.claim,
                        };
                        self.out.payload(arrived, &options).await?;
                    }
                }
            }
            self.stash.consume(consumed);
        }
    }

    /// What a frame that has begun holds; None: none has begun.
    fn amid(&self) -> Option<usize> {
        let waiting = self.stash.bytes().len();
        let payload = self
            .incoming
            .as_ref()
            .map(|incoming| incoming.buffer.capacity());
        let held = self.stash.held() + payload.unwrap_or_default();
        (payload.is_some() || self.decoder.is_amid(waiting)).then_some(held)
    }

    /// Reads a payload exactly, validating it as it comes. Memory for it grows with what has come.
    async fn receive(
        &mut self,
        reader: &mut Reading,
        tag: Tag,
        encoding: Encoding,
        length: usize,
    ) -> Result<(), End> {
        reader.watch().map_err(|_| End::Broken)?;
        // Who waits for memory holds none.
        self.out.leave().await;
        self.pace.calm();
        self.begin(reader, length).await?;
        let pool = &self.out.shared.context.pool;
        let claim = pool.claim(match codec_of(self.stash.bytes()) {
            None => length,
            Some(_) => length.saturating_mul(1 + INFLATE_FACTOR),
        });
        let first = self.stash.bytes().len().max(self.proven).min(length);
        let mut buffer = match self.stash.claim() {
            None => claim.reserve(first).await,
            Some(_) => patiently(claim.reserve(first)).await.ok_or(End::NoMemory)?,
        };
        self.stash.move_to(&mut buffer, length);
        self.stash.shrink();
        let mut check = Check::new(encoding);
        let mut sound = check.feed(&buffer).is_ok();
        while buffer.len() < length {
            if buffer.len() == buffer.capacity() {
                buffer.grow((buffer.len() * GROWTH).min(length)).await;
            }
            let end = buffer.capacity().min(length);
            while buffer.len() < end {
                self.read_payload(reader, &mut buffer, end).await?;
                sound = sound && check.feed(&buffer).is_ok();
            }
        }
        reader.wake_from(1).map_err(|_| End::Broken)?;
        self.proven = self.proven.max(length.min(PROVEN_BYTES_MAX));
        self.incoming = Some(Incoming {
            tag,
            encoding,
            buffer,
            claim,
            check,
            sound,
        });
        Ok(())
    }

    /// Waits until some of a payload has come: a peer that only announces it gets no memory.
    async fn begin(&mut self, reader: &mut Reading, length: usize) -> Result<(), End> {
        while self.stash.bytes().len() < FIRST_BYTES.min(length) {
            let held = self.stash.held();
            let fill = self.stash.fill(reader, BEHIND_PAYLOAD_BYTES);
            let read = self
                .watch
                .until(|| self.out.answers.open() > 0, Some(held), fill)
                .await?;
            let (count, _) = read?;
            if count == 0 {
                return Err(End::Cut);
            }
            self.note_read(count);
        }
        Ok(())
    }

    /// Reads once into `buffer`, up to `end`.
    async fn read_payload(
        &mut self,
        reader: &mut Reading,
        buffer: &mut Buffer,
        end: usize,
    ) -> Result<(), End> {
        let room = end - buffer.len();
        let mut wake = WAKE_BYTES.min(room);
        loop {
            reader.wake_from(wake).map_err(|_| End::Broken)?;
            let held = Some(buffer.capacity());
            let mut target = (&mut **buffer).limit(room);
            let read = self
                .watch
                .until(
                    || self.out.answers.open() > 0,
                    held,
                    reader.read_buf(&mut target),
                )
                .await;
            if matches!(read, Err(Quit::Idle | Quit::Slow)) && wake > 1 {
                // It may have sent a little all the time.
                wake = 1;
                self.watch.last = Instant::now();
                continue;
            }
            let count = read?.map_err(|_| End::Broken)?;
            if count == 0 {
                return Err(End::Cut);
            }
            self.note_read(count);
            return Ok(());
        }
    }
}
