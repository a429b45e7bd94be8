//! Tries whether servers take connections, for `check --connect`. Sends nothing.

use std::{
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

use millstream_pipeline::failure::Failure;

/// A server on the way that does not answer for so long is down.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which addresses (`host:port`) answer; a failure names those that do not.
pub(crate) fn addresses(addresses: &[String]) -> Result<String, Failure> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for server in addresses {
        match connect(server) {
            Ok(address) => good.push(format!("{server} ({address})")),
            Err(error) => bad.push(format!("{server}: {error}")),
        }
    }
    if bad.is_empty() {
        return Ok(format!("connected to {}", good.join(", ")));
    }
    let mut text = format!("cannot connect to {}", bad.join(", "));
    if !good.is_empty() {
        text.push_str(&format!("; connected to {}", good.join(", ")));
    }
    Err(Failure::peer(text))
}

/// Connects to the first address of a name that answers.
fn connect(server: &str) -> io::Result<SocketAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_answer_and_those_that_do_not_are_told_apart() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let up = open.local_addr().unwrap().to_string();
        // Bound and not listening: nobody else gets this port, and it refuses.
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
        assert!(addresses(std::slice::from_ref(&up)).unwrap().contains(&up));
        let told = addresses(&[up.clone(), down.clone()]).unwrap_err();
        assert!(
            told.message
                .starts_with(&format!("cannot connect to {down}"))
        );
        assert!(told.message.ends_with(&format!("connected to {up} ({up})")));
    }
}
