//! A connection to a server: TLS and the shared key on top of what `net` opens.
//!
//! It promises an end within `retry.timeout`, and that one address that swallows everything leaves time for the others.

use std::io;

use millstream_net::{Socket, Stream, connect_each, open};
use millstream_pipeline::report::Reporter;
use tokio::net::TcpStream;

use super::{connection::is_handshake, hub::Settings};
use crate::probe::greeting;

/// Connects to the first address of the name that answers. Names are looked up anew each time.
pub(super) async fn connect(
    server: &str,
    settings: &Settings,
    reporter: &Reporter,
) -> io::Result<Stream> {
    let (limit, buffer) = (settings.connect_timeout, settings.send_buffer);
    connect_each(server, limit, async |address| {
        greet(open(address, buffer).await?, server, settings, reporter).await
    })
    .await
}

/// Does all that comes before the first record; what the server has proven.
pub(super) async fn probe(
    server: &str,
    settings: &Settings,
    reporter: &Reporter,
) -> io::Result<&'static str> {
    let mut stream = connect(server, settings, reporter).await?;
    if settings.auth.is_some() {
        return Ok("it has the shared key");
    }
    let said = greeting(&mut stream).await?;
    if is_handshake(&said) {
        let text = "it wants a shared key: give `auth`";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(match settings.tls {
        Some(_) => "TLS, no shared key",
        None => "no TLS, no shared key",
    })
}

/// TLS and the shared key, where they are wanted.
async fn greet(
    stream: TcpStream,
    server: &str,
    settings: &Settings,
    reporter: &Reporter,
) -> io::Result<Stream> {
    let socket = Socket::Tcp(stream);
    let mut stream = match &settings.tls {
        None => Stream::Plain(socket),
        Some(tls) => {
            let host = server.rsplit_once(':').map(|(host, _)| host);
            let host = host.unwrap_or(server);
            let secure = tls.connect(socket, host, reporter).await;
            secure.map_err(|error| io::Error::new(error.kind(), format!("TLS: {error}")))?
        }
    };
    if let Some(auth) = &settings.auth {
        auth.greet(&mut stream).await?;
    }
    Ok(stream)
}
