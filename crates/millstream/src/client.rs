//! A client of a running instance: one request over HTTP/1.1 per connection, with timeouts and a bound on the response.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// The timeout of connecting and of each read.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest response in bytes: enough for some thousand nodes.
const ANSWER_MAX: u64 = 64 << 20;

/// The status code and the body that `http://ADDRESS/PATH` answers to a request without a body.
pub fn request(address: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it is no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, PATIENCE) {
            Ok(stream) => return ask(stream, address, method, path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(mut stream: TcpStream, host: &str, method: &str, path: &str) -> io::Result<(u16, String)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // With `Connection: close` the response ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not answer as HTTP"))
}

/// Parses a status line, headers, an empty line and a body. The interface sends lengths and never chunks.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    Some((code, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn an_answer_is_a_code_and_a_body() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(answer), Some((503, "{}".to_owned())));
        for broken in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.é\r\n\r\n",
        ] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
