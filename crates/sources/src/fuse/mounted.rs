//! A mount at work: what all its sessions share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_record::{Buffer, Time};
use millstream_sys::fuse::Device;
use millstream_wire::fuse::{Header, WRITE_DATA_AT};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::{
    below::Below,
    config::WhenFull,
    handles::{Handle, Handles, Turn},
    parcel::Parcel,
    session::HEADROOM,
    tree::{Tree, Wrote},
    waiting::{Waiting, process_of},
    write::Ship,
};

/// The flags of an open file that make every write wait until it is synced.
const DSYNC: u32 = 0o10_000;

/// What the sessions of one mount share.
pub(super) struct Mounted {
    pub device: Device,
    pub ship: Arc<Ship>,
    pub tree: Mutex<Tree>,
    pub handles: Handles,
    pub waiting: Waiting,
    pub below: Arc<Below>,
    /// Held by requests that are under way; the run ends when all are gone.
    pub busy: mpsc::Sender<()>,
}

/// A write of the kernel, without its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub header: Header,
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub flags: u32,
}

/// What a write brings.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every one is the large one, and none is stored"
)]
pub(super) enum Brought {
    /// What is to be sent, and the turn that the write has, if it needs one.
    Parcel(Parcel, Option<Turn>),
    /// Its request: it has to wait for its turn.
    Request(Buffer),
    /// A part of a copy: all of it was shipped before.
    Copy,
}

impl Mounted {
    /// The tree; nothing in it can panic half way, so a poisoned lock is whole.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of the data of a write, which stands in the buffer behind its request.
    pub(super) fn take(&self, write: Write, buffer: &mut Option<Buffer>) -> Result<Brought, Errno> {
        let handle = self.handles.get(write.handle)?;
        let Ok(turn) = handle.try_turn() else {
            return buffer.take().map(Brought::Request).ok_or(Errno::IO);
        };
        let parcel = self.cut(write, &handle, buffer)?;
        Ok(parcel.map_or(Brought::Copy, |parcel| Brought::Parcel(parcel, turn)))
    }

    /// None: it is a part of a copy.
    fn cut(
        &self,
        write: Write,
        handle: &Handle,
        buffer: &mut Option<Buffer>,
    ) -> Result<Option<Parcel>, Errno> {
        let mut stream = handle.stream().ok_or(Errno::BADF)?;
        let start = HEADROOM + WRITE_DATA_AT;
        let data = start..start + write.size as usize;
        let written = buffer.as_ref().and_then(|buffer| buffer.get(data.clone()));
        let written = written.ok_or(Errno::IO)?;
        let now = Time::now();
        let masked = stream.rule.filters();
        let writer = write.header.thread;
        let is_writer = |thread| {
            thread == writer
                || process_of(thread).is_some_and(|process| process_of(writer) == Some(process))
        };
        let mut tree = self.tree();
        let wrote = tree.wrote(handle.node, write.offset, written, masked, is_writer, now)?;
        drop(tree);
        if wrote == Wrote::New {
            return stream.take(buffer, data, write.header.thread).map(Some);
        }
        if wrote == Wrote::CopyBegins {
            let text = format_args!(
                "{} is a copy of a file in the mount that was shipped when it was written: it is not shipped again",
                stream.path()
            );
            self.ship.context.reporter.info("copy", text);
        }
        self.ship.meters.copied.add(data.len() as u64);
        Ok(None)
    }

    /// Sends it; the answer to the write. Given up, it takes nothing with it that others have written.
    pub(super) async fn write(&self, write: Write, brought: Brought) -> Result<u32, Errno> {
        let handle = self.handles.get(write.handle)?;
        let when_full = self.ship.options.when_full;
        let send = async {
            let (parcel, _turn) = match brought {
                Brought::Parcel(parcel, turn) => (parcel, turn),
                Brought::Request(buffer) => {
                    let turn = handle.turn().await;
                    match self.cut(write, &handle, &mut Some(buffer))? {
                        Some(parcel) => (parcel, turn),
                        None => return Ok(write.size),
                    }
                }
                Brought::Copy => return Ok(write.size),
            };
            let taken = self.ship.send(&handle, parcel, when_full).await?;
            if write.flags & DSYNC != 0 {
                self.ship.sync(&handle).await?;
            }
            // No write is larger than a request.
            Ok(u32::try_from(taken).unwrap_or(write.size))
        };
        let given_up = self
            .waiting
            .given_up(write.header.unique, write.header.thread);
        let sent = tokio::select! {
            biased;
            sent = send => sent,
            () = given_up => Err(Errno::INTR),
        };
        if when_full == WhenFull::Fail && sent == Err(Errno::NOSPC) {
            self.ship.meters.refused.add(1);
        }
        sent
    }

    /// `fsync`: of everything that was written to the file, through whichever open file.
    pub(super) async fn sync(&self, header: Header, node: u64) -> Result<(), Errno> {
        let sync = async {
            for handle in self.handles.of_node(node) {
                let _turn = handle.turn().await;
                self.ship.sync(&handle).await?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            synced = sync => synced,
            () = self.waiting.given_up(header.unique, header.thread) => Err(Errno::INTR),
        }
    }

    /// The last of an open file is closed. Nobody waits for this; what cannot be sent is said in the log.
    pub(super) async fn close(&self, number: u64) {
        let Some(handle) = self.handles.remove(number) else {
            return;
        };
        self.ship.meters.open.set(self.handles.len() as u64);
        self.tree().close(handle.node);
        if self.ship.finish(&handle).await.is_err() {
            let text = if self.ship.durable {
                "the end of a file could not be kept; it is sent at the next start"
            } else {
                "the end of a file was dropped before it was settled"
            };
            self.ship.context.reporter.error("close", text);
        }
    }
}
