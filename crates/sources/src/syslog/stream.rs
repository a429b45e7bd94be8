//! A connection without answers: TCP, TLS, a unix stream.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `[read] -> [decode] -> [send] -> keep`

use std::{io, sync::Arc};

use millstream_net::{Connection, sides::Reading};
use millstream_record::Time;
use millstream_wire::syslog::After;

use super::{
    endpoint::{BESIDE_BYTES, Endpoint},
    flow::Flow,
};
use crate::{
    connection::{Pace, Quit, Stash, Watch, is_no_memory},
    flight::Flight,
};

/// The maximum number of bytes that are still read from the kernel when this side closes a connection. It is more than the default
/// maximum of TCP's receive buffer (`net.ipv4.tcp_rmem`). Without a limit, a flood would delay a stop.
const UNREAD_BYTES_MAX: usize = 8 << 20;

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, endpoint: Arc<Endpoint>) {
    let values = connection.peer.values(&endpoint.context.host);
    let peer = connection.peer.name;
    let (mut reader, _writer) = connection.stream.into_sides();
    let mut intake = Intake {
        stash: Stash::new(endpoint.context.pool.clone(), Vec::new()),
        pace: Pace::new(endpoint.gather),
        watch: Watch::new(&endpoint.context, endpoint.patience),
        flow: Flow::new(endpoint.clone(), values),
        flight: Flight::new(()),
        began: false,
        lost: false,
    };
    let mut end = intake.read_all(&mut reader).await;
    let slow = matches!(end, Err(End::Slow));
    if slow || matches!(end, Err(End::Quit)) {
        end = intake.read_unread(&reader).await;
    }
    let reporter = &endpoint.context.reporter;
    match end {
        Ok(()) if slow => {
            endpoint.meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes per second within a message (limits.progress); connection closed"
            );
            reporter.warn("slow", text);
        }
        Ok(()) | Err(End::Quit | End::Slow) => {}
        Err(End::Broken(error)) => {
            reporter.info(
                "broken",
                format_args!("{peer}: the connection broke: {error}"),
            );
        }
        Err(End::NoMemory) => {
            endpoint.meters.connections_refused.add(1);
            let text =
                format_args!("{peer}: no memory for its message (memory_max); connection closed");
            reporter.warn("memory", text);
        }
    }
    if !intake.finish().await {
        let text = format_args!(
            "{peer}: messages were dropped before they were settled, and cannot be received again"
        );
        reporter.error("lost", text);
    }
}

/// The reason why reading ends, unless the peer closes the connection.
enum End {
    Quit,
    /// The peer does not continue a message.
    Slow,
    Broken(io::Error),
    NoMemory,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match is_no_memory(&error) {
            true => Self::NoMemory,
            false => Self::Broken(error),
        }
    }
}

impl From<Quit> for End {
    fn from(quit: Quit) -> Self {
        match quit {
            Quit::Stopped | Quit::Idle => Self::Quit,
            Quit::Slow => Self::Slow,
        }
    }
}

struct Intake {
    stash: Stash,
    pace: Pace,
    watch: Watch,
    flow: Flow,
    flight: Flight<()>,
    /// Whether any bytes were received.
    began: bool,
    /// Whether a batch was dropped before it was settled.
    lost: bool,
}

impl Intake {
    async fn read_all(&mut self, reader: &mut Reading) -> Result<(), End> {
        while !self.watch.stop.is_stopped() {
            // Between messages, a sender may be silent for days. If the connection were closed, the sender would lose its next message.
            let amid = (!self.stash.bytes().is_empty()).then(|| self.stash.held());
            let may_wait = self.began && amid.is_none();
            let fill = self.stash.fill(reader, usize::MAX);
            let read = self.watch.until(|| may_wait, amid, fill).await;
            let (count, drained) = read??;
            if count == 0 {
                return Ok(());
            }
            if self.decode_read(count, drained).await? {
                reader.set_aside()?;
                let ended = self.read_by_the_clock(reader).await;
                reader.watch()?;
                self.pace.calm();
                if ended? {
                    return Ok(());
                }
            }
        }
        Err(End::Quit)
    }

    /// Reads the bytes that the kernel holds for a connection that is being closed. The sender gets no answers, so it would not send
    /// these bytes again.
    async fn read_unread(&mut self, reader: &Reading) -> Result<(), End> {
        reader.set_aside()?;
        let mut bytes = 0;
        while bytes < UNREAD_BYTES_MAX
            && let Some((count @ 1.., drained)) = self.stash.fill_aside(reader)?
        {
            bytes += count;
            self.decode_read(count, drained).await?;
            // With TLS, a read finds further bytes only after the runtime has checked the socket again.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Reads a busy connection once per `gather`, until an interval passes without bytes. Returns whether the peer has closed the
    /// connection.
    async fn read_by_the_clock(&mut self, reader: &Reading) -> Result<bool, End> {
        reader.gather(self.flow.endpoint.gather).await;
        while let Some((count, drained)) = self.stash.fill_aside(reader)? {
            if count == 0 {
                return Ok(true);
            }
            let busy = self.decode_read(count, drained).await?;
            if drained && !busy || self.watch.stop.is_stopped() {
                break;
            }
            if drained {
                reader.gather(self.flow.endpoint.gather).await;
            }
        }
        Ok(false)
    }

    /// Decodes the `count` bytes of a read. `drained`: the kernel holds no more. Returns whether to pause before the next read.
    async fn decode_read(&mut self, count: usize, drained: bool) -> Result<bool, End> {
        self.began = true;
        self.watch.came(count);
        self.flow.now = Time::now();
        self.flow.endpoint.meters.bytes_received.add(count as u64);
        let after = if drained { After::Quiet } else { After::More };
        self.decode(after).await;
        if self.stash.is_full() {
            // A task that waits for memory must not hold any, so the batch is sent first.
            self.send_batch().await;
            let bytes_max = self.flow.endpoint.settings.bytes_max + BESIDE_BYTES;
            if !self.stash.grow(bytes_max).await {
                return Err(End::NoMemory);
            }
        }
        if !drained {
            return Ok(false);
        }
        self.send_batch().await;
        Ok(self.pace.is_busy(count, self.watch.last, false))
    }

    async fn decode(&mut self, after: After) {
        loop {
            let text = self.stash.bytes();
            if text.is_empty() && after != After::End {
                return;
            }
            let holding = self.stash.claim().is_some();
            self.flow.begin_batch(text.len(), holding).await;
            let (consumed, all) = self.flow.decode_stream(self.stash.bytes(), after).await;
            self.stash.consume(consumed);
            if self.flow.is_full() {
                self.send_batch().await;
            }
            if all {
                return;
            }
        }
    }

    async fn send_batch(&mut self) {
        self.lost |= self.flow.send_in(&mut self.flight).await.is_err();
    }

    /// Sends the incomplete message at the end of the connection, if there is one, and waits until everything is settled. Returns false
    /// if a batch was dropped.
    async fn finish(&mut self) -> bool {
        self.decode(After::End).await;
        self.send_batch().await;
        self.lost |= self.flight.land().await.is_err();
        !self.lost
    }
}
