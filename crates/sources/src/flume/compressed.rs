//! The writing side of a connection, with deflate if configured.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use millstream_wire::avro::rpc::Deflate;
use tokio::io::AsyncWrite;

/// A writer that compresses, if it has a deflate stream.
pub(super) struct Compressed<W> {
    inner: W,
    stream: Option<Deflate>,
    /// Compressed bytes that are not fully written yet.
    out: Vec<u8>,
    /// The number of bytes of `out` that were written.
    written: usize,
}

impl<W: AsyncWrite + Unpin> Compressed<W> {
    pub(super) fn new(inner: W, deflate: bool) -> Self {
        Self {
            inner,
            stream: deflate.then(Deflate::default),
            out: Vec::new(),
            written: 0,
        }
    }

    /// Writes the compressed bytes in `out`.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Compressed<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_out(context))?;
        match &mut this.stream {
            None => Pin::new(&mut this.inner).poll_write(context, bytes),
            Some(stream) => {
                stream.deflate(bytes, &mut this.out);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_out(context))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
