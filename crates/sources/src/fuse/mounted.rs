//! The state that all sessions of a mount (one per data thread) share, and the handling of requests about open files.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::sync::Arc;

use millstream_record::{Buffer, Time};
use millstream_sys::fuse::Device;
use millstream_wire::fuse::{self, Header, Operation, WRITE_DATA_AT, open_flag};
use rustix::io::Errno;
use tokio::{sync::mpsc, time::timeout};

use super::{
    cutter::HEADROOM,
    namespace::{Body, Namespace, VALID_SECONDS, entry, name_seconds},
    open_file::{OpenFile, Turn},
    open_files::OpenFiles,
    parcel::Parcel,
    patience::Patience,
    process::process_of,
    shipper::Shipper,
    tree::WriteKind,
    waiting::{SOON, Waiting},
};

/// The bits of the flags of `open(2)` that select reading, writing or both.
const ACCESS_MODE: u32 = 3;
const TRUNCATE: u32 = 0o1_000;
/// O_DSYNC, which O_SYNC includes: each write returns once its bytes are durable.
const DSYNC: u32 = 0o10_000;
/// O_APPEND.
const APPEND: u32 = 0o2_000;
/// With direct I/O the kernel sends each write immediately and does not merge it with others. So the boundaries of writes are
/// known, and the error of a write is returned to its writer.
const OPENED: u32 = open_flag::DIRECT_IO | open_flag::NO_FLUSH;

/// The state that the sessions of one mount share.
pub(super) struct Mounted {
    pub device: Device,
    pub shipper: Arc<Shipper>,
    pub names: Namespace,
    pub files: OpenFiles,
    pub waiting: Waiting,
    /// Each request in flight holds a clone. The source ends once all clones are dropped.
    pub busy: mpsc::Sender<()>,
}

/// A WRITE request without its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub header: Header,
    /// The number to which the request goes: a node or its alias.
    pub number: u64,
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub flags: u32,
}

/// A write between [`Mounted::begin_write`] and [`Mounted::finish_write`]. It no longer borrows the session's buffer.
pub(super) struct BegunWrite {
    file: Arc<OpenFile>,
    write: Write,
    stage: Stage,
}

/// The progress of a write.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every one is the large one, and none is stored"
)]
enum Stage {
    /// The records are cut. Holds the file's [`Turn`], if the file needs one.
    Cut(Parcel, Option<Turn>),
    /// Another task has the file's turn, so the write must wait for it. Holds the whole request.
    Queued(Buffer),
    /// The write is a part of a copy of another file in the mount. Its bytes were already shipped from that file.
    Copy,
}

impl Mounted {
    /// Answers LOOKUP. Returns `None` if a write to the file has begun to wait just now, unless `is_urgent`: a moment later it is
    /// clear whether the file needs an alias.
    fn try_lookup(&self, directory: u64, name: &[u8], is_urgent: bool) -> Option<Body> {
        let mut tree = self.names.tree();
        let found = tree.find(directory, name);
        let number = match found {
            Ok(node) => self.waiting.number_of(node, is_urgent)?,
            Err(error) => return Some(Err(error)),
        };
        Some(tree.lookup(directory, name).map(|of| entry(&of, number)))
    }

    /// Answers LOOKUP, if that is possible now.
    pub(super) fn lookup_now(&self, header: Header, name: &[u8]) -> Option<Body> {
        self.try_lookup(header.node, name, false)
    }

    /// Answers LOOKUP after a moment, in which the writes to the file may end.
    pub(super) async fn lookup_soon(&self, header: Header, name: &[u8]) -> Body {
        let ends = async {
            loop {
                self.waiting.one_ended().await;
                if let Some(body) = self.try_lookup(header.node, name, false) {
                    return body;
                }
            }
        };
        match timeout(SOON, ends).await {
            Ok(body) => body,
            Err(_) => self
                .try_lookup(header.node, name, true)
                .unwrap_or(Err(Errno::IO)),
        }
    }

    /// Answers a request that never waits. Returns `None` if the kernel expects no answer.
    pub(super) fn answer(&self, header: Header, operation: Operation<'_>) -> Option<Body> {
        Some(match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => {
                self.names.forget(header.node, operation);
                return None;
            }
            Operation::Interrupt { unique } if self.waiting.interrupt(unique) => return None,
            // The interrupted request is not waiting yet or has ended. On EAGAIN the kernel repeats the interrupt if that request
            // is still unanswered.
            Operation::Interrupt { .. } => Err(Errno::AGAIN),
            Operation::Open { flags } => self.open(header.node, flags),
            Operation::Create { name, mode, flags } => self.create(header, name, mode, flags),
            operation => {
                let space = || self.shipper.context.outlet.space();
                self.names.answer(header, operation, space)
            }
        })
    }

    fn open(&self, node: u64, flags: u32) -> Body {
        Ok(fuse::opened(self.add(node, flags)?, OPENED))
    }

    fn create(&self, header: Header, name: &[u8], mode: u32, flags: u32) -> Body {
        let made = self.names.make(header, name, mode, None)?;
        let handle = self.add(made.node, flags)?;
        Ok(fuse::created(
            &made,
            name_seconds(made.mode),
            VALID_SECONDS,
            handle,
            OPENED,
        ))
    }

    /// Opens a file. Returns its handle.
    fn add(&self, node: u64, flags: u32) -> Result<u64, Errno> {
        let path = {
            let mut tree = self.names.tree();
            tree.open(node)?;
            if flags & TRUNCATE != 0 {
                tree.resize(node, 0, Time::now())?;
            }
            tree.path(node).unwrap_or_default()
        };
        Ok(self.files.add(if flags & ACCESS_MODE == 0 {
            OpenFile::to_read(&self.shipper, node)
        } else {
            OpenFile::to_write(&self.shipper, node, &path.to_string_lossy())
        }))
    }

    /// The first part of a WRITE request: cuts the data into records, without waiting. In the buffer, the data follows the header
    /// of the request. Takes the buffer if records stay in it, or if the write has to wait for its turn.
    pub(super) fn begin_write(
        &self,
        write: Write,
        buffer: &mut Option<Buffer>,
    ) -> Result<BegunWrite, Errno> {
        let file = self.files.get(write.handle)?;
        let stage = match file.try_turn() {
            Ok(turn) => match self.cut(write, &file, buffer)? {
                Some(parcel) => Stage::Cut(parcel, turn),
                None => Stage::Copy,
            },
            Err(_) => Stage::Queued(buffer.take().ok_or(Errno::IO)?),
        };
        Ok(BegunWrite { file, write, stage })
    }

    /// The second part of a WRITE request: sends the records. Returns the number of bytes that were accepted. A write that is
    /// cancelled while it waits does not discard bytes of other writes.
    pub(super) async fn finish_write(&self, begun: BegunWrite) -> Result<u32, Errno> {
        let BegunWrite { file, write, stage } = begun;
        let patience = Patience::of_write(self.shipper.options.when_full);
        let send = async {
            let (parcel, _turn) = match stage {
                Stage::Cut(parcel, turn) => (parcel, turn),
                Stage::Queued(buffer) => {
                    let turn = file.turn().await;
                    match self.cut(write, &file, &mut Some(buffer))? {
                        Some(parcel) => (parcel, turn),
                        None => return Ok(write.size),
                    }
                }
                Stage::Copy => return Ok(write.size),
            };
            let accepted = file.send(parcel, patience).await?;
            if write.flags & DSYNC != 0 {
                file.sync().await?;
            }
            Ok(u32::try_from(accepted).unwrap_or(write.size))
        };
        let sent = tokio::select! {
            biased;
            sent = send => sent,
            () = self.given_up(write.header, write.number) => Err(Errno::INTR),
        };
        if patience.has_limit() && sent == Err(Errno::NOSPC) {
            self.shipper.meters.refused.add(1);
        }
        sent
    }

    /// Notes a write in the tree and cuts its data into records. Returns `None` if the write is a part of a copy within the mount.
    fn cut(
        &self,
        write: Write,
        file: &OpenFile,
        buffer: &mut Option<Buffer>,
    ) -> Result<Option<Parcel>, Errno> {
        let masked = file.rule()?.filters();
        let mut stream = file.stream()?;
        let start = HEADROOM + WRITE_DATA_AT;
        let data = start..start + write.size as usize;
        let written = buffer.as_ref().and_then(|buffer| buffer.get(data.clone()));
        let written = written.ok_or(Errno::IO)?;
        let writer = write.header.thread;
        let is_writer = |thread| {
            thread == writer
                || process_of(thread).is_some_and(|process| process_of(writer) == Some(process))
        };
        let mut tree = self.names.tree();
        // The kernel's size of the file may be older (`alias.rs`).
        let offset = match write.flags & APPEND {
            0 => write.offset,
            _ => tree.attributes(file.node())?.size,
        };
        let now = Time::now();
        let kind = tree.write(file.node(), offset, written, masked, is_writer, now)?;
        drop(tree);
        if kind == WriteKind::New {
            return stream.write(buffer, data, writer).map(Some);
        }
        if kind == WriteKind::CopyBegins {
            let text = format_args!(
                "{} copies a file of the mount that was already shipped; the copy is not shipped",
                stream.path()
            );
            self.shipper.context.reporter.info("copy", text);
        }
        self.shipper.meters.copied.add(data.len() as u64);
        Ok(None)
    }

    /// FSYNC: syncs everything that was written to a file through any of its handles.
    pub(super) async fn sync(&self, header: Header, number: u64) -> Result<(), Errno> {
        let sync = async {
            for file in self.files.of_node(header.node) {
                let _turn = file.turn().await;
                file.sync().await?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            synced = sync => synced,
            () = self.given_up(header, number) => Err(Errno::INTR),
            () = self.shipper.stopped_without_room() => Err(Errno::IO),
        }
    }

    /// RELEASE: the last copy of a handle was closed. No program waits for this request, so an error can only be logged.
    pub(super) async fn release(&self, handle: u64) {
        let Some(file) = self.files.remove(handle) else {
            return;
        };
        self.names.tree().close(file.node());
        if file.finish().await.is_err() {
            let text = if self.shipper.durable {
                "the last bytes of a closed file cannot be passed on now; they are sent after the next start"
            } else {
                "the last bytes of a closed file are lost: they were dropped before a sink had settled them"
            };
            self.shipper.context.reporter.error("close", text);
        }
    }

    async fn given_up(&self, header: Header, number: u64) {
        let Header { unique, thread, .. } = header;
        self.waiting.given_up(unique, number, thread).await;
    }
}
