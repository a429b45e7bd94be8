//! The state that all sessions of a mount (one per data thread) share, and the handling of requests about open files.
//!
//! The path of a batch (ARCHITECTURE.md), with the hops of this file in brackets:
//! `read -> [decode] -> [send] -> keep -> read back -> process -> encode -> write -> settle`

use std::{cell::Cell, ops::Range, sync::Arc};

use bytes::Bytes;
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
    process::{is_shred, process_of},
    recent::{Spill, mask},
    shipper::Shipper,
    tree::{CopyState, Suspicion, WriteKind},
    waiting::{SOON, Waiting},
};

/// The bits of the flags of `open(2)` that select reading, writing or both.
const ACCESS_MODE: u32 = 3;
const WRITE_ONLY: u32 = 1;
const TRUNCATE: u32 = 0o1_000;
/// O_DSYNC, which O_SYNC includes: each write returns once its bytes are durable.
const DSYNC: u32 = 0o10_000;
/// O_APPEND.
const APPEND: u32 = 0o2_000;
/// With direct I/O the kernel sends each write immediately and does not merge it with others. So the boundaries of writes are
/// known, and the error of a write is returned to its writer.
const OPENED: u32 = open_flag::DIRECT_IO | open_flag::NO_FLUSH;
/// Larger writes go into the spill of their file while the channel keeps them, so that they take no longer. They are not copied.
const BEHIND_BYTES_MIN: usize = 256 << 10;

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
    Cut(Cut, Option<Turn>),
    /// Another task has the file's turn, so the write must wait for it. Holds the whole request.
    Queued(Buffer),
}

/// A write whose records are cut.
struct Cut {
    offset: u64,
    /// `None` if the write is a part of a copy of another file in the mount. Its bytes were already shipped from that file.
    parcel: Option<Parcel>,
    /// The data that are still to be written into the spill of the file.
    behind: Option<(Arc<Spill>, [Bytes; 2])>,
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
            Operation::Open { flags } => self.open(header, flags),
            Operation::Create { name, mode, flags } => self.create(header, name, mode, flags),
            operation => {
                let space = || self.shipper.context.outlet.space();
                self.names.answer(header, operation, space)
            }
        })
    }

    fn open(&self, header: Header, flags: u32) -> Body {
        if flags & ACCESS_MODE != WRITE_ONLY {
            // Programs in Java write the first bytes of an archive before they read from the file that they have opened.
            self.names.tree().was_read(header.node, header.thread);
        }
        Ok(fuse::opened(self.add(header.node, flags)?, OPENED))
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
        let path = self.names.change(|tree| {
            tree.open(node)?;
            if flags & TRUNCATE != 0 {
                tree.resize(node, 0, Time::now())?;
            }
            Ok(tree.path(node).unwrap_or_default())
        })?;
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
            Ok(turn) => Stage::Cut(self.cut(write, &file, buffer)?, turn),
            Err(_) => Stage::Queued(buffer.take().ok_or(Errno::IO)?),
        };
        Ok(BegunWrite { file, write, stage })
    }

    /// The second part of a WRITE request: sends the records. Returns the number of bytes that were accepted. A write that is
    /// cancelled while it waits does not discard bytes of other writes.
    pub(super) async fn finish_write(&self, begun: BegunWrite) -> Result<u32, Errno> {
        let BegunWrite { file, write, stage } = begun;
        let patience = Patience::of_write(self.shipper.options().when_full);
        // The offset of the write, once its data are cut.
        let place = Cell::new(None);
        let send = async {
            let (cut, _turn) = match stage {
                Stage::Cut(cut, turn) => (cut, turn),
                Stage::Queued(buffer) => {
                    let turn = file.turn().await;
                    (self.cut(write, &file, &mut Some(buffer))?, turn)
                }
            };
            place.set(Some(cut.offset));
            let accepted = self.send(&file, cut, patience).await?;
            if write.flags & DSYNC != 0 {
                file.sync().await?;
            }
            Ok(accepted.map_or(write.size, |bytes| {
                u32::try_from(bytes).unwrap_or(write.size)
            }))
        };
        let sent = tokio::select! {
            biased;
            sent = send => sent,
            () = self.given_up(write.header, write.number) => Err(Errno::INTR),
        };
        if let Some(offset) = place.get() {
            let accepted = sent.unwrap_or(0);
            self.names.ended(file.node(), offset, accepted, write.size);
        }
        if patience.has_limit() && sent == Err(Errno::NOSPC) {
            self.shipper.meters.refused.add(1);
        }
        sent
    }

    /// Sends the records of a write. Meanwhile, its data go into the spill of the file. Returns the number of bytes that were
    /// accepted. `None` stands for all bytes.
    async fn send(
        &self,
        file: &OpenFile,
        cut: Cut,
        patience: Patience,
    ) -> Result<Option<usize>, Errno> {
        let Some(parcel) = cut.parcel else {
            return Ok(None);
        };
        let mut behind = None;
        if let Some((spill, parts)) = cut.behind {
            let mut offset = cut.offset;
            for part in parts {
                let bytes = part.len() as u64;
                behind = spill.write_behind(offset, part).await;
                offset += bytes;
            }
        }
        let accepted = file.send(parcel, patience).await?;
        // With a durable channel, the data survive SIGKILL, too.
        if self.shipper.durable
            && let Some(written) = behind
        {
            let _ = written.await;
        }
        Ok(Some(accepted))
    }

    /// Notes the write in the tree, and cuts its data into records. They have none if the write is a part of a copy within the mount.
    fn cut(
        &self,
        write: Write,
        file: &OpenFile,
        buffer: &mut Option<Buffer>,
    ) -> Result<Cut, Errno> {
        let mut stream = file.stream()?;
        let masked = stream.rule().filters();
        let start = HEADROOM + WRITE_DATA_AT;
        let data = start..start + write.size as usize;
        let written = buffer.as_ref().and_then(|buffer| buffer.get(data.clone()));
        let written = written.ok_or(Errno::IO)?;
        let (kind, offset, spill) = self.judge(write, file.node(), written)?;
        let is_shipped = self.ships(file, stream.path(), kind, data.len());
        let is_behind = is_shipped && !masked && data.len() >= BEHIND_BYTES_MIN;
        if let Some(spill) = spill.as_ref().filter(|_| !is_behind) {
            match masked {
                true => spill.write(offset, &mask(written)),
                false => spill.write(offset, written),
            }
        }
        if is_shipped {
            let ended = |_: &_| self.names.ended(file.node(), offset, 0, write.size);
            let parcel = stream.write(buffer, data.clone(), write.header.thread);
            let parcel = parcel.inspect_err(ended)?;
            let behind = spill.filter(|_| is_behind);
            return Ok(Cut {
                offset,
                behind: behind.map(|spill| (spill, rest(&parcel, buffer, data))),
                parcel: Some(parcel),
            });
        }
        Ok(Cut {
            offset,
            parcel: None,
            behind: None,
        })
    }

    /// Whether the data of a write are shipped. If not, notes this.
    fn ships(&self, file: &OpenFile, path: &str, kind: WriteKind, bytes: usize) -> bool {
        let (shipper, is_left_out) = (&self.shipper, file.is_left_out());
        let is_compressed = matches!(kind, WriteKind::CompressedBegins | WriteKind::Compressed);
        if is_left_out || (is_compressed && shipper.options().skips_compressed) {
            if kind == WriteKind::CompressedBegins && !is_left_out {
                shipper.leave_out(path, "it is compressed");
            }
            shipper.meters.left_out_bytes.add(bytes as u64);
            return false;
        }
        if kind == WriteKind::New || is_compressed {
            return true;
        }
        if kind == WriteKind::CopyBegins {
            let text = format_args!(
                "{path} copies a file of the mount that was already shipped; the copy is not shipped"
            );
            shipper.context.reporter.info("copy", text);
        }
        shipper.meters.copied.add(bytes as u64);
        false
    }

    /// Begins a write in the tree, and finds out whether it is a part of a copy. Also returns the offset of the write, and the spill
    /// of the file.
    fn judge(
        &self,
        write: Write,
        node: u64,
        data: &[u8],
    ) -> Result<(WriteKind, u64, Option<Arc<Spill>>), Errno> {
        let writer = write.header.thread;
        let is_writer = |thread| {
            thread == writer
                || process_of(thread).is_some_and(|process| process_of(writer) == Some(process))
        };
        let mut tree = self.names.tree();
        let suspicion = tree.judge(node, write.offset, data, is_writer)?;
        let (size, spill) = tree.content(node)?;
        let is_appended = write.flags & APPEND != 0;
        let offset = tree.begin_write(node, write.offset, data.len() as u64, is_appended)?;
        drop(tree);
        if offset < size && is_shred(writer) {
            // Its later writes may extend the file.
            self.names.tree().judged(node, CopyState::Compressed)?;
            return Ok((WriteKind::Shred, offset, spill));
        }
        // Usually the state is known already.
        if let Suspicion::None(CopyState::No) = suspicion {
            return Ok((WriteKind::New, offset, spill));
        }
        let copy = suspicion.resolve(offset, data);
        Ok((self.names.tree().judged(node, copy)?, offset, spill))
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
        self.names.closed(file.node(), file.is_writer());
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

/// The data of a write, after its records were cut. If the batch has taken the buffer, the data are the end of the batch and the
/// unfinished bytes.
fn rest(parcel: &Parcel, buffer: &Option<Buffer>, data: Range<usize>) -> [Bytes; 2] {
    if let Some(written) = buffer.as_ref().and_then(|buffer| buffer.get(data.clone())) {
        return [Bytes::copy_from_slice(written), Bytes::new()];
    }
    let whole = data.len() - parcel.unfinished.len();
    let body = parcel.batch.as_ref().map(|batch| batch.body.clone());
    let body = body.unwrap_or_default();
    let begin = body.len().saturating_sub(whole);
    [
        body.slice(begin..),
        Bytes::copy_from_slice(&parcel.unfinished),
    ]
}
