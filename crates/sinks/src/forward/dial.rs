//! Connects to a server with a socket of the crate `net`, and does the handshakes of TLS and of the shared key.
//!
//! A connection attempt ends within `retry.timeout`. An address that drops every packet leaves enough time for the other addresses
//! of the name.

use std::io;

use millstream_net::{Socket, Stream, connect_each, open};
use millstream_pipeline::report::Reporter;
use tokio::net::TcpStream;

use super::{auth::is_handshake, settings::Settings};
use crate::probe::greeting;

/// Resolves the server's name and connects to the first address that answers.
pub(super) async fn connect(
    server: &str,
    settings: &Settings,
    reporter: &Reporter,
) -> io::Result<Stream> {
    let (limit, buffer) = (settings.retry.timeout.as_duration(), settings.send_buffer);
    connect_each(server, limit, async |address| {
        handshake(open(address, buffer).await?, server, settings, reporter).await
    })
    .await
}

/// Connects and does all handshakes, without sending a record. Returns a text that says what the server has proven.
pub(super) async fn probe(
    server: &str,
    settings: &Settings,
    reporter: &Reporter,
) -> io::Result<&'static str> {
    let mut stream = connect(server, settings, reporter).await?;
    if settings.auth.is_some() {
        return Ok("it has the shared key");
    }
    let hello = greeting(&mut stream).await?;
    if is_handshake(&hello) {
        let text = "it demands a shared key: set `auth`";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(match settings.tls {
        Some(_) => "TLS, no shared key",
        None => "no TLS, no shared key",
    })
}

/// Does the handshakes of TLS and of the shared key, where they are configured.
async fn handshake(
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
