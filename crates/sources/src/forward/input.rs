//! Reads the bytes of one connection, at a moderate pace, and only while the peer makes progress.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep`

use std::{sync::Arc, time::Instant};

use bytes::BufMut;
use millstream_net::sides::Reading;
use millstream_record::{Buffer, Encoding, Tag, Time};
use millstream_wire::{compression::codec_of, forward::Check};
use tokio::io::AsyncReadExt;

use super::{acks::Acks, content::INFLATE_FACTOR, end::End, frames::Payload, service::Service};
use crate::connection::{Pace, Quit, Stash, Watch, patiently};

/// Maximum size of a read just before or after a payload. It suffices for the option map and the next frame header. Bytes of a
/// payload that such a read includes must be copied.
const BEHIND_PAYLOAD_BYTES: usize = 4 << 10;
/// A read of a payload waits for this many bytes, because a wake-up costs as much as validating a thousand records. The kernel
/// cannot buffer much more per connection.
const WAKE_BYTES: usize = 256 << 10;
/// This many bytes of a payload must have arrived before memory is reserved for it.
const FIRST_BYTES: usize = 1 << 10;
/// Memory for a payload grows by this factor as its bytes arrive, so that all growth together copies at most a third of the bytes.
const GROWTH: usize = 4;
/// A peer that has sent a complete payload gets the memory for another one of that length in advance, up to this many bytes.
const PROVEN_BYTES_MAX: usize = 4 << 20;

/// The result of one read.
#[derive(Clone, Copy)]
pub(super) struct Read {
    /// The number of bytes; 0: the peer has closed the connection.
    pub(super) count: usize,
    /// Whether the socket is drained.
    pub(super) drained: bool,
}

/// The bytes of one connection.
pub(super) struct Input {
    pub(super) stash: Stash,
    pub(super) pace: Pace,
    watch: Watch,
    service: Arc<Service>,
    /// When bytes were last received.
    pub(super) now: Time,
    /// The length of the longest complete payload so far, at most [`PROVEN_BYTES_MAX`].
    proven: usize,
    /// A read of the current payload waits for this many bytes: [`WAKE_BYTES`], or one byte once the peer has been slow.
    wake: usize,
}

impl Input {
    /// Starts with `early`, the bytes that arrived with the handshake.
    pub(super) fn new(service: Arc<Service>, early: Vec<u8>) -> Self {
        Self {
            stash: Stash::new(service.context.pool.clone(), early),
            pace: Pace::new(service.gather),
            watch: Watch::new(&service.context, service.patience),
            service,
            now: Time::default(),
            proven: 0,
            wake: WAKE_BYTES,
        }
    }

    /// Whether the process stops.
    pub(super) fn is_stopped(&self) -> bool {
        self.watch.stop.is_stopped()
    }

    /// Counts bytes that were received just now.
    pub(super) fn count(&mut self, bytes: usize) {
        self.watch.came(bytes);
        self.now = Time::now();
        self.service.meters.bytes_received.add(bytes as u64);
    }

    /// Whether to wait for a tick (the option `gather`) before the next read. Called after `read` has drained the socket.
    pub(super) fn is_busy(&mut self, read: Read, acks: &mut Acks) -> bool {
        let awaited = acks.is_awaited();
        self.pace.is_busy(read.count, self.watch.last, awaited)
    }

    /// Waits for bytes and reads once. A peer that waits for acks may be silent. A peer that has begun a frame, which holds
    /// `begun` bytes of memory, must make progress. `in_payload`: the first bytes or the options of a payload come next.
    pub(super) async fn read(
        &mut self,
        reader: &mut Reading,
        acks: &Acks,
        begun: Option<usize>,
        in_payload: bool,
    ) -> Result<Read, End> {
        let limit = if in_payload {
            BEHIND_PAYLOAD_BYTES
        } else {
            usize::MAX
        };
        let fill = self.stash.fill(reader, limit);
        let read = self.watch.until(|| acks.are_due(), begun, fill).await?;
        let (count, drained) = read?;
        Ok(Read { count, drained })
    }

    /// Reads once from a socket that is set aside (read periodically, see `net::sides`). Returns None if nothing is available.
    pub(super) fn read_aside(&mut self, reader: &Reading) -> Result<Option<Read>, End> {
        let read = self.stash.fill_aside(reader)?;
        Ok(read.map(|(count, drained)| Read { count, drained }))
    }

    /// Reads a payload of exactly `length` bytes, and validates it as it arrives. Its memory grows with the bytes received.
    pub(super) async fn payload(
        &mut self,
        reader: &mut Reading,
        acks: &Acks,
        (tag, encoding): (Tag, Encoding),
        length: usize,
    ) -> Result<Payload, End> {
        self.pace.calm();
        self.wake = WAKE_BYTES;
        self.await_first_bytes(reader, acks, length).await?;
        let pool = &self.service.context.pool;
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
                self.read_into(reader, acks, &mut buffer, end).await?;
                sound = sound && check.feed(&buffer).is_ok();
            }
        }
        reader.wake_from(1).map_err(|_| End::Broken)?;
        self.proven = self.proven.max(length.min(PROVEN_BYTES_MAX));
        Ok(Payload {
            tag,
            encoding,
            held: buffer.capacity(),
            body: buffer.freeze(),
            check,
            sound,
            claim,
        })
    }

    /// Waits until the first bytes of a payload have arrived. A peer that only announces a payload gets no memory.
    async fn await_first_bytes(
        &mut self,
        reader: &mut Reading,
        acks: &Acks,
        length: usize,
    ) -> Result<(), End> {
        while self.stash.bytes().len() < FIRST_BYTES.min(length) {
            let held = self.stash.held();
            let read = self.read(reader, acks, Some(held), true).await?;
            if read.count == 0 {
                return Err(End::Cut);
            }
            self.count(read.count);
        }
        Ok(())
    }

    /// Reads once into `buffer`, up to `end`.
    async fn read_into(
        &mut self,
        reader: &mut Reading,
        acks: &Acks,
        buffer: &mut Buffer,
        end: usize,
    ) -> Result<(), End> {
        let room = end - buffer.len();
        loop {
            let wake = self.wake.min(room);
            reader.wake_from(wake).map_err(|_| End::Broken)?;
            let held = Some(buffer.capacity());
            let mut target = (&mut **buffer).limit(room);
            let read = reader.read_buf(&mut target);
            let read = self.watch.until(|| acks.are_due(), held, read).await;
            if matches!(read, Err(Quit::Idle | Quit::Slow)) && wake > 1 {
                // Fewer bytes than `wake` may have arrived. From now on, bytes are read as they arrive, so progress is measured exactly.
                self.wake = 1;
                self.watch.last = Instant::now();
                continue;
            }
            let count = read?.map_err(|_| End::Broken)?;
            if count == 0 {
                return Err(End::Cut);
            }
            self.count(count);
            return Ok(());
        }
    }
}
