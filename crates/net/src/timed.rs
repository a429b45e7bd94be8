//! A request-and-answer connection with a deadline for its next step.
//!
//! A peer must complete the head of a request within [`Times::step`] of its first byte; a slow trickle of bytes does
//! not extend this deadline. While the peer reads an answer, it must read some bytes in every [`Times::step`]. Between
//! requests it may be idle for [`Times::idle`].

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Timeouts for the steps of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time to complete the head of a request, and the time to read some bytes of an answer.
    pub step: Duration,
    /// The time to begin the next request.
    pub idle: Duration,
}

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The end of a request, and the first byte of its answer. A trickle of bytes does not extend the deadline.
    Request,
    /// The peer's next read of the answer. Each byte that the peer reads extends the deadline.
    Answer,
    /// The next request.
    Idle,
}

/// Whether a request is being handled. If so, the deadline is suspended, because the handler has its own timeout.
#[derive(Clone, Debug, Default)]
pub struct Handling(Arc<AtomicBool>);

impl Handling {
    /// Sets whether a request is being handled.
    pub fn set(&self, handling: bool) {
        self.0.store(handling, Ordering::Relaxed);
    }
}

/// A connection whose reads and writes fail after the deadline of its step.
#[derive(Debug)]
pub struct Timed<S> {
    stream: S,
    times: Times,
    step: Step,
    handling: Handling,
    /// Whether the deadline was suspended at the last check.
    rested: bool,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Timed<S> {
    /// A new connection, which must send a request within `first`.
    pub fn new(stream: S, times: Times, first: Duration) -> Self {
        Self {
            stream,
            times,
            step: Step::Request,
            handling: Handling::default(),
            rested: false,
            deadline: Box::pin(sleep(first)),
        }
    }

    /// A handle to suspend the deadline while a request is being handled.
    #[must_use]
    pub fn handling(&self) -> Handling {
        self.handling.clone()
    }

    fn enter(&mut self, step: Step) {
        self.step = step;
        let time = match step {
            Step::Idle => self.times.idle,
            Step::Request | Step::Answer => self.times.step,
        };
        self.deadline.as_mut().reset(Instant::now() + time);
    }

    /// Fails if the deadline has passed; otherwise wakes the task when it passes.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.step == Step::Request && self.handling.0.load(Ordering::Relaxed) {
            self.rested = true;
            return Ok(());
        }
        if std::mem::take(&mut self.rested) {
            self.enter(Step::Answer);
        }
        if self.deadline.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.step == Step::Idle {
            self.enter(Step::Request);
            self.check(context)?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> Timed<S> {
    fn wrote(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            // If the answer has more bytes, a later write that is pending enters `Answer` again.
            Poll::Ready(_) => self.enter(Step::Idle),
            Poll::Pending if self.step != Step::Answer => self.enter(Step::Answer),
            Poll::Pending => {}
        }
        self.check(context)?;
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
