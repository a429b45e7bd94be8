//! Tests whether servers accept connections, for `check --connect`. A probe only does the handshake and sends no records.

use std::{fmt, future::Future, io, time::Duration};

use millstream_net::Stream;
use millstream_pipeline::failure::Failure;
use tokio::{io::AsyncReadExt, runtime::Builder, task::LocalSet, time::timeout};

/// A server that does not answer within this time counts as down.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a probe waits after the handshake. A server that refuses the client (a missing certificate or key) closes the connection
/// within this time.
const OBJECTION: Duration = Duration::from_millis(300);
/// Maximum bytes of a greeting that are read.
const GREETING_BYTES: usize = 512;

/// Probes each server. `probe` returns what its success proves, such as `it answers`, or why records would not reach the server.
pub(crate) fn servers<E: fmt::Display>(
    servers: &[String],
    probe: impl AsyncFn(&str) -> Result<&'static str, E>,
) -> Result<String, Failure> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    run(async {
        for server in servers {
            match timeout(PATIENCE, probe(server)).await {
                Ok(Ok(proven)) => good.push(format!("{server} ({proven})")),
                Ok(Err(error)) => bad.push(format!("{server}: {error}")),
                Err(_) => bad.push(format!("{server}: no answer within {PATIENCE:?}")),
            }
        }
        Ok(())
    })?;
    if bad.is_empty() {
        return Ok(format!("connected to {}", good.join(", ")));
    }
    let mut text = format!("cannot connect to {}", bad.join(", "));
    if !good.is_empty() {
        text.push_str(&format!("; connected to {}", good.join(", ")));
    }
    Err(Failure::peer(text))
}

/// Runs a probe on its own runtime.
pub(crate) fn run<T>(probe: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::us(format!("cannot start: {error}")))?;
    LocalSet::new().block_on(&runtime, probe)
}

/// Returns the first bytes that a server sends. They are empty if the server waits for the client, as it should.
///
/// # Errors
/// The server has closed the connection, or the system reports an error.
pub(crate) async fn greeting(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; GREETING_BYTES];
    match timeout(OBJECTION, stream.read(&mut bytes)).await {
        Err(_) => Ok(Vec::new()),
        Ok(Ok(0)) => Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "it closes the connection immediately",
        )),
        Ok(Ok(count)) => {
            bytes.truncate(count);
            Ok(bytes)
        }
        Ok(Err(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use millstream_net::{Socket, connect};

    use super::*;

    #[test]
    fn servers_that_answer_are_distinguished_from_those_that_do_not() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let up = open.local_addr().unwrap().to_string();
        let closing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closes = closing.local_addr().unwrap().to_string();
        std::thread::spawn(move || drop(closing.accept()));
        // This socket is bound but does not listen: no other socket gets its port, and connections to it are refused.
        let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let closed = closed.unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        closed.bind(&any.into()).unwrap();
        let down = closed
            .local_addr()
            .unwrap()
            .as_socket()
            .unwrap()
            .to_string();
        let probe = async |server: &str| {
            let socket = Socket::Tcp(connect(server, PATIENCE, 0).await?);
            greeting(&mut Stream::Plain(socket)).await?;
            Ok::<_, io::Error>("it is there")
        };
        let report = servers(std::slice::from_ref(&up), probe).unwrap();
        assert_eq!(report, format!("connected to {up} (it is there)"));
        let failure = servers(&[up.clone(), down.clone(), closes.clone()], probe).unwrap_err();
        let report = failure.message;
        assert!(
            report.starts_with(&format!("cannot connect to {down}: ")),
            "{report}"
        );
        assert!(report.contains(&format!("{closes}: it closes")), "{report}");
        assert!(
            report.ends_with(&format!("connected to {up} (it is there)")),
            "{report}"
        );
    }
}
