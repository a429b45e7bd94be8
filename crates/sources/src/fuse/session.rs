//! A session: one data thread's share of a mount. Reads requests from the device and answers them.
//!
//! The path of a batch (ARCHITECTURE.md), with the hop of this file in brackets:
//! `[read] -> decode -> send -> keep -> read back -> process -> encode -> write -> settle`
//!
//! The buffer for a request comes from a pool and begins with some free space (headroom). An unfinished line of earlier writes
//! can be copied there, in front of the data of the request. Large writes are sent in that buffer and never copied. A request may
//! have to wait for a full channel or a sync. It then continues as a task on the same thread, while the session serves other
//! requests.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use millstream_record::Buffer;
use millstream_sys::fuse::Device;
use millstream_wire::fuse::{self, Header, Operation, Request, WRITE_DATA_AT};
use rustix::io::Errno;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};

use super::{
    alias::node_of,
    cutter::HEADROOM,
    handover::resends,
    mounted::{Mounted, Write},
    namespace::WRITE_BYTES_MAX,
};

/// The size of a buffer, in bytes.
const REQUEST_BYTES: usize = HEADROOM + WRITE_DATA_AT + WRITE_BYTES_MAX as usize;

/// The session wakes when a request is readable, or when the mount has ended. The kernel reports the end of the mount as an
/// error.
const WAKES: Interest = Interest::READABLE.add(Interest::ERROR);

/// Answers one request. A `Reply` that is dropped before it has answered sends EIO, so that a bug or a panic never leaves a
/// writer hanging.
struct Reply {
    device: Device,
    unique: u64,
    is_answered: bool,
}

impl Reply {
    fn new(device: &Device, unique: u64) -> Self {
        Self {
            device: device.clone(),
            unique,
            is_answered: false,
        }
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        self.is_answered = true;
        let header = fuse::header(self.unique, error, body.len());
        // Errors are ignored. ENOENT: the process that sent the request is gone. ENODEV: the mount is gone.
        let _ = self
            .device
            .write(&[IoSlice::new(&header), IoSlice::new(body)]);
    }

    /// Answers with a body or an error.
    fn answer(mut self, result: Result<impl AsRef<[u8]>, Errno>) {
        match result {
            Ok(body) => self.send(0, body.as_ref()),
            Err(error) => self.send(error.raw_os_error(), &[]),
        }
    }

    /// Ends a request that takes no answer.
    fn none(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(Errno::IO.raw_os_error(), &[]);
        }
    }
}

/// Serves requests until `stop`, or until the mount is gone. Returns whether the mount is gone.
pub(super) async fn serve(mounted: Arc<Mounted>, mut stop: watch::Receiver<bool>) -> bool {
    let reporter = &mounted.shipper.context.reporter;
    #[allow(
        deprecated,
        reason = "its replacement is unsafe; this Device holds its descriptor open as long as it is registered"
    )]
    let ready = match AsyncFd::with_interest(mounted.device.clone(), WAKES) {
        Ok(ready) => ready,
        Err(error) => {
            reporter.error("device", format_args!("cannot wait for /dev/fuse: {error}"));
            return false;
        }
    };
    let mut buffer = None;
    loop {
        // Writers that never pause must not keep the session from its end.
        if *stop.borrow() {
            return false;
        }
        let next = tokio::select! {
            biased;
            next = read(&mounted, &ready, &mut buffer) => next,
            _ = stop.wait_for(|stop| *stop) => return false,
        };
        match next {
            Ok(true) => handle(&mounted, &mut buffer).await,
            Ok(false) => return true,
            Err(error) => {
                let text = format_args!("cannot read from /dev/fuse: {error}");
                mounted.shipper.context.reporter.error("device", text);
                return false;
            }
        }
    }
}

/// Reads one request. Returns false when the mount is gone.
async fn read(
    mounted: &Mounted,
    ready: &AsyncFd<Device>,
    buffer: &mut Option<Buffer>,
) -> io::Result<bool> {
    if buffer.is_none() {
        // While the pool has no free memory, no request is read. Writers then wait in the kernel, where any signal interrupts
        // them.
        *buffer = Some(mounted.shipper.context.pool.reserve(REQUEST_BYTES).await);
    }
    let Some(buffer) = buffer else {
        return Ok(true);
    };
    loop {
        let mut guard = ready.ready(WAKES).await?;
        buffer.resize(HEADROOM, 0);
        match guard.get_inner().read(buffer) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => guard.clear_ready(),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Answers the request in the buffer, or spawns a task that answers it.
async fn handle(mounted: &Arc<Mounted>, buffer: &mut Option<Buffer>) {
    let Some(bytes) = buffer.as_ref().and_then(|buffer| buffer.get(HEADROOM..)) else {
        return;
    };
    let device = &mounted.device;
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(malformed) => {
            Reply::new(device, malformed.unique).answer(Err::<[u8; 0], _>(Errno::IO));
            let reporter = &mounted.shipper.context.reporter;
            reporter.error("request", malformed);
            return;
        }
    };
    let number = request.header.node;
    let header = Header {
        node: node_of(number),
        ..request.header
    };
    let reply = Reply::new(device, header.unique);
    match request.operation {
        Operation::Write {
            handle,
            offset,
            size,
            flags,
        } => {
            let write = Write {
                header,
                number,
                handle,
                offset,
                size,
                flags,
            };
            handle_write(mounted, write, reply, buffer).await;
        }
        Operation::Read { offset, size, .. } => {
            run(mounted, async move |mounted| {
                reply.answer(mounted.names.read(header, offset, size).await);
            })
            .await;
        }
        Operation::Sync { .. } => {
            run(mounted, async move |mounted| {
                let synced = mounted.sync(header, number).await;
                answer(&mounted, reply, synced.map(|()| [0_u8; 0]));
            })
            .await;
        }
        Operation::Lookup { name } => match mounted.lookup_now(header, name) {
            Some(body) => reply.answer(body),
            None => {
                let name = name.to_vec();
                run(mounted, async move |mounted| {
                    reply.answer(mounted.lookup_soon(header, &name).await);
                })
                .await;
            }
        },
        Operation::Release { handle } => {
            // No program waits for the end of this request, and the kernel expects its answer soon.
            reply.answer(Ok([]));
            run(mounted, async move |mounted| mounted.release(handle).await).await;
        }
        operation => match mounted.answer(header, operation) {
            Some(body) => reply.answer(body),
            None => reply.none(),
        },
    }
}

async fn handle_write(
    mounted: &Arc<Mounted>,
    write: Write,
    reply: Reply,
    buffer: &mut Option<Buffer>,
) {
    let begun = match mounted.begin_write(write, buffer) {
        Ok(begun) => begun,
        Err(error) => return reply.answer(Err::<[u8; 0], _>(error)),
    };
    run(mounted, async |mounted| {
        let written = mounted.finish_write(begun).await;
        answer(&mounted, reply, written.map(fuse::written));
    })
    .await;
    // Lets a consumer on this thread take the batch while it is still in the CPU cache.
    tokio::task::yield_now().await;
}

/// Answers a request that may have waited. If it failed because the mount is left to the next program, it gets no answer: the
/// kernel sends it to the next program again.
fn answer(mounted: &Mounted, reply: Reply, result: Result<impl AsRef<[u8]>, Errno>) {
    match result {
        Err(_) if mounted.shipper.is_frozen() && resends() => reply.none(),
        result => reply.answer(result),
    }
}

/// Polls a request once. If it has to wait, it continues as a task.
async fn run(mounted: &Arc<Mounted>, request: impl AsyncFnOnce(Arc<Mounted>) + 'static) {
    let mounted = mounted.clone();
    let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
        let _busy = mounted.busy.clone();
        request(mounted).await;
    });
    let done = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
    if !done {
        tokio::task::spawn_local(work);
    }
}
