//! A connection without answers: TCP, TLS, a unix stream.
//!
//! `[read] -> [decode] -> [send] -> keep`

use std::{io, sync::Arc};

use millstream_net::{Connection, sides::Reading};
use millstream_record::Time;
use millstream_wire::syslog::After;

use super::{Shared, flow::Flow};
use crate::{
    connection::{Pace, Quit, Stash, Watch, is_no_memory},
    flight::Flight,
};

/// Digits of a count and the space behind it, CR and LF: what a message of `line_max` needs beside its own bytes.
pub(super) const BESIDE_BYTES: usize = 16;

/// At a stop so much is still read of what the system holds: more than TCP's largest buffer by default
/// (`net.ipv4.tcp_rmem`). A flood must not hold up the stop.
const REST_BYTES_MAX: usize = 8 << 20;

/// Serves one connection to its end.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let values = connection.peer.values(&shared.context.host);
    let peer = connection.peer.name;
    let (mut reader, _writer) = connection.stream.into_sides();
    let mut intake = Intake {
        stash: Stash::new(shared.context.pool.clone(), Vec::new()),
        pace: Pace::new(shared.gather),
        watch: Watch::new(&shared.context, shared.patience),
        flow: Flow::new(shared.clone(), values),
        flight: Flight::new(()),
        began: false,
        lost: false,
    };
    let mut end = intake.read_all(&mut reader).await;
    let slow = matches!(end, Err(End::Slow));
    if slow || matches!(end, Err(End::Quit)) {
        end = intake.read_rest(&reader).await;
    }
    let reporter = &shared.context.reporter;
    match end {
        Ok(()) if slow => {
            shared.meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: too few bytes a second of a message that it has begun (limits.progress); connection closed"
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
            shared.meters.connections_refused.add(1);
            let text = format_args!(
                "{peer}: no memory for its message beside what others hold (memory_max); connection closed"
            );
            reporter.warn("memory", text);
        }
    }
    if !intake.finish().await {
        let text = format_args!(
            "{peer}: messages were dropped before they were settled, and cannot be had again"
        );
        reporter.error("lost", text);
    }
}

/// Why reading ends, beside the peer's wish.
enum End {
    Quit,
    /// The peer does not go on with a message that it has begun.
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
    /// Something came.
    began: bool,
    /// Something was dropped before it was settled.
    lost: bool,
}

impl Intake {
    async fn read_all(&mut self, reader: &mut Reading) -> Result<(), End> {
        while !self.watch.stop.is_stopped() {
            // Between messages a sender may be silent for days: it would write the next one into a closed connection.
            let amid = (!self.stash.bytes().is_empty()).then(|| self.stash.held());
            let may_wait = self.began && amid.is_none();
            let fill = self.stash.fill(reader, usize::MAX);
            let read = self.watch.until(|| may_wait, amid, fill).await;
            let (count, drained) = read??;
            if count == 0 {
                return Ok(());
            }
            if self.take(count, drained).await? {
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

    /// Reads what the system holds of a connection that we end: without answers nobody would send it again.
    async fn read_rest(&mut self, reader: &Reading) -> Result<(), End> {
        reader.set_aside()?;
        let mut bytes = 0;
        while bytes < REST_BYTES_MAX
            && let Some((count @ 1.., drained)) = self.stash.fill_aside(reader)?
        {
            bytes += count;
            self.take(count, drained).await?;
            // Under TLS the runtime has to look what more is there.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Reads a busy connection once a tick, until nothing has come for a tick. Whether its peer has closed it.
    async fn read_by_the_clock(&mut self, reader: &Reading) -> Result<bool, End> {
        reader.gather(self.flow.shared.gather).await;
        while let Some((count, drained)) = self.stash.fill_aside(reader)? {
            if count == 0 {
                return Ok(true);
            }
            let busy = self.take(count, drained).await?;
            if drained && !busy || self.watch.stop.is_stopped() {
                break;
            }
            if drained {
                reader.gather(self.flow.shared.gather).await;
            }
        }
        Ok(false)
    }

    /// Decodes what a read of `count` bytes brought; `drained`: nothing more is there. Whether to wait before the next.
    async fn take(&mut self, count: usize, drained: bool) -> Result<bool, End> {
        self.began = true;
        self.watch.came(count);
        self.flow.now = Time::now();
        self.flow.shared.meters.bytes_received.add(count as u64);
        let after = if drained { After::Quiet } else { After::More };
        self.decode(after).await;
        if self.stash.is_full() {
            // Who waits for memory holds none.
            self.leave().await;
            let bytes_max = self.flow.shared.settings.bytes_max + BESIDE_BYTES;
            if !self.stash.grow(bytes_max).await {
                return Err(End::NoMemory);
            }
        }
        if !drained {
            return Ok(false);
        }
        self.leave().await;
        Ok(self.pace.is_busy(count, self.watch.last, false))
    }

    async fn decode(&mut self, after: After) {
        loop {
            let text = self.stash.bytes();
            if text.is_empty() && after != After::End {
                return;
            }
            let holding = self.stash.claim().is_some();
            self.flow.open(text.len(), holding).await;
            let (consumed, all) = self.flow.stream(self.stash.bytes(), after).await;
            self.stash.consume(consumed);
            if self.flow.is_full() {
                self.leave().await;
            }
            if all {
                return;
            }
        }
    }

    async fn leave(&mut self) {
        let awaited = self.flight.is_half_full();
        for receipt in self.flow.leave(awaited).await {
            self.flight.push(receipt, ());
        }
        self.lost |= self.flight.collect().is_err();
        while self.flight.is_full() {
            self.flight.answered().await;
            self.lost |= self.flight.collect().is_err();
        }
    }

    /// Keeps what has no end yet, and waits until everything is settled; false: something was not.
    async fn finish(&mut self) -> bool {
        self.decode(After::End).await;
        self.leave().await;
        self.lost |= self.flight.land().await.is_err();
        !self.lost
    }
}
