//! One data thread's share of a mount: reads requests and answers them.
//!
//! `[read] -> decode -> send -> keep -> take -> process -> encode -> write -> settle`
//!
//! A request is read into a pooled buffer behind some room, so that an unfinished line can be put in front of what was
//! written; large writes leave in that buffer and are never copied. What cannot be answered at once (a full channel, a
//! sync) goes on as a task of its own on the same thread, so that other files are served.

use std::{
    future::{Future, poll_fn},
    io::IoSlice,
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use millstream_record::Buffer;
use millstream_sys::fuse::Device;
use millstream_wire::fuse::{self, Operation, Request, WRITE_DATA_AT};
use rustix::io::Errno;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
};

use super::mounted::{Mounted, Write};

/// The largest write that is asked for: the system's bound is 256 pages.
pub(super) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Room in front of every request, for an unfinished line.
pub(super) const HEADROOM: usize = 4096;
/// What a buffer takes.
const REQUEST_BYTES: usize = HEADROOM + WRITE_DATA_AT + WRITE_BYTES_MAX as usize;

/// A request, or the end of the mount, which comes as an error.
const WAKES: Interest = Interest::READABLE.add(Interest::ERROR);

/// The answer to one request. One that is dropped unanswered answers EIO: no writer may hang for a fault of ours.
pub(super) struct Reply {
    device: Device,
    unique: u64,
    answered: bool,
}

impl Reply {
    pub(super) fn new(device: &Device, unique: u64) -> Self {
        Self {
            device: device.clone(),
            unique,
            answered: false,
        }
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        self.answered = true;
        let header = fuse::header(self.unique, error, body.len());
        // ENOENT: whoever asked is gone. ENODEV: so is the mount.
        let _ = self
            .device
            .write(&[IoSlice::new(&header), IoSlice::new(body)]);
    }

    /// Answers with a body or an error.
    pub(super) fn answer(mut self, result: Result<impl AsRef<[u8]>, Errno>) {
        match result {
            Ok(body) => self.send(0, body.as_ref()),
            Err(error) => self.send(error.raw_os_error(), &[]),
        }
    }

    /// This one takes no answer.
    pub(super) fn none(mut self) {
        self.answered = true;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            self.send(Errno::IO.raw_os_error(), &[]);
        }
    }
}

/// Reads requests until it is told to stop, or the mount is gone; then true.
pub(super) async fn serve(mounted: Arc<Mounted>, mut stop: watch::Receiver<bool>) -> bool {
    let reporter = &mounted.ship.context.reporter;
    #[allow(
        deprecated,
        reason = "what takes its place is unsafe; this Device holds its descriptor open as long as it is registered"
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
        let next = tokio::select! {
            biased;
            next = read(&mounted, &ready, &mut buffer) => next,
            _ = stop.wait_for(|stop| *stop) => return false,
        };
        match next {
            Ok(true) => handle(&mounted, &mut buffer).await,
            Ok(false) => return true,
            Err(error) => {
                let text = format_args!("reading from /dev/fuse failed: {error}");
                mounted.ship.context.reporter.error("device", text);
                return false;
            }
        }
    }
}

/// Reads one request; false when the mount is gone.
async fn read(
    mounted: &Mounted,
    ready: &AsyncFd<Device>,
    buffer: &mut Option<Buffer>,
) -> std::io::Result<bool> {
    if buffer.is_none() {
        // While memory is short nothing is read: writers wait in the system, where any signal gets them out.
        *buffer = Some(mounted.ship.context.pool.reserve(REQUEST_BYTES).await);
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

/// Answers the request that stands in the buffer, or lets it go on by itself.
async fn handle(mounted: &Arc<Mounted>, buffer: &mut Option<Buffer>) {
    let Some(bytes) = buffer.as_ref().and_then(|buffer| buffer.get(HEADROOM..)) else {
        return;
    };
    let device = &mounted.device;
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(malformed) => {
            Reply::new(device, malformed.unique).answer(Err::<[u8; 0], _>(Errno::IO));
            mounted.ship.context.reporter.error("request", malformed);
            return;
        }
    };
    let header = request.header;
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
                handle,
                offset,
                size,
                flags,
            };
            let brought = match mounted.take(write, buffer) {
                Ok(brought) => brought,
                Err(error) => return reply.answer(Err::<[u8; 0], _>(error)),
            };
            let mounted = mounted.clone();
            go_on(async move {
                let _busy = mounted.busy.clone();
                let written = mounted.write(write, brought).await;
                reply.answer(written.map(fuse::written));
            })
            .await;
            // A consumer on this thread takes the batch while it is in the cache.
            tokio::task::yield_now().await;
        }
        Operation::Sync { .. } => {
            let mounted = mounted.clone();
            go_on(async move {
                let _busy = mounted.busy.clone();
                let synced = mounted.sync(header, header.node).await;
                reply.answer(synced.map(|()| []));
            })
            .await;
        }
        Operation::Release { handle } => {
            // Nobody waits for the end of this, and the system counts on it.
            reply.answer(Ok([]));
            let mounted = mounted.clone();
            go_on(async move {
                let _busy = mounted.busy.clone();
                mounted.close(handle).await;
            })
            .await;
        }
        operation => mounted.answer(header, operation, reply),
    }
}

/// Runs work to its end if that is now, else beside what comes next.
async fn go_on(work: impl Future<Output = ()> + 'static) {
    let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    let done = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
    if !done {
        tokio::task::spawn_local(work);
    }
}
