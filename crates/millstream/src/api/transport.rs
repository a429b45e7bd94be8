//! The bytes of a connection of the HTTP interface: plain, or under TLS.
//!
//! The TLS handshake runs within the first reads of the connection, so the deadline of these reads applies to the handshake. A peer that
//! does not finish its handshake never delays other connections.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use millstream_net::{ServerTls, Socket, Stream};
use millstream_pipeline::report::Reporter;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// TLS of the interface.
pub struct Tls {
    tls: ServerTls,
    reporter: Reporter,
}

/// The names in a client's certificate. They are set when the handshake has ended.
pub type Names = Arc<OnceLock<Vec<String>>>;

type Handshake = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// The bytes of a connection.
pub enum Transport {
    /// Without TLS.
    Plain(TcpStream),
    /// Before the end of the handshake.
    Shaking(Handshake, Names),
    /// Under TLS.
    Secured(Stream),
}

impl Tls {
    /// `reporter` logs problems with certificates and handshakes.
    pub fn new(tls: ServerTls, reporter: Reporter) -> Arc<Self> {
        Arc::new(Self { tls, reporter })
    }

    /// Begins the handshake of a connection. At its end, `names` is set to the names in the client's certificate.
    pub fn accept(self: &Arc<Self>, socket: TcpStream, names: &Names) -> Transport {
        let own = self.clone();
        let handshake = async move {
            let shaken = own.tls.accept(Socket::Tcp(socket), &own.reporter).await;
            shaken.inspect_err(|error| {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    let text = format_args!("the TLS handshake of a client failed: {error}");
                    own.reporter.warn("handshake", text);
                }
            })
        };
        Transport::Shaking(Box::pin(handshake), names.clone())
    }
}

impl Transport {
    /// Waits for the end of the handshake.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Shaking(handshake, names) = self {
            let stream = ready!(handshake.as_mut().poll(context))?;
            let _ = names.set(stream.peer_names());
            *self = Self::Secured(stream);
        }
        Poll::Ready(Ok(()))
    }
}

/// The error of using a stream before the end of its handshake.
const SHAKING: &str = "the handshake has not ended";

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(context))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Secured(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Shaking(..) => Poll::Ready(Err(io::Error::other(SHAKING))),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(context))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Secured(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Shaking(..) => Poll::Ready(Err(io::Error::other(SHAKING))),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Secured(stream) => Pin::new(stream).poll_flush(context),
            Self::Shaking(..) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Secured(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Shaking(..) => Poll::Ready(Ok(())),
        }
    }
}
